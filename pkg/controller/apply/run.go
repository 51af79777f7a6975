package apply

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/metacontroller-solo/solo/pkg/controller/plan"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Result is what became of a plan.
type Result struct {
	// Done are the steps that were carried out, in the plan's order.
	Done []Done
	// Failed are the steps that a user should hear of, in the plan's order.
	Failed []Failed
	// Retry says that a step met another state than the plan knew (gone,
	// changed, already there, namespace on its way out): no error, but the parent
	// should be looked at again soon. An event of the newer state usually does it.
	Retry bool
	// Interrupted is the context's error if it ended before the plan did, or
	// ErrNotWanted; nothing was begun after that.
	Interrupted error
}

// Done is a step that was carried out.
type Done struct {
	plan.Step
	// Written is the object as the server has it after Create, Update or HandOver;
	// nil after Delete.
	Written *object.Object
	// Kept says that a Delete with Unless found nothing to do, and did nothing.
	Kept bool
}

// Failed is a step that failed.
type Failed struct {
	plan.Step
	// Err says what is wrong, where; it wraps the Writer's error.
	Err error
}

// Err joins the errors of all that failed, or is nil.
func (r Result) Err() error {
	errs := make([]error, 0, len(r.Failed)+1)
	for _, failed := range r.Failed {
		errs = append(errs, failed.Err)
	}
	if r.Interrupted != nil {
		errs = append(errs, fmt.Errorf("cannot finish the children: %w", r.Interrupted))
	}
	return errors.Join(errs...)
}

// Settled is what the next plan of the parent need not compare: what p found to
// be equal, and what was written just now. The server may have written a value
// differently or changed it; it was asked, and will not be asked again until the
// child or its desired state changes.
func (r Result) Settled(p plan.Plan) plan.Settled {
	if len(r.Done) == 0 {
		return p.Settled
	}
	settled := make(plan.Settled, len(p.Settled), len(p.Settled)+len(r.Done))
	copy(settled, p.Settled)
	for _, done := range r.Done {
		switch {
		case done.Kept:
			settled = append(settled, plan.SettledChild{Key: done.Key, Mark: plan.MarkOf(done.Observed, done.Desired)})
		case done.Written != nil && done.Action != plan.HandOver:
			settled = append(settled, plan.SettledChild{Key: done.Key, Mark: plan.MarkOf(done.Written, done.Desired)})
		}
	}
	settled.Sort()
	return settled
}

// ErrNotWanted is why RunWhile stopped.
var ErrNotWanted = errors.New("the plan is no longer wanted")

// lookAgain is after how many steps it is looked again whether a plan is wanted.
const lookAgain = 100

// Run carries out a plan, except its Skip steps. Groups of steps that do the
// same to one kind follow one another; the steps of a group are begun in the
// plan's order, with up to parallel of them at once (1 if it is less). A failure
// does not stop the rest; a context that ends does.
func Run(ctx context.Context, w Writer, p plan.Plan, parallel int) Result {
	return RunWhile(ctx, w, p, parallel, func() bool { return true })
}

// RunWhile is Run for a plan that may be so long that meanwhile it is no longer
// wanted, which is asked every now and then.
func RunWhile(ctx context.Context, w Writer, p plan.Plan, parallel int, wanted func() bool) Result {
	outcomes := make([]outcome, len(p.Steps))
	unwanted := false
	goesOn := func(i int) bool {
		if i > 0 && i%lookAgain == 0 && !unwanted {
			unwanted = !wanted()
		}
		return ctx.Err() == nil && !unwanted
	}
	for start := 0; start < len(p.Steps); {
		end := start + 1
		for end < len(p.Steps) && together(p.Steps[start], p.Steps[end]) {
			end++
		}
		var group errgroup.Group
		group.SetLimit(max(parallel, 1))
		for i := start; i < end && goesOn(i); i++ {
			if p.Steps[i].Action == plan.Skip {
				continue
			}
			group.Go(func() error {
				outcomes[i] = carryOut(ctx, w, p.Steps[i])
				return nil
			})
		}
		_ = group.Wait() // outcomes hold the errors
		start = end
	}
	return resultOf(ctx, p, outcomes)
}

// together says whether two neighbouring steps may be done at the same time.
func together(a, b plan.Step) bool {
	return a.Kind.GroupKind() == b.Kind.GroupKind() && (a.Action == plan.Delete) == (b.Action == plan.Delete)
}

// outcome is what became of one step; the zero value means that it was not begun.
type outcome struct {
	begun   bool
	written *object.Object
	kept    bool
	err     error
}

func carryOut(ctx context.Context, w Writer, step plan.Step) outcome {
	out := outcome{begun: true}
	switch step.Action {
	case plan.Create, plan.Update:
		write := w.Create
		switch {
		case step.Apply:
			write = w.Apply
		case step.Action == plan.Update:
			write = w.Update
		}
		out.written, out.err = write(ctx, step.Kind, step.Object)
	case plan.HandOver:
		out.written, out.err = w.HandOver(ctx, step.Kind, step.Observed)
	case plan.Delete:
		if out.kept, out.err = pointless(ctx, w, step); out.kept || out.err != nil {
			return out
		}
		out.err = w.Delete(ctx, step.Kind, step.Key, step.Observed.UID())
		if apierrors.IsNotFound(out.err) {
			out.err = nil // it is gone, which is what was wanted
		}
	default:
		out.err = fmt.Errorf("there is no action %d", step.Action)
	}
	return out
}

// pointless finds out whether a child would be deleted for a difference that
// stays: one between what is desired and how the API server writes it. A write in
// place that is refused is a difference; so is one that this program has no right
// to, which it needs for nothing else.
func pointless(ctx context.Context, w Writer, step plan.Step) (bool, error) {
	if step.Unless == nil {
		return false, nil
	}
	would, err := w.Preview(ctx, step.Kind, step.Unless, step.Apply)
	switch {
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err):
		return false, nil
	case err != nil:
		return false, err
	}
	return same(step.Observed, would), nil
}

// same says whether two states of an object say the same, whatever they remember
// of what was applied.
func same(a, b *object.Object) bool {
	before, after := object.WithoutNoise(a.Content()), object.WithoutNoise(b.Content())
	// The answer is in the version of the request.
	delete(before, "apiVersion")
	delete(after, "apiVersion")
	return object.Equal(before, after)
}

func resultOf(ctx context.Context, p plan.Plan, outcomes []outcome) Result {
	var r Result
	for i, out := range outcomes {
		step := p.Steps[i]
		switch {
		case !out.begun && step.Action == plan.Skip:
		case !out.begun:
			if r.Interrupted = ctx.Err(); r.Interrupted == nil {
				r.Interrupted = ErrNotWanted
			}
		case out.err == nil:
			r.Done = append(r.Done, Done{Step: step, Written: out.written, Kept: out.kept})
			// Nothing was written, so nothing else reminds of those that wait.
			r.Retry = r.Retry || out.kept && p.Waiting
		case Outdated(step.Action, out.err) && !unserved(step, out.err):
			r.Retry = true
		default:
			r.Failed = append(r.Failed, Failed{Step: step, Err: fmt.Errorf("cannot %s %s %q: %w",
				step.Action, step.Key.Kind, step.Key.Path(), out.err)})
		}
	}
	return r
}

// Outdated says whether an error only tells that the action met a state that
// this process does not know yet. It is not one for users: the event of that
// state, or a quick retry, settles it. A create that answers 404 is another
// matter: its namespace or its kind does not exist, and no event will tell.
func Outdated(action plan.Action, err error) bool {
	switch {
	case apierrors.IsConflict(err):
		return true
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return true
	case action == plan.Create:
		return apierrors.IsAlreadyExists(err)
	default:
		return apierrors.IsNotFound(err)
	}
}

// unserved says that an apply found no such kind, in that version, or namespace: an
// object that is gone would be a conflict.
func unserved(step plan.Step, err error) bool {
	return step.Apply && apierrors.IsNotFound(err)
}
