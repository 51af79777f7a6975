package engine

import (
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// Back-off of a parent that fails: a hook that comes back after an hour is
// called within a minute.
const (
	backoffBase = 5 * time.Millisecond
	backoffMax  = time.Minute
	// busyBase is the least time for which a hook that answers 429 is left alone.
	busyBase = time.Second
)

// backoff is how long a parent that fails, or whose hook is busy, is left alone.
// It is reset by a pass that ends otherwise only: the queue forgets at the end of
// one that merely waited.
//
// A wait is twice the last one, but never longer than the parent has been failing:
// what happens to a parent meanwhile has it fail again at once, and those failures
// must not add up to a minute of silence after a hook that was away for a second.
type backoff struct {
	clock clock.PassiveClock
	// base is the first wait.
	base time.Duration

	mu sync.Mutex
	// failing are the parents that failed the last time. Guarded by mu.
	failing map[object.Key]failing
}

// failing is a parent that failed the last time.
type failing struct {
	since time.Time
	// wait is the last one.
	wait time.Duration
	// times is how often it failed since then.
	times int
}

func newBackoff(now clock.PassiveClock, base time.Duration) *backoff {
	return &backoff{clock: now, base: base, failing: map[object.Key]failing{}}
}

// When notes a failure and returns how long to wait after it.
func (b *backoff) When(key object.Key) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	parent, known := b.failing[key]
	if known {
		parent.wait = min(2*parent.wait, max(parent.wait, b.clock.Since(parent.since)), backoffMax)
	} else {
		parent = failing{since: b.clock.Now(), wait: b.base}
	}
	parent.times++
	b.failing[key] = parent
	return parent.wait
}

// NumRequeues is how often a parent has failed since it was last reset.
func (b *backoff) NumRequeues(key object.Key) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failing[key].times
}

// Forget is what the queue calls. It does nothing.
func (*backoff) Forget(object.Key) {}

func (b *backoff) reset(key object.Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.failing, key)
}
