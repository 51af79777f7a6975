package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

// What lumberjack starts for old files ends with the process.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("gopkg.in/natefinch/lumberjack%2ev2.(*Logger).millRun"))
}

func entry(uid string) Entry {
	e := Entry{ID: "d", Time: time.Unix(0, 0), Latency: time.Millisecond}
	e.Attempt.AdmissionUID = types.UID(uid)
	e.Attempt.Operation = attempt.Create
	e.Attempt.Workload = attempt.WorkloadDeployment
	e.Attempt.New.Containers = []identify.Container{{Name: "main", Image: "ghcr.io/metacontroller/metacontroller@sha256:00", Key: "SECRET=1"}}
	e.Policy.Name = "metacontroller"
	e.Decision = decide.Decision{Verdict: decide.VerdictDeny, Matching: true, Rule: decide.RuleSecondWorkload, Message: "no"}
	return e
}

// stuck is a sink that takes nothing until it is let go.
type stuck struct {
	gate chan struct{}
	bytes.Buffer
}

func (s *stuck) Write(p []byte) (int, error) {
	<-s.gate
	return s.Buffer.Write(p)
}

// sinkOf is a sink that needs no closing.
func sinkOf(w io.Writer) io.WriteCloser { return &whole{to: w} }

func open(t testing.TB, sink io.Writer, change ...func(*Options)) *Log {
	t.Helper()
	options := Options{Replica: "guard-0", Registry: prometheus.NewRegistry()}
	for _, c := range change {
		c(&options)
	}
	log, err := New(sinkOf(sink), options)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func closeLog(t testing.TB, log *Log) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := log.Close(ctx); err != nil {
		t.Fatal(err)
	}
}

func TestLine(t *testing.T) {
	var sink bytes.Buffer
	log := open(t, &sink)
	e := entry("a")
	e.Attempt.Name = "evil\n{\"decision\":\"Allow\"}\x1b[2K\x7f\u0085\u202e\u2028"
	e.Attempt.User.Name = strings.Repeat("u", 5000)
	e.Attempt.User.Extra = map[string][]string{extraPodName: {"p"}, "other": {"not logged"}}
	log.Record(e)
	closeLog(t, log)

	line := sink.String()
	if strings.Count(line, "\n") != 1 || !strings.HasSuffix(line, "\n") {
		t.Fatalf("not one line: %q", line)
	}
	for _, r := range strings.TrimSuffix(line, "\n") {
		if unicode.Is(unicode.Cc, r) || unicode.Is(unicode.Cf, r) || r == '\u2028' {
			t.Fatalf("control character %U in %q", r, line)
		}
	}
	for _, secret := range []string{"SECRET", "not logged"} {
		if strings.Contains(line, secret) {
			t.Fatalf("%q leaked into %q", secret, line)
		}
	}
	record := Record{}
	if err := json.Unmarshal([]byte(line), &record); err != nil {
		t.Fatal(err)
	}
	if record.Object.Name != e.Attempt.Name || record.Decision != "Deny" || !record.Enforced || record.SchemaVersion != SchemaVersion ||
		len([]rune(record.User.Name)) != maxText || record.User.PodName != "p" || record.Images[0] != (Image{Container: "main", Image: e.Attempt.New.Containers[0].Image, Digest: "sha256:00"}) {
		t.Fatalf("got %+v", record)
	}
}

func TestEnforced(t *testing.T) {
	tests := map[string]struct {
		verdict  decide.Verdict
		dryRun   bool
		decision string
		enforced bool
	}{
		"allow":        {decide.VerdictAllow, false, "Allow", true},
		"warn":         {decide.VerdictWarn, false, "Warn", false},
		"audit":        {decide.VerdictAudit, false, "Deny", false},
		"deny":         {decide.VerdictDeny, false, "Deny", true},
		"deny dry run": {decide.VerdictDeny, true, "Deny", false},
		"unreadable":   {decide.VerdictUnreadable, false, "Deny", true},
		"exists":       {decide.VerdictExists, false, "Deny", true},
		"unknown":      {decide.VerdictUnknown, false, "Deny", true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			e := entry("a")
			e.Decision.Verdict, e.Attempt.DryRun = test.verdict, test.dryRun
			got := RecordOf(e, "r")
			if got.Decision != test.decision || got.Enforced != test.enforced {
				t.Fatalf("got %s, enforced %v", got.Decision, got.Enforced)
			}
		})
	}
}

func TestSentAgain(t *testing.T) {
	var sink bytes.Buffer
	log := open(t, &sink)
	var group sync.WaitGroup
	for range 50 {
		group.Go(func() { log.Record(entry("a")) })
	}
	group.Wait()
	other := entry("a")
	other.Decision.Verdict = decide.VerdictAllow
	log.Record(other)
	log.Record(entry("b"))
	closeLog(t, log)
	if got := strings.Count(sink.String(), "\n"); got != 3 {
		t.Fatalf("%d lines, want one for each uid and decision, 3:\n%s", got, &sink)
	}
	want := `
		# HELP metacontroller_guard_decisions_total Decisions about requests that have to do with the policy.
		# TYPE metacontroller_guard_decisions_total counter
		metacontroller_guard_decisions_total{decision="Allow",dry_run="false",kind="Deployment",operation="CREATE",rule="second-workload"} 1
		metacontroller_guard_decisions_total{decision="Deny",dry_run="false",kind="Deployment",operation="CREATE",rule="second-workload"} 2
	`
	if err := testutil.CollectAndCompare(log.counters.decisions, strings.NewReader(want)); err != nil {
		t.Fatal(err)
	}
}

func TestSlowSink(t *testing.T) {
	sink := &stuck{gate: make(chan struct{})}
	log := open(t, sink)
	const lines = queueLines + 100
	start := time.Now()
	for i := range lines {
		log.Record(entry(fmt.Sprint(i)))
	}
	if took := time.Since(start); took > 5*time.Second {
		t.Fatalf("recording waited %s for a stuck sink", took)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := log.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v, want a deadline", err)
	}
	close(sink.gate)
	closeLog(t, log)
	dropped := int(testutil.ToFloat64(log.counters.dropped))
	if written := strings.Count(sink.String(), "\n"); written+dropped != lines || dropped == 0 {
		t.Fatalf("%d written and %d dropped, want %d together", written, dropped, lines)
	}
	log.Record(entry("late"))
	if int(testutil.ToFloat64(log.counters.dropped)) != dropped+1 {
		t.Fatal("a line after the end is not counted")
	}
}

type broken struct{}

func (broken) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestBrokenSink(t *testing.T) {
	log := open(t, broken{})
	log.Record(entry("a"))
	closeLog(t, log)
	if testutil.ToFloat64(log.counters.dropped) != 1 {
		t.Fatal("a lost line is not counted")
	}
}

func TestOpen(t *testing.T) {
	for name, path := range map[string]string{
		"an empty name": "", "a file in a folder that does not exist": filepath.Join(t.TempDir(), "no", "folder"), "a folder": t.TempDir(),
	} {
		if _, err := Open(path, nil, Rotation{MaxSize: 1}); err == nil || !strings.Contains(err.Error(), "audit log") {
			t.Errorf("%s was opened: %v", name, err)
		}
	}
}

// TestSuspect has the one rule that never refuses: the log does not say that it
// would have.
func TestSuspect(t *testing.T) {
	e := entry("a")
	e.Attempt.New.Containers, e.Attempt.New.Suspects = nil, e.Attempt.New.Containers
	e.Decision.Rule = decide.RuleSuspectedInstance
	for _, verdict := range []decide.Verdict{decide.VerdictWarn, decide.VerdictAudit} {
		e.Decision.Verdict = verdict
		record := RecordOf(e, "guard-0")
		if record.Decision != DecisionWarn || record.Enforced || len(record.Images) != 1 {
			t.Errorf("%s: got %+v", verdict, record)
		}
	}
}
