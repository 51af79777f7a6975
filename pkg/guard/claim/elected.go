package claim

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

// confirm writes down, in mode LeaderElected, whether the holder's template and
// all of its Pods that have not ended take the policy's Lease before they work.
// Only then is a second Pod let in. It reads live, the StatefulSet first: a Pod
// that is made meanwhile was judged by itself, and is right.
func (r *Reconciler) confirm(ctx context.Context, policy *guardv1alpha1.SingletonPolicy, signature *identify.Signature) error {
	holder := policy.Status.Holder
	if holder == nil {
		return nil
	}
	holder.Elected = false
	if policy.Spec.Mode != guardv1alpha1.ModeLeaderElected || holder.Phase != guardv1alpha1.HolderBound {
		return nil
	}
	live, err := getStatefulSet(ctx, r.Client, decide.Identity{Namespace: holder.Namespace, Name: holder.Name})
	if err != nil {
		return err
	}
	elects := func(spec *corev1.PodSpec) bool {
		return decide.Elects(decide.PolicyOf(policy, r.Clock.Now()), holder.Namespace, attempt.FlagsOf(spec, signature))
	}
	if live == nil || live.UID != holder.UID || !elects(&live.Spec.Template.Spec) {
		return nil
	}
	pods, err := instancePods(ctx, r.Client, signature, holder.Namespace)
	if err != nil {
		return err
	}
	for i := range pods {
		if belongs(&pods[i], holder) && !elects(&pods[i].Spec) {
			return nil
		}
	}
	holder.Elected = true
	return nil
}
