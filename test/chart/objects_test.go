package chart

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// admissionKinds are those of the objects that package pkg/guard/pin renders.
var admissionKinds = []string{"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding", "ValidatingWebhookConfiguration"}

// rendered are the objects that "guard render" makes.
func rendered(t testing.TB, args ...string) map[string]any {
	t.Helper()
	output, err := guard(t, "", append([]string{"render"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	objects := byID(t, parse(t, output))
	if len(objects) < 9 {
		t.Fatalf("only %d objects are rendered", len(objects))
	}
	return objects
}

// parse reads a stream of documents.
func parse(t testing.TB, manifests string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	for _, document := range strings.Split("\n"+manifests, "\n---") {
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(document), &object.Object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
	return objects
}

// id says which object it is.
func id(o *unstructured.Unstructured) string {
	return strings.Trim(o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName(), "/")
}

// of returns those objects that have one of the kinds.
func of(objects []*unstructured.Unstructured, kinds ...string) []*unstructured.Unstructured {
	return slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool {
		return !slices.Contains(kinds, o.GetKind())
	})
}

// hookOf is the event of Helm at which an object is applied, if it is a hook.
func hookOf(o *unstructured.Unstructured) string { return o.GetAnnotations()["helm.sh/hook"] }

// withoutHook leaves out the hooks of an event.
func withoutHook(objects []*unstructured.Unstructured, event string) []*unstructured.Unstructured {
	return slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool {
		return strings.Contains(hookOf(o), event)
	})
}

// normal is an object as it is compared: without what Helm, or a release, adds.
func normal(o *unstructured.Unstructured) map[string]any {
	o = o.DeepCopy()
	labels := o.GetLabels()
	for _, label := range []string{
		"app.kubernetes.io/instance", "app.kubernetes.io/managed-by", "app.kubernetes.io/part-of", "app.kubernetes.io/version", "helm.sh/chart",
	} {
		delete(labels, label)
	}
	o.SetLabels(labels)
	annotations := o.GetAnnotations()
	for annotation := range annotations {
		if strings.HasPrefix(annotation, "helm.sh/") || strings.HasPrefix(annotation, "meta.helm.sh/") || annotation == "cert-manager.io/inject-ca-from" {
			delete(annotations, annotation)
		}
	}
	if len(annotations) == 0 {
		unstructured.RemoveNestedField(o.Object, "metadata", "annotations")
	} else {
		o.SetAnnotations(annotations)
	}
	return o.Object
}

func byID(t testing.TB, objects []*unstructured.Unstructured) map[string]any {
	t.Helper()
	all := map[string]any{}
	for _, o := range objects {
		if all[id(o)] != nil {
			t.Errorf("%s is there twice", id(o))
		}
		all[id(o)] = normal(o)
	}
	return all
}
