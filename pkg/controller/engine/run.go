package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/metacontroller-solo/solo/pkg/logging"
	"github.com/metacontroller-solo/solo/pkg/object"
)

const (
	// behindDelay is when a pass that found the caches behind is repeated if no
	// event does that sooner.
	behindDelay = 500 * time.Millisecond
	// resyncJitter is the part of a resync period by which it varies, so that
	// parents that started together do not stay together.
	resyncJitter = 0.1
)

// syncTimeout is how long a full cache is waited for before a controller counts
// as one that cannot start.
const syncTimeout = 10 * time.Second

// run is one running controller.
type run struct {
	definition Definition
	syncer     Syncer
	caches     Caches
	queue      priorityqueue.PriorityQueue[object.Key]
	backoff    *backoff
	busy       *backoff
	lanes      *lanes
	cancel     context.CancelFunc
	// ready is closed once queue is set.
	ready chan struct{}
	done  chan struct{}
}

// prepared is a controller that only has to be started.
type prepared struct {
	controller *Controller
	caches     Caches
	syncer     Syncer
	opened     []Cache
}

// prepare opens the caches of a controller, waits until they are full and makes
// its syncer: all that can fail.
func prepare(ctx context.Context, c *Controller, open func(object.Kind) Cache, lookup Lookup) (*prepared, error) {
	p := &prepared{
		controller: c,
		caches:     Caches{Parents: map[schema.GroupKind]Cache{}, Children: map[schema.GroupKind]Cache{}},
	}
	var kinds []object.Kind
	for _, parent := range c.Definition.Parents {
		cache := open(parent.Kind)
		p.opened, kinds = append(p.opened, cache), append(kinds, parent.Kind)
		p.caches.Parents[parent.GroupKind()] = cache
	}
	for _, child := range c.Definition.Children {
		cache := open(child.Kind)
		p.opened, kinds = append(p.opened, cache), append(kinds, child.Kind)
		p.caches.Children[child.GroupKind()] = cache
	}
	if revisions := c.Definition.Revisions; revisions != nil {
		p.caches.Revisions = open(revisions.Kind)
		p.opened, kinds = append(p.opened, p.caches.Revisions), append(kinds, revisions.Kind)
	}
	if c.Definition.Hooks.Customize != nil {
		p.caches.Related = NewRelated(open, lookup, clock.RealClock{})
	}
	syncContext, cancel := context.WithTimeout(ctx, syncTimeout)
	defer cancel()
	for i, cache := range p.opened {
		if err := cache.WaitForSync(syncContext); err != nil {
			p.release()
			return nil, fmt.Errorf("cannot list and watch %q of %q: %w", kinds[i].Resource, kinds[i].APIVersion(), err)
		}
	}
	var err error
	if p.syncer, err = c.Start(p.caches); err != nil {
		p.release()
		return nil, err
	}
	return p, nil
}

// release gives back the caches.
func (p *prepared) release() {
	p.caches.Related.Close()
	for _, cache := range p.opened {
		cache.Release()
	}
}

// start runs a controller until stop is called or ctx ends.
func (p *prepared) start(ctx context.Context, workers int, log logr.Logger) *run {
	definition := p.controller.Definition
	log = withFailures(log).WithValues(logging.KeyController, definition.QueueName())
	r := &run{
		definition: definition,
		syncer:     p.syncer,
		caches:     p.caches,
		backoff:    newBackoff(clock.RealClock{}, backoffBase),
		busy:       newBackoff(clock.RealClock{}, busyBase),
		ready:      make(chan struct{}),
		done:       make(chan struct{}),
	}
	ctx, r.cancel = context.WithCancel(ctx)
	r.lanes = &lanes{
		clock:  clock.RealClock{},
		begin:  func() (context.Context, context.CancelFunc) { return context.WithCancel(ctx) },
		sync:   isolated(r.syncer.Sync),
		ready:  func() int { return r.queue.Len() },
		wake:   func(key object.Key) { r.queue.AddWithOpts(priorityqueue.AddOpts{}, key) },
		places: workers,
		aside:  map[object.Key]*stalled{},
	}
	context.AfterFunc(ctx, r.lanes.shut)
	skipNames, lazy := true, logging.Lazy(log)
	// It has a name and a reconciler: there is nothing that it could refuse.
	typed, err := controller.NewTypedUnmanaged(definition.QueueName(), controller.TypedOptions[object.Key]{
		SkipNameValidation:      &skipNames,
		MaxConcurrentReconciles: workers,
		Reconciler:              reconcile.TypedFunc[object.Key](r.reconcile),
		RateLimiter:             r.backoff,
		Logger:                  log,
		LogConstructor: func(key *object.Key) logr.Logger {
			if key == nil {
				return log.V(1)
			}
			return lazy.WithValues(logging.KeyParent, key.String())
		},
	})
	if err == nil {
		err = typed.Watch(ctrlsource.TypedFunc[object.Key](func(_ context.Context, queue workqueue.TypedRateLimitingInterface[object.Key]) error {
			r.queue = queue.(priorityqueue.PriorityQueue[object.Key])
			close(r.ready)
			return r.listen(p.controller, log)
		}))
	}
	go func() {
		defer close(r.done)
		var following sync.WaitGroup
		if related := r.caches.Related; related != nil {
			following.Go(func() {
				// A sync sets the first rule, and it is the queue that it came from.
				related.run(ctx, func(keys ...object.Key) { r.add(false, keys...) })
			})
		}
		if err == nil {
			// It returns after the last worker has.
			err = typed.Start(ctx)
		}
		r.cancel()
		r.lanes.wait()
		following.Wait()
		if err != nil {
			log.Error(err, "Cannot run controller")
		}
		p.release()
		p.syncer.Close()
	}()
	return r
}

// stop ends the controller; when it returns, the last sync has.
func (r *run) stop() {
	r.cancel()
	<-r.done
}

// listen brings the events of all kinds to the queue.
func (r *run) listen(c *Controller, log logr.Logger) error {
	events := &router{definition: &r.definition, caches: r.caches, selector: c.Selector, known: newSelectors(), add: r.add}
	for i := range r.definition.Parents {
		parent := &r.definition.Parents[i]
		err := r.caches.Parents[parent.GroupKind()].Handle(guarded(log, func(before, after *object.Object, initial bool) {
			events.parent(parent, before, after, initial)
		}))
		if err != nil {
			return err
		}
	}
	if r.caches.Revisions != nil {
		err := r.caches.Revisions.Handle(guarded(log, func(before, after *object.Object, initial bool) {
			if !initial {
				events.owned(before, after)
			}
		}))
		if err != nil {
			return err
		}
	}
	for _, child := range r.definition.Children {
		err := r.caches.Children[child.GroupKind()].Handle(guarded(log, events.child))
		if err != nil {
			return err
		}
	}
	return nil
}

// add puts parents into the queue. What nobody waits for comes after what
// somebody just changed.
func (r *run) add(later bool, keys ...object.Key) {
	options := priorityqueue.AddOpts{}
	if later {
		low := handler.LowPriority
		options.Priority = &low
	}
	r.lanes.note(later, keys...)
	r.queue.AddWithOpts(options, keys...)
}

// resync has every parent looked at again. Before the queue is there, all of
// them are still to come.
func (r *run) resync() {
	select {
	case <-r.ready:
	default:
		return
	}
	for i := range r.definition.Parents {
		parent := &r.definition.Parents[i]
		for _, o := range r.caches.Parents[parent.GroupKind()].List() {
			if managed(parent, r.definition.Finalizer, o) {
				r.add(true, o.Key())
			}
		}
	}
}

// guarded keeps a panic about one object from ending the program: a handler runs
// in a goroutine of the informer.
func guarded(log logr.Logger, handler func(before, after *object.Object, initial bool)) func(before, after *object.Object, initial bool) {
	return func(before, after *object.Object, initial bool) {
		defer func() {
			if recovered := recover(); recovered != nil {
				about := after
				if about == nil {
					about = before
				}
				log.Error(fmt.Errorf("panic: %v", recovered), "Recovered from a panic at an event", logging.KeyName, about.Key().String())
			}
		}()
		handler(before, after, initial)
	}
}

// reconcile syncs one parent and says when it is its turn again: the one place
// where that is decided.
func (r *run) reconcile(ctx context.Context, key object.Key) (reconcile.Result, error) {
	outcome, ended := r.lanes.run(key)
	if !ended || ctx.Err() != nil {
		return reconcile.Result{}, nil
	}
	if outcome.Verdict != Wait {
		r.busy.reset(key)
	}
	switch outcome.Verdict {
	case Done:
		r.backoff.reset(key)
		after := outcome.After
		if period := r.definition.ResyncPeriod; period > 0 {
			period -= time.Duration(rand.Float64() * resyncJitter * float64(period))
			if after == 0 || period < after {
				after = period
			}
		}
		if after > 0 {
			low := handler.LowPriority
			r.queue.AddWithOpts(priorityqueue.AddOpts{After: after, Priority: &low}, key)
		}
		return reconcile.Result{}, nil
	case Gone:
		// A resync would come back for ever, for every parent that there ever was.
		r.backoff.reset(key)
		return reconcile.Result{}, nil
	case Again:
		return reconcile.Result{Requeue: true}, nil //nolint:staticcheck // The back-off without an error is what is wanted.
	case Behind:
		return reconcile.Result{RequeueAfter: behindDelay}, nil
	case Wait:
		r.backoff.reset(key)
		after := outcome.After
		if least := r.busy.When(key); after == 0 {
			after = least
		}
		return reconcile.Result{RequeueAfter: after}, nil
	case Failed:
		return reconcile.Result{}, outcome.Err
	default:
		return reconcile.Result{}, fmt.Errorf("sync of %q ended without a verdict", key)
	}
}
