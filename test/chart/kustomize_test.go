package chart

import (
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// folders are the kustomizations that people install.
func folders(l *lab) []string {
	l.t.Helper()
	found := []string{"config/cert-manager", "config/controller-only", "config/default", "config/guard-only", "config/self-managed"}
	for _, folder := range found {
		if _, err := os.Stat(filepath.Join(l.cluster.Root, folder, "kustomization.yaml")); err != nil {
			l.t.Fatal(err)
		}
	}
	return found
}

// testKustomizations holds what each kustomization makes to what the API server
// accepts, unknown and duplicate fields included: it knows its schemas best.
func testKustomizations(l *lab) {
	l.mustCertManagerDefinitions()
	l.kubectl("apply", "--server-side", "-k", "config/crd")
	for _, name := range []string{"metacontroller", "metacontroller-guard"} {
		if _, err := l.cluster.Kubectl.Run(l.t.Context(), "create", "namespace", name); err != nil && !strings.Contains(err.Error(), "AlreadyExists") {
			l.t.Fatal(err)
		}
	}
	c, err := client.New(l.cluster.Config(), client.Options{})
	if err != nil {
		l.t.Fatal(err)
	}
	strict := client.WithFieldValidation(c, "Strict")
	for _, folder := range folders(l) {
		l.step(folder)
		objects := parse(l.t, kustomize(l.t, folder))
		for _, o := range objects {
			l.eventually(func() error {
				err := strict.Apply(l.t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy()),
					client.DryRunAll, client.ForceOwnership, client.FieldOwner("chart"))
				switch {
				case meta.IsNoMatchError(err):
					return err
				case err != nil:
					l.t.Errorf("%s: %s: %v", folder, id(o), err)
				}
				return nil
			})
		}
		l.t.Logf("%s: %d objects", folder, len(objects))
	}
	l.kubectl("delete", "-k", "config/crd")
}
