package guard_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/test/linear"
)

const (
	// envHistory is how long histories are recorded, as a duration.
	envHistory     = "GUARD_HISTORY"
	defaultHistory = 8 * time.Second
	// historians claim, hold and leave.
	historians = 6
	// historianNames is how many identities they use, so that two share one.
	historianNames = historians - 1
	// away is how long one that has left stays away at least, so that its name
	// does not get the slot again and again.
	away = 700 * time.Millisecond
	// checkLimit bounds the check of a history.
	checkLimit = 2 * time.Minute
)

// TestHistoryIsLinearizable records what clients of two API servers are told by
// three guards, of which some are killed and stalled meanwhile, while the guard
// that leads gives the slot of one to the next. One order explains it all.
func TestHistoryIsLinearizable(t *testing.T) {
	length := defaultHistory
	if value := os.Getenv(envHistory); value != "" {
		var err error
		if length, err = time.ParseDuration(value); err != nil {
			t.Fatalf("%s: %v", envHistory, err)
		}
	}
	args := []string{
		"--policy-max-age=100ms", "--release-delay=250ms", "--api-request-timeout=1s",
		// Leaders are killed here, and another one starts in place of one that is too
		// slow to renew: the slot is to change hands soon.
		"--leader-elect-lease-duration=4s", "--leader-elect-renew-deadline=3s",
	}
	s := prepare(t)
	s.timeout = 2
	for i := range 3 {
		s.start(guardConfig{server: i % s.cp.APIServers(), args: args})
	}
	s.point()
	s.admission(allLayers)
	versions := s.watchPolicy()
	h := &historian{suite: s, namespace: s.namespace("history"), began: time.Now()}
	random := newRandom(t)
	trouble := &unrest{suite: s, random: random, args: args, often: 4, longest: time.Second}

	ctx, cancel := context.WithCancel(s.ctx())
	defer cancel()
	errs := make([]error, historians)
	var group sync.WaitGroup
	for i := range historians {
		own := rand.New(rand.NewPCG(random.Uint64(), 0)) //nolint:gosec // No secret is drawn.
		group.Go(func() { errs[i] = h.live(ctx, i, own) })
	}
	// It goes on until the slot has changed hands, however slow the machine is.
	enough := func() bool { return time.Since(h.began) >= length && versions.handovers() >= 3 }
	for round := 0; !enough() && time.Since(h.began) < length+6*patience; round++ {
		trouble.begin(round)
		trouble.settle()
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	cancel()
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	tally := map[linear.Outcome]int{}
	for _, operation := range h.history {
		tally[operation.Outcome]++
	}
	t.Logf("%d operations: %d granted, %d refused, %d left, %d unknown; %d guards killed, %d stalled",
		len(h.history), tally[linear.Granted], tally[linear.Refused], tally[linear.Left], tally[linear.Unknown], trouble.killed, trouble.stalled)
	if tally[linear.Granted] < 2 || tally[linear.Refused] == 0 {
		t.Error("the history shows nothing")
	}
	if err := linear.Check(h.history, checkLimit); err != nil {
		t.Error(err)
	}
	versions.check(t)
}

// historian records what clients do and are told.
type historian struct {
	*suite
	namespace string
	began     time.Time

	mutex   sync.Mutex // guards history
	history []linear.Operation
}

func (h *historian) since() int64 { return int64(time.Since(h.began)) }

func (h *historian) record(operation linear.Operation) {
	operation.Return = h.since()
	if operation.Outcome == linear.Unknown {
		// A guard that was stalled may write the claim when it goes on.
		operation.Return += int64(h.timeout+1) * int64(time.Second)
	}
	h.mutex.Lock()
	defer h.mutex.Unlock()
	h.history = append(h.history, operation)
}

// live claims, holds and leaves until ctx ends. Its last operation is finished.
func (h *historian) live(ctx context.Context, me int, random *rand.Rand) error {
	for ctx.Err() == nil {
		name := fmt.Sprintf("mc-%d", me%historianNames)
		admin := h.admins[random.IntN(len(h.admins))]
		operation := linear.Operation{Client: me, ID: h.namespace + "/" + name, Call: h.since()}
		object := statefulSet(h.namespace, name)
		err := admin.Create(h.ctx(), object)
		switch {
		case err == nil:
			operation.Outcome = linear.Granted
		case apierrors.IsAlreadyExists(err), apierrors.IsInternalError(err), apierrors.IsTimeout(err),
			apierrors.IsForbidden(err) && strings.Contains(err.Error(), unready):
			operation.Outcome = linear.Unknown
		case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "holds the slot"),
			apierrors.IsForbidden(err) && strings.Contains(err.Error(), "is giving the slot back"):
			operation.Outcome, operation.Holder = linear.Refused, h.named(err)
			if operation.Holder == "" {
				return fmt.Errorf("no holder in %w", err)
			}
		case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "though none holds the slot"):
			operation.Outcome = linear.Vacant
		default:
			return err
		}
		h.record(operation)
		pause(ctx, random, 80*time.Millisecond)
		if operation.Outcome != linear.Granted {
			continue
		}
		if err := h.leave(me, object); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(away):
		}
	}
	return nil
}

func pause(ctx context.Context, random *rand.Rand, most time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(random.Int64N(int64(most)))):
	}
}

// named is the holder that a refusal names.
func (h *historian) named(err error) string {
	for i := range historianNames {
		if name := fmt.Sprintf("%s/mc-%d", h.namespace, i); strings.Contains(err.Error(), name) {
			return name
		}
	}
	return ""
}

// leave deletes the object and its Pod, and waits until somebody else has the
// slot, be it a later object of the same name, or nobody.
func (h *historian) leave(me int, object *appsv1.StatefulSet) error {
	operation := linear.Operation{Client: me, ID: object.Namespace + "/" + object.Name, Outcome: linear.Left, Call: h.since()}
	admin := h.admins[me%len(h.admins)]
	mine := client.Preconditions{UID: &object.UID}
	if err := admin.Delete(h.ctx(), object, mine, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		return err
	}
	for deadline := time.Now().Add(6 * patience); ; {
		if err := client.IgnoreNotFound(admin.Delete(h.ctx(), pod(object.Namespace, object.Name+"-0", ""), client.GracePeriodSeconds(0))); err != nil {
			return err
		}
		policy := &guardv1alpha1.SingletonPolicy{}
		if err := admin.Get(h.ctx(), client.ObjectKey{Name: guardv1alpha1.DefaultPolicyName}, policy); err != nil {
			return err
		}
		held := policy.Status.Holder
		if held == nil || held.Name != object.Name || held.UID != object.UID && held.Phase == guardv1alpha1.HolderBound {
			h.record(operation)
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s %s still holds the slot: %+v", object.Name, object.UID, policy.Status.Holder)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// policyWatch has every version of the policy's status, in order.
type policyWatch struct {
	mutex    sync.Mutex // guards versions
	versions []guardv1alpha1.SingletonPolicyStatus
}

func (s *suite) watchPolicy() *policyWatch {
	s.t.Helper()
	p := &policyWatch{versions: []guardv1alpha1.SingletonPolicyStatus{s.policy().Status}}
	clients, err := client.NewWithWatch(s.cp.AdminConfig(0), client.Options{Scheme: scheme})
	if err != nil {
		s.t.Fatal(err)
	}
	events, err := clients.Watch(s.ctx(), &guardv1alpha1.SingletonPolicyList{}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: s.policy().ResourceVersion}})
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(events.Stop)
	go func() {
		for event := range events.ResultChan() {
			if policy, ok := event.Object.(*guardv1alpha1.SingletonPolicy); ok {
				p.mutex.Lock()
				p.versions = append(p.versions, policy.Status)
				p.mutex.Unlock()
			}
		}
	}()
	return p
}

// handovers counts how often another identity got the slot.
func (p *policyWatch) handovers() int {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	count, last := 0, ""
	for _, version := range p.versions {
		if holder := version.Holder; holder != nil && holder.Display != last {
			if last != "" {
				count++
			}
			last = holder.Display
		}
	}
	return count
}

// check holds the versions to what the slot promises: the epoch never falls, each
// new holder has one of its own, and between two holders the pin was cleared.
func (p *policyWatch) check(t *testing.T) {
	t.Helper()
	handovers := p.handovers()
	p.mutex.Lock()
	defer p.mutex.Unlock()
	epochs := map[int64]types.UID{}
	for i := 1; i < len(p.versions); i++ {
		before, now := p.versions[i-1], p.versions[i]
		from, to := before.Holder, now.Holder
		if now.Epoch < before.Epoch {
			t.Errorf("epoch fell from %d to %d", before.Epoch, now.Epoch)
		}
		switch {
		case to == nil && from != nil && from.Phase != guardv1alpha1.HolderReleasing:
			t.Errorf("%s was %s when its slot was free", from.Display, from.Phase)
		case from != nil && to != nil && from.Display != to.Display:
			t.Errorf("the slot went from %s to %s without being free", from.Display, to.Display)
		}
		if to == nil {
			continue
		}
		if uid, known := epochs[to.Epoch]; known && uid != to.UID {
			t.Errorf("epoch %d has the uids %s and %s", to.Epoch, uid, to.UID)
		}
		epochs[to.Epoch] = to.UID
	}
	t.Logf("%d versions of the status, %d handovers", len(p.versions), handovers)
	if handovers == 0 {
		t.Error("the slot never went to another")
	}
}
