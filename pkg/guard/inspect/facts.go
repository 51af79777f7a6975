package inspect

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

// Kinds and annotations of Kubernetes that the facts are read from.
const (
	kindStatefulSet = "StatefulSet"
	kindPod         = "Pod"
	kindNode        = "Node"
	apiVersionCore  = "v1"
	apiVersionApps  = "apps/v1"
)

// Facts are what a cluster looks like at one moment.
type Facts struct {
	// Policy is the one that is judged by; nil if it does not exist, and then
	// Name is its name.
	Policy *guardv1alpha1.SingletonPolicy
	Name   string
	// Invalid is why the policy cannot be judged by; empty if it can.
	Invalid string
	Now     time.Time
	// Pods are those that run, or may run, an instance and have not ended.
	Pods []Pod
	// Workloads are those whose template would run an instance.
	Workloads []Workload
	// Nodes are the nodes that Pods run on, or ran on a while ago. One that is
	// not in it was not read.
	Nodes map[string]Node
	// Leases are those that Metacontroller takes.
	Leases []Lease
	// HolderUID is the uid of the StatefulSet that has the holder's name; empty
	// if there is none. It means nothing unless HolderRead is set.
	HolderUID  types.UID
	HolderRead bool
	// Admission are the guard's own objects in the API server.
	Admission []Compared
	// Others are the other policies of the cluster.
	Others []guardv1alpha1.SingletonPolicy
	// GuardSilence is for how long no guard has led; 0 if one does, or if who
	// asks is the one.
	GuardSilence time.Duration
	// Unread is what could not be read, and why.
	Unread []Unread
}

// Unread is what could not be read.
type Unread struct {
	// What is a resource as in RBAC: pods, clonesets.apps.kruise.io.
	What string
	Why  string
}

// Compared is an object of the guard's own, compared with what it should be.
type Compared struct {
	Object Object
	// Missing is set where it is not installed.
	Missing     bool
	Differences []Difference
	// CRD is set for the CRD of SingletonPolicy.
	CRD bool
	// Fix is what to apply.
	Fix string
}

// Owner is the controller that an object says to be of.
type Owner struct {
	APIVersion, Kind, Name string
	UID                    types.UID
}

// OwnerOf is the controller that an object says to be of, nil if it has none.
func OwnerOf(object metav1.Object) *Owner {
	if owner := metav1.GetControllerOfNoCopy(object); owner != nil {
		return &Owner{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID}
	}
	return nil
}

// Pod is what is kept of a Pod.
type Pod struct {
	Namespace, Name string
	UID             types.UID
	Node            string
	Account         string
	Owner           *Owner
	// Instances and Suspects are names of containers.
	Instances, Suspects []string
	// Static says that a node runs it by itself: this is only its mirror.
	Static bool
	// Pending says that it has not started.
	Pending bool
	// Ends is when its grace period ends, if it is to be deleted.
	Ends *time.Time
}

// Instance says whether a container of it runs an instance.
func (p Pod) Instance() bool { return len(p.Instances) > 0 }

// Ended says whether a Pod is over, so that nothing of it runs.
func Ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// Accounts are service accounts whose Pods are looked at, as namespace/name.
type Accounts map[string]bool

// PodOf reads a Pod. It reports false for one of which nothing is to be kept: it
// has ended, or it runs no instance and has none of the accounts.
func PodOf(pod *corev1.Pod, signature *identify.Signature, accounts Accounts) (Pod, bool) {
	if Ended(pod) {
		return Pod{}, false
	}
	found := signature.Find(&pod.Spec)
	account := pod.Namespace + "/" + pod.Spec.ServiceAccountName
	if len(found.Instances)+len(found.Suspects) == 0 && !accounts[account] {
		return Pod{}, false
	}
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	fact := Pod{
		Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID, Node: pod.Spec.NodeName, Account: account,
		Owner: OwnerOf(pod), Instances: containers(found.Instances), Suspects: containers(found.Suspects),
		Pending: pod.Status.Phase == corev1.PodPending,
	}
	fact.Static = mirror || fact.Owner != nil && fact.Owner.Kind == kindNode
	if pod.DeletionTimestamp != nil {
		fact.Ends = &pod.DeletionTimestamp.Time
	}
	return fact, true
}

func containers(found []identify.Container) []string {
	var all []string
	for _, c := range found {
		all = append(all, c.Name)
	}
	return all
}

func (p Pod) object() Object {
	return Object{APIVersion: apiVersionCore, Kind: kindPod, Namespace: p.Namespace, Name: p.Name, UID: p.UID}
}

// Workload is what is kept of an object whose template runs an instance.
type Workload struct {
	Object
	Owner *Owner
	// Replicas is how many Pods it wants at a time.
	Replicas attempt.Replicas
	// Account is the service account of its template, as namespace/name.
	Account string
	// Generation changes with the spec.
	Generation int64
}

// Node is what is known of a node.
type Node struct {
	// Gone says that the API server has no such node.
	Gone bool
	// Ready is what the node reports; false too if it no longer reports.
	Ready bool
	// OutOfService says that somebody vouches, by the taint, that it is shut down.
	OutOfService bool
}

// NodeOf reads a node.
func NodeOf(node *corev1.Node) Node {
	fact := Node{}
	for _, taint := range node.Spec.Taints {
		fact.OutOfService = fact.OutOfService || taint.Key == corev1.TaintNodeOutOfService
	}
	for _, condition := range node.Status.Conditions {
		fact.Ready = fact.Ready || condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	}
	return fact
}

// Lease is one that Metacontroller takes.
type Lease struct {
	Namespace, Name string
	// Holder is the holderIdentity as written.
	Holder string
	// Pod is the name of the Pod, or of the host, in it.
	Pod string
	// PodUID is the Pod's uid, where the identity has it: ours does, that of a
	// public Metacontroller does not.
	PodUID types.UID
	// Fixed says that it is the one Lease of the cluster, which has its place
	// whatever namespace the Pod is in.
	Fixed bool
	// Live says that it was renewed a short time ago.
	Live bool
}

// Belongs says whether a Pod is one of the holder's: its StatefulSet made it, or
// it has the name that the StatefulSet would give, as an orphan has.
func Belongs(owner *Owner, pod string, holder *guardv1alpha1.Holder) bool {
	if owner != nil {
		return owner.Kind == holder.Kind && owner.Name == holder.Name
	}
	ordinal, ok := strings.CutPrefix(pod, holder.Name+"-")
	return ok && ordinal != "" && strings.Trim(ordinal, "0123456789") == ""
}

// Verdict is what the policy says of an instance.
func (p Pod) Verdict(status *guardv1alpha1.SingletonPolicyStatus) guardv1alpha1.InstanceVerdict {
	switch {
	case p.Static:
		return guardv1alpha1.InstanceViolation
	case p.allowed(status):
		return guardv1alpha1.InstanceAllowed
	case p.excepted(status.ActiveExceptions):
		return guardv1alpha1.InstanceExcepted
	}
	return guardv1alpha1.InstanceViolation
}

// allowed says whether it is a pinned Pod, or another one of a holder whose Pods
// elect a leader.
func (p Pod) allowed(status *guardv1alpha1.SingletonPolicyStatus) bool {
	for _, holder := range holders(status) {
		if p.Namespace == holder.Namespace && Belongs(p.Owner, p.Name, holder) && (p.Name == holder.Name+"-0" || holder.Elected) {
			return true
		}
	}
	return false
}

func (p Pod) excepted(exceptions []guardv1alpha1.Exception) bool {
	for _, exception := range exceptions {
		if exception.Namespace == p.Namespace &&
			(exception.Name == p.Name || p.Owner != nil && decide.MadeFor(p.Owner.Kind, p.Owner.Name, exception.Name)) {
			return true
		}
	}
	return false
}

// holders are all that hold a slot.
func holders(status *guardv1alpha1.SingletonPolicyStatus) []*guardv1alpha1.Holder {
	var all []*guardv1alpha1.Holder
	if status.Holder != nil {
		all = append(all, status.Holder)
	}
	for i := range status.Slots {
		all = append(all, &status.Slots[i].Holder)
	}
	return all
}

// Top follows an owner up the chain, as far as the workloads know it.
func Top(owner *Owner, namespace string, workloads []Workload) string {
	if owner == nil {
		return ""
	}
	// Longer than any chain of Kubernetes' own; owners may point in a circle.
	for range 8 {
		next := (*Owner)(nil)
		for i := range workloads {
			if w := &workloads[i]; w.Namespace == namespace && w.UID == owner.UID {
				next = w.Owner
				break
			}
		}
		if next == nil {
			break
		}
		owner = next
	}
	return owner.Kind + "/" + owner.Name
}
