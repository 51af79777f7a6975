package scan

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
	"github.com/metacontroller-solo/solo/pkg/metrics"
)

// Metrics are what scans count. The guard that leads has them; the gauges
// without labels are 0 in the others.
type Metrics struct {
	instances, held, last, drift    prometheus.Gauge
	duration                        prometheus.Histogram
	findings, conditions, exception *prometheus.GaugeVec
}

// NewMetrics registers the metrics.
func NewMetrics(registry prometheus.Registerer) (*Metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: metrics.GuardPrefix, Name: name, Help: help})
	}
	gauges := func(name, help string, labels ...string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: metrics.GuardPrefix, Name: name, Help: help}, labels)
	}
	m := &Metrics{
		instances: gauge("active_instances", "Pods that run an instance and have not ended."),
		held:      gauge("slots_held", "Slots that a workload holds; without shards there is one slot."),
		last:      gauge("last_scan_timestamp_seconds", "When the last scan ended; 0 for a guard that does not lead."),
		drift:     gauge("drift", "Fields and objects in which the installed admission objects differ from what is rendered."),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: metrics.GuardPrefix, Name: "scan_duration_seconds", Help: "Time that a scan took, without the watches that it rests on.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10},
		}),
		findings:   gauges("findings", "What the last scan found, by kind of finding.", "id"),
		conditions: gauges("policy_condition", "1 for each condition of the policy, with the status and the reason that it has.", "type", "status", "reason"),
		exception:  gauges("exception_expiration_timestamp_seconds", "When each exception of the policy ends, or has ended.", "namespace", "name"),
	}
	for _, collector := range []prometheus.Collector{
		m.instances, m.held, m.last, m.drift, m.duration, m.findings, m.conditions, m.exception,
	} {
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
	m.policy(result.Policy)
	m.instances.Set(float64(result.Running))
	m.drift.Set(float64(drift))
	m.duration.Observe(took.Seconds())
	m.last.Set(float64(now.UnixNano()) / float64(time.Second))
}

// policy measures what the policy says, as the scan read it; nil is none.
func (m *Metrics) policy(policy *guardv1alpha1.SingletonPolicy) {
	m.conditions.Reset()
	m.exception.Reset()
	if policy == nil {
		m.held.Set(0)
		return
	}
	held := len(policy.Status.Slots)
	if policy.Status.Holder != nil {
		held++
	}
	m.held.Set(float64(held))
	for _, c := range policy.Status.Conditions {
		m.conditions.WithLabelValues(c.Type, string(c.Status), c.Reason).Set(1)
	}
	for _, e := range policy.Spec.Exceptions {
		m.exception.WithLabelValues(e.Namespace, e.Name).Set(float64(e.Expires.Unix()))
	}
}
