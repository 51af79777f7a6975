package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/virtual-kubelet/virtual-kubelet/errdefs"
	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	corev1listers "k8s.io/client-go/listers/core/v1"

	"github.com/metacontroller-solo/solo/test/node/logfile"
	"github.com/metacontroller-solo/solo/test/node/sandbox"
)

// provider is what VK's PodController drives: it hands Pods to sandbox, which knows everything else. Its methods return at once and never fail for
// a reason that a later try would mend, because VK gives up after a number of tries.
type provider struct {
	config *sandbox.Config
	lister corev1listers.PodLister
	// begin starts a Pod after others.
	begin func(pod *corev1.Pod, after ...<-chan struct{}) *sandbox.Pod
	waits sync.WaitGroup

	// mu guards pods and stopped.
	mu      sync.Mutex
	pods    map[types.UID]*sandbox.Pod
	stopped bool
}

var (
	_ vknode.PodLifecycleHandler = &provider{}
	_ vknode.PodNotifier         = &provider{}
)

// CreatePod implements vknode.PodLifecycleHandler.
func (p *provider) CreatePod(_ context.Context, pod *corev1.Pod) error {
	p.ensure(pod)
	return nil
}

// UpdatePod implements vknode.PodLifecycleHandler.
func (p *provider) UpdatePod(_ context.Context, pod *corev1.Pod) error {
	p.ensure(pod)
	return nil
}

// ensure starts the Pod, or tells it its newer object. A namesake of another uid is ended first; the API has it no more.
func (p *provider) ensure(pod *corev1.Pod) *sandbox.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return nil
	}
	if known := p.pods[pod.UID]; known != nil {
		known.Update(pod)
		return known
	}
	var after []<-chan struct{}
	for _, other := range p.pods {
		if other.Key() == (types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}) {
			other.Terminate(nil, true)
			after = append(after, other.Gone())
		}
	}
	fresh := p.begin(pod, after...)
	p.pods[pod.UID] = fresh
	p.waits.Go(func() {
		<-fresh.Removed()
		<-fresh.Gone()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.pods, pod.UID)
	})
	return fresh
}

// DeletePod implements vknode.PodLifecycleHandler. VK calls it for a Pod that is being deleted and for one that the API has no more.
func (p *provider) DeletePod(_ context.Context, pod *corev1.Pod) error {
	current, err := p.lister.Pods(pod.Namespace).Get(pod.Name)
	if err != nil || current.UID != pod.UID {
		if known := p.find(pod.UID); known != nil {
			known.Terminate(nil, true)
		}
		return nil
	}
	p.terminate(current)
	return nil
}

// terminate ends a Pod that is being deleted. One that was not started, because the node started after the deletion did, is only removed.
func (p *provider) terminate(pod *corev1.Pod) {
	if known := p.ensure(pod); known != nil {
		known.Terminate(pod, false)
	}
}

// observe tells a Pod what the API has now.
func (p *provider) observe(pod *corev1.Pod) {
	if known := p.find(pod.UID); known != nil {
		known.Update(pod)
	}
}

func (p *provider) find(uid types.UID) *sandbox.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pods[uid]
}

// named returns the Pod of that name which the API has, or else one that the API has no more.
func (p *provider) named(namespace, name string) *sandbox.Pod {
	current, err := p.lister.Pods(namespace).Get(name)
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		return p.pods[current.UID]
	}
	for _, pod := range p.pods {
		if pod.Key() == (types.NamespacedName{Namespace: namespace, Name: name}) {
			return pod
		}
	}
	return nil
}

// GetPod implements vknode.PodLifecycleHandler.
func (p *provider) GetPod(_ context.Context, namespace, name string) (*corev1.Pod, error) {
	pod := p.named(namespace, name)
	if pod == nil {
		return nil, errdefs.NotFoundf("pod %q is not known to this node", namespace+"/"+name)
	}
	return pod.Object(), nil
}

// GetPodStatus implements vknode.PodLifecycleHandler.
func (p *provider) GetPodStatus(ctx context.Context, namespace, name string) (*corev1.PodStatus, error) {
	pod, err := p.GetPod(ctx, namespace, name)
	if err != nil {
		return nil, err
	}
	return &pod.Status, nil
}

// GetPods implements vknode.PodLifecycleHandler.
func (p *provider) GetPods(context.Context) ([]*corev1.Pod, error) {
	var objects []*corev1.Pod
	for _, pod := range p.all() {
		objects = append(objects, pod.Object())
	}
	return objects, nil
}

func (p *provider) all() []*sandbox.Pod {
	p.mu.Lock()
	defer p.mu.Unlock()
	pods := make([]*sandbox.Pod, 0, len(p.pods))
	for _, pod := range p.pods {
		pods = append(pods, pod)
	}
	return pods
}

// NotifyPods implements vknode.PodNotifier. The status goes to the API by sandbox, not by VK, for the order of status and removal matters.
func (p *provider) NotifyPods(context.Context, func(*corev1.Pod)) {}

// stop ends all Pods' processes and returns when they are gone. No Pod is started any more.
func (p *provider) stop(limit time.Duration) {
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	var stops sync.WaitGroup
	for _, pod := range p.all() {
		stops.Go(func() { pod.Shutdown(limit) })
	}
	stops.Wait()
	p.waits.Wait()
}

// removeStale removes the files of Pods that went away while the node was not there.
func (p *provider) removeStale() error {
	entries, err := os.ReadDir(p.config.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read the folder of pods: %w", err)
	}
	pods, err := p.lister.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("cannot list pods: %w", err)
	}
	known := map[string]bool{}
	for _, pod := range pods {
		known[string(pod.UID)] = true
	}
	for _, entry := range entries {
		if !known[entry.Name()] {
			if err := os.RemoveAll(filepath.Join(p.config.Dir, entry.Name())); err != nil {
				return fmt.Errorf("cannot remove the files of a pod that is gone: %w", err)
			}
		}
	}
	return nil
}

// logs serves `kubectl logs`.
func (p *provider) logs(ctx context.Context, namespace, name, container string, o api.ContainerLogOpts) (io.ReadCloser, error) {
	options := logfile.Options{Timestamps: o.Timestamps, Follow: o.Follow, Limit: int64(o.LimitBytes), Since: o.SinceTime, Tail: tailOf(ctx)}
	if o.SinceSeconds > 0 {
		options.Since = p.config.Clock.Now().Add(-time.Duration(o.SinceSeconds) * time.Second)
	}
	pod := p.named(namespace, name)
	object, err := p.lister.Pods(namespace).Get(name)
	if pod == nil && err != nil {
		return nil, errdefs.NotFoundf("pod %q is not known to this node", namespace+"/"+name)
	}
	reader, writer := io.Pipe()
	started := make(chan error, 1)
	go func() {
		first := &firstWrite{to: writer, started: started}
		var err error
		if pod != nil {
			err = pod.CopyLog(ctx, container, o.Previous, first, options)
		} else {
			err = sandbox.CopyOldLog(ctx, p.config.Dir, object, container, o.Previous, first, options)
		}
		first.begin(err)
		_ = writer.CloseWithError(err)
	}()
	// An error must be known before the first byte goes out, for the status code; a follower of an empty log must not wait for one.
	select {
	case err := <-started:
		if errors.Is(err, sandbox.ErrNoSuchContainer) || errors.Is(err, sandbox.ErrNoLog) {
			return nil, errdefs.AsInvalidInput(err)
		}
		if err != nil {
			return nil, err
		}
	case <-time.After(logStart):
	}
	return reader, nil
}

// logStart is how long the first line of a log is waited for.
const logStart = 200 * time.Millisecond

// firstWrite tells when the first write begins.
type firstWrite struct {
	to      io.Writer
	once    sync.Once
	started chan<- error
}

func (w *firstWrite) begin(err error) { w.once.Do(func() { w.started <- err }) }

func (w *firstWrite) Write(b []byte) (int, error) {
	w.begin(nil)
	return w.to.Write(b)
}

// podsClient is what VK's PodController writes with. It lets no object go while processes live.
type podsClient struct {
	corev1client.PodsGetter
	provider *provider
}

func (c podsClient) Pods(namespace string) corev1client.PodInterface {
	return pods{c.PodsGetter.Pods(namespace), c.provider, namespace}
}

type pods struct {
	corev1client.PodInterface
	provider  *provider
	namespace string
}

// Delete is called by VK when a Pod seems not to run, or when its grace period is over. The Pod's own goroutine removes the object when the
// processes are gone, so this only makes sure that they are ending.
func (c pods) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	pod, err := c.provider.lister.Pods(c.namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot find pod %q: %w", c.namespace+"/"+name, err)
	}
	if options.Preconditions != nil && options.Preconditions.UID != nil && *options.Preconditions.UID != pod.UID {
		return nil
	}
	c.provider.terminate(pod)
	return nil
}

// UpdateStatus is called by VK for errors that the provider does not return.
func (c pods) UpdateStatus(_ context.Context, pod *corev1.Pod, _ metav1.UpdateOptions) (*corev1.Pod, error) {
	return pod, nil
}
