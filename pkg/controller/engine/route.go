package engine

import (
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// concernsParent says whether a change of an object of a parent kind is a reason
// to sync it. The object is one that the controller manages, or has its
// finalizer on.
func concernsParent(parent *Parent, finalizer string, before, after *object.Object) bool {
	switch {
	case before == nil && after == nil:
		return false
	case before == nil:
		return managed(parent, finalizer, after)
	case after == nil:
		return managed(parent, finalizer, before)
	case before.ResourceVersion() == after.ResourceVersion():
		return false
	case !managed(parent, finalizer, before) && !managed(parent, finalizer, after):
		return false
	case before.UID() != after.UID():
		return true
	}
	return !parent.ignoresStatus(after) || !onlyStatusChanged(before, after)
}

func managed(parent *Parent, finalizer string, o *object.Object) bool {
	return parent.Selects(o) || HasFinalizer(o, finalizer)
}

// onlyStatusChanged compares what a sync may depend on. Metadata is compared
// field by field; the rest is, in kinds that count a generation, told by it.
func onlyStatusChanged(before, after *object.Object) bool {
	if before.Terminating() != after.Terminating() ||
		!maps.Equal(before.Labels(), after.Labels()) ||
		!slices.Equal(before.Finalizers(), after.Finalizers()) ||
		!maps.Equal(before.Annotations(), after.Annotations()) {
		return false
	}
	if before.Generation() != 0 || after.Generation() != 0 {
		return before.Generation() == after.Generation()
	}
	return reflect.DeepEqual(withoutStatus(before), withoutStatus(after))
}

func withoutStatus(o *object.Object) map[string]any {
	content := o.Content()
	delete(content, "status")
	delete(content, "metadata")
	return content
}

// ownersOf are the keys of a child's controllers before and after a change, if
// they are of a parent kind; and whether nobody controls it now. A state that is of another
// controller's child has none, and neither has an event without a change.
func ownersOf(definition *Definition, before, after *object.Object) (owners []object.Key, orphaned bool) {
	if before != nil && after != nil && before.ResourceVersion() == after.ResourceVersion() {
		return nil, false
	}
	for _, state := range []*object.Object{before, after} {
		if state == nil || !definition.Marked(state) {
			continue
		}
		ref := object.ControllerOf(state)
		if ref == nil {
			continue
		}
		for i := range definition.Parents {
			kind := definition.Parents[i].Kind
			if !object.Refers(ref, kind.GroupKind()) {
				continue
			}
			owner := object.OwnerKey(ref, kind, state.Namespace())
			if !slices.Contains(owners, owner) {
				owners = append(owners, owner)
			}
		}
	}
	return owners, after != nil && object.ControllerOf(after) == nil && definition.Marked(after)
}

// router finds the parents that an event concerns.
type router struct {
	definition *Definition
	caches     Caches
	// selector is Controller.Selector, or nil.
	selector func(parent *object.Object) labels.Selector
	known    *selectors
	// add puts parents into the queue; those that can wait behind others.
	add func(later bool, keys ...object.Key)
}

// parent handles an event of an object of a parent kind.
func (r *router) parent(rule *Parent, before, after *object.Object, initial bool) {
	state := after
	if state == nil {
		state = before
	}
	if state == nil {
		return
	}
	if r.selector != nil {
		switch {
		case after == nil || !rule.Selects(after):
			r.known.set(state.Key(), nil)
		case before == nil || before.UID() != after.UID() || !onlyStatusChanged(before, after):
			r.known.set(state.Key(), r.selector(after))
		}
	}
	if concernsParent(rule, r.definition.Finalizer, before, after) {
		r.add(initial, state.Key())
	}
}

// child handles an event of an object of a child kind.
func (r *router) child(before, after *object.Object, initial bool) {
	if initial {
		// Every parent is synced at the start anyway.
		return
	}
	if r.owned(before, after) && after != nil {
		r.add(false, r.known.matching(after)...)
	}
}

// owned adds the parents that control an object, or did before a change. It
// reports whether nobody controls it now.
func (r *router) owned(before, after *object.Object) (orphaned bool) {
	owners, orphaned := ownersOf(r.definition, before, after)
	for _, owner := range owners {
		cache := r.caches.Parents[owner.GroupKind()]
		if cache == nil {
			continue
		}
		// Whatever its UID: what a parent of the same name left behind is in the way
		// of the one that is there now.
		parent := cache.Get(owner.Namespace, owner.Name)
		rule := r.definition.Parent(owner.GroupKind())
		if parent != nil && managed(rule, r.definition.Finalizer, parent) {
			r.add(false, parent.Key())
		}
	}
	return orphaned
}
