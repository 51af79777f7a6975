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

// Back-off of a parent that fails: a hook that comes back after an hour is
// called within a minute.
const (
	backoffBase = 5 * time.Millisecond
	backoffMax  = time.Minute
	// busyBase is the least time for which a hook that answers 429 is left alone.
	busyBase = time.Second
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
	busy       workqueue.TypedRateLimiter[object.Key]
	cancel     context.CancelFunc
	done       chan struct{}
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
	log = log.WithValues(logging.KeyController, definition.QueueName())
	r := &run{
		definition: definition,
		syncer:     p.syncer,
		caches:     p.caches,
		busy:       workqueue.NewTypedItemExponentialFailureRateLimiter[object.Key](busyBase, backoffMax),
		done:       make(chan struct{}),
	}
	skipNames := true
	// It has a name and a reconciler: there is nothing that it could refuse.
	typed, err := controller.NewTypedUnmanaged(definition.QueueName(), controller.TypedOptions[object.Key]{
		SkipNameValidation:      &skipNames,
		MaxConcurrentReconciles: workers,
		Reconciler:              reconcile.TypedFunc[object.Key](r.reconcile),
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[object.Key](backoffBase, backoffMax),
		Logger:                  log,
		LogConstructor: func(key *object.Key) logr.Logger {
			if key == nil {
				return log.V(1)
			}
			return log.WithValues(logging.KeyParent, key.String())
		},
	})
	if err == nil {
		err = typed.Watch(ctrlsource.TypedFunc[object.Key](func(_ context.Context, queue workqueue.TypedRateLimitingInterface[object.Key]) error {
			r.queue = queue.(priorityqueue.PriorityQueue[object.Key])
			return r.listen(p.controller)
		}))
	}
	ctx, r.cancel = context.WithCancel(ctx)
	go func() {
		defer close(r.done)
		var following sync.WaitGroup
		if related := r.caches.Related; related != nil {
			following.Go(func() {
				// A sync sets the first rule, and it is the queue that it came from.
				related.run(ctx, func(keys ...object.Key) { r.queue.AddWithOpts(priorityqueue.AddOpts{}, keys...) })
			})
		}
		if err == nil {
			// It returns after the last worker has.
			err = typed.Start(ctx)
		}
		r.cancel()
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
func (r *run) listen(c *Controller) error {
	definition := &r.definition
	low := handler.LowPriority
	add := func(initial bool, keys ...object.Key) {
		options := priorityqueue.AddOpts{}
		if initial {
			options.Priority = &low
		}
		r.queue.AddWithOpts(options, keys...)
	}
	known := newSelectors()
	for i := range definition.Parents {
		parent := &definition.Parents[i]
		err := r.caches.Parents[parent.GroupKind()].Handle(func(before, after *object.Object, initial bool) {
			state := after
			if state == nil {
				state = before
			}
			if state == nil {
				return
			}
			if c.Selector != nil {
				switch {
				case after == nil || !parent.Selects(after):
					known.set(state.Key(), nil)
				case before == nil || before.UID() != after.UID() || !onlyStatusChanged(before, after):
					known.set(state.Key(), c.Selector(after))
				}
			}
			if concernsParent(parent, definition.Finalizer, before, after) {
				add(initial, state.Key())
			}
		})
		if err != nil {
			return err
		}
	}
	for _, child := range definition.Children {
		err := r.caches.Children[child.GroupKind()].Handle(func(before, after *object.Object, initial bool) {
			if initial {
				// Every parent is synced at the start anyway.
				return
			}
			owners, orphaned := ownersOf(definition, before, after)
			for _, uid := range owners {
				for _, cache := range r.caches.Parents {
					if parent := cache.ByUID(uid); parent != nil {
						add(false, parent.Key())
					}
				}
			}
			if orphaned {
				add(false, known.matching(after)...)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// reconcile syncs one parent and says when it is its turn again: the one place
// where that is decided.
func (r *run) reconcile(ctx context.Context, key object.Key) (reconcile.Result, error) {
	outcome := r.syncer.Sync(ctx, key)
	if ctx.Err() != nil {
		return reconcile.Result{}, nil
	}
	if outcome.Verdict != Wait {
		r.busy.Forget(key)
	}
	switch outcome.Verdict {
	case Done:
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
	case Again:
		return reconcile.Result{Requeue: true}, nil //nolint:staticcheck // The back-off without an error is what is wanted.
	case Behind:
		return reconcile.Result{RequeueAfter: behindDelay}, nil
	case Wait:
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
