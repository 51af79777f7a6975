package engine

import (
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/object"
)

var (
	thing  = object.Kind{GroupVersionKind: schema.GroupVersionKind{Group: "demo", Version: "v1", Kind: "Thing"}, Resource: "things", Namespaced: true}
	config = object.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Resource: "configmaps", Namespaced: true}
)

// make builds an object from metadata and the rest of its body.
func build(t testing.TB, kind object.Kind, metadata string, rest string) *object.Object {
	t.Helper()
	o, err := object.FromJSON(fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,"metadata":{"namespace":"ns","name":"a"%s}%s}`,
		kind.APIVersion(), kind.GroupVersionKind.Kind, metadata, rest))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestConcernsParent(t *testing.T) {
	const finalizer = "fin"
	selector := labels.SelectorFromSet(labels.Set{"app": "x"})
	ours, others := `,"labels":{"app":"x"}`, `,"labels":{"app":"y"}`
	at := func(version string, rest ...string) string {
		out := `,"uid":"u","resourceVersion":"` + version + `"`
		for _, more := range rest {
			out += more
		}
		return out
	}
	parent := func(metadata, rest string) *object.Object { return build(t, thing, metadata, rest) }
	cases := []struct {
		reason        string
		before, after *object.Object
		// want for all updates, and if status changes are ignored.
		want, ignoring bool
	}{
		{"nothing", nil, nil, false, false},
		{"created", nil, parent(at("1", ours), ""), true, true},
		{"created, not selected", nil, parent(at("1", others), ""), false, false},
		{"created, not selected, has our finalizer", nil, parent(at("1", others, `,"finalizers":["fin"]`), ""), true, true},
		{"gone", parent(at("1", ours), ""), nil, true, true},
		{"listed again", parent(at("1", ours), ""), parent(at("1", ours), ""), false, false},
		{"selected now", parent(at("1", others), ""), parent(at("2", ours), ""), true, true},
		{"no longer selected", parent(at("1", ours), ""), parent(at("2", others), ""), true, true},
		{"never selected", parent(at("1", others), ""), parent(at("2", others), `,"spec":1`), false, false},
		{"another of the same name", parent(at("1", ours), ""), parent(`,"uid":"v","resourceVersion":"2"`+ours, ""), true, true},
		{"spec, by generation", parent(at("1", ours, `,"generation":1`), ""), parent(at("2", ours, `,"generation":2`), ""), true, true},
		{"status, by generation", parent(at("1", ours, `,"generation":1`), `,"status":1`), parent(at("2", ours, `,"generation":1`), `,"status":2`), true, false},
		{"spec, without generation", parent(at("1", ours), `,"spec":1,"status":1`), parent(at("2", ours), `,"spec":2,"status":1`), true, true},
		{"status, without generation", parent(at("1", ours), `,"spec":1,"status":1`), parent(at("2", ours), `,"spec":1,"status":2`), true, false},
		{"annotation", parent(at("1", ours, `,"generation":1`), ""), parent(at("2", ours, `,"generation":1,"annotations":{"a":"b"}`), ""), true, true},
		{"label", parent(at("1", ours, `,"generation":1`), ""), parent(at("2", `,"generation":1,"labels":{"app":"x","b":"c"}`), ""), true, true},
		{"deletion", parent(at("1", ours, `,"generation":1`), ""), parent(at("2", ours, `,"generation":1,"deletionTimestamp":"2030-01-01T00:00:00Z"`), ""), true, true},
		{"finalizer of somebody", parent(at("1", ours, `,"generation":1`), ""), parent(at("2", ours, `,"generation":1,"finalizers":["x"]`), ""), true, true},
	}
	for _, c := range cases {
		for _, ignore := range []bool{false, true} {
			want := c.want
			if ignore {
				want = c.ignoring
			}
			rule := &Parent{Kind: thing, Selector: selector, IgnoreStatusChanges: ignore}
			if got := concernsParent(rule, finalizer, c.before, c.after); got != want {
				t.Errorf("%s, ignoring status changes %v: %v", c.reason, ignore, got)
			}
		}
	}
}

func TestOwnersOf(t *testing.T) {
	definition := &Definition{Parents: []Parent{{Kind: thing}}}
	owned := func(version, name, apiVersion, kind string) *object.Object {
		return build(t, config, fmt.Sprintf(`,"resourceVersion":%q,"ownerReferences":[{"apiVersion":%q,"kind":%q,"name":%q,"uid":"u","controller":true}]`, version, apiVersion, kind, name), "")
	}
	orphan := func(version string) *object.Object {
		return build(t, config, fmt.Sprintf(`,"resourceVersion":%q`, version), "")
	}
	cases := []struct {
		reason        string
		before, after *object.Object
		owners        []string
		orphaned      bool
	}{
		{"created", nil, owned("1", "p1", "demo/v1", "Thing"), []string{"p1"}, false},
		{"in another version", nil, owned("1", "p1", "demo/v2", "Thing"), []string{"p1"}, false},
		{"of another kind", nil, owned("1", "p1", "demo/v1", "Other"), nil, false},
		{"of another group", nil, owned("1", "p1", "other/v1", "Thing"), nil, false},
		{"gone", owned("1", "p1", "demo/v1", "Thing"), nil, []string{"p1"}, false},
		{"changed", owned("1", "p1", "demo/v1", "Thing"), owned("2", "p1", "demo/v1", "Thing"), []string{"p1"}, false},
		{"from one to another", owned("1", "p1", "demo/v1", "Thing"), owned("2", "p2", "demo/v1", "Thing"), []string{"p1", "p2"}, false},
		{"let go", owned("1", "p1", "demo/v1", "Thing"), orphan("2"), []string{"p1"}, true},
		{"orphan", nil, orphan("1"), nil, true},
		{"orphan gone", orphan("1"), nil, nil, false},
		{"listed again", owned("1", "p1", "demo/v1", "Thing"), owned("1", "p1", "demo/v1", "Thing"), nil, false},
		{"orphan listed again", orphan("1"), orphan("1"), nil, false},
	}
	for _, c := range cases {
		found, orphaned := ownersOf(definition, c.before, c.after)
		var owners []string
		for _, owner := range found {
			owners = append(owners, owner.Name)
			if owner != thing.Key("ns", owner.Name) {
				t.Errorf("%s: the owner is %v", c.reason, owner)
			}
		}
		if !slices.Equal(owners, c.owners) || orphaned != c.orphaned {
			t.Errorf("%s: %v, %v", c.reason, owners, orphaned)
		}
	}
}

// routedCopy is a copy of a kind with what a router asks of it.
type routedCopy struct {
	Cache
	objects map[object.Key]*object.Object
}

func (c *routedCopy) Get(namespace, name string) *object.Object {
	return c.objects[thing.Key(namespace, name)]
}

func TestRouter(t *testing.T) {
	parent := func(name, uid, app string) *object.Object {
		o, err := object.FromJSON(fmt.Appendf(nil, `{"apiVersion":"demo/v1","kind":"Thing","metadata":{"namespace":"ns","name":%q,"uid":%q,"resourceVersion":%q,"labels":{"app":%q}}}`, name, uid, uid, app))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	child := func(version, owner, uid, app string) *object.Object {
		refs := ""
		if owner != "" {
			refs = fmt.Sprintf(`,"ownerReferences":[{"apiVersion":"demo/v1","kind":"Thing","name":%q,"uid":%q,"controller":true}]`, owner, uid)
		}
		return build(t, config, fmt.Sprintf(`,"resourceVersion":%q,"labels":{"of":%q}%s`, version, app, refs), "")
	}
	there := &routedCopy{objects: map[object.Key]*object.Object{}}
	for _, o := range []*object.Object{parent("p", "new", "x"), parent("q", "q1", "x"), parent("other", "o1", "y")} {
		there.objects[o.Key()] = o
	}
	rule := Parent{Kind: thing, Selector: labels.SelectorFromSet(labels.Set{"app": "x"})}
	var got []string
	r := &router{
		definition: &Definition{Parents: []Parent{rule}},
		caches:     Caches{Parents: map[schema.GroupKind]Cache{thing.GroupKind(): there}},
		selector:   func(p *object.Object) labels.Selector { return labels.SelectorFromSet(labels.Set{"of": p.Name()}) },
		known:      newSelectors(),
		add: func(later bool, keys ...object.Key) {
			for _, key := range keys {
				got = append(got, fmt.Sprint(key.Name, later))
			}
		},
	}
	gone := parent("gone", "g1", "x")
	cases := []struct {
		reason string
		event  func()
		want   []string
	}{
		{"a parent that was there", func() { r.parent(&rule, nil, parent("p", "new", "x"), true) }, []string{"ptrue"}},
		{"a parent that is new", func() { r.parent(&rule, nil, parent("q", "q1", "x"), false) }, []string{"qfalse"}},
		{"one that is not selected", func() { r.parent(&rule, nil, parent("other", "o1", "y"), false) }, nil},
		{"a deletion that nobody saw", func() { r.parent(&rule, gone, nil, false) }, []string{"gonefalse"}},
		{"nothing", func() { r.parent(&rule, nil, nil, false) }, nil},
		{"a child that was there", func() { r.child(nil, child("1", "q", "q1", ""), true) }, nil},
		{"a child", func() { r.child(nil, child("1", "q", "q1", ""), false) }, []string{"qfalse"}},
		{"a child that is gone", func() { r.child(child("1", "q", "q1", ""), nil, false) }, []string{"qfalse"}},
		{"a child of an earlier parent of the name", func() { r.child(child("1", "p", "old", ""), nil, false) }, []string{"pfalse"}},
		{"a child of a parent that is gone", func() { r.child(child("1", "gone", "g1", ""), nil, false) }, nil},
		{"an orphan", func() { r.child(nil, child("1", "", "", "p"), false) }, []string{"pfalse"}},
		{"an orphan of a parent that is not selected", func() { r.child(nil, child("1", "", "", "other"), false) }, nil},
		{"an orphan of a parent that is gone", func() { r.child(nil, child("1", "", "", "gone"), false) }, nil},
		{"a child that is let go", func() { r.child(child("1", "q", "q1", ""), child("2", "", "", "p"), false) }, []string{"qfalse", "pfalse"}},
	}
	for _, c := range cases {
		got = nil
		c.event()
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, not %q", c.reason, got, c.want)
		}
	}
}

// The index finds just the parents that a look at each of them finds.
func TestSelectorsFindAll(t *testing.T) {
	values := rapid.SampledFrom([]string{"x", "y", "z"})
	keys := rapid.SampledFrom([]string{"a", "b"})
	rapid.Check(t, func(rt *rapid.T) {
		index := newSelectors()
		model := map[object.Key]labels.Selector{}
		for range rapid.IntRange(0, 20).Draw(rt, "changes") {
			parent := thing.Key(rapid.SampledFrom([]string{"ns", "other", ""}).Draw(rt, "namespace"), rapid.SampledFrom([]string{"p", "q", "r"}).Draw(rt, "name"))
			if rapid.Bool().Draw(rt, "remove") {
				index.set(parent, nil)
				delete(model, parent)
				continue
			}
			text := rapid.OneOf(
				rapid.Custom(func(rt *rapid.T) string { return keys.Draw(rt, "key") + "=" + values.Draw(rt, "value") }),
				rapid.Custom(func(rt *rapid.T) string {
					return keys.Draw(rt, "key") + " in (" + values.Draw(rt, "value") + "," + values.Draw(rt, "value") + ")"
				}),
				rapid.Custom(func(rt *rapid.T) string { return keys.Draw(rt, "key") + "!=" + values.Draw(rt, "value") }),
				rapid.Custom(func(rt *rapid.T) string { return "b,a=" + values.Draw(rt, "value") }),
			).Draw(rt, "selector")
			selector, err := labels.Parse(text)
			if err != nil {
				rt.Fatal(err)
			}
			index.set(parent, selector)
			model[parent] = selector
		}
		set := rapid.MapOf(keys, values).Draw(rt, "labels")
		text := ""
		for _, key := range slices.Sorted(maps.Keys(set)) {
			text += fmt.Sprintf(`,%q:%q`, key, set[key])
		}
		orphan := build(t, config, `,"labels":{"none":""`+text+`}`, "")
		var want []object.Key
		for parent, selector := range model {
			if (parent.Namespace == "" || parent.Namespace == "ns") && selector.Matches(labels.Set(orphan.Labels())) {
				want = append(want, parent)
			}
		}
		got := index.matching(orphan)
		slices.SortFunc(want, object.Key.Compare)
		slices.SortFunc(got, object.Key.Compare)
		if diff := cmp.Diff(want, got); diff != "" {
			rt.Fatal(diff)
		}
		for parent := range model {
			index.set(parent, nil)
		}
		if len(index.known)+len(index.byLabel) != 0 {
			rt.Fatal("the index keeps what was forgotten")
		}
	})
}
