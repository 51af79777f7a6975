package guard_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/claim"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
	"github.com/metacontroller-solo/solo/pkg/guard/scan"
)

func defaultSignature(t testing.TB) *identify.Signature {
	t.Helper()
	signature, err := identify.Compile(guardv1alpha1.DefaultMatch())
	if err != nil {
		t.Fatal(err)
	}
	return signature
}

// claimOnce reads, decides and takes, as the webhook does.
func claimOnce(ctx context.Context, slot *claim.Slot, signature *identify.Signature, id decide.Identity, uid types.UID) (decide.Decision, error) {
	a := attempt.Attempt{
		Operation: attempt.Create, Workload: attempt.WorkloadStatefulSet, Namespace: id.Namespace, Name: id.Name, ObjectUID: uid,
		New: attempt.Shape{Present: true, Containers: []identify.Container{{Name: "main"}}, Replicas: attempt.Replicas{Count: 1}},
	}
	for {
		policy, err := slot.Read(ctx)
		if err != nil || policy == nil {
			return decide.Decision{}, fmt.Errorf("policy %v: %w", policy, err)
		}
		rules, holder := decide.PolicyOf(policy, time.Now()), decide.HolderOf(policy.Status)
		decision := decide.Decide(a, rules, holder)
		if decision.Verdict != decide.VerdictClaim {
			return decision, nil
		}
		taken, err := slot.Take(ctx, policy, signature, claim.Want{Identity: id, UID: uid, Creates: true})
		if errors.Is(err, claim.ErrConflict) {
			continue
		}
		if err != nil {
			return decide.Decision{}, err
		}
		return decide.Settle(a, rules, holder, taken), nil
	}
}

// free empties the slot as an administrator would.
func (s *suite) free() {
	s.t.Helper()
	s.eventually(func() error {
		policy := s.policy()
		policy.Status.Holder, policy.Status.ActivePod = nil, nil
		return s.admin().Status().Update(s.ctx(), policy)
	})
}

func TestConcurrentClaims(t *testing.T) {
	s := prepare(t)
	signature := defaultSignature(t)
	const claimers = 8
	epoch := int64(0)
	for round := range 60 {
		decisions, errs := make([]decide.Decision, claimers), make([]error, claimers)
		var group sync.WaitGroup
		for i := range claimers {
			group.Go(func() {
				slot := &claim.Slot{Client: s.admins[i%len(s.admins)], Clock: clock.RealClock{}, Policy: guardv1alpha1.DefaultPolicyName}
				decisions[i], errs[i] = claimOnce(s.ctx(), slot, signature, decide.Identity{Namespace: "default", Name: fmt.Sprintf("mc-%d", i)}, types.UID(fmt.Sprint(i)))
			})
		}
		group.Wait()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
		winner := ""
		for i, decision := range decisions {
			if decision.Verdict == decide.VerdictAllow {
				if winner != "" {
					t.Fatalf("round %d: %s and mc-%d both won", round, winner, i)
				}
				winner = fmt.Sprintf("default/mc-%d", i)
			}
		}
		policy := s.policy()
		if winner == "" || policy.Status.Holder == nil || policy.Status.Holder.Display != winner || policy.Status.Epoch <= epoch {
			t.Fatalf("round %d: winner %q, status %+v", round, winner, policy.Status)
		}
		epoch = policy.Status.Epoch
		for i, decision := range decisions {
			if decision.Verdict != decide.VerdictAllow && (decision.Rule != decide.RuleSecondWorkload || decision.Holder.Identity.String() != winner) {
				t.Fatalf("round %d: mc-%d was told %q, the winner is %s", round, i, decision.Message, winner)
			}
		}
		s.free()
	}
}

// reconcilerAt is a claim loop whose clock the test moves.
type reconcilerAt struct {
	*suite
	clock  *clocktesting.FakePassiveClock
	inner  *claim.Reconciler
	result reconcile.Result
}

func newReconciler(s *suite) *reconcilerAt {
	c := clocktesting.NewFakePassiveClock(time.Now())
	return &reconcilerAt{suite: s, clock: c, inner: &claim.Reconciler{
		Client: s.admin(), Clock: c, Limits: claim.Limits{Reservation: 75 * time.Second, Release: 10 * time.Second},
	}}
}

// after moves the clock and reconciles until nothing was in the way.
func (r *reconcilerAt) after(d time.Duration) *guardv1alpha1.Holder {
	r.t.Helper()
	r.clock.SetTime(r.clock.Now().Add(d))
	result, err := r.inner.Reconcile(r.ctx(), reconcile.Request{NamespacedName: client.ObjectKey{Name: guardv1alpha1.DefaultPolicyName}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.result = result
	return r.policy().Status.Holder
}

func (r *reconcilerAt) expect(d time.Duration, want guardv1alpha1.HolderPhase) *guardv1alpha1.Holder {
	r.t.Helper()
	holder := r.after(d)
	got := guardv1alpha1.HolderPhase("")
	if holder != nil {
		got = holder.Phase
	}
	if got != want {
		r.t.Fatalf("phase is %q, want %q", got, want)
	}
	return holder
}

func TestReservationNeverStored(t *testing.T) {
	s := prepare(t)
	slot := &claim.Slot{Client: s.admin(), Clock: clock.RealClock{}, Policy: guardv1alpha1.DefaultPolicyName}
	id := decide.Identity{Namespace: "default", Name: "never"}
	if decision, err := claimOnce(s.ctx(), slot, defaultSignature(t), id, "u1"); err != nil || decision.Verdict != decide.VerdictAllow {
		t.Fatal(decision, err)
	}
	r := newReconciler(s)
	r.expect(0, guardv1alpha1.HolderReserved)
	r.expect(74*time.Second, guardv1alpha1.HolderReserved)

	// The same name may try again at once, and its time begins again.
	if decision, err := claimOnce(s.ctx(), slot, defaultSignature(t), id, "u2"); err != nil || decision.Verdict != decide.VerdictAllow {
		t.Fatal(decision, err)
	}
	if holder := r.expect(2*time.Second, guardv1alpha1.HolderReserved); holder.UID != "u2" || holder.Epoch != 2 {
		t.Fatalf("holder is %+v", holder)
	}
	r.expect(74*time.Second, guardv1alpha1.HolderReserved)

	// Another leader does not know how long the first one has seen it.
	other := newReconciler(s)
	other.expect(time.Hour, guardv1alpha1.HolderReserved)

	r.expect(time.Second, guardv1alpha1.HolderReleasing)
	if r.result.RequeueAfter > 10*time.Second {
		t.Fatalf("looks again after %s", r.result.RequeueAfter)
	}
	r.expect(9*time.Second, guardv1alpha1.HolderReleasing) // Its first sight of the phase.
	r.expect(9*time.Second, guardv1alpha1.HolderReleasing)
	r.expect(time.Second, "")
	if epoch := s.policy().Status.Epoch; epoch != 2 {
		t.Fatalf("epoch is %d", epoch)
	}
}

func TestTwoCreatesOfOneName(t *testing.T) {
	s := prepare(t)
	slot := &claim.Slot{Client: s.admin(), Clock: clock.RealClock{}, Policy: guardv1alpha1.DefaultPolicyName}
	namespace := s.namespace("twice")
	id := decide.Identity{Namespace: namespace, Name: "mc"}
	// Both are admitted before either is stored; then one of them is, and it is
	// not the one that asked last.
	for _, uid := range []types.UID{"u1", "u2"} {
		if decision, err := claimOnce(s.ctx(), slot, defaultSignature(t), id, uid); err != nil || decision.Verdict != decide.VerdictAllow {
			t.Fatal(decision, err)
		}
	}
	stored := statefulSet(namespace, "mc")
	if err := s.admin().Create(s.ctx(), stored); err != nil {
		t.Fatal(err)
	}
	r := newReconciler(s)
	if holder := r.expect(0, guardv1alpha1.HolderBound); holder.UID != stored.UID || holder.Epoch != 3 {
		t.Fatalf("holder is %+v, want uid %s", holder, stored.UID)
	}
	decision, err := claimOnce(s.ctx(), slot, defaultSignature(t), id, "u3")
	if err != nil || decision.Verdict != decide.VerdictExists {
		t.Fatal(decision, err)
	}
}

func TestAdoption(t *testing.T) {
	s := prepare(t)
	namespace := s.namespace("adopt")
	slot := &claim.Slot{Client: s.admin(), Clock: clock.RealClock{}, Policy: guardv1alpha1.DefaultPolicyName}
	for _, name := range []string{"one", "two"} {
		if err := s.admin().Create(s.ctx(), statefulSet(namespace, name)); err != nil {
			t.Fatal(err)
		}
	}
	r := newReconciler(s)
	r.expect(0, "")
	seen, err := scan.Run(s.ctx(), s.admin(), scan.Options{Policy: guardv1alpha1.DefaultPolicyName, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	compliant := meta.FindStatusCondition(seen.Conditions, guardv1alpha1.ConditionCompliant)
	if compliant == nil || compliant.Status != metav1.ConditionFalse || compliant.Reason != inspect.ReasonNoClearHolder || compliant.ObservedGeneration != s.policy().Generation {
		t.Fatalf("Compliant is %+v though two are there", compliant)
	}
	decision, err := claimOnce(s.ctx(), slot, defaultSignature(t), decide.Identity{Namespace: namespace, Name: "three"}, "u3")
	if err != nil || decision.Verdict != decide.VerdictDeny {
		t.Fatalf("a third was let in beside two: %+v, %v", decision, err)
	}

	// A person names one.
	policy := s.policy()
	policy.Spec.Holder = &guardv1alpha1.HolderReference{Namespace: namespace, Name: "two"}
	if err := s.admin().Update(s.ctx(), policy); err != nil {
		t.Fatal(err)
	}
	if holder := r.expect(0, guardv1alpha1.HolderBound); holder.Name != "two" {
		t.Fatalf("holder is %+v", holder)
	}

	// The only one is adopted without a word.
	s.resetPolicy()
	if err := s.admin().Delete(s.ctx(), statefulSet(namespace, "two")); err != nil {
		t.Fatal(err)
	}
	live := &appsv1.StatefulSet{}
	if err := s.admin().Get(s.ctx(), client.ObjectKey{Namespace: namespace, Name: "one"}, live); err != nil {
		t.Fatal(err)
	}
	if holder := newReconciler(s).expect(0, guardv1alpha1.HolderBound); holder.UID != live.UID {
		t.Fatalf("holder is %+v, want uid %s", holder, live.UID)
	}
}

// TestNoClaimBesideWhatRuns: what ran before the guard is no StatefulSet and
// holds no slot; nobody gets it until that is gone.
func TestNoClaimBesideWhatRuns(t *testing.T) {
	s := prepare(t)
	namespace := s.namespace("beside")
	slot := &claim.Slot{Client: s.admin(), Clock: clock.RealClock{}, Policy: guardv1alpha1.DefaultPolicyName}
	id := decide.Identity{Namespace: namespace, Name: "mc"}
	before := pod(namespace, "before", instanceImage)
	stranger := pod(namespace, "stranger", strangerImage)
	// A Pod that the StatefulSet left behind is its own.
	orphan := pod(namespace, "mc-0", instanceImage)
	for _, object := range []client.Object{before, stranger, orphan} {
		if err := s.admin().Create(s.ctx(), object); err != nil {
			t.Fatal(err)
		}
	}
	decision, err := claimOnce(s.ctx(), slot, defaultSignature(t), id, "u1")
	if err != nil || decision.Verdict != decide.VerdictDeny || decision.Rule != decide.RuleSecondWorkload {
		t.Fatalf("let in beside a Pod: %+v, %v", decision, err)
	}
	for _, part := range []string{"Pod " + namespace + "/before", "Next: "} {
		if !strings.Contains(decision.Message, part) {
			t.Errorf("%q is not in %q", part, decision.Message)
		}
	}
	if strings.Contains(decision.Message, "mc-0") || strings.Contains(decision.Message, "stranger") {
		t.Errorf("names what is not in the way: %q", decision.Message)
	}
	// Not beside it either if a person has named the holder.
	s.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) {
		spec.Holder = &guardv1alpha1.HolderReference{Namespace: namespace, Name: "mc"}
	})
	if decision, err := claimOnce(s.ctx(), slot, defaultSignature(t), id, "u1"); err != nil || decision.Verdict != decide.VerdictDeny {
		t.Fatalf("let in beside a Pod: %+v, %v", decision, err)
	}
	if err := s.admin().Delete(s.ctx(), before, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	s.eventually(func() error {
		decision, err := claimOnce(s.ctx(), slot, defaultSignature(t), id, "u1")
		if err == nil && decision.Verdict != decide.VerdictAllow {
			err = fmt.Errorf("still refused: %s", decision.Message)
		}
		return err
	})
}
