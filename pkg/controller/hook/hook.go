// Package hook says what a hook is asked and what it answers, whatever the
// version of the protocol and the kind of the controller. Package wire turns a
// Request into JSON and JSON into a Response; package call carries them.
//
//	syncer --Request--> wire --JSON--> call ==HTTP==> hook
//	syncer <-Response-- wire <--JSON-- call <==HTTP==
//
// The package is pure.
package hook

import (
	"time"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Flavor is the kind of controller that asks; it decides the names of fields.
type Flavor int

const (
	// UnknownFlavor is no valid value.
	UnknownFlavor Flavor = iota
	// Composite speaks of a parent and its children.
	Composite
	// Decorator speaks of an object and its attachments.
	Decorator
)

// Call is which hook is asked.
type Call int

const (
	// UnknownCall is no valid value.
	UnknownCall Call = iota
	// Sync asks for the desired state.
	Sync
	// Finalize asks for it while the parent is going away, or is no longer
	// selected.
	Finalize
	// Customize asks which related objects the other two are to be shown.
	Customize
)

// String is the name of the hook in the controller's spec.
func (c Call) String() string {
	switch c {
	case Sync:
		return "sync"
	case Finalize:
		return "finalize"
	case Customize:
		return "customize"
	default:
		return "unknown"
	}
}

// Request is what a hook is asked.
type Request struct {
	Flavor Flavor
	Call   Call
	// Controller is the CompositeController or DecoratorController.
	Controller *object.Object
	// Parent is the object that is reconciled.
	Parent *object.Object
	// Children are the observed children or attachments that are the parent's
	// own. Every declared kind must have its group, even without objects. A
	// customize request has none.
	Children *object.Set
	// Related are the objects that the customize hook asked for. Every kind that
	// a rule names must have its group.
	Related *object.Set
}

// Finalizing says whether the hook is asked to finalize.
func (r *Request) Finalizing() bool { return r.Call == Finalize }

// Presence tells a field that is absent from one that is null and from one with
// a value.
type Presence int

const (
	// Absent means that the field is not in the answer.
	Absent Presence = iota
	// Null means that the field is there, and null.
	Null
	// Given means that the field has a value, which may be empty.
	Given
)

// Response is what a sync or finalize hook answered.
type Response struct {
	// Status is the desired status of the parent.
	Status Status
	// Children are the desired children or attachments, in the hook's order.
	Children []Child
	// ChildrenPresence is Absent only where an answer without children is
	// allowed; then children are to be left as they are. Null and Given with no
	// children mean that there shall be none.
	ChildrenPresence Presence
	// ResyncAfter is how long after this sync the next one is wanted; 0 means
	// that none is.
	ResyncAfter time.Duration
	// Finalized says that nothing is left to clean up. It counts only while
	// finalizing.
	Finalized bool
	// Labels and Annotations are changes of the decorated object: a nil value
	// deletes the key. Composite answers have none.
	Labels, Annotations map[string]*string
}

// Status is the desired status of a parent.
type Status struct {
	Presence Presence
	// JSON is the value if Presence is Given: an object.
	JSON []byte
}

// Child is one desired child or attachment.
type Child struct {
	// Object has apiVersion, kind and name; its namespace is empty where the
	// hook gave none.
	Object *object.Object
	// Path is where in the answer it stands, such as "children[2]".
	Path string
}

// CustomizeResponse is what a customize hook answered.
type CustomizeResponse struct {
	// Rules say which objects are related, in the hook's order. They are as the
	// hook wrote them; package related checks them.
	Rules []v1alpha1.RelatedResourceRule
}
