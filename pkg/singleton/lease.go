package singleton

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/clock"
)

// ErrLost says that the Lease is not, or can no longer be known to be, this
// process's. The process must end: another may be at work already.
var ErrLost = errors.New("the singleton lease is lost")

// Config says which Lease is held, and by whom.
type Config struct {
	Client    coordinationclient.LeasesGetter
	Namespace string
	Name      string
	Identity  Identity
	// Process is a random id of this process.
	Process string
	Clock   clock.Clock
	// Wall is the time of day without the process's own measure of time; nil takes
	// Clock's. Go measures the time between two calls of Clock by a clock that
	// nobody sets, but which stands still while a machine is suspended.
	Wall clock.PassiveClock
	// Mark, if there is one, is told who holds the Lease before the work begins.
	Mark Mark
	Log  logr.Logger
}

// Lease is one process's hold on the Lease. It is used once.
type Lease struct {
	Config

	mu sync.Mutex
	// deadline is until when this process may write; zero before the Lease is
	// taken. Guarded by mu.
	deadline time.Time
	// wallDeadline is the same by the time of day. Guarded by mu.
	wallDeadline time.Time
	// ended is true once the Lease was lost or is about to be given back: an
	// answer that comes late moves the deadline no more. Guarded by mu.
	ended bool
}

// ErrInDoubt says that by the time of day the hold on the Lease has ended, though
// by the process's own measure it has not: someone set the clock, or the machine
// was suspended and others had the Lease meanwhile. The next renewal tells.
var ErrInDoubt = errors.New("the clock jumped: nothing is written until the singleton lease is renewed")

// New makes a Lease that is not yet held.
func New(config Config) *Lease { return &Lease{Config: config} }

// Until returns until when this process may write, or ErrLost if it does not hold
// the Lease at this moment, or ErrInDoubt until that is known again. Every write
// asks first, and ends by then: a process that was paused finds out here, before
// its timers do, and no write outlives the hold on the Lease that allowed it.
func (l *Lease) Until() (time.Time, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended || !l.Clock.Now().Before(l.deadline) {
		return time.Time{}, ErrLost
	}
	if !l.wall().Before(l.wallDeadline) {
		return time.Time{}, ErrInDoubt
	}
	return l.deadline, nil
}

// wall is the time of day alone.
func (l *Lease) wall() time.Time {
	if l.Wall != nil {
		return l.Wall.Now()
	}
	return l.Clock.Now().Round(0)
}

// instant is a moment by both clocks.
type instant struct{ at, wall time.Time }

func (l *Lease) now() instant { return instant{at: l.Clock.Now(), wall: l.wall()} }

// heldSince moves the deadline after a write of the Lease that was sent at the
// given moment: whoever waits for its end saw it no earlier.
func (l *Lease) heldSince(sent instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.deadline, l.wallDeadline = sent.at.Add(RenewDeadline), sent.wall.Add(RenewDeadline)
}

// end makes every Until fail from now on.
func (l *Lease) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
}

// Run waits for the Lease, runs work while it is held, and gives it back once
// work has returned. The context that work gets ends when ctx does, or when the
// Lease is lost; work must return soon after either, having stopped all that
// writes.
//
// Run returns nil if ctx ended while it waited, the error of work, or an error
// that is ErrLost.
func (l *Lease) Run(ctx context.Context, work func(context.Context) error) error {
	held, err := l.acquire(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}

	if held, err = l.mark(ctx, held); err != nil {
		if ctx.Err() != nil && !errors.Is(err, ErrLost) {
			l.release(context.WithoutCancel(ctx), held)
			return nil
		}
		return err
	}

	workContext, cancelWork := context.WithCancelCause(ctx)
	defer cancelWork(nil)
	workDone := make(chan error, 1)
	go func() { workDone <- work(workContext) }()

	// The renewals outlive ctx: the Lease is held until work has stopped.
	renewContext, stopRenewing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopRenewing()
	lost := make(chan error, 1)
	renewed := make(chan *coordinationv1.Lease, 1)
	go func() {
		last, err := l.keep(renewContext, held)
		if err != nil {
			lost <- err
			return
		}
		renewed <- last
	}()

	select {
	case err := <-workDone:
		stopRenewing()
		select {
		case last := <-renewed:
			l.unmark(context.WithoutCancel(ctx))
			l.release(context.WithoutCancel(ctx), last)
		case lostErr := <-lost:
			err = errors.Join(err, lostErr)
		}
		return err
	case lostErr := <-lost:
		l.end()
		cancelWork(lostErr)
		l.Log.Error(lostErr, "Lost the singleton lease, stopping")
		// What is left of the Lease's life is what work has to stop in. After
		// that the process must end even if work does not.
		select {
		case err := <-workDone:
			return errors.Join(lostErr, err)
		case <-l.Clock.After(Duration - RenewDeadline - RetryPeriod):
			return lostErr
		}
	}
}

func (l *Lease) describe() string { return l.Namespace + "/" + l.Name }
