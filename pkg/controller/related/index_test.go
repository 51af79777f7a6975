package related

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// readers is a Reader that looks at every object.
type readers []*object.Object

func (r readers) Get(namespace, name string) *object.Object {
	for _, o := range r {
		if o.Namespace() == namespace && o.Name() == name {
			return o
		}
	}
	return nil
}

func (r readers) Named(name string) []*object.Object {
	return slices.DeleteFunc(slices.Clone(r), func(o *object.Object) bool { return o.Name() != name })
}

func (r readers) Select(namespace string, selector labels.Selector) []*object.Object {
	return slices.DeleteFunc(slices.Clone(r), func(o *object.Object) bool {
		return namespace != "" && o.Namespace() != namespace || !selector.Matches(labels.Set(o.Labels()))
	})
}

func mustBeEmpty(t interface{ Fatalf(string, ...any) }, x *Index) {
	if len(x.rules)+len(x.uses)+len(x.kinds)+len(x.selecting) > 0 {
		t.Fatalf("something is left in the index: %+v", x)
	}
}

// world draws parts of a small world, in which things meet often.
type world struct{ t *rapid.T }

func (w world) one(what string, of ...string) string { return rapid.SampledFrom(of).Draw(w.t, what) }

func (w world) labels() labels.Set {
	return rapid.MapOfN(rapid.SampledFrom([]string{"a", "b"}), rapid.SampledFrom([]string{"x", "y"}), 0, 2).Draw(w.t, "labels")
}

func (w world) selector(what string) *metav1.LabelSelector {
	in := func(operator metav1.LabelSelectorOperator, values ...string) *metav1.LabelSelector {
		return &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: operator, Values: values}}}
	}
	return rapid.SampledFrom([]*metav1.LabelSelector{
		nil, {},
		{MatchLabels: map[string]string{"a": "x"}},
		{MatchLabels: map[string]string{"a": "x", "b": "y"}},
		in(metav1.LabelSelectorOpIn, "x", "y"), in(metav1.LabelSelectorOpNotIn, "x"),
		in(metav1.LabelSelectorOpExists), in(metav1.LabelSelectorOpDoesNotExist),
	}).Draw(w.t, what)
}

// rule draws a rule that Check accepts of a v2 hook.
func (w world) rule() v1alpha1.RelatedResourceRule {
	var rule v1alpha1.RelatedResourceRule
	rule.APIVersion, rule.Resource = "v1", w.one("kind", "configmaps", "configmaps", "nodes")
	namespaced := rule.Resource == "configmaps"
	if rapid.Bool().Draw(w.t, "by name") {
		rule.Names = rapid.SliceOfN(rapid.SampledFrom([]string{"o1", "o2", "o3"}), 1, 3).Draw(w.t, "names")
	} else {
		rule.LabelSelector = w.selector("label selector")
		if namespaced {
			rule.NamespaceSelector = w.selector("namespace selector")
		}
	}
	if namespaced && rule.NamespaceSelector == nil {
		rule.Namespace = w.one("namespace", "", "n1", "n2")
	}
	return rule
}

// selects is what a rule means, told once more in the simplest way.
func selects(t *rapid.T, rule *v1alpha1.RelatedResourceRule, viewer Viewer, o State, namespaces map[string]labels.Set) bool {
	matches := func(declared *metav1.LabelSelector, set labels.Set) bool {
		if declared == nil {
			return true
		}
		selector, err := metav1.LabelSelectorAsSelector(declared)
		if err != nil {
			t.Fatal(err)
		}
		return selector.Matches(set)
	}
	if viewer.Confined && viewer.Namespace != "" && o.Namespace != viewer.Namespace ||
		rule.Namespace != "" && rule.Namespace != o.Namespace ||
		len(rule.Names) > 0 && !slices.Contains(rule.Names, o.Name) ||
		!matches(rule.LabelSelector, o.Labels) {
		return false
	}
	// An empty selector is for all namespaces, those included that nobody has
	// heard of yet.
	if rule.NamespaceSelector == nil || len(rule.NamespaceSelector.MatchLabels)+len(rule.NamespaceSelector.MatchExpressions) == 0 {
		return true
	}
	of, exists := namespaces[o.Namespace]
	return exists && matches(rule.NamespaceSelector, of)
}

type drawnParent struct {
	key    object.Key
	viewer Viewer
	raw    []v1alpha1.RelatedResourceRule
}

// drawn is a world with parents in its index.
func drawn(t *rapid.T) (world, *Index, map[object.Key]drawnParent) {
	w, index, parents := world{t}, NewIndex(), map[object.Key]drawnParent{}
	for range rapid.IntRange(0, 12).Draw(t, "steps") {
		p := drawnParent{key: object.Key{Kind: "Thing", Namespace: w.one("of", "", "n1", "n2"), Name: w.one("parent", "p", "q", "r")}}
		if rapid.IntRange(0, 3).Draw(t, "forget") == 0 {
			index.Set(p.key, nil)
			delete(parents, p.key)
			continue
		}
		p.viewer = Viewer{Namespace: p.key.Namespace, Version: v1alpha1.HookVersionV2, Confined: rapid.Bool().Draw(t, "confined")}
		for range rapid.IntRange(0, 3).Draw(t, "rules") {
			p.raw = append(p.raw, w.rule())
		}
		rules, err := Check(p.raw, kindsOf(p.raw), p.viewer)
		if err != nil {
			t.Fatal(err)
		}
		index.Set(p.key, rules)
		parents[p.key] = p
	}
	return w, index, parents
}

func (w world) namespaces() map[string]labels.Set {
	found := map[string]labels.Set{}
	for _, name := range []string{"n1", "n2", "n3"} {
		if rapid.IntRange(0, 3).Draw(w.t, "exists") > 0 {
			found[name] = w.labels()
		}
	}
	return found
}

// The index finds the parents that a look at every rule of every parent finds.
func TestIndexAgreesWithAScan(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w, index, parents := drawn(rt)
		namespaces := w.namespaces()
		kind := rapid.SampledFrom([]object.Kind{configMap, node}).Draw(rt, "changed kind")
		name, namespace := w.one("name", "o1", "o2", "o9"), ""
		if kind.Namespaced {
			namespace = w.one("in", "n1", "n2", "n3")
		}
		var states []State
		for range rapid.IntRange(1, 3).Draw(rt, "states") {
			states = append(states, State{Namespace: namespace, Name: name, Labels: w.labels()})
		}
		got := index.Affected(kind.GroupKind(), states, func(name string) (labels.Set, bool) { set, ok := namespaces[name]; return set, ok })
		compare(rt, got, parents, func(p drawnParent) bool {
			for i := range p.raw {
				for _, state := range states {
					if kindsOf(p.raw)[i] == kind && selects(rt, &p.raw[i], p.viewer, state, namespaces) {
						return true
					}
				}
			}
			return false
		})
		for key := range parents {
			index.Set(key, nil)
		}
		mustBeEmpty(rt, index)
	})
}

// A namespace that is relabelled, made or removed reaches every parent that is
// shown other objects by it.
func TestNamespacesAgreeWithAScan(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w, index, parents := drawn(rt)
		before, after := w.namespaces(), w.namespaces()
		const name = "n1"
		was, existed := before[name]
		is, exists := after[name]
		var had []labels.Set
		if existed {
			had = append(had, was)
		}
		if exists && !(existed && labels.Equals(was, is)) {
			had = append(had, is)
		}
		got := index.AffectedByNamespace(name, had, existed != exists)
		object := State{Namespace: name, Name: "o"}
		compare(rt, got, parents, func(p drawnParent) bool {
			for i := range p.raw {
				rule := p.raw[i]
				if rule.NamespaceSelector == nil {
					continue
				}
				// The labels of the object do not matter: it is any one.
				rule.LabelSelector = nil
				if selects(rt, &rule, p.viewer, object, before) != selects(rt, &rule, p.viewer, object, after) {
					return true
				}
			}
			return false
		})
	})
}

func compare(t *rapid.T, got []object.Key, parents map[object.Key]drawnParent, wanted func(drawnParent) bool) {
	seen := map[object.Key]bool{}
	for _, key := range got {
		if seen[key] {
			t.Fatalf("%s is found twice", key)
		}
		seen[key] = true
	}
	for key, p := range parents {
		if want := wanted(p); want != seen[key] {
			t.Fatalf("%s with rules %+v of %+v: found is %v", key, p.raw, p.viewer, seen[key])
		}
		delete(seen, key)
	}
	if len(seen) > 0 {
		t.Fatalf("parents without rules are found: %v", seen)
	}
}

// Select finds what the rules mean, and every kind has its group.
func TestSelectAgreesWithAScan(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := world{rt}
		namespaces := w.namespaces()
		copies := map[object.Kind]readers{}
		add := func(kind object.Kind, namespace, name string, set labels.Set) {
			content := map[string]any{"apiVersion": kind.APIVersion(), "kind": kind.GroupVersionKind.Kind}
			own := map[string]any{}
			for key, value := range set {
				own[key] = value
			}
			metadata := map[string]any{"name": name, "labels": own}
			if namespace != "" {
				metadata["namespace"] = namespace
			}
			content["metadata"] = metadata
			o, err := object.FromContent(content)
			if err != nil {
				rt.Fatal(err)
			}
			copies[kind] = append(copies[kind], o)
		}
		for name, set := range namespaces {
			add(NamespaceKind, "", name, set)
		}
		for _, name := range []string{"o1", "o2", "o3"} {
			for _, namespace := range []string{"n1", "n2", "n3"} {
				if rapid.Bool().Draw(rt, "there") {
					add(configMap, namespace, name, w.labels())
				}
			}
			add(node, "", name, w.labels())
		}
		viewer := Viewer{Namespace: w.one("of", "", "n1"), Version: v1alpha1.HookVersionV2, Confined: rapid.Bool().Draw(rt, "confined")}
		var raw []v1alpha1.RelatedResourceRule
		for range rapid.IntRange(0, 3).Draw(rt, "rules") {
			raw = append(raw, w.rule())
		}
		rules, err := Check(raw, kindsOf(raw), viewer)
		if err != nil {
			rt.Fatal(err)
		}
		set := rules.Select(func(kind object.Kind) Reader {
			if !slices.Contains(rules.Uses(), kind) {
				rt.Fatalf("%v is read and not used", kind)
			}
			return copies[kind]
		})
		for _, kind := range []object.Kind{configMap, node} {
			if _, ok := set.Group(kind.GroupKind()); ok != slices.Contains(kindsOf(raw), kind) {
				rt.Fatalf("group of %v: %v", kind, ok)
			}
			for _, o := range copies[kind] {
				want := false
				for i := range raw {
					want = want || kindsOf(raw)[i] == kind && selects(rt, &raw[i], viewer, State{Namespace: o.Namespace(), Name: o.Name(), Labels: labels.Set(o.Labels())}, namespaces)
				}
				if got := set.Get(o.Key()) != nil; got != want {
					rt.Fatalf("%s with %v: found is %v by %+v", o, o.Labels(), got, raw)
				}
			}
		}
	})
}

// Two versions of a kind are two groups, each with objects of its version.
func TestTwoVersionsOfAKind(t *testing.T) {
	later := configMap
	later.Version = "v2"
	made := func(kind object.Kind) readers {
		o, err := object.FromJSON(fmt.Appendf(nil, `{"apiVersion":%q,"kind":"ConfigMap","metadata":{"name":"a","namespace":"n"}}`, kind.APIVersion()))
		if err != nil {
			t.Fatal(err)
		}
		return readers{o}
	}
	answer := decoded(t, `[{"apiVersion":"v1","resource":"configmaps"},{"apiVersion":"v2","resource":"configmaps","names":["a"]},{"apiVersion":"v1","resource":"configmaps","names":["a"]}]`)
	rules, err := Check(answer, []object.Kind{configMap, later, configMap}, Viewer{})
	if err != nil {
		t.Fatal(err)
	}
	groups := rules.Select(func(kind object.Kind) Reader { return made(kind) }).Groups()
	if len(groups) != 2 || len(groups[0].Objects) != 1 || groups[0].Objects[0].APIVersion() != "v1" || len(groups[1].Objects) != 1 || groups[1].Objects[0].APIVersion() != "v2" {
		t.Errorf("groups are %v", groups)
	}
	index := NewIndex()
	parent := object.Key{Kind: "Thing", Name: "p"}
	index.Set(parent, rules)
	if !index.Used(configMap) || !index.Used(later) || len(index.Users(later)) != 1 {
		t.Error("a version is not used")
	}
	if got := index.Affected(configMap.GroupKind(), []State{{Namespace: "n", Name: "a"}}, nil); len(got) != 1 {
		t.Errorf("affected are %v", got)
	}
}

// An event costs the same however many parents it does not concern.
func BenchmarkAffected(b *testing.B) {
	for _, parents := range []int{300, 30000} {
		b.Run(fmt.Sprint(parents), func(b *testing.B) {
			index := NewIndex()
			for i := range parents {
				of := fmt.Sprintf("n%d", i)
				answer := decoded(b, fmt.Sprintf(`[{"apiVersion":"v1","resource":"configmaps","names":["o"]},{"apiVersion":"v1","resource":"configmaps","labelSelector":{"matchLabels":{"of":%q}}}]`, of))
				rules, err := Check(answer, kindsOf(answer), Viewer{Namespace: of, Version: v1alpha1.HookVersionV1, Confined: i%2 == 0})
				if err != nil {
					b.Fatal(err)
				}
				// Unconfined rules about one name concern whoever has it.
				if i%2 > 0 {
					rules = newRules(rules.list[1:])
				}
				index.Set(object.Key{Kind: "Thing", Namespace: of, Name: "p"}, rules)
			}
			states := []State{{Namespace: "n8", Name: "o", Labels: labels.Set{"of": "n7"}}}
			b.ReportAllocs()
			for b.Loop() {
				if got := index.Affected(configMap.GroupKind(), states, nil); len(got) != 2 {
					b.Fatalf("affected are %v", got)
				}
			}
		})
	}
}
