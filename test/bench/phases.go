package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"time"

	"github.com/metacontroller-solo/solo/test/bench/report"
	"github.com/metacontroller-solo/solo/test/bench/tally"
	"github.com/metacontroller-solo/solo/test/bench/workload"
)

const (
	// phaseLimit bounds one phase: longer, and something does not work.
	phaseLimit = 20 * time.Minute
	// looks is how often a phase that may be over is looked at until it is.
	looks = 10
	// restartLook is the time between two looks at a controller that starts.
	restartLook = 20 * time.Millisecond
)

// Names of the phases.
const (
	phaseCreate  = "create"
	phaseChange  = "change"
	phaseHeal    = "heal"
	phaseLatency = "single"
	phaseTouch   = "touch"
	phaseRestart = "restart"
	phaseIdle    = "idle"
)

// phase is one thing that happens, and is measured.
type phase struct {
	name string
	// controllerOnly phases have no meaning for the raw writer.
	controllerOnly bool
	// only is the mode that has this phase; empty means all.
	only workload.Mode
	do   func(ctx context.Context, r *run) (outcome, error)
}

// outcome is what a phase found out by itself.
type outcome struct {
	// begin and end are the times between which the phase was.
	begin, end time.Time
	latencies  []time.Duration
	// newProcess says that the subject's process started with the phase.
	newProcess bool
}

// allPhases in their order. Each leaves all parents finished.
var allPhases = []phase{
	{name: phaseCreate, do: forEach((*driver).create)},
	{name: phaseChange, do: forEach((*driver).change)},
	{name: phaseHeal, do: forEach((*driver).orphan)},
	{name: phaseLatency, do: singleChanges},
	{name: phaseTouch, only: workload.Customize, do: touch},
	{name: phaseRestart, controllerOnly: true, do: restart},
	{name: phaseIdle, controllerOnly: true, do: idle},
}

func phaseNames() []string {
	var names []string
	for _, phase := range allPhases {
		names = append(names, phase.name)
	}
	return names
}

func (p phase) wanted(r *run) bool {
	switch {
	case p.controllerOnly && r.controller == nil, p.only != "" && p.only != r.plan.Mode:
		return false
	default:
		return p.name == phaseCreate || slices.Contains(r.Phases, p.name)
	}
}

// measure runs a phase.
func (r *run) measure(ctx context.Context, p phase) (report.Phase, error) {
	r.say("  %s", p.name)
	ctx, cancel := context.WithTimeoutCause(ctx, phaseLimit, fmt.Errorf("it is not over after %s", phaseLimit))
	defer cancel()
	if _, err := r.drain(); err != nil {
		return report.Phase{}, err
	}
	r.counted = tally.Tally{}
	hooksBefore, err := r.hookStats(ctx)
	if err != nil {
		return report.Phase{}, err
	}
	if err := resetPeak(r.proc.Pid()); err != nil {
		return report.Phase{}, err
	}
	cpuBefore, err := cpuTime(r.proc.Pid())
	if err != nil {
		return report.Phase{}, err
	}
	stopProfile := r.profilePhase(ctx, p.name)
	found, err := p.do(ctx, r)
	if err != nil {
		_ = stopProfile()
		return report.Phase{}, err
	}

	cpu, err := cpuTime(r.proc.Pid())
	if err != nil {
		return report.Phase{}, err
	}
	if !found.newProcess {
		cpu -= cpuBefore
	}
	peak, err := peakMemory(r.proc.Pid())
	if err != nil {
		return report.Phase{}, err
	}
	hooks, err := r.hookStats(ctx)
	if err != nil {
		return report.Phase{}, err
	}
	if _, err := r.drain(); err != nil {
		return report.Phase{}, err
	}
	out := report.Phase{
		Name: p.name, WallSeconds: found.end.Sub(found.begin).Seconds(), CPUSeconds: cpu.Seconds(),
		PeakRSSMiB: float64(peak) / (1 << 20),
		SyncCalls:  hooks.Sync - hooksBefore.Sync, CustomizeCalls: hooks.Customize - hooksBefore.Customize,
		Latency: report.LatencyOf(found.latencies),
	}
	out.Count(r.counted)
	return out, stopProfile()
}

// hookStats are the hook server's counts, none without one.
func (r *run) hookStats(ctx context.Context) (hookStats, error) {
	if r.hook == nil {
		return hookStats{}, nil
	}
	return r.hook.stats(ctx)
}

// activity changes while the subject does something.
type activity struct {
	events                   int64
	sync, customize, running int
	requests                 int
}

func (r *run) activity(ctx context.Context) (activity, error) {
	hooks, err := r.hookStats(ctx)
	if err != nil {
		return activity{}, err
	}
	requests, err := r.drain()
	return activity{
		events: r.tracker.Status().Changes, sync: hooks.Sync, customize: hooks.Customize, running: hooks.Running, requests: requests,
	}, err
}

// untilQuiet waits until ready, if there is such a condition, and the subject has
// done nothing for as long as the settings say.
func (r *run) untilQuiet(ctx context.Context, ready func() bool) error {
	ticker := time.NewTicker(max(r.Quiet/looks, time.Millisecond))
	defer ticker.Stop()
	last, since := activity{}, time.Now()
	for {
		now, err := r.activity(ctx)
		if err != nil {
			return err
		}
		if now != last || now.running > 0 || ready != nil && !ready() {
			last, since = now, time.Now()
		}
		if time.Since(since) >= r.Quiet {
			return nil
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// settle waits until all parents are finished, and nothing happens any more. It
// returns when they were finished for good.
func (r *run) settle(ctx context.Context) (time.Time, error) {
	finished := func() bool { return r.tracker.Status().Pending == 0 }
	// What is left to do is told by the watches; the subject is not disturbed.
	for !finished() {
		select {
		case <-r.tracker.Changed():
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("%w: %s", context.Cause(ctx), r.tracker.Missing())
		}
	}
	if err := r.untilQuiet(ctx, finished); err != nil {
		return time.Time{}, fmt.Errorf("%w: %s", because(ctx, err), r.tracker.Missing())
	}
	return r.tracker.Status().DoneAt, nil
}

// forEach is a phase in which the driver does something for each parent.
func forEach(do func(*driver, context.Context, int) error) func(context.Context, *run) (outcome, error) {
	return func(ctx context.Context, r *run) (outcome, error) {
		begin := time.Now()
		if err := r.driver.each(ctx, func(ctx context.Context, i int) error { return do(r.driver, ctx, i) }); err != nil {
			return outcome{}, err
		}
		end, err := r.settle(ctx)
		return outcome{begin: begin, end: end}, err
	}
}

// singleChanges changes one parent after another, and takes the time from the
// request until the watch shows the last of its children changed.
func singleChanges(ctx context.Context, r *run) (outcome, error) {
	out := outcome{begin: time.Now()}
	for sample := range r.Samples {
		i := sample * r.plan.Parents / r.Samples
		if r.Samples > r.plan.Parents {
			i = sample % r.plan.Parents
		}
		key, begin := r.driver.key(i), time.Now()
		if err := r.driver.change(ctx, i); err != nil {
			return out, err
		}
		for {
			childrenAt, done := r.tracker.Of(key)
			if done {
				out.latencies = append(out.latencies, childrenAt.Sub(begin))
				break
			}
			select {
			case <-r.tracker.Changed():
			case <-ctx.Done():
				return out, fmt.Errorf("%w: %s", context.Cause(ctx), r.tracker.Missing())
			}
		}
	}
	var err error
	out.end, err = r.settle(ctx)
	return out, err
}

// touch changes one related object that several parents select by its label, and
// then one that a single parent names.
func touch(ctx context.Context, r *run) (outcome, error) {
	related := map[bool]workload.RelatedObject{}
	for _, one := range r.plan.RelatedObjects(0) {
		related[one.Metadata.Labels[workload.GroupLabel] != ""] = one
	}
	if len(related) != 2 {
		return outcome{}, errors.New("there are too few related objects: two for each parent at least")
	}
	var out outcome
	for grouped, selectors := range map[bool][]int{true: r.plan.Group(0), false: {0}} {
		begin := time.Now()
		if err := r.driver.touch(ctx, related[grouped], selectors); err != nil {
			return out, err
		}
		end, err := r.settle(ctx)
		if err != nil {
			return out, err
		}
		out.begin = end.Add(-out.end.Sub(out.begin) - end.Sub(begin)) // without the pause between them
		out.end = end
	}
	return out, nil
}

// restart stops the controller and starts it again, with nothing to do.
func restart(ctx context.Context, r *run) (outcome, error) {
	if err := r.end(ctx); err != nil {
		return outcome{}, err
	}
	r.counted = tally.Tally{}
	if err := r.hook.mark(ctx); err != nil {
		return outcome{}, err
	}
	out := outcome{begin: time.Now(), newProcess: true}
	if err := r.startSubject(ctx); err != nil {
		return out, err
	}
	ticker := time.NewTicker(restartLook)
	defer ticker.Stop()
	for {
		stats, err := r.hook.stats(ctx)
		if err != nil {
			return out, err
		}
		if stats.Parents == r.plan.Parents {
			out.end = stats.NewAt
			break
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return out, fmt.Errorf("%w: %d of %d parents were synced", context.Cause(ctx), stats.Parents, r.plan.Parents)
		}
	}
	_, err := r.settle(ctx)
	return out, err
}

// idle does nothing for a while.
func idle(ctx context.Context, r *run) (outcome, error) {
	begin := time.Now()
	timer := time.NewTimer(r.Idle)
	defer timer.Stop()
	select {
	case end := <-timer.C:
		return outcome{begin: begin, end: end}, nil
	case <-ctx.Done():
		return outcome{}, context.Cause(ctx)
	}
}

// machine are the facts that figures depend on.
func machine(kubernetes, controller string) report.Machine {
	return report.Machine{
		OS: runtime.GOOS, Architecture: runtime.GOARCH, CPUs: runtime.NumCPU(), Go: runtime.Version(),
		Kubernetes: kubernetes, Controller: controller,
	}
}
