package webhook

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
)

// F23: a policy whose spec was emptied past the CRD's rules, or that cannot be
// read any more, is judged by as it was last, with the holder that it has now.
func TestLastGoodPolicy(t *testing.T) {
	good := stored()
	good.Spec.Match.Images = []string{"example.com/ours"}
	good.Spec.Match.Commands = nil
	good.Status.Holder = &guardv1alpha1.Holder{Kind: "StatefulSet", Namespace: "prod", Name: "other", UID: "o", Phase: guardv1alpha1.HolderBound, Epoch: 1, ClaimedAt: metav1.Now()}
	ours := strings.ReplaceAll(firstStatefulSet, "ghcr.io/metacontroller/metacontroller:v4", "example.com/ours:1")
	slot := &faultySlot{policy: good}
	r := newRig(slot)
	ask := func(body string) decide.Decision {
		t.Helper()
		before := len(r.outcomes)
		answer(t, post(r, "/validate", body))
		if len(r.outcomes) == before {
			return decide.Decision{Verdict: decide.VerdictAllow}
		}
		return r.outcomes[len(r.outcomes)-1].Decision
	}
	if got := ask(ours); got.Rule != decide.RuleSecondWorkload {
		t.Fatalf("got %+v", got)
	}
	emptied := good.DeepCopy()
	emptied.Generation, emptied.Spec = 2, guardv1alpha1.SingletonPolicySpec{}
	emptied.Status.Holder.Name = "mc"
	slot.policy = emptied
	if got := ask(strings.ReplaceAll(ours, `"name":"mc"`, `"name":"x"`)); got.Rule != decide.RuleSecondWorkload || got.Holder.Identity.Name != "mc" {
		t.Fatalf("by an emptied spec: %+v", got)
	}
	slot.policy, slot.readErr = nil, errors.New("the server could not find the requested resource")
	if got := ask(ours); got.Verdict != decide.VerdictUnreadable {
		t.Fatalf("unread: %+v", got)
	}
	// What only the built-in default would match is none of its business.
	if got := ask(firstStatefulSet); got.Matching {
		t.Fatalf("judged by the default: %+v", got)
	}
}
