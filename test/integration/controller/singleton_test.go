package controller_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/singleton"
	"github.com/metacontroller-solo/solo/test/kit"
)

// expiry is how long a lease that nobody renews may stand, and what a waiting
// process may take to notice.
const expiry = singleton.Duration + 3*singleton.RetryPeriod + 10*time.Second

func (f *fixture) lease() *coordinationv1.Lease {
	f.t.Helper()
	lease := &coordinationv1.Lease{}
	if err := f.client.Get(f.t.Context(), client.ObjectKey{Namespace: singleton.DefaultNamespace, Name: f.leaseName}, lease); err != nil {
		f.t.Fatal(err)
	}
	return lease
}

func (f *fixture) holder() singleton.Holder {
	f.t.Helper()
	return singleton.HolderOf(f.lease())
}

// waitRenewal waits until the lease is renewed, so that a test starts at a known
// place between two renewals.
func (f *fixture) waitRenewal() {
	f.t.Helper()
	before := f.holder().Renewed
	kit.Eventually(f.t, soon, func() error {
		if f.holder().Renewed.Equal(before) {
			return errors.New("the lease is not renewed")
		}
		return nil
	})
}

func TestSecondInstanceWaits(t *testing.T) {
	f := newSingletonFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	f.composite(nil)
	first := f.start()
	identity := f.holder().Identity
	if identity != "one_one-uid" {
		t.Errorf("holder is %q", identity)
	}

	second := f.launch("two")
	line := second.WaitLine(soon, "Waiting for the singleton lease")
	if !strings.Contains(line, `"holder":"one_one-uid"`) || !strings.Contains(line, `"since":"20`) {
		t.Errorf("it does not say who holds it, since when: %s", line)
	}
	// It syncs nothing: each parent's hook call is the first's.
	f.thing("a", object{"count": 1, "value": "x"})
	f.waitChildren("a-", map[string]string{"a-0": "x"})
	if strings.Contains(second.Output(), "Started controller") {
		t.Error("the second one runs controllers")
	}

	// A clean stop hands over without waiting for the lease to end.
	stopped := time.Now()
	if code := first.Stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	if out := first.Output(); !strings.Contains(out, "Released the singleton lease") {
		t.Error("the first one did not release the lease")
	}
	second.WaitLine(soon, "Holding the singleton lease")
	if took := time.Since(stopped); took > singleton.Duration-singleton.RetryPeriod {
		t.Errorf("the hand-over took %s", took)
	}
	f.delete(f.configMap("a-0"))
	f.waitChildren("a-", map[string]string{"a-0": "x"})
}

func TestWaitingInstanceStops(t *testing.T) {
	f := newSingletonFixture(t)
	f.start()
	second := f.launch("two")
	second.WaitLine(soon, "Waiting for the singleton lease")
	if code := second.Stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
	if holder := f.holder(); holder.Identity != "one_one-uid" {
		t.Errorf("holder is %q", holder.Identity)
	}
}

func TestTakeOverAfterAKill(t *testing.T) {
	for _, pod := range []string{"two", "one"} {
		t.Run(pod, func(t *testing.T) {
			f := newFixture(t)
			first := f.start()
			// "one" is another process of the same Pod: it, too, waits.
			second := f.launch(pod)
			second.WaitLine(soon, "Waiting for the singleton lease")
			f.waitRenewal()
			first.Kill()
			last := f.holder()
			second.WaitLine(expiry, "Holding the singleton lease")
			now := f.holder()
			if now.Process == last.Process {
				t.Fatalf("the lease is still %+v", now)
			}
			if after := now.Since.Sub(last.Renewed); after < singleton.Duration {
				t.Errorf("taken over %s after the last renewal, before it ended", after)
			}
			if got := *f.lease().Spec.LeaseTransitions; got != 1 {
				t.Errorf("%d transitions", got)
			}
		})
	}
}

func TestStolenLease(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	f.composite(nil)
	p := f.start()
	f.thing("a", object{"count": 1, "value": "x"})
	f.waitChildren("a-", map[string]string{"a-0": "x"})
	f.patch(f.lease(), `{"spec":{"holderIdentity":"thief_1"}}`)
	if code := p.ExitCode(soon); code != 1 {
		t.Errorf("exit code %d", code)
	}
	line := p.WaitLine(soon, "metacontroller: ")
	if !strings.Contains(line, "lease is lost") || !strings.Contains(line, "thief_1") {
		t.Errorf("it says %q", line)
	}
	if holder := f.holder(); holder.Identity != "thief_1" {
		t.Errorf("holder is %q", holder.Identity)
	}
}

func TestDeletedLeaseIsTakenAgain(t *testing.T) {
	f := newFixture(t)
	p := f.start()
	f.waitRenewal()
	f.dropLease()
	kit.Eventually(t, soon, func() error {
		lease := &coordinationv1.Lease{}
		return f.client.Get(t.Context(), client.ObjectKey{Namespace: singleton.DefaultNamespace, Name: f.leaseName}, lease)
	})
	if holder := f.holder(); holder.Identity != "one_one-uid" {
		t.Errorf("holder is %q", holder.Identity)
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// freeze stops a process and returns when all of its threads stand: on a busy
// machine some run on for a while after the signal.
func (f *fixture) freeze(p *kit.Program) {
	f.t.Helper()
	p.Signal(syscall.SIGSTOP)
	kit.Eventually(f.t, soon, func() error {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.Pid()))
		if err != nil || len(tasks) == 0 {
			// Not Linux.
			state, err := exec.Command("ps", "-o", "state=", "-p", strconv.Itoa(p.Pid())).Output()
			if err == nil && !strings.HasPrefix(strings.TrimSpace(string(state)), "T") {
				return fmt.Errorf("its state is %q", state)
			}
			return err
		}
		for _, task := range tasks {
			stat, err := os.ReadFile(task)
			if err != nil {
				return err
			}
			// The state follows the name, which is in parentheses.
			if _, state, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(state, "T") {
				return fmt.Errorf("a thread is not stopped: %.1s", state)
			}
		}
		return nil
	})
}

// TestFrozenInstanceWritesNothing stops a process for longer than its lease
// lasts. Another takes over; the first one, once it goes on, ends without a
// write.
func TestFrozenInstanceWritesNothing(t *testing.T) {
	f := newFixture(t)
	release := make(chan struct{})
	f.hooks.Handle("/sync", kit.Held(release, defaultHook()))
	f.composite(nil)
	first := f.start()
	// A pass of the first is under way when it freezes; its answer comes then.
	parent := f.thing("a", object{"count": 1, "value": "x"})
	f.hooks.WaitRequests(soon, "/sync", 1)
	f.waitRenewal()
	f.freeze(first)
	before := len(f.writes())
	close(release)

	second := f.launch("two", "--target-label-selector=test=nothing")
	second.WaitLine(expiry, "Holding the singleton lease")
	first.Signal(syscall.SIGCONT)
	if code := first.ExitCode(soon); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if after := f.writes(); len(after) != before {
		t.Errorf("it wrote after it had lost the lease: %v", after[before:])
	}
	if holder := f.holder(); holder.Identity != "two_two-uid" {
		t.Errorf("holder is %q", holder.Identity)
	}
	if got := f.children("a-"); len(got) > 0 {
		t.Errorf("%s has children %v", parent.GetName(), got)
	}
}

func TestLeaderElectionHoldsItsLeaseToo(t *testing.T) {
	f := newSingletonFixture(t)
	p := f.start("--leader-election", "--leader-election-namespace="+kit.ControllerNamespace)
	p.WaitLine(soon, fmt.Sprintf(`"lease":"%s/%s"`, singleton.DefaultNamespace, singleton.DefaultName))
	elected := &coordinationv1.Lease{}
	key := client.ObjectKey{Namespace: kit.ControllerNamespace, Name: "metacontroller"}
	if err := f.client.Get(t.Context(), key, elected); err != nil {
		t.Fatal(err)
	}
	if holder := singleton.HolderOf(elected); holder.Identity != "one_one-uid" {
		t.Errorf("holder is %q", holder.Identity)
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if err := f.client.Get(t.Context(), key, elected); err != nil {
		t.Fatal(err)
	}
	if !singleton.HolderOf(elected).Free() || !f.holder().Free() {
		t.Error("a lease is still held")
	}
}
