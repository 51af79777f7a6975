package claim

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
	"github.com/metacontroller-solo/solo/pkg/logging"
)

// Resync is how often a policy is looked at without an event.
const Resync = time.Minute

// Reconciler keeps the slot true: it confirms reservations, gives up those
// that never became an object, releases the slot of a holder that is gone,
// adopts one that was there before the guard, and writes that part of the status
// that is about the slot: holder, slots, epoch, the active Pods, the active
// exceptions, a writer that is gone and the conditions Ready, Excepted and FenceReady.
// The rest is package scan's.
// One runs at a time, in the guard that leads; a second one would do no harm,
// for all that it does is a compare-and-swap.
type Reconciler struct {
	// Client must read from the API server, not from a cache.
	Client client.Client
	// Clock must be monotonic, as the real one is: a step of the system's time
	// must not end a reservation early.
	Clock  clock.PassiveClock
	Limits Limits
	// Fence reads what FenceReady is written by; nil leaves that condition out.
	Fence func(context.Context, *guardv1alpha1.SingletonPolicy) (FenceFacts, error)
	// Policy is the name of the policy that is judged by; empty for any.
	Policy string

	mutex sync.Mutex // guards seen and fences
	// seen is, by the uid of a policy, since when this process sees its holder as
	// it is. It is not read from the status: another machine wrote that, by
	// another clock.
	seen map[types.UID]sighting
	// fences is since when the writer and the Lease are as they are.
	fences map[types.UID]fenceSight
}

// sighting is a holder in one phase.
type sighting struct {
	phase guardv1alpha1.HolderPhase
	uid   types.UID
	epoch int64
	since time.Time
}

// Reconcile looks at one policy.
func (r *Reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	policy := &guardv1alpha1.SingletonPolicy{}
	if err := r.Client.Get(ctx, request.NamespacedName, policy); err != nil {
		if apierrors.IsNotFound(err) {
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("cannot get SingletonPolicy %q: %w", request.Name, err)
	}
	if r.Policy != "" && policy.Name != r.Policy {
		return reconcile.Result{}, r.disown(ctx, policy)
	}
	before := policy.Status.DeepCopy()
	after, err := r.pass(ctx, policy)
	if err != nil {
		return reconcile.Result{}, err
	}
	if !equality.Semantic.DeepEqual(before, &policy.Status) {
		switch err := update(ctx, r.Client, policy); {
		case errors.Is(err, ErrConflict):
			// Somebody claimed meanwhile: what was decided is void.
			return reconcile.Result{RequeueAfter: time.Millisecond}, nil
		case err != nil:
			return reconcile.Result{}, err
		}
		report(ctx, policy.Name, before.Holder, policy.Status.Holder)
	}
	return reconcile.Result{RequeueAfter: after}, nil
}

// pass works out the status and when to look again.
func (r *Reconciler) pass(ctx context.Context, policy *guardv1alpha1.SingletonPolicy) (time.Duration, error) {
	now := r.Clock.Now()
	after := Resync
	policy.Status.ActiveExceptions = decide.ActiveExceptions(policy.Spec.Exceptions, now)
	for _, exception := range policy.Status.ActiveExceptions {
		after = min(after, exception.Expires.Sub(now)+time.Millisecond)
	}

	signature, err := identify.Compile(policy.Spec.Match)
	if err != nil {
		setConditions(policy, err, now)
		return after, nil
	}
	switch {
	case policy.Spec.Mode == guardv1alpha1.ModeSharded:
		wait, err := r.shards(ctx, policy, signature)
		if err != nil {
			return 0, err
		}
		after = min(after, wait)
	case policy.Status.Holder == nil:
		found, err := candidates(ctx, r.Client, signature)
		if err != nil {
			return 0, err
		}
		adopt(policy, found, metav1.NewTime(now))
	default:
		seen, err := r.observe(ctx, policy, signature)
		if err != nil {
			return 0, err
		}
		if wait := advance(&policy.Status, seen, r.Limits, metav1.NewTime(now)); wait > 0 {
			after = min(after, wait)
		}
	}
	if err := r.confirm(ctx, policy, signature); err != nil {
		return 0, err
	}
	if err := refreshActive(ctx, r.Client, policy, signature); err != nil {
		return 0, err
	}
	setConditions(policy, nil, now)
	wait, err := r.fence(ctx, policy, now)
	if err != nil {
		return 0, err
	}
	return min(after, wait), nil
}

// observe reads the holder live, the StatefulSet before its Pods: once the
// StatefulSet is absent no new Pod of it is begun.
func (r *Reconciler) observe(ctx context.Context, policy *guardv1alpha1.SingletonPolicy, signature *identify.Signature) (observation, error) {
	holder := policy.Status.Holder
	seen := observation{elapsed: r.elapsed(policy)}
	id := decide.Identity{Namespace: holder.Namespace, Name: holder.Name}
	live, err := getStatefulSet(ctx, r.Client, id)
	if err != nil {
		return observation{}, err
	}
	if live != nil {
		instance := len(signature.Containers(&live.Spec.Template.Spec)) > 0
		bound := live.UID == holder.UID && holder.Phase == guardv1alpha1.HolderBound
		if instance || bound {
			seen.found, seen.uid = true, live.UID
			return seen, nil
		}
	}
	pods, err := instancePods(ctx, r.Client, signature, holder.Namespace)
	if err != nil {
		return observation{}, err
	}
	for i := range pods {
		if belongs(&pods[i], holder) {
			seen.instances++
		}
	}
	return seen, nil
}

// elapsed is for how long this process has seen the holder as it is.
func (r *Reconciler) elapsed(policy *guardv1alpha1.SingletonPolicy) time.Duration {
	r.mutex.Lock()
	defer r.mutex.Unlock()
	holder := policy.Status.Holder
	now := sighting{phase: holder.Phase, uid: holder.UID, epoch: holder.Epoch, since: r.Clock.Now()}
	if r.seen == nil {
		r.seen = map[types.UID]sighting{}
	}
	if last, ok := r.seen[policy.UID]; ok && last.phase == now.phase && last.uid == now.uid && last.epoch == now.epoch {
		return r.Clock.Since(last.since)
	}
	r.seen[policy.UID] = now
	return 0
}

// belongs says whether a Pod is one of the holder's.
func belongs(pod *corev1.Pod, holder *guardv1alpha1.Holder) bool {
	return inspect.Belongs(inspect.OwnerOf(pod), pod.Name, holder)
}

// adopt gives a free slot to a StatefulSet that is there already: the one that
// the policy names, else the only one. If there are several, a person decides.
func adopt(policy *guardv1alpha1.SingletonPolicy, found []appsv1.StatefulSet, now metav1.Time) {
	excepted := decide.PolicyOf(policy, now.Time)
	var eligible []*appsv1.StatefulSet
	for i := range found {
		id := identityOf(&found[i])
		if designated := excepted.Designated; designated != nil && *designated != id {
			continue
		}
		if !excepted.Excepts(id) {
			eligible = append(eligible, &found[i])
		}
	}
	if len(eligible) == 1 {
		setHolder(&policy.Status, identityOf(eligible[0]), eligible[0].UID, guardv1alpha1.HolderBound, now)
	}
}

// report logs a change of the holder.
func report(ctx context.Context, policy string, before, after *guardv1alpha1.Holder) {
	logger := log.FromContext(ctx).WithValues(logging.KeyPolicy, policy)
	switch {
	case after == nil && before == nil:
	case after == nil:
		logger.Info("Released the slot", logging.KeyHolder, before.Display, logging.KeyEpoch, before.Epoch)
	case before == nil || before.Phase != after.Phase || before.UID != after.UID:
		logger.Info("Holder changed", logging.KeyHolder, after.Display, logging.KeyUID, after.UID,
			logging.KeyPhase, after.Phase, logging.KeyEpoch, after.Epoch)
	}
}
