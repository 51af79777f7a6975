package faults_test

import (
	"maps"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

// collectorPatience is how long the garbage collector may leave something before
// it is taken to have lost it. It may be this late after an outage too; then it is
// started anew for nothing.
const collectorPatience = 15 * time.Second

// garbage are the children whose parent is gone, though there may be another one of
// its name.
func (s *state) garbage() []types.UID {
	living := map[types.UID]bool{}
	for _, o := range s.parents {
		living[o.GetUID()] = true
	}
	var out []types.UID
	for _, o := range s.children {
		owner := metav1.GetControllerOf(o)
		if owner != nil && !living[owner.UID] && o.GetDeletionTimestamp() == nil && slices.ContainsFunc(kinds, func(k kindOf) bool { return k.kind == owner.Kind }) {
			out = append(out, o.GetUID())
		}
	}
	return out
}

// overdue is since when garbage has been seen.
type overdue map[types.UID]time.Time

// note takes in what garbage there is, and returns how long the oldest has been
// there.
func (o overdue) note(now time.Time, garbage []types.UID) (oldest time.Duration) {
	maps.DeleteFunc(o, func(uid types.UID, _ time.Time) bool { return !slices.Contains(garbage, uid) })
	for _, uid := range garbage {
		if _, ok := o[uid]; !ok {
			o[uid] = now
		}
		oldest = max(oldest, now.Sub(o[uid]))
	}
	return oldest
}

// restartCollector starts the garbage collector anew. Its informers list again
// after an API server was away for long, and then take an owner that was replaced by
// another one of its name for one that changed: what belonged to the first is never
// looked at again until the collector is started. Nothing but the collector's own
// business comes of it: it deletes what has no owner.
func (w *world) restartCollector() {
	w.t.Helper()
	w.collectors++
	w.cp.StopControllers()
	w.must(w.cp.StartControllers(w.t.Context()))
}

func TestGarbageIsOverdue(t *testing.T) {
	object := func(kind, uid, owner string) *unstructured.Unstructured {
		o := &unstructured.Unstructured{}
		o.SetUID(types.UID(uid))
		if owner != "" {
			o.SetOwnerReferences([]metav1.OwnerReference{{Kind: kind, Name: "p1", UID: types.UID(owner), Controller: new(true)}})
		}
		return o
	}
	leaving := object("Roller", "leaving", "first")
	leaving.SetDeletionTimestamp(&metav1.Time{Time: time.Unix(1, 0)})
	s := &state{
		parents: map[parentKey]*unstructured.Unstructured{{"rollers", "p1"}: object("", "second", "")},
		children: map[childKey]*unstructured.Unstructured{
			{"configmaps", "of the living"}: object("Roller", "kept", "second"),
			{"configmaps", "of the gone"}:   object("Roller", "left", "first"),
			{"configmaps", "going"}:         leaving,
			{"configmaps", "an orphan"}:     object("", "orphan", ""),
			{"configmaps", "of others"}:     object("Deployment", "foreign", "third"),
		},
	}
	if got := s.garbage(); !slices.Equal(got, []types.UID{"left"}) {
		t.Fatalf("garbage is %v", got)
	}
	o, at := overdue{}, func(second int64) time.Time { return time.Unix(second, 0) }
	for i, c := range []struct {
		now     int64
		garbage []types.UID
		want    time.Duration
	}{
		{1, nil, 0},
		{2, []types.UID{"a"}, 0},
		{5, []types.UID{"a", "b"}, 3 * time.Second},
		{6, []types.UID{"b"}, time.Second},
		{9, nil, 0},
		{10, []types.UID{"a"}, 0},
	} {
		if got := o.note(at(c.now), c.garbage); got != c.want {
			t.Errorf("step %d: overdue by %s, want %s", i, got, c.want)
		}
	}
}
