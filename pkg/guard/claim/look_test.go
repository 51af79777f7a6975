package claim_test

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/claim"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

// crowded is a cluster with so many Pods that a look at them never ends.
type crowded struct {
	client.Client
	written *guardv1alpha1.SingletonPolicy
}

func (c *crowded) Get(context.Context, client.ObjectKey, client.Object, ...client.GetOption) error {
	return notFound("statefulsets", "mc")
}

func (c *crowded) List(ctx context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if _, pods := list.(*corev1.PodList); pods {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

func (c *crowded) Status() client.SubResourceWriter { return crowdedStatus{crowded: c} }

type crowdedStatus struct {
	client.SubResourceWriter
	*crowded
}

func (c crowdedStatus) Update(_ context.Context, object client.Object, _ ...client.SubResourceUpdateOption) error {
	c.written = object.(*guardv1alpha1.SingletonPolicy)
	return nil
}

// TestLookThatTakesTooLong: the last scan counts then, and only if it is of this
// generation and has seen nothing.
func TestLookThatTakesTooLong(t *testing.T) {
	compliant := func(status metav1.ConditionStatus, generation int64) []metav1.Condition {
		return []metav1.Condition{{Type: guardv1alpha1.ConditionCompliant, Status: status, ObservedGeneration: generation}}
	}
	tests := map[string]struct {
		status guardv1alpha1.SingletonPolicyStatus
		want   bool
	}{
		"no scan yet":        {guardv1alpha1.SingletonPolicyStatus{}, false},
		"nothing runs":       {guardv1alpha1.SingletonPolicyStatus{Conditions: compliant(metav1.ConditionTrue, 2)}, true},
		"of another spec":    {guardv1alpha1.SingletonPolicyStatus{Conditions: compliant(metav1.ConditionTrue, 1)}, false},
		"not everything":     {guardv1alpha1.SingletonPolicyStatus{Conditions: compliant(metav1.ConditionUnknown, 2)}, false},
		"something runs":     {guardv1alpha1.SingletonPolicyStatus{Conditions: compliant(metav1.ConditionTrue, 2), Instances: make([]guardv1alpha1.Instance, 1)}, false},
		"exceptions may end": {guardv1alpha1.SingletonPolicyStatus{Conditions: compliant(metav1.ConditionTrue, 2), ActiveExceptions: make([]guardv1alpha1.Exception, 1)}, false},
	}
	signature, err := identify.Compile(guardv1alpha1.DefaultMatch())
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cluster := &crowded{}
			policy := &guardv1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Generation: 2}, Status: test.status}
			slot := &claim.Slot{Client: cluster, Clock: clock.RealClock{}, Policy: "p", Look: 10 * time.Millisecond}
			taken, err := slot.Take(t.Context(), policy, signature, claim.Want{Identity: identity("mc"), UID: "u", Creates: true})
			granted := err == nil && taken.Result == decide.ClaimGranted && cluster.written != nil
			if granted != test.want || !test.want && (err == nil || !strings.Contains(err.Error(), "Compliant")) {
				t.Errorf("got %+v, %v", taken, err)
			}
		})
	}
}
