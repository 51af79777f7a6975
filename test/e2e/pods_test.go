package e2e_test

import (
	"context"
	"fmt"
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"
)

// podState is what matters of a Pod.
type podState struct {
	uid    types.UID
	ready  bool
	ending bool
	phase  corev1.PodPhase
	// value is that of the first variable of the first container.
	value string
	ip    string
}

func stateOf(pod *corev1.Pod) podState {
	state := podState{uid: pod.UID, ending: pod.DeletionTimestamp != nil, phase: pod.Status.Phase, ip: pod.Status.PodIP}
	if environ := pod.Spec.Containers[0].Env; len(environ) > 0 {
		state.value = environ[0].Value
	}
	for _, condition := range pod.Status.Conditions {
		state.ready = state.ready || condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue && !state.ending
	}
	return state
}

// podRecorder keeps every state that the API server had of some Pods.
type podRecorder struct {
	s *sample

	mu sync.Mutex
	// history are the Pods by name after each change; the first is the state at the
	// start. Guarded by mu.
	history []map[string]podState
}

// recordPods records the Pods of the sample's namespace that a label selector
// chooses, until the test ends.
func (s *sample) recordPods(selector string) *podRecorder {
	s.t.Helper()
	pods := s.clients.CoreV1().Pods(s.name)
	list, err := pods.List(s.t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		s.t.Fatal(err)
	}
	watcher, err := watchtools.NewRetryWatcherWithContext(s.t.Context(), list.ResourceVersion, &cache.ListWatch{
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = selector
			return pods.Watch(ctx, options)
		},
	})
	if err != nil {
		s.t.Fatal(err)
	}
	first := map[string]podState{}
	for i := range list.Items {
		first[list.Items[i].Name] = stateOf(&list.Items[i])
	}
	r := &podRecorder{s: s, history: []map[string]podState{first}}
	ended := make(chan struct{})
	s.t.Cleanup(func() { watcher.Stop(); <-ended })
	go func() {
		defer close(ended)
		for event := range watcher.ResultChan() {
			pod, ok := event.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			r.mu.Lock()
			next := maps.Clone(r.history[len(r.history)-1])
			if event.Type == watch.Deleted {
				delete(next, pod.Name)
			} else {
				next[pod.Name] = stateOf(pod)
			}
			r.history = append(r.history, next)
			r.mu.Unlock()
		}
	}()
	return r
}

// take waits until the latest state is as wanted, and returns all states up to it
// from the last one of the take before.
func (r *podRecorder) take(wanted func(map[string]podState) error) []map[string]podState {
	r.s.t.Helper()
	var taken []map[string]podState
	r.s.eventually(func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		latest := r.history[len(r.history)-1]
		if err := wanted(latest); err != nil {
			return err
		}
		taken, r.history = r.history, []map[string]podState{latest}
		return nil
	})
	return taken
}

// allReady wants a number of Pods, all ready and with a value.
func allReady(count int, value string) func(map[string]podState) error {
	return func(pods map[string]podState) error {
		if len(pods) != count {
			return fmt.Errorf("there are %d Pods, not %d: %+v", len(pods), count, pods)
		}
		for name, pod := range pods {
			if !pod.ready || pod.value != value {
				return fmt.Errorf("Pod %q is not ready with value %q: %+v", name, value, pods)
			}
		}
		return nil
	}
}

// added are the names of the Pods that came, in their order; a Pod that came again
// is there twice.
func added(history []map[string]podState) []string {
	var names []string
	for i, pods := range history[1:] {
		for name, pod := range pods {
			if before, ok := history[i][name]; !ok || before.uid != pod.uid {
				names = append(names, name)
			}
		}
	}
	return names
}

// ended are the names of the Pods that were told to end, in their order.
func ended(history []map[string]podState) []string {
	var names []string
	for i, pods := range history[1:] {
		for name, before := range history[i] {
			after, ok := pods[name]
			if !before.ending && (!ok || after.ending || after.uid != before.uid) {
				names = append(names, name)
			}
		}
	}
	return names
}

// most is the greatest number of Pods of which something held at one time.
func most(history []map[string]podState, holds func(podState) bool) int {
	greatest := 0
	for _, pods := range history {
		count := 0
		for _, pod := range pods {
			if holds(pod) {
				count++
			}
		}
		greatest = max(greatest, count)
	}
	return greatest
}

// fewestReady is the smallest number of ready Pods at one time.
func fewestReady(history []map[string]podState) int {
	fewest := len(history[0])
	for _, pods := range history {
		count := 0
		for _, pod := range pods {
			if pod.ready {
				count++
			}
		}
		fewest = min(fewest, count)
	}
	return fewest
}
