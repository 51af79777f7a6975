package app

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
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
