package scan

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
	"github.com/metacontroller-solo/solo/pkg/metrics"
)

// Metrics are what scans count. Only the guard that leads has them.
type Metrics struct {
	instances, last, drift prometheus.Gauge
	duration               prometheus.Histogram
	findings               *prometheus.GaugeVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: metrics.GuardPrefix, Name: name, Help: help})
	}
	m := &Metrics{
		instances: gauge("active_instances", "Pods that run an instance and have not ended."),
		last:      gauge("last_scan_timestamp_seconds", "When the last scan ended; 0 for a guard that does not lead."),
		drift:     gauge("drift", "Fields and objects in which the installed admission objects differ from what is rendered."),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: metrics.GuardPrefix, Name: "scan_duration_seconds", Help: "Time that a scan took, without the watches that it rests on.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
		findings: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: metrics.GuardPrefix, Name: "findings", Help: "What the last scan found, by kind of finding.",
		}, []string{"id"}),
	}
	for _, collector := range []prometheus.Collector{m.instances, m.last, m.drift, m.duration, m.findings} {
		if err := registry.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) set(result Result, now time.Time, took time.Duration) {
	if m == nil {
		return
	}
	drift := 0
	for id, count := range inspect.Count(result.Findings) {
		m.findings.WithLabelValues(string(id)).Set(float64(count))
		if id.Drift() {
			drift += count
		}
	}
	m.instances.Set(float64(result.Running))
	m.drift.Set(float64(drift))
	m.duration.Observe(took.Seconds())
	m.last.Set(float64(now.UnixNano()) / float64(time.Second))
}
