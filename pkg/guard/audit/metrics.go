package audit

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/metrics"
)

// counters are the metrics of decisions.
type counters struct {
	decisions *prometheus.CounterVec
	duration  prometheus.Histogram
	dropped   prometheus.Counter
	// droppedDecisions are those that the dropped lines stood for.
	droppedDecisions prometheus.Counter
	excepted         prometheus.Counter
}

// Values of labels.
const (
	// ruleNone is a decision that no rule led to.
	ruleNone = "none"
	// kindCustom is a kind that the policy's match.workloads lists.
	kindCustom = "custom"
	// other is whatever has no value of its own.
	other = "other"
)

// rules are the values of the label rule.
var rules = func() map[string]bool {
	known := map[string]bool{string(decide.RuleSuspectedInstance): true}
	for _, rule := range decide.Rules() {
		known[string(rule)] = true
	}
	return known
}()

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
	c.droppedDecisions = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: metrics.GuardPrefix,
		Name:      "audit_dropped_decisions_total",
		Help:      "Decisions that the lost audit lines stood for.",
	})
	c.excepted = prometheus.NewCounter(prometheus.CounterOpts{
		Namespace: metrics.GuardPrefix,
		Name:      "excepted_requests_total",
		Help:      "Requests that an exception of the policy let through (break-glass).",
	})
	for _, collector := range []prometheus.Collector{c.decisions, c.duration, c.dropped, c.droppedDecisions, c.excepted} {
		if err := registry.Register(collector); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// count counts a decision.
func (c *counters) count(e Entry, record Record) {
	c.decisions.WithLabelValues(labelsOf(e, record)...).Inc()
	c.duration.Observe(record.LatencySeconds)
	if record.Exception != nil {
		c.excepted.Inc()
	}
}

// labelsOf are rule, decision, operation, kind and dry_run. Each is a word of a
// list of the guard's own, so that no client can make time series.
func labelsOf(e Entry, record Record) []string {
	rule := record.Rule
	switch {
	case rule == "":
		rule = ruleNone
	case !rules[rule]:
		rule = other
	}
	operation := other
	switch e.Attempt.Operation {
	case attempt.Create, attempt.Update, attempt.Delete, attempt.Connect:
		operation = string(e.Attempt.Operation)
	}
	kind := e.Attempt.Workload.String()
	switch {
	case e.Attempt.Workload == attempt.WorkloadCustom:
		kind = kindCustom
	case e.Attempt.Workload == attempt.WorkloadNone, kind == "":
		kind = other
	}
	return []string{rule, record.Decision, operation, kind, strconv.FormatBool(record.DryRun)}
}
