package syncer

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/metacontroller-solo/solo/pkg/controller/adopt"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// claim finds the parent's children, takes the orphans that are its to take and
// lets go what no longer matches. It reports whether the pass goes on.
func (p *Pass) claim(ctx context.Context, managed bool) bool {
	var (
		own   []*object.Object
		alive = liveness{}
	)
	for _, kind := range p.Definition.ChildKinds() {
		cache := p.Caches.Children[kind.GroupKind()]
		candidates := cache.ByOwner(p.Parent.UID())
		if managed && p.Mode == ModeSync && p.Selector != nil {
			candidates = append(candidates, cache.Orphans(p.Parent.Namespace(), p.Selector)...)
		}
		for _, candidate := range candidates {
			if !p.Definition.Marked(candidate) {
				continue
			}
			claimed, err := p.claimOne(ctx, kind, cache, candidate, managed, &alive)
			switch {
			case errors.Is(err, errStaleParent) || apierrors.IsConflict(err) || apierrors.IsNotFound(err):
				// A pass that went on would take a child that it has, or is about to
				// have, for somebody else's.
				p.again = true
				return false
			case err != nil:
				p.fail(err)
				return false
			case claimed != nil:
				own = append(own, claimed)
			}
		}
	}
	p.Children = object.NewSet(p.Definition.ChildKinds(), own...)
	return true
}

// errStaleParent says that the parent is not what the cache has: gone, going, or
// another one of its name. The event of that is on its way.
var errStaleParent = errors.New("the parent is newer than the cache")

// claimOne returns the candidate as the parent's child, or nil if it is not.
func (p *Pass) claimOne(ctx context.Context, kind object.Kind, cache engine.Cache, candidate *object.Object, managed bool, alive *liveness) (*object.Object, error) {
	switch adopt.Decide(p.Parent, candidate, p.Selector) {
	case adopt.Own:
		return candidate, nil
	case adopt.Adopt:
		living, err := alive.check(ctx, p)
		if err != nil {
			return nil, err
		}
		if !living {
			return nil, errStaleParent
		}
		adopted, err := adopt.Adopted(p.Parent, candidate)
		if err != nil {
			return nil, fmt.Errorf("cannot adopt %q: %w", candidate, err)
		}
		written, err := p.Update(ctx, cache, kind, adopted)
		if err != nil {
			return nil, fmt.Errorf("cannot adopt %q: %w", candidate, err)
		}
		return written, nil
	case adopt.Release:
		if !managed {
			return nil, nil
		}
		released, err := adopt.Released(p.Parent, candidate)
		if err != nil {
			return nil, fmt.Errorf("cannot release %q: %w", candidate, err)
		}
		if _, err := p.Update(ctx, cache, kind, released); err != nil {
			return nil, fmt.Errorf("cannot release %q: %w", candidate, err)
		}
		return nil, nil
	default:
		return nil, nil
	}
}

// liveness is whether the parent is still there and not being deleted, asked of
// the API server once in a pass, and only if something is to be adopted: an
// orphan that a dead parent takes would be collected with it.
type liveness struct{ asked, living bool }

func (l *liveness) check(ctx context.Context, p *Pass) (bool, error) {
	if l.asked {
		return l.living, nil
	}
	live, err := p.Writer.Get(ctx, p.Rule.Kind, p.Parent.Namespace(), p.Parent.Name())
	switch {
	case apierrors.IsNotFound(err):
		l.asked = true
	case err != nil:
		return false, fmt.Errorf("cannot get %q before it adopts: %w", p.Parent, err)
	default:
		l.asked, l.living = true, live.UID() == p.Parent.UID() && !live.Terminating()
	}
	return l.living, nil
}
