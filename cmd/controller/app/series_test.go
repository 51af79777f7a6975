package app

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
)

func TestWithoutStale(t *testing.T) {
	registry := prometheus.NewRegistry()
	depth := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "workqueue_depth"}, []string{"name", "controller"})
	gone := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "gone"}, []string{"controller"})
	other := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "other"}, []string{"resource"})
	registry.MustRegister(depth, gone, other)
	for _, queue := range []string{"CompositeController-a", "CompositeController-b", "DecoratorController-a", "composite-metacontroller"} {
		depth.WithLabelValues(queue, queue)
	}
	gone.WithLabelValues("CompositeController-b")
	other.WithLabelValues("CompositeController-b")

	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var left []string
	for _, family := range withoutStale(families, map[string]bool{"CompositeController-a": true}) {
		for _, metric := range family.Metric {
			left = append(left, family.GetName()+" "+metric.Label[0].GetValue())
		}
	}
	want := []string{"other CompositeController-b", "workqueue_depth CompositeController-a", "workqueue_depth composite-metacontroller"}
	if !slices.Equal(left, want) {
		t.Errorf("left are %q", left)
	}
}

// seriesOf counts the series that have a label of this value.
func seriesOf(t *testing.T, gatherer prometheus.Gatherer, value string) int {
	t.Helper()
	families, err := gatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	for _, family := range families {
		for _, metric := range family.Metric {
			for _, label := range metric.Label {
				if label.GetValue() == value {
					count++
					break
				}
			}
		}
	}
	return count
}

// What is retired is deleted, not hidden; nothing else is.
func TestRetiredSeries(t *testing.T) {
	registry := prometheus.NewRegistry()
	vectors := []*prometheus.GaugeVec{
		prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "depth", Help: "Depth."}, []string{"priority", "name", "controller"}),
		prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "workers"}, []string{"controller"}),
	}
	other := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "other"}, []string{"resource"})
	// Of a metric without a vector there is nothing to delete.
	single := prometheus.NewGauge(prometheus.GaugeOpts{Name: "single", ConstLabels: prometheus.Labels{"name": "DecoratorController-a"}})
	registry.MustRegister(vectors[0], vectors[1], other, single)
	for _, queue := range []string{"host", "CompositeController-a", "CompositeController-ab", "DecoratorController-a"} {
		for _, priority := range []string{"0", "-100"} {
			vectors[0].WithLabelValues(priority, queue, queue)
		}
		vectors[1].WithLabelValues(queue)
	}
	other.WithLabelValues("CompositeController-a")

	series := newCurrentSeries(registry)
	for range 2 {
		series.retire("CompositeController-a")
		for queue, want := range map[string]int{"host": 3, "CompositeController-a": 1, "CompositeController-ab": 3, "DecoratorController-a": 4} {
			if got := seriesOf(t, registry, queue); got != want {
				t.Errorf("%d series of %s, not %d", got, queue, want)
			}
		}
	}
}

// The queues of controller-runtime have their series in vectors that can be found.
func TestRetiredQueue(t *testing.T) {
	series := newCurrentSeries(ctrlmetrics.Registry)
	queue := func(name string) {
		q := priorityqueue.New[string](name, func(o *priorityqueue.Opts[string]) {
			o.RateLimiter = workqueue.DefaultTypedControllerRateLimiter[string]()
		})
		q.Add("item")
		if item, _ := q.Get(); item != "item" {
			t.Errorf("it is %q", item)
		}
		q.ShutDown()
	}
	queue("TestRetiredQueue-host")
	host := seriesOf(t, ctrlmetrics.Registry, "TestRetiredQueue-host")
	for range 3 {
		queue("CompositeController-retired")
		if got := seriesOf(t, ctrlmetrics.Registry, "CompositeController-retired"); got != host || got == 0 {
			t.Errorf("%d series of a queue that runs, and %d of another", got, host)
		}
		series.retire("CompositeController-retired")
		if got := seriesOf(t, ctrlmetrics.Registry, "CompositeController-retired"); got != 0 {
			t.Errorf("%d series of a queue that is gone", got)
		}
	}
	if got := seriesOf(t, ctrlmetrics.Registry, "TestRetiredQueue-host"); got != host {
		t.Errorf("%d of %d series are left of another", got, host)
	}
}
