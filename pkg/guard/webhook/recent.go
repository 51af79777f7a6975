package webhook

import (
	"sync"
	"time"

	"k8s.io/utils/clock"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

// recent remembers the last live read of the policy, for maxAge.
//
//	request ─┬─ fresh ──────────────────> decide; a claim reads live all the same
//	         └─ old, void, or the first
//	            that finds it half as old ─> live read ─> remembered
//
// A decision by it is as good as one by a live read if the holder was Bound:
// such a holder keeps the slot at least for the time that its pin is cleared
// before the slot is free, and that is longer than maxAge. So who had the slot
// at the time of the read has it when the request comes. What is changed in the
// spec meanwhile counts at the next event or live read, as it does in the API
// servers' own policies.
type recent struct {
	clock  clock.PassiveClock
	maxAge time.Duration

	// mutex guards the fields below. It is not held while the policy is read.
	mutex  sync.Mutex
	policy *guardv1alpha1.SingletonPolicy
	// asOf is when the read of policy began.
	asOf time.Time
	// renewing is set while one request reads live for all.
	renewing bool
	// forgets counts the calls of forget, so that a read that one of them
	// overtook is not remembered.
	forgets int
}

// get returns the policy, to be read only, or nil if it must be read live.
func (r *recent) get() *guardv1alpha1.SingletonPolicy {
	if r.maxAge <= 0 {
		return nil
	}
	r.mutex.Lock()
	defer r.mutex.Unlock()
	if r.policy == nil {
		return nil
	}
	age := r.clock.Since(r.asOf)
	// The clock that measures stands still while the machine sleeps; the one
	// that shows the time does not.
	if shown := r.clock.Now().Round(0).Sub(r.asOf.Round(0)); shown < 0 || shown > age {
		age = max(shown, -shown)
	}
	switch {
	case age >= r.maxAge:
		return nil
	case age >= r.maxAge/2 && !r.renewing:
		r.renewing = true
		return nil
	default:
		return r.policy
	}
}

// begin is called before a live read; what it returns goes to remember.
func (r *recent) begin() reading {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	return reading{asOf: r.clock.Now(), forgets: r.forgets}
}

// reading is a live read that has begun.
type reading struct {
	asOf    time.Time
	forgets int
}

// remember keeps what a live read found; nil if it found nothing.
func (r *recent) remember(began reading, policy *guardv1alpha1.SingletonPolicy) {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.renewing = false
	if r.forgets == began.forgets {
		r.policy, r.asOf = policy, began.asOf
	}
}

// forget is called when the policy has changed.
func (r *recent) forget() {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	r.policy = nil
	r.forgets++
}
