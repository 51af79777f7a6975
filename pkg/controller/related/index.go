package related

import (
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// Index leads from objects to the parents whose rules match them. A rule lies in
// the buckets of what an object must have for it to match: a name, a namespace,
// the value of a label, the value of a label of its namespace. An object is
// looked for in the few buckets that it can be in.
//
// It is not safe for use by several goroutines at once.
type Index struct {
	// rules by parent.
	rules map[object.Key]*Rules
	// uses is how many parents need the objects of a kind.
	uses map[object.Kind]int
	// kinds has the rules about objects of a kind, in whatever version.
	kinds map[schema.GroupKind]*buckets
	// selecting has the rules with a namespaceSelector, by a label of a namespace.
	selecting map[pair]holders
}

// pair is a label and its value; the zero value means any.
type pair struct{ label, value string }

// bucket is what an object must have; an empty part means that anything will do.
type bucket struct {
	namespace, name string
	// label of the object, and of its namespace.
	label, inNamespace pair
}

// holders are rules by parent.
type holders map[object.Key][]*Rule

type buckets struct {
	of map[bucket]holders
	// byNamespace is how many entries ask for a label of the namespace: without
	// any, nobody has to look at those.
	byNamespace int
}

// NewIndex makes an empty index.
func NewIndex() *Index {
	return &Index{
		rules:     map[object.Key]*Rules{},
		uses:      map[object.Kind]int{},
		kinds:     map[schema.GroupKind]*buckets{},
		selecting: map[pair]holders{},
	}
}

// Of are the rules of a parent, or nil.
func (x *Index) Of(parent object.Key) *Rules { return x.rules[parent] }

// Used says whether any parent needs the objects of a kind.
func (x *Index) Used(kind object.Kind) bool { return x.uses[kind] > 0 }

// Parents is how many parents have rules.
func (x *Index) Parents() int { return len(x.rules) }

// Users are the parents that need the objects of a kind. It looks at all of them.
func (x *Index) Users(kind object.Kind) []object.Key {
	var users []object.Key
	for parent, rules := range x.rules {
		for _, used := range rules.uses {
			if used == kind {
				users = append(users, parent)
				break
			}
		}
	}
	return users
}

// Set replaces the rules of a parent; nil removes them.
func (x *Index) Set(parent object.Key, rules *Rules) {
	before := x.rules[parent]
	if before == rules {
		return
	}
	if before != nil {
		x.remove(parent, before)
	}
	if rules != nil {
		x.add(parent, rules)
	}
}

func (x *Index) add(parent object.Key, rules *Rules) {
	x.rules[parent] = rules
	for _, kind := range rules.uses {
		x.uses[kind]++
	}
	for i := range rules.list {
		rule := &rules.list[i]
		if rule.hidden {
			continue
		}
		group := rule.Kind.GroupKind()
		in := x.kinds[group]
		if in == nil {
			in = &buckets{of: map[bucket]holders{}}
			x.kinds[group] = in
		}
		for _, at := range rule.buckets() {
			held := in.of[at]
			if held == nil {
				held = holders{}
				in.of[at] = held
			}
			if at.inNamespace != (pair{}) && held[parent] == nil {
				in.byNamespace++
			}
			held[parent] = append(held[parent], rule)
		}
		if rule.namespaces == nil {
			continue
		}
		for _, at := range pairs(rule.namespaces) {
			if x.selecting[at] == nil {
				x.selecting[at] = holders{}
			}
			x.selecting[at][parent] = append(x.selecting[at][parent], rule)
		}
	}
}

func (x *Index) remove(parent object.Key, rules *Rules) {
	delete(x.rules, parent)
	for _, kind := range rules.uses {
		if x.uses[kind]--; x.uses[kind] == 0 {
			delete(x.uses, kind)
		}
	}
	for i := range rules.list {
		rule := &rules.list[i]
		if rule.hidden {
			continue
		}
		group := rule.Kind.GroupKind()
		// All of a parent's rules go at once, so that what is looked for may have
		// gone with an earlier one.
		if in := x.kinds[group]; in != nil {
			in.remove(parent, rule)
			if len(in.of) == 0 {
				delete(x.kinds, group)
			}
		}
		if rule.namespaces == nil {
			continue
		}
		for _, at := range pairs(rule.namespaces) {
			delete(x.selecting[at], parent)
			if len(x.selecting[at]) == 0 {
				delete(x.selecting, at)
			}
		}
	}
}

func (b *buckets) remove(parent object.Key, rule *Rule) {
	for _, at := range rule.buckets() {
		if b.of[at][parent] == nil {
			continue
		}
		delete(b.of[at], parent)
		if len(b.of[at]) == 0 {
			delete(b.of, at)
		}
		if at.inNamespace != (pair{}) {
			b.byNamespace--
		}
	}
}

// buckets are where the rule lies: every object that it matches can be in one of
// them.
func (r *Rule) buckets() []bucket {
	if r.names != nil {
		found := make([]bucket, 0, len(r.names))
		for _, name := range r.names {
			found = append(found, bucket{namespace: r.namespace, name: name})
		}
		return found
	}
	inNamespaces := []pair{{}}
	if r.namespaces != nil && r.namespace == "" {
		inNamespaces = pairs(r.namespaces)
	}
	byLabel := pairs(r.labels)
	found := make([]bucket, 0, len(byLabel)*len(inNamespaces))
	for _, label := range byLabel {
		for _, inNamespace := range inNamespaces {
			found = append(found, bucket{namespace: r.namespace, label: label, inNamespace: inNamespace})
		}
	}
	return found
}

// pairs are label values one of which an object must have for the selector to
// match; the zero value stands for a selector that asks for none.
func pairs(selector labels.Selector) []pair {
	label, values := object.RequiredLabel(selector)
	if len(values) == 0 {
		return []pair{{}}
	}
	found := make([]pair, 0, len(values))
	for _, value := range values {
		found = append(found, pair{label, value})
	}
	return found
}

// Affected are the parents whose rules select an object of the kind in any of the
// states that it went through.
//
// Namespaces are those of now. That is enough: a parent that was synced under
// other labels of the namespace is affected by the change of the namespace itself
// (AffectedByNamespace).
func (x *Index) Affected(kind schema.GroupKind, states []State, namespaces Namespaces) []object.Key {
	in := x.kinds[kind]
	if in == nil {
		return nil
	}
	var found []object.Key
	seen := map[object.Key]bool{}
	for _, state := range states {
		try := func(at bucket) {
			for parent, rules := range in.of[at] {
				if seen[parent] {
					continue
				}
				for _, rule := range rules {
					if rule.matches(state, namespaces) {
						seen[parent] = true
						found = append(found, parent)
						break
					}
				}
			}
		}
		in.visit(state, namespaces, try)
	}
	return found
}

// visit calls try for every bucket that an object can be in.
func (b *buckets) visit(state State, namespaces Namespaces, try func(bucket)) {
	places := []string{""}
	if state.Namespace != "" {
		places = append(places, state.Namespace)
	}
	var inNamespace labels.Set
	if b.byNamespace > 0 && state.Namespace != "" {
		inNamespace, _ = namespaces(state.Namespace)
	}
	for _, place := range places {
		try(bucket{namespace: place, name: state.Name})
		each(state.Labels, func(label pair) {
			try(bucket{namespace: place, label: label})
			for key, value := range inNamespace {
				try(bucket{namespace: place, label: label, inNamespace: pair{key, value}})
			}
		})
	}
}

// each calls visit for the zero pair and for all labels.
func each(set labels.Set, visit func(pair)) {
	visit(pair{})
	for key, value := range set {
		visit(pair{key, value})
	}
}

// AffectedByNamespace are the parents with a rule for which a namespace is, by
// its namespaceSelector, another one than before: it matches some of the labels
// that the namespace had and not others, or the namespace is new or gone.
func (x *Index) AffectedByNamespace(name string, had []labels.Set, newOrGone bool) []object.Key {
	if !newOrGone && len(had) < 2 {
		return nil
	}
	var found []object.Key
	seen := map[object.Key]bool{}
	try := func(at pair) {
		for parent, rules := range x.selecting[at] {
			if seen[parent] {
				continue
			}
			for _, rule := range rules {
				if rule.affectedBy(name, had, newOrGone) {
					seen[parent] = true
					found = append(found, parent)
					break
				}
			}
		}
	}
	for _, set := range had {
		each(set, try)
	}
	return found
}

func (r *Rule) affectedBy(namespace string, had []labels.Set, newOrGone bool) bool {
	if r.namespace != "" && r.namespace != namespace {
		return false
	}
	matched := 0
	for _, set := range had {
		if r.namespaces.Matches(set) {
			matched++
		}
	}
	return matched > 0 && (newOrGone || matched < len(had))
}
