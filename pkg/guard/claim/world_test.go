package claim_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/claim"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/webhook"
	"github.com/metacontroller-solo/solo/test/linear"
)

// world is a cluster in which everything that can happen at once happens one
// step at a time, in an order that the test chooses.
//
//	requests ─> guards (the real handler) ──┐
//	leaders (the real reconciler) ──────────┼─> etcd: the policy, StatefulSets, Pods
//	Pod creates ─> L1 by a server's view ───┘
//
// Each of them is a task: a coroutine that stops before each of its calls. So
// between any two calls of one the others can do anything; a task can die
// there, its call can fail, and its answer can be lost.
type world struct {
	rules   rules
	now     time.Duration // since the beginning, by a clock that nobody can set
	skew    time.Duration // by how much the system's clocks are off
	given   map[int64]time.Duration
	step    int64
	policy  *guardv1alpha1.SingletonPolicy
	stored  []stored
	sets    map[decide.Identity]*appsv1.StatefulSet
	pods    map[decide.Identity]*corev1.Pod
	servers []int // for each API server the version, in stored, that it judges Pods by
	guards  []*webhook.Handler
	leaders []*leader
	tasks   []*task
	current *task
	history []*linear.Operation
	uids    int
	made    []made // every StatefulSet that was ever stored
	changed time.Duration
	broken  []error
}

// rules are how the world and the guard in it work.
type rules struct {
	limits claim.Limits
	// lag bounds how long an API server judges by an old policy, and request
	// how long it keeps a request.
	lag, request time.Duration
	// maxAge is how old the policy may be that guards decide by.
	maxAge time.Duration
	// blind ignores the resourceVersion of an update: no compare-and-swap.
	blind bool
}

// stored is one version of the policy's status.
type stored struct {
	at     time.Duration
	status guardv1alpha1.SingletonPolicyStatus
}

type made struct {
	id  decide.Identity
	uid types.UID
}

type leader struct {
	reconciler *claim.Reconciler
	pass       *task
	after      time.Duration
}

const namespace = "prod"

func identity(name string) decide.Identity { return decide.Identity{Namespace: namespace, Name: name} }

func newWorld(rules rules) *world {
	w := &world{
		rules: rules, servers: make([]int, 2), given: map[int64]time.Duration{},
		sets: map[decide.Identity]*appsv1.StatefulSet{}, pods: map[decide.Identity]*corev1.Pod{},
	}
	w.policy = &guardv1alpha1.SingletonPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: guardv1alpha1.DefaultPolicyName, UID: "policy", Generation: 1, ResourceVersion: "1"},
		Spec:       guardv1alpha1.SingletonPolicySpec{Match: guardv1alpha1.DefaultMatch()},
	}
	w.stored = []stored{{}}
	for range 3 {
		w.guards = append(w.guards, w.guard())
	}
	for range 2 {
		w.leaders = append(w.leaders, w.leader())
	}
	return w
}

func (w *world) guard() *webhook.Handler {
	return webhook.New(webhook.Deps{
		Policy: w.policy.Name,
		Slot:   &claim.Slot{Client: etcd{world: w}, Clock: steppedClock{w}, Policy: w.policy.Name},
		Record: func(o webhook.Outcome) string { w.current.outcome = o; return o.ID },
		Clock:  steppedClock{w},
		MaxAge: w.rules.maxAge, // No event ever tells that the policy has changed.
	})
}

func (w *world) leader() *leader {
	return &leader{reconciler: &claim.Reconciler{
		Client: etcd{world: w}, Clock: steppedClock{w}, Limits: w.rules.limits,
	}}
}

// end lets go of every task.
func (w *world) end() {
	for len(w.tasks) > 0 {
		w.kill(w.tasks[0])
	}
}

// fault is what becomes of the call that a task waits in.
type fault int

const (
	works fault = iota
	fails
	answerLost
)

// task is one thing that goes on.
type task struct {
	name string
	// creates is the Pod's workload while an API server has let the Pod in and
	// not stored it.
	creates *decide.Identity
	// started is when the API server took the request.
	started time.Duration
	// abandoned says that the API server has given the request up.
	abandoned bool
	outcome   webhook.Outcome

	next  func() (struct{}, bool)
	stop  func()
	yield func(struct{}) bool
	dead  bool
	fault fault
}

var (
	errDied = errors.New("the process has ended")
	errCall = errors.New("connection refused")
	errLost = errors.New("connection reset")
)

// begin starts a task and runs it up to its first call.
func (w *world) begin(name string, body func(*task)) *task {
	t := &task{name: name, started: w.now}
	t.next, t.stop = iter.Pull(func(yield func(struct{}) bool) {
		t.yield = yield
		body(t)
	})
	w.tasks = append(w.tasks, t)
	w.run(t, works)
	return t
}

// run lets a task do the call it waits in, and go on to the next.
func (w *world) run(t *task, f fault) {
	w.step++
	w.current, t.fault = t, f
	if _, more := t.next(); !more {
		w.forget(t)
	}
	w.current = nil
	w.step++
}

// finish runs a task to its end.
func (w *world) finish(t *task) {
	for slices.Contains(w.tasks, t) {
		w.run(t, works)
	}
}

// kill ends a task before its next call.
func (w *world) kill(t *task) {
	w.step++
	w.current = t
	t.stop()
	w.forget(t)
	w.current = nil
	w.step++
}

func (w *world) forget(t *task) {
	w.tasks = slices.DeleteFunc(w.tasks, func(other *task) bool { return other == t })
}

// pause waits until the test lets the call happen, and says if it does not.
func (w *world) pause() error {
	t := w.current
	if t.dead || !t.yield(struct{}{}) {
		t.dead = true
		return errDied
	}
	if t.fault == fails {
		return errCall
	}
	return nil
}

// steppedClock is the system's clock of every process: what it shows can be
// set, what it measures cannot, as with Go's own time.
type steppedClock struct{ *world }

// Now implements clock.PassiveClock.
func (c steppedClock) Now() time.Time {
	// Unique, so that Since can tell two readings apart.
	shown := time.Unix(1_000_000_000, 0).Add(c.now + c.skew)
	for {
		if _, taken := c.given[shown.UnixNano()]; !taken {
			c.given[shown.UnixNano()] = c.now
			return shown
		}
		shown = shown.Add(1)
	}
}

// Since implements clock.PassiveClock.
func (c steppedClock) Since(t time.Time) time.Duration { return c.now - c.given[t.UnixNano()] }

// etcd is the client of every process: its reads are live.
type etcd struct {
	client.Client
	*world
}

func notFound(resource, name string) error {
	return apierrors.NewNotFound(schema.GroupResource{Resource: resource}, name)
}

// Get implements client.Client.
func (e etcd) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if err := e.pause(); err != nil {
		return err
	}
	id := decide.Identity(key)
	switch into := object.(type) {
	case *guardv1alpha1.SingletonPolicy:
		e.policy.DeepCopyInto(into)
	case *appsv1.StatefulSet:
		live, ok := e.sets[id]
		if !ok {
			return notFound("statefulsets", key.Name)
		}
		live.DeepCopyInto(into)
	case *corev1.Pod:
		live, ok := e.pods[id]
		if !ok {
			return notFound("pods", key.Name)
		}
		live.DeepCopyInto(into)
	default:
		return fmt.Errorf("no %T here", object)
	}
	return nil
}

// List implements client.Client.
func (e etcd) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if err := e.pause(); err != nil {
		return err
	}
	switch into := list.(type) {
	case *appsv1.StatefulSetList:
		into.Items = nil
		for _, live := range e.sets {
			into.Items = append(into.Items, *live.DeepCopy())
		}
	case *corev1.PodList:
		into.Items = nil
		for _, live := range e.pods {
			into.Items = append(into.Items, *live.DeepCopy())
		}
	default:
		return fmt.Errorf("no %T here", list)
	}
	return nil
}

// Status implements client.Client.
func (e etcd) Status() client.SubResourceWriter { return statusWriter{world: e.world} }

type statusWriter struct {
	client.SubResourceWriter
	*world
}

// Update implements client.SubResourceWriter.
func (s statusWriter) Update(_ context.Context, object client.Object, _ ...client.SubResourceUpdateOption) error {
	if err := s.pause(); err != nil {
		return err
	}
	update := object.(*guardv1alpha1.SingletonPolicy)
	if update.ResourceVersion != s.policy.ResourceVersion && !s.rules.blind {
		return apierrors.NewConflict(schema.GroupResource{Resource: "singletonpolicies"}, update.Name, errors.New("it has changed"))
	}
	s.write(update.Status.DeepCopy())
	if s.current.fault == answerLost {
		return errLost
	}
	update.ResourceVersion = s.policy.ResourceVersion
	return nil
}

// write stores a status, and holds it to what a write must never do.
func (w *world) write(after *guardv1alpha1.SingletonPolicyStatus) {
	before := &w.policy.Status
	w.judge(before, after)
	if from, to := before.Holder, after.Holder; (from == nil) != (to == nil) ||
		from != nil && (from.Phase != to.Phase || from.UID != to.UID || from.Epoch != to.Epoch) {
		w.changed = w.now
	}
	version, _ := strconv.Atoi(w.policy.ResourceVersion)
	w.policy.ResourceVersion = strconv.Itoa(version + 1)
	w.policy.Status = *after
	w.stored = append(w.stored, stored{at: w.now, status: *after.DeepCopy()})
}

func (w *world) fault(format string, args ...any) {
	w.broken = append(w.broken, fmt.Errorf(format, args...))
}

// judge is about one write: the epoch never falls, nothing is given away that
// somebody has, and nothing is released early.
func (w *world) judge(before, after *guardv1alpha1.SingletonPolicyStatus) {
	from, to := before.Holder, after.Holder
	held := w.now - w.changed
	if after.Epoch < before.Epoch || to != nil && to.Epoch != after.Epoch {
		w.fault("epoch went from %d to %d, the holder's is %v", before.Epoch, after.Epoch, to)
	}
	switch {
	case from == nil && to == nil:
	case from == nil:
		if after.Epoch == before.Epoch {
			w.fault("%s got the slot in the epoch of another", to.Name)
		}
		if to.Phase == guardv1alpha1.HolderBound { // Adopted.
			w.history = append(w.history, &linear.Operation{ID: to.Name, Outcome: linear.Granted, Call: w.step, Return: w.step})
		}
	case to == nil:
		w.history = append(w.history, &linear.Operation{ID: from.Name, Outcome: linear.Released, Call: w.step, Return: w.step})
		if from.Phase != guardv1alpha1.HolderReleasing || held < w.rules.limits.Release {
			w.fault("%s was %s for %s when its slot was free", from.Name, from.Phase, held)
		}
		if _, there := w.sets[identity(from.Name)]; there {
			w.fault("the slot was free while StatefulSet %s existed", from.Name)
		}
		if _, there := w.pods[identity(from.Name+"-0")]; there {
			w.fault("the slot was free while Pod %s-0 existed", from.Name)
		}
	case from.Name != to.Name:
		w.fault("the slot went from %s to %s without being free", from.Name, to.Name)
	case from.UID != to.UID && from.Epoch >= to.Epoch:
		w.fault("%s has another uid in epoch %d", to.Name, to.Epoch)
	case from.Phase == guardv1alpha1.HolderReserved && to.Phase == guardv1alpha1.HolderReleasing && held < w.rules.limits.Reservation:
		w.fault("the reservation of %s ended after %s", from.Name, held)
	}
}

// exclusive says whether more than one identity runs, is about to, or would be
// let in by any API server.
func (w *world) exclusive() error {
	seen := map[string]string{}
	for _, pod := range w.pods {
		seen[pod.Labels["of"]] = "Pod " + pod.Name + " exists"
	}
	for _, t := range w.tasks {
		if t.creates != nil && !w.expired(t) {
			seen[t.creates.Name] = "an API server stores Pod " + t.creates.Name + "-0"
		}
	}
	for server, version := range w.servers {
		if holder := w.stored[version].status.Holder; holder != nil && holder.Phase != guardv1alpha1.HolderReleasing {
			seen[holder.Name] = fmt.Sprintf("API server %d pins %s-0", server, holder.Name)
		}
	}
	if len(seen) > 1 {
		return fmt.Errorf("more than one: %v", seen)
	}
	return nil
}

// check is what holds at any time.
func (w *world) check() error {
	if err := w.exclusive(); err != nil {
		return err
	}
	return errors.Join(w.broken...)
}

// tick lets time pass. No API server judges by a policy that is older than the lag.
func (w *world) tick(d time.Duration) {
	w.now += d
	for i, version := range w.servers {
		for version+1 < len(w.stored) && w.stored[version+1].at+w.rules.lag < w.now {
			version++
		}
		w.servers[i] = version
	}
}

// expired says whether the API server has given a request up.
func (w *world) expired(t *task) bool { return t.abandoned || w.now-t.started > w.rules.request }

func (w *world) uid() types.UID {
	w.uids++
	return types.UID(fmt.Sprintf("u%d", w.uids))
}

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "ghcr.io/metacontroller/metacontroller:v4.17.2"}}}
}

func statefulSet(id decide.Identity, uid types.UID) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: id.Namespace, Name: id.Name, UID: uid},
		Spec:       appsv1.StatefulSetSpec{Template: corev1.PodTemplateSpec{Spec: podSpec()}},
	}
}

// create is a request that creates a StatefulSet, from the API server's call of
// a guard to the write into etcd.
func (w *world) create(guard int, id decide.Identity) (*task, *linear.Operation) {
	set := statefulSet(id, w.uid())
	operation := &linear.Operation{Client: w.uids, ID: id.Name, Call: w.step}
	w.history = append(w.history, operation)
	t := w.begin("create "+id.Name, func(t *task) {
		allowed := w.ask(w.guards[guard], set)
		decision := t.outcome.Decision
		switch {
		case t.dead || w.expired(t):
		case !allowed && decision.Verdict == decide.VerdictDeny && decision.Holder.Held():
			operation.Outcome, operation.Holder = linear.Refused, decision.Holder.Identity.Name
		case !allowed && decision.Verdict == decide.VerdictDeny:
			operation.Outcome = linear.Vacant
		case allowed && w.pause() == nil && !w.expired(t) && w.sets[id] == nil:
			if holder := w.policy.Status.Holder; holder == nil || holder.Name != id.Name {
				w.fault("StatefulSet %s was stored while the slot was %v", id.Name, holder)
			}
			w.sets[id] = set
			w.made = append(w.made, made{id: id, uid: set.UID})
			operation.Outcome = linear.Granted
		}
		operation.Return = w.step
	})
	return t, operation
}

// ask sends a review to a guard.
func (w *world) ask(guard *webhook.Handler, set *appsv1.StatefulSet) bool {
	raw, err := json.Marshal(set)
	if err != nil {
		panic(err)
	}
	review := admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID:       "review-" + set.UID,
			Kind:      metav1.GroupVersionKind{Group: "apps", Version: "v1", Kind: "StatefulSet"},
			Resource:  metav1.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"},
			Namespace: set.Namespace, Name: set.Name, Operation: admissionv1.Operation(attempt.Create),
			Object: runtime.RawExtension{Raw: raw},
		},
	}
	recorder := httptest.NewRecorder()
	guard.ServeHTTP(recorder, request(review))
	answer := admissionv1.AdmissionReview{}
	if recorder.Code != http.StatusOK || json.Unmarshal(recorder.Body.Bytes(), &answer) != nil {
		panic(fmt.Sprintf("the guard answers %d: %s", recorder.Code, recorder.Body))
	}
	return answer.Response.Allowed
}

// before is a Pod of a Deployment that was there before the guard.
func (w *world) before() {
	w.pods[identity(strayName)] = &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: strayName, UID: w.uid(), Labels: map[string]string{"of": "before"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "before-1", UID: "rs", Controller: new(true)}},
		},
		Spec: podSpec(),
	}
}

const strayName = "before-1-x"

// makePod is the StatefulSet controller's create of a Pod, judged by an API
// server's own policy. The controller may act on what it saw long ago.
func (w *world) makePod(server int, of made) {
	w.begin("create "+of.id.Name+"-0", func(t *task) {
		if w.pause() != nil || w.expired(t) {
			return
		}
		holder := w.stored[w.servers[server]].status.Holder
		if holder == nil || holder.Phase == guardv1alpha1.HolderReleasing || holder.Name != of.id.Name || holder.UID != of.uid {
			return // Refused by the pin.
		}
		t.creates = &of.id
		defer func() { t.creates = nil }()
		name := identity(of.id.Name + "-0")
		if w.pause() != nil || w.expired(t) || w.pods[name] != nil {
			return
		}
		w.pods[name] = &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: name.Namespace, Name: name.Name, UID: w.uid(), Labels: map[string]string{"of": of.id.Name},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: of.id.Name, UID: of.uid, Controller: new(true)}},
			},
			Spec: podSpec(),
		}
	})
}

// reconcile starts a pass of a leader.
func (w *world) reconcile(l *leader) {
	l.pass = w.begin("pass", func(*task) {
		result, err := l.reconciler.Reconcile(context.Background(), reconcile.Request{NamespacedName: client.ObjectKeyFromObject(w.policy)})
		l.after = result.RequeueAfter
		if err != nil {
			l.after = time.Second
		}
	})
}

func (l *leader) busy(w *world) bool { return slices.Contains(w.tasks, l.pass) }
