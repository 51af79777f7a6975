package singleton

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// board is an API server that keeps one mark.
type board struct {
	identity *Identity
	version  int
	err      error
	// between runs after a mark was read: what others do meanwhile.
	between func()
}

func (b *board) Read(context.Context) (Marked, error) {
	if b.err != nil {
		return Marked{}, b.err
	}
	marked := Marked{Identity: b.identity, Version: strconv.Itoa(b.version)}
	if between := b.between; between != nil {
		b.between = nil
		between()
	}
	return marked, nil
}

func (b *board) Write(_ context.Context, read Marked, identity *Identity) error {
	switch {
	case b.err != nil:
		return b.err
	case read.Version != strconv.Itoa(b.version):
		return ErrMarkConflict
	}
	b.version++
	b.identity = identity
	return nil
}

func (b *board) names(m *member) bool { return b.identity != nil && *b.identity == m.Identity }

func TestMarkFollowsTheLease(t *testing.T) {
	s, b := &store{}, &board{}
	first, second := memberOf(s, "a"), memberOf(s, "b")
	first.Mark, second.Mark = b, b
	if !first.take(t) {
		t.Fatal("the lease is not taken")
	}
	if _, replaced, err := first.tryMark(t.Context(), first.held); err != nil || replaced || !b.names(first) {
		t.Fatalf("marked %+v, replaced %v, %v", b.identity, replaced, err)
	}
	// The first is paused when it has just looked, and the second takes over meanwhile.
	b.identity = nil
	b.version++
	second.take(t)
	b.between = func() {
		pass(Duration+time.Second, first, second)
		if !second.take(t) {
			t.Fatal("the lease is not taken over")
		}
		if _, _, err := second.tryMark(t.Context(), second.held); err != nil || !b.names(second) {
			t.Fatalf("the second is not marked: %v", err)
		}
	}
	if _, _, err := first.tryMark(t.Context(), first.held); !errors.Is(err, ErrLost) {
		t.Errorf("the first marks itself without the lease: %v", err)
	}
	if !b.names(second) {
		t.Errorf("marked is %+v", b.identity)
	}
	// It takes off its own mark alone.
	first.unmark(t.Context())
	if !b.names(second) {
		t.Error("the first took the second's mark off")
	}
	second.unmark(t.Context())
	if b.identity != nil {
		t.Error("the second's mark is still there")
	}
}

func TestMarkThatCannotBeMade(t *testing.T) {
	for name, err := range map[string]error{"none": ErrNoMark, "forbidden": ErrMarkForbidden} {
		s := &store{}
		m := memberOf(s, "a")
		m.Mark = &board{err: err}
		if !m.take(t) {
			t.Fatal("the lease is not taken")
		}
		if held, err := m.mark(t.Context(), m.held); err != nil || held == nil {
			t.Errorf("%s: it does not begin: %v", name, err)
		}
	}
	// An API server that is ill costs the time until it is well, not the Lease.
	s, b := &store{}, &board{err: errors.New("ill")}
	m := memberOf(s, "a")
	m.Mark = b
	if !m.take(t) {
		t.Fatal("the lease is not taken")
	}
	pass(RetryPeriod, m)
	if renewed, _, err := m.tryMark(t.Context(), m.held); err == nil || renewed == nil {
		t.Errorf("renewed %v, %v", renewed, err)
	}
	if _, err := m.markAgain(t.Context(), m.held); err != nil {
		t.Errorf("the hold ends over a mark: %v", err)
	}
}

// However the steps of two processes interleave, whoever took the Lease last is
// marked in the end, and a process that lost it never marks itself again.
func TestMarkInterleaved(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		s, b := &store{}, &board{}
		members := []*member{memberOf(s, "a"), memberOf(s, "b"), memberOf(s, "c")}
		read := map[*member]*Marked{}
		renewed := map[*member]bool{}
		var last *member
		for range rapid.IntRange(1, 60).Draw(rt, "steps") {
			m := rapid.SampledFrom(members).Draw(rt, "member")
			switch rapid.IntRange(0, 4).Draw(rt, "what") {
			case 0:
				if held, _, err := m.tryAcquire(t.Context(), &m.seen); err == nil && held != nil {
					m.held, last = held, m
					read[m], renewed[m] = nil, false
				}
			case 1:
				if m.held != nil {
					marked, _ := b.Read(t.Context())
					read[m], renewed[m] = &marked, false
				}
			case 2:
				if m.held != nil && read[m] != nil {
					held, err := m.tryRenew(t.Context(), m.held)
					if err != nil {
						m.held, read[m] = nil, nil
						break
					}
					m.held, renewed[m] = held, true
				}
			case 3:
				if read[m] != nil && renewed[m] && b.Write(t.Context(), *read[m], &m.Identity) == nil {
					read[m] = nil
					// Another may have the Lease since, and has not marked itself yet: then it is
					// not at work.
					if last != m && b.names(m) && read[last] == nil && renewed[last] {
						rt.Fatalf("%s marked itself over %s, which is at work", m.Identity, last.Identity)
					}
				}
			case 4:
				pass(time.Duration(rapid.IntRange(1, 20).Draw(rt, "seconds"))*time.Second, members...)
			}
		}
	})
}
