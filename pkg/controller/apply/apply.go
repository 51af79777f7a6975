// Package apply does what a plan says, through the Writer that it is given:
//
//	plan.Plan ─> Run ─> Writer (package cluster) ─> API server
//	               └──> Result: what was written, what failed
package apply

import (
	"context"

	"k8s.io/apimachinery/pkg/types"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// Writer writes objects to the API server, with a deadline of its own for each.
// Errors are those of the API server (k8s.io/apimachinery/pkg/api/errors); it
// does not retry. It may be called by several goroutines at once.
type Writer interface {
	// Create makes the object and returns it as the server has it now.
	Create(ctx context.Context, kind object.Kind, o *object.Object) (*object.Object, error)
	// Update replaces the object, if it still has the UID and resourceVersion
	// that o has, and returns it as the server has it now.
	Update(ctx context.Context, kind object.Kind, o *object.Object) (*object.Object, error)
	// Apply writes the object by server-side apply, with force. With a UID and
	// resourceVersion it must still have them; with a resourceVersion that no
	// object has (plan.Step.Apply) it must not exist. Otherwise it is a conflict.
	Apply(ctx context.Context, kind object.Kind, o *object.Object) (*object.Object, error)
	// Preview returns what Update, or with apply set Apply, would make of the
	// object, and writes nothing.
	Preview(ctx context.Context, kind object.Kind, o *object.Object, apply bool) (*object.Object, error)
	// HandOver carries out plan.HandOver, if the object is still as it was
	// observed.
	HandOver(ctx context.Context, kind object.Kind, observed *object.Object) (*object.Object, error)
	// Delete deletes with background propagation, if the object still has this
	// UID.
	Delete(ctx context.Context, kind object.Kind, key object.Key, uid types.UID) error
}
