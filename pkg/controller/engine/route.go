package engine

import (
	"maps"
	"reflect"
	"slices"

	"k8s.io/apimachinery/pkg/types"

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

// ownersOf are the uids of the controllers of a child before and after a change,
// if they are of a parent kind, and whether nobody controls it now. A state that
// is of another controller's child has none, and neither has an event without a
// change.
func ownersOf(definition *Definition, before, after *object.Object) (owners []types.UID, orphaned bool) {
	if before != nil && after != nil && before.ResourceVersion() == after.ResourceVersion() {
		return nil, false
	}
	for _, state := range []*object.Object{before, after} {
		if state == nil || !definition.Marked(state) {
			continue
		}
		owner := object.ControllerOf(state)
		if owner == nil {
			continue
		}
		for i := range definition.Parents {
			if object.Refers(owner, definition.Parents[i].GroupKind()) && !slices.Contains(owners, owner.UID) {
				owners = append(owners, owner.UID)
			}
		}
	}
	return owners, after != nil && object.ControllerOf(after) == nil && definition.Marked(after)
}
