package kit_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/test/kit"
)

const widgets = `# A definition, and at once an object of it.
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: widgets.kit.example.test
spec:
  group: kit.example.test
  names: {plural: widgets, singular: widget, kind: Widget, listKind: WidgetList}
  scope: Namespaced
  versions:
    - name: v1
      served: true
      storage: true
      schema:
        openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}
---
apiVersion: kit.example.test/v1
kind: Widget
metadata: {name: one, namespace: %[1]s}
spec: {size: 1}
---
# Nothing but a comment.
---
apiVersion: v1
kind: List
items:
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: %[1]s}, data: {k: v}}
  - {apiVersion: v1, kind: ConfigMap, metadata: {name: b, namespace: %[1]s}}
`

func TestApply(t *testing.T) {
	cp := kit.Shared(t)
	admin := cp.AdminConfig(0)
	namespace := kit.Namespace(t, admin)
	if !strings.HasPrefix(namespace, "testapply-") {
		t.Errorf("namespace is called %s", namespace)
	}
	dir := t.TempDir()
	content := fmt.Appendf(nil, widgets, namespace)
	if err := os.WriteFile(filepath.Join(dir, "widgets.yaml"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	definitions, err := client.New(admin, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		definition := &unstructured.Unstructured{}
		definition.SetName("widgets.kit.example.test")
		definition.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
		if err := definitions.Delete(context.Background(), definition); err != nil {
			t.Error(err)
		}
		kit.Eventually(t, patience, func() error { // a next run finds it absent, not terminating
			err := definitions.Get(context.Background(), client.ObjectKeyFromObject(definition), definition)
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("the definition is still there: %v", err)
		})
	})
	for range 2 { // the second time nothing changes
		objects, err := kit.ApplyFile(t.Context(), admin, dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(objects) != 4 || objects[1].GetKind() != "Widget" || objects[1].GetUID() == "" {
			t.Errorf("applied %v", objects)
		}
	}
	got, err := clients(t, admin).CoreV1().ConfigMaps(namespace).Get(t.Context(), "a", metav1.GetOptions{})
	if err != nil || got.Data["k"] != "v" || got.ManagedFields[0].Manager != kit.FieldManager {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestApplyFails(t *testing.T) {
	cp := kit.Shared(t)
	namespace := kit.Namespace(t, cp.AdminConfig(0))
	user, err := cp.UserConfig("somebody")
	if err != nil {
		t.Fatal(err)
	}
	manifest := fmt.Appendf(nil, "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: %s}\n", namespace)
	if _, err := kit.ApplyYAML(t.Context(), user, manifest); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), `cannot apply ConfigMap "a"`) {
		t.Errorf("forbidden: %v", err)
	}
	if _, err := kit.ApplyYAML(t.Context(), user, []byte("a: b: c")); err == nil || !strings.Contains(err.Error(), "document 1") {
		t.Errorf("no YAML: %v", err)
	}
	if _, err := kit.ApplyFile(t.Context(), user, filepath.Join(t.TempDir(), "absent")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}
