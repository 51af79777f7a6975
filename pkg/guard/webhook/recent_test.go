package webhook

import (
	"errors"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
)

var errCannotRead = errors.New("connection refused")

// bound is the stored policy with a holder.
func bound(name string, phase guardv1alpha1.HolderPhase) *guardv1alpha1.SingletonPolicy {
	policy := stored()
	policy.Status.Epoch = 1
	policy.Status.Holder = &guardv1alpha1.Holder{Kind: "StatefulSet", Namespace: "prod", Name: name, UID: "u0", Phase: phase, Epoch: 1}
	return policy
}

// TestA06StaleWatch cuts a guard off from the events of the policy: what it
// remembers refuses for a while, and never lets anybody in.
func TestA06StaleWatch(t *testing.T) {
	const maxAge = time.Second
	clock := clocktesting.NewFakePassiveClock(time.Now())
	slot := &faultySlot{policy: bound("other", guardv1alpha1.HolderBound)}
	r := newRig(slot)
	r.Handler = New(Deps{Policy: "metacontroller", Slot: slot, Targets: noTargets{}, Clock: clock, Record: r.deps.Record, MaxAge: maxAge})
	ask := func(want bool, reads int) {
		t.Helper()
		before := slot.reads
		response := answer(t, post(r, "/validate", firstStatefulSet))
		if response.Allowed != want || slot.reads-before != reads {
			t.Fatalf("allowed %v after %d reads, want %v after %d", response.Allowed, slot.reads-before, want, reads)
		}
	}
	ask(false, 1)
	ask(false, 0)

	// Gone meanwhile: the denial stands until what is remembered is old.
	slot.policy = stored()
	clock.SetTime(clock.Now().Add(maxAge/2 - 1))
	ask(false, 0)
	clock.SetTime(clock.Now().Add(1))
	ask(true, 1) // The first that finds it half as old looks for all.
	ask(true, 1) // A free slot is not remembered.

	// An event comes first where there are events.
	slot.policy = bound("other", guardv1alpha1.HolderBound)
	ask(false, 1)
	ask(false, 0)
	slot.policy = stored()
	r.Changed()
	ask(true, 1)

	// What is not certain to stay is read each time.
	for _, phase := range []guardv1alpha1.HolderPhase{guardv1alpha1.HolderReserved, guardv1alpha1.HolderReleasing} {
		slot.policy = bound("other", phase)
		r.Changed()
		ask(false, 1)
		ask(false, 1)
	}

	// The holder itself, made again, claims by a live read.
	slot.policy = bound("mc", guardv1alpha1.HolderBound)
	r.Changed()
	ask(true, 1)
	ask(true, 1)
}

// TestRecentAcrossSleep lets the machine sleep, or its time be set.
func TestRecentAcrossSleep(t *testing.T) {
	for name, step := range map[string]time.Duration{"sleeps": time.Hour, "is set back": -time.Hour} {
		t.Run(name, func(t *testing.T) {
			clock := clocktesting.NewFakePassiveClock(time.Now())
			r := recent{clock: clock, maxAge: time.Second}
			r.remember(r.begin(), stored())
			if r.get() == nil {
				t.Fatal("nothing is remembered")
			}
			clock.SetTime(clock.Now().Add(step))
			if r.get() != nil {
				t.Fatal("still remembered")
			}
		})
	}
}

// TestReadOvertaken has an event come while the policy is read.
func TestReadOvertaken(t *testing.T) {
	r := recent{clock: clocktesting.NewFakePassiveClock(time.Now()), maxAge: time.Second}
	began := r.begin()
	r.forget()
	r.remember(began, stored())
	if r.get() != nil {
		t.Fatal("a read is remembered that an event has overtaken")
	}
}

// TestUnreadableIsNotRemembered goes on to say that nothing can be told.
func TestUnreadableIsNotRemembered(t *testing.T) {
	slot := &faultySlot{policy: bound("other", guardv1alpha1.HolderBound)}
	r := newRig(slot)
	r.Handler = New(Deps{Policy: "metacontroller", Slot: slot, Targets: noTargets{}, Clock: r.deps.Clock, Record: r.deps.Record, MaxAge: time.Hour})
	answer(t, post(r, "/validate", firstStatefulSet))
	answer(t, post(r, "/validate", firstStatefulSet))
	if slot.reads != 1 {
		t.Fatalf("%d reads", slot.reads)
	}
	r.Changed()
	slot.policy, slot.readErr = nil, errCannotRead
	response := answer(t, post(r, "/validate", firstStatefulSet))
	if response.Allowed || !strings.Contains(response.Result.Message, "cannot tell who holds the slot") {
		t.Fatalf("got %+v", response)
	}
	if last := r.outcomes[len(r.outcomes)-1].Decision.Verdict; last != decide.VerdictUnreadable {
		t.Fatalf("verdict is %s", last)
	}
}
