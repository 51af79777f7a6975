package guard_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

// TestGuardsKilled kills every guard: what is pinned stays pinned, nobody else
// notices, and the holder's Pod can be made again.
func TestGuardsKilled(t *testing.T) {
	s := install(t, 2, allLayers)
	namespace := s.namespace("outage")
	if err := s.admin().Create(s.ctx(), statefulSet(namespace, "mc")); err != nil {
		t.Fatal(err)
	}
	s.phase(guardv1alpha1.HolderBound)
	first := s.awaitPod(namespace, "mc-0", "")
	before := s.timePods(namespace, "before")

	for _, g := range s.guards {
		g.process.Kill()
		<-g.process.Done()
	}

	for server, admin := range s.admins {
		err := admin.Create(s.ctx(), pod(namespace, "second", instanceImage))
		if !apierrors.IsForbidden(err) {
			t.Fatalf("API server %d: a second instance got %v", server, err)
		}
		if err := admin.Create(s.ctx(), statefulSet(namespace, "second")); err == nil {
			t.Fatalf("API server %d: a second workload was let in", server)
		}
	}
	after := s.timePods(namespace, "after")
	t.Logf("creating an unrelated Pod: median %s with guards, %s without", before, after)
	if after > 3*before+50*time.Millisecond {
		t.Errorf("unrelated Pods are delayed: median %s, was %s", after, before)
	}

	if err := s.admin().Delete(s.ctx(), pod(namespace, "mc-0", ""), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	s.awaitPod(namespace, "mc-0", first)

	// Back again, it goes on where it was.
	s.start(guardConfig{})
	s.point()
	refused(t, s.admin().Create(s.ctx(), statefulSet(namespace, "second")), "second-workload", namespace+"/mc")
}

// awaitPod waits for a Pod that is not the one of uid.
func (s *suite) awaitPod(namespace, name string, uid types.UID) types.UID {
	s.t.Helper()
	found := &corev1.Pod{}
	s.eventually(func() error {
		if err := s.admin().Get(s.ctx(), client.ObjectKey{Namespace: namespace, Name: name}, found); err != nil {
			return err
		}
		if found.UID == uid {
			return fmt.Errorf("still the Pod %s", uid)
		}
		return nil
	})
	return found.UID
}

// timePods creates unrelated Pods and returns the median time.
func (s *suite) timePods(namespace, prefix string) time.Duration {
	s.t.Helper()
	var times []time.Duration
	for i := range 20 {
		start := time.Now()
		if err := s.admin().Create(s.ctx(), pod(namespace, fmt.Sprintf("%s-%d", prefix, i), strangerImage)); err != nil {
			s.t.Fatal(err)
		}
		times = append(times, time.Since(start))
	}
	slices.Sort(times)
	return times[len(times)/2]
}
