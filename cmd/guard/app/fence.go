package app

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/claim"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	"github.com/metacontroller-solo/solo/pkg/singleton"
)

// fenceFacts reads what is installed of the fence, the Lease and the writer's Pod.
// live must read from the API server, not from a cache.
func fenceFacts(live client.Reader) func(context.Context, *guardv1alpha1.SingletonPolicy) (claim.FenceFacts, error) {
	return func(ctx context.Context, policy *guardv1alpha1.SingletonPolicy) (claim.FenceFacts, error) {
		var facts claim.FenceFacts
		for _, want := range pin.Fence(pin.Options{SingletonPolicy: policy.Name}) {
			missing, weakened, err := compareAdmission(ctx, live, want)
			if err != nil {
				return claim.FenceFacts{}, err
			}
			if facts.Missing == "" {
				facts.Missing = missing
			}
			if facts.Weakened == "" {
				facts.Weakened = weakened
			}
		}
		lease := &coordinationv1.Lease{}
		err := live.Get(ctx, client.ObjectKey{Namespace: singleton.DefaultNamespace, Name: singleton.DefaultName}, lease)
		if client.IgnoreNotFound(err) != nil {
			return claim.FenceFacts{}, fmt.Errorf("cannot get Lease %s/%s: %w", singleton.DefaultNamespace, singleton.DefaultName, err)
		}
		if identity, ok := singleton.ParseIdentity(singleton.HolderOf(lease).Identity); ok {
			facts.Holder = types.UID(identity.UID)
		}
		if facts.WriterGone, err = writerGone(ctx, live, policy.Status.Writer); err != nil {
			return claim.FenceFacts{}, err
		}
		return facts, nil
	}
}

// compareAdmission looks for a policy or binding of the fence, and says which one
// is missing, or what differs.
func compareAdmission(ctx context.Context, live client.Reader, want client.Object) (missing, weakened string, err error) {
	name := fmt.Sprintf("%s %q", want.GetObjectKind().GroupVersionKind().Kind, want.GetName())
	got, ok := want.DeepCopyObject().(client.Object)
	if !ok {
		return "", "", fmt.Errorf("cannot compare %s: it is no object", name)
	}
	switch err := live.Get(ctx, client.ObjectKeyFromObject(want), got); {
	case apierrors.IsNotFound(err):
		return name, "", nil
	case err != nil:
		return "", "", fmt.Errorf("cannot get %s: %w", name, err)
	}
	same := false
	switch want := want.(type) {
	case *admissionregistrationv1.ValidatingAdmissionPolicy:
		installed, _ := got.(*admissionregistrationv1.ValidatingAdmissionPolicy)
		same = equality.Semantic.DeepEqual(want.Spec, installed.Spec)
	case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
		installed, _ := got.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding)
		same = equality.Semantic.DeepEqual(want.Spec, installed.Spec)
	}
	if !same {
		return "", name + " differs from what the guard renders", nil
	}
	return "", "", nil
}

func writerGone(ctx context.Context, live client.Reader, writer *guardv1alpha1.Writer) (bool, error) {
	if writer == nil {
		return false, nil
	}
	pod := &corev1.Pod{}
	switch err := live.Get(ctx, client.ObjectKey{Namespace: writer.Namespace, Name: writer.Name}, pod); {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("cannot get Pod %s/%s: %w", writer.Namespace, writer.Name, err)
	}
	return pod.UID != writer.UID, nil
}
