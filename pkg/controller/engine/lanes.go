package engine

import (
	"container/list"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// stallAfter is how long a pass keeps a worker at most. A pass takes milliseconds;
// one that takes longer nearly always waits for its hook.
const stallAfter = time.Second

// lanes keep parents whose passes stall from holding up all others of their
// controller:
//
//	queue ─> worker ─> pass ── ends within stallAfter ──────────────> outcome
//	            │        └──── does not: goes on beside the workers ─┐
//	            └─ stalled the last time: begins there, or waits ────┴─> queue ─> worker ─> outcome
//
// There are as many places beside the workers as there are workers. So a hook
// sees twice that many calls at once at most; and while all parents stall, which
// only means that the hook is slow, it sees as many as there are workers. When the
// places are taken, passes stall on their workers. When all workers are held by
// such passes while others wait, one of them after the other, at intervals of
// stallAfter, is broken off, to begin anew once there is a place: one worker always
// moves on.
//
// What a pass beside the workers came to is reported by a worker: the parent goes
// through the queue again for it. That is how the queue counts, logs and retries
// all passes alike. One parent never has two passes at once.
type lanes struct {
	clock clock.Clock
	// begin makes the context of a pass, which its end ends.
	begin func() (context.Context, context.CancelFunc)
	// sync makes a pass. It is called from goroutines of its own.
	sync func(context.Context, object.Key) Outcome
	// ready is how many parents wait for a worker.
	ready func() int
	// wake puts a parent into the queue.
	wake func(object.Key)
	// places is how many passes there may be beside the workers, which are as many.
	places int

	mu sync.Mutex // guards all below; never held while a pass is made
	// aside are the parents whose last pass stalled, or whose present one does.
	aside map[object.Key]*stalled
	// working are the passes on workers; nil before the first one.
	working map[object.Key]*pass
	// taken is how many places are.
	taken int
	// blocked are passes that stall on their workers, for there was no place;
	// oldest first.
	blocked []*pass
	// first and later are the keys of parents that wait for a place, oldest first:
	// those that something happened to, and the others.
	first, later list.List
	closed       bool
	// passes are all that go on.
	passes sync.WaitGroup
}

// stalled is a parent whose last pass stalled, or whose present one does.
type stalled struct {
	state stalledState
	// urgent says that something happened to it since its last pass began.
	urgent bool
	// again says that it is to have another pass after this one.
	again bool
	// place is where in first or later it waits; nil otherwise.
	place *list.Element
	// outcome of the pass that ended, and whether that was a quick one.
	outcome Outcome
	cured   bool
}

// stalledState is what a stalled parent is about.
type stalledState int

const (
	// stalledIdle: nothing. The zero value.
	stalledIdle stalledState = iota
	// stalledWaiting: for a place.
	stalledWaiting
	// stalledRunning: in a place.
	stalledRunning
	// stalledEnded: what it came to is to be reported.
	stalledEnded
)

// pass is one that began on a worker.
type pass struct {
	key object.Key
	// done has its outcome if it ended on the worker.
	done chan Outcome
	// left is closed when it left its worker.
	left chan struct{}

	// breakOff ends it.
	breakOff context.CancelFunc

	// aside says that it left its worker; over that it ended there; broken that it
	// was broken off. Again says that its parent is to have another one: something
	// happened, and of a parent that leaves its worker the queue may show that only
	// when it shows the end of the pass too. Guarded by lanes.mu.
	aside, over, broken, again bool
}

// isolated keeps a panic of a pass from ending the program: no worker is above it
// to recover.
func isolated(sync func(context.Context, object.Key) Outcome) func(context.Context, object.Key) Outcome {
	return func(ctx context.Context, key object.Key) (outcome Outcome) {
		defer func() {
			if recovered := recover(); recovered != nil {
				outcome = Outcome{Verdict: Failed, Err: fmt.Errorf("the sync broke off by a fault of the program: %v", recovered)}
			}
		}()
		return sync(ctx, key)
	}
}

// run makes a pass for a parent, or reports the one that was made beside the
// workers. It is called by a worker, for one parent by one at a time. If it
// reports false there is nothing to do until the parent comes out of the queue
// again.
func (l *lanes) run(key object.Key) (Outcome, bool) {
	l.mu.Lock()
	parent := l.aside[key]
	if parent == nil {
		ctx, breakOff := l.begin()
		p := &pass{key: key, done: make(chan Outcome, 1), left: make(chan struct{}), breakOff: breakOff}
		if l.working == nil {
			l.working = map[object.Key]*pass{}
		}
		l.working[key] = p
		l.mu.Unlock()
		return l.onWorker(ctx, p)
	}
	defer l.mu.Unlock()
	switch parent.state {
	case stalledIdle:
		l.waitLocked(key, parent)
		l.fillLocked()
	case stalledRunning:
		parent.again = true
	case stalledEnded:
		if parent.cured || parent.outcome.Verdict == Gone {
			delete(l.aside, key)
		} else {
			l.aside[key] = &stalled{urgent: parent.urgent}
		}
		if parent.again {
			l.wake(key)
		}
		return parent.outcome, true
	}
	return Outcome{}, false
}

// waitLocked has a parent wait for a place.
func (l *lanes) waitLocked(key object.Key, parent *stalled) {
	line := &l.later
	if parent.urgent {
		line = &l.first
	}
	parent.state, parent.place = stalledWaiting, line.PushBack(key)
}

// onWorker makes a pass, and leaves it alone when it stalls and there is a place
// for it.
func (l *lanes) onWorker(ctx context.Context, p *pass) (Outcome, bool) {
	l.passes.Go(func() {
		defer p.breakOff()
		begun := l.clock.Now()
		outcome := l.sync(ctx, p.key)
		switch aside, broken := l.over(p); {
		case aside:
			l.end(p.key, outcome, l.clock.Since(begun))
		case broken:
			close(p.left)
		default:
			p.done <- outcome
		}
	})
	timer := l.clock.NewTimer(stallAfter)
	defer timer.Stop()
	for {
		select {
		case outcome := <-p.done:
			return outcome, true
		case <-p.left:
			return Outcome{}, false
		case <-timer.C():
			l.stalls(p)
			timer.Reset(stallAfter)
		}
	}
}

// over notes the end of a pass that began on a worker, and says whether it left
// that, or was broken off.
func (l *lanes) over(p *pass) (aside, broken bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p.aside {
		return true, false
	}
	p.over = true
	delete(l.working, p.key)
	l.blocked = slices.DeleteFunc(l.blocked, func(other *pass) bool { return other == p })
	if p.broken && !l.closed {
		// It is to have its whole time, as soon as there is a place.
		parent := &stalled{urgent: true}
		l.aside[p.key] = parent
		l.waitLocked(p.key, parent)
		l.fillLocked()
		return false, true
	}
	return false, false
}

// stalls has a pass leave its worker as soon as there is a place; or breaks it off,
// if it is the one that has held its worker longest, and all others are held too.
func (l *lanes) stalls(p *pass) {
	waiting := l.ready() > 0
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case p.over || p.aside || p.broken:
	case !slices.Contains(l.blocked, p):
		l.blocked = append(l.blocked, p)
		l.fillLocked()
	case waiting && len(l.blocked) == l.places && l.blocked[0] == p:
		// It must not get a place: what is left of it is no pass.
		l.blocked = l.blocked[1:]
		p.broken = true
		p.breakOff()
	}
}

// end notes what a pass beside the workers came to.
func (l *lanes) end(key object.Key, outcome Outcome, took time.Duration) {
	l.mu.Lock()
	parent := l.aside[key]
	parent.state, parent.outcome, parent.cured = stalledEnded, outcome, took < stallAfter
	l.taken--
	l.fillLocked()
	l.mu.Unlock()
	l.wake(key)
}

// note says that parents are about to be put into the queue for something that
// happened, or, if it is later, for something that nobody waits for. Of a parent
// that is there to be reported the queue would not show it.
func (l *lanes) note(later bool, keys ...object.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.aside) == 0 && len(l.working) == 0 {
		return
	}
	for _, key := range keys {
		if p := l.working[key]; p != nil {
			p.again = true
		}
		parent := l.aside[key]
		if parent == nil {
			continue
		}
		if parent.state == stalledRunning || parent.state == stalledEnded {
			parent.again = true
		}
		if later || parent.urgent {
			continue
		}
		parent.urgent = true
		if parent.state == stalledWaiting {
			l.later.Remove(parent.place)
			parent.place = l.first.PushBack(key)
		}
	}
}

// fillLocked gives the free places to passes that hold a worker, then to parents
// that wait.
func (l *lanes) fillLocked() {
	for l.taken < l.places && len(l.blocked) > 0 {
		p := l.blocked[0]
		l.blocked = l.blocked[1:]
		p.aside = true
		l.taken++
		delete(l.working, p.key)
		l.aside[p.key] = &stalled{state: stalledRunning, again: p.again, urgent: p.again}
		close(p.left)
	}
	for l.taken < l.places && !l.closed {
		line := &l.first
		if line.Len() == 0 {
			line = &l.later
		}
		if line.Len() == 0 {
			return
		}
		key := line.Remove(line.Front()).(object.Key)
		l.taken++
		l.aside[key] = &stalled{state: stalledRunning}
		l.passes.Go(func() {
			ctx, end := l.begin()
			defer end()
			begun := l.clock.Now()
			outcome := l.sync(ctx, key)
			l.end(key, outcome, l.clock.Since(begun))
		})
	}
}

// shut begins no more passes for parents that wait.
func (l *lanes) shut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
}

// wait returns after the last pass has, once no worker makes new ones.
func (l *lanes) wait() {
	l.shut()
	l.passes.Wait()
}
