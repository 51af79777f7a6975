package engine

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

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
	metadata, _ := declared.Field("metadata").(map[string]any)
	created, _ := metadata["creationTimestamp"].(string)
	return contender{definition: definition, created: created}
}

func (c contender) olderThan(other contender) bool {
	if c.created != other.created {
		return c.created < other.created
	}
	return c.definition.Name < other.definition.Name
}

// elders are the controllers to which mine gives way, by name.
func elders(mine contender, all map[string]contender) []Rival {
	var found []Rival
	for _, other := range all {
		if rival, is := elder(mine, other); is {
			found = append(found, rival)
		}
	}
	slices.SortFunc(found, func(a, b Rival) int { return strings.Compare(a.Name, b.Name) })
	return found
}

// elder says whether mine gives way to other. A DecoratorController marks what it
// makes, and gives way to nobody.
func elder(mine, other contender) (Rival, bool) {
	if mine.definition.Kind != v1alpha1.CompositeControllerKind || mine.definition.Hooks.Sync == nil ||
		other.definition.Name == mine.definition.Name || other.definition.Hooks.Sync == nil || !other.olderThan(mine) {
		return Rival{}, false
	}
	kinds := sharedChildren(&mine.definition, &other.definition)
	if len(kinds) == 0 || !shareParents(&mine.definition, &other.definition) {
		return Rival{}, false
	}
	return Rival{
		Name: other.definition.Name, Kinds: kinds, parents: other.definition.Parents, finalizer: other.definition.Finalizer,
	}, true
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

// survey finds out which controllers there will be, so that none of them acts
// for a moment where it gives way to another that starts later.
func (h *Host) survey(ctx context.Context) {
	for _, declared := range h.Declared.List() {
		if ctx.Err() != nil {
			return
		}
		if built, err := h.build(ctx, declared); err == nil {
			h.mu.Lock()
			h.contenders[declared.Name()] = contenderOf(declared, built.Definition)
			h.mu.Unlock()
		}
	}
}

// recount looks again at controllers whose objects went between the survey and the
// first event that is seen: no event tells of these, and others would leave
// parents to them for ever.
func (h *Host) recount(queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	h.mu.Lock()
	names := slices.Collect(maps.Keys(h.contenders))
	h.mu.Unlock()
	for _, name := range names {
		if h.Declared.Get("", name) == nil {
			queue.Add(request(name))
		}
	}
}

// contend notes what a controller is, nil that there is none of the name, and
// tells the others whose turn it is now.
func (h *Host) contend(name string, now *contender) {
	h.mu.Lock()
	if now == nil {
		delete(h.contenders, name)
		delete(h.elders, name)
	} else {
		h.contenders[name] = *now
	}
	var changed []*running
	for other, one := range h.contenders {
		before := h.elders[other]
		if other != name && !slices.ContainsFunc(before, func(elder Rival) bool { return elder.Name == name }) {
			// Most have nothing to do with the one that changed.
			if now == nil {
				continue
			}
			if _, is := elder(one, *now); !is {
				continue
			}
		}
		after := elders(one, h.contenders)
		if len(before) == 0 && len(after) == 0 || reflect.DeepEqual(before, after) {
			continue
		}
		h.elders[other] = after
		if current := h.running[other]; current != nil && other != name {
			current.syncer.GiveWay(after)
			changed = append(changed, current)
		}
	}
	h.mu.Unlock()
	for _, one := range changed {
		one.resync()
	}
}

func (h *Host) eldersOf(name string) []Rival {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.elders[name]
}
