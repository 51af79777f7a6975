package guard_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
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
	if s.webhookCalls(0) == 0 {
		t.Fatal("the API server's metrics do not count the call about the StatefulSet")
	}
	s.strangers(namespace, "before")

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
	s.strangers(namespace, "after")

	if err := s.admin().Delete(s.ctx(), pod(namespace, "mc-0", ""), client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	s.awaitPod(namespace, "mc-0", first)

	// Back again, it goes on where it was.
	s.start(guardConfig{})
	s.point()
	refused(t, s.admin().Create(s.ctx(), statefulSet(namespace, "second")), "second-workload", namespace+"/mc")
}

// TestGuardsHang stalls every guard, so that it takes what it is asked and never
// answers: each call is bounded, and otherwise it is as if they were dead.
func TestGuardsHang(t *testing.T) {
	s := prepare(t)
	s.timeout = 2
	for i := range 2 {
		s.start(guardConfig{server: i % s.cp.APIServers()})
	}
	s.point()
	s.admission(allLayers)
	namespace := s.namespace("hang")
	if err := s.admin().Create(s.ctx(), statefulSet(namespace, "mc")); err != nil {
		t.Fatal(err)
	}
	s.phase(guardv1alpha1.HolderBound)
	first := s.awaitPod(namespace, "mc-0", "")
	scaled := deployment(namespace, "scaled")
	scaled.Spec.Template = template(strangerImage)
	if err := s.admin().Create(s.ctx(), scaled); err != nil {
		t.Fatal(err)
	}
	s.strangers(namespace, "before")

	t.Run("E07 hung replica", func(t *testing.T) {
		hung := s.at(t)
		for _, g := range hung.guards {
			if err := g.process.Signal(syscall.SIGSTOP); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = g.process.Signal(syscall.SIGCONT) }()
		}
		hung.strangers(namespace, "after")
		// Each waits for a guard that does not answer: all of them at once.
		var waiting sync.WaitGroup
		for server, admin := range hung.admins {
			waiting.Go(func() {
				if err := admin.Create(hung.ctx(), pod(namespace, "second", instanceImage)); !apierrors.IsForbidden(err) {
					t.Errorf("API server %d: a second instance got %v", server, err)
				}
				if err := admin.Create(hung.ctx(), statefulSet(namespace, "second")); !apierrors.IsInternalError(err) {
					t.Errorf("API server %d: a second workload got %v", server, err)
				}
				// It is asked about, for a scale does not say what it would run, and it
				// goes on without an answer.
				scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: int32(2 + server)}}
				if err := admin.SubResource("scale").Update(hung.ctx(), scaled.DeepCopy(), client.WithSubResourceBody(scale)); err != nil {
					t.Errorf("API server %d: an unrelated scale got %v", server, err)
				}
			})
		}
		waiting.Wait()
		// The controller's own Pod comes back.
		if err := hung.admin().Delete(hung.ctx(), pod(namespace, "mc-0", ""), client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
		hung.awaitPod(namespace, "mc-0", first)
	})

	// They go on, and so does everything. The API servers find out that the
	// connections live.
	s.eventually(func() error {
		err := s.admin().Create(s.ctx(), statefulSet(namespace, "second"))
		if apierrors.IsInternalError(err) {
			return err
		}
		refused(t, err, "second-workload", namespace+"/mc")
		return nil
	})
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

// strangers creates unrelated Pods. They are not delayed, for no webhook of the
// guard is called about them: the API servers' own metrics say so. The times are
// logged, not judged.
func (s *suite) strangers(namespace, prefix string) {
	s.t.Helper()
	for server, admin := range s.admins {
		before := s.webhookCalls(server)
		var times []time.Duration
		for i := range 20 {
			start := time.Now()
			if err := admin.Create(s.ctx(), pod(namespace, fmt.Sprintf("%s-%d-%d", prefix, server, i), strangerImage)); err != nil {
				s.t.Fatal(err)
			}
			times = append(times, time.Since(start))
		}
		if calls := s.webhookCalls(server) - before; calls != 0 {
			s.t.Errorf("API server %d: the guard was asked %d times about unrelated Pods", server, calls)
		}
		slices.Sort(times)
		s.t.Logf("API server %d, %s: creating an unrelated Pod took %s (median), %s at most", server, prefix, times[len(times)/2], times[len(times)-1])
	}
}

// webhookCalls is how often an API server has called a webhook of the guard,
// whatever came of it.
func (s *suite) webhookCalls(server int) int {
	s.t.Helper()
	return s.webhookCallsOf(server, ".guard.metacontroller.io")
}

// webhookCallsOf is the same for the webhooks whose names end in suffix.
func (s *suite) webhookCallsOf(server int, suffix string) int {
	s.t.Helper()
	const metric = "apiserver_admission_webhook_admission_duration_seconds_count{"
	clients, err := kubernetes.NewForConfig(s.cp.AdminConfig(server))
	if err != nil {
		s.t.Fatal(err)
	}
	exposition, err := clients.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(s.ctx())
	if err != nil {
		s.t.Fatal(err)
	}
	calls := 0
	for line := range strings.Lines(string(exposition)) {
		if !strings.HasPrefix(line, metric) || !strings.Contains(line, suffix+`"`) {
			continue
		}
		value, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' ')+1:]), 64)
		if err != nil {
			s.t.Fatalf("%q: %v", line, err)
		}
		calls += int(value)
	}
	return calls
}
