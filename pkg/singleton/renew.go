package singleton

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacontroller-solo/solo/pkg/logging"
)

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
