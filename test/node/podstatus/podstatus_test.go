package podstatus

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

var now = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))

func running(started, ready bool) Container {
	return Container{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}, Started: started, Ready: ready}
}

func exited(code int32) Container {
	return Container{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}}}
}

// crashing waits to be started again.
func crashing(code int32) Container {
	return Container{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}, Last: exited(code).State}
}

var waiting = Container{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}}

func container(name string) corev1.Container { return corev1.Container{Name: name} }

func sidecar(name string) corev1.Container {
	always := corev1.ContainerRestartPolicyAlways
	return corev1.Container{Name: name, RestartPolicy: &always}
}

func TestPhaseAndConditions(t *testing.T) {
	type records = map[string]Container
	const always, onFailure, never = corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
	for _, c := range []struct {
		why        string
		policy     corev1.RestartPolicy
		init       []corev1.Container
		regular    []string
		records    records
		terminated bool
		failed     string
		phase      corev1.PodPhase
		// initialized, containersReady, ready
		conditions string
	}{
		{"nothing started", always, nil, []string{"a"}, nil, false, "", corev1.PodPending, "TFF"},
		{"image unknown", always, nil, []string{"a"}, records{"a": waiting}, false, "", corev1.PodPending, "TFF"},
		{"running, not ready", always, nil, []string{"a"}, records{"a": running(true, false)}, false, "", corev1.PodRunning, "TFF"},
		{"running, not started", always, nil, []string{"a"}, records{"a": running(false, true)}, false, "", corev1.PodRunning, "TFF"},
		{"ready", always, nil, []string{"a"}, records{"a": running(true, true)}, false, "", corev1.PodRunning, "TTT"},
		{"one of two started", always, nil, []string{"a", "b"}, records{"a": running(true, true), "b": waiting}, false, "", corev1.PodPending, "TFF"},
		{"crash loop", always, nil, []string{"a"}, records{"a": crashing(1)}, false, "", corev1.PodRunning, "TFF"},
		{"done but Always", always, nil, []string{"a"}, records{"a": exited(0)}, false, "", corev1.PodRunning, "TFF"},
		{"done", onFailure, nil, []string{"a"}, records{"a": exited(0)}, false, "", corev1.PodSucceeded, "TFF"},
		{"failed, again", onFailure, nil, []string{"a"}, records{"a": exited(1)}, false, "", corev1.PodRunning, "TFF"},
		{"failed, never again", never, nil, []string{"a"}, records{"a": exited(1)}, false, "", corev1.PodFailed, "TFF"},
		{"one failed, one runs", never, nil, []string{"a", "b"}, records{"a": exited(1), "b": running(true, true)}, false, "", corev1.PodRunning, "TFF"},
		{"one failed, one done", never, nil, []string{"a", "b"}, records{"a": exited(1), "b": exited(0)}, false, "", corev1.PodFailed, "TFF"},
		{"init runs", always, []corev1.Container{container("i")}, []string{"a"}, records{"i": running(false, false)}, false, "", corev1.PodPending, "FFF"},
		{"init done", always, []corev1.Container{container("i")}, []string{"a"}, records{"i": exited(0)}, false, "", corev1.PodPending, "TFF"},
		{"init failed, again", always, []corev1.Container{container("i")}, []string{"a"}, records{"i": crashing(1)}, false, "", corev1.PodPending, "FFF"},
		{"init failed for good", never, []corev1.Container{container("i")}, []string{"a"}, records{"i": exited(1)}, false, "", corev1.PodFailed, "FFF"},
		{"init failed for good, a sidecar still runs", never, []corev1.Container{sidecar("s"), container("i")}, []string{"a"}, records{"s": running(true, true), "i": exited(1)}, false, "", corev1.PodPending, "FFF"},
		{"sidecar starts", always, []corev1.Container{sidecar("s")}, []string{"a"}, records{"s": running(false, false)}, false, "", corev1.PodPending, "FFF"},
		{"sidecar and container ready", always, []corev1.Container{sidecar("s")}, []string{"a"}, records{"s": running(true, true), "a": running(true, true)}, false, "", corev1.PodRunning, "TTT"},
		{"sidecar not ready", always, []corev1.Container{sidecar("s")}, []string{"a"}, records{"s": running(true, false), "a": running(true, true)}, false, "", corev1.PodRunning, "TFF"},
		{"sidecar restarts", always, []corev1.Container{sidecar("s")}, []string{"a"}, records{"s": crashing(1), "a": running(true, true)}, false, "", corev1.PodRunning, "TFF"},
		{"done, sidecar still runs", never, []corev1.Container{sidecar("s")}, []string{"a"}, records{"s": running(true, true), "a": exited(0)}, false, "", corev1.PodRunning, "TFF"},
		{"done, sidecar ended badly", never, []corev1.Container{sidecar("s")}, []string{"a"}, records{"s": exited(137), "a": exited(0)}, false, "", corev1.PodSucceeded, "TFF"},
		{"deleted, ended well", always, nil, []string{"a"}, records{"a": exited(0)}, true, "", corev1.PodSucceeded, "TFF"},
		{"deleted, killed", always, nil, []string{"a"}, records{"a": exited(137)}, true, "", corev1.PodFailed, "TFF"},
		{"deleted before its start", always, nil, []string{"a"}, nil, true, "", corev1.PodFailed, "TFF"},
		{"too old, still running", always, nil, []string{"a"}, records{"a": running(true, true)}, false, "DeadlineExceeded", corev1.PodRunning, "TTT"},
		{"too old", always, nil, []string{"a"}, records{"a": exited(0)}, true, "DeadlineExceeded", corev1.PodFailed, "TFF"},
	} {
		pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: c.policy, InitContainers: c.init}}
		for _, name := range c.regular {
			pod.Spec.Containers = append(pod.Spec.Containers, container(name))
		}
		status := Make(Input{Pod: pod, Containers: c.records, Sandbox: true, Terminated: c.terminated, FailedReason: c.failed, Now: now})
		got := ""
		for _, kind := range []corev1.PodConditionType{corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
			got += string(condition(t, &status, kind).Status)[:1]
		}
		if status.Phase != c.phase || got != c.conditions {
			t.Errorf("%s: %s %s, want %s %s", c.why, status.Phase, got, c.phase, c.conditions)
		}
	}
}

func condition(t interface{ Fatalf(string, ...any) }, status *corev1.PodStatus, kind corev1.PodConditionType) corev1.PodCondition {
	i := slices.IndexFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind })
	if i < 0 {
		t.Fatalf("no condition %s", kind)
	}
	return status.Conditions[i]
}

func TestKeepsWhatOthersWrote(t *testing.T) {
	before := metav1.NewTime(now.Add(-time.Hour))
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Generation: 3},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{container("a")}, ReadinessGates: []corev1.PodReadinessGate{{ConditionType: "example.com/gate"}}},
	}
	previous := corev1.PodStatus{QOSClass: corev1.PodQOSBurstable, Conditions: []corev1.PodCondition{
		{Type: "example.com/gate", Status: corev1.ConditionFalse, LastTransitionTime: before},
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: before},
		{Type: corev1.ContainersReady, Status: corev1.ConditionFalse, LastTransitionTime: before},
	}}
	in := Input{Pod: pod, Previous: previous, Containers: map[string]Container{"a": running(true, true)}, PodIP: "127.1.0.2", HostIP: "127.1.0.1", Sandbox: true, Now: now}
	status := Make(in)
	if status.QOSClass != corev1.PodQOSBurstable || status.ObservedGeneration != 3 || status.PodIPs[0].IP != "127.1.0.2" || status.HostIPs[0].IP != "127.1.0.1" {
		t.Errorf("status %+v", status)
	}
	if c := condition(t, &status, corev1.PodScheduled); !c.LastTransitionTime.Equal(&before) {
		t.Error("a condition that stays the same has a new time")
	}
	if c := condition(t, &status, corev1.ContainersReady); c.Status != corev1.ConditionTrue || !c.LastTransitionTime.Equal(&now) {
		t.Errorf("condition %+v", c)
	}
	if c := condition(t, &status, corev1.PodReady); c.Status != corev1.ConditionFalse || c.Reason != ReasonReadinessGatesNotReady {
		t.Errorf("a closed gate: %+v", c)
	}
	in.Previous.Conditions[0].Status = corev1.ConditionTrue
	status = Make(in)
	if c := condition(t, &status, corev1.PodReady); c.Status != corev1.ConditionTrue {
		t.Errorf("an open gate: %+v", c)
	}
	in.Previous.Phase = corev1.PodFailed
	if status := Make(in); status.Phase != corev1.PodFailed {
		t.Errorf("a terminal phase became %s", status.Phase)
	}
}

func TestShouldRestart(t *testing.T) {
	never := corev1.ContainerRestartPolicyNever
	rule := []corev1.ContainerRestartRule{{Action: corev1.ContainerRestartRuleActionRestart, ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{42}}}}
	for _, c := range []struct {
		container corev1.Container
		policy    corev1.RestartPolicy
		code      int32
		want      bool
	}{
		{corev1.Container{}, corev1.RestartPolicyAlways, 0, true},
		{corev1.Container{}, corev1.RestartPolicyOnFailure, 0, false},
		{corev1.Container{}, corev1.RestartPolicyOnFailure, 1, true},
		{corev1.Container{}, corev1.RestartPolicyNever, 1, false},
		{corev1.Container{RestartPolicy: &never}, corev1.RestartPolicyAlways, 1, false},
		{corev1.Container{RestartPolicy: &never, RestartPolicyRules: rule}, corev1.RestartPolicyAlways, 42, true},
		{corev1.Container{RestartPolicy: &never, RestartPolicyRules: rule}, corev1.RestartPolicyAlways, 1, false},
	} {
		if got := ShouldRestart(&c.container, &corev1.PodSpec{RestartPolicy: c.policy}, c.code); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// Whatever containers do: a terminal phase means that none of them runs, a Pod is ready only with all of its containers, and a second
// computation on top of the first changes nothing.
func TestInvariants(t *testing.T) {
	state := rapid.SampledFrom([]Container{{}, waiting, running(false, false), running(true, false), running(true, true), exited(0), exited(1), exited(137), crashing(0), crashing(1)})
	rapid.Check(t, func(t *rapid.T) {
		pod := &corev1.Pod{Spec: corev1.PodSpec{RestartPolicy: rapid.SampledFrom([]corev1.RestartPolicy{corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever}).Draw(t, "policy")}}
		for _, name := range []string{"i", "j"}[:rapid.IntRange(0, 2).Draw(t, "init")] {
			if rapid.Bool().Draw(t, "sidecar") {
				pod.Spec.InitContainers = append(pod.Spec.InitContainers, sidecar(name))
			} else {
				pod.Spec.InitContainers = append(pod.Spec.InitContainers, container(name))
			}
		}
		for _, name := range []string{"a", "b"}[:rapid.IntRange(1, 2).Draw(t, "regular")] {
			pod.Spec.Containers = append(pod.Spec.Containers, container(name))
		}
		in := Input{Pod: pod, Containers: map[string]Container{}, Sandbox: true, Now: now, FailedReason: rapid.SampledFrom([]string{"", "DeadlineExceeded"}).Draw(t, "failed")}
		anyRuns, allReady := false, true
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			record := state.Draw(t, c.Name)
			in.Containers[c.Name] = record
			anyRuns = anyRuns || record.State.Running != nil
		}
		for _, c := range pod.Spec.Containers {
			allReady = allReady && in.Containers[c.Name].State.Running != nil && in.Containers[c.Name].Ready
		}
		in.Terminated = !anyRuns && rapid.Bool().Draw(t, "terminated")
		status := Make(in)
		terminal := status.Phase == corev1.PodSucceeded || status.Phase == corev1.PodFailed
		if terminal && anyRuns && len(pod.Spec.InitContainers) == 0 {
			t.Fatalf("phase %s with a running container", status.Phase)
		}
		if in.Terminated && !terminal {
			t.Fatalf("phase %s of a Pod that has ended", status.Phase)
		}
		if condition(t, &status, corev1.PodReady).Status == corev1.ConditionTrue && (!allReady || terminal) {
			t.Fatalf("ready in phase %s with %+v", status.Phase, in.Containers)
		}
		in.Previous = status
		in.Now = metav1.NewTime(now.Add(time.Hour))
		again := Make(in)
		if !slices.EqualFunc(status.Conditions, again.Conditions, func(a, b corev1.PodCondition) bool {
			return a.Type == b.Type && a.LastTransitionTime.Equal(&b.LastTransitionTime)
		}) || again.Phase != status.Phase {
			t.Fatalf("computed again: %+v, then %+v", status, again)
		}
	})
}
