package fence_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/singleton"
	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/kit/process"
	"github.com/metacontroller-solo/solo/test/node"
)

// image is one that the policies recognise; on the tests' nodes it is the writer.
const image = "ghcr.io/metacontroller-solo/controller:v0.1.0"

// startNode joins a node whose programs talk to one of the API servers, and of
// which it loses sight.
func (w *world) startNode(name string, server int, lost string) *node.Node {
	w.Helper()
	config, err := w.cp.NodeConfig(name)
	w.must(err)
	address := netip.AddrFrom4([4]byte{127, 120, 0, byte(server + 1)})
	pair, err := w.cp.CA().IssueServer(name, address.String())
	w.must(err)
	serving, err := tls.X509KeyPair(pair.Cert, pair.Key)
	w.must(err)
	program, err := os.Executable()
	w.must(err)
	started, err := node.Start(w.Context(), node.Options{
		Name: name, Config: w.cp.At(server, config), Address: address, ServingCert: serving, ClientCAs: w.cp.CA().Pool(),
		PodRange: netip.PrefixFrom(netip.AddrFrom4([4]byte{127, 121, byte(server), 0}), 24), Dir: w.TempDir(),
		Images:    node.Images{"ghcr.io/metacontroller-solo/controller": node.Program{Path: program}},
		Environ:   map[string]string{writerEnv: "1", lostEnv: lost},
		Heartbeat: time.Second, Refresh: 500 * time.Millisecond, StopLimit: time.Second,
	})
	w.must(err)
	w.Cleanup(started.Stop)
	return started
}

func (w *world) statefulSet() *appsv1.StatefulSet {
	w.Helper()
	labels := map[string]string{"app": "fence-writer"}
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: "metacontroller"}, Spec: appsv1.StatefulSetSpec{
		Replicas: ptr.To[int32](1), ServiceName: "none", Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{
			ServiceAccountName: account, TerminationGracePeriodSeconds: ptr.To[int64](25),
			// It is forced out by hand, not when the node has been away for long.
			Tolerations: []corev1.Toleration{{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}},
			Containers: []corev1.Container{{Name: "writer", Image: image, Env: []corev1.EnvVar{
				{Name: singleton.EnvPodName, ValueFrom: field("metadata.name")},
				{Name: singleton.EnvPodUID, ValueFrom: field("metadata.uid")},
				{Name: singleton.EnvPodNamespace, ValueFrom: field("metadata.namespace")},
			}}},
		}},
	}}
	w.must(w.admin().Create(w.Context(), set))
	w.Cleanup(func() {
		w.away(set)
		for pods := (&corev1.PodList{}); ; time.Sleep(100 * time.Millisecond) {
			if err := w.admin().List(context.Background(), pods, client.InNamespace(space), client.MatchingLabels(labels)); err != nil || len(pods.Items) == 0 {
				return
			}
			for i := range pods.Items {
				w.remove(&pods.Items[i])
			}
		}
	})
	return set
}

// writing waits until a Pod other than the one before is the writer and has
// written, and returns it.
func (w *world) writing(before types.UID) *corev1.Pod {
	w.Helper()
	pod := &corev1.Pod{}
	w.eventually(func() error {
		if err := w.admin().Get(w.Context(), client.ObjectKey{Namespace: space, Name: "metacontroller-0"}, pod); err != nil {
			return err
		}
		if pod.UID == before {
			return fmt.Errorf("the Pod is still the one before")
		}
		writer := w.policy().Status.Writer
		if writer == nil || writer.UID != pod.UID {
			return fmt.Errorf("Pod %s on %q is not the writer: %+v", pod.UID, pod.Spec.NodeName, writer)
		}
		return w.wrote(string(pod.UID))
	})
	return pod
}

// writesOn waits for another write of a Pod.
func (w *world) writesOn(pod *corev1.Pod) {
	w.Helper()
	read := func() *corev1.ConfigMap {
		object := &corev1.ConfigMap{}
		w.must(w.admin().Get(w.Context(), client.ObjectKey{Namespace: beats, Name: beat}, object))
		return object
	}
	before := read().ResourceVersion
	w.eventually(func() error {
		if read().ResourceVersion == before {
			return fmt.Errorf("nobody writes")
		}
		return w.wrote(string(pod.UID))
	})
}

// wrote looks for an accepted write of a Pod in the object that all write.
func (w *world) wrote(uid string) error {
	object := &corev1.ConfigMap{}
	if err := w.admin().Get(w.Context(), client.ObjectKey{Namespace: beats, Name: beat}, object); err != nil {
		return err
	}
	if !strings.HasSuffix(object.Data["by"], "_"+uid) {
		return fmt.Errorf("%q wrote last, not %s", object.Data["by"], uid)
	}
	return nil
}

// cordon keeps new Pods from a node, or lets them on it again once it is ready.
func (w *world) cordon(name string, closed bool) {
	w.Helper()
	w.eventually(func() error {
		object := &corev1.Node{}
		if err := w.admin().Get(w.Context(), client.ObjectKey{Name: name}, object); err != nil {
			return err
		}
		if !closed {
			for _, condition := range object.Status.Conditions {
				if condition.Type == corev1.NodeReady && condition.Status != corev1.ConditionTrue {
					return fmt.Errorf("node %s is not ready", name)
				}
			}
		}
		return w.admin().Patch(w.Context(), object, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, closed)))
	})
}

// TestPartition cuts the node of the writer off, deletes its Pod by force, lets the
// process live and heals the node. The writer's process never stops by itself, and
// the node, which would end it within a second or so, cannot.
// FENCE_RUNS is how often.
func TestPartition(t *testing.T) {
	w := newWorld(t)
	nodes, lost := map[string]*node.Node{}, t.TempDir()
	for server, name := range []string{"fence-a", "fence-b"} {
		nodes[name] = w.startNode(name, server, lost)
	}
	set := w.statefulSet()
	w.status(func(status *v1alpha1.SingletonPolicyStatus) { status.Holder = holder(set.UID) })
	active := w.writing("")
	// When the node comes back: while its token may still be cached, later, and when
	// the next one is at work already.
	heals := []time.Duration{500 * time.Millisecond, 5 * time.Second, 12 * time.Second, -1}
	var rows []string
	var worst handover
	shortest := time.Duration(-1)
	for run := range number(t, "FENCE_RUNS", 1) {
		began := w.now()
		w.writesOn(active)
		cut := nodes[active.Spec.NodeName]
		for name := range nodes {
			w.cordon(name, name == cut.Name())
		}
		mode := []node.CutOffMode{node.Refuse, node.BlackHole}[run/4%2]
		cut.CutOff(mode)
		heal := heals[run%len(heals)]
		w.remove(active)
		deleted := time.Now()
		if heal >= 0 {
			time.Sleep(time.Until(deleted.Add(heal)))
			cut.Heal()
		}
		next := w.writing(active.UID)
		if heal < 0 {
			cut.Heal()
		}
		// The old process has written, or tried to, since it is back.
		var h handover
		w.eventually(func() error {
			all, err := events(w.cp, began)
			if err != nil {
				return err
			}
			h = handoverOf(all, string(active.UID), string(next.UID), deleted)
			if !h.wrote || h.forbidden+h.unauthorized < 3 {
				return fmt.Errorf("the old process is silent: %+v", h)
			}
			return nil
		})
		w.must(os.Remove(filepath.Join(lost, string(active.UID))))
		if h.late > 0 {
			t.Errorf("run %d: %d writes of the old Pod were accepted for %s after the first one of the new", run+1, h.late, h.overlap)
		}
		worst.overlap, worst.gap = max(worst.overlap, h.overlap), max(worst.gap, h.gap)
		if shortest < 0 || h.gap < shortest {
			shortest = h.gap
		}
		when := "after the new one's first write"
		if heal >= 0 {
			when = heal.String() + " after the deletion"
		}
		rows = append(rows, fmt.Sprintf("%4d  %-10s  %-31s  %9s  %12s  %10s  %9d  %12d", run+1, map[node.CutOffMode]string{node.Refuse: "refuse", node.BlackHole: "black hole"}[mode], when,
			h.oldAfter.Round(time.Millisecond), h.gap.Round(time.Millisecond), h.overlap, h.forbidden, h.unauthorized))
		active = next
	}
	t.Logf("\n run  link        healed                           old wrote    no writer     overlap  forbidden  unauthorized\n%s\n%d runs: longest overlap %s; no writer for %s to %s",
		strings.Join(rows, "\n"), len(rows), worst.overlap, shortest.Round(time.Millisecond), worst.gap.Round(time.Millisecond))
}

// TestPause stops a writer past its Lease, lets another take over, and wakes it up.
// Both Pods exist all the while, so that the token of the first stays good.
func TestPause(t *testing.T) {
	w := newWorld(t)
	w.spec(func(spec *v1alpha1.SingletonPolicySpec) { spec.Mode = v1alpha1.ModeLeaderElected })
	t.Run("H02_H03_paused_and_resumed", func(t *testing.T) {
		w := w.at(t)
		pods := []*corev1.Pod{w.pod("metacontroller-0"), w.pod("metacontroller-1")}
		w.freeLease()
		began := w.now()
		first := w.run(pods[0], w.bound(pods[0])[0].config)
		w.eventually(func() error { return w.wrote(string(pods[0].UID)) })
		w.run(pods[1], w.bound(pods[1])[1].config)
		w.must(first.Signal(syscall.SIGSTOP))
		paused := time.Now()
		w.eventually(func() error { return w.wrote(string(pods[1].UID)) })
		w.must(first.Signal(syscall.SIGCONT))
		var h handover
		w.eventually(func() error {
			all, err := events(w.cp, began)
			if err != nil {
				return err
			}
			h = handoverOf(all, string(pods[0].UID), string(pods[1].UID), paused)
			if !h.wrote || h.forbidden < 10 {
				return fmt.Errorf("the resumed process is silent: %+v", h)
			}
			return nil
		})
		if h.late > 0 {
			t.Errorf("%d writes of the paused process were accepted for %s after the first one of the other", h.late, h.overlap)
		}
		t.Logf("paused past its Lease: no writer for %s, overlap %s, %d writes forbidden after it was resumed", h.gap.Round(time.Millisecond), h.overlap, h.forbidden)
	})
}

// run starts a writer as a process that has a Pod's token and environment.
func (w *world) run(pod *corev1.Pod, config *rest.Config) *process.Process {
	w.Helper()
	path := w.TempDir() + "/kubeconfig"
	w.must(kit.WriteKubeconfig(path, config))
	program, err := os.Executable()
	w.must(err)
	started, err := process.Start(process.Spec{Name: pod.Name, Path: program, Env: []string{
		"PATH=" + os.Getenv("PATH"), writerEnv + "=1", "KUBECONFIG=" + path,
		singleton.EnvPodName + "=" + pod.Name, singleton.EnvPodUID + "=" + string(pod.UID), singleton.EnvPodNamespace + "=" + pod.Namespace,
	}})
	w.must(err)
	w.Cleanup(started.Kill)
	return started
}
