package guard_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// envRounds scales the race up or down.
const envRounds = "GUARD_RACE_ROUNDS"

const (
	racers = 8
	// manyRounds is from when on the API servers have connected so often that
	// every guard has been asked.
	manyRounds = 50
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

// TestRace creates workloads at once, round after round, each time with a free
// slot: through two API servers on one etcd, judged by two guards.
func TestRace(t *testing.T) {
	rounds := 200
	if value := os.Getenv(envRounds); value != "" {
		var err error
		if rounds, err = strconv.Atoi(value); err != nil {
			t.Fatalf("%s: %v", envRounds, err)
		}
	}
	s := install(t, 2, allLayers)
	namespaces := []string{s.namespace("race"), s.namespace("race"), s.namespace("race")}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // No secret is drawn.
	tally := map[string]int{}
	start := time.Now()
	for round := range rounds {
		objects := make([]client.Object, racers)
		for i := range objects {
			namespace, name := namespaces[random.IntN(len(namespaces))], fmt.Sprintf("r%d-%d", round, i)
			if random.IntN(2) == 0 {
				objects[i] = statefulSet(namespace, name)
			} else {
				objects[i] = makers[random.IntN(len(makers))](namespace, name)
			}
		}
		errs := make([]error, racers)
		gate := make(chan struct{})
		var group sync.WaitGroup
		for i, object := range objects {
			group.Go(func() {
				<-gate
				errs[i] = s.admins[i%len(s.admins)].Create(s.ctx(), object)
			})
		}
		close(gate)
		group.Wait()
		s.nextRound(s.judgeRound(round, objects, errs, tally))
		if round%4 == 3 {
			// The API servers connect again, perhaps to the other guard.
			s.balancer.reset()
			s.asked()
		}
	}
	t.Logf("%d rounds in %s: %v", rounds, time.Since(start).Round(time.Second), tally)
	replicas := s.checkRecords()
	t.Logf("records by replica: %v", replicas)
	if rounds >= manyRounds && len(replicas) != len(s.guards) {
		t.Errorf("not all guards have judged: %v", replicas)
	}
}

// judgeRound checks one round, and returns the object that won, if one did.
func (s *suite) judgeRound(round int, objects []client.Object, errs []error, tally map[string]int) client.Object {
	s.t.Helper()
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
			s.t.Fatalf("round %d: %T %s and %T %s were both admitted", round, winner, winner.GetName(), object, object.GetName())
		}
		winner = object
	}
	if (winner != nil) != (candidates > 0) {
		s.t.Fatalf("round %d: %d StatefulSets asked and the winner is %v: %v", round, candidates, winner, errs)
	}
	name := "nobody"
	if winner != nil {
		name = winner.GetNamespace() + "/" + winner.GetName()
		tally["won"]++
		if held := s.policy().Status.Holder; held == nil || held.Display != name || held.UID != winner.GetUID() {
			s.t.Fatalf("round %d: %s was admitted and the holder is %+v", round, name, held)
		}
	}
	for i, object := range objects {
		if object == winner {
			continue
		}
		if !apierrors.IsForbidden(errs[i]) {
			s.t.Fatalf("round %d: %T %s: got %v, want a refusal", round, object, object.GetName(), errs[i])
		}
		message := errs[i].Error()
		tally[layerOf(message)]++
		if strings.Contains(message, byPolicy) {
			// A round frees the slot at once, where the guard takes its time until
			// every API server knows: the Pod policy may name the last round's holder.
			if !strings.Contains(message, "[pod-not-pinned]") {
				s.t.Fatalf("round %d: %T %s was told %q", round, object, object.GetName(), message)
			}
			continue
		}
		_, candidate := object.(*appsv1.StatefulSet)
		told := strings.Contains(message, name)
		// Who cannot win at all may be refused before anybody has won.
		early := strings.Contains(message, "the slot is free") || strings.Contains(message, "nobody holds the slot") ||
			strings.Contains(message, "cannot hold the slot")
		if !told && (candidate || !early) {
			s.t.Fatalf("round %d: %T %s was told %q, the winner is %s", round, object, object.GetName(), message, name)
		}
	}
	return winner
}

func layerOf(message string) string {
	if strings.Contains(message, byPolicy) {
		return "refused by policy"
	}
	return "refused by guard"
}

// nextRound frees the slot as an administrator would who does not wait for the
// guard to do it.
func (s *suite) nextRound(winner client.Object) {
	s.t.Helper()
	if winner == nil {
		return
	}
	if err := s.admin().Delete(s.ctx(), winner, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		s.t.Fatal(err)
	}
	s.free()
}

// checkRecords ends the guards and holds their audit logs to one record for each
// request. It returns how many each guard has.
func (s *suite) checkRecords() map[string]int {
	s.t.Helper()
	for _, g := range s.guards {
		g.process.Stop() // The last lines are written.
	}
	seen := map[string]int{}
	replicas := map[string]int{}
	for _, record := range s.records() {
		replicas[record.Replica]++
		if !record.DryRun && record.Operation == "CREATE" && !strings.HasSuffix(record.Object.Name, "-0") {
			seen[record.Object.Kind+" "+record.Object.Namespace+"/"+record.Object.Name]++
		}
	}
	for name, count := range seen {
		if strings.Contains(name, "/r") && count != 1 {
			s.t.Errorf("%d records of %s", count, name)
		}
	}
	return replicas
}
