// Package mark keeps the singleton Lease's holder in a SingletonPolicy, where the
// fence reads it: status.writer.
//
//	singleton.Lease ── Read, Write ──> SingletonPolicy.status.writer ──> the API servers' fence
package mark

import (
	"context"
	"encoding/json"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/singleton"
)

// Policy is the mark in a SingletonPolicy.
type Policy struct {
	// Client must read from the API server, not from a cache.
	Client dynamic.Interface
	// Name of the policy.
	Name string
	// Namespace of the Pod that marks itself. A policy whose fence is about another
	// namespace asks for no mark.
	Namespace string
}

var resource = v1alpha1.GroupVersion.WithResource(v1alpha1.SingletonPolicyResource)

// Read implements singleton.Mark.
func (p Policy) Read(ctx context.Context) (singleton.Marked, error) {
	object, err := p.Client.Resource(resource).Get(ctx, p.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err): // of the object, or of its kind
		return singleton.Marked{}, singleton.ErrNoMark
	case err != nil:
		return singleton.Marked{}, p.failed("get", err)
	}
	policy := &v1alpha1.SingletonPolicy{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, policy); err != nil {
		return singleton.Marked{}, fmt.Errorf("cannot decode SingletonPolicy %q: %w", p.Name, err)
	}
	fence := policy.Spec.Fence
	if fence == nil || fence.ServiceAccount.Namespace != p.Namespace || policy.Spec.Mode == v1alpha1.ModeSharded {
		return singleton.Marked{}, singleton.ErrNoMark
	}
	marked := singleton.Marked{Version: policy.ResourceVersion}
	if writer := policy.Status.Writer; writer != nil {
		marked.Identity = &singleton.Identity{Namespace: writer.Namespace, Pod: writer.Name, UID: string(writer.UID)}
	}
	return marked, nil
}

// Write implements singleton.Mark.
func (p Policy) Write(ctx context.Context, read singleton.Marked, identity *singleton.Identity) error {
	var writer *v1alpha1.Writer
	if identity != nil {
		writer = &v1alpha1.Writer{Namespace: identity.Namespace, Name: identity.Pod, UID: types.UID(identity.UID)}
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"resourceVersion": read.Version},
		"status":   map[string]any{"writer": writer},
	})
	if err != nil {
		return fmt.Errorf("cannot encode the writer of SingletonPolicy %q: %w", p.Name, err)
	}
	_, err = p.Client.Resource(resource).Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return singleton.ErrMarkConflict
	}
	return p.failed("patch status of", err)
}

func (p Policy) failed(verb string, err error) error {
	switch {
	case err == nil:
		return nil
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		return fmt.Errorf("%w: cannot %s SingletonPolicy %q: %w; apply config/rbac", singleton.ErrMarkForbidden, verb, p.Name, err)
	}
	return fmt.Errorf("cannot %s SingletonPolicy %q: %w", verb, p.Name, err)
}
