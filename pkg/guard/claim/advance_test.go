package claim

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

var limits = Limits{Reservation: 75 * time.Second, Release: 10 * time.Second}

func held(phase guardv1alpha1.HolderPhase) guardv1alpha1.SingletonPolicyStatus {
	return guardv1alpha1.SingletonPolicyStatus{Epoch: 3, Holder: &guardv1alpha1.Holder{
		Kind: kindStatefulSet, Namespace: "prod", Name: "mc", UID: "u1", Phase: phase, Epoch: 3,
	}}
}

func TestAdvance(t *testing.T) {
	const (
		reserved  = guardv1alpha1.HolderReserved
		bound     = guardv1alpha1.HolderBound
		releasing = guardv1alpha1.HolderReleasing
	)
	tests := map[string]struct {
		phase guardv1alpha1.HolderPhase
		seen  observation
		want  guardv1alpha1.HolderPhase // empty: the slot is free
		uid   types.UID
		epoch int64
		again time.Duration
	}{
		"reserved, stored":                {reserved, observation{found: true, uid: "u1"}, bound, "u1", 3, 0},
		"reserved, the other was stored":  {reserved, observation{found: true, uid: "u2"}, bound, "u2", 4, 0},
		"reserved, absent":                {reserved, observation{elapsed: 74 * time.Second}, reserved, "u1", 3, time.Second},
		"reserved, absent for too long":   {reserved, observation{elapsed: 75 * time.Second}, releasing, "u1", 3, 10 * time.Second},
		"reserved again, old Pod is left": {reserved, observation{elapsed: time.Hour, instances: 1}, reserved, "u1", 3, poll},
		"bound, there":                    {bound, observation{found: true, uid: "u1", elapsed: time.Hour}, bound, "u1", 3, 0},
		"bound, made again unseen":        {bound, observation{found: true, uid: "u2"}, bound, "u2", 4, 0},
		"bound, gone, its Pod is left":    {bound, observation{elapsed: time.Hour, instances: 1}, bound, "u1", 3, poll},
		"bound, gone":                     {bound, observation{}, releasing, "u1", 3, 10 * time.Second},
		"releasing, too early":            {releasing, observation{elapsed: 9 * time.Second}, releasing, "u1", 3, time.Second},
		"releasing, a Pod turned up":      {releasing, observation{elapsed: time.Hour, instances: 1}, releasing, "u1", 3, poll},
		"releasing, done":                 {releasing, observation{elapsed: 10 * time.Second}, "", "", 3, 0},
		"releasing, made again":           {releasing, observation{found: true, uid: "u2"}, bound, "u2", 4, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			status := held(test.phase)
			again := advance(&status, test.seen, limits, metav1.Now())
			if status.Epoch != test.epoch || again != test.again {
				t.Fatalf("epoch %d, again after %s; want %d, %s", status.Epoch, again, test.epoch, test.again)
			}
			if test.want == "" {
				if status.Holder != nil {
					t.Fatalf("holder is %+v", status.Holder)
				}
				return
			}
			if status.Holder == nil || status.Holder.Phase != test.want || status.Holder.UID != test.uid || status.Holder.Epoch != test.epoch {
				t.Fatalf("holder is %+v", status.Holder)
			}
		})
	}
}

// TestAdvanceInvariants walks through observations in any order.
func TestAdvanceInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		status := held(guardv1alpha1.HolderReserved)
		for range rapid.IntRange(1, 30).Draw(t, "steps") {
			seen := observation{
				found:     rapid.Bool().Draw(t, "found"),
				uid:       rapid.SampledFrom([]types.UID{"u1", "u2"}).Draw(t, "uid"),
				instances: rapid.IntRange(0, 2).Draw(t, "instances"),
				elapsed:   time.Duration(rapid.IntRange(0, 100).Draw(t, "elapsed")) * time.Second,
			}
			before := *status.DeepCopy()
			advance(&status, seen, limits, metav1.Now())
			if status.Epoch < before.Epoch {
				t.Fatalf("epoch fell from %d to %d", before.Epoch, status.Epoch)
			}
			if before.Holder == nil {
				if status.Holder != nil {
					t.Fatal("a free slot was taken")
				}
				return
			}
			if status.Holder == nil {
				if seen.found || seen.instances > 0 || before.Holder.Phase != guardv1alpha1.HolderReleasing || seen.elapsed < limits.Release {
					t.Fatalf("freed too early: %+v of %+v", seen, before.Holder)
				}
				return
			}
			if status.Holder.UID != before.Holder.UID && status.Epoch == before.Epoch {
				t.Fatal("another uid in the same epoch")
			}
			if status.Holder.Name != before.Holder.Name {
				t.Fatal("another name")
			}
		}
	})
}

func TestBelongs(t *testing.T) {
	holder := held(guardv1alpha1.HolderBound).Holder
	owned := func(kind, name string) []metav1.OwnerReference {
		controller := true
		return []metav1.OwnerReference{{Kind: kind, Name: name, Controller: &controller}}
	}
	tests := map[string]struct {
		name   string
		owners []metav1.OwnerReference
		want   bool
	}{
		"pinned":             {"mc-0", owned("StatefulSet", "mc"), true},
		"orphan":             {"mc-0", nil, true},
		"a second ordinal":   {"mc-12", nil, true},
		"another name":       {"mc-x", nil, false},
		"no ordinal":         {"mc-", nil, false},
		"longer name":        {"mc-proxy-0", owned("StatefulSet", "mc-proxy"), false},
		"another's, renamed": {"odd", owned("StatefulSet", "mc"), true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: test.name, OwnerReferences: test.owners}}
			if got := belongs(pod, holder); got != test.want {
				t.Fatalf("got %v", got)
			}
		})
	}
}

func TestNextEpoch(t *testing.T) {
	status := held(guardv1alpha1.HolderBound)
	status.Epoch = 0 // Somebody edited it away.
	if got := nextEpoch(status); got != 4 {
		t.Fatalf("got %d, want one above the holder's", got)
	}
}
