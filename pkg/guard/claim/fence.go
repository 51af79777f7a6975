package claim

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

const (
	// FenceCheck is how often the fence is looked at without an event.
	FenceCheck = 5 * time.Second
	// FencePatience is how long the Lease and the writer may name two Pods: a Pod
	// that takes the Lease marks itself within a moment.
	FencePatience = 10 * time.Second
	// WriterGrace is how long the Pod of a writer must be gone before the writer is
	// taken off, so that an instance that marks nothing may follow. It is longer than
	// an API server accepts the token of a Pod that was deleted (10 s).
	WriterGrace = 30 * time.Second
)

// Reasons of the condition FenceReady.
const (
	reasonInForce        = "InForce"
	reasonFenceOff       = "Off"
	reasonFenceAudit     = "Audit"
	reasonFenceMissing   = "Missing"
	reasonFenceWeakened  = "Weakened"
	reasonFenceNoHolder  = "NoHolder"
	reasonOtherNamespace = "OtherNamespace"
	reasonFenceStale     = "Stale"
	reasonNotMarked      = "NotMarked"
)

// FenceFacts are what the API server says of the fence, by live reads.
type FenceFacts struct {
	// Missing and Weakened say what is not installed, or differs from what the
	// guard renders; empty if nothing does.
	Missing, Weakened string
	// Holder is the uid of the Pod that the singleton Lease names; empty while it is
	// free, absent, or held by something else than a Pod.
	Holder types.UID
	// WriterGone says whether the Pod in status.writer does not exist any more.
	WriterGone bool
}

// fenceSight is since when the writer, the Lease and the Pod are as they are.
type fenceSight struct {
	writer, holder types.UID
	gone           bool
	since          time.Time
}

// fence writes the condition FenceReady, and takes off a writer that is long gone.
// It says when to look again.
func (r *Reconciler) fence(ctx context.Context, policy *guardv1alpha1.SingletonPolicy, now time.Time) (time.Duration, error) {
	if r.Fence == nil {
		return Resync, nil
	}
	var facts FenceFacts
	on := policy.Spec.Fence != nil && policy.Spec.Fence.Action != guardv1alpha1.FenceOff
	if on {
		var err error
		if facts, err = r.Fence(ctx, policy); err != nil {
			return 0, err
		}
	}
	elapsed := r.seeFence(policy, facts, now)
	if policy.Status.Writer != nil && facts.WriterGone && elapsed >= WriterGrace {
		policy.Status.Writer = nil
	}
	condition := fenceCondition(policy, facts, elapsed)
	condition.ObservedGeneration, condition.LastTransitionTime = policy.Generation, metav1.NewTime(now)
	meta.SetStatusCondition(&policy.Status.Conditions, condition)
	if !on {
		return Resync, nil
	}
	return FenceCheck, nil
}

// seeFence returns for how long this process has seen things as they are.
func (r *Reconciler) seeFence(policy *guardv1alpha1.SingletonPolicy, facts FenceFacts, now time.Time) time.Duration {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	sight := fenceSight{holder: facts.Holder, gone: facts.WriterGone, since: now}
	if policy.Status.Writer != nil {
		sight.writer = policy.Status.Writer.UID
	}
	before, ok := r.fences[policy.UID]
	if same := sight; ok {
		same.since = before.since
		if same == before {
			return now.Sub(before.since)
		}
	}
	if r.fences == nil {
		r.fences = map[types.UID]fenceSight{}
	}
	r.fences[policy.UID] = sight
	return 0
}

// fenceCondition says whether the fence keeps all but one Pod from writing.
func fenceCondition(policy *guardv1alpha1.SingletonPolicy, facts FenceFacts, elapsed time.Duration) metav1.Condition {
	no := func(reason, format string, arguments ...any) metav1.Condition {
		return metav1.Condition{Type: guardv1alpha1.ConditionFenceReady, Status: metav1.ConditionFalse, Reason: reason, Message: fmt.Sprintf(format, arguments...)}
	}
	fence, writer := policy.Spec.Fence, policy.Status.Writer
	var holders []guardv1alpha1.Holder
	if policy.Status.Holder != nil {
		holders = append(holders, *policy.Status.Holder)
	}
	for _, slot := range policy.Status.Slots {
		holders = append(holders, slot.Holder)
	}
	sharded := policy.Spec.Mode == guardv1alpha1.ModeSharded
	switch {
	case fence == nil || fence.Action == guardv1alpha1.FenceOff:
		return no(reasonFenceOff, "spec.fence.action is Off: whoever has the service account's token may write")
	case facts.Missing != "":
		return no(reasonFenceMissing, "%s is not installed: apply what \"guard render\" prints", facts.Missing)
	case facts.Weakened != "":
		return no(reasonFenceWeakened, "%s: apply what \"guard render\" prints", facts.Weakened)
	case len(holders) == 0:
		return no(reasonFenceNoHolder, "nobody holds the slot, so that no Pod is the one that may write")
	}
	for _, holder := range holders {
		if holder.Namespace != fence.ServiceAccount.Namespace {
			return no(reasonOtherNamespace, "holder %s is not in namespace %s of spec.fence.serviceAccount, so its Pod uses another one; name that", holder.Display, fence.ServiceAccount.Namespace)
		}
	}
	switch {
	case writer != nil && facts.WriterGone:
		return no(reasonFenceStale, "the writer %s_%s is gone; the next instance takes its place when it has the Lease, and after %s any Pod of the holder may write", writer.Name, writer.UID, WriterGrace)
	case writer != nil && facts.Holder != "" && facts.Holder != writer.UID && elapsed >= FencePatience:
		return no(reasonFenceStale, "the Lease is held by Pod uid %s, but the fence lets %s_%s write: see that Pod's log, or set spec.fence.action to Audit", facts.Holder, writer.Name, writer.UID)
	case writer == nil && facts.Holder != "" && !sharded && elapsed >= FencePatience:
		return no(reasonNotMarked, "the Lease is held by Pod uid %s, which is not in status.writer: the fence tells Pods by name alone; see that Pod's log", facts.Holder)
	case fence.Action == guardv1alpha1.FenceAudit:
		return no(reasonFenceAudit, "spec.fence.action is Audit: writes from elsewhere are let through, with an audit annotation")
	}
	what := "Pods of the holder's name"
	if writer != nil {
		what = fmt.Sprintf("Pod %s_%s", writer.Name, writer.UID)
	}
	return metav1.Condition{Type: guardv1alpha1.ConditionFenceReady, Status: metav1.ConditionTrue, Reason: reasonInForce,
		Message: fmt.Sprintf("writes of service account %s/%s are accepted from %s alone", fence.ServiceAccount.Namespace, fence.ServiceAccount.Name, what)}
}
