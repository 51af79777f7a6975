package app

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/metacontroller-solo/solo/pkg/singleton"
)

// TestLeaseHeld: the metric is 1 only while a write would be allowed.
func TestLeaseHeld(t *testing.T) {
	for _, c := range []struct {
		err  error
		want float64
	}{
		{nil, 1},
		{singleton.ErrLost, 0},
		{singleton.ErrInDoubt, 0},
	} {
		registry := prometheus.NewRegistry()
		registry.MustRegister(leaseHeld(func() (time.Time, error) { return time.Time{}, c.err }))
		families, err := registry.Gather()
		if err != nil || len(families) != 1 {
			t.Fatalf("%d metrics, %v", len(families), err)
		}
		if got := families[0].GetMetric()[0].GetGauge().GetValue(); got != c.want || families[0].GetName() != "metacontroller_singleton_lease_held" {
			t.Errorf("%v: %s is %g, want %g", c.err, families[0].GetName(), got, c.want)
		}
	}
}
