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

// memories are what is remembered of each parent between its passes.
type memories struct {
	mu sync.Mutex
	// of has the memory of each parent. Guarded by mu; a memory itself is used
	// by one pass at a time.
	of map[object.Key]*memory
}

// memory is what is remembered of one parent. To lose it costs comparisons, and
// nothing else.
type memory struct {
	uid types.UID
	// pending are writes that the caches have not shown yet.
	pending []pending
	// settled are children that need not be compared again.
	settled plan.Settled
	// status is the status that was found or made right.
	status statusMark
	// customized is what the customize hook said last.
	customized *customized
}

// statusMark remembers that the parent, in this version, has the status that the
// hook wanted, as far as the API server keeps it.
type statusMark struct {
	resourceVersion string
	desired         [sha256.Size]byte
}

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
		known = &memory{uid: parent.UID()}
		m.of[parent.Key()] = known
	}
	return known
}

func (m *memories) forget(parent object.Key) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.of, parent)
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
		return nil
	}
	return &left[0]
}
