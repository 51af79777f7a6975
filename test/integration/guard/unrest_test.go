package guard_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"syscall"
	"time"
)

// unrest kills and stalls guards at random, and starts others in place of those
// that it killed. One of them is always left alone.
//
//	begin ── some time into the round ──> SIGKILL one, SIGSTOP another
//	settle <── the round is over ──────── SIGCONT, a new one for the dead
type unrest struct {
	*suite
	random *rand.Rand
	args   []string
	// often is the chance, in percent, that a round has a kill, and that it has a
	// stall.
	often int
	// longest is how long a guard is stalled at most, but for one stall in twenty,
	// which outlasts the API servers' patience.
	longest time.Duration

	killed, stalled int
	waiting         sync.WaitGroup
}

// running are the guards that have not ended.
func (s *suite) running() []*guard {
	var running []*guard
	for _, g := range s.guards {
		if _, ended := g.process.Status(); !ended {
			running = append(running, g)
		}
	}
	return running
}

// begin chooses what happens in a round, and lets it happen.
func (u *unrest) begin(round int) {
	u.t.Helper()
	guards := u.running()
	if len(guards) < 3 {
		return // One has ended by itself; settle starts another.
	}
	u.random.Shuffle(len(guards), func(i, j int) { guards[i], guards[j] = guards[j], guards[i] })
	// The first rounds have one of each, so that a short run has, too.
	if round == 2 || u.random.IntN(100) < u.often {
		victim := guards[0]
		u.killed++
		u.after(u.upTo(60*time.Millisecond), victim.process.Kill)
	}
	if round == 4 || u.random.IntN(100) < u.often {
		stalled := guards[1]
		u.stalled++
		length := u.upTo(u.longest)
		if u.random.IntN(20) == 0 {
			length = time.Duration(u.timeout)*time.Second + 500*time.Millisecond
		}
		u.after(u.upTo(40*time.Millisecond), func() {
			// It never ends by itself, so that both signals reach it.
			_ = stalled.process.Signal(syscall.SIGSTOP)
			time.Sleep(length)
			_ = stalled.process.Signal(syscall.SIGCONT)
		})
	}
}

func (u *unrest) upTo(d time.Duration) time.Duration { return time.Duration(u.random.Int64N(int64(d))) }

// after does something while the round goes on.
func (u *unrest) after(d time.Duration, do func()) {
	u.waiting.Go(func() {
		time.Sleep(d)
		do()
	})
}

// settle ends the round: nobody is stalled, and for each of the dead a new guard
// starts, to which the API servers may come before it is ready.
func (u *unrest) settle() {
	u.t.Helper()
	u.waiting.Wait()
	u.revive(u.args...)
}

// revive starts a guard in place of each that has ended: one that was killed, or
// one that led and could not renew its Lease in time.
func (s *suite) revive(args ...string) {
	s.t.Helper()
	for i, g := range s.guards {
		if _, ended := g.process.Status(); !ended || g.replaced {
			continue
		}
		s.guards[i].replaced = true
		s.balancer.drop(g.webhook)
		s.balancer.add(s.launch(guardConfig{server: g.config.server, args: args}).webhook)
	}
}

// drop sends no new connection to a target.
func (b *balancer) drop(target string) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.targets = slices.DeleteFunc(b.targets, func(other string) bool { return other == target })
}
