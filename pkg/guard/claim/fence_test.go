package claim

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

func fencedPolicy(change func(*guardv1alpha1.SingletonPolicy)) *guardv1alpha1.SingletonPolicy {
	policy := &guardv1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "p", Generation: 3}}
	policy.Spec.Fence = &guardv1alpha1.Fence{ServiceAccount: guardv1alpha1.ServiceAccountReference{Namespace: "mc", Name: "sa"}, Action: guardv1alpha1.FenceDeny}
	policy.Status.Holder = &guardv1alpha1.Holder{Namespace: "mc", Name: "mc", Display: "mc/mc", UID: "u", Phase: guardv1alpha1.HolderBound, Epoch: 1}
	if change != nil {
		change(policy)
	}
	return policy
}

func TestFenceCondition(t *testing.T) {
	marked := func(p *guardv1alpha1.SingletonPolicy) {
		p.Status.Writer = &guardv1alpha1.Writer{Namespace: "mc", Name: "mc-0", UID: "pod"}
	}
	for _, c := range []struct {
		why     string
		policy  func(*guardv1alpha1.SingletonPolicy)
		facts   FenceFacts
		elapsed time.Duration
		want    string
	}{
		{"no fence", func(p *guardv1alpha1.SingletonPolicy) { p.Spec.Fence = nil }, FenceFacts{}, 0, reasonFenceOff},
		{"off", func(p *guardv1alpha1.SingletonPolicy) { p.Spec.Fence.Action = guardv1alpha1.FenceOff }, FenceFacts{}, 0, reasonFenceOff},
		{"missing", marked, FenceFacts{Missing: "it"}, 0, reasonFenceMissing},
		{"weakened", marked, FenceFacts{Weakened: "it differs"}, 0, reasonFenceWeakened},
		{"nobody holds the slot", func(p *guardv1alpha1.SingletonPolicy) { p.Status.Holder = nil }, FenceFacts{}, 0, reasonFenceNoHolder},
		{"another namespace", func(p *guardv1alpha1.SingletonPolicy) { p.Status.Holder.Namespace = "x" }, FenceFacts{}, 0, reasonOtherNamespace},
		{"one that marks nothing", nil, FenceFacts{}, time.Hour, reasonInForce},
		{"marked", marked, FenceFacts{Holder: "pod"}, time.Hour, reasonInForce},
		{"the next one has just taken the Lease", marked, FenceFacts{Holder: "next"}, FencePatience - 1, reasonInForce},
		{"the next one does not mark itself", marked, FenceFacts{Holder: "next"}, FencePatience, reasonFenceStale},
		{"the writer is gone", marked, FenceFacts{Holder: "pod", WriterGone: true}, 0, reasonFenceStale},
		{"the Lease is free", marked, FenceFacts{}, time.Hour, reasonInForce},
		{"not marked yet", nil, FenceFacts{Holder: "pod"}, FencePatience - 1, reasonInForce},
		{"never marked", nil, FenceFacts{Holder: "pod"}, FencePatience, reasonNotMarked},
		{"shards are not marked", func(p *guardv1alpha1.SingletonPolicy) {
			p.Spec.Mode, p.Status.Slots, p.Status.Holder = guardv1alpha1.ModeSharded, []guardv1alpha1.Slot{{Holder: *p.Status.Holder}}, nil
		}, FenceFacts{Holder: "pod"}, time.Hour, reasonInForce},
		{"audit", func(p *guardv1alpha1.SingletonPolicy) {
			marked(p)
			p.Spec.Fence.Action = guardv1alpha1.FenceAudit
		}, FenceFacts{Holder: "pod"}, time.Hour, reasonFenceAudit},
	} {
		got := fenceCondition(fencedPolicy(c.policy), c.facts, c.elapsed)
		if got.Reason != c.want || (got.Status == metav1.ConditionTrue) != (c.want == reasonInForce) || got.Message == "" {
			t.Errorf("%s: got %+v, want %s", c.why, got, c.want)
		}
	}
}

// A writer whose Pod is gone is taken off once no API server knows its token.
func TestGoneWriterIsTakenOff(t *testing.T) {
	facts := FenceFacts{WriterGone: true}
	r := &Reconciler{Fence: func(context.Context, *guardv1alpha1.SingletonPolicy) (FenceFacts, error) { return facts, nil }}
	policy := fencedPolicy(func(p *guardv1alpha1.SingletonPolicy) {
		p.Status.Writer = &guardv1alpha1.Writer{Namespace: "mc", Name: "mc-0", UID: "pod"}
	})
	now := time.Unix(0, 0)
	look := func(after time.Duration) string {
		t.Helper()
		now = now.Add(after)
		wait, err := r.fence(t.Context(), policy, now)
		if err != nil || wait != FenceCheck {
			t.Fatalf("wait %s, %v", wait, err)
		}
		condition := meta.FindStatusCondition(policy.Status.Conditions, guardv1alpha1.ConditionFenceReady)
		if condition == nil || condition.ObservedGeneration != policy.Generation {
			t.Fatalf("condition %+v", condition)
		}
		return condition.Reason
	}
	if got := look(0); got != reasonFenceStale || policy.Status.Writer == nil {
		t.Fatalf("at first: %s, %+v", got, policy.Status.Writer)
	}
	// Another one in between begins the wait anew.
	policy.Status.Writer.UID = "next"
	if look(WriterGrace); policy.Status.Writer == nil {
		t.Fatal("the next one was taken off for the one before")
	}
	if look(WriterGrace - time.Second); policy.Status.Writer == nil {
		t.Fatal("taken off too early")
	}
	if got := look(time.Second); got != reasonInForce || policy.Status.Writer != nil {
		t.Errorf("after the grace: %s, %+v", got, policy.Status.Writer)
	}
}
