package engine

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/metacontroller-solo/solo/pkg/controller/rbac"
	"github.com/metacontroller-solo/solo/pkg/logging"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Reasons of events on the object that declares a controller.
const (
	ReasonStarting    = "Starting"
	ReasonStarted     = "Started"
	ReasonStopping    = "Stopping"
	ReasonStopped     = "Stopped"
	ReasonCreateError = "CreateError"
	// ReasonSyncError is also the reason of the event on a parent whose pass
	// failed.
	ReasonSyncError = "SyncError"
)

// How soon a controller that cannot start is tried again; a change of what the
// API server serves does not wait for it.
const (
	hostBackoffBase = 500 * time.Millisecond
	hostBackoffMax  = 15 * time.Second
)

// hostWorkers is how many controllers start at once: one whose caches do not
// fill keeps no other waiting.
const hostWorkers = 4

// Build makes a Controller of the object that declares it. The error says what
// is wrong with the object, or with what it refers to.
type Build func(ctx context.Context, declared *object.Object) (*Controller, error)

// InvalidError is an error of Build that only another object mends: to try again
// is of no use.
type InvalidError struct{ Err error }

func (e *InvalidError) Error() string { return e.Err.Error() }

func (e *InvalidError) Unwrap() error { return e.Err }

// AbsentError is an error of Build that says that the API server no longer serves
// the parents: there is nothing left for a controller to do.
type AbsentError struct{ Err error }

func (e *AbsentError) Error() string { return e.Err.Error() }

func (e *AbsentError) Unwrap() error { return e.Err }

// Recorder records events on objects.
type Recorder interface {
	Normal(about *object.Object, reason, message string)
	Warning(about *object.Object, reason, message string)
}

// HostConfig is what a Host works with.
type HostConfig struct {
	// Name of the host's own queue in metrics.
	Name string
	// Kind of the objects that declare controllers.
	Kind object.Kind
	// Declared is the copy of these objects.
	Declared Cache
	// Open opens the copy of any kind.
	Open func(object.Kind) Cache
	// Lookup finds the kinds of related objects.
	Lookup Lookup
	// Build makes the controllers.
	Build Build
	// Claims says where a controller that does not run may have left its
	// finalizer, as far as the API server serves those kinds.
	Claims func(ctx context.Context, declared *object.Object) (Claims, error)
	// API is the way to the parents of a controller that is gone.
	API API
	// Workers of each controller.
	Workers int
	// Retire, if it is not nil, is called with the name of a queue after the
	// controller that had it has ended, and none replaces it.
	Retire func(queue string)
	Events Recorder
	Log    logr.Logger
}

// Host runs the controllers that objects of one kind declare.
type Host struct {
	HostConfig

	mu sync.Mutex
	// running by name. Guarded by mu; one name is only ever worked on by one
	// goroutine.
	running map[string]*running
	// queue of names; nil until Run. Guarded by mu.
	queue workqueue.TypedRateLimitingInterface[reconcile.Request]
	// gone has the last state of objects that were deleted, until their
	// controllers are stopped. Guarded by mu.
	gone map[string]*object.Object
	// leftovers are the finalizers that are still to be taken off, by the name of
	// the controller. Guarded by mu.
	leftovers map[string]leftover
	// contenders are all controllers that could be made, running or not. Guarded
	// by mu.
	contenders map[string]contender
	// elders are the controllers to which each one gives way. Guarded by mu.
	elders map[string][]Rival
}

type running struct {
	*run
	declared *object.Object
}

// NewHost makes a Host that runs nothing yet.
func NewHost(config HostConfig) *Host {
	return &Host{
		HostConfig: config,
		running:    map[string]*running{},
		gone:       map[string]*object.Object{},
		leftovers:  map[string]leftover{},
		contenders: map[string]contender{},
		elders:     map[string][]Rival{},
	}
}

// Run runs controllers until ctx ends. When it returns, all syncs have ended.
func (h *Host) Run(ctx context.Context) error {
	if err := h.Declared.WaitForSync(ctx); err != nil {
		return fmt.Errorf("cannot list and watch the objects of %q: %w", h.Name, err)
	}
	h.survey(ctx)
	skipNames := true
	typed, err := controller.NewUnmanaged(h.Name, controller.Options{
		SkipNameValidation:      &skipNames,
		MaxConcurrentReconciles: hostWorkers,
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](hostBackoffBase, hostBackoffMax),
		Logger:                  h.Log,
		LogConstructor: func(request *reconcile.Request) logr.Logger {
			if request == nil {
				return h.Log.V(1)
			}
			return h.Log.WithValues(logging.KeyController, request.Name)
		},
		Reconciler: reconcile.Func(func(reconcileContext context.Context, request reconcile.Request) (reconcile.Result, error) {
			return h.reconcile(reconcileContext, ctx, request.Name)
		}),
	})
	if err != nil {
		return fmt.Errorf("cannot make queue %q: %w", h.Name, err)
	}
	err = typed.Watch(ctrlsource.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		h.mu.Lock()
		h.queue = queue
		h.mu.Unlock()
		err := h.Declared.Handle(func(before, after *object.Object, _ bool) {
			switch {
			case after != nil:
				queue.Add(request(after.Name()))
			case before != nil:
				h.mu.Lock()
				h.gone[before.Name()] = before
				h.mu.Unlock()
				queue.Add(request(before.Name()))
			}
		})
		if err == nil {
			h.recount(queue)
		}
		return err
	}))
	if err != nil {
		return fmt.Errorf("cannot watch the objects of %q: %w", h.Name, err)
	}
	err = typed.Start(ctx)
	h.stopAll()
	return err
}

func request(name string) reconcile.Request {
	out := reconcile.Request{}
	out.Name = name
	return out
}

// Recheck looks at every declared controller again, and at the kinds of related
// objects, for what the API server serves has changed.
func (h *Host) Recheck() {
	h.mu.Lock()
	queue := h.queue
	for _, current := range h.running {
		current.caches.Related.Recheck()
	}
	h.mu.Unlock()
	if queue == nil {
		return
	}
	for _, declared := range h.Declared.List() {
		queue.Add(request(declared.Name()))
	}
}

// reconcile brings one controller to what its object says, and takes off the
// finalizers that it leaves behind. The controllers live as long as base.
func (h *Host) reconcile(ctx, base context.Context, name string) (reconcile.Result, error) {
	result, err := h.bring(ctx, base, name)
	if left := h.settle(ctx, name); left != nil {
		// It is tried again, whatever the other error says.
		return reconcile.Result{}, left
	}
	return result, err
}

// bring brings one controller to what its object says. A controller that runs
// goes on until the one that replaces it is ready to start.
func (h *Host) bring(ctx, base context.Context, name string) (reconcile.Result, error) {
	declared := h.Declared.Get("", name)
	current := h.get(name)
	if declared == nil {
		return reconcile.Result{}, h.remove(ctx, name, current)
	}
	h.takeGone(name)
	built, err := h.build(ctx, declared)
	if err != nil {
		if current != nil {
			h.follow(ctx, base, current, declared, err)
		} else {
			h.contend(name, nil)
		}
		return h.refuse(ctx, declared, err)
	}
	if current != nil && current.declared.UID() == declared.UID() && reflect.DeepEqual(current.definition, built.Definition) {
		if current.declared.ResourceVersion() != declared.ResourceVersion() {
			// Nothing but what hooks are shown of it.
			current.syncer.Redeclare(declared)
			h.set(name, &running{run: current.run, declared: declared})
		}
		return missing(built), nil
	}
	if err := h.replace(ctx, base, current, built, declared); err != nil {
		return h.refuse(ctx, declared, err)
	}
	return missing(built), nil
}

// replace starts a controller in the place of the one that runs, if one does.
func (h *Host) replace(ctx, base context.Context, current *running, built *Controller, declared *object.Object) error {
	name := declared.Name()
	starting := func() {
		h.Events.Normal(declared, ReasonStarting, fmt.Sprintf("Starting controller %q.", name))
	}
	if current == nil {
		starting()
	}
	next, err := prepare(ctx, built, h.Open, h.Lookup)
	if err != nil {
		return err
	}
	contender := contenderOf(declared, built.Definition)
	h.contend(name, &contender)
	next.syncer.GiveWay(h.eldersOf(name))
	if current != nil {
		h.stop(name, current)
		next.syncer.Follow(current.syncer)
		if claims := current.definition.Claims().without(built.Definition.Claims().Parents); len(claims.Parents) > 0 {
			h.leave(name, leftover{Claims: claims, declared: declared})
		}
		starting()
	}
	h.set(name, &running{run: next.start(base, h.Workers, h.Log), declared: declared})
	h.Events.Normal(declared, ReasonStarted, fmt.Sprintf("Started controller %q.", name))
	h.Log.Info("Started controller", logging.KeyController, built.Definition.QueueName())
	if len(built.Definition.Missing) > 0 {
		h.Events.Warning(declared, ReasonCreateError, fmt.Sprintf(
			"Controller %q runs without these kinds, which the API server does not serve: %s. It picks them up as soon as they are there.",
			name, strings.Join(built.Definition.Missing, ", ")))
	}
	for _, elder := range h.eldersOf(name) {
		h.Events.Warning(declared, ReasonSyncError, fmt.Sprintf(
			"%s %q is older and makes %s for parents of the same kind too. It alone acts for parents that both select; give one of them another labelSelector.",
			built.Definition.Kind, elder.Name, strings.Join(elder.Kinds, ", ")))
	}
	return nil
}

// follow keeps a controller running as it was declared before the change that
// cannot work, and lets it follow what the API server serves.
func (h *Host) follow(ctx, base context.Context, current *running, declared *object.Object, err error) {
	var built *Controller
	if current.declared.ResourceVersion() != declared.ResourceVersion() {
		built, err = h.build(ctx, current.declared)
	}
	if absent := (*AbsentError)(nil); errors.As(err, &absent) {
		// Its caches would go on to look for the parents, more and more rarely.
		h.stop(declared.Name(), current)
		h.retire(current.definition.QueueName())
		h.contend(declared.Name(), nil)
		return
	}
	if built == nil || reflect.DeepEqual(current.definition, built.Definition) {
		return
	}
	if err := h.replace(ctx, base, current, built, current.declared); err != nil && ctx.Err() == nil {
		h.Log.Info("Cannot follow what the API server serves, trying again", logging.KeyController, current.definition.QueueName(), "error", err.Error())
	}
}

// remove ends the controller of an object that is gone. Where it may have left
// its finalizer is noted for settle.
func (h *Host) remove(ctx context.Context, name string, current *running) error {
	last := h.takeGone(name)
	var claims Claims
	switch {
	case current != nil:
		if last == nil {
			last = current.declared
		}
		claims = current.definition.Claims()
		h.stop(name, current)
		h.retire(current.definition.QueueName())
	case last == nil:
		h.contend(name, nil)
		return nil
	default:
		var err error
		if claims, err = h.Claims(ctx, last); err != nil {
			if ctx.Err() == nil {
				h.Events.Warning(last, ReasonSyncError, fmt.Sprintf("Cannot tell which parents have the finalizer of %q: %v", name, err))
			}
			return nil
		}
	}
	h.contend(name, nil)
	if len(claims.Parents) > 0 && claims.Finalizer != "" {
		h.leave(name, leftover{Claims: claims, declared: last})
	}
	return nil
}

// takeGone returns the last state of an object that was deleted, once.
func (h *Host) takeGone(name string) *object.Object {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := h.gone[name]
	delete(h.gone, name)
	return last
}

// missing asks for another look as long as a kind is not there.
func missing(built *Controller) reconcile.Result {
	if len(built.Definition.Missing) > 0 {
		return reconcile.Result{RequeueAfter: hostBackoffMax}
	}
	return reconcile.Result{}
}

// build guards against a panic: it is about one object, and hurts only that.
func (h *Host) build(ctx context.Context, declared *object.Object) (built *Controller, err error) {
	defer func() {
		if recovered := recover(); recovered != nil {
			built, err = nil, fmt.Errorf("cannot make the controller, this is a fault of the program: %v", recovered)
		}
	}()
	return h.Build(ctx, declared)
}

func (h *Host) refuse(ctx context.Context, declared *object.Object, err error) (reconcile.Result, error) {
	if ctx.Err() != nil || errors.Is(err, context.Canceled) {
		return reconcile.Result{}, nil
	}
	message := err.Error()
	if h.get(declared.Name()) != nil {
		message += " (the controller goes on as it was declared before)"
	}
	h.Events.Warning(declared, ReasonCreateError, rbac.Advised(message))
	if invalid := (*InvalidError)(nil); errors.As(err, &invalid) {
		return reconcile.Result{}, reconcile.TerminalError(err)
	}
	return reconcile.Result{}, err
}

func (h *Host) stop(name string, current *running) {
	h.Events.Normal(current.declared, ReasonStopping, fmt.Sprintf("Stopping controller %q.", name))
	current.stop()
	h.set(name, nil)
	h.Events.Normal(current.declared, ReasonStopped, fmt.Sprintf("Stopped controller %q.", name))
	h.Log.Info("Stopped controller", logging.KeyController, current.definition.QueueName())
}

func (h *Host) retire(queue string) {
	if h.Retire != nil {
		h.Retire(queue)
	}
}

func (h *Host) stopAll() {
	h.mu.Lock()
	left := make(map[string]*running, len(h.running))
	for name, current := range h.running {
		left[name] = current
	}
	h.mu.Unlock()
	var all sync.WaitGroup
	for name, current := range left {
		all.Go(func() { h.stop(name, current) })
	}
	all.Wait()
}

// Queues are the names of the queues of the controllers that run.
func (h *Host) Queues() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	queues := make([]string, 0, len(h.running))
	for _, current := range h.running {
		queues = append(queues, current.definition.QueueName())
	}
	return queues
}

func (h *Host) get(name string) *running {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.running[name]
}

func (h *Host) set(name string, current *running) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if current == nil {
		delete(h.running, name)
		return
	}
	h.running[name] = current
}
