// Program bench measures the controller from outside: against a real control
// plane, with the hooks in a process of their own, beside a raw writer that makes
// only the writes.
//
//	main ─ plans ─> lab (control plane) ─> run: subject (controller, or raw writer), driver, tracker
//	run ─ phases ─> report: table, JSON
//
// The control plane, the hook server and the controller share the machine, as they
// do for everyone who runs this. Each subject gets a control plane of its own that
// nothing was done to before. CPU time and memory are measured on Linux only.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/metacontroller-solo/solo/test/bench/report"
	"github.com/metacontroller-solo/solo/test/bench/workload"
	"github.com/metacontroller-solo/solo/test/kit"
)

// Commands of the processes that the program starts of itself.
const (
	hookCommand = "hook"
	rawCommand  = "rawwriter"
)

func main() {
	ctrl.SetLogger(logr.Discard())
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		<-ctx.Done()
		stop() // a second signal ends the program at once
	}()
	if err := command().ExecuteContext(ctx); err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "interrupted")
			os.Exit(130)
		}
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	settings
	modes      []string
	parents    []int
	children   int
	related    int
	namespaces int
	payload    int
	json       string
}

// defaults of a mode where the flags say nothing.
var defaults = map[workload.Mode]struct {
	parents  []int
	children int
}{
	workload.Composite: {[]int{300, 3000}, 3},
	workload.Decorator: {[]int{3000}, 1},
	workload.Customize: {[]int{1000}, 1},
}

func command() *cobra.Command {
	var o options
	root := &cobra.Command{
		Use:           "bench",
		Short:         "Measures the controller against a real control plane",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE:          func(cmd *cobra.Command, _ []string) error { return o.run(cmd.Context(), os.Stdout) },
	}
	o.Log = os.Stderr
	var modes []string
	for _, mode := range workload.Modes {
		modes = append(modes, string(mode))
	}
	flags := root.Flags()
	flags.SortFlags = false
	flags.StringSliceVar(&o.modes, "mode", modes, "kinds of controllers")
	flags.IntSliceVar(&o.parents, "parents", nil, "numbers of parents, a run each (default 300 and 3000 of a composite, 3000 of a decorator, 1000 with customize)")
	flags.IntVar(&o.children, "children", 0, "children of each parent (default 3 of a composite, else 1)")
	flags.IntVar(&o.related, "related", 4000, "related objects, with customize")
	flags.IntVar(&o.namespaces, "namespaces", 10, "namespaces that the parents are spread over")
	flags.IntVar(&o.payload, "payload", 512, "bytes in each child")
	flags.IntVar(&o.Workers, "workers", 5, "workers of the controller, and of the raw writer")
	flags.StringSliceVar(&o.Phases, "phases", phaseNames(), "phases to measure; the first always is")
	flags.IntVar(&o.Samples, "samples", 200, "single changes that are timed")
	flags.DurationVar(&o.Idle, "idle", 20*time.Second, "how long nothing happens in phase idle")
	flags.DurationVar(&o.Quiet, "quiet", 500*time.Millisecond, "how long nothing must happen until a phase is over; it is not part of the phase's time")
	flags.BoolVar(&o.Raw, "raw", true, "measure the raw writer too")
	flags.StringVar(&o.Controller, "controller", "", "program to measure, any build of a Metacontroller (default: the one of this repository, built now)")
	flags.StringArrayVar(&o.ControllerArgs, "controller-arg", nil, "argument to add to the controller's; can be repeated")
	flags.StringVar(&o.json, "json", "", "file to write everything to, as JSON")
	flags.StringVar(&o.Profile, "profile", "", "folder to write CPU, heap and allocation profiles of the controller to, for each phase")
	root.AddCommand(hookServerCommand(), rawWriterCommand())
	return root
}

func hookServerCommand() *cobra.Command {
	var address string
	hook := &cobra.Command{
		Use: hookCommand, Short: "Serves the hooks (the program starts this itself)", Args: cobra.NoArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error { return serveHooks(cmd.Context(), address) },
	}
	hook.Flags().StringVar(&address, "address", "", "where to listen")
	return hook
}

func rawWriterCommand() *cobra.Command {
	var kubeconfig string
	var workers int
	raw := &cobra.Command{
		Use: rawCommand, Short: "Writes what it is told on descriptor 3 (the program starts this itself)", Args: cobra.NoArgs, Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return writeRaw(cmd.Context(), kubeconfig, workers, jobsPipe())
		},
	}
	raw.Flags().StringVar(&kubeconfig, "kubeconfig", "", "how to reach the API server")
	raw.Flags().IntVar(&workers, "workers", 1, "parents to write for at once")
	return raw
}

// plans are the sizes to measure.
func (o *options) plans() ([]workload.Plan, error) {
	var plans []workload.Plan
	for _, name := range o.modes {
		mode := workload.Mode(name)
		usual, known := defaults[mode]
		if !known {
			return nil, fmt.Errorf("--mode: there is no mode %q; there are %v", name, workload.Modes)
		}
		parents, children, related := o.parents, o.children, 0
		if len(parents) == 0 {
			parents = usual.parents
		}
		if children == 0 {
			children = usual.children
		}
		if mode == workload.Customize {
			related = o.related
		}
		for _, n := range parents {
			plan := workload.Plan{
				Mode: mode, Run: name, Parents: n, Children: children,
				Namespaces: o.namespaces, Payload: o.payload, Related: related,
			}
			if err := plan.Check(); err != nil {
				return nil, err
			}
			plans = append(plans, plan)
		}
	}
	for _, name := range o.Phases {
		if !slices.Contains(phaseNames(), name) {
			return nil, fmt.Errorf("--phases: there is no phase %q; there are %v", name, phaseNames())
		}
	}
	if o.Workers < 1 || o.Samples < 1 || o.Idle <= 0 || o.Quiet <= 0 {
		return nil, errors.New("--workers, --samples, --idle and --quiet must be more than 0")
	}
	return plans, nil
}

// run measures all sizes. What was measured before an error is told all the same.
func (o *options) run(ctx context.Context, out io.Writer) (err error) {
	plans, err := o.plans()
	if err != nil {
		return err
	}
	if o.Profile != "" {
		if err := os.MkdirAll(o.Profile, 0o755); err != nil {
			return fmt.Errorf("cannot make the folder for profiles: %w", err)
		}
	}
	if o.Controller == "" {
		dir, err := os.MkdirTemp("", "bench-")
		if err != nil {
			return fmt.Errorf("cannot make a folder for the controller: %w", err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		o.Controller = filepath.Join(dir, "controller")
		o.say("building the controller")
		if err := build(ctx, "./cmd/controller", o.Controller); err != nil {
			return err
		}
	}
	var all report.Report
	defer func() { err = errors.Join(err, o.writeJSON(all)) }()
	for _, plan := range plans {
		run, err := o.measure(ctx, plan, &all.Machine, out)
		if len(run.Controller) > 0 {
			all.Runs = append(all.Runs, run)
			if err := report.WriteTable(out, run); err != nil {
				return fmt.Errorf("cannot write the table: %w", err)
			}
		}
		if err != nil {
			return fmt.Errorf("%s with %d parents: %w", plan.Mode, plan.Parents, err)
		}
	}
	return nil
}

// measure measures one size, the controller and then the raw writer, each in a
// control plane of its own.
func (o *options) measure(ctx context.Context, plan workload.Plan, facts *report.Machine, out io.Writer) (report.Run, error) {
	var controller, raw []report.Phase
	in := func(what string, isRaw bool) (phases []report.Phase, err error) {
		o.say("%s with %d parents: %s", plan.Mode, plan.Parents, what)
		l, stop, err := startLab(ctx, o.Log)
		if err != nil {
			return nil, err
		}
		defer stop()
		if *facts == (report.Machine{}) {
			if *facts, err = o.facts(ctx, l); err != nil {
				return nil, err
			}
			if err := report.WriteMachine(out, *facts); err != nil {
				return nil, fmt.Errorf("cannot write the table: %w", err)
			}
		}
		return measure(ctx, o.settings, l, plan, isRaw)
	}
	controller, err := in("the controller", false)
	if err == nil && o.Raw {
		raw, err = in("the raw writer", true)
	}
	return report.NewRun(sizeOf(o.settings, plan), controller, raw), err
}

func sizeOf(s settings, plan workload.Plan) report.Size {
	return report.Size{
		Mode: plan.Mode, Parents: plan.Parents, Children: plan.Children, Related: plan.Related,
		Namespaces: plan.Namespaces, PayloadBytes: plan.Payload,
		Workers: s.Workers, Profiled: s.Profile != "", ControllerArgs: s.ControllerArgs,
	}
}

func (o *options) facts(ctx context.Context, l *lab) (report.Machine, error) {
	kubernetes, err := l.version()
	if err != nil {
		return report.Machine{}, err
	}
	version := "unknown" // the public build has no such flag
	if output, err := exec.CommandContext(ctx, o.Controller, "--version").CombinedOutput(); err == nil {
		version = strings.TrimSpace(string(output))
	}
	return machine(kubernetes, version), nil
}

func (o *options) writeJSON(all report.Report) error {
	if o.json == "" || len(all.Runs) == 0 {
		return nil
	}
	content, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return fmt.Errorf("cannot encode the report: %w", err)
	}
	if err := os.WriteFile(o.json, append(content, '\n'), 0o644); err != nil {
		return fmt.Errorf("cannot write the report: %w", err)
	}
	return nil
}

// build builds a program of this repository.
func build(ctx context.Context, pkg, path string) error {
	root, err := kit.Root()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "build", "-o", path, pkg)
	cmd.Dir = root
	if output, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build %s: %w\n%s", pkg, err, output)
	}
	return nil
}
