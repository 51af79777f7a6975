package controller_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
)

// late is how long the controllers of built-in kinds may take, which start after
// the API server and look for kinds for a while.
const late = 90 * time.Second

const (
	lastApplied = "metacontroller.k8s.io/last-applied-configuration"
	serverSide  = "--apply-strategy=server-side-apply"
)

// newApplyFixture is a fixture with the kinds and rights of these tests.
func newApplyFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	if _, err := kit.ApplyFile(t.Context(), f.cp.AdminConfig(0), filepath.Join("testdata", "apply.yaml")); err != nil {
		t.Fatal(err)
	}
	return f
}

// childKinds declares kinds of children with one strategy.
func childKinds(method v1alpha1.ChildUpdateMethod, kinds ...[2]string) func(*v1alpha1.CompositeController) {
	return func(cc *v1alpha1.CompositeController) {
		yes := true
		cc.Spec.ParentResource.IgnoreStatusChanges = &yes
		cc.Spec.ChildResources = nil
		for _, kind := range kinds {
			child := v1alpha1.CompositeControllerChildResourceRule{
				UpdateStrategy: &v1alpha1.CompositeControllerChildUpdateStrategy{Method: method},
			}
			child.APIVersion, child.Resource = kind[0], kind[1]
			cc.Spec.ChildResources = append(cc.Spec.ChildResources, child)
		}
	}
}

// manyKinds are those of testdata/apply-children.yaml.
var manyKinds = [][2]string{
	{"v1", "configmaps"}, {"v1", "secrets"}, {"v1", "services"}, {"apps/v1", "deployments"}, {"apps/v1", "statefulsets"},
	{"batch/v1", "cronjobs"}, {"networking.k8s.io/v1", "ingresses"}, {"apply.example.com/v1", "widgets"},
}

// documents are the objects of a file.
func documents(t *testing.T, file string) []object {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	var out []object
	for _, document := range bytes.Split(data, []byte("\n---\n")) {
		one := object{}
		if err := yaml.Unmarshal(document, &one); err != nil {
			t.Fatal(err)
		}
		out = append(out, one)
	}
	return out
}

// hookState is what the hooks of these tests read.
type hookState struct {
	Parent struct {
		Spec struct {
			Value    string   `json:"value"`
			Children []object `json:"children"`
		} `json:"spec"`
	} `json:"parent"`
	Children map[string]map[string]object `json:"children"`
}

// specHook returns the children that the parent's spec has, and its value as
// status: when the status has a new value, the pass for it is over but for that.
func specHook() kit.Hook {
	return kit.JSON(func(r hookState) (object, error) {
		children := r.Parent.Spec.Children
		if children == nil {
			children = []object{}
		}
		return object{"status": object{"value": r.Parent.Spec.Value}, "children": children}, nil
	})
}

// waitValue waits until the pass for a value of the spec is over.
func (f *fixture) waitValue(parent *unstructured.Unstructured, value string) {
	f.t.Helper()
	kit.Eventually(f.t, soon, func() error {
		now := parent.DeepCopy()
		if err := f.client.Get(f.t.Context(), client.ObjectKeyFromObject(parent), now); err != nil {
			return err
		}
		if got, _, _ := unstructured.NestedString(now.Object, "status", "value"); got != value {
			return fmt.Errorf("status.value is %q, not %q; events: %v", got, value, messages(f.eventsOf(parent)))
		}
		return nil
	})
}

func messages(events []corev1.Event) []string {
	var out []string
	for _, e := range events {
		out = append(out, e.Message)
	}
	return out
}

// value gives the parent a new value, and waits until the pass for it is over.
func (f *fixture) value(parent *unstructured.Unstructured, value string) {
	f.t.Helper()
	f.patch(parent, fmt.Sprintf(`{"spec":{"value":%q}}`, value))
	f.waitValue(parent, value)
}

// spec replaces the children in the parent's spec, and waits likewise.
func (f *fixture) spec(parent *unstructured.Unstructured, value string, children ...object) {
	f.t.Helper()
	now := parent.DeepCopy()
	if err := f.client.Get(f.t.Context(), client.ObjectKeyFromObject(parent), now); err != nil {
		f.t.Fatal(err)
	}
	now.Object["spec"] = specOf(value, children...)
	if err := f.client.Update(f.t.Context(), now); err != nil {
		f.t.Fatal(err)
	}
	f.waitValue(parent, value)
}

func specOf(value string, children ...object) object {
	list := []any{}
	for _, child := range children {
		list = append(list, child)
	}
	return object{"value": value, "children": list}
}

// get returns an object, nil if it is not there.
func (f *fixture) get(apiVersion, kind, name string) *unstructured.Unstructured {
	f.t.Helper()
	found := &unstructured.Unstructured{}
	found.SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
	switch err := f.client.Get(f.t.Context(), client.ObjectKey{Namespace: f.ns, Name: name}, found); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		f.t.Fatal(err)
	}
	return found
}

// waitField waits until a field of an object has a value; "" means that there is
// no such field.
func (f *fixture) waitField(apiVersion, kind, name, want string, path ...string) {
	f.t.Helper()
	kit.Eventually(f.t, soon, func() error {
		o := f.get(apiVersion, kind, name)
		if o == nil {
			return fmt.Errorf("%s %q is not there", kind, name)
		}
		if got, _, _ := unstructured.NestedString(o.Object, path...); got != want {
			return fmt.Errorf("%s of %s %q is %q, not %q", strings.Join(path, "."), kind, name, got, want)
		}
		return nil
	})
}

// changes are the writes so far, without those that only ask.
func (f *fixture) changes() []write {
	f.t.Helper()
	return slices.DeleteFunc(f.writes(), func(w write) bool { return w.Verb == "get" || strings.Contains(w.RequestURI, "dryRun") })
}

// noMore fails if anything but one status of the parent was written since.
func (f *fixture) noMore(what string, since int) {
	f.t.Helper()
	for _, w := range f.changes()[since:] {
		if w.ObjectRef.Subresource != "status" {
			f.t.Errorf("%s: wrote %s %s", what, w.Verb, w.RequestURI)
		}
	}
}

// eachStrategy runs a test for both ways to write.
func eachStrategy(t *testing.T, test func(f *fixture, arguments ...string)) {
	t.Run("dynamic-apply", func(t *testing.T) { test(newApplyFixture(t)) })
	t.Run("server-side-apply", func(t *testing.T) { test(newApplyFixture(t), serverSide) })
}

func TestQuietAfterARestart(t *testing.T) {
	eachStrategy(t, func(f *fixture, arguments ...string) {
		f.hooks.Handle("/sync", specHook())
		f.composite(childKinds(v1alpha1.ChildUpdateInPlace, manyKinds...))
		p := f.start(arguments...)
		parent := f.thing("a", specOf("1", documents(f.t, "apply-children.yaml")...))
		f.waitValue(parent, "1")
		for _, kind := range []string{"Deployment", "StatefulSet"} {
			kit.Eventually(f.t, late, func() error {
				name := map[string]string{"Deployment": "web", "StatefulSet": "db"}[kind]
				o := f.get("apps/v1", kind, name)
				if o == nil {
					return fmt.Errorf("%s is not there; events: %v", kind, messages(f.eventsOf(parent)))
				}
				if seen, _, _ := unstructured.NestedInt64(o.Object, "status", "observedGeneration"); seen == 0 {
					return fmt.Errorf("%s is not seen by its controller yet", kind)
				}
				return nil
			})
		}
		// A pass after all of that: what the children's controllers wrote is no
		// reason to write.
		since := len(f.changes())
		f.value(parent, "2")
		f.noMore("another pass", since)
		if code := p.Stop(); code != 0 {
			f.t.Fatalf("exit code %d", code)
		}

		since = len(f.changes())
		f.hooks.Forget()
		f.start(arguments...)
		f.hooks.WaitRequests(soon, "/sync", 1)
		f.value(parent, "3")
		f.noMore("a restart", since)
		if got := len(f.hooks.Requests("/sync")); got != 2 {
			f.t.Errorf("%d calls of the hook, want 2: one for the restart, one for the change", got)
		}
		if said := messages(f.eventsOf(parent)); len(said) > 0 {
			f.t.Errorf("events: %q", said)
		}
	})
}

func TestAnEchoIsNoChange(t *testing.T) {
	eachStrategy(t, func(f *fixture, arguments ...string) {
		var echo atomic.Bool
		spec := specHook()
		f.hooks.Handle("/first", spec)
		f.hooks.Handle("/sync", kit.JSON(func(r hookState) (object, error) {
			children := r.Parent.Spec.Children
			if echo.Load() {
				children = []object{}
				for _, kind := range r.Children {
					for _, child := range kind {
						// All of it: status, resourceVersion, owner references ...
						child["metadata"].(object)["managedFields"] = []any{object{"manager": "x", "operation": "Apply"}}
						children = append(children, child)
					}
				}
			}
			return object{"status": object{"value": r.Parent.Spec.Value}, "children": children}, nil
		}))
		f.composite(childKinds(v1alpha1.ChildUpdateInPlace, manyKinds...))
		p := f.start(arguments...)
		parent := f.thing("a", specOf("1", documents(f.t, "apply-children.yaml")...))
		f.waitValue(parent, "1")
		f.value(parent, "2")
		echo.Store(true)
		// Under server-side apply, to ask for what was observed is to own it.
		f.value(parent, "3")
		f.value(parent, "4")
		since := len(f.changes())
		f.value(parent, "5")
		f.noMore("an echo", since)
		p.Stop()
		since = len(f.changes())
		f.start(arguments...)
		f.value(parent, "6")
		f.noMore("an echo after a restart", since)
		if uid := metav1.GetControllerOf(f.get("apps/v1", "Deployment", "web")); uid == nil || uid.UID != parent.GetUID() {
			f.t.Errorf("the owner is %v", uid)
		}
	})
}

func TestRecreateIsNotForEver(t *testing.T) {
	eachStrategy(t, func(f *fixture, arguments ...string) {
		f.hooks.Handle("/sync", specHook())
		f.composite(childKinds(v1alpha1.ChildUpdateRecreate, [2]string{"v1", "pods"}, [2]string{"v1", "services"}, [2]string{"apply.example.com/v1", "widgets"}))
		p := f.start(arguments...)
		// The API server fills in, drops or rewrites each of these.
		pod := object{
			"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": "p", "creationTimestamp": nil},
			"spec": object{
				"restartPolicy": "", "dnsPolicy": "", "nodeName": "", "hostNetwork": false, "tolerations": []any{}, "terminationGracePeriodSeconds": 0,
				"automountServiceAccountToken": false,
				"containers": []any{object{
					"name": "c", "image": "x", "imagePullPolicy": "", "terminationMessagePath": "", "env": []any{}, "command": []any{},
					"livenessProbe": object{"httpGet": object{"port": 80, "path": ""}, "periodSeconds": 0, "timeoutSeconds": 0},
					"resources":     object{"limits": object{"cpu": "0.5"}},
				}},
			},
		}
		service := object{
			"apiVersion": "v1", "kind": "Service", "metadata": object{"name": "s"},
			"spec": object{"type": "NodePort", "sessionAffinity": "", "clusterIP": "", "selector": object{"a": "b"}, "ports": []any{object{"port": 80, "nodePort": 0, "protocol": "", "targetPort": 0}}},
		}
		widget := object{
			"apiVersion": "apply.example.com/v1", "kind": "Widget", "metadata": object{"name": "w"},
			"spec": object{"value": "", "mode": "manual", "args": []any{}},
		}
		if len(arguments) == 0 {
			// The API server prunes it; an apply with it is refused.
			widget["spec"].(object)["unknown"] = "pruned"
		}
		parent := f.thing("a", specOf("1", pod, service, widget))
		f.waitValue(parent, "1")
		uids := func() (out []string) {
			for _, o := range []*unstructured.Unstructured{f.get("v1", "Pod", "p"), f.get("v1", "Service", "s"), f.get("apply.example.com/v1", "Widget", "w")} {
				if o == nil {
					f.t.Fatalf("a child is not there; events: %v", messages(f.eventsOf(parent)))
				}
				out = append(out, string(o.GetUID()))
			}
			return out
		}
		before := uids()
		quiet := func(what string) {
			f.t.Helper()
			since := len(f.changes())
			f.value(parent, what)
			f.noMore(what, since)
			if after := uids(); !slices.Equal(before, after) {
				f.t.Errorf("%s: recreated: %v, before %v", what, after, before)
			}
		}
		quiet("again")
		// A status, which changes the resource version, and then a field that is
		// not ours.
		o := f.get("v1", "Pod", "p")
		if err := f.client.Status().Patch(f.t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(`{"status":{"phase":"Running"}}`))); err != nil {
			f.t.Fatal(err)
		}
		quiet("after a status")
		f.patch(f.get("v1", "Pod", "p"), `{"metadata":{"labels":{"theirs":"1"}}}`)
		quiet("after a foreign label")
		p.Stop()
		f.start(arguments...)
		quiet("after a restart")

		// What does differ is recreated.
		widget["spec"] = object{"value": "x"}
		f.spec(parent, "changed", pod, service, widget)
		f.waitField("apply.example.com/v1", "Widget", "w", "x", "spec", "value")
		if after := uids(); after[0] != before[0] || after[1] != before[1] || after[2] == before[2] {
			f.t.Errorf("uids are %v, before %v", after, before)
		}
		before = uids()
		f.patch(f.get("apply.example.com/v1", "Widget", "w"), `{"spec":{"value":"drifted"}}`)
		f.waitField("apply.example.com/v1", "Widget", "w", "x", "spec", "value")
		if after := uids(); after[2] == before[2] {
			f.t.Error("drift was repaired in place")
		}
	})
}
