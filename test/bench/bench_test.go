package main

import (
	"bytes"
	"fmt"
	"maps"
	"os"
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
	options, err := planeOptions(os.Stderr)
	if err != nil {
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

// tiny are settings for runs that are over soon.
func tiny(t *testing.T, plan workload.Plan) settings {
	return settings{
		Controller: kit.Build(t, "./cmd/controller"),
		// Runs beside one another, a lease each.
		ControllerArgs: []string{"--singleton-lease-name=" + plan.Run},
		Workers:        5, Phases: phaseNames(), Samples: 5,
		Idle: time.Second, Quiet: 300 * time.Millisecond,
		Log: t.Output(),
	}
}

// cost is what a phase may cost altogether.
type cost struct {
	// writes are exact, by verb.
	create, update, patch int
	// A parent is synced for each change that a watch shows and that was not in the
	// sync before; how many come together is up to the API server's watch. So there
	// are bounds: a sync for each reason, and one for each event.
	minSyncs, maxSyncs int
	customize          [2]int
}
