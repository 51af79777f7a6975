package attempt

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kjson "sigs.k8s.io/json"
)

// Removal is what a delete of a Pod says.
type Removal struct {
	// Forced is set where the Pod is taken out of the API at once, whatever its
	// containers do: the grace period is 0.
	Forced bool
	// Ended says whether the Pod's status shows that nothing of it runs.
	Ended bool
	// Node is the name of the Pod's node, empty for a Pod that has none yet.
	Node string
	// NodeState is what is known of the node: see WithNode.
	NodeState NodeState
}

// NodeState is what is known of a node.
type NodeState int

const (
	// NodeUnknown is the zero value: nobody could say. It is taken for a node
	// that may still run the Pod.
	NodeUnknown NodeState = iota
	// NodePresent means that the node exists, ready or not.
	NodePresent
	// NodeGone means that the API server has no such node.
	NodeGone
	// NodeOutOfService means that somebody vouches, by the taint, that the node
	// is shut down, and that the node is not ready.
	NodeOutOfService
	// NodeOutOfServiceReady means that the node has the taint and reports that
	// it is ready.
	NodeOutOfServiceReady
)

// WithNode completes a removal with what is known of the Pod's node.
func (a Attempt) WithNode(state NodeState) Attempt {
	a.Removal.NodeState = state
	return a
}

// removalOf reads the options of a delete. Without a grace period in them the
// Pod's own counts.
func removalOf(options []byte, pod object) (Removal, error) {
	removal := Removal{Ended: pod.ended, Forced: pod.shape.NoGrace}
	if pod.podSpec != nil {
		removal.Node = pod.podSpec.NodeName
	}
	if absent(options) {
		return removal, nil
	}
	read := metav1.DeleteOptions{}
	if err := kjson.UnmarshalCaseSensitivePreserveInts(options, &read); err != nil {
		return Removal{}, malformed(FaultBadObject, fmt.Errorf("options: %w", err))
	}
	if read.GracePeriodSeconds != nil {
		removal.Forced = *read.GracePeriodSeconds == 0
	}
	return removal, nil
}
