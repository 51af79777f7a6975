package engine

import (
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
)

// A hook that is back after long is called within about a minute.
func TestBackoff(t *testing.T) {
	now := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	limiter, key := newBackoff(now, backoffBase), thing.Key("ns", "a")
	var last, total time.Duration
	failures := 0
	for ; total < 10*time.Minute; failures++ {
		next := limiter.When(key)
		if next < last || next > backoffMax {
			t.Fatalf("failure %d waits %s after %s", failures, next, last)
		}
		// The queue forgets after each pass that is no failure, be it only that the
		// caches were behind.
		limiter.Forget(key)
		if got := limiter.NumRequeues(key); got != failures+1 {
			t.Fatalf("%d failures count as %d", failures+1, got)
		}
		now.Step(next)
		last, total = next, total+next
	}
	if last != backoffMax {
		t.Errorf("it ends at %s", last)
	}
	// Twice as long each time: 5 ms reach a minute in 14 steps.
	if failures > 14+11 {
		t.Errorf("%d failures in %s", failures, total)
	}
	limiter.reset(key)
	if next := limiter.When(key); next != backoffBase {
		t.Errorf("after a success it begins with %s", next)
	}
}

// Whatever makes a parent fail again sooner, it does not wait longer than it has
// been failing: a hook that was away for a second is asked again in about one.
func TestBackoffIsNotLongerThanTheFailure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		now := clocktesting.NewFakeClock(time.Unix(1e9, 0))
		base := rapid.SampledFrom([]time.Duration{backoffBase, busyBase}).Draw(t, "base")
		limiter, key := newBackoff(now, base), thing.Key("ns", "a")
		begun, last := now.Now(), time.Duration(0)
		for range rapid.IntRange(1, 300).Draw(t, "failures") {
			failed := max(now.Since(begun), base)
			next := limiter.When(key)
			if next > failed || next < last {
				t.Fatalf("it waits %s after %s, having failed for %s", next, last, failed)
			}
			last = next
			due := now.Now().Add(next)
			// An event, or the end of the wait.
			if sooner := time.Duration(rapid.Int64Range(0, int64(2*next)).Draw(t, "event after")); now.Now().Add(sooner).Before(due) {
				due = now.Now().Add(sooner)
			}
			now.SetTime(due)
		}
		if other := limiter.When(thing.Key("ns", "b")); other != base {
			t.Fatalf("another parent waits %s", other)
		}
	})
}
