package fence_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

const (
	// rate is how many writes a second the fenced account makes, and writers by how
	// many it makes them at once.
	rate    = 1000
	writers = 32
)

// TestCost measures, as H13 asks, what the fence adds to a write at 1000 writes a
// second, beside the same without it. It asserts nothing about time. FENCE_BENCH is
// how many writes are made each time; rounds with and without alternate, so that
// what else the machine does falls on both.
func TestCost(t *testing.T) {
	w := newWorld(t)
	t.Run("H13_fence_cost", func(t *testing.T) {
		w := w.at(t)
		active := w.pod("metacontroller-0")
		h := w.bound(active)[0]
		w.markAs(h, active)
		w.wantAllowed(w.bound(active))
		writes, rounds := number(t, "FENCE_BENCH", 200), 1
		if writes > 1000 {
			rounds = 5
		}
		took := map[v1alpha1.FenceAction][]time.Duration{}
		reached := map[v1alpha1.FenceAction]float64{}
		for range rounds {
			for _, action := range []v1alpha1.FenceAction{v1alpha1.FenceDeny, v1alpha1.FenceOff} {
				w.spec(func(spec *v1alpha1.SingletonPolicySpec) { spec.Fence.Action = action })
				unbound := w.unbound(0)
				w.eventually(func() error {
					if err := unbound.write(); (err == nil) != (action == v1alpha1.FenceOff) {
						return fmt.Errorf("%s is not in force: %v", action, err)
					}
					return nil
				})
				durations, perSecond := w.burst(h, writes)
				took[action] = append(took[action], durations...)
				reached[action] += perSecond / float64(rounds)
			}
		}
		for action, all := range took {
			slices.Sort(all)
			at := func(p float64) time.Duration { return all[int(float64(len(all)-1)*p)].Round(10 * time.Microsecond) }
			t.Logf("fence %-5s %d writes at %.0f/s: p50 %s, p90 %s, p99 %s", action, len(all), reached[action], at(.5), at(.9), at(.99))
		}
	})
}

// burst makes writes at the rate, and says how long each took and how many a second
// there were.
func (w *world) burst(h hand, n int) ([]time.Duration, float64) {
	w.Helper()
	durations := make([]time.Duration, n)
	// One object each: the store's own conflicts are not what is measured.
	name := func(writer int) string { return fmt.Sprintf("%s-%d", beat, writer) }
	for writer := range writers {
		w.must(client.IgnoreAlreadyExists(w.admin().Create(w.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: beats, Name: name(writer)}})))
	}
	var next, failed atomic.Int64
	began := time.Now()
	var done sync.WaitGroup
	for writer := range writers {
		done.Go(func() {
			for {
				i := next.Add(1) - 1
				if i >= int64(n) {
					return
				}
				time.Sleep(time.Until(began.Add(time.Duration(i) * time.Second / rate)))
				sent := time.Now()
				if _, err := h.CoreV1().ConfigMaps(beats).Patch(context.Background(), name(writer), types.MergePatchType, fmt.Appendf(nil, `{"data":{"n":"%d"}}`, i), metav1.PatchOptions{}); err != nil {
					failed.Add(1)
				}
				durations[i] = time.Since(sent)
			}
		})
	}
	done.Wait()
	if failed.Load() > 0 {
		w.Errorf("%d of %d writes of the active Pod failed", failed.Load(), n)
	}
	return durations, float64(n) / time.Since(began).Seconds()
}
