package audit

import (
	"bytes"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
)

// TestLabels counts whatever is asked for: each value of a label is one of a few
// words, so that no client can make time series.
func TestLabels(t *testing.T) {
	allowed := map[string][]string{
		"decision":  {DecisionAllow, DecisionWarn, DecisionDeny},
		"operation": {"CREATE", "UPDATE", "DELETE", "CONNECT", other},
		"dry_run":   {"true", "false"},
		"rule":      {ruleNone, other, string(decide.RuleSuspectedInstance)},
		"kind":      {kindCustom, other},
	}
	for _, rule := range decide.Rules() {
		allowed["rule"] = append(allowed["rule"], string(rule))
	}
	for w := attempt.WorkloadStatefulSet; w <= attempt.WorkloadAutoscaler; w++ {
		if w != attempt.WorkloadCustom {
			allowed["kind"] = append(allowed["kind"], w.String())
		}
	}
	registry := prometheus.NewRegistry()
	c, err := newCounters(registry)
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	rapid.Check(t, func(t *rapid.T) {
		e := anything(t)
		c.count(e, RecordOf(e, "r"))
		total++
	})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted, observed := 0.0, uint64(0)
	for _, family := range families {
		for _, metric := range family.GetMetric() {
			for _, label := range metric.GetLabel() {
				if !slices.Contains(allowed[label.GetName()], label.GetValue()) {
					t.Errorf("%s has %s=%q", family.GetName(), label.GetName(), label.GetValue())
				}
			}
			switch family.GetName() {
			case "metacontroller_guard_decisions_total":
				counted += metric.GetCounter().GetValue()
			case "metacontroller_guard_decision_duration_seconds":
				observed += metric.GetHistogram().GetSampleCount()
				buckets := metric.GetHistogram().GetBucket()
				if first, last := buckets[0].GetUpperBound(), buckets[len(buckets)-1].GetUpperBound(); first != .00025 || last != 5 {
					t.Errorf("the buckets go from %v to %v", first, last)
				}
			}
		}
	}
	if counted != float64(total) || observed != uint64(total) {
		t.Errorf("%v counted and %d observed, want %d", counted, observed, total)
	}
}

// BenchmarkRecord is what a decision pays for its record. "shared" is from as many
// goroutines as there are processors; "repeat" is a loop that is only counted.
func BenchmarkRecord(b *testing.B) {
	for name, repeats := range map[string]bool{"line": false, "repeat": true} {
		uids := make([]Entry, 1<<16)
		for i := range uids {
			uids[i] = asked(string(binary(i)), "mc")
			if !repeats {
				uids[i].Attempt.Name = string(binary(i))
			}
		}
		b.Run(name, func(b *testing.B) {
			log := open(b, &bytes.Buffer{}, func(o *Options) { o.RepeatInterval = DefaultRepeatInterval })
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				log.Record(uids[i%len(uids)])
			}
			b.StopTimer()
			closeLog(b, log)
		})
		b.Run(name+"/shared", func(b *testing.B) {
			log := open(b, &bytes.Buffer{}, func(o *Options) { o.RepeatInterval = DefaultRepeatInterval })
			b.ReportAllocs()
			b.RunParallel(func(p *testing.PB) {
				for i := 0; p.Next(); i++ {
					log.Record(uids[i%len(uids)])
				}
			})
			b.StopTimer()
			closeLog(b, log)
		})
	}
}

func binary(i int) []byte { return []byte{'u', byte(i), byte(i >> 8)} }
