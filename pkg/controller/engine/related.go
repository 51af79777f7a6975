package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	"github.com/metacontroller-solo/solo/pkg/controller/related"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// relatedLinger is how long the copy of a kind is kept that no rule names any
// more: a parent that comes and goes does not fill it anew each time.
const relatedLinger = time.Minute

// ErrFilling says that the copy of a kind is not complete yet.
var ErrFilling = errors.New("the objects are still being listed")

// Lookup finds a resource by its plural name. Absent is true if the API server is
// known not to serve it; another error may pass.
type Lookup func(ctx context.Context, apiVersion, resource string) (kind object.Kind, absent bool, err error)

// Related is the related objects of one controller: the rules of its parents, the
// copies of the kinds that they name, and the way from a change of an object to
// the parents that are shown it.
//
//	Set(parent, rules) ─> index ─ kinds ─> open copies, release those not used
//	informer event ─> pending ─ worker ─> index.Affected ─> queue of parents
//
// No change is lost between the call of the customize hook and the pass that acts
// on it. A pass registers the rules first (Set), then reads the copies (Select).
// An event reaches the worker after the copy has the change. If the worker looks
// into the index before Set, then the change is in the copy before Select. If it
// looks after, then it finds the parent. Events of the first list are left out
// for the same reason: Select refuses to read a copy before it is complete.
//
// Rules stay until there are new ones. A parent whose hook fails is still found
// by its old ones, and is tried again anyway.
type Related struct {
	open   func(object.Kind) Cache
	lookup Lookup
	clock  clock.Clock

	mu sync.Mutex
	// index of the rules. Guarded by mu.
	index *related.Index
	// held are the copies in use, and those that linger. Guarded by mu.
	held map[object.Kind]*heldCopy
	// waiting are parents that name a kind that is not there. Guarded by mu.
	waiting map[object.Key]struct{}
	// filled are parents that wanted a copy that is full now. Guarded by mu.
	filled map[object.Key]struct{}
	// closed says that no copy is opened any more. Guarded by mu.
	closed bool

	pendingMu sync.Mutex
	// pending are changes that the worker has not looked at. Guarded by pendingMu,
	// which is all that a handler waits for.
	pending map[object.Key]*pendingChange
	// recheck says that the kinds are to be looked up. Guarded by pendingMu.
	recheck bool
	// wake tells the worker that there is something in the above, or that a copy
	// lingers.
	wake chan struct{}
}

// heldCopy is one copy.
type heldCopy struct {
	Cache
	// stop ends the goroutine that waits until it is full.
	stop func()
	// wanted are parents that found it not full. Guarded by mu of Related.
	wanted map[object.Key]struct{}
	// idleSince is when the last rule about it went; zero while there is one.
	idleSince time.Time
}

// pendingChange is what happened to one object since the worker looked: many
// changes are one.
type pendingChange struct {
	// had are the sets of labels that it had, each once.
	had []labels.Set
	// newOrGone says that it came into being, or ended, in that time.
	newOrGone bool
}

// NewRelated makes it without any rules. It must be closed.
func NewRelated(open func(object.Kind) Cache, lookup Lookup, clock clock.Clock) *Related {
	return &Related{
		open: open, lookup: lookup, clock: clock,
		index:   related.NewIndex(),
		held:    map[object.Kind]*heldCopy{},
		waiting: map[object.Key]struct{}{},
		filled:  map[object.Key]struct{}{},
		pending: map[object.Key]*pendingChange{},
		wake:    make(chan struct{}, 1),
	}
}

// Kind finds the kind that a rule of the parent names. If there is none the
// parent is synced once that may have changed.
func (r *Related) Kind(ctx context.Context, parent object.Key, apiVersion, resource string) (object.Kind, error) {
	kind, _, err := r.lookup(ctx, apiVersion, resource)
	if err == nil {
		return kind, nil
	}
	r.mu.Lock()
	r.waiting[parent] = struct{}{}
	r.mu.Unlock()
	// It may have come just before anybody knew that this parent waits for it.
	kind, _, err = r.lookup(ctx, apiVersion, resource)
	return kind, err
}

// Set makes rules the rules of a parent, and opens what they need.
func (r *Related) Set(parent object.Key, rules *related.Rules) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, parent)
	r.replace(parent, rules)
	for _, kind := range rules.Uses() {
		if err := r.hold(kind); err != nil {
			return err
		}
	}
	return nil
}

// Forget removes the rules of a parent that is gone, or not the controller's any
// more.
func (r *Related) Forget(parent object.Key) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, parent)
	for _, held := range r.held {
		delete(held.wanted, parent)
	}
	r.replace(parent, nil)
}

// replace changes the index; what nobody needs any more begins to linger. The
// caller holds mu.
func (r *Related) replace(parent object.Key, rules *related.Rules) {
	before := r.index.Of(parent)
	if before == rules {
		return
	}
	r.index.Set(parent, rules)
	for _, kind := range before.Uses() {
		if held := r.held[kind]; held != nil && !r.index.Used(kind) {
			held.idleSince = r.clock.Now()
			r.signal()
		}
	}
}

// hold opens the copy of a kind, if it is not open. The caller holds mu; nothing
// here waits for the API server.
func (r *Related) hold(kind object.Kind) error {
	if held := r.held[kind]; held != nil {
		held.idleSince = time.Time{}
		return nil
	}
	if r.closed {
		return context.Canceled
	}
	cache := r.open(kind)
	if err := cache.Handle(r.changed); err != nil {
		// Nobody has heard of it yet, so that its end waits for nobody.
		cache.Release()
		return fmt.Errorf("cannot watch %q of %q: %w", kind.Resource, kind.APIVersion(), err)
	}
	held := &heldCopy{Cache: cache, wanted: map[object.Key]struct{}{}}
	r.held[kind] = held
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	held.stop = func() { cancel(); <-done }
	go func() {
		defer close(done)
		if cache.WaitForSync(ctx) == nil {
			r.full(held)
		}
	}()
	return nil
}

// full brings the parents that wanted a copy to the worker: what they have waited
// for may be there long before the back-off lets them try again.
func (r *Related) full(held *heldCopy) {
	r.mu.Lock()
	for parent := range held.wanted {
		r.filled[parent] = struct{}{}
	}
	clear(held.wanted)
	r.mu.Unlock()
	r.signal()
}

// release ends a copy that is not held any more. It waits for handlers, so not
// under mu.
func (h *heldCopy) release() {
	h.stop()
	h.Release()
}

// CopyError says that the objects of a kind cannot be had.
type CopyError struct {
	Kind object.Kind
	// Err is ErrFilling, or what the API server said.
	Err error
}

func (e *CopyError) Error() string {
	return fmt.Sprintf("cannot list and watch %q of %q: %v", e.Kind.Resource, e.Kind.APIVersion(), e.Err)
}

func (e *CopyError) Unwrap() error { return e.Err }

// Select reads the objects that rules, which were Set for the parent, select. The
// error is a *CopyError; of several kinds that cannot be read one that has a
// reason is said. The parent is synced once they can.
func (r *Related) Select(parent object.Key, rules *related.Rules) (*object.Set, error) {
	copies := make(map[object.Kind]*heldCopy, len(rules.Uses()))
	r.mu.Lock()
	for _, kind := range rules.Uses() {
		if held := r.held[kind]; held != nil {
			copies[kind] = held
		}
	}
	r.mu.Unlock()
	var unreadable *CopyError
	for _, kind := range rules.Uses() {
		if err := r.readable(parent, copies[kind]); err != nil && (unreadable == nil || errors.Is(unreadable, ErrFilling)) {
			unreadable = &CopyError{Kind: kind, Err: err}
		}
	}
	if unreadable != nil {
		return nil, unreadable
	}
	return rules.Select(func(kind object.Kind) related.Reader { return copies[kind] }), nil
}

// readable is nil if a copy is full.
func (r *Related) readable(parent object.Key, held *heldCopy) error {
	if held == nil {
		// Its kind went just now; the next pass sees that.
		return ErrFilling
	}
	if full, _ := held.State(); full {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	// It may have become full just now. Whoever brings those that want it to the
	// worker needs mu, so that this parent is either read for or brought, not both.
	full, err := held.State()
	if full {
		return nil
	}
	held.wanted[parent] = struct{}{}
	if err != nil {
		return err
	}
	return ErrFilling
}

// changed is the handler of all copies. It runs in an informer's goroutine, so it
// does no more than to note what there is to look at.
func (r *Related) changed(before, after *object.Object, initial bool) {
	if initial || before == nil && after == nil || before != nil && after != nil && before.ResourceVersion() == after.ResourceVersion() {
		return
	}
	state := after
	if state == nil {
		state = before
	}
	key := state.Key()
	r.pendingMu.Lock()
	change := r.pending[key]
	if change == nil {
		change = &pendingChange{}
		r.pending[key] = change
	}
	change.newOrGone = change.newOrGone || before == nil || after == nil || before.UID() != after.UID()
	for _, state := range []*object.Object{before, after} {
		if state != nil {
			change.add(labels.Set(state.Labels()))
		}
	}
	r.pendingMu.Unlock()
	r.signal()
}

// add keeps the sets small: an object changes its labels rarely.
func (c *pendingChange) add(set labels.Set) {
	if !slices.ContainsFunc(c.had, func(known labels.Set) bool { return labels.Equals(known, set) }) {
		c.had = append(c.had, set)
	}
}

// Recheck looks the kinds up again, for what the API server serves has changed.
func (r *Related) Recheck() {
	if r == nil {
		return
	}
	r.pendingMu.Lock()
	r.recheck = true
	r.pendingMu.Unlock()
	r.signal()
}

func (r *Related) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// run is the worker. It adds parents to the queue until ctx ends.
func (r *Related) run(ctx context.Context, add func(...object.Key)) {
	for {
		var timer clock.Timer
		var lingered <-chan time.Time
		if next := r.sweep(); next > 0 {
			timer = r.clock.NewTimer(next)
			lingered = timer.C()
		}
		select {
		case <-ctx.Done():
		case <-r.wake:
		case <-lingered:
		}
		if timer != nil {
			timer.Stop()
		}
		if ctx.Err() != nil {
			return
		}
		r.look(ctx, add)
	}
}

// look brings what is pending to the parents.
func (r *Related) look(ctx context.Context, add func(...object.Key)) {
	r.pendingMu.Lock()
	pending, recheck := r.pending, r.recheck
	r.pending, r.recheck = map[object.Key]*pendingChange{}, false
	r.pendingMu.Unlock()
	r.mu.Lock()
	filled := slices.Collect(maps.Keys(r.filled))
	clear(r.filled)
	r.mu.Unlock()
	if len(filled) > 0 {
		add(filled...)
	}
	for key, change := range pending {
		if found := r.affected(key, change); len(found) > 0 {
			add(found...)
		}
	}
	if recheck {
		if found := r.lookAgain(ctx); len(found) > 0 {
			add(found...)
		}
	}
}

// affected are the parents that a change concerns.
func (r *Related) affected(key object.Key, change *pendingChange) []object.Key {
	states := make([]related.State, 0, len(change.had))
	for _, set := range change.had {
		states = append(states, related.State{Namespace: key.Namespace, Name: key.Name, Labels: set})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	namespaces := func(string) (labels.Set, bool) { return nil, false }
	if held := r.held[related.NamespaceKind]; held != nil {
		namespaces = func(name string) (labels.Set, bool) {
			found := held.Get("", name)
			if found == nil {
				return nil, false
			}
			return labels.Set(found.Labels()), true
		}
	}
	found := r.index.Affected(key.GroupKind(), states, namespaces)
	if key.GroupKind() == related.NamespaceKind.GroupKind() {
		found = append(found, r.index.AffectedByNamespace(key.Name, change.had, change.newOrGone)...)
	}
	return found
}

// lookAgain looks up the kinds that are held, and returns the parents for whom
// something may have changed. A copy of what is no longer served is given up: it
// would go on to ask for it, more and more rarely, and be late when it is back.
func (r *Related) lookAgain(ctx context.Context) []object.Key {
	r.mu.Lock()
	found := make([]object.Key, 0, len(r.waiting))
	for parent := range r.waiting {
		found = append(found, parent)
	}
	clear(r.waiting)
	kinds := make([]object.Kind, 0, len(r.held))
	for kind := range r.held {
		kinds = append(kinds, kind)
	}
	r.mu.Unlock()

	for _, kind := range kinds {
		now, absent, err := r.lookup(ctx, kind.APIVersion(), kind.Resource)
		if err != nil && !absent || err == nil && now == kind {
			continue
		}
		r.mu.Lock()
		found = append(found, r.index.Users(kind)...)
		gone := r.held[kind]
		delete(r.held, kind)
		r.mu.Unlock()
		if gone != nil {
			gone.release()
		}
	}
	return found
}

// sweep releases the copies that nobody has needed for long, and returns how long
// it is until the next may be; 0 means that none lingers.
func (r *Related) sweep() time.Duration {
	var next time.Duration
	var done []*heldCopy
	r.mu.Lock()
	for kind, held := range r.held {
		if held.idleSince.IsZero() {
			continue
		}
		left := relatedLinger - r.clock.Since(held.idleSince)
		switch {
		case left <= 0:
			done = append(done, held)
			delete(r.held, kind)
		case next == 0 || left < next:
			next = left
		}
	}
	r.mu.Unlock()
	for _, held := range done {
		held.release()
	}
	return next
}

// Close releases all copies. Nothing may be Set any more, and the worker must
// have ended.
func (r *Related) Close() {
	if r == nil {
		return
	}
	r.mu.Lock()
	held := r.held
	r.held, r.closed = map[object.Kind]*heldCopy{}, true
	r.mu.Unlock()
	for _, one := range held {
		one.release()
	}
}
