package syncer

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/metacontroller-solo/solo/pkg/controller/apply"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/hook/wire"
	"github.com/metacontroller-solo/solo/pkg/controller/plan"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Policy is what differs between the kinds of controllers.
type Policy interface {
	// Observe says which labels the children of the parent have. It fails if the
	// parent does not say that.
	Observe(p *Pass) (labels.Selector, error)
	// Ask gets the answer to this pass by calls of Pass.Ask.
	Ask(ctx context.Context, p *Pass) (*hook.Response, error)
	// Shape completes what a plan is made of: what is put on every child.
	Shape(p *Pass, in *plan.Input)
	// Before writes what must be there before the children are.
	Before(ctx context.Context, p *Pass) error
	// After writes what follows from the children, such as the parent's status.
	After(ctx context.Context, p *Pass) error
}

// Writer is the way to the API server.
type Writer interface {
	apply.Writer
	// ServerSideApply says whether children are written by server-side apply.
	ServerSideApply() bool
	// UpdateStatus is Update by the status subresource.
	UpdateStatus(ctx context.Context, kind object.Kind, o *object.Object) (*object.Object, error)
	// SetFinalizers replaces the finalizers of an object that did not change
	// since it was read.
	SetFinalizers(ctx context.Context, kind object.Kind, o *object.Object, finalizers []string) (*object.Object, error)
	// Patch merges a change, which is a JSON merge patch without what says which
	// object it is, into an object that did not change since it was read.
	Patch(ctx context.Context, kind object.Kind, o *object.Object, change map[string]any) (*object.Object, error)
	// Get reads past the caches.
	Get(ctx context.Context, kind object.Kind, namespace, name string) (*object.Object, error)
}

// Caller calls one hook. An error that has a method RetryAfter is the hook's wish
// to be called later.
type Caller interface {
	// Call posts body and returns the body of the answer. About names what is
	// asked about; what the hook says of its answers (ETag) is remembered by it.
	Call(ctx context.Context, about string, body []byte) ([]byte, error)
	// Accept says that the answer of the last Call about something could be used.
	// No other answer is reused when the hook says that it still holds: one that
	// could not be decoded would come back for ever.
	Accept(about string)
	// Forget drops what is remembered of answers about a subject: what is before
	// the first slash of about.
	Forget(subject string)
	// URL without what is secret in it.
	URL() string
	Close()
}

// Hook is one hook, ready to be called.
type Hook struct {
	Codec  wire.Codec
	Caller Caller
}

// Hooks are the hooks of a controller; nil where there is no such hook.
type Hooks struct {
	Sync, Finalize, Customize *Hook
}

// Close gives back the hooks.
func (h Hooks) Close() {
	for one := range h.all {
		one.Caller.Close()
	}
}

// forget drops what is remembered of answers about a parent.
func (h Hooks) forget(parent types.UID) {
	for one := range h.all {
		one.Caller.Forget(string(parent))
	}
}

func (h Hooks) all(yield func(*Hook) bool) {
	for _, one := range []*Hook{h.Sync, h.Finalize, h.Customize} {
		if one != nil && !yield(one) {
			return
		}
	}
}

// Deps are what a Syncer works with.
type Deps struct {
	Definition engine.Definition
	// Declared is the object that declares the controller. It is part of each
	// request; the newest one that Redeclare gave counts.
	Declared *object.Object
	Flavor   hook.Flavor
	Policy   Policy
	Caches   engine.Caches
	Hooks    Hooks
	Writer   Writer
	Events   engine.Recorder
	Clock    clock.PassiveClock
	Log      logr.Logger
}

// Mode says what a pass does.
type Mode int

const (
	// UnknownMode is no valid value.
	UnknownMode Mode = iota
	// ModeIgnore: the parent is not, or no longer, this controller's.
	ModeIgnore
	// ModeRelease: it is not, but still has the finalizer, which nobody needs.
	ModeRelease
	// ModeIdle: there is no sync hook, so nothing is to be done while it lives.
	ModeIdle
	// ModeSync: the sync hook is asked.
	ModeSync
	// ModeFinalize: the finalize hook is asked.
	ModeFinalize
)

// modeOf decides the mode.
func modeOf(definition *engine.Definition, rule *engine.Parent, parent *object.Object) Mode {
	leaving := parent.Terminating() || !rule.Selects(parent)
	ours := engine.HasFinalizer(parent, definition.Finalizer)
	switch {
	case leaving && ours && definition.Hooks.Finalize != nil:
		return ModeFinalize
	case leaving && ours:
		return ModeRelease
	case leaving:
		return ModeIgnore
	case definition.Hooks.Sync == nil:
		return ModeIdle
	default:
		return ModeSync
	}
}

// Finalizers with which the garbage collector deletes, or orphans, the children
// itself.
const (
	finalizerForeground = "foregroundDeletion"
	finalizerOrphan     = "orphan"
)

// managesChildren says whether a pass touches the children.
func managesChildren(mode Mode, parent *object.Object) bool {
	switch mode {
	case ModeSync:
		return true
	case ModeFinalize:
		return !parent.HasFinalizer(finalizerForeground) && !parent.HasFinalizer(finalizerOrphan)
	default:
		return false
	}
}

// Pass is one pass while it goes on. Steps add to it in their order.
type Pass struct {
	*Syncer

	// Declared is the object that declares the controller, as of the beginning of
	// the pass.
	Declared *object.Object
	Rule     *engine.Parent
	Mode     Mode
	// Parent as it is now: a step that writes it puts what the API server
	// returned here.
	Parent   *object.Object
	Selector labels.Selector
	Children *object.Set
	// Related are the objects that the customize hook asked for.
	Related  *object.Set
	Response *hook.Response
	// Complete says, once the children were written, that all of them were, or
	// that there was nothing to write.
	Complete bool
	// Kept is what the policy keeps from one of its steps to the next.
	Kept any

	memory *memory
	// problems are what the user hears of.
	problems []error
	// again says that something was newer than the pass knew.
	again bool
	after time.Duration
}
