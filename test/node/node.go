package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"sync"
	"time"

	"github.com/go-logr/logr"
	vklog "github.com/virtual-kubelet/virtual-kubelet/log"
	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"github.com/metacontroller-solo/solo/test/node/link"
	"github.com/metacontroller-solo/solo/test/node/process"
	"github.com/metacontroller-solo/solo/test/node/sandbox"
)

const (
	// clientLimit bounds each request of the node but its watch.
	clientLimit = 10 * time.Second
	// workers is how many Pods VK looks at at once; its calls into this node return at once.
	workers = 4
	// component is the source of events.
	component = "kubelet"
)

// Node is a running node.
type Node struct {
	options  Options
	link     *link.Link
	keeper   *process.Keeper
	kubelet  *kubelet
	provider *provider
	events   record.EventBroadcaster
	cancel   context.CancelFunc
	loops    sync.WaitGroup
	stopOnce sync.Once
}

// Start registers a node and returns when it takes Pods. Pods that the API has assigned to a node of this name are started again. ctx bounds the
// start only; the node runs until Stop. When the error is not nil nothing is left running.
func Start(ctx context.Context, options Options) (_ *Node, err error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	ctx, cancelStart := context.WithTimeout(ctx, options.StartLimit)
	defer cancelStart()
	if err := sandbox.Usable(options.Address); err != nil {
		return nil, fmt.Errorf("cannot start node %q: %w", options.Name, err)
	}
	addresses, err := sandbox.NewAddresses(options.PodRange)
	if err != nil {
		return nil, fmt.Errorf("cannot start node %q: %w", options.Name, err)
	}
	// Client-go and VK find their logger in the context.
	life, cancel := context.WithCancel(logr.NewContext(vklog.WithLogger(context.WithoutCancel(ctx), vkLogger{options.Log}), options.Log))
	n := &Node{options: options, cancel: cancel}
	defer func() {
		if err != nil {
			n.Stop()
		}
	}()
	if n.keeper, err = process.NewKeeper(); err != nil {
		return nil, fmt.Errorf("cannot start node %q: %w", options.Name, err)
	}
	config, serverName, err := n.connect()
	if err != nil {
		return nil, err
	}
	watchConfig := rest.CopyConfig(config)
	config.Timeout = clientLimit
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("cannot create client of node %q: %w", options.Name, err)
	}
	watcher, err := kubernetes.NewForConfig(watchConfig)
	if err != nil {
		return nil, fmt.Errorf("cannot create client of node %q: %w", options.Name, err)
	}
	// A wrong URL, certificate or right is told here, by the one who can mend it.
	if _, err := client.CoreV1().Nodes().Get(ctx, options.Name, metav1.GetOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("cannot start node %q: API server %s does not answer as it should: %w", options.Name, options.Config.Host, err)
	}

	pods := newPodInformer(watcher, options.Name)
	shared := &sandbox.Config{
		Client: client, Keeper: n.keeper, Clock: clock.RealClock{}, Log: options.Log, HostIP: options.Address.String(),
		APIServer: config.Host, ServerName: serverName, Addresses: addresses, Images: options.Images,
		Environ: options.Environ, Dir: filepath.Join(options.Dir, "pods"), BackOff: options.BackOff, Refresh: options.Refresh, LogLimit: options.LogLimit,
	}
	n.provider = &provider{
		config: shared, lister: pods.Lister(), pods: map[types.UID]*sandbox.Pod{},
		// VK's calls end long before the Pods that they start, so those live in the node's own context.
		begin: func(pod *corev1.Pod, after ...<-chan struct{}) *sandbox.Pod {
			return sandbox.New(life, shared, pod, after...)
		},
	}
	if err := n.provider.config.Complete(); err != nil {
		return nil, fmt.Errorf("cannot start node %q: %w", options.Name, err)
	}
	if n.kubelet, err = startKubelet(&options, n.provider, client); err != nil {
		return nil, err
	}
	object := newNode(&options, n.kubelet.port, addresses.Len())
	n.provider.config.Allocatable = object.Status.Allocatable
	n.events = record.NewBroadcaster(record.WithContext(life), record.WithSleepDuration(time.Second))
	n.events.StartRecordingToSink(&corev1client.EventSinkImpl{Interface: client.CoreV1().Events(metav1.NamespaceAll)})
	n.provider.config.Events = n.events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: component, Host: options.Name})

	if err := n.runNode(ctx, life, client, object); err != nil {
		return nil, err
	}
	if err := n.runPods(ctx, life, client, pods); err != nil {
		return nil, err
	}
	options.Log.Info("Node is ready", "node", options.Name, "kubelet", netip.AddrPortFrom(options.Address, uint16(n.kubelet.port)), "pods", options.PodRange)
	return n, nil
}

// connect opens the link to the API server and returns the client configuration that goes through it, with the name that the server's
// certificate has.
func (n *Node) connect() (*rest.Config, string, error) {
	server, err := url.Parse(n.options.Config.Host)
	if err != nil || server.Scheme != "https" || server.Port() == "" {
		return nil, "", fmt.Errorf("cannot start node %q: API server %q is not a URL like https://127.0.0.1:6443", n.options.Name, n.options.Config.Host)
	}
	// The link listens on the server's own address, so that the server's certificate is good for it too.
	if n.link, err = link.Listen(net.JoinHostPort(server.Hostname(), "0"), server.Host); err != nil {
		return nil, "", fmt.Errorf("cannot start node %q: %w", n.options.Name, err)
	}
	config := rest.CopyConfig(n.options.Config)
	name := config.ServerName
	if name == "" {
		name = server.Hostname()
	}
	server.Host = n.link.Addr()
	config.Host, config.ServerName = server.String(), name
	config.QPS = -1
	config.UserAgent = component + "/" + n.options.Name
	return config, name, nil
}

// runNode registers the node and keeps it registered.
func (n *Node) runNode(ctx, life context.Context, client kubernetes.Interface, object *corev1.Node) error {
	controller, err := vknode.NewNodeController(vknode.NaiveNodeProvider{}, object, client.CoreV1().Nodes(),
		vknode.WithNodePingInterval(n.options.Heartbeat), vknode.WithNodeStatusUpdateErrorHandler(registered(client, object.DeepCopy())))
	if err != nil {
		return fmt.Errorf("cannot start node %q: %w", n.options.Name, err)
	}
	n.loops.Go(func() { _ = controller.Run(life) }) // its error is told by Err
	select {
	case <-controller.Ready():
	case <-controller.Done():
		return fmt.Errorf("cannot register node %q: %w", n.options.Name, controller.Err())
	case <-ctx.Done():
		return fmt.Errorf("cannot register node %q: %w", n.options.Name, ctx.Err())
	}
	beat := heartbeat{client: client, node: n.options.Name, period: n.options.Heartbeat, log: n.options.Log}
	n.loops.Go(func() { beat.run(life) })
	return nil
}

// runPods starts to watch the node's Pods and to run them.
func (n *Node) runPods(ctx, life context.Context, client kubernetes.Interface, pods podInformer) error {
	if _, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		UpdateFunc: func(_, after any) {
			if pod, ok := after.(*corev1.Pod); ok {
				n.provider.observe(pod)
			}
		},
	}); err != nil {
		return fmt.Errorf("cannot watch pods of node %q: %w", n.options.Name, err)
	}
	n.loops.Go(func() { pods.RunWithContext(life) })
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced) {
		return fmt.Errorf("cannot list pods of node %q in %s: %w", n.options.Name, n.options.StartLimit, ctx.Err())
	}
	if err := n.provider.removeStale(); err != nil {
		return err
	}
	// VK wants informers of all Secrets, ConfigMaps and Services, to resolve what a Pod's environment refers to. The Node authorizer refuses
	// that; sandbox resolves it object by object. These are never started and, with SkipDownwardAPIResolution, never asked.
	unused := informers.NewSharedInformerFactory(client, 0).Core().V1()
	controller, err := vknode.NewPodController(vknode.PodControllerConfig{
		PodClient: podsClient{client.CoreV1(), n.provider}, PodInformer: pods, Provider: n.provider,
		// VK's own events would tell the user of this library, not of the Pod.
		EventRecorder:   &record.FakeRecorder{},
		SecretInformer:  unused.Secrets(),
		ServiceInformer: unused.Services(), ConfigMapInformer: unused.ConfigMaps(),
		SyncPodsFromKubernetesRateLimiter:   promptly(),
		DeletePodsFromKubernetesRateLimiter: promptly(),
		SkipDownwardAPIResolution:           true,
	})
	if err != nil {
		return fmt.Errorf("cannot start node %q: %w", n.options.Name, err)
	}
	n.loops.Go(func() { _ = controller.Run(life, workers) }) // its error is told by Err
	select {
	case <-controller.Ready():
		return nil
	case <-controller.Done():
		return fmt.Errorf("cannot start node %q: %w", n.options.Name, errors.Join(controller.Err(), life.Err()))
	case <-ctx.Done():
		return fmt.Errorf("cannot start node %q: %w", n.options.Name, ctx.Err())
	}
}

// promptly is a rate limit for queues whose work is done at once and never fails.
func promptly() workqueue.TypedRateLimiter[any] {
	return workqueue.NewTypedItemFastSlowRateLimiter[any](time.Millisecond, time.Second, 1<<30)
}

// Name is the Node's name.
func (n *Node) Name() string { return n.options.Name }

// CutOff severs the node from the API server: its own connections, those of its Pods and, for a partition has two directions, those of the API
// server to the kubelet API. The Pods' processes live on.
func (n *Node) CutOff(mode CutOffMode) {
	n.link.Cut(mode)
	n.kubelet.link.Cut(mode)
}

// Heal ends CutOff. The node then catches up: Pods that were deleted meanwhile are ended, none is started twice.
func (n *Node) Heal() {
	n.link.Heal()
	n.kubelet.link.Heal()
}

// Stop ends all of the node's processes, gracefully within Options.StopLimit, and the node; none of its goroutines is left. Its objects stay in the API, as
// those of a machine that was switched off do.
func (n *Node) Stop() {
	n.stopOnce.Do(func() {
		if n.provider != nil {
			n.provider.stop(n.options.StopLimit)
		}
		n.cancel()
		if n.keeper != nil {
			n.keeper.Close()
		}
		if n.kubelet != nil {
			n.kubelet.stop()
		}
		if n.events != nil {
			n.events.Shutdown()
		}
		// Ends what still waits for the API server.
		if n.link != nil {
			n.link.Close()
		}
		n.loops.Wait()
	})
}
