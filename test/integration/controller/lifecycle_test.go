package controller_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
)

const (
	lifecycleGroup = "lifecycle.example.com"
	lifecycleAPI   = lifecycleGroup + "/v1"
)

// lifecycle adds the rights for kinds that come and go.
func (f *fixture) lifecycle() {
	f.t.Helper()
	if _, err := kit.ApplyFile(f.t.Context(), f.cp.AdminConfig(0), "testdata/lifecycle.yaml"); err != nil {
		f.t.Fatal(err)
	}
}

// crd is a custom resource of the test. Its kind is the plural in the singular,
// with a capital.
type crd struct {
	plural, kind, scope string
	// versions that are served; the first one is stored. None means v1.
	versions []string
	// schema of an object; empty knows every field.
	schema        string
	statusIsThere bool
}

func thingsOf(plural, kind string) crd {
	return crd{plural: plural, kind: kind, scope: "Namespaced", statusIsThere: true}
}

// serve applies a CRD and removes it at the end.
func (f *fixture) serve(c crd) {
	f.t.Helper()
	if len(c.versions) == 0 {
		c.versions = []string{"v1"}
	}
	if c.schema == "" {
		c.schema = "{type: object, x-kubernetes-preserve-unknown-fields: true}"
	}
	text := fmt.Sprintf(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: %s.%s}
spec:
  group: %s
  scope: %s
  names: {plural: %s, singular: %s, kind: %s}
  versions:
`, c.plural, lifecycleGroup, lifecycleGroup, c.scope, c.plural, strings.ToLower(c.kind), c.kind)
	for _, version := range slices.Sorted(slices.Values(c.versions)) {
		text += fmt.Sprintf("  - name: %s\n    served: true\n    storage: %t\n    schema: {openAPIV3Schema: %s}\n", version, version == c.versions[0], c.schema)
		if c.statusIsThere {
			text += "    subresources: {status: {}}\n"
		}
	}
	if _, err := kit.ApplyYAML(f.t.Context(), f.cp.AdminConfig(0), []byte(text)); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { f.withdraw(context.Background(), c.plural) })
}

// withdraw deletes a CRD and waits until it is gone.
func (f *fixture) withdraw(ctx context.Context, plural string) {
	f.t.Helper()
	definition := &unstructured.Unstructured{}
	definition.SetAPIVersion("apiextensions.k8s.io/v1")
	definition.SetKind("CustomResourceDefinition")
	definition.SetName(plural + "." + lifecycleGroup)
	if err := f.client.Delete(ctx, definition); client.IgnoreNotFound(err) != nil {
		f.t.Fatal(err)
	}
	kit.Eventually(f.t, soon, func() error {
		if err := f.client.Get(ctx, client.ObjectKeyFromObject(definition), definition.DeepCopy()); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the CRD %s is still there: %v", plural, err)
		}
		return nil
	})
}

// create creates a parent of the test's own kinds.
func (f *fixture) create(kind, namespace, name string, spec map[string]any) *unstructured.Unstructured {
	f.t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": lifecycleAPI, "kind": kind, "spec": spec}}
	u.SetNamespace(namespace)
	u.SetName(name)
	u.SetLabels(map[string]string{testLabel: f.ns})
	kit.Eventually(f.t, soon, func() error { return f.client.Create(f.t.Context(), u) })
	return u
}

// waitFinalizer waits until parents have a finalizer, or have it no more.
func (f *fixture) waitFinalizer(finalizer string, want bool, parents ...*unstructured.Unstructured) {
	f.t.Helper()
	kit.Eventually(f.t, soon, func() error {
		for _, parent := range parents {
			now := f.live(parent)
			if now == nil {
				return fmt.Errorf("%s is gone", parent.GetName())
			}
			if slices.Contains(now.GetFinalizers(), finalizer) != want {
				return fmt.Errorf("finalizers of %s are %q", parent.GetName(), now.GetFinalizers())
			}
		}
		return nil
	})
}

// hook is a hook of the test's server.
func (f *fixture) hook(path string) *v1alpha1.Hook {
	url := f.hooks.URL(path)
	return &v1alpha1.Hook{Webhook: &v1alpha1.Webhook{URL: &url}}
}

// withFinalize adds a finalize hook.
func (f *fixture) withFinalize(cc *v1alpha1.CompositeController) {
	cc.Spec.Hooks.Finalize = f.hook("/finalize")
}

// declared reads a controller object as it is now.
func (f *fixture) declared(cc *v1alpha1.CompositeController) *unstructured.Unstructured {
	f.t.Helper()
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(v1alpha1.GroupVersion.String())
	u.SetKind(v1alpha1.CompositeControllerKind)
	if err := f.client.Get(f.t.Context(), client.ObjectKey{Name: cc.Name}, u); err != nil {
		f.t.Fatal(err)
	}
	return u
}

// remove deletes a controller object.
func (f *fixture) remove(cc *v1alpha1.CompositeController) {
	f.t.Helper()
	f.delete(f.declared(cc))
}

// TestRemovedControllers is about the finalizers that a controller leaves.
func TestRemovedControllers(t *testing.T) {
	f := newFixture(t)
	root := f
	f.lifecycle()
	f.serve(thingsOf("leftbehinds", "Leftbehind"))
	f.hooks.Handle("/sync", defaultHook())
	// It never agrees: what happens to the finalizers is not its doing.
	f.hooks.Handle("/finalize", kit.JSON(func(r request) (object, error) {
		return object{"status": object{"seen": len(r.Children["ConfigMap.v1"])}, "children": desired(r), "finalized": false}, nil
	}))
	cc := f.composite(f.withFinalize)
	finalizer := "metacontroller.io/compositecontroller-" + cc.Name
	p := f.start()

	var parents []*unstructured.Unstructured
	for i := range 20 {
		parents = append(parents, f.thing(fmt.Sprintf("p%d", i), object{"count": 1, "value": "x"}))
	}
	f.waitFinalizer(finalizer, true, parents...)
	deselected, leaving := parents[18], parents[19]
	f.patch(deselected, `{"metadata":{"labels":{"test":null}}}`)
	f.delete(leaving)
	staying := parents[:19]

	t.Run("a stop of the process releases nothing", func(t *testing.T) {
		f := f.in(t)
		if code := p.Stop(); code != 0 {
			t.Fatalf("exit code %d", code)
		}
		f.waitFinalizer(finalizer, true, parents...)
		p = root.start()
		f.hooks.Forget()
		f.hooks.WaitRequests(soon, "/sync", 18)
	})
	t.Run("deleted", func(t *testing.T) {
		f := f.in(t)
		f.remove(cc)
		f.waitFinalizer(finalizer, false, staying...)
		f.waitGone(leaving)
		f.event(cc, "Stopped", finalizer, "off 20 parents")
		// Nobody looks after the parents.
		f.hooks.Forget()
		f.patch(staying[0], `{"spec":{"value":"y"}}`)
		f.delete(f.configMap("p1-0"))
		f.waitChildren("p1-", map[string]string{})
		if asked := f.hooks.Requests("/sync"); len(asked) > 0 {
			t.Errorf("the hook was asked %d times", len(asked))
		}
	})
	t.Run("created again under its name, and kept", func(t *testing.T) {
		f := f.in(t)
		root.put(cc)
		f.waitFinalizer(finalizer, true, staying[:18]...)
		f.waitChildren("p0-", map[string]string{"p0-0": "y"})
		f.waitChildren("p1-", map[string]string{"p1-0": "x"})
		f.patch(f.declared(cc), `{"metadata":{"annotations":{"metacontroller.io/keep-finalizers":"true"}}}`)
		f.remove(cc)
		f.event(cc, "Stopped", "keep-finalizers")
		f.waitFinalizer(finalizer, true, staying[:18]...)
	})
	t.Run("moved out of the label selector", func(t *testing.T) {
		f := f.in(t)
		root.put(cc)
		f.hooks.Forget()
		f.hooks.WaitRequests(soon, "/sync", 18)
		f.patch(f.declared(cc), `{"metadata":{"labels":{"test":"elsewhere"}}}`)
		f.waitFinalizer(finalizer, false, staying...)
		f.remove(cc)
	})
	t.Run("another kind of parents", func(t *testing.T) {
		f := f.in(t)
		root.put(cc)
		f.waitFinalizer(finalizer, true, staying[:18]...)
		other := cc.DeepCopy()
		other.Spec.ParentResource.APIVersion, other.Spec.ParentResource.Resource = lifecycleAPI, "leftbehinds"
		parent := f.create("Leftbehind", f.ns, "l", object{"count": 1, "value": "x"})
		root.put(other)
		f.waitFinalizer(finalizer, false, staying...)
		f.waitFinalizer(finalizer, true, parent)

		// The hook is gone: nobody would agree any more.
		other.Spec.Hooks.Finalize = nil
		root.put(other)
		f.waitFinalizer(finalizer, false, parent)
		root.put(cc)
		f.waitFinalizer(finalizer, true, staying[:18]...)
	})
	t.Run("one that did not run in this process", func(t *testing.T) {
		f := f.in(t)
		if code := p.Stop(); code != 0 {
			t.Fatalf("exit code %d", code)
		}
		nowhere := ""
		broken := cc.DeepCopy()
		broken.Spec.Hooks.Sync.Webhook.URL = &nowhere
		root.put(broken)
		p = root.start()
		f.event(cc, "CreateError", "spec.hooks.sync")
		f.waitFinalizer(finalizer, true, staying[:18]...)
		f.remove(cc)
		f.waitFinalizer(finalizer, false, staying...)
	})
	t.Run("deleted while no process runs", func(t *testing.T) {
		// docs/controller.md says: create it again, and delete it.
		f := f.in(t)
		root.put(cc)
		f.waitFinalizer(finalizer, true, staying[:18]...)
		if code := p.Stop(); code != 0 {
			t.Fatalf("exit code %d", code)
		}
		f.remove(cc)
		p = root.start()
		f.waitFinalizer(finalizer, true, staying[:18]...)
		root.put(cc)
		f.hooks.Forget()
		f.hooks.WaitRequests(soon, "/sync", 1)
		f.remove(cc)
		f.waitFinalizer(finalizer, false, staying...)
	})
}

// clusterEventsOf are the events about a cluster-scoped object of this name.
func (f *fixture) clusterEventsOf(name string) []corev1.Event {
	f.t.Helper()
	var list corev1.EventList
	if err := f.client.List(f.t.Context(), &list, client.InNamespace(metav1.NamespaceDefault)); err != nil {
		f.t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return e.InvolvedObject.Name != name })
}

// started is how often a controller was started.
func (f *fixture) started(name string) (n int32) {
	f.t.Helper()
	for _, event := range f.clusterEventsOf(name) {
		if event.Reason == "Started" {
			n += event.Count
		}
	}
	return n
}

// waitStarted waits until a controller was started that often.
func (f *fixture) waitStarted(name string, n int32) {
	f.t.Helper()
	kit.Eventually(f.t, soon, func() error {
		if got := f.started(name); got != n {
			return fmt.Errorf("%s was started %d times, not %d", name, got, n)
		}
		return nil
	})
}

// in is the fixture for a part of a test. What is put and started by it ends with
// the part.
func (f *fixture) in(t *testing.T) *fixture {
	part := *f
	part.t = t
	return &part
}

// TestResourcesComeAndGo is about CRDs that change under controllers.
func TestResourcesComeAndGo(t *testing.T) {
	f := newFixture(t)
	f.lifecycle()
	f.hooks.Handle("/sync", defaultHook())
	f.hooks.Handle("/wanderers", kit.JSON(func(r struct {
		Parent   struct{ Metadata metav1.ObjectMeta }
		Children map[string]map[string]any
	}) (object, error) {
		var kinds []any
		for kind := range r.Children {
			kinds = append(kinds, kind)
		}
		children := []object{
			{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "of-" + r.Parent.Metadata.Name, "namespace": f.ns}, "data": object{"v": "x"}},
			{"apiVersion": lifecycleAPI, "kind": "Straggler", "metadata": object{"name": "of-" + r.Parent.Metadata.Name, "namespace": f.ns}},
		}
		return object{"status": object{"kinds": len(kinds)}, "children": children}, nil
	}))
	f.hooks.Handle("/finalize", kit.JSON(func(request) (object, error) {
		return object{"children": []object{}, "finalized": true}, nil
	}))
	bystander := f.composite(nil)
	cc := f.composite(func(cc *v1alpha1.CompositeController) {
		cc.Name += "-w"
		cc.Spec.ParentResource.APIVersion, cc.Spec.ParentResource.Resource = lifecycleAPI, "wanderers"
		cc.Spec.Hooks.Sync = f.hook("/wanderers")
		f.withFinalize(cc)
		straggler := *cc.Spec.ChildResources[0].DeepCopy()
		straggler.APIVersion, straggler.Resource = lifecycleAPI, "stragglers"
		cc.Spec.ChildResources = append(cc.Spec.ChildResources, straggler)
	})
	// Nothing but the watch of CRDs makes it look.
	p := f.start("--discovery-interval=1h")
	f.event(cc, "CreateError", "wanderers")
	kinds := func(parent *unstructured.Unstructured, want int64) {
		t.Helper()
		kit.Eventually(t, soon, func() error {
			now := f.live(parent)
			if now == nil {
				return errors.New("the parent is gone")
			}
			if got, _, _ := unstructured.NestedInt64(now.Object, "status", "kinds"); got != want {
				return fmt.Errorf("status is %v", now.Object["status"])
			}
			return nil
		})
	}
	straggler := func(name string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: object{"apiVersion": lifecycleAPI, "kind": "Straggler"}}
		u.SetNamespace(f.ns)
		u.SetName(name)
		return u
	}

	f.serve(thingsOf("wanderers", "Wanderer"))
	a := f.create("Wanderer", f.ns, "a", object{})
	// One kind of children is not there; the other is made.
	f.waitChildren("of-a", map[string]string{"of-a": "x"})
	kinds(a, 1)
	f.event(cc, "CreateError", "stragglers")
	f.event(a, "SyncError", "Straggler", "does not serve")

	f.serve(thingsOf("stragglers", "Straggler"))
	kit.Eventually(t, soon, func() error {
		return f.client.Get(t.Context(), client.ObjectKeyFromObject(straggler("of-a")), straggler("of-a"))
	})
	kinds(a, 2)

	// The children's kind goes and comes back.
	f.withdraw(t.Context(), "stragglers")
	kinds(a, 1)
	f.patch(f.configMap("of-a"), `{"data":{"v":"drifted"}}`)
	f.waitChildren("of-a", map[string]string{"of-a": "x"})
	f.serve(thingsOf("stragglers", "Straggler"))
	kinds(a, 2)
	kit.Eventually(t, soon, func() error {
		return f.client.Get(t.Context(), client.ObjectKeyFromObject(straggler("of-a")), straggler("of-a"))
	})

	// Another version is stored; then two are served.
	changed := thingsOf("wanderers", "Wanderer")
	changed.versions = []string{"v2", "v1"}
	f.serve(changed)
	f.patch(f.configMap("of-a"), `{"data":{"v":"drifted"}}`)
	f.waitChildren("of-a", map[string]string{"of-a": "x"})
	b := f.create("Wanderer", f.ns, "b", object{})
	f.waitChildren("of-b", map[string]string{"of-b": "x"})
	kinds(b, 2)

	// The parents' kind goes, after the finalize hook had its say, and comes back
	// with another scope.
	f.hooks.Forget()
	f.withdraw(t.Context(), "wanderers")
	f.event(cc, "Stopped")
	f.hooks.WaitRequests(soon, "/finalize", 2)
	cluster := thingsOf("wanderers", "Wanderer")
	cluster.scope = "Cluster"
	f.serve(cluster)
	// A client remembers the scope.
	fresh, err := client.New(f.cp.AdminConfig(0), client.Options{Scheme: f.client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	f.client = fresh
	c := f.create("Wanderer", "", f.ns+"-c", object{})
	name := "of-" + c.GetName()
	f.waitChildren(name, map[string]string{name: "x"})
	kinds(c, 2)
	f.delete(c)
	f.waitGone(c)

	// The other one ran all the time.
	f.thing("s", object{"count": 1, "value": "x"})
	f.waitChildren("s-", map[string]string{"s-0": "x"})
	for _, event := range f.clusterEventsOf(bystander.Name) {
		if event.Reason == "Stopped" || event.Reason == "CreateError" {
			t.Errorf("the other controller: %s: %s", event.Reason, event.Message)
		}
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestSpecUpdates is about changes of a controller object that cannot work, and
// of those that change nothing.
func TestSpecUpdates(t *testing.T) {
	f := newFixture(t)
	root := f
	var bodies atomic.Pointer[string]
	f.hooks.Handle("/sync", kit.JSON(func(r struct {
		request
		Controller struct{ Metadata metav1.ObjectMeta }
	}) (object, error) {
		note := r.Controller.Metadata.Annotations["note"]
		bodies.Store(&note)
		return object{"status": object{"seen": len(r.request.Children["ConfigMap.v1"])}, "children": desired(r.request)}, nil
	}))
	good := f.composite(nil)
	f.start("--events-burst=1000")
	parent := f.thing("a", object{"count": 1, "value": "start"})
	f.waitChildren("a-", map[string]string{"a-0": "start"})

	nowhere, bad := "", "app in"
	cases := []struct {
		name   string
		change func(*v1alpha1.CompositeController)
		says   string
	}{
		{"no-url", func(cc *v1alpha1.CompositeController) { cc.Spec.Hooks.Sync.Webhook.URL = &nowhere }, "spec.hooks.sync"},
		{"neither", func(cc *v1alpha1.CompositeController) { cc.Spec.Hooks.Sync.Webhook.URL = nil }, "spec.hooks.sync"},
		{"no-hooks", func(cc *v1alpha1.CompositeController) { cc.Spec.Hooks = &v1alpha1.CompositeControllerHooks{} }, "spec.hooks"},
		{"unknown-parent", func(cc *v1alpha1.CompositeController) { cc.Spec.ParentResource.Resource = "nothings" }, "nothings"},
		{"selector", func(cc *v1alpha1.CompositeController) {
			cc.Spec.ParentResource.LabelSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: bad, Operator: metav1.LabelSelectorOpExists}}}
		}, "spec.parentResource.labelSelector"},
		{"twice", func(cc *v1alpha1.CompositeController) {
			cc.Spec.ChildResources = append(cc.Spec.ChildResources, cc.Spec.ChildResources[0])
		}, "declared twice"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := f.in(t)
			wrong := good.DeepCopy()
			c.change(wrong)
			root.put(wrong)
			f.event(good, "CreateError", c.says, "goes on")
			f.patch(parent, fmt.Sprintf(`{"spec":{"value":%q}}`, c.name))
			f.waitChildren("a-", map[string]string{"a-0": c.name})
		})
	}
	t.Run("a good one takes over", func(t *testing.T) {
		f := f.in(t)
		root.put(good)
		other := good.DeepCopy()
		other.Spec.ChildResources[0].UpdateStrategy.Method = v1alpha1.ChildUpdateOnDelete
		root.put(other)
		f.waitStarted(good.Name, 2)
		root.put(good)
		f.waitStarted(good.Name, 3)
		f.patch(parent, `{"spec":{"value":"end"}}`)
		f.waitChildren("a-", map[string]string{"a-0": "end"})
	})
	t.Run("metadata alone", func(t *testing.T) {
		f := f.in(t)
		f.waitStatus(parent, 1)
		before := f.started(good.Name)
		f.patch(f.declared(good), `{"metadata":{"annotations":{"note":"new"}}}`)
		// It is in the next request, and nothing starts anew.
		for i := 0; ; i++ {
			f.hooks.Forget()
			f.patch(parent, fmt.Sprintf(`{"spec":{"value":"note-%d"}}`, i))
			f.hooks.WaitRequests(soon, "/sync", 1)
			f.waitChildren("a-", map[string]string{"a-0": fmt.Sprintf("note-%d", i)})
			if *bodies.Load() == "new" {
				break
			}
			if i == 100 {
				t.Fatal("the hook is shown the old object")
			}
		}
		if after := f.started(good.Name); after != before {
			t.Errorf("it was started %d times more", after-before)
		}
	})
}

// TestRivals is about two controllers that want the same children of one parent.
func TestRivals(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	f.hooks.Handle("/rival", kit.JSON(func(r request) (object, error) {
		return object{"status": object{"rival": true}, "children": []object{{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": r.Parent.Metadata.Name + "-rival"}, "data": object{"v": "rival"}}}}, nil
	}))
	// The younger one is the one with the greater name, if both are of one second.
	elder := f.composite(func(cc *v1alpha1.CompositeController) { cc.Name += "-1" })
	younger := f.composite(func(cc *v1alpha1.CompositeController) {
		cc.Name += "-2"
		cc.Spec.Hooks.Sync = f.hook("/rival")
	})
	// One that selects other parents is no rival.
	f.composite(func(cc *v1alpha1.CompositeController) {
		cc.Name += "-3"
		cc.Spec.ParentResource.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{testLabel: f.ns + "-other"}}
		cc.Spec.Hooks.Sync = f.hook("/rival")
	})
	p := f.start()
	parent := f.thing("a", object{"count": 2, "value": "x"})
	f.waitChildren("a-", map[string]string{"a-0": "x", "a-1": "x"})
	f.waitStatus(parent, 2)
	f.event(parent, "SyncError", elder.Name, younger.Name, "ConfigMap")
	f.event(younger, "SyncError", elder.Name)

	// They do not fight, now or after a restart, and it is told once.
	f.patch(parent, `{"spec":{"value":"y"}}`)
	f.waitChildren("a-", map[string]string{"a-0": "y", "a-1": "y"})
	if code := p.Stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	for _, event := range f.eventsOf(parent) {
		if event.Reason == "SyncError" && event.Count > 1 {
			t.Errorf("it is told %d times", event.Count)
		}
	}
	before := f.writes()
	f.start()
	f.hooks.Forget()
	f.hooks.WaitRequests(soon, "/sync", 1)
	f.patch(parent, `{"spec":{"value":"z"}}`)
	f.waitChildren("a-", map[string]string{"a-0": "z", "a-1": "z"})
	for _, one := range f.writes()[len(before):] {
		if one.ObjectRef.Resource == "configmaps" && one.Verb != "update" {
			t.Errorf("%s of %s", one.Verb, one.ObjectRef.Name)
		}
	}
	if asked := f.hooks.Requests("/rival"); len(asked) > 0 {
		t.Errorf("the hook of the younger one was asked %d times", len(asked))
	}

	// When the older one is gone the younger one acts.
	f.remove(elder)
	f.waitChildren("a-", map[string]string{"a-rival": "rival"})
}

// TestParentsLife is about what happens to parents beside a change of their spec.
func TestParentsLife(t *testing.T) {
	f := newFixture(t)
	root := f
	var finalized atomic.Bool
	f.hooks.Handle("/sync", defaultHook())
	f.hooks.Handle("/finalize", kit.JSON(func(request) (object, error) {
		return object{"children": []object{}, "status": object{"seen": 0}, "finalized": finalized.Load(), "resyncAfterSeconds": 0.2}, nil
	}))
	yes, second := true, int32(1)
	cc := f.composite(func(cc *v1alpha1.CompositeController) {
		f.withFinalize(cc)
		cc.Spec.ParentResource.IgnoreStatusChanges = &yes
	})
	finalizer := "metacontroller.io/compositecontroller-" + cc.Name
	f.start("--events-burst=1000")

	t.Run("status changes are ignored, the rest is not", func(t *testing.T) {
		f := f.in(t)
		finalized.Store(true)
		parent := f.thing("s", object{"count": 1, "value": "x"})
		f.waitStatus(parent, 1)
		// Somebody else's status stays until something else happens: a label.
		now := f.live(parent)
		now.Object["status"] = object{"seen": int64(7), "observedGeneration": int64(1)}
		if err := f.client.Status().Update(t.Context(), now); err != nil {
			t.Fatal(err)
		}
		marker := f.thing("marker", object{"count": 1, "value": "x"})
		f.waitStatus(marker, 1)
		if got, _, _ := unstructured.NestedInt64(f.live(parent).Object, "status", "seen"); got != 7 {
			t.Errorf("a change of the status caused a sync: it is %d", got)
		}
		f.patch(parent, `{"metadata":{"labels":{"more":"1"}}}`)
		f.waitStatus(parent, 1)
		// A deletion is noticed, and asks the finalize hook.
		f.delete(parent)
		f.waitGone(parent)
		f.hooks.WaitRequests(soon, "/finalize", 1)
	})
	t.Run("deselected and selected again", func(t *testing.T) {
		f := f.in(t)
		finalized.Store(true)
		parent := f.thing("d", object{"count": 1, "value": "x"})
		f.waitChildren("d-", map[string]string{"d-0": "x"})
		f.patch(parent, `{"metadata":{"labels":{"test":"other"}}}`)
		f.waitFinalizer(finalizer, false, parent)
		f.waitChildren("d-", map[string]string{})
		f.patch(parent, fmt.Sprintf(`{"metadata":{"labels":{"test":%q}}}`, f.ns))
		f.waitFinalizer(finalizer, true, parent)
		f.waitChildren("d-", map[string]string{"d-0": "x"})
	})
	t.Run("disowned", func(t *testing.T) {
		f := f.in(t)
		parent := f.thing("o", object{"count": 1, "value": "x"})
		f.waitStatus(parent, 1)
		f.patch(f.configMap("o-0"), `{"metadata":{"ownerReferences":null}}`)
		kit.Eventually(t, soon, func() error {
			if child := f.configMap("o-0"); child == nil || !metav1.IsControlledBy(child, parent) {
				return fmt.Errorf("the child is %v", child)
			}
			return nil
		})
	})
	t.Run("resync", func(t *testing.T) {
		f := f.in(t)
		cc.Spec.ResyncPeriodSeconds = &second
		root.put(cc)
		f.thing("y", object{"count": 1, "value": "x"})
		f.waitChildren("y-", map[string]string{"y-0": "x"})
		f.hooks.Forget()
		of := func() (n int) {
			for _, one := range f.hooks.Requests("/sync") {
				var r request
				if err := one.Decode(&r); err == nil && r.Parent.Metadata.Name == "y" {
					n++
				}
			}
			return n
		}
		kit.Eventually(t, soon, func() error {
			if n := of(); n < 3 {
				return fmt.Errorf("%d syncs", n)
			}
			return nil
		})
	})
	t.Run("finalize hook alone", func(t *testing.T) {
		f := f.in(t)
		finalized.Store(false)
		before := f.started(cc.Name)
		alone := cc.DeepCopy()
		alone.Spec.Hooks.Sync, alone.Spec.ResyncPeriodSeconds = nil, nil
		root.put(alone)
		f.waitStarted(cc.Name, before+1)
		idle := f.thing("idle", object{"count": 1, "value": "x"})
		f.waitFinalizer(finalizer, true, idle)
		f.hooks.Forget()
		f.patch(idle, `{"spec":{"value":"y"}}`)
		f.delete(idle)
		f.hooks.WaitRequests(soon, "/finalize", 2)
		for _, event := range f.eventsOf(idle) {
			t.Errorf("there is an event: %s", event.Message)
		}
		if len(f.children("idle-")) > 0 || len(f.hooks.Requests("/sync")) > 0 {
			t.Error("it was synced")
		}
		finalized.Store(true)
		f.waitGone(idle)
	})
}
