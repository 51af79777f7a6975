package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/cluster"
	resources "github.com/metacontroller-solo/solo/pkg/controller/discovery"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/watch"
	"github.com/metacontroller-solo/solo/pkg/logging"
	"github.com/metacontroller-solo/solo/pkg/object"
	"github.com/metacontroller-solo/solo/pkg/singleton"
	"github.com/metacontroller-solo/solo/pkg/singleton/mark"
	"github.com/metacontroller-solo/solo/pkg/version"
)

// The API server may be out of reach for a moment at the start: the proxy of a
// service mesh beside the program is not up yet.
const (
	reachAttempts = 6
	reachPause    = 5 * time.Second
	reachTimeout  = 10 * time.Second
)

// Names of the hosts' queues in metrics.
const (
	compositeHost = "composite-metacontroller"
	decoratorHost = "decorator-metacontroller"
)

// definitionsWait is how long the CRDs are waited for at the start.
const definitionsWait = 5 * time.Second

// eventFlush is how long the last events may take at the end.
const eventFlush = 3 * time.Second

// clients are the ways to the API server.
type clients struct {
	objects   rest.Interface
	discovery *discovery.DiscoveryClient
	leases    *coordinationclient.CoordinationV1Client
	dynamic   dynamic.Interface
	events    *typedcorev1.CoreV1Client
}

// Run runs the program until ctx ends. It returns nil after a clean stop: all
// syncs have ended, and the lease is given back.
func Run(ctx context.Context, config *Config, log logr.Logger) error {
	series := newCurrentSeries(ctrlmetrics.Registry)
	stop, err := serve(endpoints(config, series))
	if err != nil {
		return err
	}
	defer stop()
	log.Info("Starting", logging.KeyVersion, version.String(), logging.KeyAddress, config.Rest.Host)

	ways, err := connect(config.Rest)
	if err != nil {
		return err
	}
	if err := reach(ctx, ways.discovery.RESTClient(), log); err != nil {
		return err
	}
	table := resources.New(ways.discovery, clock.RealClock{})
	kinds, err := ownKinds(ctx, table)
	if err != nil || ctx.Err() != nil {
		return stopped(ctx, err)
	}

	leases := leasesOf(config, ways, log)
	work := func(ctx context.Context) error {
		return control(ctx, controlParts{
			config: config, ways: ways, table: table, kinds: kinds, series: series, fence: fenceOf(leases), log: log,
		})
	}
	// The first lease is outermost: it is taken first and given back last.
	for i := len(leases) - 1; i >= 0; i-- {
		lease, inner := leases[i], work
		work = func(ctx context.Context) error { return lease.Run(ctx, inner) }
	}
	err = work(ctx)
	if err == nil {
		log.Info("Stopped")
	}
	return err
}

// stopped is nil if the error came from the stop that was asked for.
func stopped(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return nil
	}
	return err
}

func connect(config *rest.Config) (clients, error) {
	var (
		ways clients
		errs [5]error
	)
	ways.objects, errs[0] = cluster.NewClient(config)
	ways.discovery, errs[1] = discovery.NewDiscoveryClientForConfig(config)
	ways.leases, errs[2] = coordinationclient.NewForConfig(config)
	ways.events, errs[3] = typedcorev1.NewForConfig(config)
	ways.dynamic, errs[4] = dynamic.NewForConfig(config)
	if err := errors.Join(errs[:]...); err != nil {
		return ways, oneLine(fmt.Errorf("cannot make a client for %q: %w", config.Host, err))
	}
	return ways, nil
}

// reach waits until the API server answers.
func reach(ctx context.Context, client rest.Interface, log logr.Logger) error {
	for attempt := 1; ; attempt++ {
		try, cancel := context.WithTimeout(ctx, reachTimeout)
		err := client.Get().AbsPath("/api").Do(try).Error()
		cancel()
		if err == nil || ctx.Err() != nil {
			return nil
		}
		if attempt == reachAttempts {
			return fmt.Errorf("cannot reach the API server after %d attempts: %w", attempt, err)
		}
		log.Info("Cannot reach the API server, trying again", logging.KeyCount, attempt, "error", err.Error())
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(reachPause):
		}
	}
}

// ownKinds finds the kinds that declare controllers.
func ownKinds(ctx context.Context, table *resources.Resources) (map[string]object.Kind, error) {
	kinds := map[string]object.Kind{}
	for _, plural := range []string{v1alpha1.CompositeControllerResource, v1alpha1.DecoratorControllerResource} {
		found, err := table.Lookup(ctx, v1alpha1.GroupVersion.String(), plural)
		var absent *resources.NotFoundError
		if errors.As(err, &absent) {
			return nil, fmt.Errorf("the CustomResourceDefinition %s.%s is not installed, or does not serve version %s; install the CRDs first: kubectl apply -k config/crd",
				plural, v1alpha1.GroupVersion.Group, v1alpha1.GroupVersion.Version)
		}
		if err != nil {
			return nil, err
		}
		kinds[plural] = found.Kind
	}
	return kinds, nil
}

// leasesOf are the leases to hold, in the order in which they are taken. The one
// of leader election comes first: what waits for it does not keep the singleton
// lease from anybody.
func leasesOf(config *Config, ways clients, log logr.Logger) []*singleton.Lease {
	host, err := os.Hostname()
	if err != nil || host == "" {
		host = "localhost"
	}
	process := uuid.NewString()
	base := singleton.Config{
		Client:   ways.leases,
		Identity: singleton.IdentityFrom(os.Getenv, host, process),
		Process:  process,
		Clock:    clock.RealClock{},
		Log:      log,
	}
	one := base
	one.Namespace, one.Name = config.SingletonNamespace, config.SingletonName
	// The fence knows one Lease: a process that holds another, or runs in no Pod,
	// is not the writer.
	if one.Namespace == singleton.DefaultNamespace && one.Name == singleton.DefaultName && base.Identity.Namespace != "" {
		one.Mark = mark.Policy{Client: ways.dynamic, Name: guardv1alpha1.DefaultPolicyName, Namespace: base.Identity.Namespace}
	}
	elected := base
	elected.Namespace, elected.Name = config.LeaderElectionNamespace, config.LeaderElectionID
	same := elected.Namespace == one.Namespace && elected.Name == one.Name
	if config.LeaderElection && !same {
		return []*singleton.Lease{singleton.New(elected), singleton.New(one)}
	}
	return []*singleton.Lease{singleton.New(one)}
}

// fenceOf allows writes as long as all leases are held.
func fenceOf(leases []*singleton.Lease) cluster.Fence {
	return func() (time.Time, error) {
		var earliest time.Time
		for _, lease := range leases {
			until, err := lease.Until()
			if err != nil {
				return time.Time{}, err
			}
			if earliest.IsZero() || until.Before(earliest) {
				earliest = until
			}
		}
		return earliest, nil
	}
}

// Kinds whose changes change what the API server serves.
var (
	kindCRD = object.Kind{
		GroupVersionKind: schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"},
		Resource:         "customresourcedefinitions",
	}
	kindAPIService = object.Kind{
		GroupVersionKind: schema.GroupVersionKind{Group: "apiregistration.k8s.io", Version: "v1", Kind: "APIService"},
		Resource:         "apiservices",
	}
)

// controlParts are what control works with.
type controlParts struct {
	config *Config
	ways   clients
	table  *resources.Resources
	kinds  map[string]object.Kind
	series *currentSeries
	fence  cluster.Fence
	log    logr.Logger
}

// control runs the controllers until ctx ends. When it returns nothing writes
// any more.
func control(ctx context.Context, parts controlParts) error {
	config, ways, table, fence, log := parts.config, parts.ways, parts.table, parts.fence, parts.log
	events := cluster.NewRecorder(logr.NewContext(ctx, log), ways.events, cluster.EventLimits{QPS: config.EventsQPS, Burst: config.EventsBurst}, fence)
	defer func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), eventFlush)
		defer cancel()
		events.Shutdown(flush)
	}()

	caches := watch.NewSet(ways.objects, log)
	poke := make(chan struct{}, 1)
	definitions := caches.Acquire(kindCRD, watch.Options{MetadataOnly: true})
	defer definitions.Release()
	services := caches.Acquire(kindAPIService, watch.Options{MetadataOnly: true})
	defer services.Release()
	for _, cache := range []*watch.Cache{definitions, services} {
		err := cache.Handle(func(_, _ *object.Object, initial bool) {
			if initial {
				return
			}
			select {
			case poke <- struct{}{}:
			default:
			}
		})
		if err != nil {
			return fmt.Errorf("cannot watch %q: %w", cache.Kind().Resource, err)
		}
	}

	// Without the CRDs nobody knows which parents are custom resources, so they
	// are worth a moment; without the right to see them it must do.
	known, cancelWait := context.WithTimeout(ctx, definitionsWait)
	if err := definitions.WaitForSync(known); err != nil && ctx.Err() == nil {
		log.Info("Cannot watch CustomResourceDefinitions; changes of them are noticed with the next --"+flagDiscoveryInterval, "error", err.Error())
	}
	cancelWait()

	hosts := hostsOf(hostParts{
		config: config, caches: caches, table: table, definitions: definitions, kinds: parts.kinds,
		writer: cluster.NewWriter(ways.objects, fence).Applying(config.fieldManager()), events: events,
		retire: parts.series.retire, log: log,
	})
	parts.series.follow(hosts)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	running.Go(func() {
		table.Follow(ctx, clock.RealClock{}, config.DiscoveryInterval, poke, func() {
			for _, host := range hosts {
				host.Recheck()
			}
		}, func(err error) { log.Error(err, "Cannot refresh what the API server serves") })
	})
	failures := make(chan error, len(hosts))
	for _, host := range hosts {
		running.Go(func() {
			if err := runHost(ctx, host); err != nil && ctx.Err() == nil {
				failures <- err
				cancel()
			}
		})
	}
	running.Wait()
	select {
	case err := <-failures:
		return err
	default:
		return nil
	}
}

func runHost(ctx context.Context, host *engine.Host) error {
	defer host.Declared.Release()
	return host.Run(ctx)
}
