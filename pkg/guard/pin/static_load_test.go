package pin

import (
	"os"
	"path/filepath"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/admission/plugin/policy/manifest/loader"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

// accept takes objects of one kind as the API server does.
func accept[T any](object runtime.Object) ([]T, error) {
	if read, ok := object.(T); ok {
		return []T{read}, nil
	}
	return nil, loader.ErrUnrecognizedType
}

// TestStaticIsLoaded reads what is rendered with the API server's own loader,
// which is strict: names, references and fields.
func TestStaticIsLoaded(t *testing.T) {
	output, err := StaticYAML(Options{}, v1alpha1.HolderReference{Namespace: "mc", Name: "metacontroller"})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "guard.yaml"), output, 0o600); err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := admissionregistrationv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	decoder := serializer.NewCodecFactory(scheme, serializer.EnableStrict).UniversalDeserializer()
	policies, bindings, _, err := loader.LoadPolicyManifests(dir, decoder,
		accept[*admissionregistrationv1.ValidatingAdmissionPolicy], accept[*admissionregistrationv1.ValidatingAdmissionPolicyBinding],
		func(b *admissionregistrationv1.ValidatingAdmissionPolicyBinding) string { return b.Spec.PolicyName })
	if err != nil || len(policies) != 2 || len(bindings) != 2 {
		t.Fatalf("loaded %d policies and %d bindings: %v", len(policies), len(bindings), err)
	}
}
