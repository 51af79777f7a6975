// Package plan decides what to write so that the children of a parent become
// what its hook wants:
//
//	observed children ─┐
//	desired children  ─┼─> Make ─> Plan{Steps, Settled} ─> package apply
//	strategies, owner ─┘
//
// A plan for children that are as they should be has no steps. The package is
// pure: what it needs to know of the cluster is given to it.
package plan

import (
	"crypto/sha256"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Input is all that a plan is made of.
type Input struct {
	// Parent owns the children: it is their controller, and a child without a
	// namespace gets the parent's.
	Parent *object.Object
	// Kinds are the declared kinds of children with their strategies.
	Kinds []Kind
	// Observed are the parent's own children, after adoption and release.
	Observed *object.Set
	// Desired are the children that the hook wants, in its order.
	Desired []hook.Child
	// Selector must match the labels of every desired child; nil matches all.
	Selector labels.Selector
	// Labels and Annotations are put on every desired child: the generated
	// selector's label, the mark of a decorator.
	Labels, Annotations map[string]string
	// Lookup finds an object that exists and is not among Observed, by a read of
	// a local cache: a foreign one of the same name. It returns nil if there is
	// none. A nil Lookup finds nothing.
	Lookup func(key object.Key) *object.Object
	// ServerSide says that children are written by server-side apply. Observed
	// objects must then have what was applied to them (object.Reader).
	ServerSide bool
	// Settled is what is remembered of the parent's last plan, and of what was
	// written then (apply.Result.Settled): pairs that need not be compared again.
	// It may be nil.
	Settled Settled
	// Hold says which desired children are left as they are, whatever that is, for
	// it is not their turn. They are neither made nor changed nor deleted. A nil
	// Hold holds none: a rolling strategy acts as its plain one.
	Hold func(key object.Key) bool
}

// Kind is a declared kind of children.
type Kind struct {
	object.Kind
	// Method is how an existing child is changed; empty means OnDelete.
	Method v1alpha1.ChildUpdateMethod
}

// Action is what a step does.
type Action int

const (
	// UnknownAction is no valid value.
	UnknownAction Action = iota
	// Create writes an object that does not exist.
	Create
	// Update replaces an object that is as it was observed.
	Update
	// Delete deletes an object with background propagation, if its UID is still
	// the one that was observed.
	Delete
	// HandOver makes what was written by updates, and remembered in the
	// last-applied annotation, the applying field manager's, and takes the
	// annotation off an object that is as it was observed.
	HandOver
	// Skip writes nothing; it tells why a desired child is not made so.
	Skip
)

// String is for messages.
func (a Action) String() string {
	switch a {
	case Create:
		return "create"
	case Update:
		return "update"
	case Delete:
		return "delete"
	case HandOver:
		return "hand over the fields of"
	case Skip:
		return "skip"
	default:
		return "unknown"
	}
}

// Reason is why a step is there.
type Reason int

const (
	// UnknownReason is no valid value.
	UnknownReason Reason = iota
	// Missing: a desired child does not exist. Create.
	Missing
	// Differs: a child is not as desired. Update, or Delete to recreate it.
	Differs
	// Memory: a child is as desired, and only what remembers what was applied, an
	// annotation or the ownership of fields, is out of date. Update, HandOver.
	Memory
	// Undesired: a child exists that the hook does not want. Delete.
	Undesired
	// Foreign: an object of that name exists and is not the parent's. Skip.
	Foreign
	// Undeclared: the kind is not among the declared ones. Skip.
	Undeclared
	// OutsideNamespace: a namespaced parent asked for a child in another
	// namespace, or for a cluster-scoped one. Skip.
	OutsideNamespace
	// NoNamespace: a cluster-scoped parent asked for a namespaced child without
	// saying where. Skip.
	NoNamespace
	// Duplicate: the answer has the same child twice; the first one counts. Skip.
	Duplicate
)

// String is the word for an event or a log line.
func (r Reason) String() string {
	switch r {
	case Missing:
		return "Missing"
	case Differs:
		return "Differs"
	case Memory:
		return "Memory"
	case Undesired:
		return "Undesired"
	case Foreign:
		return "Foreign"
	case Undeclared:
		return "Undeclared"
	case OutsideNamespace:
		return "OutsideNamespace"
	case NoNamespace:
		return "NoNamespace"
	case Duplicate:
		return "Duplicate"
	default:
		return "Unknown"
	}
}

// Step is one thing to do.
type Step struct {
	Action Action
	Reason Reason
	// Kind is the declared kind: the version in which the object is written. The
	// kind of an Undeclared step has no Resource.
	Kind object.Kind
	Key  object.Key
	// Object is what to write: for Create and Update the whole object, for
	// Update with the UID and resourceVersion that were observed. It is nil for
	// Delete, HandOver and Skip.
	Object *object.Object
	// Apply says that Object is to be written by server-side apply. One that is to
	// be created has a resourceVersion that no object has: the API server creates
	// it, and refuses it with a conflict if there is one of that name already.
	Apply bool
	// Unless is, for some Deletes of Recreate, what would be written in place:
	// nothing is deleted if a dry run shows that it would change nothing, for
	// then to make the child again would not either.
	Unless *object.Object
	// Observed is the object that Update, Delete and HandOver change, and that a Foreign
	// step met; its UID is the precondition of Delete.
	Observed *object.Object
	// Message tells a user what is wrong, where, and what to do, for Skip.
	Message string
	// Desired is Mark.Desired of the child, for Create and Update, and for Delete
	// with Unless.
	Desired [32]byte
}

// Plan is what to do, in order: deletes before creates and updates, kinds by
// group, version and kind, and within a kind the hook's order. Skip steps come
// last.
type Plan struct {
	Steps []Step
	// Settled are the pairs that were found to be equal. It may be given to the
	// next plan of the same parent.
	Settled Settled
	// Waiting says that there are children for whose change it is not the turn yet.
	Waiting bool
}

// Writes says whether the plan writes anything.
func (p Plan) Writes() bool {
	for _, s := range p.Steps {
		if s.Action != Skip {
			return true
		}
	}
	return false
}

// Problems are the Skip steps: what to tell on the parent.
func (p Plan) Problems() []Step {
	var out []Step
	for _, s := range p.Steps {
		if s.Action == Skip {
			out = append(out, s)
		}
	}
	return out
}

// Settled remembers which child was found to be as desired, so that neither
// side is decoded again until one of them changes. It is sorted by key: there is
// one for each parent, and a map would take three times the memory.
type Settled []SettledChild

// SettledChild is one of Settled.
type SettledChild struct {
	object.Key
	Mark
}

// Mark is the mark of a child, and whether there is one.
func (s Settled) Mark(key object.Key) (Mark, bool) {
	i, found := slices.BinarySearchFunc(s, key, func(one SettledChild, key object.Key) int { return one.Key.Compare(key) })
	if !found {
		return Mark{}, false
	}
	return s[i].Mark, true
}

// Sort brings it into its order, after children were appended. A child must not be
// there twice.
func (s Settled) Sort() {
	slices.SortFunc(s, func(a, b SettledChild) int { return a.Key.Compare(b.Key) })
}

// Mark is a pair of observed and desired state of which nothing is to be written:
// they were found to be equal, or the API server made that of it.
type Mark struct {
	UID             types.UID
	ResourceVersion string
	// Desired is the SHA-256 of the desired state as the hook wrote it, with what
	// was put on it.
	Desired [sha256.Size]byte
	// Observed is the Digest of the object, and APIVersion the version in which it
	// was read: what is done to status, or to metadata that only the API server
	// writes, is no reason to compare again.
	Observed   [sha256.Size]byte
	APIVersion string
}

// MarkOf is the mark of an object that was observed, or written, for a desired
// state with this hash.
func MarkOf(o *object.Object, desired [sha256.Size]byte) Mark {
	return Mark{
		UID: o.UID(), ResourceVersion: o.ResourceVersion(), Desired: desired,
		Observed: o.Digest(), APIVersion: o.APIVersion(),
	}
}

// holds says whether the mark still is about this pair. It is brought up to date
// if so.
func (m *Mark) holds(observed *object.Object, desired [sha256.Size]byte) bool {
	if m.UID != observed.UID() || m.Desired != desired || observed.ResourceVersion() == "" {
		return false
	}
	same := m.ResourceVersion == observed.ResourceVersion()
	if same && m.APIVersion == observed.APIVersion() {
		return true
	}
	now := MarkOf(observed, desired)
	if !same && (m.APIVersion != now.APIVersion || m.Observed != now.Observed) {
		return false
	}
	*m = now
	return true
}
