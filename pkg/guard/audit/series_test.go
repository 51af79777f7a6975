package audit

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/guard/decide"
)

// asked is a decision of now about one of several objects.
func asked(uid, name string) Entry {
	e := entry(uid)
	e.ID, e.Time, e.Attempt.Name = "id-"+uid, time.Now(), name
	return e
}

// TestLoop applies a refused object again and again, as a GitOps controller does.
func TestLoop(t *testing.T) {
	t.Run("C38 a loop of ten hours", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var sink bytes.Buffer
			told := 0
			log := open(t, &sink, func(o *Options) {
				o.RepeatInterval = DefaultRepeatInterval
				o.Notify = func(Record) { told++ }
			})
			const period, total = 3 * time.Second, 12_000
			for i := range total {
				if id := log.Record(asked(fmt.Sprint(i), "mc")); id != "id-0" {
					t.Fatalf("decision %d has the id %q, want that of the first", i, id)
				}
				time.Sleep(period)
			}
			before := time.Now()
			closeLog(t, log)
			lines := linesOf(t, sink.String())
			sum := int64(0)
			for i, line := range lines {
				sum += line.Count
				if line.Repeated != (i > 0) || line.Repeated == (line.FirstTime == nil) || line.DecisionID != "id-0" {
					t.Fatalf("line %d is %+v", i, line)
				}
				if line.Repeated && (line.FirstTime.After(line.Time) || line.Time.Sub(*line.FirstTime) > DefaultRepeatInterval+period) {
					t.Fatalf("line %d counts from %s to %s", i, line.FirstTime, line.Time)
				}
			}
			if most := int(total*period/DefaultRepeatInterval) + 2; len(lines) > most || told != len(lines) {
				t.Fatalf("%d lines and %d told, want at most %d", len(lines), told, most)
			}
			if counted := testutil.ToFloat64(log.counters.decisions.WithLabelValues("second-workload", "Deny", "CREATE", "Deployment", "false")); sum != total || counted != total {
				t.Fatalf("the lines count %d, the metric %v, want %d", sum, counted, total)
			}
			if time.Since(before) > time.Second {
				t.Fatal("the end waits")
			}
			t.Logf("%d decisions in %s are %d lines, %d bytes", total, total*period, len(lines), sink.Len())
		})
	})
	t.Run("C38 the server chooses the names", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			var sink bytes.Buffer
			log := open(t, &sink, func(o *Options) { o.RepeatInterval = time.Minute })
			for i := range 100 {
				e := asked(fmt.Sprint(i), fmt.Sprintf("web-%d", i))
				e.Attempt.GenerateName = "web-"
				log.Record(e)
			}
			time.Sleep(time.Minute + 10*time.Second)
			synctest.Wait()
			lines := linesOf(t, sink.String())
			if len(lines) != 2 || lines[1].Count != 99 || lines[1].Object.Name != "web-99" {
				t.Fatalf("got %+v", lines)
			}
			// Quiet for an interval, and forgotten: what comes then is news.
			time.Sleep(2 * time.Minute)
			if id := log.Record(asked("late", "web-0")); id != "id-late" {
				t.Fatalf("the id is %q", id)
			}
			closeLog(t, log)
		})
	})
	t.Run("what differs is not counted together", func(t *testing.T) {
		var sink bytes.Buffer
		log := open(t, &sink, func(o *Options) { o.RepeatInterval = time.Hour })
		changes := []func(*Entry){
			func(*Entry) {},
			func(e *Entry) { e.Attempt.User.Name = "another" },
			func(e *Entry) { e.Attempt.Namespace = "another" },
			func(e *Entry) { e.Attempt.Name = "another" },
			func(e *Entry) { e.Attempt.Resource.Resource = "another" },
			func(e *Entry) { e.Attempt.Operation = "UPDATE" },
			func(e *Entry) { e.Attempt.Subresource = "scale" },
			func(e *Entry) { e.Attempt.DryRun = true },
			func(e *Entry) { e.Decision.Rule = decide.RuleWorkloadKind },
			func(e *Entry) { e.Decision.Message = "another holder" },
			func(e *Entry) { e.Decision.Verdict = decide.VerdictWarn },
			func(e *Entry) { e.Decision.Verdict = decide.VerdictAudit },
			func(e *Entry) { e.Policy.Generation = 7 },
			func(e *Entry) {
				e.Decision = decide.Decision{Verdict: decide.VerdictAllow, Exception: &decide.Exception{Reason: "fire"}}
			},
		}
		for round := range 3 {
			for i, change := range changes {
				e := asked(fmt.Sprintf("%d-%d", round, i), "mc")
				change(&e)
				log.Record(e)
			}
		}
		closeLog(t, log)
		if lines := linesOf(t, sink.String()); len(lines) != 2*len(changes) {
			t.Fatalf("%d lines, want a first and a count for each of %d:\n%s", len(lines), len(changes), &sink)
		}
	})
	t.Run("I06 what is allowed has a line each", func(t *testing.T) {
		var sink bytes.Buffer
		log := open(t, &sink, func(o *Options) { o.RepeatInterval = time.Hour })
		for i := range 5 {
			e := asked(fmt.Sprint(i), "mc")
			e.Decision = decide.Decision{Verdict: decide.VerdictAllow, Matching: true}
			log.Record(e)
		}
		closeLog(t, log)
		lines := linesOf(t, sink.String())
		if len(lines) != 5 || lines[4].Decision != DecisionAllow || lines[4].Severity != SeverityInfo || lines[4].Rule != "" {
			t.Fatalf("got %+v", lines)
		}
	})
	t.Run("a retry of a repeat has the id of the first", func(t *testing.T) {
		var sink bytes.Buffer
		log := open(t, &sink, func(o *Options) { o.RepeatInterval = time.Hour })
		for _, uid := range []string{"a", "b", "b", "a", "b"} {
			if id := log.Record(asked(uid, "mc")); id != "id-a" {
				t.Fatalf("%s has the id %q", uid, id)
			}
		}
		closeLog(t, log)
		if lines := linesOf(t, sink.String()); len(lines) != 2 || lines[1].Count != 1 || !lines[1].Repeated {
			t.Fatalf("got %+v", lines)
		}
	})
}

// TestSeries adds decisions in any order, at any pace: nothing is counted twice or
// lost, no more is kept than allowed, and no line stands for more than two
// intervals.
func TestSeries(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		interval := time.Duration(rapid.IntRange(1, 100).Draw(t, "interval")) * time.Second
		s := newSeries(interval)
		now := time.Unix(1e9, 0)
		added, lines := map[string]int64{}, []Record(nil)
		n := rapid.IntRange(1, 300).Draw(t, "decisions")
		for i := range n {
			now = now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "pause")) * time.Second)
			if rapid.IntRange(0, 4).Draw(t, "look") == 0 {
				lines = append(lines, s.expire(now)...)
				continue
			}
			e := entry(fmt.Sprint(i))
			e.ID, e.Time, e.Attempt.Name = fmt.Sprint(i), now, rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name")
			id, due := s.add(RecordOf(e, "r"))
			added[id]++
			lines = append(lines, due...)
			if s.order.Len() != len(s.byKey) || len(s.byKey) > 3 {
				t.Fatalf("%d in order, %d by key", s.order.Len(), len(s.byKey))
			}
		}
		lines = append(lines, s.flush()...)
		if len(s.byKey) != 0 || s.order.Len() != 0 {
			t.Fatal("something is left")
		}
		counted, seen := map[string]int64{}, map[string]bool{}
		for _, line := range lines {
			if line.Repeated != seen[line.DecisionID] {
				t.Fatalf("%+v comes too early or twice", line)
			}
			seen[line.DecisionID] = true
			counted[line.DecisionID] += line.Count
			if line.Repeated && line.Time.Sub(*line.FirstTime) > interval {
				t.Fatalf("a line stands for %s, the interval is %s", line.Time.Sub(*line.FirstTime), interval)
			}
		}
		for id, count := range added {
			if counted[id] != count {
				t.Fatalf("%d of %s are in the lines, want %d", counted[id], id, count)
			}
		}
	})
}

// TestBounded floods the log with decisions that all differ, each as large as it
// can be, while the sink takes nothing.
func TestBounded(t *testing.T) {
	t.Run("E23 a flood while the sink is stuck", func(t *testing.T) {
		sink := &stuck{gate: make(chan struct{})}
		log := open(t, sink, func(o *Options) { o.RepeatInterval = time.Hour })
		const total = 3_000
		groups := make([]string, 100)
		for i := range groups {
			groups[i] = strings.Repeat("g", 2*maxText)
		}
		for i := range total {
			e := asked(fmt.Sprint(i), fmt.Sprint(i))
			e.Attempt.User.Groups = groups
			e.Attempt.AdmissionUID += types.UID(strings.Repeat("u", maxText))
			log.Record(e)
		}
		log.mutex.Lock()
		kept, order := len(log.series.byKey), log.series.order.Len()
		log.mutex.Unlock()
		if queued := log.queued.Load(); queued > queueBytes || len(log.queue) > queueLines || kept > maxSeries || order != kept || log.seen.Len() > remembered {
			t.Fatalf("%d bytes and %d lines wait, %d series, %d uids", queued, len(log.queue), kept, log.seen.Len())
		}
		t.Logf("%d bytes in %d lines wait", log.queued.Load(), len(log.queue))
		close(sink.gate)
		closeLog(t, log)
		sum := int64(0)
		for _, line := range linesOf(t, sink.String()) {
			sum += line.Count
		}
		if lost := int64(testutil.ToFloat64(log.counters.droppedDecisions)); sum+lost != total || lost == 0 || log.queued.Load() != 0 {
			t.Fatalf("%d in the log and %d lost, want %d; %d bytes are left", sum, lost, total, log.queued.Load())
		}
	})
	t.Run("E23 more series than are kept", func(t *testing.T) {
		var sink bytes.Buffer
		log := open(t, &sink, func(o *Options) { o.RepeatInterval = time.Hour })
		for round := range 2 {
			for i := range maxSeries + 100 {
				log.Record(asked(fmt.Sprintf("%d-%d", round, i), fmt.Sprint(i)))
			}
		}
		closeLog(t, log)
		sum := int64(0)
		for _, line := range linesOf(t, sink.String()) {
			sum += line.Count
		}
		if lost := int64(testutil.ToFloat64(log.counters.droppedDecisions)); sum+lost != 2*(maxSeries+100) {
			t.Fatalf("%d decisions are in the log, and %d lost", sum, lost)
		}
	})
}
