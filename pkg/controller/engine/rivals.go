package engine

import (
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Rival is another CompositeController that makes children of the same kind for
// parents of the same kind. What a parent owns does not tell which of the two
// made it: each would delete what the other makes. So one of them acts for a
// parent that both select: the older one.
type Rival struct {
	Name string
	// Kinds of children that both make, for messages.
	Kinds []string

	parents   []Parent
	finalizer string
}

// Claims says whether the rival acts for a parent: it selects one that lives, or
// has yet to finalize it.
func (r *Rival) Claims(parent *object.Object) bool {
	for i := range r.parents {
		rule := &r.parents[i]
		if rule.GroupKind() == parent.Key().GroupKind() {
			return !parent.Terminating() && rule.Selects(parent) || HasFinalizer(parent, r.finalizer)
		}
	}
	return false
}

// contender is a controller that may be a rival of others.
type contender struct {
	definition Definition
	// created is the creationTimestamp of its object. In the form that the API
	// server gives, the order of the texts is that of the times.
	created string
}

func contenderOf(declared *object.Object, definition Definition) contender {
	metadata, _ := declared.Content()["metadata"].(map[string]any)
	created, _ := metadata["creationTimestamp"].(string)
	return contender{definition: definition, created: created}
}

func (c contender) olderThan(other contender) bool {
	if c.created != other.created {
		return c.created < other.created
	}
	return c.definition.Name < other.definition.Name
}

// elders are the controllers to which mine gives way, by name. A
// DecoratorController marks what it makes, and has none.
func elders(mine contender, all map[string]contender) []Rival {
	if mine.definition.Kind != v1alpha1.CompositeControllerKind || mine.definition.Hooks.Sync == nil {
		return nil
	}
	var found []Rival
	for name, other := range all {
		if name == mine.definition.Name || other.definition.Hooks.Sync == nil || !other.olderThan(mine) {
			continue
		}
		kinds := sharedChildren(&mine.definition, &other.definition)
		if len(kinds) > 0 && shareParents(&mine.definition, &other.definition) {
			found = append(found, Rival{
				Name: name, Kinds: kinds, parents: other.definition.Parents, finalizer: other.definition.Finalizer,
			})
		}
	}
	slices.SortFunc(found, func(a, b Rival) int {
		if a.Name < b.Name {
			return -1
		}
		return 1
	})
	return found
}

func sharedChildren(a, b *Definition) []string {
	var kinds []string
	for _, one := range a.Children {
		for _, other := range b.Children {
			if one.GroupKind() == other.GroupKind() {
				kinds = append(kinds, one.GroupVersionKind.Kind)
			}
		}
	}
	return kinds
}

// shareParents says whether there can be a parent that both select.
func shareParents(a, b *Definition) bool {
	for _, one := range a.Parents {
		for _, other := range b.Parents {
			if one.GroupKind() == other.GroupKind() && !disjoint(one.Selector, other.Selector) {
				return true
			}
		}
	}
	return false
}

// disjoint says that two selectors ask for different values of one label. Others
// may be disjoint too; that it does not tell.
func disjoint(a, b labels.Selector) bool {
	values := func(s labels.Selector) map[string][]string {
		out := map[string][]string{}
		requirements, _ := s.Requirements()
		for _, requirement := range requirements {
			switch requirement.Operator() {
			case selection.Equals, selection.DoubleEquals, selection.In:
				out[requirement.Key()] = requirement.ValuesUnsorted()
			}
		}
		return out
	}
	others := values(b)
	for key, wanted := range values(a) {
		if other, both := others[key]; both && !slices.ContainsFunc(wanted, func(v string) bool { return slices.Contains(other, v) }) {
			return true
		}
	}
	return false
}
