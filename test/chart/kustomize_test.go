package chart

import (
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/test/kit"
)

// servedLimit is how long a kind may take until it is served after its CRD.
const servedLimit = time.Minute

// folders are the kustomizations that people install, and whether the guard's
// admission objects are part of it.
var folders = map[string]bool{
	"config/cert-manager":    true,
	"config/controller-only": false,
	"config/default":         true,
	"config/guard-only":      true,
	"config/self-managed":    true,
}

// TestEveryOverlayIsTested: a folder that brings CRDs and more is one that people
// install.
func TestEveryOverlayIsTested(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(root(t), "config", "*", "kustomization.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var found int
	for _, path := range paths {
		folder := filepath.ToSlash(filepath.Join("config", filepath.Base(filepath.Dir(path))))
		if len(of(parse(t, kustomize(t, folder)), "CustomResourceDefinition")) == 0 || folder == "config/crd" {
			continue
		}
		found++
		if _, ok := folders[folder]; !ok {
			t.Errorf("%s installs CRDs and more, and is in no test of this package", folder)
		}
	}
	if found != len(folders) {
		t.Errorf("%d folders install CRDs and more, want %d", found, len(folders))
	}
}

// TestKustomizationsHaveTheAdmissionObjects compares what kustomize and "guard render"
// make.
func TestKustomizationsHaveTheAdmissionObjects(t *testing.T) {
	want := rendered(t)
	for folder, guarded := range folders {
		t.Run(folder, func(t *testing.T) {
			want := want
			if !guarded {
				want = map[string]any{}
			}
			if diff := cmp.Diff(want, byID(t, of(parse(t, kustomize(t, folder)), admissionKinds...))); diff != "" {
				t.Errorf("-rendered +kustomize\n%s", diff)
			}
		})
	}
}

// TestKustomizationsAreAccepted holds what each kustomization makes to what the API
// server accepts, unknown and duplicate fields included: it knows its schemas best.
func TestKustomizationsAreAccepted(t *testing.T) {
	accepts := strictServer(t)
	for folder := range folders {
		t.Run(folder, func(t *testing.T) {
			objects := parse(t, kustomize(t, folder))
			if len(objects) < 10 {
				t.Fatalf("only %d objects", len(objects))
			}
			accepts(t, objects)
		})
	}
}

// TestChartIsAccepted does the same with what the chart renders. The CRDs and
// admission objects, of which the golden files have no content, are those of the
// kustomizations.
func TestChartIsAccepted(t *testing.T) {
	accepts := strictServer(t)
	// Its CRD is of the Prometheus operator.
	elsewhere := append([]string{"CustomResourceDefinition", "ServiceMonitor"}, admissionKinds...)
	for name, objects := range golden(t) {
		t.Run(name, func(t *testing.T) {
			accepts(t, slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool { return slices.Contains(elsewhere, o.GetKind()) }))
		})
	}
}

// strictServer returns a check of what the API server says of objects, by a dry run.
func strictServer(t *testing.T) func(testing.TB, []*unstructured.Unstructured) {
	t.Helper()
	config := kit.Shared(t).AdminConfig(0)
	definitions, err := kit.CertManagerCRDs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, manifests := range [][]byte{definitions, []byte(kustomize(t, "config/crd"))} {
		if _, err := kit.ApplyYAML(t.Context(), config, manifests); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	strict := client.WithFieldValidation(c, metav1.FieldValidationStrict)
	return func(t testing.TB, objects []*unstructured.Unstructured) {
		t.Helper()
		for _, o := range objects {
			// A dry run makes no namespace for the objects after it.
			if name := o.GetNamespace(); name != "" {
				if err := c.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil && !apierrors.IsAlreadyExists(err) {
					t.Fatal(err)
				}
			}
			kit.Eventually(t, servedLimit, func() error {
				err := strict.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(o.DeepCopy()),
					client.DryRunAll, client.ForceOwnership, client.FieldOwner("chart"))
				switch {
				case meta.IsNoMatchError(err):
					return err
				case err != nil:
					t.Errorf("%s: %v", id(o), err)
				}
				return nil
			})
		}
	}
}
