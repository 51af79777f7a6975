package scan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

// TestMetricsOfThePolicy: what the policy says is measured, and what it does not say
// any more is gone.
func TestMetricsOfThePolicy(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := NewMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1000, 0)
	held := &guardv1alpha1.SingletonPolicy{}
	held.Status.Holder = &guardv1alpha1.Holder{}
	held.Status.Conditions = []metav1.Condition{{Type: "FenceReady", Status: metav1.ConditionFalse, Reason: "Stale"}}
	held.Spec.Exceptions = []guardv1alpha1.Exception{{Namespace: "n", Name: "a", Expires: metav1.Unix(2000, 0)}}
	sharded := &guardv1alpha1.SingletonPolicy{}
	sharded.Status.Slots = make([]guardv1alpha1.Slot, 2)
	sharded.Status.Conditions = []metav1.Condition{{Type: "FenceReady", Status: metav1.ConditionTrue, Reason: "InForce"}}
	for _, c := range []struct {
		why    string
		policy *guardv1alpha1.SingletonPolicy
		want   []string
	}{
		{"held, with an exception", held, []string{
			"exception_expiration_timestamp_seconds n a 2000", "policy_condition Stale False FenceReady 1", "slots_held 1",
		}},
		{"two shards", sharded, []string{"policy_condition InForce True FenceReady 1", "slots_held 2"}},
		{"no policy", nil, []string{"slots_held 0"}},
	} {
		m.set(Result{Policy: c.policy}, now, time.Millisecond)
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, family := range families {
			name := strings.TrimPrefix(family.GetName(), "metacontroller_guard_")
			if !slices.Contains([]string{"exception_expiration_timestamp_seconds", "policy_condition", "slots_held"}, name) {
				continue
			}
			for _, metric := range family.GetMetric() {
				line := name
				for _, label := range metric.GetLabel() {
					line += " " + label.GetValue()
				}
				got = append(got, fmt.Sprintf("%s %g", line, metric.GetGauge().GetValue()))
			}
		}
		if diff := cmp.Diff(sortedLabels(c.want), sortedLabels(got)); diff != "" {
			t.Errorf("%s: -want +got\n%s", c.why, diff)
		}
	}
}

// sortedLabels has the words between name and value of each line in order.
func sortedLabels(lines []string) []string {
	var all []string
	for _, line := range lines {
		words := strings.Fields(line)
		slices.Sort(words[1 : len(words)-1])
		all = append(all, strings.Join(words, " "))
	}
	return all
}
