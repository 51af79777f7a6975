package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacontroller-solo/solo/test/node/environ"
	"github.com/metacontroller-solo/solo/test/node/logfile"
	"github.com/metacontroller-solo/solo/test/node/podstatus"
	"github.com/metacontroller-solo/solo/test/node/process"
)

// RuntimeName stands before a container's ID, which is the number of its process.
const RuntimeName = "process"

// leastGrace is what is left between SIGTERM and SIGKILL when a preStop hook, or the containers that a sidecar serves, took all the time, as in
// the kubelet.
const leastGrace = 2 * time.Second

// killRequest asks for the end of a running container, not of its Pod.
type killRequest struct {
	message string
	grace   *int64
	restart bool // whatever the restart policy says
}

func (c *container) request(kill killRequest) {
	select {
	case c.kill <- kill:
	default: // one is under way
	}
}

// execution is one run of a container.
type execution struct {
	container *container
	spec      *corev1.Container
	group     *process.Group
	command   process.Spec
	started   time.Time
	restart   bool
}

// live runs the container, again and again as its restart policy says, until it has ended for good or ctx ends; ctx's end also ends the
// container, gracefully, before live returns.
func (p *Pod) live(ctx context.Context, c *container) {
	var pause time.Duration
	for {
		run, ok := p.start(ctx, c)
		if !ok {
			return
		}
		var ended *corev1.ContainerStateTerminated
		if run.group != nil {
			ended = p.supervise(ctx, run)
		} else {
			ended = p.record(c).State.Terminated
		}
		if ctx.Err() != nil {
			return
		}
		if run.restart {
			pause = 0
			continue
		}
		again := podstatus.ShouldRestart(run.spec, &p.object().Spec, ended.ExitCode)
		if c.init && !c.sidecar && ended.ExitCode == 0 {
			again = false
		}
		if !again {
			return
		}
		if p.config.Clock.Now().Sub(run.started) > 2*p.config.BackOff.Most {
			pause = 0
		}
		if pause > 0 && !p.backOff(ctx, c, pause) {
			return
		}
		pause = min(max(2*pause, p.config.BackOff.First), p.config.BackOff.Most)
	}
}

func (p *Pod) record(c *container) podstatus.Container {
	p.mu.Lock()
	defer p.mu.Unlock()
	return c.record
}

func (p *Pod) change(c *container, change func(*podstatus.Container)) {
	p.mu.Lock()
	change(&c.record)
	p.mu.Unlock()
	p.markDirty()
}

// wait shows the container as waiting; how it ended before becomes its last state.
func (p *Pod) wait(c *container, reason, message string) {
	p.change(c, func(r *podstatus.Container) {
		if r.State.Terminated != nil {
			r.Last = r.State
		}
		r.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
	})
}

// backOff is false when ctx ends first.
func (p *Pod) backOff(ctx context.Context, c *container, pause time.Duration) bool {
	p.wait(c, reasonCrashLoop, fmt.Sprintf("back-off %s restarting failed container=%s pod=%s", pause, c.name, p.key))
	p.event(c, corev1.EventTypeWarning, eventBackOff, "Back-off restarting failed container %s", c.name)
	timer := p.config.Clock.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
	case <-c.kill: // its definition changed: that is worth a try
	}
	return true
}

// start starts a process for the container. Until it can be known which process that is, the container waits and start tries again. A
// program that cannot be started gives an execution without a group and a container that has ended. It is false when ctx ends first.
func (p *Pod) start(ctx context.Context, c *container) (*execution, bool) {
	event := newOnce()
	for try := 1; ; try++ {
		if ctx.Err() != nil {
			return nil, false
		}
		run, reason, err := p.command(ctx, c)
		if err == nil {
			if ctx.Err() != nil {
				return nil, false
			}
			p.launch(c, run)
			return run, true
		}
		if reason == reasonErrImagePull && try > 1 {
			reason = reasonImagePullBackOff
		}
		p.wait(c, reason, err.Error())
		if event.is(err.Error()) && ctx.Err() == nil {
			p.event(c, corev1.EventTypeWarning, eventFailed, "%s", err)
		}
		timer := p.config.Clock.NewTimer(p.config.Refresh)
		select {
		case <-ctx.Done():
		case <-timer.C():
		case <-c.kill: // its definition changed
		}
		timer.Stop()
	}
}

// command works out what to run. The error comes with the reason to wait for.
func (p *Pod) command(ctx context.Context, c *container) (*execution, string, error) {
	p.mu.Lock()
	spec, pod := c.spec, p.pod
	p.mu.Unlock()
	program, err := p.config.Images.find(spec.Image)
	if err != nil {
		return nil, reasonErrImagePull, err
	}
	mounts, err := p.mounts(pod, spec)
	if err != nil {
		return nil, reasonConfigError, err
	}
	home := filepath.Join(p.dir, "containers", c.name)
	if err := os.MkdirAll(filepath.Join(home, "tmp"), 0o755); err != nil {
		return nil, reasonConfigError, fmt.Errorf("cannot create the folder of container %q: %w", c.name, err)
	}
	defaults, err := p.defaults(pod, spec, home)
	if err != nil {
		return nil, reasonConfigError, err
	}
	facts, err := p.facts(ctx, pod, spec)
	if err != nil {
		return nil, reasonConfigError, err
	}
	facts.Mounts, facts.Defaults = mounts, defaults
	built, err := environ.Build(spec, facts)
	if err != nil {
		return nil, reasonConfigError, err
	}
	path, args := program.command(built.Command, built.Args)
	dir := built.WorkingDir
	if dir == "" {
		dir = home
	}
	return &execution{container: c, spec: spec, command: process.Spec{Path: path, Args: args, Env: built.Env, Dir: dir}}, "", nil
}

// launch starts the process and makes the container running, or ended if that fails.
func (p *Pod) launch(c *container, run *execution) {
	// Requests that are older than this run are not for it.
	select {
	case <-c.kill:
	default:
	}
	p.mu.Lock()
	restarts := c.record.RestartCount
	if c.resumed || c.log != nil {
		restarts++
	}
	c.resumed = false
	c.previous = c.log
	p.mu.Unlock()
	log, err := logfile.Create(p.logPath(c, restarts), p.config.LogLimit, p.config.Clock.Now)
	var stdout, stderr io.WriteCloser
	if err == nil {
		stdout, stderr = log.Stream("stdout"), log.Stream("stderr")
		run.command.Stdout, run.command.Stderr = stdout, stderr
		run.group, err = p.config.Keeper.Start(run.command)
	}
	run.started = p.config.Clock.Now()
	now := metav1.NewTime(run.started).Rfc3339Copy()
	if err != nil && stderr != nil {
		_, _ = fmt.Fprintln(stderr, err)
	}
	p.mu.Lock()
	if c.spec.Image != run.spec.Image {
		// It changed after the command was worked out, and the request was dropped above.
		c.request(killRequest{restart: true, message: fmt.Sprintf("Container %s definition changed, will be restarted", c.name)})
	}
	c.log = log
	if err == nil {
		c.running = run
	}
	r := &c.record
	if r.State.Terminated != nil {
		r.Last = r.State
	}
	r.RestartCount, r.Ready, r.Started, r.ImageID = restarts, false, false, run.command.Path
	if err == nil {
		r.ID = RuntimeName + "://" + strconv.Itoa(run.group.PID())
		r.State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}
	} else {
		r.ID = ""
		r.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
			ExitCode: exitNoStart, Reason: reasonStartError, Message: err.Error(), StartedAt: now, FinishedAt: now,
		}}
	}
	p.mu.Unlock()
	p.markDirty()
	p.removeOldLogs(c, restarts)
	if err != nil {
		if log != nil {
			log.Close()
		}
		p.event(c, corev1.EventTypeWarning, eventFailed, "Error: %s", err)
		return
	}
	go func() {
		<-run.group.Done()
		_, _ = stdout.Close(), stderr.Close()
		log.Close()
	}()
	p.event(c, corev1.EventTypeNormal, eventPulled, "Image %q is program %s on this host", run.spec.Image, run.command.Path)
	p.event(c, corev1.EventTypeNormal, eventStarted, "Started container %s as process %d", c.name, run.group.PID())
}

func (p *Pod) logPath(c *container, run int32) string {
	return filepath.Join(p.dir, "containers", c.name, fmt.Sprintf("%d.log", run))
}

// removeOldLogs leaves the log of this run and of the one before.
func (p *Pod) removeOldLogs(c *container, run int32) {
	old := p.logPath(c, run-2)
	_ = os.Remove(old)
	_ = os.Remove(old + ".1")
}

// supervise stays with a run to its end, with its hooks and probes, and ends it when asked to or at the end of ctx.
func (p *Pod) supervise(ctx context.Context, run *execution) *corev1.ContainerStateTerminated {
	c := run.container
	watch, stopWatch := context.WithCancel(ctx)
	var watchers sync.WaitGroup
	watchers.Go(func() { p.watch(watch, run) })
	select {
	case <-run.group.Done():
	case kill := <-c.kill:
		run.restart = kill.restart
		stopWatch()
		p.event(c, corev1.EventTypeNormal, eventKilling, "%s", kill.message)
		p.change(c, func(r *podstatus.Container) { r.Ready = false })
		p.stop(run, kill.grace)
	case <-ctx.Done():
		p.event(c, corev1.EventTypeNormal, eventKilling, "Stopping container %s", c.name)
		p.stop(run, nil)
	}
	stopWatch()
	watchers.Wait()
	return p.ended(run)
}

// ended makes the container ended.
func (p *Pod) ended(run *execution) *corev1.ContainerStateTerminated {
	exit := run.group.Exit()
	state := &corev1.ContainerStateTerminated{
		ExitCode: int32(exit.Code), Reason: reasonError, ContainerID: RuntimeName + "://" + strconv.Itoa(run.group.PID()),
		StartedAt:  metav1.NewTime(run.started).Rfc3339Copy(),
		FinishedAt: metav1.NewTime(p.config.Clock.Now()).Rfc3339Copy(),
	}
	if exit.Code == 0 {
		state.Reason = reasonCompleted
	}
	if exit.Signal != 0 {
		state.Message = fmt.Sprintf("ended by signal %d (%s)", exit.Signal, exit.Signal)
	}
	p.change(run.container, func(r *podstatus.Container) {
		run.container.running = nil
		r.State = corev1.ContainerState{Terminated: state}
		r.Ready, r.Started = false, false
	})
	return state
}

// stop ends a run: preStop hook, SIGTERM, SIGKILL when the time is over. The time is the Pod's own grace period or, when less is left, that until
// the Pod's deadline; the deadline can come nearer meanwhile.
func (p *Pod) stop(run *execution, grace *int64) {
	p.mu.Lock()
	limit := p.config.Clock.Now().Add(gracePeriod(p.pod))
	if p.ending {
		limit = p.deadline
	}
	p.mu.Unlock()
	if grace != nil {
		limit = p.config.Clock.Now().Add(time.Duration(max(*grace, 1)) * time.Second)
	}
	if hook := preStop(run.spec); hook != nil {
		ctx, cancel := context.WithCancel(context.Background())
		finished := make(chan error, 1)
		go func() { finished <- p.handle(ctx, run, hook) }()
		ran := make(chan struct{})
		var err error
		go func() {
			err = <-finished
			close(ran)
		}()
		if !p.within(limit, run.group.Done(), ran) {
			err = errors.New("it took longer than the grace period")
		}
		cancel()
		<-ran
		if err != nil && !isClosed(run.group.Done()) {
			p.event(run.container, corev1.EventTypeWarning, eventPreStopFailed, "PreStopHook failed: %s", err)
		}
	}
	if least := p.config.Clock.Now().Add(leastGrace); limit.Before(least) && (run.container.sidecar || preStop(run.spec) != nil) {
		limit = least
	}
	if err := run.group.Signal(syscall.SIGTERM); err != nil {
		p.log.Error(err, "Cannot send SIGTERM", "container", run.container.name)
	}
	if !p.within(limit, run.group.Done()) {
		if err := run.group.Kill(); err != nil {
			p.log.Error(err, "Cannot send SIGKILL", "container", run.container.name)
		}
	}
	<-run.group.Done()
}

// within waits for any of the channels, and is false when the limit, or the Pod's deadline after it moved, comes first.
func (p *Pod) within(limit time.Time, channels ...<-chan struct{}) bool {
	either := make(chan struct{})
	over := make(chan struct{})
	defer close(over)
	for _, c := range channels {
		go func() {
			select {
			case <-c:
				select {
				case either <- struct{}{}:
				case <-over:
				}
			case <-over:
			}
		}()
	}
	p.mu.Lock()
	hurry := p.hurry
	p.mu.Unlock()
	for {
		timer := p.config.Clock.NewTimer(max(limit.Sub(p.config.Clock.Now()), 0))
		select {
		case <-either:
			timer.Stop()
			return true
		case <-timer.C():
			return false
		case <-hurry:
			timer.Stop()
			p.mu.Lock()
			hurry = p.hurry
			if p.deadline.Before(limit) {
				limit = p.deadline
			}
			p.mu.Unlock()
		}
	}
}

func preStop(spec *corev1.Container) *corev1.LifecycleHandler {
	if spec.Lifecycle == nil {
		return nil
	}
	return spec.Lifecycle.PreStop
}
