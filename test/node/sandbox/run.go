package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/metacontroller-solo/solo/test/node/podstatus"
)

// Reasons of states and events, as the kubelet writes them.
const (
	reasonStatusUnknown    = "ContainerStatusUnknown"
	reasonCompleted        = "Completed"
	reasonError            = "Error"
	reasonStartError       = "StartError"
	reasonCrashLoop        = "CrashLoopBackOff"
	reasonConfigError      = "CreateContainerConfigError"
	reasonErrImagePull     = "ErrImagePull"
	reasonImagePullBackOff = "ImagePullBackOff"
	reasonDeadlineExceeded = "DeadlineExceeded"
	eventFailedMount       = "FailedMount"
	eventFailed            = "Failed"
	eventPulled            = "Pulled"
	eventStarted           = "Started"
	eventKilling           = "Killing"
	eventBackOff           = "BackOff"
	eventUnhealthy         = "Unhealthy"
	eventPreStopFailed     = "FailedPreStopHook"
	eventPostStartFailed   = "FailedPostStartHook"
	eventFailedAddress     = "FailedCreatePodSandBox"
)

const (
	// exitUnknown is the exit code of a process whose end nobody saw, exitNoStart that of one which could not be started.
	exitUnknown = 137
	exitNoStart = 128
)

// run takes the Pod through its life and returns when none of its processes is left. The end of ctx ends the Pod.
func (p *Pod) run(ctx context.Context) {
	// Volumes are refreshed until the last process is gone: a graceful end may need a fresh token.
	volumes, stopVolumes := context.WithCancel(context.WithoutCancel(ctx))
	var background sync.WaitGroup
	defer background.Wait()
	defer stopVolumes()
	if !p.prepare(ctx) {
		return
	}
	defer p.config.Addresses.give(p.ip)
	background.Go(func() { p.refreshVolumes(volumes) })
	background.Go(func() { p.watchActiveDeadline(volumes) })

	var regular sync.WaitGroup
	sidecars := p.initialize(ctx)
	if ctx.Err() == nil && !p.initFailed() {
		for _, c := range p.containers {
			if !c.init && !c.finished {
				regular.Go(func() { p.live(ctx, c) })
			}
		}
	}
	regular.Wait()
	// Sidecars serve the others to the end, and each other in the order of their start.
	for i := len(sidecars) - 1; i >= 0; i-- {
		sidecars[i].cancel()
		<-sidecars[i].done
	}
}

// prepare gives the Pod its address and volumes. It tries until that succeeds or ctx ends, which is false.
func (p *Pod) prepare(ctx context.Context) bool {
	event := newOnce()
	for {
		err := p.prepareOnce(ctx)
		p.mu.Lock()
		p.sandbox, p.message = err == nil, ""
		if err != nil {
			p.message = err.Error()
		}
		p.mu.Unlock()
		p.markDirty()
		if err == nil {
			return ctx.Err() == nil
		}
		if ctx.Err() == nil && event.is(err.Error()) {
			reason := eventFailedMount
			if errors.Is(err, errNoAddress) {
				reason = eventFailedAddress
			}
			p.event(nil, corev1.EventTypeWarning, reason, "%s", err)
		}
		if !p.pause(ctx, p.config.Refresh) {
			return false
		}
	}
}

var errNoAddress = errors.New("no address")

func (p *Pod) prepareOnce(ctx context.Context) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := unsupported(p.object()); err != nil {
		return err
	}
	p.mu.Lock()
	have := p.ip.IsValid()
	p.mu.Unlock()
	if !have {
		ip, err := p.config.Addresses.take()
		if err != nil {
			return fmt.Errorf("%w: %w", errNoAddress, err)
		}
		p.mu.Lock()
		p.ip = ip
		p.mu.Unlock()
	}
	if err := os.MkdirAll(p.dir, 0o755); err != nil {
		return fmt.Errorf("cannot create the folder of pod %q: %w", p.key, err)
	}
	return p.writeVolumes(ctx)
}

// object is the Pod as the API last had it. It is not to be changed.
func (p *Pod) object() *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pod
}

// initialize runs the init containers in order and returns the sidecars that were started. It ends early when one fails for good.
func (p *Pod) initialize(ctx context.Context) []*container {
	var sidecars []*container
	if p.allFinished() {
		return nil
	}
	for _, c := range p.containers {
		if !c.init {
			continue
		}
		if ctx.Err() != nil || p.initFailed() {
			break
		}
		if !c.sidecar {
			p.live(ctx, c)
			continue
		}
		// A sidecar outlives ctx: it is stopped after the containers that it serves.
		sidecar, cancel := context.WithCancel(context.WithoutCancel(ctx))
		c.cancel = cancel
		go func() {
			defer close(c.done)
			p.live(sidecar, c)
		}()
		sidecars = append(sidecars, c)
		select {
		case <-c.started:
		case <-ctx.Done():
		}
	}
	return sidecars
}

// allFinished reports whether every regular container had ended for good before the node's start.
func (p *Pod) allFinished() bool {
	for _, c := range p.containers {
		if !c.init && !c.finished {
			return false
		}
	}
	return true
}

// initFailed reports whether an init container failed and is not started again.
func (p *Pod) initFailed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.containers {
		ended := c.record.State.Terminated
		if c.init && !c.sidecar && ended != nil && ended.ExitCode != 0 && !podstatus.ShouldRestart(c.spec, &p.pod.Spec, ended.ExitCode) {
			return true
		}
	}
	return false
}

// watchActiveDeadline fails a Pod that lives longer than it may.
func (p *Pod) watchActiveDeadline(ctx context.Context) {
	seconds := p.object().Spec.ActiveDeadlineSeconds
	if seconds == nil {
		return
	}
	limit := p.startTime.Add(time.Duration(*seconds) * time.Second)
	if !p.pause(ctx, limit.Sub(p.config.Clock.Now())) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.failed.reason, p.failed.message = reasonDeadlineExceeded, "Pod was active on the node longer than the specified deadline"
	p.end(gracePeriod(p.pod))
}

// pause is false when ctx ends first.
func (p *Pod) pause(ctx context.Context, d time.Duration) bool {
	timer := p.config.Clock.NewTimer(max(d, 0))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C():
		return true
	}
}

// event records an event about the Pod or one of its containers.
func (p *Pod) event(c *container, kind, reason, format string, args ...any) {
	pod := p.object()
	reference := &corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, ResourceVersion: pod.ResourceVersion}
	if c != nil {
		list := "containers"
		if c.init {
			list = "initContainers"
		}
		reference.FieldPath = fmt.Sprintf("spec.%s{%s}", list, c.name)
	}
	p.config.Events.Eventf(reference, kind, reason, format, args...)
}

// once tells a message from its repetitions.
type once struct{ last string }

func newOnce() *once { return &once{} }

func (o *once) is(message string) bool {
	fresh := o.last != message
	o.last = message
	return fresh
}
