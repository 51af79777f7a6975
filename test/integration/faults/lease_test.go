package faults_test

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacontroller-solo/solo/pkg/singleton"
	"github.com/metacontroller-solo/solo/test/kit"
)

// stealLease puts another identity into the lease while all syncs wait for their
// hooks, which then answer.
func (w *world) stealLease() error {
	if err := w.updating.waitHolding(); err != nil {
		return err
	}
	release := make(chan struct{})
	w.moods.set(func(hook kit.Hook) kit.Hook { return kit.Held(release, hook) })
	defer w.moods.set(nil)
	// What was asked before still writes.
	time.Sleep(2 * briefly)
	w.waitQuiet()
	run := w.updating.now()
	written := w.writesOf(run)
	w.updating.rob("thief_1")
	if err := w.patchLease(w.updating.lease, `{"spec":{"holderIdentity":"thief_1"}}`); err != nil {
		return err
	}
	kit.Eventually(w.t, patience, func() error {
		if !run.said("Lost the singleton lease") {
			return errors.New("the loss is not noticed")
		}
		return nil
	})
	close(release)
	<-run.proc.Done()
	if status, _ := run.proc.Status(); status.Code != 1 {
		return fmt.Errorf("it ended with %s after it had lost the lease", status)
	}
	if now := w.writesOf(run); now != written {
		return fmt.Errorf("it wrote %d times after its lease was stolen", now-written)
	}
	defer w.updating.rob("")
	return w.updating.waitHolding()
}

// writesOf is how much a run has written, but for its lease.
func (w *world) writesOf(run *term) (n int) {
	if _, err := w.audit.read(w.cp); err != nil {
		w.t.Error(err)
	}
	for _, one := range w.audit.records {
		if one.credential() == run.credential && !one.ofLease() && one.accepted() {
			n++
		}
	}
	return n
}

func (w *world) patchLease(name, patch string) error {
	_, err := w.plain[0].CoordinationV1().Leases(singleton.DefaultNamespace).Patch(w.t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// deleteLease deletes the lease under its holder while another waits for it.
func (w *world) deleteLease() error {
	if err := w.updating.waitHolding(); err != nil {
		return err
	}
	w.standby.start()
	defer w.standby.stop()
	if err := w.standby.waitWaiting(); err != nil {
		return err
	}
	for range 2 {
		time.Sleep(w.someTime(singleton.RetryPeriod))
		err := w.plain[0].CoordinationV1().Leases(singleton.DefaultNamespace).Delete(w.t.Context(), w.updating.lease, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	// Until one of them has it.
	kit.Eventually(w.t, patience, func() error {
		_, err := w.plain[0].CoordinationV1().Leases(singleton.DefaultNamespace).Get(w.t.Context(), w.updating.lease, metav1.GetOptions{})
		return err
	})
	return nil
}

// freeze stops the holder in the middle of its work until another has taken over,
// and lets it go on then.
func (w *world) freeze() error {
	if err := w.updating.waitHolding(); err != nil {
		return err
	}
	w.standby.start()
	defer w.standby.stop()
	if err := w.standby.waitWaiting(); err != nil {
		return err
	}
	run := w.updating.now()
	w.updating.signal(syscall.SIGSTOP)
	if err := w.standby.waitHolding(); err != nil {
		return err
	}
	time.Sleep(w.someTime(2 * time.Second))
	w.updating.signal(syscall.SIGCONT)
	<-run.proc.Done()
	if status, _ := run.proc.Status(); status.Code != 1 {
		return fmt.Errorf("it ended with %s after it had lost the lease", status)
	}
	return nil
}

// partition keeps the controllers from the API servers for longer than they may
// write; others could have taken over.
func (w *world) partition() error {
	time.Sleep(w.someTime(briefly))
	w.proxy.Block()
	defer w.proxy.Unblock()
	w.proxy.Cut()
	time.Sleep(singleton.RenewDeadline + 3*time.Second)
	return nil
}
