// Package sandbox runs Pods as host processes: for each Pod one Pod value, from its first sight to the removal of its object.
//
//	           New ──> run: wait for the predecessor ─> address, volumes ─> init containers ─> containers ─> end of all processes
//	Update ──> newer object                                                      │ each: start, probe, stop, back off
//	     Terminate ──> deadline ───────────────────────────────────────────────> └─ preStop, SIGTERM, SIGKILL
//	                                      push (one goroutine): records ─> podstatus ─> API; at the end the removal of the object
//
// One goroutine writes a Pod's status and removes its object, so neither can overtake the other, and the object of a Pod is never
// removed while one of its processes lives.
package sandbox

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/metacontroller-solo/solo/test/node/logfile"
	"github.com/metacontroller-solo/solo/test/node/podstatus"
	"github.com/metacontroller-solo/solo/test/node/process"
)

// Config is what the Pods of a node share.
type Config struct {
	// Client acts with the node's own rights.
	Client kubernetes.Interface
	Keeper *process.Keeper
	Events record.EventRecorder
	Clock  clock.Clock
	Log    logr.Logger
	// HostIP is the node's address.
	HostIP string
	// APIServer is the URL under which the Pods reach the API server, ServerName the name in its certificate.
	APIServer, ServerName string
	Addresses             *Addresses
	Images                Images
	// Allocatable is what a container without a limit may use, for the downward API.
	Allocatable corev1.ResourceList
	// Environ are variables for every container, below those of the Pod.
	Environ map[string]string
	// Dir holds a folder per Pod.
	Dir string
	// BackOff, Refresh and LogLimit are as in the node's options.
	BackOff  BackOff
	Refresh  time.Duration
	LogLimit int64
}

// BackOff are the pauses before a container that keeps ending is started again. The first restart is immediate, as the kubelet's is.
type BackOff struct {
	// First is doubled up to Most. A run of twice Most begins anew.
	First, Most time.Duration
}

// Complete checks the image table.
func (c *Config) Complete() error {
	images, err := c.Images.normal()
	if err != nil {
		return err
	}
	c.Images = images
	return nil
}

// Pod is a Pod on this node.
type Pod struct {
	config    *Config
	key       types.NamespacedName
	uid       types.UID
	dir       string
	log       logr.Logger
	startTime metav1.Time
	tokens    tokens

	cancelRun  context.CancelFunc // no process is started any more
	cancelPush context.CancelFunc // nothing is written to the API any more
	dirty      chan struct{}      // capacity 1: the status may have changed
	gone       chan struct{}      // closed when no process is left
	pushed     chan struct{}      // closed when the push goroutine has ended

	// mu guards the rest.
	mu         sync.Mutex
	pod        *corev1.Pod
	containers []*container // init containers, then regular ones, in order
	ip         netip.Addr
	sandbox    bool
	message    string // why there is no sandbox yet
	failed     struct{ reason, message string }
	ending     bool // Terminate was called
	terminated bool // and all is over
	removed    bool // the API has no such Pod any more
	deadline   time.Time
	hurry      chan struct{} // closed and replaced when the deadline moves
}

// container is one container of a Pod. Its fields are guarded by Pod.mu, except those set once by New.
type container struct {
	name          string
	init, sidecar bool
	kill          chan killRequest // capacity 1
	started       chan struct{}    // closed when it has started for the first time
	done          chan struct{}    // closed when it will not run any more
	cancel        context.CancelFunc

	spec     *corev1.Container
	record   podstatus.Container
	resumed  bool // the record is of a run before the node's start
	running  *execution
	finished bool // it is not to be run: it has ended for good before the node's start
	log      *logfile.Log
	previous *logfile.Log
}

// New starts a Pod. Its processes start once all of after are closed, which is how a Pod waits for its namesakes. The Pod ends by
// Terminate or Shutdown; ctx is the node's life.
func New(ctx context.Context, config *Config, pod *corev1.Pod, after ...<-chan struct{}) *Pod {
	p := &Pod{
		config: config, key: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, uid: pod.UID,
		dir: filepath.Join(config.Dir, string(pod.UID)), log: config.Log.WithValues("namespace", pod.Namespace, "pod", pod.Name, "uid", pod.UID),
		dirty: make(chan struct{}, 1), gone: make(chan struct{}), pushed: make(chan struct{}),
		pod: pod.DeepCopy(), hurry: make(chan struct{}),
	}
	p.startTime = metav1.NewTime(config.Clock.Now()).Rfc3339Copy()
	if pod.Status.StartTime != nil {
		p.startTime = *pod.Status.StartTime
	}
	p.addContainers(p.pod)
	if len(after) > 0 {
		p.message = "waiting for the processes of an earlier Pod of this name to end"
	}
	runContext, cancelRun := context.WithCancel(ctx)
	pushContext, cancelPush := context.WithCancel(ctx)
	p.cancelRun, p.cancelPush = cancelRun, cancelPush
	go func() {
		defer close(p.pushed)
		p.push(pushContext)
	}()
	go func() {
		for _, gone := range after {
			select {
			case <-gone:
			case <-runContext.Done():
			}
		}
		p.run(runContext)
		close(p.gone)
		p.markDirty()
		<-p.pushed
		cancelRun()
		cancelPush()
	}()
	return p
}

func (p *Pod) addContainers(pod *corev1.Pod) {
	for i := range pod.Spec.InitContainers {
		spec := &pod.Spec.InitContainers[i]
		p.containers = append(p.containers, &container{name: spec.Name, init: true, sidecar: podstatus.IsSidecar(spec), spec: spec})
	}
	for i := range pod.Spec.Containers {
		spec := &pod.Spec.Containers[i]
		p.containers = append(p.containers, &container{name: spec.Name, spec: spec})
	}
	now := metav1.NewTime(p.config.Clock.Now()).Rfc3339Copy()
	for _, c := range p.containers {
		c.kill, c.started, c.done = make(chan killRequest, 1), make(chan struct{}), make(chan struct{})
		c.record, c.resumed = resume(pod, c.name, now)
		ended := c.record.State.Terminated
		c.finished = !c.init && c.resumed && ended != nil && !podstatus.ShouldRestart(c.spec, &pod.Spec, ended.ExitCode)
	}
}

// UID identifies the Pod; a namesake has another.
func (p *Pod) UID() types.UID { return p.uid }

// Key is the Pod's namespace and name.
func (p *Pod) Key() types.NamespacedName { return p.key }

// Gone is closed when no process of the Pod is left and none will be started.
func (p *Pod) Gone() <-chan struct{} { return p.gone }

// Removed is closed when the Pod has ended and the API has it no more, or after Shutdown: there is nothing more to do for it.
func (p *Pod) Removed() <-chan struct{} { return p.pushed }

// Object returns a copy of the Pod as last given to New or Update, with the status of this node.
func (p *Pod) Object() *corev1.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	pod := p.pod.DeepCopy()
	pod.Status = p.status(pod.Status)
	return pod
}

// Update takes in what the API now has. A status that is not this node's gets corrected; a container whose image changed is restarted.
func (p *Pod) Update(pod *corev1.Pod) {
	pod = pod.DeepCopy()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pod = pod
	specs := map[string]*corev1.Container{}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			specs[list[i].Name] = &list[i]
		}
	}
	for _, c := range p.containers {
		spec := specs[c.name]
		if spec == nil {
			continue
		}
		changed := spec.Image != c.spec.Image
		c.spec = spec
		if changed {
			c.request(killRequest{restart: true, message: fmt.Sprintf("Container %s definition changed, will be restarted", c.name)})
		}
	}
	p.markDirty()
}

// markDirty lets the push goroutine look at the status.
func (p *Pod) markDirty() {
	select {
	case p.dirty <- struct{}{}:
	default:
	}
}

// Terminate ends the Pod's processes; it does not wait. Calling it again can only bring the end nearer. With removed, the API has no
// such Pod any more.
func (p *Pod) Terminate(pod *corev1.Pod, removed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !removed {
		p.pod = pod.DeepCopy()
	}
	p.removed = p.removed || removed
	p.end(gracePeriod(p.pod))
}

// end sets the deadline. p.mu is held.
func (p *Pod) end(grace time.Duration) {
	deadline := p.config.Clock.Now().Add(grace)
	if !p.ending || deadline.Before(p.deadline) {
		p.deadline = deadline
		close(p.hurry)
		p.hurry = make(chan struct{})
	}
	p.ending = true
	p.cancelRun()
	p.markDirty()
}

// Shutdown ends the Pod's processes because the node ends, and returns when they are gone. The API is not told: for it the Pod is
// what it was, and the node's next start takes it up again.
func (p *Pod) Shutdown(limit time.Duration) {
	p.cancelPush()
	<-p.pushed
	p.mu.Lock()
	p.end(min(gracePeriod(p.pod), limit))
	p.mu.Unlock()
	<-p.gone
}

// gracePeriod is how long the Pod's processes have: what the deletion asked for, else what the Pod asks for, and a second at least, as the
// kubelet has it. So a forced deletion that the node sees gives a second; one that it did not see, because it was cut off, is known by the
// Pod's absence alone and gives the Pod's own period.
func gracePeriod(pod *corev1.Pod) time.Duration {
	seconds := int64(0)
	switch {
	case pod.DeletionGracePeriodSeconds != nil:
		seconds = *pod.DeletionGracePeriodSeconds
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		seconds = *pod.Spec.TerminationGracePeriodSeconds
	}
	return time.Duration(max(seconds, 1)) * time.Second
}

// resume makes the record of a container that a node of this name ran before. Its processes are gone; how they ended nobody saw.
func resume(pod *corev1.Pod, name string, now metav1.Time) (podstatus.Container, bool) {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, status := range list {
			if status.Name != name {
				continue
			}
			record := podstatus.Container{State: status.State, Last: status.LastTerminationState, RestartCount: status.RestartCount, ID: status.ContainerID, ImageID: status.ImageID}
			switch {
			case status.State.Running != nil:
				record.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					ExitCode: exitUnknown, Reason: reasonStatusUnknown, Message: "The container's process ended with the node that ran it",
					StartedAt: status.State.Running.StartedAt, FinishedAt: now, ContainerID: status.ContainerID,
				}}
			case status.State.Terminated == nil:
				record.State = corev1.ContainerState{}
			}
			return record, record.State.Terminated != nil || record.Last.Terminated != nil
		}
	}
	return podstatus.Container{}, false
}

// status computes the status for the API, which now has previous. p.mu is held.
func (p *Pod) status(previous corev1.PodStatus) corev1.PodStatus {
	records := make(map[string]podstatus.Container, len(p.containers))
	for _, c := range p.containers {
		records[c.name] = c.record
	}
	in := podstatus.Input{
		Pod: p.pod, Previous: previous, Containers: records, HostIP: p.config.HostIP, StartTime: p.startTime,
		Sandbox: p.sandbox, SandboxMessage: p.message, Terminated: p.terminated,
		FailedReason: p.failed.reason, FailedMessage: p.failed.message, Now: metav1.NewTime(p.config.Clock.Now()).Rfc3339Copy(),
	}
	if p.ip.IsValid() {
		in.PodIP = p.ip.String()
	}
	return podstatus.Make(in)
}

// removeFiles removes what the Pod left on the host.
func (p *Pod) removeFiles() {
	if err := os.RemoveAll(p.dir); err != nil {
		p.log.Error(err, "Cannot remove the files of a Pod")
	}
}
