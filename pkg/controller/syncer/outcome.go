package syncer

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/rbac"
	"github.com/metacontroller-solo/solo/pkg/logging"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// busy is an error of a hook that wants to be called later.
type busy interface {
	error
	RetryAfter() time.Duration
}

// hookError is an error of a hook, or of its answer.
type hookError struct {
	which hook.Call
	err   error
}

func (e *hookError) Error() string { return e.err.Error() }

func (e *hookError) Unwrap() error { return e.err }

// toldProblems is how many problems of one pass are told; an answer can have
// thousands.
const toldProblems = 10

// toldBytes is from where on further problems are only counted: the message of an
// event has a limit, and how many there are stands at its end.
const toldBytes = 600

// problemLimit is how many bytes of one problem are told: a name in it may be as
// long as the answer of the hook.
const problemLimit = 700

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
		var (
			later busy
			asked *hookError
		)
		switch {
		case errors.As(problem, &later):
			return engine.Outcome{Verdict: engine.Wait, After: later.RetryAfter()}
		case !errors.As(problem, &asked) && settlesItself(problem):
			p.again = true
		default:
			said = append(said, problem)
		}
	}
	if len(said) > 0 {
		err := failureOf(said)
		p.tellLacking(said)
		message := fmt.Sprintf("%s %q: %s", p.Definition.Kind, p.Definition.Name, sourceAddress.ReplaceAllString(err.Error(), ""))
		if !p.memory.repeats(message, p.Clock.Now()) {
			p.Events.Warning(p.Parent, engine.ReasonSyncError, message)
		}
		return engine.Outcome{Verdict: engine.Failed, Err: err}
	}
	if p.again {
		return engine.Outcome{Verdict: engine.Again}
	}
	p.memory.recovered()
	if p.Mode == ModeIgnore {
		return engine.Outcome{Verdict: engine.Gone}
	}
	return engine.Outcome{Verdict: engine.Done, After: p.after}
}

// lackingPeriod is how often the same missing right is told of on the object that
// declares the controller, of whichever parents it keeps from being synced.
const lackingPeriod = 10 * time.Minute

// lacking remembers which missing rights were told of.
type lacking struct {
	mu sync.Mutex
	// told is when each was. Guarded by mu.
	told map[string]time.Time
}

// due says whether a missing right is to be told of now.
func (l *lacking) due(right string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at, ok := l.told[right]; ok && now.Sub(at) < lackingPeriod {
		return false
	}
	if l.told == nil {
		l.told = map[string]time.Time{}
	}
	l.told[right] = now
	return true
}

// tellLacking tells whoever declared the controller which rights are missing: the
// events on parents are for others to read.
func (p *Pass) tellLacking(problems []error) {
	for _, problem := range problems {
		for _, right := range rbac.Lacking(problem.Error()) {
			if !p.lacking.due(right, p.Clock.Now()) {
				continue
			}
			p.Events.Warning(p.Declared, engine.ReasonSyncError, fmt.Sprintf(
				"Controller %q lacks the right to %s; %s.", p.Definition.Name, right, rbac.Advice))
			p.Log.Info("Lacks a right", logging.KeyController, p.Definition.QueueName(), logging.KeyRight, right)
		}
	}
}

// sourceAddress is our end of a connection in the text of a network error. It has
// another port each time; with it each repetition would be an event of its own.
var sourceAddress = regexp.MustCompile(`(?:[0-9]{1,3}(?:\.[0-9]{1,3}){3}|\[[0-9a-fA-F:.%a-z]+\]):[0-9]+->`)

// failureOf is one error of all that went wrong, on one line.
func failureOf(problems []error) *engine.Failure {
	failure := &engine.Failure{}
	texts := make([]string, 0, toldProblems+1)
	told := 0
	for i, problem := range problems {
		if i == toldProblems || told > toldBytes {
			texts = append(texts, fmt.Sprintf("and %d more", len(problems)-i))
			break
		}
		text := brief(problem)
		texts, told = append(texts, text), told+len(text)
		var (
			asked *hookError
			field *object.FieldError
		)
		if failure.Hook == "" && errors.As(problem, &asked) {
			failure.Hook = asked.which.String()
		}
		if failure.Path == "" && errors.As(problem, &field) {
			failure.Path = cut(field.Path, problemLimit)
		}
	}
	failure.Err = errors.New(strings.Join(texts, "; "))
	return failure
}

// brief is what is told of a problem, on one line.
func brief(problem error) string {
	return strings.ReplaceAll(cut(problem.Error(), problemLimit), "\n", "; ")
}

// cut leaves the middle of a long text out: what is wrong stands at the end of an
// error, and where at its beginning.
func cut(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	half := limit / 2
	return strings.ToValidUTF8(text[:half]+" … "+text[len(text)-half:], "")
}

// settlesItself says that an error came from an object being newer than it was
// in the cache, or gone, or from its namespace going away.
func settlesItself(err error) bool {
	return apierrors.IsConflict(err) || apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) ||
		apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause)
}
