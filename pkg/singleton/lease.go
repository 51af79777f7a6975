package singleton

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/utils/clock"

	"github.com/metacontroller-solo/solo/pkg/logging"
)

// ErrLost says that the Lease is not, or can no longer be known to be, this
// process's. The process must end: another may be at work already.
var ErrLost = errors.New("the singleton lease is lost")

// waitingLogPeriod is how often a process that waits says so.
const waitingLogPeriod = 30 * time.Second

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

// sighting is a version of the Lease and when this process first saw it. Only
// the time for which it stayed unchanged counts; the clocks of others do not.
type sighting struct {
	version string
	at      time.Time
	// patience is how long the holder may take for its next renewal.
	patience time.Duration
	// looked is when the Lease was last found to be absent.
	looked time.Time
}

// acquire returns the Lease as this process wrote it.
func (l *Lease) acquire(ctx context.Context) (*coordinationv1.Lease, error) {
	var (
		seen     sighting
		said     string
		saidAt   time.Time
		complain error
	)
	for {
		lease, holder, err := l.tryAcquire(ctx, &seen)
		if lease != nil {
			l.Log.Info("Holding the singleton lease", logging.KeyLease, l.describe(), logging.KeyIdentity, l.Identity.String())
			return lease, nil
		}
		now := l.Clock.Now()
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err != nil:
			if complain == nil || complain.Error() != err.Error() || now.Sub(saidAt) >= waitingLogPeriod {
				l.Log.Error(err, "Cannot take the singleton lease, trying again")
				complain, said, saidAt = err, "", now
			}
		case holder.Identity+holder.Process != said || now.Sub(saidAt) >= waitingLogPeriod:
			l.Log.Info("Waiting for the singleton lease: another instance holds it, and only one may run",
				logging.KeyLease, l.describe(), logging.KeyHolder, holder.Identity, logging.KeySince, holder.Since.Format(time.RFC3339),
				logging.KeyIdentity, l.Identity.String())
			said, saidAt, complain = holder.Identity+holder.Process, now, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-l.Clock.After(RetryPeriod):
		}
	}
}

// tryAcquire takes the Lease if it is absent, free or past its time. One that goes
// away, or is emptied by hand, while it is held is waited for as one that is held:
// its holder does not know yet and still writes. It returns
// the Lease when it was taken, else who holds it, or why that is unknown.
func (l *Lease) tryAcquire(ctx context.Context, seen *sighting) (*coordinationv1.Lease, Holder, error) {
	ctx, cancel := context.WithTimeout(ctx, RenewDeadline)
	defer cancel()
	leases := l.Client.Leases(l.Namespace)
	current, err := leases.Get(ctx, l.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		sent := l.now()
		if seen.patience > 0 {
			// Someone deleted it under its holder, who does not know yet, goes on for
			// a while and puts it back. If that does not come there is no holder.
			// Between two looks that are far apart it may have been there again.
			if seen.version != "" || sent.at.Sub(seen.looked) > 2*RetryPeriod {
				seen.version, seen.at = "", sent.at
			}
			seen.looked = sent.at
			if sent.at.Sub(seen.at) <= seen.patience {
				return nil, Holder{Identity: "unknown"}, nil
			}
		}
		created := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name}}
		l.claim(created, sent.at)
		created, err = leases.Create(ctx, created, metav1.CreateOptions{})
		switch {
		case err == nil:
			l.heldSince(sent)
			return created, Holder{}, nil
		case apierrors.IsAlreadyExists(err):
			return nil, Holder{Identity: "unknown"}, nil
		}
		return nil, Holder{}, fmt.Errorf("cannot create lease %q: %w", l.describe(), err)
	}
	if err != nil {
		return nil, Holder{}, fmt.Errorf("cannot get lease %q: %w", l.describe(), err)
	}

	holder := HolderOf(current)
	sent := l.now()
	now := sent.at
	// Whoever gives the Lease back takes its process off, too; one that was emptied
	// by hand still has a holder that does not know.
	held := !holder.Free() || holder.Process != ""
	// Its own, if the answer to the write that took it was lost.
	own := holder.Identity == l.Identity.String() && holder.Process == l.Process
	if seen.version != current.ResourceVersion {
		*seen = sighting{version: current.ResourceVersion, at: now}
		if held && !own {
			seen.patience = patience(holder)
		}
	}
	if held && !own && now.Sub(seen.at) <= seen.patience {
		return nil, holder, nil
	}
	updated := current.DeepCopy()
	l.claim(updated, now)
	updated, err = leases.Update(ctx, updated, metav1.UpdateOptions{})
	switch {
	case err == nil:
		l.heldSince(sent)
		return updated, Holder{}, nil
	case apierrors.IsConflict(err):
		return nil, holder, nil
	}
	return nil, Holder{}, fmt.Errorf("cannot update lease %q: %w", l.describe(), err)
}

// patience is how long a Lease must stay unchanged before it may be taken from
// its holder. A holder that wrote no duration gets the usual one.
func patience(holder Holder) time.Duration {
	if holder.Duration <= 0 {
		return Duration
	}
	return holder.Duration
}

// keep renews the Lease until ctx ends, and then returns it as last written. An
// error, which is ErrLost, means that it is no longer this process's.
func (l *Lease) keep(ctx context.Context, held *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	for renewals := 1; ; renewals++ {
		select {
		case <-ctx.Done():
			return held, nil
		case <-l.Clock.After(RetryPeriod):
		}
		renewed, err := l.renew(ctx, held)
		if err != nil {
			if ctx.Err() != nil && !errors.Is(err, ErrLost) {
				return held, nil
			}
			return nil, err
		}
		held = renewed
		if renewals%markEvery == 0 {
			if held, err = l.markAgain(ctx, held); err != nil {
				return nil, err
			}
		}
	}
}

// renew writes the Lease once, trying again until the deadline.
func (l *Lease) renew(ctx context.Context, held *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	l.mu.Lock()
	left := l.deadline.Sub(l.Clock.Now())
	l.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	expired := l.Clock.NewTimer(left)
	defer expired.Stop()

	type result struct {
		lease *coordinationv1.Lease
		err   error
	}
	last := errors.New("no answer")
	for {
		done := make(chan result, 1)
		go func() {
			lease, err := l.tryRenew(ctx, held)
			done <- result{lease, err}
		}()
		select {
		case <-expired.C():
			return nil, fmt.Errorf("%w: cannot renew %q for %s: %w", ErrLost, l.describe(), RenewDeadline, last)
		case got := <-done:
			if got.err == nil || errors.Is(got.err, ErrLost) {
				return got.lease, got.err
			}
			last = got.err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-expired.C():
			return nil, fmt.Errorf("%w: cannot renew %q for %s: %w", ErrLost, l.describe(), RenewDeadline, last)
		case <-l.Clock.After(RetryPeriod / 4):
		}
	}
}

// tryRenew writes on top of the version that this process wrote. If that is no
// longer the current one it looks who wrote since: another holder means lost; a
// label that someone put there does not.
func (l *Lease) tryRenew(ctx context.Context, held *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	leases := l.Client.Leases(l.Namespace)
	renewed, err := l.put(ctx, held)
	if err == nil || !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
		return renewed, err
	}
	current, err := leases.Get(ctx, l.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		// Someone deleted it. To create it again succeeds for one process only, which
		// must not be one that came too late: another may have had it in between.
		if _, err := l.Until(); err != nil {
			return nil, fmt.Errorf("%w: %q was deleted after the hold on it had ended", ErrLost, l.describe())
		}
		sent := l.now()
		created := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: l.Namespace, Name: l.Name}}
		l.claim(created, sent.at)
		created, err = leases.Create(ctx, created, metav1.CreateOptions{})
		if err == nil {
			l.heldSince(sent)
		}
		return created, err
	}
	if err != nil {
		return nil, err
	}
	if holder := HolderOf(current); holder.Identity != l.Identity.String() || holder.Process != l.Process {
		return nil, fmt.Errorf("%w: %q is held by %q since %s", ErrLost, l.describe(), holder.Identity, holder.Since.Format(time.RFC3339))
	}
	return l.put(ctx, current)
}

func (l *Lease) put(ctx context.Context, base *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	sent := l.now()
	updated := base.DeepCopy()
	l.claim(updated, sent.at)
	updated, err := l.Client.Leases(l.Namespace).Update(ctx, updated, metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	l.heldSince(sent)
	return updated, nil
}

// claim writes this process into the Lease.
func (l *Lease) claim(lease *coordinationv1.Lease, now time.Time) {
	holder := HolderOf(lease)
	identity, seconds, stamp := l.Identity.String(), int32(Duration/time.Second), metav1.NewMicroTime(now)
	if holder.Identity != identity || holder.Process != l.Process {
		var transitions int32
		if lease.Spec.LeaseTransitions != nil {
			transitions = *lease.Spec.LeaseTransitions
		}
		if lease.ResourceVersion != "" {
			transitions++
		}
		lease.Spec.LeaseTransitions = &transitions
		lease.Spec.AcquireTime = &stamp
	}
	lease.Spec.HolderIdentity = &identity
	lease.Spec.LeaseDurationSeconds = &seconds
	lease.Spec.RenewTime = &stamp
	if lease.Annotations == nil {
		lease.Annotations = map[string]string{}
	}
	lease.Annotations[ProcessAnnotation] = l.Process
}

// release gives the Lease back, so that the next instance need not wait for its
// end. A failure costs only that wait.
func (l *Lease) release(ctx context.Context, held *coordinationv1.Lease) {
	l.end()
	ctx, cancel := context.WithTimeout(ctx, Duration-RenewDeadline)
	defer cancel()
	for {
		free := held.DeepCopy()
		free.Spec.HolderIdentity = nil
		stamp := metav1.NewMicroTime(l.Clock.Now())
		free.Spec.RenewTime = &stamp
		delete(free.Annotations, ProcessAnnotation)
		_, err := l.Client.Leases(l.Namespace).Update(ctx, free, metav1.UpdateOptions{})
		if err == nil {
			l.Log.Info("Released the singleton lease", logging.KeyLease, l.describe())
			return
		}
		if apierrors.IsConflict(err) {
			// A renewal that was cut off may have been written all the same.
			var current *coordinationv1.Lease
			if current, err = l.Client.Leases(l.Namespace).Get(ctx, l.Name, metav1.GetOptions{}); err == nil {
				if holder := HolderOf(current); holder.Identity != l.Identity.String() || holder.Process != l.Process {
					return
				}
				held = current
				continue
			}
		}
		l.Log.Error(err, "Cannot release the singleton lease; the next instance waits until it expires", logging.KeyLease, l.describe())
		return
	}
}

func (l *Lease) describe() string { return l.Namespace + "/" + l.Name }
