package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// passes are made by hand: each waits until it is let go.
type passes struct {
	t     *testing.T
	clock *clocktesting.FakeClock
	lanes *lanes
	// ready is how many wait in the queue.
	ready atomic.Int32

	mu    sync.Mutex // guards all below
	gates map[string]chan struct{}
	begun []string
	woken []string
	// changed is closed by the next change of begun or woken.
	changed chan struct{}
}

func newPasses(t *testing.T, places int) *passes {
	p := &passes{t: t, clock: clocktesting.NewFakeClock(time.Unix(1e9, 0)), gates: map[string]chan struct{}{}, changed: make(chan struct{})}
	p.lanes = &lanes{
		clock: p.clock, places: places, sync: isolated(p.sync),
		begin: func() (context.Context, context.CancelFunc) { return context.WithCancel(t.Context()) },
		ready: func() int { return int(p.ready.Load()) },
		wake:  func(key object.Key) { p.add(&p.woken, key.Name) },
		aside: map[object.Key]*stalled{},
	}
	return p
}

func (p *passes) add(to *[]string, name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*to = append(*to, name)
	close(p.changed)
	p.changed = make(chan struct{})
}

// stall makes the passes of a parent wait; the function lets one go.
func (p *passes) stall(name string) func() {
	p.mu.Lock()
	defer p.mu.Unlock()
	gate := make(chan struct{})
	p.gates[name] = gate
	return func() { gate <- struct{}{} }
}

func (p *passes) sync(ctx context.Context, key object.Key) Outcome {
	p.add(&p.begun, key.Name)
	p.mu.Lock()
	gate := p.gates[key.Name]
	p.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return Outcome{}
		}
	}
	if key.Name == "panics" {
		panic("for the test")
	}
	return Outcome{Verdict: Done, After: time.Duration(len(key.Name))}
}

// await waits until a list is this.
func (p *passes) await(list *[]string, want ...string) {
	p.t.Helper()
	limit := time.NewTimer(20 * time.Second)
	defer limit.Stop()
	for {
		p.mu.Lock()
		got, changed := slices.Clone(*list), p.changed
		p.mu.Unlock()
		if slices.Equal(got, want) {
			return
		}
		select {
		case <-changed:
		case <-limit.C:
			p.t.Fatalf("it is %q, not %q", got, want)
		}
	}
}

// result of one call of run.
type result struct {
	outcome Outcome
	ended   bool
}

// work has a worker run a parent.
func (p *passes) work(name string) <-chan result {
	out := make(chan result, 1)
	go func() {
		outcome, ended := p.lanes.run(thing.Key("ns", name))
		out <- result{outcome, ended}
	}()
	return out
}

// expire lets the time pass after which a pass counts as stalled, once a worker
// waits for it.
func (p *passes) expire() {
	p.t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !p.clock.HasWaiters(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			p.t.Fatal("no worker waits")
		}
	}
	p.clock.Step(stallAfter)
}

func (p *passes) want(got <-chan result, ended bool) Outcome {
	p.t.Helper()
	select {
	case r := <-got:
		if r.ended != ended {
			p.t.Fatalf("it reports %v", r.ended)
		}
		return r.outcome
	case <-time.After(20 * time.Second):
		p.t.Fatal("the worker is held")
		return Outcome{}
	}
}

func TestStalledPassesLeaveTheirWorkers(t *testing.T) {
	p := newPasses(t, 1)
	releaseA, releaseB := p.stall("a"), p.stall("b")

	// The first one that stalls goes on beside the workers.
	worker := p.work("a")
	p.expire()
	p.want(worker, false)
	p.want(p.work("quick"), true)

	// Nothing begins twice.
	p.want(p.work("a"), false)
	p.await(&p.begun, "a", "quick")

	// The second one holds its worker, for the place is taken, until that is free.
	worker = p.work("b")
	p.expire()
	select {
	case <-worker:
		t.Fatal("the second left its worker")
	case <-time.After(20 * time.Millisecond):
	}
	releaseA()
	p.want(worker, false)
	p.await(&p.woken, "a")

	// What became of the first is reported, and it is to run again, for it came out
	// of the queue while it ran. It stalled, so it waits for a place.
	if outcome := p.want(p.work("a"), true); outcome.Verdict != Done || outcome.After != 1 {
		t.Errorf("the outcome is %+v", outcome)
	}
	p.await(&p.woken, "a", "a")
	p.want(p.work("a"), false)
	p.await(&p.begun, "a", "quick", "b")
	releaseB()
	p.await(&p.begun, "a", "quick", "b", "a")

	// This one is quick, and the parent like any other after it.
	releaseA()
	p.await(&p.woken, "a", "a", "b", "a")
	p.want(p.work("a"), true)
	worker = p.work("a")
	releaseA()
	p.want(worker, true)
	p.lanes.wait()
}

// Events that come while a pass ends are not lost, whatever the order.
func TestEventsOfStalledParentsAreNotLost(t *testing.T) {
	p := newPasses(t, 1)
	key := thing.Key("ns", "a")
	release := p.stall("a")
	worker := p.work("a")
	p.expire()
	p.want(worker, false)
	release()
	p.await(&p.woken, "a")
	// The queue has the parent already, for the report.
	p.lanes.note(false, key)
	p.want(p.work("a"), true)
	p.await(&p.woken, "a", "a")
	p.want(p.work("a"), false)
	p.await(&p.begun, "a", "a")
	release()
	p.lanes.wait()
}

func TestStalledParentsThatAreWaitedForComeFirst(t *testing.T) {
	p := newPasses(t, 1)
	release := map[string]func(){}
	for _, name := range []string{"x", "a", "b"} {
		release[name] = p.stall(name)
		p.lanes.aside[thing.Key("ns", name)] = &stalled{}
		p.want(p.work(name), false)
	}
	p.await(&p.begun, "x")
	p.lanes.note(true, thing.Key("ns", "b")) // somebody may wait, but nobody does
	p.lanes.note(false, thing.Key("ns", "b"))
	release["x"]()
	p.await(&p.begun, "x", "b")
	release["b"]()
	p.await(&p.begun, "x", "b", "a")
	p.lanes.shut()
	p.want(p.work("x"), true)
	p.lanes.note(false, thing.Key("ns", "x"))
	release["a"]()
	p.lanes.wait()
	p.await(&p.begun, "x", "b", "a")
}

// When all workers are held and there is no place, one of the passes is broken off
// for those that wait, and begins anew when there is a place.
func TestOneWorkerAlwaysMovesOn(t *testing.T) {
	p := newPasses(t, 2)
	var workers []<-chan result
	release := map[string]func(){}
	for _, name := range []string{"a", "b", "c", "d"} {
		release[name] = p.stall(name)
	}
	for i, name := range []string{"a", "b", "c", "d"} {
		workers = append(workers, p.work(name))
		p.await(&p.begun, []string{"a", "b", "c", "d"}[:i+1]...)
		p.expire()
		if i < 2 {
			p.want(workers[i], false)
		}
	}
	blocked := func(n int) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			p.lanes.mu.Lock()
			got := len(p.lanes.blocked)
			p.lanes.mu.Unlock()
			if got == n {
				return
			}
			p.clock.Step(stallAfter)
			if time.Now().After(deadline) {
				t.Fatalf("%d passes hold a worker, not %d", got, n)
			}
		}
	}
	blocked(2)
	p.expire() // nobody waits
	blocked(2)
	p.ready.Store(1)
	var broken, held <-chan result
	for deadline := time.Now().Add(20 * time.Second); broken == nil; {
		if time.Now().After(deadline) {
			t.Fatal("no pass is broken off")
		}
		p.clock.Step(stallAfter)
		select {
		case r := <-workers[2]:
			broken, held = reported(r), workers[3]
		case r := <-workers[3]:
			broken, held = reported(r), workers[2]
		case <-time.After(time.Millisecond):
		}
	}
	if r := <-broken; r.ended {
		t.Error("a pass that was broken off is reported")
	}
	blocked(1)
	// One is free now, so the other one is left alone.
	p.clock.Step(stallAfter)
	p.want(p.work("quick"), true)
	p.await(&p.begun, "a", "b", "c", "d", "quick")
	blocked(1)
	// The pass that holds a worker is the first to get a place, then the one that was
	// broken off.
	release["a"]()
	p.want(held, false)
	release["b"]()
	again := "c"
	if held == workers[2] {
		again = "d"
	}
	p.await(&p.begun, "a", "b", "c", "d", "quick", again)
	release["c"]()
	release["d"]()
	p.lanes.wait()
}

func reported(r result) <-chan result {
	out := make(chan result, 1)
	out <- r
	return out
}

func TestPanicInAPassOfItsOwnGoroutine(t *testing.T) {
	p := newPasses(t, 1)
	if outcome := p.want(p.work("panics"), true); outcome.Verdict != Failed || !strings.Contains(outcome.Err.Error(), "for the test") {
		t.Errorf("the outcome is %+v", outcome)
	}
}

// TestLanesProperty runs parents through a real queue while time flies, so that
// passes stall at random.
func TestLanesProperty(t *testing.T) {
	const workers, parents, events = 3, 12, 3000
	var (
		fake  = clocktesting.NewFakeClock(time.Unix(1e9, 0))
		queue = priorityqueue.New[object.Key](t.Name())
		mu    sync.Mutex // guards all below
		// happened and seen count the events of each parent.
		happened, seen = map[object.Key]int{}, map[object.Key]int{}
		active         = map[object.Key]bool{}
		broken         int
	)
	l := &lanes{clock: fake, places: workers, aside: map[object.Key]*stalled{}, ready: queue.Len}
	l.begin = func() (context.Context, context.CancelFunc) { return context.WithCancel(t.Context()) }
	l.wake = func(key object.Key) { queue.Add(key) }
	l.sync = func(ctx context.Context, key object.Key) Outcome {
		mu.Lock()
		if active[key] {
			t.Errorf("%s has two passes at once", key)
		}
		active[key] = true
		if len(active) > 2*workers {
			t.Errorf("%d passes at once", len(active))
		}
		shown := happened[key]
		mu.Unlock()
		select {
		case <-time.After(time.Duration(rand.IntN(200)) * time.Microsecond):
		case <-ctx.Done():
		}
		mu.Lock()
		defer mu.Unlock()
		delete(active, key)
		if ctx.Err() != nil {
			broken++
			return Outcome{}
		}
		seen[key] = shown
		return Outcome{Verdict: []Verdict{Done, Gone, Failed}[rand.IntN(3)]}
	}

	var workersDone, clockDone sync.WaitGroup
	for range workers {
		workersDone.Go(func() {
			for {
				key, shutdown := queue.Get()
				if shutdown {
					return
				}
				l.run(key)
				queue.Done(key)
			}
		})
	}
	stop := make(chan struct{})
	clockDone.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(50 * time.Microsecond):
				fake.Step(stallAfter / 2)
			}
		}
	})
	for range events {
		key := thing.Key("ns", fmt.Sprint(rand.IntN(parents)))
		mu.Lock()
		happened[key]++
		mu.Unlock()
		l.note(rand.IntN(2) == 0, key)
		queue.Add(key)
		if rand.IntN(4) == 0 {
			time.Sleep(20 * time.Microsecond)
		}
	}
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) {
		mu.Lock()
		var behind []object.Key
		for key, n := range happened {
			if seen[key] != n {
				behind = append(behind, key)
			}
		}
		mu.Unlock()
		if len(behind) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("no pass has seen the last event of %v", behind)
		}
	}
	t.Logf("%d passes were broken off", broken)
	queue.ShutDown()
	workersDone.Wait()
	l.wait()
	close(stop)
	clockDone.Wait()
}
