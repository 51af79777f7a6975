package related

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// NamespaceKind is the kind whose labels a namespaceSelector is about. Every API
// server serves it.
var NamespaceKind = object.Kind{
	GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Namespace"},
	Resource:         "namespaces",
}

// Rule selects objects of one kind.
type Rule struct {
	Kind object.Kind
	// namespace is the only one that is looked in; empty means all.
	namespace string
	// namespaces selects those that are looked in by their labels; nil means all.
	namespaces labels.Selector
	// names, sorted, of the objects; nil means all.
	names  []string
	labels labels.Selector
	// hidden says that nobody is shown what the rule selects.
	hidden bool
}

// confine narrows the rule to one namespace.
func (r *Rule) confine(namespace string) {
	r.hidden = !r.Kind.Namespaced || r.namespace != "" && r.namespace != namespace
	r.namespace = namespace
}

// Rules are all rules of one parent. They are immutable.
type Rules struct {
	list []Rule
	// uses are the kinds that must be watched for them, each version once.
	uses []object.Kind
}

func newRules(list []Rule) *Rules {
	rules := &Rules{list: list}
	use := func(kind object.Kind) {
		if !slices.Contains(rules.uses, kind) {
			rules.uses = append(rules.uses, kind)
		}
	}
	for i := range list {
		rule := &list[i]
		if rule.hidden {
			continue
		}
		use(rule.Kind)
		if rule.namespaces != nil {
			use(NamespaceKind)
		}
	}
	return rules
}

// Uses are the kinds of which Select reads objects.
func (r *Rules) Uses() []object.Kind {
	if r == nil {
		return nil
	}
	return r.uses
}

// Users are the places in the answer of the rules that need objects of a kind.
func (r *Rules) Users(kind object.Kind) []string {
	var users []string
	for i := range r.list {
		rule := &r.list[i]
		switch {
		case rule.hidden:
		case rule.Kind == kind:
			users = append(users, PathOf(i))
		case rule.namespaces != nil && kind == NamespaceKind:
			users = append(users, PathOf(i)+".namespaceSelector")
		}
	}
	return users
}

// Reader is the objects of one kind.
type Reader interface {
	// Get is one object, or nil.
	Get(namespace, name string) *object.Object
	// Named are the objects with this name in all namespaces.
	Named(name string) []*object.Object
	// Select are the objects in one namespace, or with an empty one in all of
	// them, that the selector matches.
	Select(namespace string, selector labels.Selector) []*object.Object
}

// Select finds the objects that the rules select. Each kind that a rule names has
// its group. Read is called for kinds in Uses.
func (r *Rules) Select(read func(object.Kind) Reader) *object.Set {
	groups := make([]object.Group, 0, len(r.list))
	for i := range r.list {
		rule := &r.list[i]
		group := object.Group{Kind: rule.Kind}
		if !rule.hidden {
			group.Objects = rule.find(read)
		}
		groups = append(groups, group)
	}
	return object.SetOf(groups...)
}

// find gets objects by name, or by indexes where the selectors allow that.
func (r *Rule) find(read func(object.Kind) Reader) []*object.Object {
	objects := read(r.Kind)
	var found []*object.Object
	switch {
	case r.names != nil:
		for _, name := range r.names {
			if r.namespace == "" && r.Kind.Namespaced {
				found = append(found, objects.Named(name)...)
			} else if one := objects.Get(r.namespace, name); one != nil {
				found = append(found, one)
			}
		}
		return found
	case r.namespaces == nil:
		return objects.Select(r.namespace, r.labels)
	case r.namespace != "":
		namespace := read(NamespaceKind).Get("", r.namespace)
		if namespace == nil || !r.namespaces.Matches(labels.Set(namespace.Labels())) {
			return nil
		}
		return objects.Select(r.namespace, r.labels)
	default:
		for _, namespace := range read(NamespaceKind).Select("", r.namespaces) {
			found = append(found, objects.Select(namespace.Name(), r.labels)...)
		}
		return found
	}
}

// State is what rules look at in an object: which one it is, and its labels at
// one time.
type State struct {
	Namespace, Name string
	Labels          labels.Set
}

// Namespaces is the labels of a namespace, and whether it exists.
type Namespaces func(name string) (labels.Set, bool)

// matches says whether the rule selects an object of its kind in this state.
func (r *Rule) matches(state State, namespaces Namespaces) bool {
	if r.hidden || r.namespace != "" && r.namespace != state.Namespace {
		return false
	}
	if r.names != nil {
		if _, found := slices.BinarySearch(r.names, state.Name); !found {
			return false
		}
	}
	if !r.labels.Matches(state.Labels) {
		return false
	}
	if r.namespaces == nil {
		return true
	}
	of, exists := namespaces(state.Namespace)
	return exists && r.namespaces.Matches(of)
}
