// Package progress knows how far the work of a phase is. It decides by what
// watches showed and asks nobody.
//
//	driver: Want ─┐
//	watches: ChildSeen, ChildGone, ParentSeen ─> Tracker ─> Status, Changed
package progress

import (
	"fmt"
	"sync"
	"time"
)

// Key is the place of an object.
type Key struct{ Namespace, Name string }

// Goal is what a finished parent has besides its children.
type Goal struct {
	// Children is how many children each parent shall have.
	Children int
	// Annotated says that the parent shall have the mark in an annotation; else it
	// shall have a status that is about its newest generation and all children.
	Annotated bool
}

// ParentState is what a watch shows of a parent.
type ParentState struct {
	Generation, ObservedGeneration int64
	// Seen is the number of children in the status.
	Seen int
	// Mark is the annotation.
	Mark string
}

// Status is how far the work is.
type Status struct {
	// Parents is how many there are, Pending how many of them are not finished.
	Parents, Pending int
	// DoneAt is when Pending became 0 the last time.
	DoneAt time.Time
	// Changes is how many events there were.
	Changes int64
}

type child struct {
	uid, mark string
	condemned bool
}

type parent struct {
	want  string
	state ParentState
	// generation is the least that the state must be about.
	generation int64
	children   map[string]child
	// fresh is the number of children as wanted; freshAt when all were.
	fresh   int
	freshAt time.Time
	done    bool
}

// Tracker follows the parents of a run. Its methods can be called from several
// goroutines.
type Tracker struct {
	goal    Goal
	changed chan struct{}

	mu      sync.Mutex // guards all below
	parents map[Key]*parent
	pending int
	doneAt  time.Time
	changes int64
}

// New makes a Tracker without parents.
func New(goal Goal) *Tracker {
	return &Tracker{goal: goal, changed: make(chan struct{}, 1), parents: map[Key]*parent{}}
}

// Changed has a value when something happened since the last one was taken. It is
// for one receiver.
func (t *Tracker) Changed() <-chan struct{} { return t.changed }

// Want says what the children of a parent are to be marked with from now on. It is
// called before the change that causes it, which a watch may show at once.
func (t *Tracker) Want(key Key, mark string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.parents[key]
	if p == nil {
		p = &parent{children: map[string]child{}}
		t.parents[key] = p
		t.pending++
	}
	p.want, p.freshAt = mark, time.Time{}
	t.judge(p, time.Time{})
}

// AtLeast says that the parent has this generation, whether a watch has shown it
// or not.
func (t *Tracker) AtLeast(key Key, generation int64, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.parents[key]; p != nil {
		p.generation = max(p.generation, generation)
		t.judge(p, at)
	}
}

// Condemn says that a child is about to be deleted: only another one of its name
// counts from now on. It reports whether there is such a child.
func (t *Tracker) Condemn(key Key, name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.parents[key]
	if p == nil || p.children[name].uid == "" {
		return false
	}
	one := p.children[name]
	one.condemned = true
	p.children[name] = one
	p.freshAt = time.Time{}
	t.judge(p, time.Time{})
	return true
}

// ChildSeen says that a watch showed a child of a parent.
func (t *Tracker) ChildSeen(key Key, name, uid, mark string, at time.Time) {
	t.event(key, at, func(p *parent) {
		known := p.children[name]
		p.children[name] = child{uid: uid, mark: mark, condemned: known.condemned && known.uid == uid}
	})
}

// ChildGone says that a watch showed the deletion of a child.
func (t *Tracker) ChildGone(key Key, name string, at time.Time) {
	t.event(key, at, func(p *parent) { delete(p.children, name) })
}

// ParentSeen says that a watch showed a parent.
func (t *Tracker) ParentSeen(key Key, state ParentState, at time.Time) {
	t.event(key, at, func(p *parent) { p.state = state })
}

func (t *Tracker) event(key Key, at time.Time, change func(*parent)) {
	t.mu.Lock()
	t.changes++
	if p := t.parents[key]; p != nil {
		change(p)
		t.judge(p, at)
	}
	t.mu.Unlock()
	select {
	case t.changed <- struct{}{}:
	default:
	}
}

// judge looks at a parent again after a change.
func (t *Tracker) judge(p *parent, at time.Time) {
	p.fresh = 0
	for _, one := range p.children {
		if one.mark == p.want && !one.condemned {
			p.fresh++
		}
	}
	fresh := p.fresh == t.goal.Children && len(p.children) == t.goal.Children
	if fresh && p.freshAt.IsZero() {
		p.freshAt = at
	}
	if done := fresh && t.told(p); done != p.done {
		p.done = done
		if !done {
			t.pending++
			return
		}
		if t.pending--; t.pending == 0 {
			t.doneAt = at
		}
	}
}

// told says whether the parent itself is as it shall be.
func (t *Tracker) told(p *parent) bool {
	if t.goal.Annotated {
		return p.state.Mark == p.want
	}
	return p.state.Generation >= p.generation && p.state.Generation > 0 &&
		p.state.ObservedGeneration == p.state.Generation && p.state.Seen == t.goal.Children
}

// Status is how far the work is now.
func (t *Tracker) Status() Status {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Status{Parents: len(t.parents), Pending: t.pending, DoneAt: t.doneAt, Changes: t.changes}
}

// Of tells when a watch showed that all children of a parent are as they were last
// wanted, zero if it has not; and whether the parent is finished.
func (t *Tracker) Of(key Key) (childrenAt time.Time, done bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := t.parents[key]
	if p == nil {
		return time.Time{}, false
	}
	return p.freshAt, p.done
}

// Missing describes what is not finished, for an error.
func (t *Tracker) Missing() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, p := range t.parents {
		if !p.done {
			return fmt.Sprintf("%d of %d parents are not finished; %s/%s for one has %d of %d children with mark %q, and is itself at %+v",
				t.pending, len(t.parents), key.Namespace, key.Name, p.fresh, t.goal.Children, p.want, p.state)
		}
	}
	return fmt.Sprintf("all of %d parents are finished", len(t.parents))
}
