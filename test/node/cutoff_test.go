package node_test

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacontroller-solo/solo/test/node"
)

// A node that is cut off keeps its processes, is seen as not ready, and catches up when healed: what was removed meanwhile ends, what
// stayed goes on in the same process, what is new starts once.
func TestCutOff(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]node.CutOffMode{"refuse": node.Refuse, "black hole": node.BlackHole} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			n := w.node()
			starts := filepath.Join(t.TempDir(), "starts")
			no := false
			alike := func(pod *corev1.Pod) { pod.Spec.AutomountServiceAccountToken = &no }
			script := "echo start >> " + starts + "; exec sleep 600"
			w.pod(n, "stays", "exec sleep 600")
			w.pod(n, "removed", "exec sleep 600")
			w.pod(n, "replaced", script, alike)
			w.pod(n, "deleted", "exec sleep 600")
			w.pod(n, "asks", "", func(pod *corev1.Pod) {
				pod.Spec.Containers[0].Image, pod.Spec.Containers[0].Args = helper, []string{"ask"}
			})
			pids, uids := map[string]int{}, map[string]string{}
			for _, name := range []string{"stays", "removed", "replaced", "deleted", "asks"} {
				pod := w.until(name, "ready", ready)
				pids[name], uids[name] = pid(w, pod), string(pod.UID)
			}
			w.untilLog("asks", "answer\n")

			n.CutOff(mode)
			w.eventually(func() error {
				object, err := w.client.CoreV1().Nodes().Get(t.Context(), n.Name(), metav1.GetOptions{})
				if err == nil && !nodeReady(object, corev1.ConditionUnknown) {
					err = fmt.Errorf("node conditions %+v", object.Status.Conditions)
				}
				return err
			})
			w.until("stays", "not ready", has(corev1.PodReady, corev1.ConditionFalse))
			w.delete("removed", force())
			w.delete("replaced", force())
			w.pod(n, "replaced", script, alike)
			w.pod(n, "new", script, alike)
			// A graceful deletion waits for the node.
			w.delete("deleted", metav1.DeleteOptions{})
			if _, err := w.get("deleted"); err != nil {
				t.Errorf("a pod on a node that is cut off: %v", err)
			}
			if _, err := w.client.CoreV1().Pods(w.namespace).GetLogs("stays", &corev1.PodLogOptions{}).DoRaw(t.Context()); err == nil {
				t.Error("the kubelet API answers through a partition")
			}
			for name, pid := range pids {
				if !lives(pid) {
					t.Errorf("the process of %s ended with the cut", name)
				}
			}

			n.Heal()
			for _, name := range []string{"removed", "replaced", "deleted"} {
				w.untilDead(pids[name])
			}
			w.untilGone(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "deleted", UID: "none"}})
			for _, name := range []string{"replaced", "new"} {
				if pod := w.until(name, "ready", ready); string(pod.UID) == uids[name] || pod.Status.ContainerStatuses[0].RestartCount != 0 {
					t.Errorf("%s: %+v", name, pod.Status.ContainerStatuses)
				}
			}
			for _, name := range []string{"stays", "asks"} {
				if pod := w.until(name, "ready again", ready); pid(w, pod) != pids[name] || pod.Status.ContainerStatuses[0].RestartCount != 0 {
					t.Errorf("%s was started again: %+v", name, pod.Status.ContainerStatuses)
				}
			}
			if data, err := os.ReadFile(starts); err != nil || strings.Count(string(data), "start") != 3 {
				t.Errorf("starts %q, %v; want 3", data, err)
			}
			w.eventually(func() error {
				object, err := w.client.CoreV1().Nodes().Get(t.Context(), n.Name(), metav1.GetOptions{})
				if err == nil && !nodeReady(object, corev1.ConditionTrue) {
					err = fmt.Errorf("node conditions %+v", object.Status.Conditions)
				}
				return err
			})
			// The Pods' own clients were cut off with the node and are back.
			if log := w.logs("asks", corev1.PodLogOptions{}); !strings.Contains(log, "error\n") {
				t.Errorf("the pod's client was not cut off: %q", log)
			}
			tail := int64(1)
			w.eventually(func() error {
				if last := w.logs("asks", corev1.PodLogOptions{TailLines: &tail}); last != "answer\n" {
					return fmt.Errorf("the pod's client gets %q", last)
				}
				return nil
			})
		})
	}
}

// Stop ends all processes, and a later node of the same name takes up the Pods that are assigned to it.
func TestStopAndStartAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	options := w.options()
	options.StopLimit = 3 * time.Second
	first, err := node.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "trace")
	never := func(pod *corev1.Pod) { pod.Spec.RestartPolicy = corev1.RestartPolicyNever }
	w.pod(first, "polite", "trap 'echo end >> "+file+"; exit 0' TERM; echo up; sleep 600 & wait")
	w.pod(first, "deaf", "trap '' TERM; while :; do sleep 1; done")
	w.pod(first, "never", "exec sleep 600", never)
	w.pod(first, "done", "echo output", never)
	w.pod(first, "deleted", "trap '' TERM; while :; do sleep 1; done", func(pod *corev1.Pod) {
		long := int64(600)
		pod.Spec.TerminationGracePeriodSeconds = &long
	})
	w.pod(first, "removed", "exec sleep 600")
	pids := map[string]int{}
	for _, name := range []string{"polite", "deaf", "never", "deleted", "removed"} {
		pids[name] = pid(w, w.until(name, "ready", ready))
	}
	w.until("done", "done", phase(corev1.PodSucceeded))
	w.untilLog("polite", "up")
	w.delete("deleted", metav1.DeleteOptions{})
	began := time.Now()
	first.Stop()
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("Stop took %s", took)
	}
	for name, pid := range pids {
		if lives(pid) {
			t.Errorf("the process of %s lives after Stop", name)
		}
	}
	if trace, err := os.ReadFile(file); err != nil || string(trace) != "end\n" {
		t.Errorf("trace %q, %v: the end was not graceful", trace, err)
	}
	// For the API nothing has happened yet.
	for _, name := range []string{"polite", "deleted"} {
		if pod, err := w.get(name); err != nil || pod.Status.Phase != corev1.PodRunning {
			t.Errorf("%s: %v, %v", name, pod.Status.Phase, err)
		}
	}
	w.delete("removed", force())

	w.start(options)
	for _, name := range []string{"polite", "deaf"} {
		pod := w.until(name, "ready again", func(pod *corev1.Pod) bool { return ready(pod) && pod.Status.ContainerStatuses[0].RestartCount == 1 })
		s := pod.Status.ContainerStatuses[0]
		if pid(w, pod) == pids[name] || s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.Reason != "ContainerStatusUnknown" {
			t.Errorf("%s: %+v", name, s)
		}
	}
	if s := w.until("never", "failed", phase(corev1.PodFailed)).Status.ContainerStatuses[0]; s.RestartCount != 0 || s.State.Terminated == nil || s.State.Terminated.ExitCode != 137 {
		t.Errorf("never: %+v", s)
	}
	w.untilGone(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "deleted", UID: "none"}})
	if log := w.logs("done", corev1.PodLogOptions{}); log != "output\n" {
		t.Errorf("the log of a pod that was done before: %q", log)
	}
	w.eventually(func() error {
		entries, err := os.ReadDir(filepath.Join(options.Dir, "pods"))
		if err == nil && len(entries) != 4 {
			err = fmt.Errorf("folders %v; want those of 4 pods", entries)
		}
		return err
	})
}

// Stop works while the node is cut off, in the time it was given.
func TestStopWhileCutOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	w.pod(n, "p", "exec sleep 600")
	process := pid(w, w.until("p", "ready", ready))
	n.CutOff(node.BlackHole)
	began := time.Now()
	n.Stop()
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("Stop took %s", took)
	}
	if lives(process) {
		t.Error("the process lives")
	}
}

// Each Pod has an address of its own, so that two can have the same port.
func TestOwnAddresses(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	for _, name := range []string{"a", "b"} {
		w.pod(n, name, "", serving(18081))
	}
	for _, name := range []string{"a", "b"} {
		pod := w.until(name, "ready", ready)
		body, err := httpGet("http://" + net.JoinHostPort(pod.Status.PodIP, "18081") + "/")
		if err != nil || body != name {
			t.Errorf("%s answers %q, %v", name, body, err)
		}
	}
}
