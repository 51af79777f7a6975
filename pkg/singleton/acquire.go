package singleton

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacontroller-solo/solo/pkg/logging"
)

// waitingLogPeriod is how often a process that waits says so.
const waitingLogPeriod = 30 * time.Second

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
