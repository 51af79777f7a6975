package syncer

import (
	"crypto/sha256"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/plan"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// patience is how long a cache may be behind before that is an error.
const patience = time.Minute

// sayAgain is how soon an event about a failure that lasts is sent again, to count.
const sayAgain = time.Minute

// memories are what is remembered of each parent between its passes.
type memories struct {
	mu sync.Mutex
	// of has the memory of each parent. Guarded by mu; a memory itself is used
	// by one pass at a time.
	of map[object.Key]*memory
}

// memory is what is remembered of one parent. To lose it costs comparisons; what is
// pending goes on to the Syncer that replaces this one (Syncer.Follow).
type memory struct {
	uid types.UID
	// predecessor is a parent of the same name whose end was not seen, and of which
	// the hooks still remember something; empty if there is none.
	predecessor types.UID
	// pending are writes that the caches have not shown yet.
	pending []pending
	// settled are children that need not be compared again.
	settled plan.Settled
	// status is the status that was found or made right.
	status statusMark
	// elders are the controllers to which the parent is left now, and of which it
	// was told that.
	elders []string
	// waiting is since when children of an earlier parent are in the way.
	waiting time.Time
	// said is the last message of an event about a failure, and when it was sent.
	said   string
	saidAt time.Time
	// customized is what the customize hook said last.
	customized *customized
	// patched is the last change that was made to the parent.
	patched patchMark
	// noticed is what the user was told last by Pass.Notice.
	noticed string
}

// patchMark remembers that the parent, in this version, has had this change made
// to it, as far as the API server keeps it.
type patchMark struct {
	resourceVersion string
	change          [sha256.Size]byte
}

// statusMark remembers a status that the hook wanted, and what the API server
// kept of it: a field that the schema of the parent does not know is dropped.
type statusMark struct {
	// resourceVersion of the parent that was last found to be right.
	resourceVersion string
	desired, kept   [sha256.Size]byte
}

// waits says whether to wait silently for what is in the way to go.
func (m *memory) waits(now time.Time) bool {
	if m.waiting.IsZero() {
		m.waiting = now
	}
	return now.Sub(m.waiting) < patience
}

// repeats says whether a message was sent a moment ago, and notes it otherwise.
// The limit of events about one object is for what is new.
func (m *memory) repeats(message string, now time.Time) bool {
	if m.said == message && now.Sub(m.saidAt) < sayAgain {
		return true
	}
	m.said, m.saidAt = message, now
	return false
}

// recovered forgets what was said and waited for, after a pass that went well.
func (m *memory) recovered() { m.said, m.waiting = "", time.Time{} }

// pending is a write that a cache is to show.
type pending struct {
	cache engine.Cache
	at    time.Time
	// version is what the object had after the write; empty for a deletion.
	version string
	// key and uid are of what was deleted.
	key object.Key
	uid types.UID
}

func (w pending) seen() bool {
	if w.version != "" {
		return w.cache.Seen(w.version)
	}
	left := w.cache.Get(w.key.Namespace, w.key.Name)
	return left == nil || left.UID() != w.uid || left.Terminating()
}

// recall returns the memory of a parent, a new one for a new parent of an old
// name.
func (m *memories) recall(parent *object.Object) *memory {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.of[parent.Key()]
	if known == nil || known.uid != parent.UID() {
		fresh := &memory{uid: parent.UID()}
		if known != nil {
			fresh.predecessor = known.uid
		}
		known = fresh
		m.of[parent.Key()] = known
	}
	return known
}

// follow takes over the writes that the caches have not shown yet. Of each cache
// instead returns the one that is read now, nil if its kind is not any more.
func (m *memories) follow(before *memories, instead func(engine.Cache) engine.Cache) {
	m.mu.Lock()
	defer m.mu.Unlock()
	before.mu.Lock()
	defer before.mu.Unlock()
	for parent, known := range before.of {
		var left []pending
		for _, write := range known.pending {
			if write.cache = instead(write.cache); write.cache != nil && !write.seen() {
				left = append(left, write)
			}
		}
		if len(left) > 0 {
			m.of[parent] = &memory{uid: known.uid, pending: left}
		}
	}
}

// forget returns the uid of the parent whose memory it was, empty if there was
// none.
func (m *memories) forget(parent object.Key) types.UID {
	m.mu.Lock()
	defer m.mu.Unlock()
	known := m.of[parent]
	if known == nil {
		return ""
	}
	delete(m.of, parent)
	return known.uid
}

// behind returns the oldest write that the caches have not shown yet, or nil.
func (m *memory) behind() *pending {
	left := m.pending[:0]
	for _, write := range m.pending {
		if !write.seen() {
			left = append(left, write)
		}
	}
	clear(m.pending[len(left):])
	m.pending = left
	if len(left) == 0 {
		// Most parents wait for nothing most of the time, and there are many.
		m.pending = nil
		return nil
	}
	return &left[0]
}
