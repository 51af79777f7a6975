package attempt

import (
	"encoding/json"
	"fmt"
	"strings"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"

	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

const (
	// scaleReplicasPath is where an autoscaling/v1 Scale has its number.
	scaleReplicasPath = "spec.replicas"
	// scaleTargetPath and maxReplicasPath are where a HorizontalPodAutoscaler of
	// any version says what it scales, and how far.
	scaleTargetPath = "spec.scaleTargetRef"
	maxReplicasPath = "spec.maxReplicas"
	// ordinalsStartPath is where a StatefulSet says which Pod is its first.
	ordinalsStartPath = "spec.ordinals.start"
)

// reader reads objects of one kind.
type reader struct {
	signature *identify.Signature
	layout    Layout
	// known is false for a kind without a Layout: only its metadata is read.
	known bool
	// scale is set when the objects are Scales, which have no Pod template.
	scale bool
}

// object is what was read of one version of an object.
type object struct {
	meta    metav1.ObjectMeta
	shape   Shape
	podSpec *corev1.PodSpec
	// ended says of a Pod whether none of its containers runs, or will again.
	ended bool
}

func (r reader) read(raw []byte) (object, error) {
	if absent(raw) {
		return object{}, nil
	}
	read := object{shape: Shape{Present: true}}
	fields := map[string]json.RawMessage{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &fields); err != nil {
		return object{}, malformed(FaultBadObject, err)
	}
	if metadata, ok := fields["metadata"]; ok {
		if err := kjson.UnmarshalCaseSensitivePreserveInts(metadata, &read.meta); err != nil {
			return object{}, malformed(FaultBadObject, fmt.Errorf("metadata: %w", err))
		}
	}
	if r.scale {
		// An int32 that is left out of a Scale when it is zero.
		count, _, err := integerAt(fields, scaleReplicasPath)
		if err != nil {
			return object{}, malformed(FaultBadObject, err)
		}
		read.shape.Replicas.Count = count
		return read, nil
	}
	if !r.known {
		return read, nil
	}
	if r.layout.Workload == WorkloadAutoscaler {
		if err := autoscaler(fields, &read); err != nil {
			return object{}, malformed(FaultBadObject, err)
		}
		return read, nil
	}
	if err := r.template(fields, &read); err != nil {
		// The API server has checked a built-in kind, so this is no review of
		// it. A custom kind may keep anything at its paths: it is then judged
		// at the Pods that it makes.
		if r.layout.Workload == WorkloadCustom {
			return object{meta: read.meta, shape: Shape{Present: true}}, nil
		}
		return object{}, malformed(FaultBadObject, err)
	}
	return read, nil
}

// template reads the Pod template and the number of replicas.
func (r reader) template(fields map[string]json.RawMessage, into *object) error {
	raw, found, err := valueAt(fields, r.layout.podSpecPath)
	if err != nil {
		return err
	}
	if found {
		into.podSpec = &corev1.PodSpec{}
		if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, into.podSpec); err != nil {
			return fmt.Errorf("%s: %w", r.layout.podSpecPath, err)
		}
		found := r.signature.Find(into.podSpec)
		into.shape.Containers, into.shape.Suspects = found.Instances, found.Suspects
		into.shape.Flags = flagsOf(into.podSpec, into.shape.Containers, r.signature.Names())
		grace := into.podSpec.TerminationGracePeriodSeconds
		into.shape.NoGrace = grace != nil && *grace == 0
	}
	into.shape.Replicas = Replicas{Count: 1, Unbounded: r.layout.unbounded}
	switch r.layout.Workload {
	case WorkloadStatefulSet:
		if into.shape.OrdinalsStart, _, err = integerAt(fields, ordinalsStartPath); err != nil {
			return err
		}
	case WorkloadPod:
		if into.ended, err = ended(fields, into.meta.DeletionTimestamp != nil); err != nil {
			return err
		}
	}
	if r.layout.replicasPath == "" {
		return nil
	}
	count, found, err := integerAt(fields, r.layout.replicasPath)
	if err != nil {
		return err
	}
	if found {
		into.shape.Replicas.Count = count
	}
	return nil
}

// autoscaler reads what a HorizontalPodAutoscaler, of any version, scales.
func autoscaler(fields map[string]json.RawMessage, into *object) error {
	raw, found, err := valueAt(fields, scaleTargetPath)
	if err != nil {
		return err
	}
	if !found {
		return nil
	}
	target := autoscalingv1.CrossVersionObjectReference{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &target); err != nil {
		return fmt.Errorf("%s: %w", scaleTargetPath, err)
	}
	// The version does not matter: whatever it is, it is the same object.
	group, _, _ := strings.Cut(target.APIVersion, "/")
	if !strings.Contains(target.APIVersion, "/") {
		group = ""
	}
	into.shape.Target = &Target{Group: group, Kind: target.Kind, Name: target.Name}
	into.shape.Replicas.Count, _, err = integerAt(fields, maxReplicasPath)
	return err
}

// ended says whether a Pod, by its status, has come to its end: it is in a
// phase that it never leaves, or it is being deleted and each of its containers
// has terminated, for then none is started again.
func ended(fields map[string]json.RawMessage, deleting bool) (bool, error) {
	raw, found, err := valueAt(fields, "status")
	if err != nil || !found {
		return false, err
	}
	status := corev1.PodStatus{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &status); err != nil {
		return false, fmt.Errorf("status: %w", err)
	}
	if status.Phase == corev1.PodSucceeded || status.Phase == corev1.PodFailed {
		return true, nil
	}
	if !deleting || len(status.ContainerStatuses) == 0 {
		return false, nil
	}
	for _, containers := range [][]corev1.ContainerStatus{status.InitContainerStatuses, status.ContainerStatuses, status.EphemeralContainerStatuses} {
		for i := range containers {
			if containers[i].State.Terminated == nil {
				return false, nil
			}
		}
	}
	return true, nil
}

// podSpecChanged compares as Kubernetes does: an absent list is an empty one.
func podSpecChanged(now, before object) bool {
	if !now.shape.Present || !before.shape.Present {
		return false
	}
	return !equality.Semantic.DeepEqual(now.podSpec, before.podSpec)
}

// valueAt follows a dot-separated path. A missing or null step is not found; a
// step into something that is no object is an error.
func valueAt(fields map[string]json.RawMessage, path string) (json.RawMessage, bool, error) {
	step, rest, more := strings.Cut(path, ".")
	value, ok := fields[step]
	if !ok || absent(value) {
		return nil, false, nil
	}
	if !more {
		return value, true, nil
	}
	inner := map[string]json.RawMessage{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(value, &inner); err != nil {
		return nil, false, fmt.Errorf("%s: %w", step, err)
	}
	return valueAt(inner, rest)
}

func integerAt(fields map[string]json.RawMessage, path string) (int64, bool, error) {
	raw, found, err := valueAt(fields, path)
	if err != nil || !found {
		return 0, false, err
	}
	var count int64
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &count); err != nil {
		return 0, false, fmt.Errorf("%s: %w", path, err)
	}
	return count, true, nil
}
