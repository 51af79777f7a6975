package singleton

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
)

// store is an API server that keeps one Lease.
type store struct {
	coordinationclient.LeaseInterface
	lease   *coordinationv1.Lease
	version int
	// down fails every request; deaf does what it is asked and fails then.
	down, deaf bool
}

var leases = schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}

func (s *store) Leases(string) coordinationclient.LeaseInterface { return s }

func (s *store) Get(_ context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	switch {
	case s.down:
		return nil, errors.New("down")
	case s.lease == nil:
		return nil, apierrors.NewNotFound(leases, name)
	}
	return s.lease.DeepCopy(), nil
}

func (s *store) Create(_ context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	switch {
	case s.down:
		return nil, errors.New("down")
	case s.lease != nil:
		return nil, apierrors.NewAlreadyExists(leases, lease.Name)
	}
	return s.set(lease)
}

func (s *store) Update(_ context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	switch {
	case s.down:
		return nil, errors.New("down")
	case s.lease == nil:
		return nil, apierrors.NewNotFound(leases, lease.Name)
	case s.lease.ResourceVersion != lease.ResourceVersion:
		return nil, apierrors.NewConflict(leases, lease.Name, errors.New("it changed"))
	}
	return s.set(lease)
}

func (s *store) set(lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	s.version++
	s.lease = lease.DeepCopy()
	s.lease.ResourceVersion = strconv.Itoa(s.version)
	if s.deaf {
		return nil, errors.New("the answer is lost")
	}
	return s.lease.DeepCopy(), nil
}

// member is a process, with a measure of time and a time of day of its own.
type member struct {
	*Lease
	ticks, wall *clocktesting.FakeClock
	seen        sighting
	held        *coordinationv1.Lease
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func memberOf(s *store, name string) *member {
	m := &member{ticks: clocktesting.NewFakeClock(start), wall: clocktesting.NewFakeClock(start)}
	m.Lease = New(Config{
		Client: s, Namespace: DefaultNamespace, Name: DefaultName, Identity: Identity{Pod: name, UID: "u"}, Process: name + "-process",
		Clock: m.ticks, Wall: m.wall, Log: logr.Discard(),
	})
	return m
}

// pass lets time pass by both clocks.
func pass(d time.Duration, members ...*member) {
	for _, m := range members {
		m.ticks.Step(d)
		m.wall.Step(d)
	}
}

func (m *member) take(t *testing.T) bool {
	t.Helper()
	lease, _, err := m.tryAcquire(t.Context(), &m.seen)
	if err != nil {
		t.Fatal(err)
	}
	m.held = lease
	return lease != nil
}

func (m *member) renewOnce(t *testing.T) error {
	t.Helper()
	lease, err := m.tryRenew(t.Context(), m.held)
	if err == nil {
		m.held = lease
	}
	return err
}

func (m *member) mayWrite() bool {
	_, err := m.Until()
	return err == nil
}

func TestClockJumps(t *testing.T) {
	s := &store{}
	m := memberOf(s, "a")
	if m.mayWrite() || !m.take(t) || !m.mayWrite() {
		t.Fatal("it writes before it has the lease, or not after")
	}
	// The time of day goes back: nothing happens.
	m.wall.SetTime(start.Add(-24 * time.Hour))
	if !m.mayWrite() {
		t.Error("a clock that was set back ends the hold")
	}
	// And forth: nothing is written until it is known who holds the lease.
	m.wall.SetTime(start.Add(24 * time.Hour))
	if _, err := m.Until(); !errors.Is(err, ErrInDoubt) {
		t.Errorf("after a jump: %v", err)
	}
	pass(RetryPeriod, m)
	if err := m.renewOnce(t); err != nil || !m.mayWrite() {
		t.Errorf("after a renewal it may not write: %v", err)
	}
	// Its own measure counts whatever the time of day says.
	m.ticks.Step(RenewDeadline)
	if _, err := m.Until(); !errors.Is(err, ErrLost) {
		t.Errorf("after the deadline: %v", err)
	}
}

// A machine that was suspended wakes up: its own measure of time stood still.
func TestSuspendedMachineWritesNothing(t *testing.T) {
	s := &store{}
	a, b := memberOf(s, "a"), memberOf(s, "b")
	if !a.take(t) || b.take(t) {
		t.Fatal("the first does not hold it, or the second does")
	}
	a.wall.Step(time.Hour)
	pass(time.Hour, b)
	if !b.take(t) {
		t.Fatal("a lease that expired is not taken")
	}
	if a.mayWrite() {
		t.Error("it writes though another holds the lease")
	}
	if err := a.renewOnce(t); !errors.Is(err, ErrLost) {
		t.Errorf("the renewal says %v", err)
	}
}

func TestLeaseThatWasDeletedUnderItsHolder(t *testing.T) {
	s := &store{}
	a, b := memberOf(s, "a"), memberOf(s, "b")
	if !a.take(t) || b.take(t) {
		t.Fatal("the first does not hold it, or the second does")
	}
	pass(Duration/2, a, b)
	s.lease = nil
	if b.take(t) {
		t.Fatal("it was taken while its holder writes")
	}
	// The holder puts it back.
	pass(RetryPeriod, a, b)
	if err := a.renewOnce(t); err != nil || b.take(t) || !a.mayWrite() {
		t.Fatalf("the holder lost it: %v", err)
	}
	// The holder is dead, and someone helps with a deletion: it costs the whole wait.
	s.lease = nil
	for waited := time.Duration(0); waited <= Duration; waited += RetryPeriod {
		if b.take(t) {
			t.Fatalf("it was taken after %s", waited)
		}
		pass(RetryPeriod, a, b)
	}
	if !b.take(t) || a.mayWrite() {
		t.Error("it is never taken, or both write")
	}
	// Who was not there before has no reason to wait.
	s.lease = nil
	if !memberOf(s, "c").take(t) {
		t.Error("the first one ever waits")
	}
}

func TestLeaseThatWasEmptied(t *testing.T) {
	s := &store{}
	a, b := memberOf(s, "a"), memberOf(s, "b")
	if !a.take(t) || b.take(t) {
		t.Fatal("the first does not hold it, or the second does")
	}
	emptied := s.lease.DeepCopy()
	emptied.Spec.HolderIdentity = nil
	if _, err := s.set(emptied); err != nil {
		t.Fatal(err)
	}
	if b.take(t) {
		t.Error("a lease that was emptied by hand was taken while its holder writes")
	}
	if err := a.renewOnce(t); !errors.Is(err, ErrLost) {
		t.Errorf("the holder goes on: %v", err)
	}
	// Given back, it is free at once.
	s = &store{}
	a, b = memberOf(s, "a"), memberOf(s, "b")
	if !a.take(t) || b.take(t) {
		t.Fatal("the first does not hold it, or the second does")
	}
	a.release(t.Context(), a.held)
	if a.mayWrite() || !b.take(t) {
		t.Error("a lease that was given back is not free")
	}
}

func TestLostAnswerOfTheLease(t *testing.T) {
	s := &store{deaf: true}
	m := memberOf(s, "a")
	if lease, _, err := m.tryAcquire(t.Context(), &m.seen); lease != nil || err == nil || m.mayWrite() {
		t.Fatalf("%v, %v", lease, err)
	}
	s.deaf = false
	if !m.take(t) || !m.mayWrite() {
		t.Error("it waits for itself")
	}
}

// Whatever happens to the lease, to the way to it and to the clocks, no two may
// write at once, as long as nobody puts another name into it by hand, or goes on deleting it.
func TestTwoNeverWrite(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s := &store{}
		members := make([]*member, 3)
		for i := range members {
			members[i] = memberOf(s, fmt.Sprint("m", i))
			// All of them have seen who holds it: who comes just after it was deleted
			// cannot know that there is a holder.
		}
		members[0].held, _, _ = members[0].tryAcquire(t.Context(), &members[0].seen)
		for _, m := range members[1:] {
			_, _, _ = m.tryAcquire(t.Context(), &m.seen)
		}
		var deleted time.Time
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			m := rapid.SampledFrom(members).Draw(rt, "member")
			switch rapid.IntRange(0, 6).Draw(rt, "what") {
			case 0, 1:
				if m.held == nil {
					m.held, _, _ = m.tryAcquire(t.Context(), &m.seen)
				} else if lease, err := m.tryRenew(t.Context(), m.held); err == nil {
					m.held = lease
				} else if errors.Is(err, ErrLost) {
					m.end() // it is used once
				}
			case 2, 3:
				pass(time.Duration(rapid.IntRange(1, 6000).Draw(rt, "time"))*time.Millisecond, members...)
			case 4:
				// A suspended machine: the others go on.
				d := time.Duration(rapid.IntRange(1, 60).Draw(rt, "suspended")) * time.Second
				for _, other := range members {
					other.wall.Step(d)
					if other != m {
						other.ticks.Step(d)
					}
				}
			case 5:
				// Who deletes it again and again, just before each look, hides it.
				if now := members[0].wall.Now(); now.Sub(deleted) > Duration {
					s.lease, deleted = nil, now
				}
			case 6:
				s.down = !s.down
			}
			var writers int
			for _, m := range members {
				if m.mayWrite() {
					writers++
				}
			}
			if writers > 1 {
				rt.Fatalf("%d may write", writers)
			}
		}
	})
}
