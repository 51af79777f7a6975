package syncer

import (
	"context"
	"crypto/sha256"
	"fmt"
	"reflect"

	"github.com/metacontroller-solo/solo/pkg/object"
)

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
	mark := statusMark{resourceVersion: p.Parent.ResourceVersion(), desired: sha256.Sum256(encoded)}
	if p.memory.status == mark {
		return nil
	}
	content := p.Parent.Content()
	if !reflect.DeepEqual(content["status"], any(status)) {
		content["status"] = status
		updated, err := object.FromContent(content)
		if err != nil {
			return fmt.Errorf("cannot encode %q: %w", p.Parent, err)
		}
		written, err := p.Writer.UpdateStatus(ctx, p.Rule.Kind, updated)
		if err != nil {
			return fmt.Errorf("cannot update status of %q: %w", p.Parent, err)
		}
		p.wroteParent(written)
		mark.resourceVersion = written.ResourceVersion()
	}
	p.memory.status = mark
	return nil
}
