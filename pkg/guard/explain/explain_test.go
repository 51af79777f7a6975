package explain

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/check"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/finding"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func held() *guardv1alpha1.SingletonPolicy {
	policy := &guardv1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: "metacontroller"}}
	policy.Status.Holder = &guardv1alpha1.Holder{
		Kind: "StatefulSet", Namespace: "prod", Name: "mc", UID: "u1", Phase: guardv1alpha1.HolderBound, Epoch: 4, ClaimedAt: metav1.NewTime(now.Add(-49 * time.Hour)),
	}
	policy.Status.ActivePod = &guardv1alpha1.ActivePod{Name: "mc-0", UID: "p1", Node: "node-1"}
	return policy
}

func text(t *testing.T, v *View) string {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, v, finding.Style{}, now); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestText has a line of every kind, with names that no terminal should see.
func TestText(t *testing.T) {
	policy := held()
	policy.Spec.Holder = &guardv1alpha1.HolderReference{Namespace: "prod", Name: "mc"}
	policy.Spec.Exceptions = []guardv1alpha1.Exception{
		{Namespace: "dev", Name: "try", Reason: "move\n\x1b[31m", Expires: metav1.NewTime(now.Add(time.Hour))},
		{Namespace: "dev", Name: "old", Reason: "expired", Expires: metav1.NewTime(now.Add(-time.Hour))},
	}
	policy.Status.Conditions = []metav1.Condition{{Type: "Enforcing", Status: "True", Reason: "Deny", Message: "a second instance is refused"}}
	policy.Status.Instances = []guardv1alpha1.Instance{
		{Namespace: "prod", Name: "mc-0", Verdict: guardv1alpha1.InstanceAllowed},
		{Namespace: "dev", Name: "x-1", Node: "node-2", Owner: "ReplicaSet/x", Verdict: guardv1alpha1.InstanceViolation},
	}
	v := Of("metacontroller", policy, now)
	v.Slots[0].SetPod(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "p1"}, Status: corev1.PodStatus{StartTime: &metav1.Time{Time: now.Add(-3 * time.Minute)}}})
	v.Missing = []string{"something\u202e"}
	verdict := check.Verdict{
		Object:   finding.Object{Kind: "Deployment", Namespace: "dev", Name: "x"},
		Decision: decide.Decision{Verdict: decide.VerdictDeny, Rule: decide.RuleSecondWorkload, Message: "second-workload: prod/mc holds the slot\nNext: do this."},
		Shape:    attempt.Shape{Containers: []identify.Container{{Name: "main", Image: "i\x1b", By: identify.ByImage}}},
	}
	judged := v.Judge("created now", verdict)
	judged.File, judged.Line = "a.yaml", 3
	v.Judge("created now", check.Verdict{Object: finding.Object{Kind: "ConfigMap", Name: "c"}, Decision: decide.Decision{Verdict: decide.VerdictAllow}})
	want := `Policy:      metacontroller, mode Strict, Deny
Designated:  only StatefulSet prod/mc may hold the slot
Holder:      StatefulSet prod/mc, Bound since 2026-02-27T11:00:00Z (2d1h), uid u1, epoch 4
Active Pod:  prod/mc-0 on node node-1 since 2026-03-01T11:57:00Z (3m), uid p1
Exception:   dev/try until 2026-03-01T13:00:00Z: move\n\x1b[31m
Enforcing:   True, Deny: a second instance is refused
Violation:   Pod dev/x-1 of ReplicaSet/x on node node-2
a.yaml:3: Deployment dev/x, created now: refused: second-workload: prod/mc holds the slot
    container main, image i\x1b: recognised by image
    Next: do this.
ConfigMap c, created now: allowed: it runs no instance
Not known:   something\u202e
`
	if diff := cmp.Diff(want, text(t, v)); diff != "" {
		t.Error(diff)
	}
	if !v.Refused() {
		t.Error("nothing is refused")
	}
}

func TestSlots(t *testing.T) {
	pending := held()
	pending.Status.ActivePod.Pending, pending.Status.ActivePod.Node = true, ""
	idle := held()
	idle.Status.ActivePod = nil
	sharded := &guardv1alpha1.SingletonPolicy{}
	sharded.Spec.Mode = guardv1alpha1.ModeSharded
	shards := sharded.DeepCopy()
	shards.Status.Slots = []guardv1alpha1.Slot{{Selector: "team=a", Holder: *held().Status.Holder, ActivePod: held().Status.ActivePod}}
	for name, test := range map[string]struct {
		policy *guardv1alpha1.SingletonPolicy
		want   []string
	}{
		"free":         {&guardv1alpha1.SingletonPolicy{}, []string{"Holder:      none, the slot is free", "  second-workload"}},
		"no policy":    {nil, []string{"it does not exist, so nobody can claim the slot", "Holder:      none"}},
		"pending":      {pending, []string{"Active Pod:  prod/mc-0, pending\n"}},
		"idle":         {idle, []string{"Active Pod:  none runs now\n"}},
		"no shards":    {sharded, []string{"mode Sharded", "Shards:      none is held", "  shard-overlap"}},
		"shards":       {shards, []string{"Shard:       team=a\nHolder:      StatefulSet prod/mc, Bound"}},
		"not started":  {held(), []string{"Active Pod:  prod/mc-0 on node node-1, uid p1\n"}},
		"leader rules": {&guardv1alpha1.SingletonPolicy{Spec: guardv1alpha1.SingletonPolicySpec{Mode: guardv1alpha1.ModeLeaderElected}}, []string{"  leader-election"}},
	} {
		got := text(t, Of("metacontroller", test.policy, now))
		for _, part := range test.want {
			if !strings.Contains(got, part) {
				t.Errorf("%s: no %q in:\n%s", name, part, got)
			}
		}
		if name == "free" && strings.Contains(got, "shard-overlap") {
			t.Errorf("%s: has rules of another mode:\n%s", name, got)
		}
	}
}

// TestEveryRuleIsExplained holds the rules to a summary each.
func TestEveryRuleIsExplained(t *testing.T) {
	for _, rule := range append(decide.Rules(), decide.RuleSuspectedInstance) {
		if rule.Summary() == "" {
			t.Errorf("rule %s has no summary", rule)
		}
	}
}
