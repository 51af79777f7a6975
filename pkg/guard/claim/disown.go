package claim

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

// disown says on a policy that this guard does not judge by it, so that nobody
// takes it for one that is in force. Where another guard has written the
// condition, that one judges by it.
func (r *Reconciler) disown(ctx context.Context, policy *guardv1alpha1.SingletonPolicy) error {
	ready := meta.FindStatusCondition(policy.Status.Conditions, guardv1alpha1.ConditionReady)
	if ready != nil && (ready.Reason != reasonNotJudged || ready.ObservedGeneration == policy.Generation) {
		return nil
	}
	message := fmt.Sprintf("nobody judges by this policy: the guard judges by SingletonPolicy %q alone; delete this one, or run a guard with --policy=%s", r.Policy, policy.Name)
	for _, kind := range []string{guardv1alpha1.ConditionReady, guardv1alpha1.ConditionEnforcing} {
		meta.SetStatusCondition(&policy.Status.Conditions, metav1.Condition{
			Type: kind, Status: metav1.ConditionFalse, Reason: reasonNotJudged, Message: message,
			ObservedGeneration: policy.Generation, LastTransitionTime: metav1.NewTime(r.Clock.Now()),
		})
	}
	if err := update(ctx, r.Client, policy); err != nil && !errors.Is(err, ErrConflict) {
		return err
	}
	// After a conflict its own event comes.
	return nil
}
