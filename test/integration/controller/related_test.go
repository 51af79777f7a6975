package controller_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
)

const (
	relatedAPI   = "related.example.com/v1"
	sourceKey    = "Source.related.example.com/v1"
	globalKey    = "ClusterSource.related.example.com/v1"
	sources      = `"apiVersion":"related.example.com/v1","resource":"sources"`
	globals      = `"apiVersion":"related.example.com/v1","resource":"clustersources"`
	namespaceKey = "Namespace.v1"
)

// relatedFixture is a fixture whose parents say in spec.rules what their
// customize hook answers, and have in their status what the sync hook was shown.
type relatedFixture struct {
	*fixture
}

type relatedRequest struct {
	Controller struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	} `json:"controller"`
	Parent struct {
		Kind     string            `json:"kind"`
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			Rules json.RawMessage `json:"rules"`
			Note  string          `json:"note"`
		} `json:"spec"`
	} `json:"parent"`
	Children map[string]map[string]any `json:"children"`
	Related  map[string]map[string]struct {
		APIVersion string            `json:"apiVersion"`
		Metadata   metav1.ObjectMeta `json:"metadata"`
		Spec       struct {
			Value string `json:"value"`
		} `json:"spec"`
	} `json:"related"`
	Finalizing bool `json:"finalizing"`
}

func newRelatedFixture(t *testing.T) relatedFixture {
	t.Helper()
	f := relatedFixture{newFixture(t)}
	if _, err := kit.ApplyFile(t.Context(), f.cp.AdminConfig(0), filepath.Join("testdata", "related.yaml")); err != nil {
		t.Fatal(err)
	}
	f.hooks.Handle("/customize", customizeFromSpec())
	f.hooks.Handle("/sync", showRelated())
	return f
}

func customizeFromSpec() kit.Hook {
	return kit.JSON(func(r relatedRequest) (object, error) {
		if r.Controller.Metadata.Name == "" || r.Related != nil || r.Children != nil {
			return nil, errors.New("the request is none to a customize hook")
		}
		return object{"relatedResources": r.Parent.Spec.Rules}, nil
	})
}

// showRelated puts the keys of the related objects into the status, with their
// values.
func showRelated() kit.Hook {
	return kit.JSON(func(r relatedRequest) (object, error) {
		shown := object{}
		for kind, group := range r.Related {
			keys := []string{}
			for key, o := range group {
				if o.Spec.Value != "" {
					key += "=" + o.Spec.Value
				}
				if _, own, _ := strings.Cut(kind, "."); o.APIVersion != own {
					return nil, fmt.Errorf("%s is in the group of %s", o.APIVersion, kind)
				}
				keys = append(keys, key)
			}
			slices.Sort(keys)
			shown[kind] = keys
		}
		return object{"status": object{"related": shown, "note": r.Parent.Spec.Note}, "children": []object{}, "finalized": true}, nil
	})
}

// customized declares a controller of things with these versions of its hooks.
func (f relatedFixture) customized(sync, customize v1alpha1.HookVersion, change func(*v1alpha1.CompositeController)) *v1alpha1.CompositeController {
	f.t.Helper()
	return f.composite(func(cc *v1alpha1.CompositeController) {
		url := f.hooks.URL("/customize")
		cc.Spec.Hooks.Sync.Version = &sync
		cc.Spec.Hooks.Customize = &v1alpha1.Hook{Version: &customize, Webhook: &v1alpha1.Webhook{URL: &url}}
		cc.Spec.ChildResources = nil
		if change != nil {
			change(cc)
		}
	})
}

const v1, v2 = v1alpha1.HookVersionV1, v1alpha1.HookVersionV2

func rules(t *testing.T, text string) any {
	t.Helper()
	var decoded any
	if err := json.Unmarshal([]byte(text), &decoded); err != nil {
		t.Fatal(err)
	}
	return decoded
}

// related creates a parent with these rules.
func (f relatedFixture) related(name, text string) *unstructured.Unstructured {
	f.t.Helper()
	return f.thing(name, object{"rules": rules(f.t, text)})
}

// made creates an object; spec.value is value.
func (f relatedFixture) made(kind, namespace, name, value string, labels map[string]string) *unstructured.Unstructured {
	f.t.Helper()
	u := &unstructured.Unstructured{Object: object{"apiVersion": relatedAPI, "kind": kind}}
	if value != "" {
		u.Object["spec"] = object{"value": value}
	}
	u.SetNamespace(namespace)
	u.SetName(name)
	u.SetLabels(labels)
	if err := f.client.Create(f.t.Context(), u); err != nil {
		f.t.Fatal(err)
	}
	if namespace == "" {
		f.t.Cleanup(func() { _ = f.client.Delete(context.Background(), u) })
	}
	return u
}

func (f relatedFixture) source(name, value string, labels map[string]string) *unstructured.Unstructured {
	f.t.Helper()
	return f.made("Source", f.ns, name, value, labels)
}

// shown waits until the parent's status shows these objects of each kind. Those
// of other tests, which have other prefixes, are left out.
func (f relatedFixture) shown(parent client.Object, want map[string][]string, own ...string) {
	f.t.Helper()
	kit.Eventually(f.t, soon, func() error {
		got, err := f.status(parent)
		if err != nil {
			return err
		}
		for kind := range got {
			if len(own) > 0 {
				got[kind] = slices.DeleteFunc(got[kind], func(key string) bool {
					return !slices.ContainsFunc(own, func(prefix string) bool { return strings.HasPrefix(key, prefix) })
				})
			}
		}
		if !maps.EqualFunc(got, want, slices.Equal) {
			return fmt.Errorf("shown are %v, not %v", got, want)
		}
		return nil
	})
}

func (f relatedFixture) status(parent client.Object) (map[string][]string, error) {
	now := &unstructured.Unstructured{}
	now.SetGroupVersionKind(parent.GetObjectKind().GroupVersionKind())
	if err := f.client.Get(f.t.Context(), client.ObjectKeyFromObject(parent), now); err != nil {
		return nil, err
	}
	shown, found, _ := unstructured.NestedMap(now.Object, "status", "related")
	if !found {
		return nil, fmt.Errorf("status is %v", now.Object["status"])
	}
	got := map[string][]string{}
	for kind := range shown {
		got[kind], _, _ = unstructured.NestedStringSlice(shown, kind)
	}
	return got, nil
}

// quiet waits until the hooks were asked about the parent as it is now, and
// returns how often each was.
func (f relatedFixture) quiet(parent client.Object) (customize, sync int) {
	f.t.Helper()
	about := func(path, version string) (int, bool) {
		n, last := 0, false
		for _, r := range f.hooks.Requests(path) {
			var decoded relatedRequest
			if err := r.Decode(&decoded); err != nil {
				f.t.Fatal(err)
			}
			if decoded.Parent.Metadata.UID == parent.GetUID() {
				n++
				last = decoded.Parent.Metadata.ResourceVersion == version
			}
		}
		return n, last
	}
	kit.Eventually(f.t, soon, func() error {
		now := &unstructured.Unstructured{}
		now.SetGroupVersionKind(parent.GetObjectKind().GroupVersionKind())
		if err := f.client.Get(f.t.Context(), client.ObjectKeyFromObject(parent), now); err != nil {
			return err
		}
		var one, other bool
		customize, one = about("/customize", now.GetResourceVersion())
		sync, other = about("/sync", now.GetResourceVersion())
		if !one || !other {
			return fmt.Errorf("not all hooks were asked about version %s of the parent", now.GetResourceVersion())
		}
		return nil
	})
	return customize, sync
}

func TestRelatedByName(t *testing.T) {
	f := newRelatedFixture(t)
	f.customized(v1, v1, nil)
	f.start()
	parent := f.related("p", `[{`+sources+`,"names":["a","b","a"]}]`)
	f.shown(parent, map[string][]string{sourceKey: {}})
	a := f.source("a", "1", nil)
	f.shown(parent, map[string][]string{sourceKey: {"a=1"}})
	f.source("b", "2", nil)
	f.source("c", "3", nil)
	f.shown(parent, map[string][]string{sourceKey: {"a=1", "b=2"}})
	f.patch(a, `{"spec":{"value":"4"}}`)
	f.shown(parent, map[string][]string{sourceKey: {"a=4", "b=2"}})
	f.delete(a)
	f.shown(parent, map[string][]string{sourceKey: {"b=2"}})
	f.source("a", "5", nil)
	f.shown(parent, map[string][]string{sourceKey: {"a=5", "b=2"}})

	// Other rules: other objects, and another kind.
	f.patch(parent, `{"spec":{"rules":[{`+sources+`,"names":["c"]},{"apiVersion":"v1","resource":"configmaps","names":["none"]}]}}`)
	f.shown(parent, map[string][]string{sourceKey: {"c=3"}, "ConfigMap.v1": {}})
	f.patch(parent, `{"spec":{"rules":[]}}`)
	f.shown(parent, map[string][]string{})
}

func TestRelatedByLabels(t *testing.T) {
	f := newRelatedFixture(t)
	f.customized(v1, v1, nil)
	f.start()
	one := f.related("p", `[{`+sources+`,"labelSelector":{"matchLabels":{"app":"x"}}}]`)
	other := f.related("q", `[{`+sources+`,"labelSelector":{"matchExpressions":[{"key":"app","operator":"NotIn","values":["x"]}]}},{`+sources+`,"names":["both"]}]`)
	a := f.source("a", "1", map[string]string{"app": "x"})
	f.source("both", "2", map[string]string{"app": "x"})
	f.shown(one, map[string][]string{sourceKey: {"a=1", "both=2"}})
	f.shown(other, map[string][]string{sourceKey: {"both=2"}})
	// The one that lost it is told, and the one that got it.
	f.patch(a, `{"metadata":{"labels":{"app":"y"}}}`)
	f.shown(one, map[string][]string{sourceKey: {"both=2"}})
	f.shown(other, map[string][]string{sourceKey: {"a=1", "both=2"}})
}

func TestRelatedVersions(t *testing.T) {
	whole := `[{` + sources + `},{` + globals + `}]`
	cases := []struct {
		name            string
		sync, customize v1alpha1.HookVersion
		all             bool
	}{
		{"v1 drops", v1, v1, false},
		{"sync v1 drops what customize v2 names", v1, v2, false},
		{"v2 keeps", v2, v2, true},
		{"sync v2 keeps what customize v1 names", v2, v1, true},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			f := newRelatedFixture(t)
			there := kit.Namespace(t, f.cp.AdminConfig(0))
			f.customized(c.sync, c.customize, nil)
			f.start()
			f.source("a", "1", nil)
			f.made("Source", there, "a", "2", nil)
			f.made("ClusterSource", "", f.ns+"-g", "3", nil)
			parent := f.related("p", whole)
			if c.all {
				f.shown(parent, map[string][]string{
					sourceKey: slices.Sorted(slices.Values([]string{f.ns + "/a=1", there + "/a=2"})), globalKey: {f.ns + "-g=3"},
				}, f.ns, there)
				f.made("Source", there, "b", "4", nil)
				f.shown(parent, map[string][]string{
					sourceKey: slices.Sorted(slices.Values([]string{f.ns + "/a=1", there + "/a=2", there + "/b=4"})), globalKey: {f.ns + "-g=3"},
				}, f.ns, there)
				return
			}
			// No filter here: nothing of other namespaces may be there at all.
			f.shown(parent, map[string][]string{sourceKey: {"a=1"}, globalKey: {}})
			f.source("b", "4", nil)
			f.shown(parent, map[string][]string{sourceKey: {"a=1", "b=4"}, globalKey: {}})
		})
	}
}

func TestRelatedByNamespaceLabels(t *testing.T) {
	f := newRelatedFixture(t)
	there := kit.Namespace(t, f.cp.AdminConfig(0))
	f.customized(v2, v2, nil)
	f.start()
	f.source("a", "1", map[string]string{"app": "x"})
	f.made("Source", there, "b", "2", map[string]string{"app": "x"})
	f.made("Source", there, "c", "3", nil)
	parent := f.related("p", `[{`+sources+`,"namespaceSelector":{"matchLabels":{"pick":"`+f.ns+`"}},"labelSelector":{"matchLabels":{"app":"x"}}}]`)
	f.shown(parent, map[string][]string{sourceKey: {}})
	namespace := &unstructured.Unstructured{Object: object{"apiVersion": "v1", "kind": "Namespace", "metadata": object{"name": there}}}
	// Nothing but the namespace changes.
	f.patch(namespace, `{"metadata":{"labels":{"pick":"`+f.ns+`"}}}`)
	f.shown(parent, map[string][]string{sourceKey: {there + "/b=2"}})
	f.made("Source", there, "d", "4", map[string]string{"app": "x"})
	f.shown(parent, map[string][]string{sourceKey: {there + "/b=2", there + "/d=4"}})
	f.patch(namespace, `{"metadata":{"labels":{"pick":null}}}`)
	f.shown(parent, map[string][]string{sourceKey: {}})

	// One namespace, by name, and namespaces as objects.
	f.patch(parent, `{"spec":{"rules":[{`+sources+`,"namespace":"`+there+`"},{"apiVersion":"v1","resource":"namespaces","names":["`+there+`"]}]}}`)
	f.shown(parent, map[string][]string{sourceKey: {there + "/b=2", there + "/c=3", there + "/d=4"}, namespaceKey: {there}})
}

func TestRelatedOfSameNamesInTwoNamespaces(t *testing.T) {
	f := newRelatedFixture(t)
	there := kit.Namespace(t, f.cp.AdminConfig(0))
	f.customized(v1, v1, nil)
	f.start()
	var parents []*unstructured.Unstructured
	for i, namespace := range []string{f.ns, there} {
		name := strconv.Itoa(i)
		f.made("Source", namespace, name, "1", nil)
		f.made("Source", namespace, "other", "2", nil)
		parent := &unstructured.Unstructured{Object: object{"apiVersion": thingAPI, "kind": "Thing", "spec": object{"rules": rules(t, `[{`+sources+`,"names":["`+name+`"]}]`)}}}
		parent.SetNamespace(namespace)
		parent.SetName("same")
		parent.SetLabels(map[string]string{testLabel: f.ns})
		if err := f.client.Create(t.Context(), parent); err != nil {
			t.Fatal(err)
		}
		parents = append(parents, parent)
	}
	for i, parent := range parents {
		f.shown(parent, map[string][]string{sourceKey: {strconv.Itoa(i) + "=1"}})
	}
	// A new one under an old name is asked about anew.
	f.delete(parents[0])
	again := f.related("same", `[{`+sources+`,"names":["other"]}]`)
	f.shown(again, map[string][]string{sourceKey: {"other=2"}})
	f.shown(parents[1], map[string][]string{sourceKey: {"1=1"}})
}

func TestRelatedOfAClusterScopedParent(t *testing.T) {
	f := newRelatedFixture(t)
	f.customized(v1, v1, func(cc *v1alpha1.CompositeController) {
		cc.Spec.ParentResource.APIVersion, cc.Spec.ParentResource.Resource = relatedAPI, "bases"
	})
	f.start()
	f.source("a", "1", nil)
	f.made("ClusterSource", "", f.ns+"-g", "2", nil)
	parent := &unstructured.Unstructured{Object: object{"apiVersion": relatedAPI, "kind": "Base", "spec": object{
		"rules": rules(t, `[{`+sources+`,"names":["a"],"namespace":"`+f.ns+`"},{`+globals+`,"names":["`+f.ns+`-g"]}]`),
	}}}
	parent.SetName(f.ns)
	parent.SetLabels(map[string]string{testLabel: f.ns})
	if err := f.client.Create(t.Context(), parent); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.client.Delete(context.Background(), parent) })
	f.shown(parent, map[string][]string{sourceKey: {f.ns + "/a=1"}, globalKey: {f.ns + "-g=2"}})
	f.patch(parent, `{"spec":{"rules":[{`+sources+`,"namespaceSelector":{"matchLabels":{"kubernetes.io/metadata.name":"`+f.ns+`"}}},{`+sources+`,"names":["b"]}]}}`)
	f.source("b", "3", nil)
	f.shown(parent, map[string][]string{sourceKey: {f.ns + "/a=1", f.ns + "/b=3"}}, f.ns)
}

func TestRelatedChangesWhileTheHookFails(t *testing.T) {
	f := newRelatedFixture(t)
	f.customized(v1, v1, nil)
	p := f.start()
	rule := `[{` + sources + `,"names":["a"]}]`
	parent := f.related("p", rule)
	f.shown(parent, map[string][]string{sourceKey: {}})
	f.quiet(parent)

	// The parent changes, so that the hook must be asked; it fails while the
	// object comes.
	f.hooks.Handle("/customize", kit.Status(500, "out of order"))
	f.patch(parent, `{"spec":{"note":"1"}}`)
	f.event(parent, "SyncError", "customize hook at", "500", "out of order")
	f.source("a", "1", nil)
	f.hooks.Handle("/customize", customizeFromSpec())
	f.shown(parent, map[string][]string{sourceKey: {"a=1"}})

	// Unreachable, while the object goes.
	f.quiet(parent)
	f.hooks.Down()
	f.patch(parent, `{"spec":{"note":"2"}}`)
	f.event(parent, "SyncError", "customize hook at", "cannot be reached")
	f.delete(f.get("Source", f.ns, "a"))
	f.hooks.Up()
	f.shown(parent, map[string][]string{sourceKey: {}})

	// Busy: no event, and it goes on.
	f.quiet(parent)
	before := len(f.eventsOf(parent))
	f.hooks.Handle("/customize", kit.Sequence(kit.Status(429, "", "Retry-After: 1"), customizeFromSpec()))
	f.patch(parent, `{"spec":{"note":"3","rules":[]}}`)
	f.shown(parent, map[string][]string{})
	if after := f.eventsOf(parent); len(after) != before {
		t.Errorf("events of a busy hook: %v", after)
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

func (f relatedFixture) get(kind, namespace, name string) *unstructured.Unstructured {
	f.t.Helper()
	u := &unstructured.Unstructured{Object: object{"apiVersion": relatedAPI, "kind": kind}}
	if err := f.client.Get(f.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, u); err != nil {
		f.t.Fatal(err)
	}
	return u
}

func TestCustomizeIsAskedOnlyWhenSomethingChanged(t *testing.T) {
	f := newRelatedFixture(t)
	f.customized(v1, v1, nil)
	f.start()
	object := f.source("a", "0", nil)
	parent := f.related("p", `[{`+sources+`,"names":["a"]}]`)
	f.shown(parent, map[string][]string{sourceKey: {"a=0"}})
	f.quiet(parent)
	// From here the status does not change with the object, so the parent does
	// not.
	f.hooks.Handle("/sync", kit.JSON(func(r relatedRequest) (map[string]any, error) {
		return map[string]any{"status": map[string]any{"note": r.Parent.Spec.Note}, "children": []any{}}, nil
	}))
	f.patch(parent, `{"spec":{"note":"x"}}`)
	kit.Eventually(t, soon, func() error {
		now := parent.DeepCopy()
		if err := f.client.Get(t.Context(), client.ObjectKeyFromObject(parent), now); err != nil {
			return err
		}
		if note, _, _ := unstructured.NestedString(now.Object, "status", "note"); note != "x" {
			return fmt.Errorf("status is %v", now.Object["status"])
		}
		return nil
	})
	customize, sync := f.quiet(parent)
	for i := range 3 {
		f.patch(object, `{"spec":{"value":"`+strconv.Itoa(i+1)+`"}}`)
		f.hooks.WaitRequests(soon, "/sync", sync+i+1)
	}
	after, _ := f.quiet(parent)
	if after != customize {
		t.Errorf("%d customize calls, %d more than before the related object changed", after, after-customize)
	}
	f.patch(parent, `{"metadata":{"labels":{"more":"y"}}}`)
	if last, _ := f.quiet(parent); last != customize+1 {
		t.Errorf("%d customize calls after a change of the parent, not %d", last, customize+1)
	}
}

func TestCustomizeIsNotAskedForOthers(t *testing.T) {
	f := newRelatedFixture(t)
	cc := f.customized(v1, v1, func(cc *v1alpha1.CompositeController) {
		url := f.hooks.URL("/finalize")
		cc.Spec.Hooks.Finalize = &v1alpha1.Hook{Webhook: &v1alpha1.Webhook{URL: &url}}
	})
	f.hooks.Handle("/finalize", showRelated())
	f.start()
	rule := rules(t, `[{`+sources+`,"names":["a"]}]`)
	stranger := &unstructured.Unstructured{Object: object{"apiVersion": thingAPI, "kind": "Thing", "spec": object{"rules": rule}}}
	stranger.SetNamespace(f.ns)
	stranger.SetName("stranger")
	if err := f.client.Create(t.Context(), stranger); err != nil {
		t.Fatal(err)
	}
	f.source("a", "1", nil)
	parent := f.thing("p", object{"rules": rule})
	f.shown(parent, map[string][]string{sourceKey: {"a=1"}})
	f.quiet(parent)

	// One that is deselected is finalized, and shown its objects once more; after
	// that nothing that happens to them concerns it.
	f.hooks.Forget()
	f.patch(parent, `{"metadata":{"labels":{"test":null}}}`)
	last := f.hooks.WaitRequests(soon, "/finalize", 1)[0]
	var asked relatedRequest
	if err := last.Decode(&asked); err != nil || !asked.Finalizing || len(asked.Related[sourceKey]) != 1 {
		t.Errorf("the finalize hook was asked %s, %v", last.Body, err)
	}
	kit.Eventually(t, soon, func() error {
		now := parent.DeepCopy()
		if err := f.client.Get(t.Context(), client.ObjectKeyFromObject(parent), now); err != nil {
			return err
		}
		if len(now.GetFinalizers()) > 0 {
			return fmt.Errorf("finalizers are %q", now.GetFinalizers())
		}
		return nil
	})
	witness := f.thing("w", object{"rules": rule})
	f.shown(witness, map[string][]string{sourceKey: {"a=1"}})
	f.hooks.Forget()
	f.patch(f.get("Source", f.ns, "a"), `{"spec":{"value":"2"}}`)
	f.shown(witness, map[string][]string{sourceKey: {"a=2"}})
	f.quiet(witness)
	for _, path := range []string{"/customize", "/sync", "/finalize"} {
		for _, r := range f.hooks.Requests(path) {
			var decoded relatedRequest
			if err := r.Decode(&decoded); err != nil || decoded.Parent.Metadata.Name != "w" {
				t.Errorf("%s was asked about %q, %v", path, decoded.Parent.Metadata.Name, err)
			}
		}
	}
	if events := f.eventsOf(stranger); len(events) > 0 {
		t.Errorf("events of a stranger: %v", events)
	}
	_ = cc
}

func TestForbiddenRelatedKind(t *testing.T) {
	f := newRelatedFixture(t)
	f.customized(v1, v1, nil)
	f.start()
	f.source("a", "1", nil)
	bad := f.related("bad", `[{`+sources+`},{"apiVersion":"`+relatedAPI+`","resource":"forbiddens"}]`)
	good := f.related("good", `[{`+sources+`,"names":["a"]}]`)
	f.event(bad, "SyncError", f.ns, "customize hook at", "relatedResources[1]", "forbiddens", "forbidden")
	f.shown(good, map[string][]string{sourceKey: {"a=1"}})
	f.patch(bad, `{"spec":{"rules":[{`+sources+`}]}}`)
	f.shown(bad, map[string][]string{sourceKey: {"a=1"}})
}

func TestBadRules(t *testing.T) {
	f := newRelatedFixture(t)
	f.customized(v1, v1, nil)
	f.start()
	cases := []struct {
		name, rules string
		says        []string
	}{
		{"null", `[null]`, []string{"relatedResources[0]"}},
		{"text", `"all"`, []string{"relatedResources"}},
		{"no-resource", `[{"apiVersion":"v1"}]`, []string{"relatedResources[0].resource"}},
		{"unknown", `[{` + sources + `},{"apiVersion":"related.example.com/v1","resource":"nothings"}]`, []string{"relatedResources[1]", "nothings"}},
		{"unknown-version", `[{"apiVersion":"a/b/c","resource":"sources"}]`, []string{"relatedResources[0]", "a/b/c"}},
		{"names-and-labels", `[{` + sources + `,"names":["a"],"labelSelector":{}}]`, []string{"relatedResources[0].labelSelector", "names"}},
		{"namespaces-v1", `[{` + sources + `,"namespaceSelector":{}}]`, []string{"relatedResources[0].namespaceSelector", "v1"}},
		{"namespaces-of-globals", `[{` + globals + `,"namespaceSelector":{}}]`, []string{"relatedResources[0].namespaceSelector", "cluster-scoped"}},
		{"other-namespace", `[{` + sources + `,"namespace":"default"}]`, []string{"relatedResources[0].namespace", f.ns}},
		{"operator", `[{` + sources + `,"labelSelector":{"matchExpressions":[{"key":"a","operator":"Like"}]}}]`, []string{"relatedResources[0].labelSelector.matchExpressions[0].operator"}},
		{"empty-name", `[{` + sources + `,"names":["a",""]}]`, []string{"relatedResources[0].names[1]"}},
		{"slash", `[{` + sources + `,"names":["n/a"]}]`, []string{"relatedResources[0].names[0]"}},
	}
	for _, c := range cases {
		f.related(c.name, c.rules)
	}
	for _, c := range cases {
		about := &unstructured.Unstructured{Object: object{"apiVersion": thingAPI, "kind": "Thing"}}
		about.SetNamespace(f.ns)
		about.SetName(c.name)
		f.event(about, "SyncError", append([]string{f.ns, "customize hook at"}, c.says...)...)
	}
	// The answer of nobody is the problem of another, and a hook that is mended
	// is asked again though the parent does not change.
	good := f.related("good", `[{`+sources+`}]`)
	f.shown(good, map[string][]string{sourceKey: {}})
	f.hooks.Handle("/customize", kit.JSON(func(relatedRequest) (object, error) { return object{"relatedResources": nil}, nil }))
	mended := &unstructured.Unstructured{Object: object{"apiVersion": thingAPI, "kind": "Thing"}}
	mended.SetNamespace(f.ns)
	mended.SetName("slash")
	kit.Eventually(t, 3*soon, func() error {
		got, err := f.status(mended)
		if err == nil && len(got) > 0 {
			err = fmt.Errorf("shown are %v", got)
		}
		return err
	})
	// An error document says nothing about rules.
	f.hooks.Handle("/customize", kit.Status(200, `{"error":"later"}`))
	f.patch(good, `{"spec":{"note":"x"}}`)
	f.event(good, "SyncError", "customize hook at", "relatedResources")
}

func TestStrictCustomize(t *testing.T) {
	f := newRelatedFixture(t)
	f.customized(v1, v2, nil)
	f.start()
	parent := f.related("p", `[{`+sources+`,"nameS":["a"]}]`)
	f.event(parent, "SyncError", "customize hook at", "relatedResources[0]", "nameS")
}

func TestLateRelatedKind(t *testing.T) {
	f := newRelatedFixture(t)
	f.customized(v2, v2, nil)
	f.start("--discovery-interval=1h")
	parent := f.related("p", `[{"apiVersion":"`+relatedAPI+`","resource":"lates"}]`)
	f.event(parent, "SyncError", "relatedResources[0]", "lates")
	crd := func(scope string) *unstructured.Unstructured {
		applied, err := kit.ApplyYAML(t.Context(), f.cp.AdminConfig(0), []byte(`
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: lates.related.example.com}
spec:
  group: related.example.com
  scope: `+scope+`
  names: {plural: lates, singular: late, kind: Late}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`))
		if err != nil {
			t.Fatal(err)
		}
		return applied[0]
	}
	remove := func(definition *unstructured.Unstructured) {
		ctx := context.Background()
		if err := f.client.Delete(ctx, definition); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
		kit.Eventually(t, soon, func() error {
			if err := f.client.Get(ctx, client.ObjectKeyFromObject(definition), definition.DeepCopy()); client.IgnoreNotFound(err) != nil || err == nil {
				return fmt.Errorf("the CRD is still there: %v", err)
			}
			return nil
		})
	}
	const lateKey = "Late.related.example.com/v1"
	namespaced := crd("Namespaced")
	t.Cleanup(func() { remove(namespaced) })
	f.shown(parent, map[string][]string{lateKey: {}})
	f.made("Late", f.ns, "a", "1", nil)
	f.shown(parent, map[string][]string{lateKey: {f.ns + "/a=1"}})

	// Made again, with another scope.
	remove(namespaced)
	crd("Cluster")
	// The client of the fixture remembers the old scope.
	fresh, err := client.New(f.cp.AdminConfig(0), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	f.client = fresh
	f.made("Late", "", "b", "2", nil)
	f.shown(parent, map[string][]string{lateKey: {"b=2"}})
}

func TestRelatedInTwoVersionsAndAsChildren(t *testing.T) {
	f := newRelatedFixture(t)
	f.hooks.Handle("/sync", kit.JSON(func(r relatedRequest) (object, error) {
		_, both := r.Related["ConfigMap.v1"]["child"]
		_, child := r.Children["ConfigMap.v1"]["child"]
		_, itself := r.Related["Thing.demo.example.com/v1"][r.Parent.Metadata.Name]
		first, second := r.Related[sourceKey]["a"], r.Related["Source.related.example.com/v2"]["a"]
		return object{
			"status": object{"ok": both && child && itself && first.APIVersion == relatedAPI && second.APIVersion == "related.example.com/v2"},
			"children": []object{{
				"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "child"},
			}},
		}, nil
	}))
	f.customized(v1, v1, func(cc *v1alpha1.CompositeController) {
		child := v1alpha1.CompositeControllerChildResourceRule{}
		child.APIVersion, child.Resource = "v1", "configmaps"
		cc.Spec.ChildResources = []v1alpha1.CompositeControllerChildResourceRule{child}
	})
	f.start()
	f.source("a", "1", nil)
	parent := f.related("p", `[{`+sources+`},{"apiVersion":"related.example.com/v2","resource":"sources","names":["a"]},
		{"apiVersion":"v1","resource":"configmaps"},{"apiVersion":"`+thingAPI+`","resource":"things","names":["p"]}]`)
	kit.Eventually(t, soon, func() error {
		now := parent.DeepCopy()
		if err := f.client.Get(t.Context(), client.ObjectKeyFromObject(parent), now); err != nil {
			return err
		}
		if ok, _, _ := unstructured.NestedBool(now.Object, "status", "ok"); !ok {
			return fmt.Errorf("status is %v", now.Object["status"])
		}
		return nil
	})
}

func TestManyCustomizedParentsAndARestart(t *testing.T) {
	f := newRelatedFixture(t)
	cc := f.customized(v1, v1, nil)
	port, err := kit.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	metrics := "127.0.0.1:" + strconv.Itoa(port)
	p := f.start("--metrics-address=" + metrics)
	const n = 20
	var parents []*unstructured.Unstructured
	for i := range n {
		f.source(strconv.Itoa(i), "1", map[string]string{"all": "yes"})
		parents = append(parents, f.related("p"+strconv.Itoa(i), fmt.Sprintf(`[{%s,"names":["%d"]}]`, sources, i)))
	}
	for i, parent := range parents {
		f.shown(parent, map[string][]string{sourceKey: {strconv.Itoa(i) + "=1"}})
	}
	response, err := http.Get("http://" + metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	read, err := io.ReadAll(response.Body)
	if body := string(read); err != nil || !strings.Contains(body, "metacontroller_customize_requests_total") || !strings.Contains(body, `controller_name="`+cc.Name+`"`) {
		t.Errorf("the metrics of the customize hook are missing, %v", err)
	}
	for _, parent := range parents {
		f.quiet(parent)
	}
	if code := p.Stop(); code != 0 {
		t.Fatalf("exit code %d after SIGTERM", code)
	}
	f.hooks.Forget()
	before := len(f.writes())
	p = f.start()
	f.hooks.WaitRequests(soon, "/sync", n)
	// An event finds its parent though the hook is not asked again.
	f.patch(f.get("Source", f.ns, "7"), `{"spec":{"value":"2"}}`)
	f.shown(parents[7], map[string][]string{sourceKey: {"7=2"}})
	if code := p.Stop(); code != 0 {
		t.Fatalf("exit code %d after SIGTERM", code)
	}
	// One of each parent, and one more of the one whose status changed.
	if calls := len(f.hooks.Requests("/customize")); calls < n || calls > n+1 {
		t.Errorf("%d customize calls for %d parents after the restart", calls, n)
	}
	if after := f.writes()[before:]; len(after) != 1 {
		t.Errorf("writes after the restart: %v", after)
	}
}
