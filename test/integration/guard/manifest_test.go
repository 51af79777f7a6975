package guard_test

import (
	"bytes"
	"errors"
	"io"
	"os/exec"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestManifests holds what config/guard builds to what the API server accepts,
// unknown and duplicate fields included.
func TestManifests(t *testing.T) {
	s := prepare(t)
	build := exec.Command("go", "tool", "-modfile=test/tools/go.mod", "kustomize", "build", "config/guard")
	build.Dir = s.root
	var stderr bytes.Buffer
	build.Stderr = &stderr
	output, err := build.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, &stderr)
	}
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(output), 4096)
	kinds := map[string]int{}
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		kinds[object.GetKind()]++
		err := s.admin().Apply(s.ctx(), client.ApplyConfigurationFromUnstructured(object),
			client.DryRunAll, client.ForceOwnership, client.FieldOwner("integration"))
		if err != nil {
			t.Errorf("%s %q: %v", object.GetKind(), object.GetName(), err)
		}
	}
	for _, kind := range []string{
		"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding",
		"Deployment", "Service", "PodDisruptionBudget", "SingletonPolicy",
	} {
		if kinds[kind] != 1 {
			t.Errorf("%d objects of kind %s", kinds[kind], kind)
		}
	}
}
