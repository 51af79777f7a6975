package revision

import (
	"crypto/sha1"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/metacontroller-solo/solo/pkg/object"
)

func kindOf(group, kind, resource string, namespaced bool) object.Kind {
	return object.Kind{GroupVersionKind: schema.GroupVersionKind{Group: group, Version: "v1", Kind: kind}, Resource: resource, Namespaced: namespaced}
}

func source() *Source {
	return &Source{
		Kind: kindOf("metacontroller.k8s.io", "ControllerRevision", "controllerrevisions", true), Namespace: "own",
		Paths: Paths{{"spec", "template"}}, Parent: kindOf("demo", "Thing", "things", true), Generated: true,
		Children: []ChildKind{
			{Kind: kindOf("", "Pod", "pods", true), Rolls: true},
			{Kind: kindOf("", "ConfigMap", "configmaps", true)},
			{Kind: kindOf("rbac", "ClusterRole", "clusterroles", false), Rolls: true},
		},
	}
}

func parse(t testing.TB, format string, arguments ...any) *object.Object {
	t.Helper()
	o, err := object.FromJSON(fmt.Appendf(nil, format, arguments...))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func parentOf(t testing.TB, namespace, spec string) *object.Object {
	t.Helper()
	return parse(t, `{"apiVersion":"demo/v1","kind":"Thing","metadata":{"name":"p","namespace":%q,"uid":"p-uid"},"spec":%s}`, namespace, spec)
}

const owned = `"ownerReferences":[{"apiVersion":"demo/v1","kind":"Thing","name":"p","uid":"p-uid","controller":true}]`

func stored(t testing.TB, namespace, name, metadata, rest string) *object.Object {
	t.Helper()
	return parse(t, `{"apiVersion":"metacontroller.k8s.io/v1alpha1","kind":"ControllerRevision","metadata":{"namespace":%q,"name":%q,"uid":"r","resourceVersion":"1",%s},%s}`,
		namespace, name, metadata, rest)
}

func pod(namespace, name string) object.Key {
	return object.Key{Kind: "Pod", Namespace: namespace, Name: name}
}

// found finds one object by its name.
func found(o *object.Object) func(namespace, name string) *object.Object {
	return func(namespace, name string) *object.Object {
		if o == nil || o.Namespace() != namespace || o.Name() != name {
			return nil
		}
		return o
	}
}

func TestName(t *testing.T) {
	s := source()
	patch := map[string]any{"spec": map[string]any{"template": map[string]any{"b": "<&>", "a": int64(1)}}}
	got, err := s.name("p-uid", patch)
	want := fmt.Sprintf("things.demo-%x", sha1.Sum([]byte(`p-uid{"spec":{"template":{"a":1,"b":"\u003c\u0026\u003e"}}}`)))
	if err != nil || got != want {
		t.Errorf("name is %q, not %q: %v", got, want, err)
	}
	if other, _ := s.name("q-uid", patch); other == got {
		t.Error("two parents share a revision")
	}
	s.Parent.Group = ""
	if got, _ = s.name("p-uid", nil); !strings.HasPrefix(got, "things.core-") {
		t.Errorf("in the core group it is %q", got)
	}
	for length := 150; length < 253; length++ {
		s.Parent.Group = strings.Repeat("ab.", (length-1)/3)
		s.Parent.Group += strings.Repeat("c", length-len(s.Parent.Group))
		got, _ = s.name("p-uid", nil)
		if wrong := validation.IsDNS1123Subdomain(got); len(wrong) > 0 {
			t.Fatalf("%q is no name: %s", got, wrong)
		}
	}
}

func TestClaimsAreReadTolerantly(t *testing.T) {
	s := source()
	const patch = `"parentPatch":{"spec":{"template":1}},`
	for _, c := range []struct {
		reason, namespace, children string
		want                        []object.Key
	}{
		{"names", "ns", `[{"apiGroup":"","kind":"Pod","names":["a","b"]}]`, []object.Key{pod("ns", "a"), pod("ns", "b")}},
		{"twice", "ns", `[{"apiGroup":"","kind":"Pod","names":["a","a"]},{"apiGroup":"","kind":"Pod","names":["a"]}]`, []object.Key{pod("ns", "a")}},
		{"cluster-scoped parent", "", `[{"apiGroup":"","kind":"Pod","names":["ns/a","a","/a","ns/","ns/a/b"]},{"apiGroup":"rbac","kind":"ClusterRole","names":["r","ns/r"]}]`,
			[]object.Key{pod("ns", "a"), {Group: "rbac", Kind: "ClusterRole", Name: "r"}}},
		{"with a namespace where there is none", "ns", `[{"apiGroup":"","kind":"Pod","names":["ns/a"]}]`, nil},
		{"a kind that does not roll", "ns", `[{"apiGroup":"","kind":"ConfigMap","names":["a"]}]`, nil},
		{"a kind of others", "ns", `[{"apiGroup":"x","kind":"Y","names":["a"]}]`, nil},
		{"absent", "ns", `null`, nil},
		{"text", "ns", `"a"`, nil},
		{"nonsense", "ns", `[null,1,"a",[],{},{"kind":"Pod","names":["a"]},{"apiGroup":"","kind":"","names":["a"]},{"apiGroup":7,"kind":"Pod","names":["a"]},{"apiGroup":"","kind":"Pod","names":"a"},{"apiGroup":"","kind":"Pod","names":[null,7,"",{}]}]`, nil},
	} {
		o := stored(t, "ns", "old", owned, patch+`"children":`+c.children)
		if c.namespace == "" {
			o = stored(t, "own", "old", owned, patch+`"children":`+c.children)
		}
		h, err := s.Read(parentOf(t, c.namespace, `{"template":2}`), []*object.Object{o}, found(nil))
		if err != nil || len(h.Old) != 1 {
			t.Fatalf("%s: %v", c.reason, err)
		}
		want := Claims{}
		for _, key := range c.want {
			want.add(key)
		}
		if !maps.Equal(h.Old[0].Claims, want) {
			t.Errorf("%s: claims are %v", c.reason, h.Old[0].Claims)
		}
	}
}

func TestRead(t *testing.T) {
	s, parent := source(), parentOf(t, "ns", `{"template":2,"other":1}`)
	name, err := s.name(parent.UID(), s.Paths.Of(parent.Content()))
	if err != nil {
		t.Fatal(err)
	}
	const (
		latest = `"parentPatch":{"spec":{"template":2}}`
		older  = `"parentPatch":{"spec":{"template":1}}`
		pods   = `,"children":[{"apiGroup":"","kind":"Pod","names":["a"]}]`
		theirs = `"ownerReferences":[{"apiVersion":"demo/v1","kind":"Thing","name":"q","uid":"q-uid","controller":true}]`
	)
	for _, c := range []struct {
		reason string
		owned  []*object.Object
		named  *object.Object
		// latest is whether it is stored, old the names of the old ones.
		latest bool
		old    []string
		claims int
		fails  bool
	}{
		{reason: "nothing"},
		{reason: "the latest", owned: []*object.Object{stored(t, "ns", name, owned, latest+pods)}, latest: true, claims: 1},
		{reason: "the latest, edited", owned: []*object.Object{stored(t, "ns", name, owned, `"parentPatch":{"a":1}`+pods)}, latest: true, claims: 1},
		{reason: "the latest, of nobody", named: stored(t, "ns", name, `"labels":{}`, latest+pods), latest: true, claims: 1},
		{reason: "the latest, of somebody else", named: stored(t, "ns", name, theirs, latest), fails: true},
		{reason: "the latest by another name", owned: []*object.Object{stored(t, "ns", "other", owned, `"parentPatch":{"spec":{"template":2,"more":3}}`+pods)}, latest: true, claims: 1},
		{reason: "both names", owned: []*object.Object{stored(t, "ns", "other", owned, latest), stored(t, "ns", name, owned, latest)}, latest: true, old: []string{"other"}},
		{reason: "older ones", owned: []*object.Object{
			stored(t, "ns", "r1", owned+`,"creationTimestamp":"2026-01-01T00:00:00Z"`, older+pods),
			stored(t, "ns", "r2", owned+`,"creationTimestamp":"2026-01-02T00:00:00Z"`, older+pods),
		}, old: []string{"r2", "r1"}},
		{reason: "without a patch", owned: []*object.Object{stored(t, "ns", "r1", owned, `"parentPatch":"x"`+pods)}},
		{reason: "of somebody else", owned: []*object.Object{stored(t, "ns", "r1", theirs, older)}},
		{reason: "in another namespace", owned: []*object.Object{stored(t, "elsewhere", "r1", owned, older)}},
	} {
		h, err := s.Read(parent, c.owned, found(c.named))
		if (err != nil) != c.fails {
			t.Errorf("%s: %v", c.reason, err)
		}
		if err != nil {
			continue
		}
		var old []string
		claimed := len(h.Latest.Claims)
		for _, one := range h.Old {
			old = append(old, one.Name)
		}
		if (h.Latest.Stored != nil) != c.latest || !slices.Equal(old, c.old) || claimed != c.claims {
			t.Errorf("%s: latest %v with %d claims, old %q", c.reason, h.Latest.Stored, claimed, old)
		}
		total := Claims{}
		for _, one := range h.all() {
			for key := range one.Claims {
				if total.Has(key) {
					t.Errorf("%s: %s is claimed twice", c.reason, key)
				}
				total.add(key)
			}
		}
	}
}

func TestWrites(t *testing.T) {
	s, parent := source(), parentOf(t, "ns", `{"template":2}`)
	name, err := s.name(parent.UID(), s.Paths.Of(parent.Content()))
	if err != nil {
		t.Fatal(err)
	}
	const (
		labels = owned + `,"labels":{"controller-uid":"p-uid","metacontroller.k8s.io/apiGroup":"demo","metacontroller.k8s.io/resource":"things","mine":"x"}`
		latest = `"parentPatch":{"spec":{"template":2}}`
		older  = `"parentPatch":{"spec":{"template":1}}`
	)
	pods := func(names string) string { return `,"children":[{"apiGroup":"","kind":"Pod","names":[` + names + `]}]` }
	claims := func(names ...string) Claims {
		out := Claims{}
		for _, name := range names {
			out.add(pod("ns", name))
		}
		return out
	}
	for _, c := range []struct {
		reason string
		owned  []*object.Object
		named  *object.Object
		latest Claims
		old    []Claims
		want   []string
	}{
		{reason: "new", latest: claims("b", "a"), want: []string{"create " + name + " [a b]"}},
		{reason: "nothing to do", owned: []*object.Object{stored(t, "ns", name, labels, latest+pods(`"b","a"`))}, latest: claims("a", "b")},
		{reason: "a claim more", owned: []*object.Object{stored(t, "ns", name, labels, latest+pods(`"a"`))}, latest: claims("a", "b"), want: []string{"update " + name + " [a b]"}},
		{reason: "no claims", owned: []*object.Object{stored(t, "ns", name, labels, latest+pods(`"a"`))}, latest: claims(), want: []string{"update " + name + " []"}},
		{reason: "labels are gone", owned: []*object.Object{stored(t, "ns", name, owned, latest+pods(`"a"`))}, latest: claims("a"), want: []string{"update " + name + " [a]"}},
		{reason: "the patch was edited", owned: []*object.Object{stored(t, "ns", name, labels, older+pods(`"a"`))}, latest: claims("a"), want: []string{"update " + name + " [a]"}},
		{reason: "of nobody", named: stored(t, "ns", name, strings.TrimPrefix(labels, owned+","), latest+pods(`"a"`)), latest: claims("a"), want: []string{"update " + name + " [a]"}},
		{reason: "the old one first", owned: []*object.Object{stored(t, "ns", "r1", labels, older+pods(`"a","b"`))}, latest: claims("a"), old: []Claims{claims("b")},
			want: []string{"update r1 [b]", "create " + name + " [a]"}},
		{reason: "the last claim", owned: []*object.Object{stored(t, "ns", "r1", labels, older+pods(`"a"`))}, latest: claims("a"), old: []Claims{claims()},
			want: []string{"delete r1", "create " + name + " [a]"}},
		{reason: "an old one that is going away", owned: []*object.Object{stored(t, "ns", "r1", labels+`,"deletionTimestamp":"2026-01-01T00:00:00Z"`, older+pods(`"a"`)),
			stored(t, "ns", name, labels, latest+pods(`"a"`))}, latest: claims("a"), old: []Claims{claims()}},
		{reason: "claims of others", owned: []*object.Object{stored(t, "ns", "r1", labels, older+`,"children":[{"apiGroup":"x","kind":"Y","names":["y"]},{"apiGroup":"","kind":"Pod","names":["a"]}]`)},
			latest: claims("a"), old: []Claims{claims()}, want: []string{"update r1 [y]", "create " + name + " [a]"}},
		{reason: "what says nothing", owned: []*object.Object{stored(t, "ns", "r1", labels, `"parentPatch":7`), stored(t, "ns", name, labels, latest)},
			latest: claims(), want: []string{"delete r1"}},
	} {
		h, err := s.Read(parent, c.owned, found(c.named))
		if err != nil {
			t.Fatal(err)
		}
		writes, err := h.Writes(Decision{Latest: c.latest, Old: c.old})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, w := range writes {
			switch {
			case w.Delete != nil:
				got = append(got, "delete "+w.Delete.Name())
				continue
			case w.Update != nil:
				got = append(got, fmt.Sprintf("update %s %v", w.Update.Name(), allNames(w.Update)))
				if w.Update.ResourceVersion() != "1" || w.Update.UID() != "r" {
					t.Errorf("%s: it is updated whatever it is now", c.reason)
				}
			default:
				got = append(got, fmt.Sprintf("create %s %v", w.Create.Name(), allNames(w.Create)))
			}
			written := w.Update
			if written == nil {
				written = w.Create
			}
			if !object.ControlledBy(written, "p-uid") || written.Namespace() != "ns" {
				t.Errorf("%s: it is %s", c.reason, written.Body())
			}
			if written.Name() == name && (written.Labels()["controller-uid"] != "p-uid" || !object.Equal(written.Content()["parentPatch"], h.Latest.Patch)) {
				t.Errorf("%s: the latest is %s", c.reason, written.Body())
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, not %q", c.reason, got, c.want)
		}
	}
}

func allNames(o *object.Object) []string {
	all := []string{}
	for _, list := range readNames(o.Content()["children"]) {
		all = append(all, list...)
	}
	slices.Sort(all)
	return all
}

func TestLabels(t *testing.T) {
	s := source()
	s.Generated = false
	s.Parent.Group = strings.Repeat("a", 64)
	h := &History{source: s, parent: parentOf(t, "ns", `{"template":{"metadata":{"labels":{"a":"b","bad value":"x","n":7,"long":"`+strings.Repeat("x", 64)+`","metacontroller.k8s.io/resource":"mine"}}}}`)}
	if got := h.labels(); !maps.Equal(got, map[string]string{"a": "b", LabelResource: "things"}) {
		t.Errorf("labels are %v", got)
	}
	for _, spec := range []string{`null`, `[]`, `{"template":7}`, `{"template":{"metadata":{"labels":"x"}}}`} {
		h := &History{source: source(), parent: parentOf(t, "ns", spec)}
		h.source.Generated = false
		if got := h.labels(); len(got) != 2 {
			t.Errorf("with spec %s labels are %v", spec, got)
		}
	}
}

// FuzzRead gives a parent a revision that anybody may have written: it is read,
// and what is written then needs not be written again.
func FuzzRead(f *testing.F) {
	for _, seed := range [][3]string{
		{"old", `{"spec":{"template":1}}`, `[{"apiGroup":"","kind":"Pod","names":["a","b"]}]`},
		{"", `{"spec":{"template":2}}`, `[{"apiGroup":"x","kind":"Y","names":["a"]},{"apiGroup":"","kind":"Pod","names":["b","b"]}]`},
		{"", `null`, `[null,{"names":[1]}]`},
		{"old", `{"spec":null}`, `{}`},
		{"old", `7`, `"x"`},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, name, patch, children string) {
		s, parent := source(), parentOf(t, "ns", `{"template":2}`)
		latest, err := s.name(parent.UID(), s.Paths.Of(parent.Content()))
		if err != nil {
			t.Fatal(err)
		}
		if name == "" {
			name = latest
		}
		decodedPatch, errPatch := object.Decode([]byte(patch))
		decodedChildren, errChildren := object.Decode([]byte(children))
		if errPatch != nil || errChildren != nil {
			return
		}
		content := stored(t, "ns", "x", owned, `"a":1`).Content()
		content["metadata"].(map[string]any)["name"] = name
		content["parentPatch"], content["children"] = decodedPatch, decodedChildren
		o, err := object.FromContent(content)
		if err != nil {
			return
		}
		all := []*object.Object{o}
		for round := range 2 {
			h, err := s.Read(parent, all, found(nil))
			if err != nil {
				t.Fatal(err)
			}
			for i := range h.Old {
				if _, err := h.State(&h.Old[i]); err != nil {
					t.Fatal(err)
				}
			}
			d := Decide(h, []Child{{Key: key("a"), State: Same}, {Key: key("b"), State: Different}, {Key: key("c"), State: Different}}, make([]Answer, len(h.Old)))
			writes, err := h.Writes(d)
			if err != nil {
				t.Fatal(err)
			}
			if round == 1 && d.Moved == nil && len(writes) > 0 {
				t.Fatalf("written again: %v", writes)
			}
			for _, w := range writes {
				switch {
				case w.Delete != nil:
					all = slices.DeleteFunc(all, func(o *object.Object) bool { return o.Name() == w.Delete.Name() })
				case w.Update != nil:
					all = slices.DeleteFunc(all, func(o *object.Object) bool { return o.Name() == w.Update.Name() })
					all = append(all, w.Update)
				default:
					all = append(all, w.Create)
				}
			}
			// The child that moved is where it should be now: nothing is left to do.
			if round == 0 && d.Moved != nil {
				h, _ = s.Read(parent, all, found(nil))
				children := []Child{{Key: key("a"), State: Same}, {Key: key("b"), State: Different, Unready: ""}, {Key: key("c"), State: Different}}
				again, err := h.Writes(Decide(h, children, make([]Answer, len(h.Old))))
				if err != nil || len(again) > 0 {
					t.Fatalf("written again while it waits: %v, %v", again, err)
				}
				return
			}
		}
	})
}
