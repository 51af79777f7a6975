package syncer

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// What a pass writes beside the parent and the steps of a plan goes through these,
// so that no later pass acts on a cache that does not show it. The errors are the
// Writer's.

// Create makes an object.
func (p *Pass) Create(ctx context.Context, cache engine.Cache, kind object.Kind, o *object.Object) (*object.Object, error) {
	written, err := p.Writer.Create(ctx, kind, o)
	if err == nil {
		p.wrote(cache, written)
	}
	return written, err
}

// Update replaces an object that is as it was read.
func (p *Pass) Update(ctx context.Context, cache engine.Cache, kind object.Kind, o *object.Object) (*object.Object, error) {
	written, err := p.Writer.Update(ctx, kind, o)
	if err == nil {
		p.wrote(cache, written)
	}
	return written, err
}

// Delete deletes an object; one that is gone is no error.
func (p *Pass) Delete(ctx context.Context, cache engine.Cache, kind object.Kind, o *object.Object) error {
	err := p.Writer.Delete(ctx, kind, o.Key(), o.UID())
	if err == nil || apierrors.IsNotFound(err) {
		p.deleted(cache, o.Key(), o)
		return nil
	}
	return err
}
