package decorator

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/metacontroller-solo/solo/pkg/controller/decorator/change"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/plan"
	"github.com/metacontroller-solo/solo/pkg/controller/syncer"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// policy is how a DecoratorController differs from other kinds of controllers.
type policy struct{}

// Observe returns no selector: attachments are found by their owner and their
// mark, and their labels are their own affair.
func (policy) Observe(*syncer.Pass) (labels.Selector, error) { return nil, nil }

// Ask asks the hook once, for the object as it is.
func (policy) Ask(ctx context.Context, pass *syncer.Pass) (*hook.Response, error) {
	return pass.Ask(ctx, pass.Parent, "")
}

// Shape puts the mark on every attachment.
func (policy) Shape(pass *syncer.Pass, in *plan.Input) {
	in.Annotations = map[string]string{object.DecoratorAnnotation: pass.Definition.Mark}
}

// Before changes the decorated object, unless that is to be the end.
func (policy) Before(ctx context.Context, pass *syncer.Pass) error {
	c, err := change.Of(placeOf(pass.Rule), pass.Parent, pass.Response)
	if err != nil {
		return pass.Unusable(err)
	}
	if pass.Mode == syncer.ModeFinalize && !pass.Parent.Terminating() && selectedAfter(pass.Rule, pass.Parent, c) {
		return pass.Unusable(errors.New("its labels and annotations would have the controller select the object again, and so sync and finalize it in turns for ever"))
	}
	if c.Homeless {
		pass.Notice(fmt.Sprintf("the answer of the hook has a status, and objects of kind %s have none; all else in it counts", pass.Parent.Kind()))
	} else {
		pass.Notice("")
	}
	if last(pass, c) {
		return nil
	}
	return write(ctx, pass, c, nil)
}

// After makes the change that had to wait for the attachments.
func (policy) After(ctx context.Context, pass *syncer.Pass) error {
	c, err := change.Of(placeOf(pass.Rule), pass.Parent, pass.Response)
	if err != nil {
		return err
	}
	if !last(pass, c) {
		return nil
	}
	var finalizers []string
	switch {
	case pass.Releases():
		finalizers = engine.WithoutFinalizer(pass.Parent.Finalizers(), pass.Definition.Finalizer)
	case pass.Mode == syncer.ModeSync && !pass.Complete:
		// Nobody would look after the attachments that are not written yet.
		return nil
	}
	return write(ctx, pass, c, finalizers)
}

// last says whether the decorated object is changed after its attachments and not
// before. That is so in two cases: when the finalizer goes, which is to be one
// write with the rest; and when the object is not managed any more once it is
// changed.
func last(pass *syncer.Pass, c change.Change) bool {
	if pass.Mode == syncer.ModeFinalize {
		return pass.Response.Finalized
	}
	return !selectedAfter(pass.Rule, pass.Parent, c)
}

// placeOf is where the objects of a kind have their status.
func placeOf(rule *engine.Parent) change.Place {
	switch {
	case rule.HasStatus:
		return change.Subresource
	case rule.StatusField:
		return change.Field
	default:
		return change.Nowhere
	}
}

// selectedAfter says whether the controller manages the object once it is
// changed.
func selectedAfter(rule *engine.Parent, parent *object.Object, c change.Change) bool {
	annotations := change.After(parent.Annotations(), c.Annotations)
	return rule.SelectsWith(change.After(parent.Labels(), c.Labels), func(key string) (string, bool) {
		value, has := annotations[key]
		return value, has
	})
}

// write makes a change: one request, or two where the API wants the status to
// come by itself. The status goes first, for with the last finalizer an object
// that is being deleted is gone. One that is refused keeps nothing else from its
// way.
func write(ctx context.Context, pass *syncer.Pass, c change.Change, finalizers []string) error {
	var problem error
	if c.Status != nil {
		problem = pass.WriteStatus(ctx, c.Status)
		if stale(problem) {
			return problem
		}
	}
	if patch := c.Patch(finalizers); patch != nil {
		err := pass.PatchParent(ctx, patch)
		if stale(err) {
			return err
		}
		problem = errors.Join(problem, err)
	}
	if problem != nil {
		pass.Report(problem)
	}
	return nil
}

// stale says that the object is newer than the pass knew, or gone: what else the
// pass would do is out of date.
func stale(err error) bool { return apierrors.IsConflict(err) || apierrors.IsNotFound(err) }
