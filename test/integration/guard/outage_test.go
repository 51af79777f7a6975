package guard_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
	t.Run("E01 guard down, stranger", func(t *testing.T) { s.at(t).strangers(namespace, "after") })
	t.Run("E02 guard down, own Pod", func(t *testing.T) {
		down := s.at(t)
		if err := down.admin().Delete(down.ctx(), pod(namespace, "mc-0", ""), client.GracePeriodSeconds(0)); err != nil {
			t.Fatal(err)
		}
		down.awaitPod(namespace, "mc-0", first)
	})

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

// TestRollingUpgrade replaces each guard by a new one, as a Deployment does, while
// it is asked up to 200 times a second: E06.
func TestRollingUpgrade(t *testing.T) {
	s := install(t, 2, webhookOnly)
	namespace := s.namespace("upgrade")
	if err := s.admin().Create(s.ctx(), statefulSet(namespace, "mc")); err != nil {
		t.Fatal(err)
	}
	s.phase(guardv1alpha1.HolderBound)

	const (
		each = time.Second / 200
		// atOnce bounds what waits for an answer: what a slow machine cannot do in time
		// says nothing about the guards.
		atOnce = 16
	)
	ctx, stop := context.WithCancel(s.ctx())
	defer stop()
	var (
		load   sync.WaitGroup
		asked  atomic.Int64
		failed = make(chan error, 1)
	)
	begun := time.Now()
	load.Go(func() {
		tick := time.NewTicker(each)
		defer tick.Stop()
		waiting := make(chan struct{}, atOnce)
		for i := 0; ; i++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			waiting <- struct{}{}
			load.Go(func() {
				defer func() { <-waiting }()
				err := s.admins[i%len(s.admins)].Create(s.ctx(), deployment(namespace, "second"), client.DryRunAll)
				asked.Add(1)
				if !apierrors.IsForbidden(err) {
					select {
					case failed <- err:
					default:
					}
				}
			})
		}
	})
	answered := func(n int64) {
		t.Helper()
		s.eventually(func() error {
			if got := asked.Load(); got < n {
				return fmt.Errorf("%d requests were answered, want %d", got, n)
			}
			return nil
		})
	}
	for _, old := range slices.Clone(s.guards) {
		answered(asked.Load() + 100)
		s.balancer.add(s.start(guardConfig{server: old.config.server}).webhook)
		s.balancer.drop(old.webhook)
		if err := old.process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		<-old.process.Done()
		if status, _ := old.process.Status(); status.Code != 0 {
			t.Errorf("the old guard ended with %s", status)
		}
	}
	answered(asked.Load() + 100)
	stop()
	load.Wait()
	select {
	case err := <-failed:
		t.Fatalf("of %d requests one got %v, want a refusal", asked.Load(), err)
	default:
		t.Logf("%d requests were answered, %.0f a second, none failed", asked.Load(), float64(asked.Load())/time.Since(begun).Seconds())
	}
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
