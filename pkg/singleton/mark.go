package singleton

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/metacontroller-solo/solo/pkg/logging"
)

// The API server's fence, which accepts the writes of one Pod alone, cannot read
// the Lease: a built-in kind that a policy reads as its parameter goes stale for
// good on an API server where the policy's binding was taken away and put back.
// It reads a custom resource. So whoever gets the Lease marks itself there before
// its first sync:
//
//	take the Lease ─> read the mark ─> renew the Lease ─> write the mark, if it is as read ─> settle ─> work
//
// The renewal between the two makes the mark follow the Lease: if another took the
// Lease since, the renewal fails; if it does later, it writes its mark later, or
// finds this one and begins again. A process that was paused anywhere in between
// wakes up to a conflict or to a Lease that is lost.
//
// A process that stops cleanly takes its mark off before it gives the Lease back.

// Mark is where the holder of the Lease says who it is.
type Mark interface {
	// Read returns the mark. ErrNoMark says that there is none to be made.
	Read(ctx context.Context) (Marked, error)
	// Write puts an identity in place of a mark that was read, or takes it off if
	// it is nil. ErrMarkConflict says that it is not as it was read.
	Write(ctx context.Context, read Marked, identity *Identity) error
}

// Marked is a mark as it was read.
type Marked struct {
	// Identity is who is marked; nil for nobody.
	Identity *Identity
	// Version tells one state of the mark from another.
	Version string
}

var (
	// ErrNoMark says that nobody asks for a mark: the fence is not installed.
	ErrNoMark = errors.New("there is no mark to be made")
	// ErrMarkConflict says that the mark changed since it was read.
	ErrMarkConflict = errors.New("the mark changed since it was read")
	// ErrMarkForbidden says that this process may not make the mark.
	ErrMarkForbidden = errors.New("the mark is forbidden")
)

const (
	// Settle is how long work waits after a mark that replaced another's, for the
	// fences of all API servers to see it: the other may still be writing. It is
	// far above what an API server's watch is behind, and at an end that was clean
	// there is nobody to wait for.
	Settle = 2 * time.Second
	// markTimeout bounds one request about the mark.
	markTimeout = 3 * time.Second
	// markEvery is how many renewals come between two looks at the mark. Someone
	// may have made the object anew, or installed it only now.
	markEvery = 5
)

// mark makes the mark after the Lease was taken, and renews the Lease meanwhile.
// It returns the Lease as last written.
func (l *Lease) mark(ctx context.Context, held *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if l.Mark == nil {
		return held, nil
	}
	for said := ""; ; {
		renewed, replaced, err := l.tryMark(ctx, held)
		if renewed != nil {
			held = renewed
		}
		switch {
		case err == nil:
			if replaced {
				l.Log.Info("Marked this instance as the writer; waiting for every API server to see it", logging.KeyIdentity, l.Identity.String())
				select {
				case <-ctx.Done():
					return held, ctx.Err()
				case <-l.Clock.After(Settle):
				}
			}
			return held, nil
		case errors.Is(err, ErrLost), ctx.Err() != nil:
			return held, err
		case errors.Is(err, ErrMarkForbidden):
			// The fence may be off, or accept this Pod as it is. If not, each write says so.
			l.Log.Error(err, "Cannot mark this instance as the writer: if the fence is on, its writes may be refused")
			return held, nil
		case !errors.Is(err, ErrMarkConflict) && err.Error() != said:
			l.Log.Error(err, "Cannot mark this instance as the writer, trying again")
			said = err.Error()
		}
		select {
		case <-ctx.Done():
			return held, ctx.Err()
		case <-l.Clock.After(RetryPeriod / 4):
		}
	}
}

// markAgain makes the mark if it is gone. Only the loss of the Lease is an error.
func (l *Lease) markAgain(ctx context.Context, held *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	if l.Mark == nil {
		return held, nil
	}
	renewed, _, err := l.tryMark(ctx, held)
	if renewed != nil {
		held = renewed
	}
	switch {
	case errors.Is(err, ErrLost):
		return nil, err
	case err != nil && ctx.Err() == nil && !errors.Is(err, ErrMarkConflict):
		l.Log.Error(err, "Cannot mark this instance as the writer, trying again later")
	}
	return held, nil
}

// tryMark makes the mark once. It returns the Lease if it renewed it, and whether
// the mark was another's.
func (l *Lease) tryMark(ctx context.Context, held *coordinationv1.Lease) (renewed *coordinationv1.Lease, replaced bool, err error) {
	marked, err := l.readMark(ctx)
	if errors.Is(err, ErrNoMark) {
		return nil, false, nil
	}
	if err != nil {
		// The Lease must not end over this.
		renewed, lost := l.renew(ctx, held)
		if lost != nil {
			err = lost
		}
		return renewed, false, err
	}
	if marked.Identity != nil && *marked.Identity == l.Identity {
		return nil, false, nil
	}
	if renewed, err = l.renew(ctx, held); err != nil {
		return nil, false, err
	}
	return renewed, marked.Identity != nil, l.writeMark(ctx, marked, &l.Identity)
}

// unmark takes the mark off, if it is this process's. A failure costs the next
// one the time to settle.
func (l *Lease) unmark(ctx context.Context) {
	if l.Mark == nil {
		return
	}
	marked, err := l.readMark(ctx)
	if err == nil && marked.Identity != nil && *marked.Identity == l.Identity {
		err = l.writeMark(ctx, marked, nil)
	}
	if err != nil && !errors.Is(err, ErrNoMark) {
		l.Log.Error(err, "Cannot take this instance's mark off; the next one waits a moment longer")
	}
}

func (l *Lease) readMark(ctx context.Context) (Marked, error) {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	marked, err := l.Mark.Read(ctx)
	if err != nil && !errors.Is(err, ErrNoMark) {
		return Marked{}, fmt.Errorf("cannot read the mark: %w", err)
	}
	return marked, err
}

func (l *Lease) writeMark(ctx context.Context, read Marked, identity *Identity) error {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	if err := l.Mark.Write(ctx, read, identity); err != nil {
		return fmt.Errorf("cannot write the mark: %w", err)
	}
	return nil
}
