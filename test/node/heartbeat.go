package node

import (
	"context"
	"fmt"
	"maps"
	"runtime"
	"time"

	"github.com/go-logr/logr"
	vknode "github.com/virtual-kubelet/virtual-kubelet/node"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// kubeletVersion is what the Node calls itself; the API server's own is the same.
	kubeletVersion = "v1.37.2"
	// leaseLives is how many heartbeats a Lease lives.
	leaseLives = 8
)

// newNode is the Node as it is registered.
func newNode(o *Options, port int, pods int) *corev1.Node {
	now := metav1.NewTime(time.Now()).Rfc3339Copy()
	capacity := corev1.ResourceList{
		corev1.ResourceCPU:              *resource.NewQuantity(int64(runtime.NumCPU()), resource.DecimalSI),
		corev1.ResourceMemory:           *resource.NewQuantity(hostMemory(), resource.BinarySI),
		corev1.ResourceEphemeralStorage: *resource.NewQuantity(hostStorage(o.Dir), resource.BinarySI),
		corev1.ResourcePods:             *resource.NewQuantity(int64(pods), resource.DecimalSI),
	}
	maps.Copy(capacity, o.Capacity)
	labels := map[string]string{
		corev1.LabelHostname: o.Name, corev1.LabelOSStable: runtime.GOOS, corev1.LabelArchStable: runtime.GOARCH,
	}
	maps.Copy(labels, o.Labels)
	condition := func(kind corev1.NodeConditionType, status corev1.ConditionStatus, reason, message string) corev1.NodeCondition {
		return corev1.NodeCondition{Type: kind, Status: status, Reason: reason, Message: message, LastHeartbeatTime: now, LastTransitionTime: now}
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: o.Name, Labels: labels},
		Status: corev1.NodeStatus{
			Capacity: capacity, Allocatable: capacity.DeepCopy(),
			Conditions: []corev1.NodeCondition{
				condition(corev1.NodeReady, corev1.ConditionTrue, "KubeletReady", "node of host processes is ready"),
				condition(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory", "not watched by this node"),
				condition(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure", "not watched by this node"),
				condition(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID", "not watched by this node"),
			},
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: o.Address.String()},
				{Type: corev1.NodeHostName, Address: o.Name},
			},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}},
			NodeInfo: corev1.NodeSystemInfo{
				KubeletVersion: kubeletVersion, OperatingSystem: runtime.GOOS, Architecture: runtime.GOARCH, ContainerRuntimeVersion: "process://1",
			},
		},
	}
}

// registered keeps the Node object there: whoever deletes it gets it again while the node lives, as from a kubelet.
func registered(client kubernetes.Interface, node *corev1.Node) vknode.ErrorHandler {
	return func(ctx context.Context, err error) error {
		if !apierrors.IsNotFound(err) {
			return err
		}
		_, err = client.CoreV1().Nodes().Create(ctx, node.DeepCopy(), metav1.CreateOptions{})
		return err
	}
}

// heartbeat renews the node's Lease until ctx ends. VK has a Lease controller of its own, which pauses ever longer while the API server
// cannot be reached and cannot be stopped in a pause.
type heartbeat struct {
	client kubernetes.Interface
	node   string
	period time.Duration
	log    logr.Logger
}

func (h heartbeat) run(ctx context.Context) {
	ticker := time.NewTicker(h.period)
	defer ticker.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, h.period)
		err := h.renew(limited)
		cancel()
		if err != nil && ctx.Err() == nil {
			h.log.V(1).Info("Cannot renew the node's lease yet", "error", err.Error())
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (h heartbeat) renew(ctx context.Context) error {
	leases := h.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	now := metav1.NowMicro()
	lease, err := leases.Get(ctx, h.node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		node, err := h.client.CoreV1().Nodes().Get(ctx, h.node, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("cannot get node %q: %w", h.node, err)
		}
		seconds := int32(max(leaseLives*h.period/time.Second, 1))
		_, err = leases.Create(ctx, &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: h.node, OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &h.node, LeaseDurationSeconds: &seconds, RenewTime: &now},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("cannot create lease of node %q: %w", h.node, err)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot get lease of node %q: %w", h.node, err)
	}
	lease.Spec.RenewTime, lease.Spec.HolderIdentity = &now, &h.node
	if _, err := leases.Update(ctx, lease, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("cannot renew lease of node %q: %w", h.node, err)
	}
	return nil
}
