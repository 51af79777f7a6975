// Package adopt decides whose a child is: what a parent takes, keeps and lets go.
// The package is pure.
package adopt

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// Verdict says what an object is to a parent.
type Verdict int

const (
	// Unknown is no valid value.
	Unknown Verdict = iota
	// Own: the parent controls it, and the selector matches.
	Own
	// Adopt: nobody controls it, and the selector matches. The parent may take
	// it, after a live look that the parent still exists.
	Adopt
	// Release: the parent controls it, but the selector no longer matches. The
	// parent takes its owner reference off.
	Release
	// Leave: it is nobody's, and not for the parent to take; or the parent's,
	// which is going away itself.
	Leave
	// Foreign: somebody else controls it.
	Foreign
)

// String is for messages.
func (v Verdict) String() string {
	switch v {
	case Own:
		return "own"
	case Adopt:
		return "adopt"
	case Release:
		return "release"
	case Leave:
		return "leave"
	case Foreign:
		return "foreign"
	default:
		return "unknown"
	}
}

// Decide says what candidate, an object of a declared kind of children, is to
// parent. Ownership goes by UID: a parent of the same name that was there before
// is somebody else. A nil selector selects nothing to adopt, and lets nothing go:
// that is how a decorator, which adopts and releases nothing, asks.
func Decide(parent, candidate *object.Object, selector labels.Selector) Verdict {
	if ref := object.ControllerOf(candidate); ref != nil {
		switch {
		case ref.UID == "" || ref.UID != parent.UID():
			return Foreign
		case !reaches(parent, candidate):
			// An owner reference across namespaces is void, whatever it says.
			return Foreign
		case selector == nil || selector.Matches(labels.Set(candidate.Labels())):
			return Own
		case parent.Terminating() || candidate.Terminating():
			// A parent on its way out changes nobody's owner: what it made goes
			// with it. And nothing is written to what is going away itself.
			return Leave
		default:
			return Release
		}
	}
	switch {
	case selector == nil || selector.Empty() || !selector.Matches(labels.Set(candidate.Labels())):
		return Leave
	case parent.Terminating() || candidate.Terminating():
		return Leave
	case !reaches(parent, candidate) || candidate.UID() == parent.UID():
		return Leave
	default:
		return Adopt
	}
}

// reaches says whether parent can own candidate at all: a namespaced parent only
// owns what is in its own namespace.
func reaches(parent, candidate *object.Object) bool {
	return parent.Namespace() == "" || parent.Namespace() == candidate.Namespace()
}

// Adopted is candidate with parent as its controller. A reference to parent that
// is not the controller one becomes it. It has the UID and resourceVersion of
// candidate, so that a write of it fails if the object changed.
func Adopted(parent, candidate *object.Object) (*object.Object, error) {
	refs, metadata, content := ownerReferences(candidate)
	mine, err := toJSON(object.ReferenceOf(parent).ControllerReference())
	if err != nil {
		return nil, err
	}
	kept := withoutOwner(refs, parent.UID())
	metadata["ownerReferences"] = append(kept, mine)
	return object.FromContent(content)
}

// Released is candidate without the owner references to parent.
func Released(parent, candidate *object.Object) (*object.Object, error) {
	refs, metadata, content := ownerReferences(candidate)
	if kept := withoutOwner(refs, parent.UID()); len(kept) > 0 {
		metadata["ownerReferences"] = kept
	} else {
		delete(metadata, "ownerReferences")
	}
	return object.FromContent(content)
}

func ownerReferences(o *object.Object) (refs []any, metadata, content map[string]any) {
	content = o.Content()
	// An Object has a name, hence metadata.
	metadata = content["metadata"].(map[string]any)
	refs, _ = metadata["ownerReferences"].([]any)
	return refs, metadata, content
}

func withoutOwner(refs []any, uid types.UID) []any {
	return slices.DeleteFunc(slices.Clone(refs), func(ref any) bool {
		fields, _ := ref.(map[string]any)
		return fields["uid"] == string(uid)
	})
}

func toJSON(ref metav1.OwnerReference) (any, error) {
	return runtime.DefaultUnstructuredConverter.ToUnstructured(&ref)
}
