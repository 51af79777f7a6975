package claim_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	"pgregory.net/rapid"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/claim"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/test/linear"
)

// shipped are the limits that the program has by default, in a world in which
// each bound is used up. The policy is remembered for as long as is allowed, which
// is much longer than the default.
var shipped = rules{
	limits: claim.Limits{Reservation: 75 * time.Second, Release: 75 * time.Second},
	lag:    10 * time.Second, request: time.Minute, maxAge: 37 * time.Second,
}

// checkLimit bounds one check of a history.
const checkLimit = time.Minute

// chooser draws a number below n.
type chooser func(what string, n int) int

var identities = []string{"a", "b", "c"}

func request(review admissionv1.AdmissionReview) *http.Request {
	body, err := json.Marshal(review)
	if err != nil {
		panic(err)
	}
	r := httptest.NewRequest(http.MethodPost, "/validate", bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	return r
}

// play lets the world go its way for some moves, and checks it after each. It
// returns the first thing that is wrong.
func (w *world) play(draw chooser, moves int) error {
	for range moves {
		move := movements[draw("move", len(movements))]
		if err := move.do(w, draw); err != nil {
			return fmt.Errorf("%s: %w", move.name, err)
		}
		if err := w.check(); err != nil {
			return fmt.Errorf("after %q: %w", move.name, err)
		}
	}
	return nil
}

// movements are what can happen next. The first are more likely to lead on.
var movements = []struct {
	name string
	do   func(*world, chooser) error
}{
	{"a whole request", func(w *world, draw chooser) error {
		return w.whole(draw("guard", len(w.guards)), identity(identities[draw("identity", len(identities))]))
	}},
	{"a whole pass", func(w *world, draw chooser) error {
		l := w.leaders[draw("leader", len(w.leaders))]
		if l.busy(w) {
			w.finish(l.pass)
		}
		w.reconcile(l)
		w.finish(l.pass)
		return nil
	}},
	{"a request begins", func(w *world, draw chooser) error {
		w.create(draw("guard", len(w.guards)), identity(identities[draw("identity", len(identities))]))
		return nil
	}},
	{"a pass begins", func(w *world, draw chooser) error {
		if l := w.leaders[draw("leader", len(w.leaders))]; !l.busy(w) {
			w.reconcile(l)
		}
		return nil
	}},
	{"one step", oneStep(works)},
	{"one step", oneStep(works)},
	{"one step", oneStep(works)},
	{"a call fails", oneStep(fails)},
	{"an answer is lost", oneStep(answerLost)},
	{"a task ends", func(w *world, draw chooser) error {
		if len(w.tasks) > 0 {
			w.finish(w.tasks[draw("task", len(w.tasks))])
		}
		return nil
	}},
	{"a process dies", func(w *world, draw chooser) error {
		if len(w.tasks) > 0 {
			w.kill(w.tasks[draw("task", len(w.tasks))])
		}
		return nil
	}},
	{"an API server gives a request up", func(w *world, draw chooser) error {
		if len(w.tasks) > 0 {
			w.tasks[draw("task", len(w.tasks))].abandoned = true
		}
		return nil
	}},
	{"a new leader", func(w *world, draw chooser) error {
		// The old one does not know, and finishes its pass.
		w.leaders[draw("leader", len(w.leaders))] = w.leader()
		return nil
	}},
	{"a Pod is made", func(w *world, draw chooser) error {
		if len(w.made) > 0 {
			w.makePod(draw("server", len(w.servers)), w.made[draw("made", len(w.made))])
		}
		return nil
	}},
	{"the last Pod is made", func(w *world, draw chooser) error {
		if len(w.made) > 0 {
			w.makePod(draw("server", len(w.servers)), w.made[len(w.made)-1])
		}
		return nil
	}},
	{"a StatefulSet is deleted", func(w *world, draw chooser) error {
		delete(w.sets, identity(identities[draw("identity", len(identities))]))
		return nil
	}},
	{"a Pod ends", func(w *world, draw chooser) error {
		delete(w.pods, identity(identities[draw("identity", len(identities))]+"-0"))
		return nil
	}},
	{"what was there before ends", func(w *world, _ chooser) error {
		delete(w.pods, identity(strayName))
		return nil
	}},
	{"an API server sees the policy", func(w *world, draw chooser) error {
		w.servers[draw("server", len(w.servers))] = len(w.stored) - 1
		return nil
	}},
	{"time passes", func(w *world, draw chooser) error {
		w.tick([]time.Duration{100 * time.Millisecond, 3 * time.Second, 11 * time.Second, 40 * time.Second, 76 * time.Second}[draw("time", 5)])
		return nil
	}},
	{"the clocks are set", func(w *world, draw chooser) error {
		w.skew = []time.Duration{-time.Hour, 0, time.Hour}[draw("skew", 3)]
		return nil
	}},
	{"everything is deleted, and time passes", func(w *world, _ chooser) error {
		clear(w.sets)
		clear(w.pods)
		return w.passes(3 * time.Minute)
	}},
}

func oneStep(f fault) func(*world, chooser) error {
	return func(w *world, draw chooser) error {
		if len(w.tasks) > 0 {
			w.run(w.tasks[draw("task", len(w.tasks))], f)
		}
		return nil
	}
}

// whole is a request that nothing interrupts: its answer follows from the slot.
func (w *world) whole(guard int, id decide.Identity) error {
	holder := w.policy.Status.Holder.DeepCopy()
	exists := w.sets[id] != nil
	others := len(w.sets) > 0 && !exists || len(w.sets) > 1 || w.pods[identity(strayName)] != nil
	t, operation := w.create(guard, id)
	w.finish(t)
	want := linear.Granted
	switch {
	case holder != nil && holder.Name != id.Name:
		want = linear.Refused
	case exists:
		want = linear.Unknown // The API server says that it exists.
	case holder == nil && others:
		want = linear.Vacant
	}
	if operation.Outcome != want || want == linear.Refused && operation.Holder != holder.Name {
		return fmt.Errorf("got %s though the holder is %+v", operation, holder)
	}
	return nil
}

// passes lets a leader look as often as it wants to, for some time.
func (w *world) passes(d time.Duration) error {
	l := w.leaders[0]
	for until := w.now + d; w.now < until; {
		if !l.busy(w) {
			w.reconcile(l)
		}
		versions := len(w.stored)
		w.finish(l.pass)
		if err := w.check(); err != nil {
			return err
		}
		if len(w.stored) > versions {
			w.tick(time.Millisecond) // The change of the policy is an event.
		} else {
			w.tick(min(max(l.after, time.Millisecond), until-w.now))
		}
	}
	return nil
}

// settle ends what goes on and takes everything away. Within the time that the
// limits name, somebody else gets the slot.
func (w *world) settle() error {
	for len(w.tasks) > 0 {
		w.finish(w.tasks[0])
		if err := w.check(); err != nil {
			return err
		}
	}
	clear(w.sets)
	clear(w.pods)
	const poll = 2 * time.Second
	if err := w.passes(w.rules.limits.Reservation + w.rules.limits.Release + 2*poll); err != nil {
		return err
	}
	if holder := w.policy.Status.Holder; holder != nil {
		return fmt.Errorf("the slot is not free in time: %+v", holder)
	}
	if err := w.whole(0, identity("z")); err != nil {
		return err
	}
	return w.check()
}

// explained holds the history to the sequential model.
func (w *world) explained() error {
	history := make([]linear.Operation, 0, len(w.history))
	for _, operation := range w.history {
		history = append(history, *operation)
	}
	return linear.Check(history, checkLimit)
}

// handovers counts how often the slot went from one identity to another.
func (w *world) handovers() int {
	count, last := 0, ""
	for _, version := range w.stored {
		if holder := version.status.Holder; holder != nil && holder.Name != last {
			if last != "" {
				count++
			}
			last = holder.Name
		}
	}
	return count
}

// TestSimulation interleaves requests, passes of two leaders, Pod creates,
// crashes, lost answers, stale views and set clocks in any order.
func TestSimulation(t *testing.T) {
	handovers := 0
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(shipped)
		defer w.end()
		if rapid.Bool().Draw(t, "a Pod was there before") {
			w.before()
		}
		draw := func(what string, n int) int { return rapid.IntRange(0, n-1).Draw(t, what) }
		if err := w.play(draw, rapid.IntRange(1, 120).Draw(t, "moves")); err != nil {
			t.Fatal(err)
		}
		if err := w.settle(); err != nil {
			t.Fatal(err)
		}
		if err := w.explained(); err != nil {
			t.Fatal(err)
		}
		handovers += w.handovers()
	})
	if handovers == 0 && !t.Failed() {
		t.Fatal("the slot never went to another identity: the simulation shows nothing")
	}
	t.Logf("%d handovers", handovers)
}

// TestClockJump sets the clocks of all processes while the slot waits to be given
// up, first as a reservation and then as a release: neither ends before its time,
// nor later than without the jump.
func TestClockJump(t *testing.T) {
	for name, skew := range map[string]time.Duration{
		"G10 time jump, an hour ahead": time.Hour, "G10 time jump, an hour back": -time.Hour, "G10 no jump": 0,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(shipped)
			defer w.end()
			phase := func() guardv1alpha1.HolderPhase {
				if w.policy.Status.Holder == nil {
					return ""
				}
				return w.policy.Status.Holder.Phase
			}
			pass := func(d time.Duration) {
				t.Helper()
				if err := w.passes(d); err != nil {
					t.Fatal(err)
				}
			}
			// Reserved, and the API server never writes the object.
			request, _ := w.create(0, identity("a"))
			for phase() == "" {
				w.run(request, works)
			}
			w.kill(request)
			clear(w.sets)
			const margin = 3 * time.Second // The leader looks every other second.
			for _, step := range []struct {
				phase, next guardv1alpha1.HolderPhase
				limit       time.Duration
			}{
				{guardv1alpha1.HolderReserved, guardv1alpha1.HolderReleasing, w.rules.limits.Reservation},
				{guardv1alpha1.HolderReleasing, "", w.rules.limits.Release},
			} {
				if phase() != step.phase {
					t.Fatalf("the slot is %q, want %q", phase(), step.phase)
				}
				began := w.now
				pass(time.Second)
				w.skew += skew
				pass(step.limit - margin)
				if phase() != step.phase {
					t.Fatalf("%s ended after %s or sooner, the limit is %s", step.phase, w.now-began, step.limit)
				}
				for phase() == step.phase && w.now < began+step.limit+margin {
					pass(100 * time.Millisecond)
				}
				if phase() != step.next {
					t.Fatalf("the slot is %q after %s, want %q", phase(), w.now-began, step.next)
				}
			}
		})
	}
}

// TestNoClaimBesideWhatRuns: an instance that was there before the guard is no
// StatefulSet's, and nobody gets the slot beside it, whatever goes on meanwhile.
func TestNoClaimBesideWhatRuns(t *testing.T) {
	w := newWorld(shipped)
	defer w.end()
	w.before()
	if err := w.whole(0, identity("a")); err != nil {
		t.Fatal(err)
	}
	// It ends between the look and the answer: that costs another try.
	request, operation := w.create(1, identity("a"))
	for range 4 {
		w.run(request, works)
	}
	delete(w.pods, identity(strayName))
	w.finish(request)
	if operation.Outcome == linear.Granted {
		t.Log("it ended before the look")
	}
	if err := w.check(); err != nil {
		t.Fatal(err)
	}
	if err := w.passes(3 * time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := w.whole(0, identity("a")); err != nil {
		t.Fatal(err)
	}
	if holder := w.policy.Status.Holder; holder == nil || holder.Name != "a" {
		t.Fatalf("the slot is not given once nothing runs: %+v", holder)
	}
}

// TestFaultsAreFound shows that the simulation is able to see what it is there
// for: it finds a guard that breaks each promise.
func TestFaultsAreFound(t *testing.T) {
	bent := func(bend func(*rules)) *world {
		changed := shipped
		bend(&changed)
		return newWorld(changed)
	}
	a, b := identity("a"), identity("b")
	tests := map[string]struct {
		bend func(*rules)
		// play returns what the simulation says.
		play func(*world) error
	}{
		// Both have read that the slot is free.
		"without compare-and-swap": {func(r *rules) { r.blind = true }, func(w *world) error {
			one, _ := w.create(0, a)
			two, _ := w.create(1, b)
			for range 4 { // Up to the write.
				w.run(one, works)
				w.run(two, works)
			}
			w.finish(one)
			w.finish(two)
			return w.explained()
		}},
		// A request that was let in outlives the reservation.
		"reservation shorter than a request": {func(r *rules) { r.limits.Reservation, r.limits.Release = 5*time.Second, 15*time.Second }, func(w *world) error {
			one, _ := w.create(0, a)
			for w.policy.Status.Holder == nil {
				w.run(one, works)
			}
			if err := w.passes(40 * time.Second); err != nil {
				return err
			}
			w.finish(one)
			return w.check()
		}},
		// A Pod that was let in before the pin was cleared is stored after it.
		"release shorter than a request": {func(r *rules) { r.limits.Release = 15 * time.Second }, func(w *world) error {
			if err := w.whole(0, a); err != nil {
				return err
			}
			if err := w.passes(20 * time.Second); err != nil { // Every API server knows.
				return err
			}
			w.makePod(0, w.made[0])
			w.run(w.tasks[0], works) // Let in, and not yet stored.
			clear(w.sets)
			if err := w.passes(40 * time.Second); err != nil {
				return err
			}
			if err := w.whole(0, b); err != nil {
				return err
			}
			w.tick(5 * time.Second)
			w.servers[0] = len(w.stored) - 1
			return w.check()
		}},
		// An API server still pins the last holder.
		"release shorter than the lag": {func(r *rules) { r.limits.Release = 2 * time.Second }, func(w *world) error {
			if err := w.whole(0, a); err != nil {
				return err
			}
			if err := w.passes(20 * time.Second); err != nil {
				return err
			}
			clear(w.sets)
			if err := w.passes(3 * time.Second); err != nil {
				return err
			}
			if err := w.whole(0, b); err != nil {
				return err
			}
			w.servers[1] = len(w.stored) - 1
			return w.check()
		}},
		// A guard still decides by the last holder.
		"policy remembered for longer than a release": {func(r *rules) { r.maxAge = 10 * time.Minute }, func(w *world) error {
			if err := w.whole(0, a); err != nil {
				return err
			}
			if err := w.passes(time.Second); err != nil {
				return err
			}
			if err := w.whole(0, b); err != nil { // Refused, and remembered.
				return err
			}
			clear(w.sets)
			if err := w.passes(2 * time.Minute); err != nil {
				return err
			}
			_ = w.whole(0, b)
			return w.explained()
		}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := bent(test.bend)
			defer w.end()
			err := test.play(w)
			if err == nil {
				t.Fatal("nothing was found")
			}
			t.Log(err)
			// The same with the limits that are shipped.
			good := newWorld(shipped)
			defer good.end()
			if err := test.play(good); err != nil {
				t.Fatalf("with the shipped limits: %v", err)
			}
		})
	}
}
