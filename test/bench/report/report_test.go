package report

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/metacontroller-solo/solo/test/bench/tally"
	"github.com/metacontroller-solo/solo/test/bench/workload"
)

func TestTableComparesWithRawWriterAndPublicBuild(t *testing.T) {
	size := Size{Mode: workload.Composite, Parents: 3000, Children: 3, Namespaces: 10, PayloadBytes: 512, Workers: 5}
	own := Phase{Name: "create", WallSeconds: 12, CPUSeconds: 6.1, PeakRSSMiB: 138, SyncCalls: 8803}
	own.Count(tally.Tally{
		Requests: tally.Counts{
			{Verb: "create", Resource: "configmaps"}: 9000, {Verb: "update", Resource: "things/status"}: 6000,
			{Verb: "get", Resource: "things"}: 1, {Verb: "update", Resource: "leases"}: 4,
		},
		Failed: tally.Counts{{Verb: "update", Resource: "things/status"}: 2},
	})
	single := Phase{Name: "single", WallSeconds: 1, Latency: LatencyOf([]time.Duration{3e6, 1e6, 2e6})}
	run := NewRun(size, []Phase{own, single}, []Phase{{Name: "create", WallSeconds: 10, CPUSeconds: 3.05}})
	want := Ratios{Phase: "create", WallToRaw: 1.2, CPUToRaw: 2, CPUToPublic: .5, RSSToPublic: .5, CallsToPublic: 1, WritesToPublic: 1}
	if len(run.Ratios) != 1 || run.Ratios[0] != want {
		t.Errorf("ratios are %+v", run.Ratios)
	}
	var table strings.Builder
	if err := WriteTable(&table, run); err != nil {
		t.Fatal(err)
	}
	words := strings.Join(strings.Fields(table.String()), " ")
	for _, text := range []string{
		"3000 parents x 3 children of 512 bytes in 10 namespaces, 5 workers",
		"create controller 12.00 6.10 2.03 138 8803 0 1 0 0 9000 6000 0 0 15000 4",
		"raw writer 10.00 3.05 1.02",
		"public 4.17 - 12.20 4.07 276 8803 - 8843",
		"/ raw writer 1.20 2.00",
		"/ public - 0.50 - 0.50 1.00",
		"of 3 changes one after another p50 2.0 ms, p90 3.0 ms, p99 3.0 ms, at most 3.0 ms",
		"answered with an error: 2 update things/status",
		"single objects read: 1 get things",
	} {
		if !strings.Contains(words, text) {
			t.Errorf("%q is not in the table:\n%s", text, table.String())
		}
	}
	encoded, err := json.Marshal(Report{Runs: []Run{run}})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{`"wallToRawWriter":1.2`, `"create configmaps":9000`, `"p99ms":3`, `"mode":"composite"`} {
		if !strings.Contains(string(encoded), text) {
			t.Errorf("%s is not in %s", text, encoded)
		}
	}
	other := size
	other.Parents = 300
	if run := NewRun(other, []Phase{own}, nil); run.Public != nil || len(run.Ratios) != 0 {
		t.Errorf("another size is compared: %+v", run.Ratios)
	}
}
