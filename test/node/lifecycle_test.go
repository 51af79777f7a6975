package node_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func TestRestartPolicies(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	policy := func(policy corev1.RestartPolicy) func(*corev1.Pod) {
		return func(pod *corev1.Pod) { pod.Spec.RestartPolicy = policy }
	}
	terminated := func(pod *corev1.Pod) *corev1.ContainerStateTerminated {
		return pod.Status.ContainerStatuses[0].State.Terminated
	}

	w.pod(n, "done", "exit 0", policy(corev1.RestartPolicyNever))
	w.pod(n, "failed", "exit 7", policy(corev1.RestartPolicyNever))
	w.pod(n, "killed", "kill -KILL $$$$", policy(corev1.RestartPolicyNever))
	w.pod(n, "none", "", policy(corev1.RestartPolicyNever), func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "example.com/none" })
	w.pod(n, "twice", `[ -e "$HOME/x" ] || { touch "$HOME/x"; exit 3; }`, policy(corev1.RestartPolicyOnFailure))
	w.pod(n, "loop", "echo ran; exit 1", policy(corev1.RestartPolicyAlways))
	deadline := int64(1)
	w.pod(n, "old", "exec sleep 600", func(pod *corev1.Pod) { pod.Spec.ActiveDeadlineSeconds = &deadline })

	pod := w.until("done", "done", phase(corev1.PodSucceeded))
	if s := terminated(pod); s == nil || s.ExitCode != 0 || s.Reason != "Completed" {
		t.Errorf("done: %+v", s)
	}
	if !has(corev1.PodReady, corev1.ConditionFalse)(pod) {
		t.Error("a pod that is done is ready")
	}
	if s := terminated(w.until("failed", "failed", phase(corev1.PodFailed))); s == nil || s.ExitCode != 7 || s.Reason != "Error" || s.StartedAt.IsZero() || s.FinishedAt.IsZero() {
		t.Errorf("failed: %+v", s)
	}
	if s := terminated(w.until("killed", "failed", phase(corev1.PodFailed))); s == nil || s.ExitCode != 137 {
		t.Errorf("killed: %+v", s)
	}
	if s := terminated(w.until("none", "failed", phase(corev1.PodFailed))); s == nil || s.ExitCode != 128 || s.Reason != "StartError" || !strings.Contains(s.Message, "/no/such/program") {
		t.Errorf("none: %+v", s)
	}
	pod = w.until("twice", "done", phase(corev1.PodSucceeded))
	if s := pod.Status.ContainerStatuses[0]; s.RestartCount != 1 || s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != 3 {
		t.Errorf("twice: %+v", s)
	}
	pod = w.until("loop", "crash looping", func(pod *corev1.Pod) bool {
		s := pod.Status.ContainerStatuses
		return len(s) > 0 && s[0].RestartCount >= 3 && s[0].State.Waiting != nil && s[0].State.Waiting.Reason == "CrashLoopBackOff"
	})
	if s := pod.Status.ContainerStatuses[0]; pod.Status.Phase != corev1.PodRunning || s.LastTerminationState.Terminated == nil || s.LastTerminationState.Terminated.ExitCode != 1 {
		t.Errorf("loop: %s %+v", pod.Status.Phase, s)
	}
	w.event("loop", "BackOff", "main")
	if pod = w.until("old", "failed", phase(corev1.PodFailed)); pod.Status.Reason != "DeadlineExceeded" {
		t.Errorf("old: %+v", pod.Status)
	}
	for _, name := range []string{"done", "loop", "old"} {
		w.delete(name, metav1.DeleteOptions{})
	}
	for _, name := range []string{"done", "loop", "old"} {
		w.untilGone(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
}

// Init containers run in order; a sidecar starts between them, serves the containers, and ends after them.
func TestInitContainersAndSidecars(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	always := corev1.ContainerRestartPolicyAlways
	file := filepath.Join(t.TempDir(), "order")
	step := func(name, script string, sidecar bool) corev1.Container {
		c := corev1.Container{Name: name, Image: shell, Args: []string{"-c", script}}
		if sidecar {
			c.RestartPolicy = &always
		}
		return c
	}
	say := func(word string) string { return "echo " + word + " >> " + file }
	w.pod(n, "p", say("main"), func(pod *corev1.Pod) {
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		pod.Spec.InitContainers = []corev1.Container{
			step("first", say("first"), false),
			step("side", "trap '"+say("side-ends")+"; exit 0' TERM; "+say("side")+"; touch "+file+".up; sleep 600 & wait", true),
			step("second", say("second"), false),
		}
		pod.Spec.InitContainers[1].StartupProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 60, ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"test", "-e", file + ".up"}}}}
	})
	pod := w.until("p", "done", phase(corev1.PodSucceeded))
	order, err := os.ReadFile(file)
	if err != nil || string(order) != "first\nside\nsecond\nmain\nside-ends\n" {
		t.Errorf("order %q, %v", order, err)
	}
	for _, s := range pod.Status.InitContainerStatuses {
		if s.State.Terminated == nil || s.State.Terminated.ExitCode != 0 {
			t.Errorf("%s: %+v", s.Name, s.State)
		}
	}
	if !has(corev1.PodInitialized, corev1.ConditionTrue)(pod) {
		t.Error("the pod is not initialized")
	}

	w.pod(n, "bad", "exit 0", func(pod *corev1.Pod) {
		pod.Spec.RestartPolicy = corev1.RestartPolicyNever
		pod.Spec.InitContainers = []corev1.Container{step("side", "exec sleep 600", true), step("bad", "exit 4", false)}
	})
	pod = w.until("bad", "failed", phase(corev1.PodFailed))
	if s := pod.Status.ContainerStatuses[0]; s.State.Waiting == nil || s.State.Waiting.Reason != "PodInitializing" {
		t.Errorf("the container of a pod that was not initialized: %+v", s)
	}
	w.pod(n, "again", "exec sleep 600", func(pod *corev1.Pod) {
		pod.Spec.InitContainers = []corev1.Container{step("again", `[ -e "$HOME/x" ] || { touch "$HOME/x"; exit 1; }`, false)}
	})
	if pod = w.until("again", "ready", ready); pod.Status.InitContainerStatuses[0].RestartCount != 1 {
		t.Errorf("init container %+v", pod.Status.InitContainerStatuses[0])
	}
}

func TestProbes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	get := func(path string) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path, Port: intstr.FromString("http")}}
	}
	pod := w.pod(n, "p", "", func(pod *corev1.Pod) {
		c := &pod.Spec.Containers[0]
		c.Image, c.Args = helper, []string{"serve", "$(POD_IP):18080"}
		c.Env = []corev1.EnvVar{
			{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
			{Name: "FIRST_STATUS", Value: "503"},
		}
		c.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 18080}}
		c.StartupProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(18080)}}, PeriodSeconds: 1, FailureThreshold: 120, TimeoutSeconds: 5}
		c.ReadinessProbe = &corev1.Probe{ProbeHandler: get("/health"), PeriodSeconds: 1, FailureThreshold: 1, TimeoutSeconds: 5}
		// Dies for good with 500, but may be slow.
		c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", `test ! -e "$HOME/dead"`}}}, PeriodSeconds: 1, FailureThreshold: 2, TimeoutSeconds: 10}
	})
	pod = w.until(pod.Name, "started, not ready", func(pod *corev1.Pod) bool {
		return len(pod.Status.ContainerStatuses) > 0 && *pod.Status.ContainerStatuses[0].Started && !ready(pod)
	})
	first := pid(w, pod)
	set := func(status string) {
		w.eventually(func() error {
			_, err := httpGet("http://" + pod.Status.PodIP + ":18080/set?status=" + status)
			return err
		})
	}
	w.event("p", "Unhealthy", "503")
	set("204")
	w.until("p", "ready", ready)
	set("500")
	w.until("p", "not ready", has(corev1.PodReady, corev1.ConditionFalse))
	set("200")
	w.until("p", "ready again", ready)
	if pod = w.until("p", "running", phase(corev1.PodRunning)); pid(w, pod) != first || pod.Status.ContainerStatuses[0].RestartCount != 0 {
		t.Error("readiness restarts a container")
	}
	// The probe runs in the container's folder.
	if err := w.run("exec", "p", "--", "/bin/sh", "-c", `touch "$HOME/dead"`); err != nil {
		t.Fatal(err)
	}
	w.until("p", "restarted", func(pod *corev1.Pod) bool { return pod.Status.ContainerStatuses[0].RestartCount >= 1 })
	w.event("p", "Killing", "failed liveness probe")
	w.untilDead(first)
}

func (w *world) run(args ...string) error {
	_, err := w.kubectl(args...)
	return err
}

// A deletion gives preStop and SIGTERM their time, then SIGKILL, and the object goes only after the last process.
func TestTermination(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	file := filepath.Join(t.TempDir(), "trace")
	grace := int64(60)
	w.pod(n, "polite", "trap 'sleep 1; echo end >> "+file+"; exit 0' TERM; echo up; sleep 600 & wait", func(pod *corev1.Pod) {
		pod.Spec.TerminationGracePeriodSeconds = &grace
		pod.Spec.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{Command: []string{"/bin/sh", "-c", "sleep 1; echo hook >> " + file}}}}
	})
	short := int64(2)
	w.pod(n, "deaf", "trap '' TERM; (trap '' TERM; sleep 600) & echo child $!; while :; do sleep 1; done", func(pod *corev1.Pod) {
		pod.Spec.TerminationGracePeriodSeconds = &short
	})
	polite, deaf := w.until("polite", "ready", ready), w.until("deaf", "ready", ready)
	var child int
	if _, err := fmt.Sscanf(w.untilLog("deaf", "child "), "child %d", &child); err != nil {
		t.Fatal(err)
	}

	w.untilLog("polite", "up")
	began := time.Now()
	w.delete("polite", metav1.DeleteOptions{})
	w.delete("deaf", metav1.DeleteOptions{})
	w.untilGone(deaf)
	if took := time.Since(began); took < 2*time.Second {
		t.Errorf("a pod that ignores SIGTERM went after %s", took)
	}
	if lives(pid(w, deaf)) || lives(child) {
		t.Error("the object went before the processes")
	}
	w.untilGone(polite)
	trace, err := os.ReadFile(file)
	if err != nil || string(trace) != "hook\nend\n" {
		t.Errorf("trace %q, %v", trace, err)
	}

	// A second deletion with less time brings the end nearer.
	grace = 600
	slow := w.pod(n, "slow", "trap '' TERM; while :; do sleep 1; done", func(pod *corev1.Pod) { pod.Spec.TerminationGracePeriodSeconds = &grace })
	w.until("slow", "ready", ready)
	w.delete("slow", metav1.DeleteOptions{})
	w.event("slow", "Killing", "main")
	w.delete("slow", *metav1.NewDeleteOptions(1))
	w.untilGone(slow)
}

// A Pod that is deleted while an init container runs, which VK takes for one without processes, goes after its process too.
func TestTerminationWhileInitializing(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	w.pod(n, "p", "exit 0", func(pod *corev1.Pod) {
		pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: shell, Args: []string{"-c", "trap '' TERM; echo pid $$; while :; do sleep 1; done"}}}
	})
	pod := w.until("p", "initializing", func(pod *corev1.Pod) bool {
		return len(pod.Status.InitContainerStatuses) > 0 && pod.Status.InitContainerStatuses[0].State.Running != nil
	})
	pod.Status.ContainerStatuses = pod.Status.InitContainerStatuses
	process := pid(w, pod)
	w.delete("p", metav1.DeleteOptions{})
	w.untilGone(pod)
	if lives(process) {
		t.Error("the object went before the process")
	}
}

// A Pod that is removed from the API at once is ended by the node, and a namesake starts only after it.
func TestForceDeleteAndNamesake(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	file := filepath.Join(t.TempDir(), "trace")
	grace := int64(60)
	no := false
	slow := func(pod *corev1.Pod) {
		pod.Spec.TerminationGracePeriodSeconds = &grace
		// Without the token's volume the two Pods are alike but for the uid.
		pod.Spec.AutomountServiceAccountToken = &no
	}
	// Each process looks whether the one before lives. It takes its time to end, though a forced deletion leaves it a second only.
	script := "trap 'sleep 0.5; exit 0' TERM; kill -0 $(cat " + file + ") && echo overlap; echo $$$$ > " + file + "; echo up; sleep 600 & wait"
	w.pod(n, "p", script, slow)
	first := w.until("p", "ready", ready)
	w.untilLog("p", "up")
	w.delete("p", force())
	second := w.pod(n, "p", script, slow)
	pod := w.until("p", "ready", ready)
	if pod.UID != second.UID || lives(pid(w, first)) || strings.Contains(w.untilLog("p", "up"), "overlap") {
		t.Error("the first pod lives beside its namesake")
	}
	// A fourth comes before the third has started, for the second still ends; no process of any is left in the end.
	w.delete("p", force())
	w.pod(n, "p", script, slow)
	w.delete("p", force())
	w.pod(n, "p", script, slow)
	last := w.until("p", "ready", ready)
	if lives(pid(w, pod)) || strings.Contains(w.untilLog("p", "up"), "overlap") {
		t.Error("the second pod lives beside its namesake")
	}
	w.delete("p", metav1.DeleteOptions{})
	w.untilGone(last)
}

// A StatefulSet's next Pod comes after the last one's process.
func TestStatefulSet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	file := filepath.Join(t.TempDir(), "trace")
	one, grace := int32(1), int64(60)
	labels := map[string]string{"app": "set"}
	_, err := w.client.AppsV1().StatefulSets(w.namespace).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "set"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels}, ServiceName: "set",
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					NodeSelector: map[string]string{corev1.LabelHostname: n.Name()}, TerminationGracePeriodSeconds: &grace,
					Containers: []corev1.Container{{Name: "main", Image: shell, Args: []string{"-c", "trap 'sleep 1; echo end >> " + file + "; exit 0' TERM; echo start >> " + file + "; echo up; sleep 600 & wait"}}},
				},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	last := w.until("set-0", "ready", ready)
	for range 3 {
		w.untilLog("set-0", "up")
		w.delete("set-0", metav1.DeleteOptions{})
		next := w.until("set-0", "ready", func(pod *corev1.Pod) bool { return pod.UID != last.UID && ready(pod) })
		if lives(pid(w, last)) {
			t.Error("the last pod lives beside the next")
		}
		last = next
	}
	w.untilLog("set-0", "up")
	trace, err := os.ReadFile(file)
	if err != nil || strings.TrimSpace(string(trace)) != "start\nend\nstart\nend\nstart\nend\nstart" {
		t.Errorf("trace %q, %v", trace, err)
	}
	if err := w.client.AppsV1().StatefulSets(w.namespace).Delete(context.Background(), "set", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.untilGone(last)
}

// A status that someone else wrote over is put right, and what belongs to others stays.
func TestStatusIsCorrected(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	w.pod(n, "p", "exec sleep 600")
	pod := w.until("p", "ready", ready)
	i := slices.IndexFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady })
	pod.Status.Conditions[i].Status = corev1.ConditionFalse
	pod.Status.Conditions = append(pod.Status.Conditions, corev1.PodCondition{Type: "example.com/x", Status: corev1.ConditionTrue})
	if _, err := w.client.CoreV1().Pods(w.namespace).UpdateStatus(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("p", "ready", func(pod *corev1.Pod) bool { return ready(pod) && has("example.com/x", corev1.ConditionTrue)(pod) })
}
