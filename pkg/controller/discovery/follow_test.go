package discovery

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"
)

// table is an API server that serves nothing, and notes when it is asked.
type table struct {
	discovery.AggregatedDiscoveryInterfaceWithContext
	asked chan time.Time
}

func (s *table) GroupsAndMaybeResourcesWithContext(context.Context) (*metav1.APIGroupList, map[schema.GroupVersion]*metav1.APIResourceList, map[schema.GroupVersion]error, error) {
	s.asked <- time.Now()
	return &metav1.APIGroupList{}, map[schema.GroupVersion]*metav1.APIResourceList{}, nil, nil
}

// follow pokes at these times, and returns when it was refreshed until end, all
// from the start.
func follow(t *testing.T, interval, end time.Duration, pokes ...time.Duration) []time.Duration {
	t.Helper()
	var asked []time.Duration
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		server := &table{asked: make(chan time.Time, 1000)}
		resources := New(server, clock.RealClock{})
		ctx, cancel := context.WithCancel(t.Context())
		poke, done := make(chan struct{}, 1), make(chan struct{})
		go func() {
			defer close(done)
			resources.Follow(ctx, clock.RealClock{}, interval, poke, func() {}, func(err error) { t.Error(err) })
		}()
		for _, at := range pokes {
			time.Sleep(time.Until(start.Add(at)))
			select {
			case poke <- struct{}{}:
			default:
			}
		}
		time.Sleep(time.Until(start.Add(end)))
		cancel()
		<-done
		close(server.asked)
		for at := range server.asked {
			asked = append(asked, at.Sub(start))
		}
	})
	return asked
}

func TestFollow(t *testing.T) {
	const second, ms = time.Second, time.Millisecond
	for _, c := range []struct {
		reason   string
		interval time.Duration
		pokes    []time.Duration
		end      time.Duration
		want     []time.Duration
	}{
		{"nothing happens", 30 * second, nil, 65 * second, []time.Duration{30 * second, 60 * second}},
		{"a poke", 30 * second, []time.Duration{second}, 40 * second,
			[]time.Duration{1200 * ms, 2 * second, 4 * second, 9 * second, 39 * second}},
		{"a poke at the start", 30 * second, []time.Duration{0}, second, []time.Duration{800 * ms}},
		{"two pokes at once", 30 * second, []time.Duration{second, 1100 * ms}, 3 * second, []time.Duration{1200 * ms, 2 * second}},
		{"a poke soon after a refresh", 30 * second, []time.Duration{second, 1300 * ms}, 4 * second,
			[]time.Duration{1200 * ms, 2 * second, 2800 * ms}},
		{"a poke just before the interval ends", 30 * second, []time.Duration{29900 * ms}, 31 * second, []time.Duration{30 * second, 30800 * ms}},
		{"an interval that is short", 500 * ms, []time.Duration{second + 1}, 2200 * ms,
			[]time.Duration{500 * ms, second, 1500 * ms, 2 * second}},
	} {
		got := follow(t, c.interval, c.end, c.pokes...)
		if len(got) != len(c.want) {
			t.Errorf("%s: refreshed at %v, not %v", c.reason, got, c.want)
			continue
		}
		for i, at := range got {
			if at != c.want[i] {
				t.Errorf("%s: refreshed at %v, not %v", c.reason, got, c.want)
				break
			}
		}
	}
}

// Pokes that never end put no refresh off, and do not make it a busy one.
func TestFollowASteadyStream(t *testing.T) {
	var pokes []time.Duration
	for at := time.Second; at < 61*time.Second; at += 50 * time.Millisecond {
		pokes = append(pokes, at)
	}
	got := follow(t, 30*time.Second, 61*time.Second, pokes...)
	if len(got) < 70 || len(got) > 80 {
		t.Fatalf("%d refreshes in a minute", len(got))
	}
	for i := 1; i < len(got); i++ {
		if distance := got[i] - got[i-1]; distance > time.Second || distance < 700*time.Millisecond {
			t.Errorf("a refresh %s after the one before it", distance)
		}
	}
}
