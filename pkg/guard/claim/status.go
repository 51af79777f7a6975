package claim

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

// maxInstances is the most instances that a status lists, as in the CRD.
const maxInstances = 100

// Reasons of conditions.
const (
	reasonJudged        = "Judged"
	reasonInvalidMatch  = "InvalidMatch"
	reasonNotJudged     = "NotJudgedBy"
	reasonBreakGlass    = "BreakGlass"
	reasonNoException   = "NoException"
	reasonDeny          = "Deny"
	reasonNotDenying    = "NotDenying"
	reasonNotAsked      = "NotAsked"
	reasonAtMostOne     = "AtMostOne"
	reasonViolations    = "Violations"
	reasonNoClearHolder = "NoClearHolder"
)

// instancePods lists live the Pods that run an instance and have not ended. An
// empty namespace stands for all of them.
func instancePods(ctx context.Context, c client.Reader, signature *identify.Signature, namespace string) ([]corev1.Pod, error) {
	var found []corev1.Pod
	page := &corev1.PodList{}
	for {
		if err := c.List(ctx, page, client.InNamespace(namespace), client.Limit(pageSize), client.Continue(page.Continue)); err != nil {
			return nil, fmt.Errorf("cannot list Pods: %w", err)
		}
		for _, pod := range page.Items {
			if runs(&pod, signature) {
				found = append(found, pod)
			}
		}
		if page.Continue == "" {
			return found, nil
		}
	}
}

// runs says whether a Pod runs an instance and has not ended.
func runs(pod *corev1.Pod, signature *identify.Signature) bool {
	ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
	return !ended && len(signature.Containers(&pod.Spec)) > 0
}

// refreshActive looks at the pinned Pod alone.
func refreshActive(ctx context.Context, c client.Reader, policy *guardv1alpha1.SingletonPolicy, signature *identify.Signature) error {
	policy.Status.ActivePod = nil
	holder := policy.Status.Holder
	if holder == nil {
		return nil
	}
	pod := &corev1.Pod{}
	err := c.Get(ctx, client.ObjectKey{Namespace: holder.Namespace, Name: holder.Name + "-0"}, pod)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("cannot get Pod %q: %w", holder.Name+"-0", err)
	case runs(pod, signature):
		policy.Status.ActivePod = activeOf(pod)
	}
	return nil
}

func activeOf(pod *corev1.Pod) *guardv1alpha1.ActivePod {
	return &guardv1alpha1.ActivePod{Name: pod.Name, UID: pod.UID, Node: pod.Spec.NodeName, Pending: pod.Status.Phase == corev1.PodPending}
}

// survey writes down the instances, and which of them is the active one.
func survey(ctx context.Context, c client.Reader, policy *guardv1alpha1.SingletonPolicy, signature *identify.Signature) error {
	pods, err := instancePods(ctx, c, signature, "")
	if err != nil {
		return err
	}
	describe(policy, pods)
	return nil
}

func describe(policy *guardv1alpha1.SingletonPolicy, pods []corev1.Pod) {
	status := &policy.Status
	status.ActivePod, status.Instances = nil, nil
	for i := range status.Slots {
		status.Slots[i].ActivePod = nil
	}
	for i := range pods {
		pod := &pods[i]
		verdict := guardv1alpha1.InstanceViolation
		switch {
		case pinned(pod, status.Holder):
			verdict = guardv1alpha1.InstanceAllowed
			status.ActivePod = activeOf(pod)
		case replica(pod, status.Holder), shardPod(pod, status):
			verdict = guardv1alpha1.InstanceAllowed
		case exceptedPod(pod, status.ActiveExceptions):
			verdict = guardv1alpha1.InstanceExcepted
		}
		status.Instances = append(status.Instances, guardv1alpha1.Instance{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Node: pod.Spec.NodeName, Owner: ownerOf(pod), Verdict: verdict,
		})
	}
	// Violations first, so that the cap never hides one behind what is in order.
	slices.SortStableFunc(status.Instances, func(a, b guardv1alpha1.Instance) int {
		if c := strings.Compare(string(b.Verdict), string(a.Verdict)); c != 0 {
			return c
		}
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	status.Instances = status.Instances[:min(len(status.Instances), maxInstances)]
}

func pinned(pod *corev1.Pod, holder *guardv1alpha1.Holder) bool {
	return holder != nil && pod.Namespace == holder.Namespace && pod.Name == holder.Name+"-0"
}

// replica says whether a Pod is another one of a holder whose Pods elect a leader.
func replica(pod *corev1.Pod, holder *guardv1alpha1.Holder) bool {
	return holder != nil && holder.Elected && pod.Namespace == holder.Namespace && belongs(pod, holder)
}

// shardPod says whether a Pod is the pinned one of a shard, and writes it down there.
func shardPod(pod *corev1.Pod, status *guardv1alpha1.SingletonPolicyStatus) bool {
	for i := range status.Slots {
		if pinned(pod, &status.Slots[i].Holder) {
			status.Slots[i].ActivePod = activeOf(pod)
			return true
		}
	}
	return false
}

// ownerOf is the controller that a Pod says to be of.
func ownerOf(pod *corev1.Pod) string {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return ""
	}
	return owner.Kind + "/" + owner.Name
}

func exceptedPod(pod *corev1.Pod, exceptions []guardv1alpha1.Exception) bool {
	for _, exception := range exceptions {
		if exception.Namespace != pod.Namespace {
			continue
		}
		if owner := metav1.GetControllerOfNoCopy(pod); exception.Name == pod.Name ||
			owner != nil && decide.MadeFor(owner.Kind, owner.Name, exception.Name) {
			return true
		}
	}
	return false
}

// exceptionsMessage names the workloads that are let through, and until when.
func exceptionsMessage(active []guardv1alpha1.Exception) string {
	names := make([]string, 0, len(active))
	for _, exception := range active {
		names = append(names, fmt.Sprintf("%s/%s until %s", exception.Namespace, exception.Name, exception.Expires.UTC().Format(time.RFC3339)))
	}
	return "let through in spite of the rules: " + strings.Join(names, ", ")
}

// summary is what the conditions say beside the status itself.
type summary struct {
	// fault is why the policy cannot be judged by.
	fault error
	// gap is why the API server does not ask the guard about every workload.
	gap string
	// candidates are the StatefulSets found while the slot was free.
	candidates []appsv1.StatefulSet
}

func setConditions(policy *guardv1alpha1.SingletonPolicy, s summary, now time.Time) {
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
	if s.fault != nil {
		set(guardv1alpha1.ConditionReady, false, reasonInvalidMatch, s.fault.Error())
		set(guardv1alpha1.ConditionEnforcing, false, reasonInvalidMatch, "the policy cannot be judged by")
		return
	}
	set(guardv1alpha1.ConditionReady, true, reasonJudged, "the guard judges by this generation")
	if active := policy.Status.ActiveExceptions; len(active) > 0 {
		set(guardv1alpha1.ConditionExcepted, true, reasonBreakGlass, exceptionsMessage(active))
	} else {
		set(guardv1alpha1.ConditionExcepted, false, reasonNoException, "no exception is active")
	}

	switch {
	case decide.PolicyOf(policy, now).Action != decide.ActionDeny:
		set(guardv1alpha1.ConditionEnforcing, false, reasonNotDenying, "spec.validationActions does not hold Deny")
	case s.gap != "":
		set(guardv1alpha1.ConditionEnforcing, false, reasonNotAsked, s.gap)
	default:
		set(guardv1alpha1.ConditionEnforcing, true, reasonDeny, "a second instance is refused")
	}

	violations := 0
	for _, instance := range policy.Status.Instances {
		if instance.Verdict == guardv1alpha1.InstanceViolation {
			violations++
		}
	}
	switch {
	case policy.Status.Holder == nil && len(s.candidates) > 1:
		set(guardv1alpha1.ConditionCompliant, false, reasonNoClearHolder,
			fmt.Sprintf("%d StatefulSets run an instance and none holds the slot: name one in spec.holder and delete the others", len(s.candidates)))
	case violations > 0:
		set(guardv1alpha1.ConditionCompliant, false, reasonViolations,
			fmt.Sprintf("%d instance(s) should not be there: see status.instances", violations))
	default:
		set(guardv1alpha1.ConditionCompliant, true, reasonAtMostOne, "at most one instance is there")
	}
}
