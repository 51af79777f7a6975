package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// AnnotationKeepFinalizers, with the value "true" on the object that declares a
// controller, leaves the controller's finalizer on its parents when that object
// is deleted, or moved out of what this instance looks after.
const AnnotationKeepFinalizers = "metacontroller.io/keep-finalizers"

// keepFinalizers is the value of AnnotationKeepFinalizers that counts.
const keepFinalizers = "true"

const (
	// parallelReleases is how many parents are written at once.
	parallelReleases = 8
	// releaseAttempts is how often a parent is written that others write too.
	releaseAttempts = 5
	// namedFailures is how many parents a message names.
	namedFailures = 3
)

// API is the way to parents that no syncer looks after any more. The reads go
// past the caches: those may not have seen the finalizers that were put on last.
type API interface {
	// ListMetadata calls each for every object of a kind, of which nothing but the
	// metadata is read.
	ListMetadata(ctx context.Context, kind object.Kind, each func(*object.Object)) error
	Get(ctx context.Context, kind object.Kind, namespace, name string) (*object.Object, error)
	// SetFinalizers fails with a conflict if the object has changed.
	SetFinalizers(ctx context.Context, kind object.Kind, o *object.Object, finalizers []string) (*object.Object, error)
}

// Claims are where a controller may have left its finalizer.
type Claims struct {
	Finalizer string
	Parents   []object.Kind
}

// Claims of a controller that runs, or ran.
func (d *Definition) Claims() Claims {
	claims := Claims{Finalizer: d.Finalizer}
	for _, parent := range d.Parents {
		claims.Parents = append(claims.Parents, parent.Kind)
	}
	return claims
}

// without are the claims on kinds that are not among others.
func (c Claims) without(others []object.Kind) Claims {
	c.Parents = slices.DeleteFunc(slices.Clone(c.Parents), func(kind object.Kind) bool {
		return slices.ContainsFunc(others, func(other object.Kind) bool { return other.GroupKind() == kind.GroupKind() })
	})
	return c
}

// released is what became of Claims.
type released struct {
	// parents is how many have the finalizer no more.
	parents int
	// failed names parents that still have it; failures is how many do.
	failed   []string
	failures int
	// first error of each kind.
	errs []error
}

func (r *released) err() error {
	switch {
	case r.failures > len(r.failed):
		return fmt.Errorf("cannot take the finalizer off %d parents, among them %q: %w", r.failures, r.failed, errors.Join(r.errs...))
	case r.failures > 0:
		return fmt.Errorf("cannot take the finalizer off parents %q: %w", r.failed, errors.Join(r.errs...))
	default:
		return errors.Join(r.errs...)
	}
}

// release takes the finalizer off every parent that carries it, whether the
// controller selected it or not. A parent that is gone, or a kind that is, needs
// nothing. It goes on after failures; a second call does what is left.
func release(ctx context.Context, api API, claims Claims) released {
	var (
		mu  sync.Mutex // guards out
		out released
	)
	for _, kind := range claims.Parents {
		var (
			group  errgroup.Group
			failed error
		)
		group.SetLimit(parallelReleases)
		err := api.ListMetadata(ctx, kind, func(parent *object.Object) {
			if !HasFinalizer(parent, claims.Finalizer) {
				return
			}
			group.Go(func() error {
				err := takeOff(ctx, api, kind, parent, claims.Finalizer)
				mu.Lock()
				defer mu.Unlock()
				if err == nil {
					out.parents++
					return nil
				}
				out.failures++
				if len(out.failed) < namedFailures {
					out.failed = append(out.failed, parent.Key().Path())
				}
				if failed == nil {
					failed = err
				}
				return nil
			})
		})
		_ = group.Wait() // out and failed hold the errors
		if failed != nil {
			out.errs = append(out.errs, failed)
		}
		if err != nil && !apierrors.IsNotFound(err) {
			out.errs = append(out.errs, fmt.Errorf("cannot list %q of %q: %w", kind.Resource, kind.APIVersion(), err))
		}
	}
	return out
}

// takeOff takes a finalizer off one parent.
func takeOff(ctx context.Context, api API, kind object.Kind, parent *object.Object, finalizer string) error {
	uid := parent.UID()
	for attempt := 1; ; attempt++ {
		_, err := api.SetFinalizers(ctx, kind, parent, WithoutFinalizer(parent.Finalizers(), finalizer))
		switch {
		case err == nil || apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err) || attempt == releaseAttempts:
			return err
		}
		live, err := api.Get(ctx, kind, parent.Namespace(), parent.Name())
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err != nil:
			return err
		case live.UID() != uid || !HasFinalizer(live, finalizer):
			return nil
		}
		parent = live
	}
}
