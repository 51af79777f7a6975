// Package podstatus computes a Pod's status from what its containers do, as the kubelet does. It is pure.
//
//	records of containers + Pod + status that the API has ──> Make ──> status to write
//
// The rules are those of https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/ and, where that is silent, of
// k8s.io/kubernetes v1.37 (pkg/kubelet: getPhase, status/generate.go).
package podstatus

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Reasons of conditions and states, as the kubelet writes them.
const (
	ReasonPodCompleted             = "PodCompleted"
	ReasonPodFailed                = "PodFailed"
	ReasonContainersNotReady       = "ContainersNotReady"
	ReasonContainersNotInitialized = "ContainersNotInitialized"
	ReasonReadinessGatesNotReady   = "ReadinessGatesNotReady"
	ReasonSandboxNotReady          = "SandboxNotReady"
	ReasonContainerCreating        = "ContainerCreating"
	ReasonPodInitializing          = "PodInitializing"
)

// Container is what a node knows of one container.
type Container struct {
	State, Last  corev1.ContainerState
	RestartCount int32
	// Ready is the verdict of the readiness probe for a running container.
	Ready bool
	// Started is the verdict of the startup probe for a running container.
	Started bool
	// ID and ImageID name the run and the program.
	ID, ImageID string
}

// Input is what a status is made of.
type Input struct {
	Pod *corev1.Pod
	// Previous is the status that the API has: what others wrote there and the times of conditions are kept.
	Previous corev1.PodStatus
	// Containers are the records of init and regular containers by name; one that is missing has not been looked at.
	Containers    map[string]Container
	PodIP, HostIP string
	StartTime     metav1.Time
	// Sandbox says that the Pod has its address and its volumes; SandboxMessage says why not yet.
	Sandbox        bool
	SandboxMessage string
	// Terminated says that no process will be started any more and none is left.
	Terminated bool
	// FailedReason and FailedMessage, when the reason is not empty, say why the Pod failed whatever its containers did.
	FailedReason, FailedMessage string
	Now                         metav1.Time
}

// Make computes the status.
func Make(in Input) corev1.PodStatus {
	status := *in.Previous.DeepCopy()
	// An object of the API that is being deleted, or whose deletion others decide on, keeps its terminal phase for good.
	if phase := status.Phase; phase != corev1.PodSucceeded && phase != corev1.PodFailed {
		status.Phase = Phase(in)
		status.Reason, status.Message = in.FailedReason, in.FailedMessage
	}
	status.ObservedGeneration = in.Pod.Generation
	status.HostIP, status.HostIPs = in.HostIP, []corev1.HostIP{{IP: in.HostIP}}
	status.PodIP, status.PodIPs = in.PodIP, nil
	if in.PodIP != "" {
		status.PodIPs = []corev1.PodIP{{IP: in.PodIP}}
	}
	status.StartTime = &in.StartTime
	status.InitContainerStatuses = containerStatuses(in, in.Pod.Spec.InitContainers, true)
	status.ContainerStatuses = containerStatuses(in, in.Pod.Spec.Containers, false)
	for _, condition := range conditions(in, &status) {
		setCondition(&status, condition, in)
	}
	return status
}

func containerStatuses(in Input, containers []corev1.Container, init bool) []corev1.ContainerStatus {
	var statuses []corev1.ContainerStatus
	for i := range containers {
		container := &containers[i]
		record := in.Containers[container.Name]
		state := record.State
		if state == (corev1.ContainerState{}) {
			reason := ReasonContainerCreating
			if len(in.Pod.Spec.InitContainers) > 0 {
				reason = ReasonPodInitializing
			}
			state.Waiting = &corev1.ContainerStateWaiting{Reason: reason, Message: in.SandboxMessage}
		}
		running := state.Running != nil
		started := running && record.Started
		ready := started && record.Ready
		if init && !IsSidecar(container) {
			ready = state.Terminated != nil && state.Terminated.ExitCode == 0
			started = false
		}
		statuses = append(statuses, corev1.ContainerStatus{
			Name: container.Name, Image: container.Image, ImageID: record.ImageID, ContainerID: record.ID,
			State: state, LastTerminationState: record.Last, RestartCount: record.RestartCount, Ready: ready, Started: &started,
		})
	}
	return statuses
}

// IsSidecar reports whether an init container stays on beside the regular containers.
func IsSidecar(container *corev1.Container) bool {
	return container.RestartPolicy != nil && *container.RestartPolicy == corev1.ContainerRestartPolicyAlways
}

// ShouldRestart reports whether the container is started again after it ended with code.
func ShouldRestart(container *corev1.Container, spec *corev1.PodSpec, code int32) bool {
	for _, rule := range container.RestartPolicyRules {
		if rule.ExitCodes == nil || rule.Action != corev1.ContainerRestartRuleActionRestart {
			continue
		}
		in := slices.Contains(rule.ExitCodes.Values, code)
		if in == (rule.ExitCodes.Operator == corev1.ContainerRestartRuleOnExitCodesOpIn) {
			return true
		}
	}
	policy := spec.RestartPolicy
	if container.RestartPolicy != nil {
		policy = corev1.RestartPolicy(*container.RestartPolicy)
	}
	switch policy {
	case corev1.RestartPolicyNever:
		return false
	case corev1.RestartPolicyOnFailure:
		return code != 0
	}
	return true
}

// tally counts the containers of a Pod by what they do.
type tally struct {
	pendingInit, failedInit    int
	pendingSidecars            int
	running, waiting           int
	stopped, over, succeeded   int
	regularStarted, incomplete bool
}

func count(in Input) tally {
	var t tally
	spec := &in.Pod.Spec
	for i := range spec.InitContainers {
		container, record := &spec.InitContainers[i], in.Containers[spec.InitContainers[i].Name]
		ended := record.ended()
		if IsSidecar(container) {
			switch {
			case record.State.Running != nil:
				t.running++
				if !record.Started {
					t.pendingSidecars++
				}
			case ended == nil:
				t.pendingSidecars++
				t.waiting++
			}
			continue
		}
		switch {
		case record.State.Running != nil || ended == nil:
			t.pendingInit++
		case ended.ExitCode != 0 && !ShouldRestart(container, spec, ended.ExitCode):
			t.failedInit++
		case ended.ExitCode != 0:
			t.incomplete = true
		}
	}
	for i := range spec.Containers {
		container, record := &spec.Containers[i], in.Containers[spec.Containers[i].Name]
		ended := record.ended()
		switch {
		case record.State.Running != nil:
			t.running++
			t.regularStarted = true
		case ended != nil:
			t.stopped++
			t.regularStarted = true
			if ended.ExitCode == 0 {
				t.succeeded++
			}
			if !ShouldRestart(container, spec, ended.ExitCode) {
				t.over++
			}
		default:
			t.waiting++
		}
	}
	return t
}

// ended is how the container ended, in its present or, while it waits, in its last state.
func (c Container) ended() *corev1.ContainerStateTerminated {
	switch {
	case c.State.Terminated != nil:
		return c.State.Terminated
	case c.State.Running == nil:
		return c.Last.Terminated
	}
	return nil
}

// Phase is the Pod's phase. A Pod with a running process is in no terminal phase, whatever else is wrong with it: who sees a
// terminal phase may rely on its processes being gone.
func Phase(in Input) corev1.PodPhase {
	t := count(in)
	switch {
	case t.running == 0 && (in.FailedReason != "" || t.failedInit > 0):
		return corev1.PodFailed
	case in.Terminated && t.stopped == len(in.Pod.Spec.Containers) && t.stopped == t.succeeded:
		return corev1.PodSucceeded
	case in.Terminated:
		return corev1.PodFailed
	case t.failedInit > 0, t.pendingInit > 0, t.incomplete && !t.regularStarted, t.pendingSidecars > 0 && !t.regularStarted, t.waiting > 0:
		return corev1.PodPending
	case t.running > 0:
		return corev1.PodRunning
	case t.stopped != t.over:
		return corev1.PodRunning
	case t.stopped == t.succeeded:
		return corev1.PodSucceeded
	}
	return corev1.PodFailed
}

func conditions(in Input, status *corev1.PodStatus) []corev1.PodCondition {
	containersReady := containersReady(in, status)
	ready := containersReady
	ready.Type = corev1.PodReady
	if ready.Status == corev1.ConditionTrue {
		ready = readyByGates(in, status)
	}
	sandbox := corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionTrue}
	if !in.Sandbox || in.Terminated {
		sandbox = corev1.PodCondition{Type: corev1.PodReadyToStartContainers, Status: corev1.ConditionFalse, Reason: ReasonSandboxNotReady, Message: in.SandboxMessage}
	}
	return []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
		sandbox, initialized(in, status), containersReady, ready,
	}
}

func initialized(in Input, status *corev1.PodStatus) corev1.PodCondition {
	condition := corev1.PodCondition{Type: corev1.PodInitialized, Status: corev1.ConditionTrue}
	if status.Phase == corev1.PodSucceeded {
		condition.Reason = ReasonPodCompleted
		return condition
	}
	if count(in).regularStarted {
		return condition
	}
	var incomplete []string
	for i, container := range in.Pod.Spec.InitContainers {
		s := status.InitContainerStatuses[i]
		if IsSidecar(&container) && !*s.Started || !IsSidecar(&container) && !s.Ready {
			incomplete = append(incomplete, container.Name)
		}
	}
	if len(incomplete) > 0 {
		condition.Status, condition.Reason = corev1.ConditionFalse, ReasonContainersNotInitialized
		condition.Message = fmt.Sprintf("containers with incomplete status: %s", incomplete)
	}
	return condition
}

func containersReady(in Input, status *corev1.PodStatus) corev1.PodCondition {
	condition := corev1.PodCondition{Type: corev1.ContainersReady, Status: corev1.ConditionFalse}
	switch status.Phase {
	case corev1.PodSucceeded:
		condition.Reason = ReasonPodCompleted
		return condition
	case corev1.PodFailed:
		condition.Reason = ReasonPodFailed
		return condition
	}
	var unready []string
	for i, container := range in.Pod.Spec.InitContainers {
		if IsSidecar(&container) && !status.InitContainerStatuses[i].Ready {
			unready = append(unready, container.Name)
		}
	}
	for i, container := range in.Pod.Spec.Containers {
		if !status.ContainerStatuses[i].Ready {
			unready = append(unready, container.Name)
		}
	}
	if len(unready) > 0 {
		condition.Reason = ReasonContainersNotReady
		condition.Message = fmt.Sprintf("containers with unready status: %s", unready)
		return condition
	}
	condition.Status = corev1.ConditionTrue
	return condition
}

func readyByGates(in Input, status *corev1.PodStatus) corev1.PodCondition {
	var unmet []string
	for _, gate := range in.Pod.Spec.ReadinessGates {
		i := slices.IndexFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == gate.ConditionType })
		if i < 0 || status.Conditions[i].Status != corev1.ConditionTrue {
			unmet = append(unmet, fmt.Sprintf("the condition of readiness gate %q is not True", gate.ConditionType))
		}
	}
	if len(unmet) > 0 {
		return corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: ReasonReadinessGatesNotReady, Message: strings.Join(unmet, ", ")}
	}
	return corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue}
}

// setCondition keeps the time of the last transition while the status stays the same.
func setCondition(status *corev1.PodStatus, condition corev1.PodCondition, in Input) {
	condition.ObservedGeneration = in.Pod.Generation
	condition.LastTransitionTime = in.Now
	i := slices.IndexFunc(status.Conditions, func(c corev1.PodCondition) bool { return c.Type == condition.Type })
	if i < 0 {
		status.Conditions = append(status.Conditions, condition)
		return
	}
	if old := status.Conditions[i]; old.Status == condition.Status {
		condition.LastTransitionTime = old.LastTransitionTime
		condition.LastProbeTime = old.LastProbeTime
	}
	status.Conditions[i] = condition
}
