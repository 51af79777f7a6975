package audit

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/metrics"
)

// counters are the metrics of decisions.
type counters struct {
	decisions *prometheus.CounterVec
	duration  prometheus.Histogram
	dropped   prometheus.Counter
	excepted  prometheus.Counter
}

// ruleNone is the label of a decision that no rule led to.
const ruleNone = "none"

func newCounters(registry prometheus.Registerer) (*counters, error) {
	c := &counters{
		decisions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Namespace: metrics.GuardPrefix,
			Name:      "decisions_total",
			Help:      "Decisions about requests that have to do with the policy.",
		}, []string{"rule", "decision", "operation", "kind", "dry_run"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: metrics.GuardPrefix,
			Name:      "decision_duration_seconds",
			Help:      "Time from a request's arrival to its decision.",
			Buckets:   []float64{.00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5},
		}),
		dropped: prometheus.NewCounter(prometheus.CounterOpts{
			Namespace: metrics.GuardPrefix,
			Name:      "audit_dropped_lines_total",
			Help:      "Audit lines that were lost because the sink was too slow or failed.",
		}),
	}
	c.excepted = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: metrics.GuardPrefix,
		Name:      "excepted_requests_total",
		Help:      "Requests that an exception of the policy let through (break-glass).",
	})
	for _, collector := range []prometheus.Collector{c.decisions, c.duration, c.dropped, c.excepted} {
		if err := registry.Register(collector); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// count counts a decision. The kind is one of the guard's own list, so that no
// client can make labels.
func (c *counters) count(e Entry, record Record) {
	kind := e.Attempt.Workload.String()
	if e.Attempt.Workload == attempt.WorkloadNone {
		kind = "other"
	}
	rule := record.Rule
	if rule == "" {
		rule = ruleNone
	}
	c.decisions.WithLabelValues(rule, record.Decision, record.Operation, kind, strconv.FormatBool(record.DryRun)).Inc()
	c.duration.Observe(record.LatencySeconds)
	if record.Exception != nil {
		c.excepted.Inc()
	}
}
