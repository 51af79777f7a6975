package syncer

import (
	"context"
	"crypto/sha256"
	"fmt"
	"maps"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/metacontroller-solo/solo/pkg/controller/plan/merge"
	"github.com/metacontroller-solo/solo/pkg/object"
)

const fieldStatus = "status"

// WriteStatus makes status, which is decoded JSON, the status of the parent, if
// it is not so already. A kind without a status subresource has none to write.
func (p *Pass) WriteStatus(ctx context.Context, status map[string]any) error {
	if !p.Rule.HasStatus {
		return nil
	}
	encoded, err := object.Encode(status)
	if err != nil {
		return fmt.Errorf("cannot encode status of %q: %w", p.Parent, err)
	}
	desired := sha256.Sum256(encoded)
	known := p.memory.status
	if known.resourceVersion == p.Parent.ResourceVersion() && known.desired == desired {
		return nil
	}
	has := p.Parent.Field(fieldStatus)
	mark := statusMark{resourceVersion: p.Parent.ResourceVersion(), desired: desired}
	if mark.kept, err = digest(has); err != nil {
		return fmt.Errorf("cannot encode status of %q: %w", p.Parent, err)
	}
	// What the API server made of this status before is what it would make of it
	// again.
	same := mark.kept == desired || known.desired == desired && known.kept == mark.kept
	if !same && !object.Equal(p.pruning.kept(p.Parent.Key().GroupKind(), status, p.Clock.Now()), has) {
		updated, err := p.Parent.WithField(fieldStatus, encoded)
		if err != nil {
			return fmt.Errorf("cannot encode %q: %w", p.Parent, err)
		}
		written, err := p.Writer.UpdateStatus(ctx, p.Rule.Kind, updated)
		if err != nil {
			return fmt.Errorf("cannot update status of %q: %w", p.Parent, err)
		}
		p.wroteParent(written)
		mark.resourceVersion = written.ResourceVersion()
		came := written.Field(fieldStatus)
		p.pruning.learn(p.Parent.Key().GroupKind(), status, came, p.Clock.Now())
		if mark.kept, err = digest(came); err != nil {
			return fmt.Errorf("cannot encode status of %q: %w", p.Parent, err)
		}
	}
	p.memory.status = mark
	return nil
}

// digest is of decoded JSON, or of nothing.
func digest(status any) ([sha256.Size]byte, error) {
	if status == nil {
		return [sha256.Size]byte{}, nil
	}
	encoded, err := object.Encode(status)
	return sha256.Sum256(encoded), err
}

// pruneMemory is how long a field of a status counts as unknown to the schema of
// its kind: the schema may be changed.
const pruneMemory = 10 * time.Minute

// pruning remembers which fields of a status the API server drops, for the
// schema of the kind does not know them. A parent that was not synced yet, after
// a restart, is not written just because of these.
type pruning struct {
	mu sync.Mutex
	// dropped is when a field at the top of a status was seen to be dropped.
	// Guarded by mu.
	dropped map[schema.GroupKind]map[string]time.Time
}

// learn compares what was asked for with what came of it.
func (p *pruning) learn(kind schema.GroupKind, asked map[string]any, came any, now time.Time) {
	kept, _ := came.(map[string]any)
	p.mu.Lock()
	defer p.mu.Unlock()
	for field, value := range asked {
		// Of one with an empty value it is no wonder.
		if merge.Empty(value) {
			continue
		}
		if _, there := kept[field]; there {
			delete(p.dropped[kind], field)
			continue
		}
		if p.dropped == nil {
			p.dropped = map[schema.GroupKind]map[string]time.Time{}
		}
		if p.dropped[kind] == nil {
			p.dropped[kind] = map[string]time.Time{}
		}
		if len(p.dropped[kind]) >= maxDropped {
			maps.DeleteFunc(p.dropped[kind], func(_ string, at time.Time) bool { return now.Sub(at) >= pruneMemory })
		}
		if _, known := p.dropped[kind][field]; known || len(p.dropped[kind]) < maxDropped {
			p.dropped[kind][field] = now
		}
	}
}

// maxDropped bounds the memory of fields whose names a hook makes up.
const maxDropped = 100

// kept is a status without the fields that would be dropped: nil if none is left.
func (p *pruning) kept(kind schema.GroupKind, status map[string]any, now time.Time) any {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[string]any, len(status))
	for field, value := range status {
		if at, dropped := p.dropped[kind][field]; !dropped || now.Sub(at) >= pruneMemory {
			out[field] = value
		}
	}
	if len(out) == 0 && len(status) > 0 {
		return nil
	}
	return out
}
