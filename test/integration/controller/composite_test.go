package controller_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
)

// method sets the update strategy of the children.
func method(m v1alpha1.ChildUpdateMethod) func(*v1alpha1.CompositeController) {
	return func(cc *v1alpha1.CompositeController) { cc.Spec.ChildResources[0].UpdateStrategy.Method = m }
}

func TestInPlace(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	f.composite(nil)
	f.start()
	parent := f.thing("a", object{"count": 3, "value": "x"})

	f.waitChildren("a-", map[string]string{"a-0": "x", "a-1": "x", "a-2": "x"})
	f.waitStatus(parent, 3)
	child := f.configMap("a-1")
	owner := metav1.GetControllerOf(child)
	if owner == nil || owner.UID != parent.GetUID() || owner.BlockOwnerDeletion == nil || !*owner.BlockOwnerDeletion {
		t.Errorf("owner references are %v", child.OwnerReferences)
	}
	if child.Labels["controller-uid"] != string(parent.GetUID()) {
		t.Errorf("labels are %v", child.Labels)
	}

	// What others put there stays; what the parent asks for is changed.
	f.patch(child, `{"metadata":{"annotations":{"mine":"1"}},"data":{"other":"2"}}`)
	f.patch(parent, `{"spec":{"value":"y"}}`)
	f.waitChildren("a-", map[string]string{"a-0": "y", "a-1": "y", "a-2": "y"})
	f.waitStatus(parent, 3)
	after := f.configMap("a-1")
	if after.UID != child.UID || after.Annotations["mine"] != "1" || after.Data["other"] != "2" {
		t.Errorf("child is %v with data %v, not the one that was patched", after.ObjectMeta, after.Data)
	}

	f.patch(parent, `{"spec":{"count":1}}`)
	f.waitChildren("a-", map[string]string{"a-0": "y"})
	f.waitStatus(parent, 1)

	f.delete(f.configMap("a-0"))
	f.waitChildren("a-", map[string]string{"a-0": "y"})
	f.waitStatus(parent, 1)
}

func TestDriftIsRepaired(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	f.composite(nil)
	f.start()
	f.thing("a", object{"count": 1, "value": "x"})
	f.waitChildren("a-", map[string]string{"a-0": "x"})
	f.patch(f.configMap("a-0"), `{"data":{"v":"drifted"}}`)
	f.waitChildren("a-", map[string]string{"a-0": "x"})
}

func TestOnDelete(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	f.composite(method(v1alpha1.ChildUpdateOnDelete))
	f.start()
	parent := f.thing("a", object{"count": 2, "value": "x"})
	f.waitChildren("a-", map[string]string{"a-0": "x", "a-1": "x"})

	f.patch(parent, `{"spec":{"value":"y"}}`)
	// The status is about the new generation, so the pass is over.
	f.waitStatus(parent, 2)
	if got := f.children("a-"); !maps.Equal(got, map[string]string{"a-0": "x", "a-1": "x"}) {
		t.Fatalf("children are %v", got)
	}
	f.delete(f.configMap("a-0"))
	f.waitChildren("a-", map[string]string{"a-0": "y", "a-1": "x"})
}

func TestRecreate(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	f.composite(method(v1alpha1.ChildUpdateRecreate))
	f.start()
	parent := f.thing("a", object{"count": 1, "value": "x"})
	f.waitChildren("a-", map[string]string{"a-0": "x"})
	before := f.configMap("a-0")

	f.patch(parent, `{"spec":{"value":"y"}}`)
	f.waitChildren("a-", map[string]string{"a-0": "y"})
	if after := f.configMap("a-0"); after.UID == before.UID {
		t.Error("the child was changed in place")
	}
}

func TestChildrenOfADeletedParentAreCollected(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	f.composite(nil)
	f.start()
	parent := f.thing("a", object{"count": 2, "value": "x"})
	f.waitChildren("a-", map[string]string{"a-0": "x", "a-1": "x"})
	f.delete(parent)
	// The garbage collector looks for new kinds of owners every 30 seconds, and
	// that of the parent is new if this test is the first.
	kit.Eventually(t, 90*time.Second, func() error {
		if left := f.children("a-"); len(left) > 0 {
			return fmt.Errorf("children are left: %v", left)
		}
		return nil
	})
}

func TestFinalize(t *testing.T) {
	f := newFixture(t)
	var allow atomic.Bool
	f.hooks.Handle("/sync", defaultHook())
	f.hooks.Handle("/finalize", kit.JSON(func(r request) (object, error) {
		if !r.Finalizing {
			return nil, errors.New("finalizing is false")
		}
		return object{"children": []object{}, "status": object{"seen": len(r.Children["ConfigMap.v1"])}, "finalized": allow.Load(), "resyncAfterSeconds": 0.1}, nil
	}))
	cc := f.composite(func(cc *v1alpha1.CompositeController) {
		url := f.hooks.URL("/finalize")
		cc.Spec.Hooks.Finalize = &v1alpha1.Hook{Webhook: &v1alpha1.Webhook{URL: &url}}
	})
	finalizer := "metacontroller.io/compositecontroller-" + cc.Name
	f.start()
	finalizers := func(parent *unstructured.Unstructured) []string {
		now := parent.DeepCopy()
		if err := f.client.Get(t.Context(), client.ObjectKeyFromObject(parent), now); err != nil {
			t.Fatal(err)
		}
		return now.GetFinalizers()
	}

	t.Run("deleted", func(t *testing.T) {
		allow.Store(false)
		parent := f.thing("a", object{"count": 2, "value": "x"})
		f.waitStatus(parent, 2)
		if got := finalizers(parent); len(got) != 1 || got[0] != finalizer {
			t.Fatalf("finalizers are %q", got)
		}
		f.delete(parent)
		f.waitChildren("a-", map[string]string{})
		f.waitStatus(parent, 0)
		if got := finalizers(parent); len(got) != 1 {
			t.Fatalf("finalizers are %q before the hook agreed", got)
		}
		allow.Store(true)
		kit.Eventually(t, soon, func() error {
			if err := f.client.Get(t.Context(), client.ObjectKeyFromObject(parent), parent.DeepCopy()); !apierrors.IsNotFound(err) {
				return fmt.Errorf("parent is still there: %v", err)
			}
			return nil
		})
	})
	t.Run("deselected", func(t *testing.T) {
		allow.Store(true)
		parent := f.thing("b", object{"count": 2, "value": "x"})
		f.waitStatus(parent, 2)
		f.patch(parent, `{"metadata":{"labels":{"test":null}}}`)
		f.waitChildren("b-", map[string]string{})
		kit.Eventually(t, soon, func() error {
			if got := finalizers(parent); len(got) != 0 {
				return fmt.Errorf("finalizers are %q", got)
			}
			return nil
		})
	})
}

func TestSelectorOfTheParent(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	f.composite(func(cc *v1alpha1.CompositeController) { cc.Spec.GenerateSelector = nil })
	f.start()
	spec := object{"count": 1, "value": "x", "labels": object{"app": "a"}, "selector": object{"matchLabels": object{"app": "a"}}}

	orphan := func(name, app string) *corev1.ConfigMap {
		o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: name, Labels: map[string]string{"app": app}}, Data: map[string]string{"v": "x"}}
		if err := f.client.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	controllerOf := func(name string, want *unstructured.Unstructured) {
		t.Helper()
		kit.Eventually(t, soon, func() error {
			child := f.configMap(name)
			if child == nil {
				return errors.New(name + " is gone")
			}
			owner := metav1.GetControllerOf(child)
			if want == nil && owner == nil || want != nil && owner != nil && owner.UID == want.GetUID() {
				return nil
			}
			return fmt.Errorf("controller of %s is %v", name, owner)
		})
	}

	// One that is there before its parent, one that comes after, one of others.
	orphan("a-0", "a")
	orphan("a-7", "b")
	parent := f.thing("a", spec)
	controllerOf("a-0", parent)
	f.waitStatus(parent, 1)
	controllerOf("a-7", nil)

	// An undesired orphan is adopted and, being undesired, deleted.
	orphan("a-1", "a")
	f.waitChildren("a-1", map[string]string{})

	// It is let go when it no longer matches; being in the way under its name,
	// it is reported.
	f.patch(f.configMap("a-0"), `{"metadata":{"labels":{"app":"free"}}}`)
	controllerOf("a-0", nil)
	f.event(parent, "SyncError", f.ns, "a-0")
	// Taken again with its label.
	f.patch(f.configMap("a-0"), `{"metadata":{"labels":{"app":"a"}}}`)
	controllerOf("a-0", parent)

	// A child that its parent would not select is an error.
	wrong := f.thing("w", object{"count": 1, "labels": object{"app": "other"}, "selector": object{"matchLabels": object{"app": "w"}}})
	f.event(wrong, "SyncError", f.ns, "w-0")
	none := f.thing("n", object{"count": 1})
	f.event(none, "SyncError", f.ns, "spec.selector")
	empty := f.thing("e", object{"count": 1, "selector": object{}})
	f.event(empty, "SyncError", f.ns, "spec.selector")
	if got := f.children("n-"); len(got) > 0 {
		t.Errorf("a parent without selector has children %v", got)
	}
}

func TestRestartWritesNothing(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	f.composite(nil)
	p := f.start()
	var parents []*unstructured.Unstructured
	for i := range 5 {
		parents = append(parents, f.thing("a"+strconv.Itoa(i), object{"count": 3, "value": "x"}))
	}
	for _, parent := range parents {
		f.waitStatus(parent, 3)
	}
	if code := p.Stop(); code != 0 {
		t.Fatalf("exit code %d after SIGTERM", code)
	}
	before := f.writes()
	var creates int
	for _, one := range before {
		if one.Verb == "create" {
			creates++
		}
		if one.Verb == "get" {
			t.Errorf("a sync read %s from the API server", one.RequestURI)
		}
	}
	if creates != 15 {
		t.Errorf("%d creates for 15 children", creates)
	}

	f.hooks.Forget()
	p = f.start()
	f.hooks.WaitRequests(soon, "/sync", 5)
	// The last pass ends, with what it may write, before the stop does.
	if code := p.Stop(); code != 0 {
		t.Fatalf("exit code %d after SIGTERM", code)
	}
	if after := f.writes(); len(after) != len(before) {
		t.Errorf("writes after the restart: %v", after[len(before):])
	}
	if calls := len(f.hooks.Requests("/sync")); calls != 5 {
		t.Errorf("%d hook calls for 5 parents after the restart", calls)
	}
}

func TestLateCustomResource(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	cc := f.composite(func(cc *v1alpha1.CompositeController) { cc.Spec.ParentResource.Resource = "latecomers" })
	f.start("--discovery-interval=1h")
	f.event(cc, "CreateError", "latecomers")

	crd := func(status string) []byte {
		return []byte(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: latecomers.demo.example.com}
spec:
  group: demo.example.com
  scope: Namespaced
  names: {plural: latecomers, singular: latecomer, kind: Latecomer}
  versions:
  - name: v1
    served: true
    storage: true
    ` + status + `
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`)
	}
	if _, err := kit.ApplyYAML(t.Context(), f.cp.AdminConfig(0), crd("")); err != nil {
		t.Fatal(err)
	}
	remove := func() {
		// The test's own context may have ended.
		ctx := context.Background()
		definition := &unstructured.Unstructured{}
		definition.SetAPIVersion("apiextensions.k8s.io/v1")
		definition.SetKind("CustomResourceDefinition")
		definition.SetName("latecomers.demo.example.com")
		if err := f.client.Delete(ctx, definition); err != nil {
			t.Fatal(err)
		}
		kit.Eventually(t, soon, func() error {
			if err := f.client.Get(ctx, client.ObjectKeyFromObject(definition), definition); !apierrors.IsNotFound(err) {
				return fmt.Errorf("the CRD is still there: %v", err)
			}
			return nil
		})
	}
	t.Cleanup(remove)
	f.event(cc, "CreateError", "status subresource")
	if _, err := kit.ApplyYAML(t.Context(), f.cp.AdminConfig(0), crd("subresources: {status: {}}")); err != nil {
		t.Fatal(err)
	}
	f.event(cc, "Started")
	parent := f.parent("Latecomer", "a", object{"count": 1, "value": "x"})
	f.waitChildren("a-", map[string]string{"a-0": "x"})
	f.waitStatus(parent, 1)

	// Gone and back.
	remove()
	f.event(cc, "Stopped")
	if _, err := kit.ApplyYAML(t.Context(), f.cp.AdminConfig(0), crd("subresources: {status: {}}")); err != nil {
		t.Fatal(err)
	}
	again := f.parent("Latecomer", "b", object{"count": 1, "value": "y"})
	f.waitChildren("b-", map[string]string{"b-0": "y"})
	f.waitStatus(again, 1)
}

func TestChangeOfTheController(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	f.hooks.Handle("/other", kit.JSON(func(r request) (object, error) {
		r.Parent.Spec.Value = "other"
		return object{"status": object{"seen": len(r.Children["ConfigMap.v1"])}, "children": desired(r)}, nil
	}))
	cc := f.composite(nil)
	f.start()
	parent := f.thing("a", object{"count": 1, "value": "x"})
	f.waitChildren("a-", map[string]string{"a-0": "x"})
	f.event(cc, "Started")

	// One that cannot work leaves the running one running.
	good := *cc.Spec.Hooks.Sync.Webhook.URL
	nowhere := ""
	cc.Spec.Hooks.Sync.Webhook.URL = &nowhere
	f.put(cc)
	f.event(cc, "CreateError", "spec.hooks.sync", "webhook.url")
	f.patch(parent, `{"spec":{"value":"y"}}`)
	f.waitChildren("a-", map[string]string{"a-0": "y"})

	senseless := cc.DeepCopy()
	senseless.Spec.Hooks.Sync.Webhook.URL = &good
	senseless.Spec.ChildResources[0].UpdateStrategy.Method = v1alpha1.ChildUpdateRollingInPlace
	senseless.Spec.ParentResource.RevisionHistory = &v1alpha1.CompositeControllerRevisionHistory{FieldPaths: []string{"status"}}
	f.put(senseless)
	f.event(cc, "CreateError", "spec.parentResource.revisionHistory.fieldPaths[0]", "status")
	f.patch(parent, `{"spec":{"value":"z"}}`)
	f.waitChildren("a-", map[string]string{"a-0": "z"})

	other := f.hooks.URL("/other")
	cc.Spec.Hooks.Sync.Webhook.URL = &other
	f.put(cc)
	f.waitChildren("a-", map[string]string{"a-0": "other"})

	// Gone: nobody looks after the parent any more.
	f.delete(cc)
	f.event(cc, "Stopped")
	f.delete(f.configMap("a-0"))
	f.waitChildren("a-", map[string]string{})
	f.patch(parent, `{"spec":{"value":"after"}}`)
	f.waitChildren("a-", map[string]string{})
}
