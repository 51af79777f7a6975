package engine

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/plan"
	"github.com/metacontroller-solo/solo/pkg/controller/revision"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Definition is what a controller is: plain data, made of a CompositeController
// or a DecoratorController and of what the API server serves. Two equal ones
// need not replace each other.
type Definition struct {
	// Kind of the object that declares the controller.
	Kind string
	// Name of that object.
	Name string
	// Parents are the kinds that the controller reconciles.
	Parents []Parent
	// Children are the kinds that it may create.
	Children []Child
	// Missing says which declared kinds are left out because the API server does
	// not serve them: of children, and of parents if there are others.
	Missing []string
	// Hooks as declared.
	Hooks Hooks
	// Endpoints are how to authenticate at, and whom to trust of, the hosts of
	// hooks that do not say it themselves.
	Endpoints []v1alpha1.EndpointConfig
	// Finalizer that parents carry if there is a finalize hook.
	Finalizer string
	// Mark is the value of object.DecoratorAnnotation that the children carry. If
	// it is empty, what carries that annotation is no child.
	Mark string
	// GenerateSelector selects children by a label with the parent's uid.
	GenerateSelector bool
	// Revisions are those of the parents; nil if no kind of children rolls.
	Revisions *revision.Source
	// ResyncPeriod is the longest time between two syncs of a parent; 0 means
	// that nothing but events causes one.
	ResyncPeriod time.Duration
}

// Hooks are the callbacks of a controller; nil means that there is none.
type Hooks struct {
	Sync, Finalize, Customize *v1alpha1.Hook
}

// Parent is one kind that a controller reconciles.
type Parent struct {
	object.Kind
	// HasStatus says that there is a status subresource to write.
	HasStatus bool
	// StatusField says that there is none, and that status is a field of the
	// object like any other.
	StatusField bool
	// Selector is which of them the controller manages, by their labels.
	Selector labels.Selector
	// Annotations is which of those it manages, by their annotations; nil means
	// all.
	Annotations *v1alpha1.AnnotationSelector
	// IgnoreStatusChanges says that a change of nothing but status is no reason
	// for a sync.
	IgnoreStatusChanges bool
	// Or are further rules for the same kind: what any of them selects is
	// managed too.
	Or []Rule
}

// Child is one kind that a controller may create.
type Child struct {
	object.Kind
	// Method is how an existing child is changed.
	Method v1alpha1.ChildUpdateMethod
	// Checks gate the steps of a rolling method.
	Checks []v1alpha1.StatusConditionCheck
}

// QueueName is the name of the controller's queue in metrics.
func (d *Definition) QueueName() string { return d.Kind + "-" + d.Name }

// Parent returns the parent kind of an object, or nil.
func (d *Definition) Parent(kind schema.GroupKind) *Parent {
	for i := range d.Parents {
		if d.Parents[i].GroupKind() == kind {
			return &d.Parents[i]
		}
	}
	return nil
}

// Marked says whether an object that a parent controls can be a child of this
// controller: another one may have the same parent, and children of the same
// kind.
func (d *Definition) Marked(o *object.Object) bool {
	mark, has := o.Decorator()
	return has == (d.Mark != "") && mark == d.Mark
}

// Child returns the kind of a child, or nil.
func (d *Definition) Child(kind schema.GroupKind) *Child {
	for i := range d.Children {
		if d.Children[i].GroupKind() == kind {
			return &d.Children[i]
		}
	}
	return nil
}

// ChildKinds are the kinds of Children.
func (d *Definition) ChildKinds() []object.Kind {
	kinds := make([]object.Kind, 0, len(d.Children))
	for _, child := range d.Children {
		kinds = append(kinds, child.Kind)
	}
	return kinds
}

// PlanKinds are Children as a plan wants them.
func (d *Definition) PlanKinds() []plan.Kind {
	kinds := make([]plan.Kind, 0, len(d.Children))
	for _, child := range d.Children {
		kinds = append(kinds, plan.Kind{Kind: child.Kind, Method: child.Method})
	}
	return kinds
}

// Cache is the local copy of one kind; package watch has them.
type Cache interface {
	WaitForSync(ctx context.Context) error
	// State says whether the copy is full, and if not, what the API server said
	// against it, if anything.
	State() (full bool, err error)
	Get(namespace, name string) *object.Object
	// Named and Select are as in related.Reader.
	Named(name string) []*object.Object
	Select(namespace string, selector labels.Selector) []*object.Object
	ByOwner(uid types.UID) []*object.Object
	Orphans(namespace string, selector labels.Selector) []*object.Object
	List() []*object.Object
	// Seen reports whether the copy is at least as new as this version.
	Seen(resourceVersion string) bool
	// Handle adds a handler of changes. It must not block.
	Handle(handler func(before, after *object.Object, initial bool)) error
	// Release ends this use of the copy, handlers included.
	Release()
}

// Caches are the local copies that a controller reads, by group and kind. A kind
// that is parent and child at once is in both.
type Caches struct {
	Parents  map[schema.GroupKind]Cache
	Children map[schema.GroupKind]Cache
	// Revisions has the ControllerRevisions; nil if Definition.Revisions is.
	Revisions Cache
	// Related objects; nil if there is no customize hook.
	Related *Related
}

// InsteadOf leads from a cache of a controller that is replaced to the one of the
// same kind that is read now, nil if there is none.
func (c Caches) InsteadOf(before Caches) func(Cache) Cache {
	now := map[Cache]Cache{}
	for kind, cache := range before.Parents {
		now[cache] = c.Parents[kind]
	}
	for kind, cache := range before.Children {
		now[cache] = c.Children[kind]
	}
	if before.Revisions != nil {
		now[before.Revisions] = c.Revisions
	}
	return func(cache Cache) Cache { return now[cache] }
}

// Controller is one controller, ready to run.
type Controller struct {
	Definition Definition
	// Selector is how the children of a parent are selected; nil if that cannot
	// be said, or if nothing is ever adopted. It is called for each change of a
	// parent.
	Selector func(parent *object.Object) labels.Selector
	// Start makes what syncs one parent, once the caches are full.
	Start func(caches Caches) (Syncer, error)
}

// Syncer brings one parent to where it should be.
type Syncer interface {
	// Sync makes one pass. It does not panic.
	Sync(ctx context.Context, parent object.Key) Outcome
	// Redeclare gives it the newest object that declares the controller, for the
	// requests of later passes. What the controller is has not changed.
	Redeclare(declared *object.Object)
	// Follow is called before the first Sync of one that replaces another, after
	// the last Sync of that: what the other wrote and no cache shows yet is to be
	// waited for.
	Follow(replaced Syncer)
	// GiveWay tells it which other controllers it leaves parents to.
	GiveWay(elders []Rival)
	// Close is called once, after the last Sync has returned.
	Close()
}

// Outcome is how a pass ended, as far as the next one depends on it.
type Outcome struct {
	Verdict Verdict
	// After is, with Done, when the next pass is wanted though nothing happens;
	// 0 means never. With Wait it is how long to wait; 0 leaves that to the
	// back-off.
	After time.Duration
	// Err is, with Failed, what went wrong, for the log. The user has been told
	// by an event.
	Err error
}

// Verdict says when a parent is looked at again.
type Verdict int

const (
	// UnknownVerdict is no valid value.
	UnknownVerdict Verdict = iota
	// Done: with the next event, or after Outcome.After.
	Done
	// Failed: after a time that grows with each failure, up to a minute.
	Failed
	// Again: something was newer than the pass knew. Like Failed, without a word
	// to anybody.
	Again
	// Behind: the caches have not yet seen what this process wrote. Their event
	// causes the next pass; a moment later it comes without.
	Behind
	// Wait: the hook asked to be left alone for Outcome.After.
	Wait
	// Gone: there is no such parent, or it is not the controller's. Nothing but an
	// event brings it back.
	Gone
)
