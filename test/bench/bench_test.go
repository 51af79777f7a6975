package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/metacontroller-solo/solo/test/bench/report"
	"github.com/metacontroller-solo/solo/test/bench/workload"
	"github.com/metacontroller-solo/solo/test/kit"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && (os.Args[1] == hookCommand || os.Args[1] == rawCommand) {
		main() // one of the processes that the benchmark starts of itself
		return
	}
	flag.Parse()
	options, err := planeOptions(os.Stderr)
	// The runs wait more than they compute.
	if err := errors.Join(err, flag.Set("test.parallel", strconv.Itoa(len(workload.Modes)))); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	kit.Main(m, options)
}

// testLab is a lab that the tests share. Each run has names of its own in it.
func testLab(t *testing.T) *lab {
	t.Helper()
	l, err := newLab(t.Context(), kit.Shared(t))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// cost is what a phase costs altogether. Writes and calls of the customize hook are
// exact: they follow from what changed. Of calls of the sync hook there is one for
// each thing that has to be seen, and one at most for each event that a watch
// shows: how many events come together is the watches' affair.
type cost struct {
	create, update, patch int
	sync                  [2]int
	customize             int
}

// parents and samples of a test run.
const (
	parents = 6
	samples = 5
)

// each is a cost of one parent, for n of them.
func (c cost) each(n int) cost {
	return cost{c.create * n, c.update * n, c.patch * n, [2]int{c.sync[0] * n, c.sync[1] * n}, c.customize * n}
}

func TestCostFollowsChange(t *testing.T) {
	tests := []struct {
		plan  workload.Plan
		costs map[string]cost
	}{
		{
			workload.Plan{Mode: workload.Composite, Children: 2},
			map[string]cost{
				// Created, children seen, status written; and two statuses, none for both
				// children and one for each of them, for events.
				phaseCreate:  cost{create: 2, update: 2, sync: [2]int{3, 5}}.each(parents),
				phaseChange:  cost{update: 3, sync: [2]int{2, 4}}.each(parents),
				phaseHeal:    cost{create: 1, update: 2, sync: [2]int{3, 4}}.each(parents),
				phaseLatency: cost{update: 3, sync: [2]int{2, 4}}.each(samples),
				phaseRestart: cost{sync: [2]int{1, 1}}.each(parents),
				phaseIdle:    {},
			},
		},
		{
			workload.Plan{Mode: workload.Decorator, Children: 1},
			map[string]cost{
				phaseCreate:  cost{create: 1, patch: 1, sync: [2]int{2, 3}}.each(parents),
				phaseChange:  cost{update: 1, patch: 1, sync: [2]int{2, 3}}.each(parents),
				phaseHeal:    cost{create: 1, sync: [2]int{2, 2}}.each(parents),
				phaseLatency: cost{update: 1, patch: 1, sync: [2]int{2, 3}}.each(samples),
				phaseRestart: cost{sync: [2]int{1, 1}}.each(parents),
				phaseIdle:    {},
			},
		},
		{
			// Each parent has two related objects to itself, and selects all that two for
			// each of the three of its namespace make.
			workload.Plan{Mode: workload.Customize, Children: 1, Related: 4 * parents},
			map[string]cost{
				// The customize hook is asked once for each state of a parent.
				phaseCreate:  cost{create: 1, update: 2, sync: [2]int{3, 4}, customize: 3}.each(parents),
				phaseChange:  cost{update: 2, sync: [2]int{2, 3}, customize: 2}.each(parents),
				phaseHeal:    cost{create: 1, update: 2, sync: [2]int{3, 4}, customize: 2}.each(parents),
				phaseLatency: cost{update: 2, sync: [2]int{2, 3}, customize: 2}.each(samples),
				// Three parents select the first that is touched, one the second.
				phaseTouch:   cost{update: 1, sync: [2]int{2, 2}}.each(3 + 1),
				phaseRestart: cost{sync: [2]int{1, 1}, customize: 1}.each(parents),
				phaseIdle:    {},
			},
		},
	}
	l := testLab(t)
	for _, test := range tests {
		plan := test.plan
		plan.Parents, plan.Namespaces, plan.Payload = parents, 2, 64
		t.Run(string(plan.Mode), func(t *testing.T) {
			t.Parallel()
			controller := testRun(t, l, plan, false)
			checkCosts(t, controller, test.costs)
			raw := testRun(t, l, plan, true)
			checkSameWrites(t, controller, raw)
			checkReport(t, plan, controller, raw)
		})
	}
}

// testRun measures one subject; of what it costs in time nothing is expected.
func testRun(t *testing.T, l *lab, plan workload.Plan, raw bool) []report.Phase {
	t.Helper()
	plan.Run = string(plan.Mode)
	if raw {
		plan.Run += "-raw"
	}
	s := settings{
		Controller: kit.Build(t, "./cmd/controller"),
		// The runs are beside one another, each with a lease of its own.
		ControllerArgs: []string{"--singleton-lease-name=" + plan.Run},
		Workers:        5, Phases: phaseNames(), Samples: samples,
		Idle: time.Second, Quiet: 300 * time.Millisecond,
		Log: t.Output(),
	}
	phases, err := measure(t.Context(), s, l, plan, raw)
	if err != nil {
		t.Fatal(err)
	}
	return phases
}

func checkCosts(t *testing.T, phases []report.Phase, costs map[string]cost) {
	t.Helper()
	if len(phases) != len(costs) {
		t.Errorf("%d phases, want %d", len(phases), len(costs))
	}
	for _, p := range phases {
		want := costs[p.Name]
		if p.Create != want.create || p.Update != want.update || p.Patch != want.patch || p.Delete != 0 {
			t.Errorf("%s: %d creates, %d updates, %d patches, %d deletes; want %+v; all requests: %v", p.Name, p.Create, p.Update, p.Patch, p.Delete, want, p.Requests)
		}
		if p.SyncCalls < want.sync[0] || p.SyncCalls > want.sync[1] {
			t.Errorf("%s: %d calls of the sync hook, want %d to %d", p.Name, p.SyncCalls, want.sync[0], want.sync[1])
		}
		if p.CustomizeCalls != want.customize {
			t.Errorf("%s: %d calls of the customize hook, want %d", p.Name, p.CustomizeCalls, want.customize)
		}
		if p.Get != 0 && p.Name != phaseRestart || p.Get > 1 {
			t.Errorf("%s: %d single objects were read: %v", p.Name, p.Get, p.Requests)
		}
		if len(p.Failed) > 0 {
			t.Errorf("%s: requests were refused: %v", p.Name, p.Failed)
		}
	}
}

// checkSameWrites checks that the raw writer is the floor that it is said to be.
func checkSameWrites(t *testing.T, controller, raw []report.Phase) {
	t.Helper()
	for _, p := range raw {
		i := slices.IndexFunc(controller, func(other report.Phase) bool { return other.Name == p.Name })
		if i < 0 {
			t.Errorf("%s: a phase of the raw writer alone", p.Name)
			continue
		}
		if own := controller[i]; p.Create != own.Create || p.Update != own.Update || p.Patch != own.Patch || p.Delete != own.Delete {
			t.Errorf("%s: the raw writer made %v, the controller %v", p.Name, p.Requests, own.Requests)
		}
		if p.Get+p.List+p.Watch+p.Overhead > 0 {
			t.Errorf("%s: the raw writer read: %v", p.Name, p.Requests)
		}
	}
}

// checkReport checks that the table and the JSON have the figures.
func checkReport(t *testing.T, plan workload.Plan, controller, raw []report.Phase) {
	t.Helper()
	run := report.NewRun(sizeOf(settings{Workers: 5}, plan), controller, raw)
	var table bytes.Buffer
	if err := report.WriteTable(&table, run); err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", table.String())
	for _, p := range controller {
		if !strings.Contains(table.String(), "\n"+p.Name+" ") {
			t.Errorf("phase %s is not in the table", p.Name)
		}
		if p.WallSeconds <= 0 {
			t.Errorf("phase %s took no time", p.Name)
		}
		if runtime.GOOS == "linux" && p.PeakRSSMiB <= 0 {
			t.Errorf("phase %s needed no memory", p.Name)
		}
		if l := p.Latency; (l != nil) != (p.Name == phaseLatency) || l != nil && (l.Samples != samples || l.P50 <= 0 || l.P50 > l.P90 || l.P99 > l.Max) {
			t.Errorf("phase %s: latency %+v", p.Name, l)
		}
	}
}
