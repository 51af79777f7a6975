package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/metacontroller-solo/solo/pkg/controller/rbac"
	"github.com/metacontroller-solo/solo/pkg/logging"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// leftover is what a controller left behind.
type leftover struct {
	Claims
	// declared is what the events are about.
	declared *object.Object
}

// leave notes finalizers that are to be taken off.
func (h *Host) leave(name string, left leftover) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if earlier, ok := h.leftovers[name]; ok {
		left.Parents = append(earlier.without(left.Parents).Parents, left.Parents...)
	}
	h.leftovers[name] = left
}

// settle takes off the finalizers that a controller left behind, but for parents
// of one that runs under the name again.
func (h *Host) settle(ctx context.Context, name string) error {
	h.mu.Lock()
	left, ok := h.leftovers[name]
	if current := h.running[name]; ok && current != nil {
		left.Claims = left.without(current.definition.Claims().Parents)
	}
	h.mu.Unlock()
	if !ok || ctx.Err() != nil {
		return nil
	}
	done := func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.leftovers, name)
	}
	if len(left.Parents) == 0 {
		done()
		return nil
	}
	if h.keeps(ctx, left.declared) {
		h.Events.Normal(left.declared, ReasonStopped, fmt.Sprintf("Left finalizer %q on its parents, as annotation %s says.", left.Finalizer, AnnotationKeepFinalizers))
		done()
		return nil
	}
	result := release(ctx, h.API, left.Claims)
	if ctx.Err() != nil {
		// The program stops; what is left is for who deletes the object again.
		return nil
	}
	if err := result.err(); err != nil {
		if left.Claims = h.served(ctx, left.Claims); len(left.Parents) == 0 {
			// The kinds went after the controller, and the rights to them as well.
			done()
			return nil
		}
		h.Events.Warning(left.declared, ReasonSyncError, rbac.Advised(fmt.Sprintf("Controller %q: %v; trying again", name, err)))
		return fmt.Errorf("cannot release the parents of %q: %w", name, err)
	}
	done()
	if result.parents > 0 {
		h.Events.Normal(left.declared, ReasonStopped, fmt.Sprintf("Took finalizer %q off %d parents.", left.Finalizer, result.parents))
		h.Log.Info("Took the finalizer off parents", logging.KeyName, name, logging.KeyCount, result.parents)
	}
	return nil
}

// served are the claims on kinds that the API server may still serve. One that
// it does not has no objects either, and to list it fails for ever where the
// right to do so is gone too: that is asked for first.
func (h *Host) served(ctx context.Context, claims Claims) Claims {
	claims.Parents = slices.DeleteFunc(slices.Clone(claims.Parents), func(kind object.Kind) bool {
		_, absent, err := h.Lookup(ctx, kind.APIVersion(), kind.Resource)
		return err != nil && absent
	})
	return claims
}

// keeps says whether an object wants the finalizers kept. One that was moved out
// of what this instance looks after is still there, and may say so since.
func (h *Host) keeps(ctx context.Context, last *object.Object) bool {
	if live, err := h.API.Get(ctx, h.Kind, "", last.Name()); err == nil && live.UID() == last.UID() {
		last = live
	}
	value, _ := last.Annotation(AnnotationKeepFinalizers)
	return value == keepFinalizers
}
