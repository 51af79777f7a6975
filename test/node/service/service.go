// Package service makes Services reachable where Pods have loopback addresses: a proxy in user space in the place of kube-proxy.
//
//	Services, Pods (informers) ──> Table ──> listeners on clusterIP:port ──> a ready Pod, the next one if it does not answer
//
// EndpointSlices refuse loopback addresses, so the proxy looks at the Pods themselves. It needs list and watch on services and pods.
package service

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/metacontroller-solo/solo/test/node/link"
)

const (
	// dialLimit is how long one Pod may take to answer; it is on this machine.
	dialLimit = 2 * time.Second
	// listenRetry is the pause after an address could not be listened on.
	listenRetry = time.Second
)

// Options say what to serve. Config and Range must be set.
type Options struct {
	// Config reaches the API server.
	Config *rest.Config
	// Range are the cluster IPs to serve, a loopback range: the API server's --service-cluster-ip-range.
	Range netip.Prefix
	// Log takes messages; the zero value drops them.
	Log logr.Logger
}

// Proxy is a running proxy.
type Proxy struct {
	options  Options
	services corev1listers.ServiceLister
	pods     corev1listers.PodLister
	dirty    chan struct{} // capacity 1
	cancel   context.CancelFunc
	loops    sync.WaitGroup
	stopOnce sync.Once

	// fronts and retired belong to the goroutine of run, and to Stop after its end. The retired ones listen no more, but have connections.
	fronts  map[netip.AddrPort]*front
	retired []*front
}

// Start starts a proxy and returns when it serves all Services there are. ctx bounds the start only.
func Start(ctx context.Context, options Options) (*Proxy, error) {
	if !options.Range.Addr().IsLoopback() {
		return nil, fmt.Errorf("cannot serve Services: cluster IPs %s are not loopback addresses", options.Range)
	}
	if options.Log.GetSink() == nil {
		options.Log = logr.Discard()
	}
	client, err := kubernetes.NewForConfig(options.Config)
	if err != nil {
		return nil, fmt.Errorf("cannot create client for Services: %w", err)
	}
	life, cancel := context.WithCancel(context.WithoutCancel(ctx))
	factory := informers.NewSharedInformerFactory(client, 0)
	p := &Proxy{
		options: options, services: factory.Core().V1().Services().Lister(), pods: factory.Core().V1().Pods().Lister(),
		dirty: make(chan struct{}, 1), cancel: cancel, fronts: map[netip.AddrPort]*front{},
	}
	handler := cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { p.markDirty() }, UpdateFunc: func(any, any) { p.markDirty() }, DeleteFunc: func(any) { p.markDirty() },
	}
	for _, informer := range []cache.SharedIndexInformer{factory.Core().V1().Services().Informer(), factory.Core().V1().Pods().Informer()} {
		if _, err := informer.AddEventHandler(handler); err != nil {
			cancel()
			return nil, fmt.Errorf("cannot watch Services and Pods: %w", err)
		}
		p.loops.Go(func() { informer.RunWithContext(life) })
	}
	first := make(chan struct{})
	p.loops.Go(func() {
		if cache.WaitForCacheSync(life.Done(), factory.Core().V1().Services().Informer().HasSynced, factory.Core().V1().Pods().Informer().HasSynced) {
			p.run(life, first)
		}
	})
	select {
	case <-first:
		return p, nil
	case <-ctx.Done():
		p.Stop()
		return nil, fmt.Errorf("cannot list Services and Pods: %w", ctx.Err())
	}
}

func (p *Proxy) markDirty() {
	select {
	case p.dirty <- struct{}{}:
	default:
	}
}

// run brings the listeners in step with the API whenever that changed. It closes first when that is done for the first time.
func (p *Proxy) run(ctx context.Context, first chan<- struct{}) {
	for started := false; ; started = true {
		failed := p.reconcile()
		if !started {
			close(first)
		}
		var again <-chan time.Time
		if failed {
			again = time.After(listenRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-p.dirty:
		case <-again:
		}
	}
}

// reconcile is true when an address could not be listened on.
func (p *Proxy) reconcile() (failed bool) {
	services, err1 := p.services.List(labels.Everything())
	pods, err2 := p.pods.List(labels.Everything())
	if err := errors.Join(err1, err2); err != nil {
		p.options.Log.Error(err, "Cannot list Services and Pods")
		return true
	}
	table := Table(services, pods, p.options.Range)
	for address, front := range p.fronts {
		if len(table[address]) == 0 {
			// Nothing listens where no Pod is ready: the client sees a refused connection.
			front.close()
			delete(p.fronts, address)
			p.retired = append(p.retired, front)
		}
	}
	p.retired = slices.DeleteFunc(p.retired, (*front).over)
	for _, address := range slices.SortedFunc(maps.Keys(table), netip.AddrPort.Compare) {
		backends := table[address]
		if len(backends) == 0 {
			continue
		}
		if front := p.fronts[address]; front != nil {
			front.set(backends)
			continue
		}
		front, err := listen(address, backends)
		if err != nil {
			p.options.Log.Error(err, "Cannot serve a Service", "address", address.String())
			failed = true
			continue
		}
		p.fronts[address] = front
	}
	return failed
}

// Stop ends all listeners and connections.
func (p *Proxy) Stop() {
	p.stopOnce.Do(func() {
		p.cancel()
		p.loops.Wait()
		for _, front := range slices.AppendSeq(p.retired, maps.Values(p.fronts)) {
			front.close()
			front.reset()
			front.running.Wait()
		}
	})
}

// front is one address of a Service.
type front struct {
	listener net.Listener
	running  sync.WaitGroup

	// mu guards backends, next, conns and closed.
	mu       sync.Mutex
	backends []netip.AddrPort
	next     int
	conns    map[net.Conn]struct{}
	closed   bool
}

func listen(address netip.AddrPort, backends []netip.AddrPort) (*front, error) {
	listener, err := net.Listen("tcp", address.String())
	if err != nil {
		return nil, err
	}
	f := &front{listener: listener, backends: backends, conns: map[net.Conn]struct{}{}}
	f.running.Go(f.accept)
	return f, nil
}

func (f *front) set(backends []netip.AddrPort) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.backends = backends
}

// close stops listening. Connections live on, as they do when kube-proxy's rules change.
func (f *front) close() { _ = f.listener.Close() }

// over reports whether a front that listens no more has no connection either. One that was accepted at the last moment is then refused.
func (f *front) over() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = len(f.conns) == 0
	return f.closed
}

func (f *front) reset() {
	f.mu.Lock()
	f.closed = true
	conns := slices.Collect(maps.Keys(f.conns))
	f.mu.Unlock()
	for _, conn := range conns {
		link.Abort(conn)
	}
}

func (f *front) accept() {
	for {
		conn, err := f.listener.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			time.Sleep(10 * time.Millisecond) // out of file descriptors
			continue
		}
		f.running.Go(func() { f.serve(conn) })
	}
}

func (f *front) serve(client net.Conn) {
	defer link.Abort(client)
	if !f.hold(client) {
		return
	}
	defer f.release(client)
	for _, backend := range f.turn() {
		server, err := net.DialTimeout("tcp", backend.String(), dialLimit)
		if err != nil {
			continue
		}
		defer link.Abort(server)
		if f.hold(server) {
			link.Join(client, server)
			f.release(server)
		}
		return
	}
}

// turn returns the backends, each time with another one first.
func (f *front) turn() []netip.AddrPort {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.backends) == 0 {
		return nil
	}
	f.next = (f.next + 1) % len(f.backends)
	return slices.Concat(f.backends[f.next:], f.backends[:f.next])
}

func (f *front) hold(conn net.Conn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.conns[conn] = struct{}{}
	}
	return !f.closed
}

func (f *front) release(conn net.Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.conns, conn)
}
