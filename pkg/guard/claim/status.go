package claim

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
)

// Reasons of conditions.
const (
	reasonJudged      = "Judged"
	reasonNotJudged   = "NotJudgedBy"
	reasonBreakGlass  = "BreakGlass"
	reasonNoException = "NoException"
)

// instancePods lists live the Pods that run an instance and have not ended. An
// empty namespace stands for all of them.
func instancePods(ctx context.Context, c client.Reader, signature *identify.Signature, namespace string) ([]corev1.Pod, error) {
	var found []corev1.Pod
	next := ""
	for {
		// A list of its own for each page: what was decoded into one is kept by it.
		page := &corev1.PodList{}
		if err := c.List(ctx, page, client.InNamespace(namespace), client.Limit(pageSize), client.Continue(next)); err != nil {
			return nil, fmt.Errorf("cannot list Pods: %w", err)
		}
		for i := range page.Items {
			if runs(&page.Items[i], signature) {
				found = append(found, page.Items[i])
			}
		}
		if next = page.Continue; next == "" {
			return found, nil
		}
	}
}

// runs says whether a Pod runs an instance and has not ended.
func runs(pod *corev1.Pod, signature *identify.Signature) bool {
	return !inspect.Ended(pod) && len(signature.Containers(&pod.Spec)) > 0
}

// refreshActive looks at the pinned Pods alone: each is named by its holder.
func refreshActive(ctx context.Context, c client.Reader, policy *guardv1alpha1.SingletonPolicy, signature *identify.Signature) error {
	status := &policy.Status
	status.ActivePod = nil
	if status.Holder != nil {
		active, err := activePod(ctx, c, status.Holder, signature)
		if err != nil {
			return err
		}
		status.ActivePod = active
	}
	for i := range status.Slots {
		active, err := activePod(ctx, c, &status.Slots[i].Holder, signature)
		if err != nil {
			return err
		}
		status.Slots[i].ActivePod = active
	}
	return nil
}

func activePod(ctx context.Context, c client.Reader, holder *guardv1alpha1.Holder, signature *identify.Signature) (*guardv1alpha1.ActivePod, error) {
	pod := &corev1.Pod{}
	switch err := c.Get(ctx, client.ObjectKey{Namespace: holder.Namespace, Name: holder.Name + "-0"}, pod); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot get Pod %q: %w", holder.Name+"-0", err)
	case !runs(pod, signature):
		return nil, nil
	}
	return &guardv1alpha1.ActivePod{Name: pod.Name, UID: pod.UID, Node: pod.Spec.NodeName, Pending: pod.Status.Phase == corev1.PodPending}, nil
}

// exceptionsMessage names the workloads that are let through, and until when.
func exceptionsMessage(active []guardv1alpha1.Exception) string {
	names := make([]string, 0, len(active))
	for _, exception := range active {
		names = append(names, fmt.Sprintf("%s/%s until %s", exception.Namespace, exception.Name, exception.Expires.UTC().Format(time.RFC3339)))
	}
	return "let through in spite of the rules: " + strings.Join(names, ", ")
}

// setConditions sets the conditions about the slot. fault is why the policy
// cannot be judged by.
func setConditions(policy *guardv1alpha1.SingletonPolicy, fault error, now time.Time) {
	set := func(kind string, ok bool, reason, message string) {
		status := metav1.ConditionFalse
		if ok {
			status = metav1.ConditionTrue
		}
		meta.SetStatusCondition(&policy.Status.Conditions, metav1.Condition{
			Type: kind, Status: status, Reason: reason, Message: message,
			ObservedGeneration: policy.Generation, LastTransitionTime: metav1.NewTime(now),
		})
	}
	if fault != nil {
		set(guardv1alpha1.ConditionReady, false, inspect.ReasonInvalidMatch, fault.Error())
		return
	}
	set(guardv1alpha1.ConditionReady, true, reasonJudged, "the guard judges by this generation")
	if active := policy.Status.ActiveExceptions; len(active) > 0 {
		set(guardv1alpha1.ConditionExcepted, true, reasonBreakGlass, exceptionsMessage(active))
	} else {
		set(guardv1alpha1.ConditionExcepted, false, reasonNoException, "no exception is active")
	}
}
