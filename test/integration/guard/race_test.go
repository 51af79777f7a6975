package guard_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
)

// envRounds scales the race up or down.
const envRounds = "GUARD_RACE_ROUNDS"

const (
	defaultRounds = 40
	racers        = 8
	// raceMaxAge is how old the policy may be that the guards judge by in a race.
	raceMaxAge = 100 * time.Millisecond
	// unready is how the guard begins where it cannot tell who holds the slot.
	unready = "cannot tell who holds the slot"
)

// makers make a Metacontroller workload of each kind. Half of the racers are
// StatefulSets on average, for only those can win.
var makers = []func(namespace, name string) client.Object{
	func(namespace, name string) client.Object { return deployment(namespace, name) },
	func(namespace, name string) client.Object { return replicaSet(namespace, name) },
	func(namespace, name string) client.Object { return daemonSet(namespace, name) },
	func(namespace, name string) client.Object { return replicationController(namespace, name) },
	func(namespace, name string) client.Object { return job(namespace, name) },
	func(namespace, name string) client.Object { return cronJob(namespace, name) },
	func(namespace, name string) client.Object { return pod(namespace, name, instanceImage) },
}

func raceRounds(t *testing.T) int {
	t.Helper()
	value := os.Getenv(envRounds)
	if value == "" {
		return defaultRounds
	}
	rounds, err := strconv.Atoi(value)
	if err != nil {
		t.Fatalf("%s: %v", envRounds, err)
	}
	return rounds
}

func newRandom(t testing.TB) *rand.Rand {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	return rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // No secret is drawn.
}

// field are the objects of one round.
func field(random *rand.Rand, namespaces []string, round int) []client.Object {
	objects := make([]client.Object, racers)
	for i := range objects {
		namespace, name := namespaces[random.IntN(len(namespaces))], fmt.Sprintf("r%d-%d", round, i)
		if random.IntN(2) == 0 {
			objects[i] = statefulSet(namespace, name)
		} else {
			objects[i] = makers[random.IntN(len(makers))](namespace, name)
		}
	}
	return objects
}

// start lets all of them be created at once, each through one of the API servers.
func (s *suite) startAll(objects []client.Object, create func(context.Context, client.Client, client.Object) error) []error {
	errs := make([]error, len(objects))
	gate := make(chan struct{})
	var group sync.WaitGroup
	for i, object := range objects {
		group.Go(func() {
			<-gate
			errs[i] = create(s.ctx(), s.admins[i%len(s.admins)], object)
		})
	}
	close(gate)
	group.Wait()
	return errs
}

// insist creates until somebody says yes or no: while a guard dies or hangs, the
// API server can only say that it got no answer, and lets nothing in. It returns
// how often it asked.
func insist(ctx context.Context, admin client.Client, object client.Object) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, 3*patience)
	defer cancel()
	for asked := 1; ; asked++ {
		try := object.DeepCopyObject().(client.Object)
		err := admin.Create(ctx, try)
		switch {
		case err == nil:
			object.SetUID(try.GetUID())
			return asked, nil
		case ctx.Err() != nil:
			return asked, err
		case apierrors.IsForbidden(err) && !strings.Contains(err.Error(), unready):
			return asked, err
		case apierrors.IsForbidden(err), apierrors.IsInternalError(err), apierrors.IsTimeout(err):
		default:
			return asked, err
		}
		// A guard may be starting: its place is taken soon.
		select {
		case <-ctx.Done():
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// TestRace creates workloads of all kinds at once, round after round, each time
// with a free slot: through two API servers on one etcd, judged by three guards,
// of which one is killed and another one stalled at random.
func TestRace(t *testing.T) {
	rounds := raceRounds(t)
	args := []string{"--policy-max-age=" + raceMaxAge.String()}
	s := prepare(t)
	s.timeout = 2
	for i := range 3 {
		s.start(guardConfig{server: i % s.cp.APIServers(), args: args})
	}
	s.point()
	s.admission(allLayers)
	r := &race{
		suite: s, tally: map[string]int{}, asked: map[string]int{},
		namespaces: []string{s.namespace("race"), s.namespace("race"), s.namespace("race")},
		pods:       s.watchPods(),
	}
	random := newRandom(t)
	trouble := &unrest{suite: s, random: random, args: args, often: 12, longest: 400 * time.Millisecond}
	start := time.Now()
	for round := range rounds {
		objects := field(random, r.namespaces, round)
		var mutex sync.Mutex // guards r.asked
		trouble.begin(round)
		errs := s.startAll(objects, func(ctx context.Context, admin client.Client, object client.Object) error {
			asked, err := insist(ctx, admin, object)
			mutex.Lock()
			defer mutex.Unlock()
			r.asked[object.GetNamespace()+"/"+object.GetName()] = asked
			r.tally["asked again"] += asked - 1
			return err
		})
		r.judge(round, objects, errs)
		trouble.settle()
		if round%4 == 3 {
			// The API servers connect again, perhaps to another guard.
			s.balancer.reset()
			s.asked()
		}
	}
	t.Logf("%d rounds of %d in %s, %d guards killed, %d stalled: %v",
		rounds, racers, time.Since(start).Round(time.Second), trouble.killed, trouble.stalled, r.tally)
	r.checkRecords()
	if most := r.pods.most(); most > 1 {
		t.Errorf("%d instances were there at a time", most)
	}
}

// race is what is kept from round to round.
type race struct {
	*suite
	namespaces []string
	pods       *podWatch
	tally      map[string]int
	// asked is how often each object was sent.
	asked map[string]int
}

// judge checks one round, waits for the winner's Pod, and frees the slot.
func (r *race) judge(round int, objects []client.Object, errs []error) {
	r.t.Helper()
	var winner client.Object
	candidates := 0
	for i, object := range objects {
		if _, ok := object.(*appsv1.StatefulSet); ok {
			candidates++
		}
		if errs[i] != nil {
			continue
		}
		if winner != nil {
			r.t.Fatalf("round %d: %T %s and %T %s were both admitted", round, winner, winner.GetName(), object, object.GetName())
		}
		winner = object
	}
	if (winner != nil) != (candidates > 0) {
		r.t.Fatalf("round %d: %d StatefulSets asked and the winner is %v: %v", round, candidates, winner, errs)
	}
	name := "nobody"
	if winner != nil {
		name = winner.GetNamespace() + "/" + winner.GetName()
		r.tally["won"]++
		r.eventually(func() error {
			held := r.policy().Status.Holder
			if held == nil || held.Display != name {
				r.t.Fatalf("round %d: %s was admitted and the holder is %+v", round, name, held)
			}
			// If the winner had to ask twice, its first request may be the one that
			// was written last, until the guard that leads has looked.
			if held.UID != winner.GetUID() {
				return fmt.Errorf("round %d: %s was admitted as %s and the holder is %+v", round, name, winner.GetUID(), held)
			}
			return nil
		})
	}
	for i, object := range objects {
		if object != winner {
			r.loser(round, object, errs[i], name)
		}
	}
	if winner != nil {
		r.onePod(round, winner)
		r.free(winner)
	}
}

// loser checks what one of the others was told.
func (r *race) loser(round int, object client.Object, err error, winner string) {
	r.t.Helper()
	if !apierrors.IsForbidden(err) {
		r.t.Fatalf("round %d: %T %s: got %v, want a refusal", round, object, object.GetName(), err)
	}
	message := err.Error()
	r.tally[layerOf(message)]++
	if strings.Contains(message, winner) {
		r.tally["told the winner"]++
		return
	}
	// Who cannot win at all may be refused before anybody has won, and by an API
	// server that has not seen yet that the holder before is off the slot.
	_, candidate := object.(*appsv1.StatefulSet)
	early := strings.Contains(message, "the slot is free") || strings.Contains(message, "nobody holds the slot") ||
		strings.Contains(message, "cannot hold the slot") || strings.Contains(message, "gives up the slot")
	if candidate || !early {
		r.t.Fatalf("round %d: %T %s was told %q, the winner is %s", round, object, object.GetName(), message, winner)
	}
	r.tally["told that it cannot win"]++
}

func layerOf(message string) string {
	if strings.Contains(message, byPolicy) {
		return "refused by policy"
	}
	return "refused by guard"
}

// onePod waits until the winner's Pod is there: it is the only one.
func (r *race) onePod(round int, winner client.Object) {
	r.t.Helper()
	want := winner.GetNamespace() + "/" + winner.GetName() + "-0"
	r.eventually(func() error {
		if live := r.pods.live(); len(live) != 1 || live[0] != want {
			return fmt.Errorf("round %d: instances are %v, want %s", round, live, want)
		}
		return nil
	})
}

// free gives the slot back as the guard does, only that it does not wait for the
// time in which every API server surely knows, but looks whether they know.
func (r *race) free(winner client.Object) {
	r.t.Helper()
	if err := r.admin().Delete(r.ctx(), winner, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		r.t.Fatal(err)
	}
	var cleared time.Time
	r.eventually(func() error {
		policy := r.policy()
		if policy.Status.Holder == nil {
			return nil // The guard was faster.
		}
		policy.Status.Holder.Phase, policy.Status.ActivePod = guardv1alpha1.HolderReleasing, nil
		cleared = time.Now()
		return r.admin().Status().Update(r.ctx(), policy)
	})
	for _, admin := range r.admins {
		r.eventually(func() error {
			err := admin.Create(r.ctx(), pod(winner.GetNamespace(), "probe", instanceImage), client.DryRunAll)
			if err == nil || !strings.Contains(err.Error(), "gives up the slot") && !strings.Contains(err.Error(), "nobody holds the slot") {
				return fmt.Errorf("an API server does not know yet: %v", err)
			}
			return nil
		})
	}
	leftover := pod(winner.GetNamespace(), winner.GetName()+"-0", "")
	r.eventually(func() error {
		if err := client.IgnoreNotFound(r.admin().Delete(r.ctx(), leftover, client.GracePeriodSeconds(0))); err != nil {
			return err
		}
		if live := r.pods.live(); len(live) != 0 {
			return fmt.Errorf("instances are %v", live)
		}
		return nil
	})
	// No guard judges by what was read before.
	time.Sleep(time.Until(cleared.Add(raceMaxAge)))
	r.suite.free()
}

// checkRecords ends the guards and holds their audit logs to one record for each
// request, but for what those that were killed had not written.
func (r *race) checkRecords() {
	r.t.Helper()
	for _, g := range r.running() {
		g.process.Stop() // The last lines are written.
	}
	replicas := map[string]int{}
	records := map[string]int{}
	requests := map[string]string{}
	for _, record := range r.records() {
		replicas[record.Replica]++
		name := record.Object.Namespace + "/" + record.Object.Name
		if _, raced := r.asked[name]; !raced || record.Operation != "CREATE" || record.DryRun {
			continue
		}
		records[name]++
		request := string(record.AdmissionUID) + " " + record.Decision
		if other, again := requests[request]; again {
			r.t.Errorf("two records of one request about %s, by %s and %s", name, other, record.Replica)
		}
		requests[request] = record.Replica
	}
	for name, count := range records {
		if asked := r.asked[name]; count > asked {
			r.t.Errorf("%d records of %s, which was sent %d times", count, name, asked)
		}
	}
	r.t.Logf("%d records by %d guards", len(requests), len(replicas))
	if len(replicas) < 2 {
		r.t.Errorf("only these guards have judged: %v", replicas)
	}
}

// podWatch follows the Pods that run an instance.
type podWatch struct {
	mutex sync.Mutex // guards the fields below
	now   map[string]bool
	peak  int
}

// watchPods begins to follow them.
func (s *suite) watchPods() *podWatch {
	s.t.Helper()
	p := &podWatch{now: map[string]bool{}}
	clients, err := client.NewWithWatch(s.cp.AdminConfig(0), client.Options{Scheme: scheme})
	if err != nil {
		s.t.Fatal(err)
	}
	list := &corev1.PodList{}
	if err := s.admin().List(s.ctx(), list); err != nil {
		s.t.Fatal(err)
	}
	events, err := clients.Watch(s.ctx(), &corev1.PodList{}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(events.Stop)
	signature := defaultSignature(s.t)
	go func() {
		for event := range events.ResultChan() {
			if found, ok := event.Object.(*corev1.Pod); ok && len(signature.Containers(&found.Spec)) > 0 {
				ended := found.Status.Phase == corev1.PodSucceeded || found.Status.Phase == corev1.PodFailed
				p.see(found.Namespace+"/"+found.Name, event.Type != "DELETED" && !ended)
			}
		}
	}()
	return p
}

func (p *podWatch) see(name string, runs bool) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if runs {
		p.now[name] = true
	} else {
		delete(p.now, name)
	}
	p.peak = max(p.peak, len(p.now))
}

func (p *podWatch) live() []string {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	var names []string
	for name := range p.now {
		names = append(names, name)
	}
	return names
}

func (p *podWatch) most() int {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return p.peak
}

// TestNaiveWebhookIsRaced holds the same field against a webhook that looks who
// is there and then decides: what the guard is not. It admits more than one.
func TestNaiveWebhookIsRaced(t *testing.T) {
	const rounds = 6
	s := prepare(t)
	naive := s.naive()
	random := newRandom(t)
	namespaces := []string{s.namespace("naive"), s.namespace("naive")}
	raced, most := 0, 0
	for round := range rounds {
		objects := field(random, namespaces, round)
		errs := s.startAll(objects, func(ctx context.Context, admin client.Client, object client.Object) error {
			return admin.Create(ctx, object)
		})
		admitted := 0
		for i := range objects {
			switch {
			case errs[i] == nil:
				admitted++
			case !apierrors.IsForbidden(errs[i]):
				t.Fatalf("round %d: %v", round, errs[i])
			}
		}
		most = max(most, admitted)
		if admitted > 1 {
			raced++
		}
		s.clean()
	}
	t.Logf("look up, then deny: more than one in %d of %d rounds of %d, up to %d at a time", raced, rounds, racers, most)
	if raced == 0 {
		t.Fatal("no round admitted more than one: the harness cannot see a race")
	}
	// One after the other it does what it says, so that it is the race that it loses.
	first := statefulSet(namespaces[0], "first")
	if err := s.admin().Create(s.ctx(), first); err != nil {
		t.Fatal(err)
	}
	if err := s.admins[1].Create(s.ctx(), statefulSet(namespaces[1], "second")); !apierrors.IsForbidden(err) {
		t.Fatalf("a second one got %v", err)
	}
	if naive.Load() == 0 {
		t.Fatal("it was never asked")
	}
	kit.Eventually(t, patience, func() error { return client.IgnoreNotFound(s.admin().Delete(s.ctx(), first)) })
}
