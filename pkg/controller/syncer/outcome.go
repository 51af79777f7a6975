package syncer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/metacontroller-solo/solo/pkg/controller/engine"
)

// busy is an error of a hook that wants to be called later.
type busy interface {
	error
	RetryAfter() time.Duration
}

// Note notes what went wrong, for a pass that goes on nevertheless: the user
// hears of it, and the parent is tried again.
func (p *Pass) Note(problem error) { p.fail(problem) }

// fail notes what went wrong.
func (p *Pass) fail(err error) { p.problems = append(p.problems, err) }

// outcome says how the pass ended, and tells the user what is theirs to know: the
// one place where an error becomes a retry and an event.
func (p *Pass) outcome(ctx context.Context) engine.Outcome {
	if ctx.Err() != nil {
		// The controller stops; what broke off by that is nobody's fault.
		return engine.Outcome{Verdict: engine.Done}
	}
	var said []error
	for _, problem := range p.problems {
		var later busy
		switch {
		case errors.As(problem, &later):
			return engine.Outcome{Verdict: engine.Wait, After: later.RetryAfter()}
		case settlesItself(problem):
			p.again = true
		default:
			said = append(said, problem)
		}
	}
	switch {
	case len(said) > 0:
		err := errors.Join(said...)
		message := strings.ReplaceAll(err.Error(), "\n", "; ")
		p.Events.Warning(p.Parent, ReasonSyncError, fmt.Sprintf("%s %q: %s", p.Definition.Kind, p.Definition.Name, message))
		return engine.Outcome{Verdict: engine.Failed, Err: err}
	case p.again:
		return engine.Outcome{Verdict: engine.Again}
	default:
		return engine.Outcome{Verdict: engine.Done, After: p.after}
	}
}

// settlesItself says that an error came from an object being newer than it was
// in the cache, or gone, or from its namespace going away.
func settlesItself(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) ||
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}
