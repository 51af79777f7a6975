// The program soak runs the controller against a real control plane under a
// day's worth of changes, compressed, and fails if what the controller holds
// grows with time.
//
//	driver ── changes ──> API server <── controller ── calls ──> hooks, some of which fail
//	                                        │
//	             samples <── /metrics ──────┘ ─> soak.json, soak.csv, soak.svg; line through RSS
//
// It is driven from outside: nothing in the controller knows of it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// options are the flags.
type options struct {
	duration time.Duration
	changes  int
	parents  int
	sample   time.Duration
	rise     float64
	seed     uint64
	out      string
}

func main() {
	var o options
	flag.DurationVar(&o.duration, "duration", 20*time.Minute, "How long the changes go on.")
	flag.IntVar(&o.changes, "changes", 100000, "How many changes are made in that time, as far as the API server keeps up.")
	flag.IntVar(&o.parents, "parents", 200, "How many parents there are at any time.")
	flag.DurationVar(&o.sample, "sample", 5*time.Second, "How often the controller is looked at.")
	flag.Float64Var(&o.rise, "rise", 6, "By how many MiB the line through RSS may rise from the first quarter to the end.")
	flag.Uint64Var(&o.seed, "seed", 0, "Seed of the changes; 0 takes one of the clock.")
	flag.StringVar(&o.out, "out", "bin/soak", "Folder for soak.json, soak.csv, soak.svg and the controller's log.")
	flag.Parse()
	if o.seed == 0 {
		o.seed = uint64(time.Now().UnixNano())
	}
	// What the clients of this program have to say is in their errors.
	log.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "soak:", err)
		os.Exit(1)
	}
}

func say(format string, arguments ...any) { fmt.Printf("soak: "+format+"\n", arguments...) }

// run is the whole of it. The error says what was wrong with the controller, or
// why that is not known.
func run(ctx context.Context, o options) error {
	if o.duration <= 0 || o.changes <= 0 || o.parents <= 0 || o.sample <= 0 || o.duration < 8*o.sample {
		return errors.New("cannot run: all numbers must be more than 0, and --duration at least 8 times --sample")
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return fmt.Errorf("cannot make the folder of --out: %w", err)
	}
	say("seed %d, %d changes in %s to %d parents", o.seed, o.changes, o.duration, o.parents)
	stage, err := build(ctx, o)
	if err != nil {
		return err
	}
	defer stage.stop()
	d := newDriver(stage, o)
	if err := d.prepare(ctx); err != nil {
		return err
	}
	say("all is there; the changes begin")

	report := &report{options: o}
	watching, enough := context.WithCancel(ctx)
	defer enough()
	failed := make(chan error, 1)
	go func() { failed <- stage.watch(watching, o.sample, report.add) }()
	driving, end := context.WithTimeout(watching, o.duration)
	defer end()
	go func() {
		select {
		case <-stage.controller.Done():
			end()
		case <-driving.Done():
		}
	}()
	d.run(driving)
	enough()
	if err := <-failed; err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return errors.New("stopped before the end")
	}
	say("%d changes made; waiting until all is as it should be", d.made.Load())
	stage.hooks.mend()
	report.count(d, stage.hooks)
	converged := d.converge(ctx)
	if err := report.write(o.out); err != nil {
		return err
	}
	if converged != nil {
		return fmt.Errorf("the children are not what they should be: %w", converged)
	}
	return report.verdict()
}
