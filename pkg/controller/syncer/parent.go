package syncer

import (
	"context"
	"crypto/sha256"
	"fmt"

	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// PatchParent merges a change, a JSON merge patch, into the parent. One that was
// made to this version of it already is not made again: the API server did not
// keep it then, and would not now.
func (p *Pass) PatchParent(ctx context.Context, change map[string]any) error {
	encoded, err := object.Encode(change)
	if err != nil {
		return fmt.Errorf("cannot encode a change of %q: %w", p.Parent, err)
	}
	mark := patchMark{resourceVersion: p.Parent.ResourceVersion(), change: sha256.Sum256(encoded)}
	if p.memory.patched == mark {
		return nil
	}
	written, err := p.Writer.Patch(ctx, p.Rule.Kind, p.Parent, change)
	if err != nil {
		return fmt.Errorf("cannot patch %q: %w", p.Parent, err)
	}
	p.wroteParent(written)
	mark.resourceVersion = written.ResourceVersion()
	p.memory.patched = mark
	return nil
}

// wroteParent goes on with the parent as it was written.
func (p *Pass) wroteParent(written *object.Object) {
	p.wrote(p.Caches.Parents[written.Key().GroupKind()], written)
	if p.memory.status.resourceVersion == p.Parent.ResourceVersion() {
		// It was that version that was written to, and its status not.
		p.memory.status.resourceVersion = written.ResourceVersion()
	}
	p.Parent = written
}

// Report notes a problem that does not keep the pass from going on. The user is
// told at its end, and the parent is synced again.
func (p *Pass) Report(err error) { p.fail(err) }

// Notice tells the user, once, of something that another sync would not mend. An
// empty message says that there is nothing of the kind.
func (p *Pass) Notice(message string) {
	if p.memory.noticed == message {
		return
	}
	p.memory.noticed = message
	if message != "" {
		p.Events.Warning(p.Parent, engine.ReasonSyncError, fmt.Sprintf("%s %q: %s", p.Definition.Kind, p.Definition.Name, message))
	}
}
