package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// SingletonPolicy makes "at most one instance is active" a rule of the cluster.
// The defaults fit Metacontroller.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=singletonpolicies,scope=Cluster,shortName=singleton;singletons
// +kubebuilder:validation:XValidation:rule="oldSelf.spec.mode != 'LeaderElected' || self.spec.mode != 'LeaderElected' || !has(oldSelf.status) || !has(oldSelf.status.holder) || has(self.spec.lease) == has(oldSelf.spec.lease) && (!has(self.spec.lease) || self.spec.lease == oldSelf.spec.lease)",message="spec.lease: while a holder has the slot its Pods elect their leader on this Lease; delete the holder first"
// +kubebuilder:validation:XValidation:rule="oldSelf.spec.mode == self.spec.mode || self.spec.mode != 'Sharded' || !has(oldSelf.status) || !has(oldSelf.status.holder)",message="spec.mode: cannot become Sharded while a holder has the slot; delete the holder first"
// +kubebuilder:validation:XValidation:rule="oldSelf.spec.mode == self.spec.mode || oldSelf.spec.mode != 'Sharded' || !has(oldSelf.status) || !has(oldSelf.status.slots) || size(oldSelf.status.slots) == 0",message="spec.mode: cannot leave Sharded while a shard is held; delete the holders first"
// +kubebuilder:printcolumn:name="Holder",type=string,JSONPath=`.status.holder.display`
// +kubebuilder:printcolumn:name="Active",type=string,JSONPath=`.status.activePod.name`
// +kubebuilder:printcolumn:name="Actions",type=string,JSONPath=`.spec.validationActions`
// +kubebuilder:printcolumn:name="Compliant",type=string,JSONPath=`.status.conditions[?(@.type=="Compliant")].status`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:printcolumn:name="Enforcing",type=string,JSONPath=`.status.conditions[?(@.type=="Enforcing")].status`,priority=1
// +kubebuilder:printcolumn:name="Drifted",type=string,JSONPath=`.status.conditions[?(@.type=="Drifted")].status`,priority=1
// +kubebuilder:printcolumn:name="UID",type=string,JSONPath=`.status.holder.uid`,priority=1
// +kubebuilder:printcolumn:name="Epoch",type=integer,JSONPath=`.status.epoch`,priority=1
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.status.activePod.node`,priority=1
type SingletonPolicy struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	// +kubebuilder:default={}
	Spec SingletonPolicySpec `json:"spec,omitempty"`
	// +optional
	Status SingletonPolicyStatus `json:"status,omitempty"`
}

// SingletonPolicyList is a list of SingletonPolicies.
//
// +kubebuilder:object:root=true
type SingletonPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []SingletonPolicy `json:"items"`
}

// SingletonPolicySpec says what an instance is and what happens to a second one.
//
// +kubebuilder:validation:XValidation:rule="!has(self.lease) || has(self.mode) && self.mode == 'LeaderElected'",message="spec.lease: only mode LeaderElected has a Lease; remove it or set spec.mode to LeaderElected"
// +kubebuilder:validation:XValidation:rule="!has(self.holder) || !has(self.fence) || self.fence.action != 'Deny' || self.fence.serviceAccount.__namespace__ == self.holder.__namespace__",message="spec.fence.serviceAccount.namespace: a Pod uses a service account of its own namespace, so it must be spec.holder.namespace"
// +kubebuilder:validation:XValidation:rule="!has(self.holder) || !has(self.mode) || self.mode != 'Sharded'",message="spec.holder: mode Sharded has a holder for each shard, so none can be named; remove it or set another spec.mode"
type SingletonPolicySpec struct {
	// Match says what an instance is.
	// +optional
	// +kubebuilder:default={}
	Match Match `json:"match,omitempty"`
	// Mode says how many Pods a slot has room for.
	// +optional
	// +kubebuilder:default=Strict
	Mode Mode `json:"mode,omitempty"`
	// Lease is the one that all Pods of the holder elect their leader on, in mode
	// LeaderElected. Left out, it is the one that Metacontroller takes by default:
	// "metacontroller" in the holder's namespace.
	// +optional
	Lease *LeaseReference `json:"lease,omitempty"`
	// Holder pins the StatefulSet that may hold the slot. Left out, the first
	// StatefulSet that is admitted claims it.
	// +optional
	Holder *HolderReference `json:"holder,omitempty"`
	// ValidationActions say what becomes of a request that breaks a rule: Deny
	// refuses it, Warn allows it with a warning, Audit allows it with an audit
	// line only. Deny and Warn exclude each other, for a refusal says it all.
	// +optional
	// +listType=set
	// +kubebuilder:default={Deny}
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:XValidation:rule="!('Deny' in self && 'Warn' in self)",message="spec.validationActions: Deny and Warn exclude each other"
	ValidationActions []ValidationAction `json:"validationActions,omitempty"`
	// Fence says whose writes are accepted from the active Pod only.
	// +optional
	// +kubebuilder:default={}
	Fence *Fence `json:"fence,omitempty"`
	// Exceptions let named workloads through for a while (break-glass).
	// +optional
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	Exceptions []Exception `json:"exceptions,omitempty"`
}

// Match says what an instance is: a container whose image repository, or whose
// started program, is listed. A list that is left out has its default, so only
// two lists that are written out and empty match nothing.
//
// +kubebuilder:validation:XValidation:rule="!has(self.images) || size(self.images) > 0 || !has(self.commands) || size(self.commands) > 0",message="spec.match: images and commands are both empty, so nothing would ever be an instance; name at least one"
type Match struct {
	// Images are patterns of image repositories, registry included, without port,
	// tag and digest: "ghcr.io/metacontroller/metacontroller". A "*" stands for
	// any text within one path element; "**/" in front stands for any registry
	// and any leading path. Docker Hub is "docker.io", its unprefixed names
	// "docker.io/library/name". References are compared in lower case, without
	// their port.
	// +optional
	// +listType=set
	// +kubebuilder:default={"**/metacontroller/metacontroller","**/metacontrollerio/metacontroller","**/metacontroller-solo/controller"}
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:Pattern=`^(\*\*/)?[a-z0-9*]([a-z0-9._*-]*[a-z0-9*])?(/[a-z0-9*]([a-z0-9._*-]*[a-z0-9*])?)*$`
	// +kubebuilder:validation:XValidation:rule="self.all(p, !(p.startsWith('**/') ? p.substring(3) : p).contains('**'))",message="spec.match.images: \"**\" is allowed only as the first path element, as in \"**/metacontroller/metacontroller\""
	// +kubebuilder:validation:XValidation:rule="self.all(p, p.matches('^([^/]*[.*][^/]*|localhost)/'))",message="spec.match.images: a pattern begins with a registry (docker.io is Docker Hub) or with \"**/\" for any"
	// +kubebuilder:validation:XValidation:rule="self.map(p, size(p)).sum() <= 2048",message="spec.match.images: the patterns are longer than 2048 bytes together, so judging a Pod would cost the API server too much"
	Images []string `json:"images,omitempty"`
	// Commands are base names of programs: a container that starts one of them,
	// by command or args, is an instance whatever its image is called.
	// +optional
	// +listType=set
	// +kubebuilder:default={"metacontroller"}
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$`
	Commands []string `json:"commands,omitempty"`
	// ExcludeImages are patterns, as in Images, of repositories whose containers
	// are never instances, whatever they start.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MaxLength=255
	// +kubebuilder:validation:items:Pattern=`^(\*\*/)?[a-z0-9*]([a-z0-9._*-]*[a-z0-9*])?(/[a-z0-9*]([a-z0-9._*-]*[a-z0-9*])?)*$`
	// +kubebuilder:validation:XValidation:rule="self.all(p, !(p.startsWith('**/') ? p.substring(3) : p).contains('**'))",message="spec.match.excludeImages: \"**\" is allowed only as the first path element"
	// +kubebuilder:validation:XValidation:rule="self.all(p, p.matches('^([^/]*[.*][^/]*|localhost)/'))",message="spec.match.excludeImages: a pattern begins with a registry (docker.io is Docker Hub) or with \"**/\" for any"
	// +kubebuilder:validation:XValidation:rule="self.map(p, size(p)).sum() <= 2048",message="spec.match.excludeImages: the patterns are longer than 2048 bytes together, so judging a Pod would cost the API server too much"
	ExcludeImages []string `json:"excludeImages,omitempty"`
	// Workloads are custom kinds with a Pod template that are judged early. Any
	// other custom kind is judged at the Pods that it makes.
	// +optional
	// +listType=map
	// +listMapKey=group
	// +listMapKey=resource
	// +kubebuilder:validation:MaxItems=64
	Workloads []WorkloadRule `json:"workloads,omitempty"`
}

// WorkloadRule says where a custom kind keeps its Pod template.
type WorkloadRule struct {
	// Group is the API group, such as "apps.kruise.io".
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`
	Group string `json:"group"`
	// Resource is the plural name, such as "clonesets".
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Resource string `json:"resource"`
	// PodTemplatePath is the dot-separated path to the Pod template.
	// +kubebuilder:default="spec.template"
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`
	PodTemplatePath string `json:"podTemplatePath,omitempty"`
	// ReplicasPath is the dot-separated path to the number of replicas.
	// +kubebuilder:default="spec.replicas"
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$`
	ReplicasPath string `json:"replicasPath,omitempty"`
}

// Mode says how many Pods a slot has room for.
//
// +kubebuilder:validation:Enum=Strict;LeaderElected;Sharded
type Mode string

const (
	// ModeStrict has room for one Pod. It is the default.
	ModeStrict Mode = "Strict"
	// ModeLeaderElected lets the holder have replicas behind one fixed Lease.
	ModeLeaderElected Mode = "LeaderElected"
	// ModeSharded has one slot for each disjoint --target-label-selector.
	ModeSharded Mode = "Sharded"
)

// ValidationAction says what becomes of a request that breaks a rule.
//
// +kubebuilder:validation:Enum=Deny;Warn;Audit
type ValidationAction string

const (
	// ActionDeny refuses the request.
	ActionDeny ValidationAction = "Deny"
	// ActionWarn allows the request with a warning to the client.
	ActionWarn ValidationAction = "Warn"
	// ActionAudit allows the request with an audit line only.
	ActionAudit ValidationAction = "Audit"
)

// HolderReference names a StatefulSet.
type HolderReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
}

// LeaseReference names a Lease.
type LeaseReference struct {
	// Namespace is, left out, the holder's.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespace string `json:"namespace,omitempty"`
	// Name is, left out, "metacontroller".
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`
	Name string `json:"name,omitempty"`
}

// Fence says whose writes are accepted from the active Pod only: that of the
// holder and, where the instance that holds the singleton Lease has marked itself
// in status.writer, the one Pod with that uid.
type Fence struct {
	// ServiceAccount is the one that instances run with. A Pod's token is good for
	// its own namespace only, so this one's is the holder's.
	// +optional
	// +kubebuilder:default={namespace: metacontroller, name: metacontroller}
	ServiceAccount ServiceAccountReference `json:"serviceAccount,omitempty"`
	// Action is what becomes of a write from anywhere else.
	// +optional
	// +kubebuilder:default=Audit
	Action FenceAction `json:"action,omitempty"`
}

// FenceAction is what becomes of a write that the fence does not accept.
//
// +kubebuilder:validation:Enum=Deny;Audit;Off
type FenceAction string

const (
	// FenceDeny refuses the write.
	FenceDeny FenceAction = "Deny"
	// FenceAudit lets it through with an audit annotation.
	FenceAudit FenceAction = "Audit"
	// FenceOff does nothing.
	FenceOff FenceAction = "Off"
)

// ServiceAccountReference names a service account.
type ServiceAccountReference struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-.a-z0-9]*[a-z0-9])?$`
	Name string `json:"name"`
}

// Exception lets one workload, and its Pods, through until it expires.
type Exception struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Name of the workload.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
	// Reason is for the reader of the audit log.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`\S`
	Reason string `json:"reason"`
	// Expires is when the exception ends.
	Expires metav1.Time `json:"expires"`
}

// SingletonPolicyStatus says who holds the slot and what the guard sees.
type SingletonPolicyStatus struct {
	// Holder is who has the slot; absent means that it is free.
	// +optional
	Holder *Holder `json:"holder,omitempty"`
	// Slots are the shards that are held, in mode Sharded, which has no Holder.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	Slots []Slot `json:"slots,omitempty"`
	// Epoch rises with each change of holder and never falls, also while the
	// slot is free.
	// +optional
	Epoch int64 `json:"epoch,omitempty"`
	// ActivePod is the instance that runs now.
	// +optional
	ActivePod *ActivePod `json:"activePod,omitempty"`
	// Writer is the Pod that holds the singleton Lease, as it said itself before
	// its first sync: the one whose writes the fence accepts. Absent, any Pod of
	// the holder's pinned name may write; so it is for an instance that knows
	// nothing of this.
	// +optional
	Writer *Writer `json:"writer,omitempty"`
	// ActiveExceptions are the exceptions that have not expired.
	// +optional
	// +listType=map
	// +listMapKey=namespace
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	ActiveExceptions []Exception `json:"activeExceptions,omitempty"`
	// Instances are the instances seen, at most 100.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=100
	Instances []Instance `json:"instances,omitempty"`
	// Findings are what the scan has found, the worst first, at most 50.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=50
	Findings []Finding `json:"findings,omitempty"`
	// Conditions are Ready, Enforcing, Compliant, CertificateCurrent, FenceReady and
	// Drifted.
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Types of the conditions of a SingletonPolicy.
const (
	// ConditionReady is true when the guard has judged this generation.
	ConditionReady = "Ready"
	// ConditionEnforcing is true when a second instance is refused.
	ConditionEnforcing = "Enforcing"
	// ConditionCompliant is true when at most one instance is there.
	ConditionCompliant = "Compliant"
	// ConditionCertificateCurrent is true when the API servers trust the
	// certificate that the guard serves, and its renewal is not overdue.
	ConditionCertificateCurrent = "CertificateCurrent"
	// ConditionFenceReady is true when the fence is installed and current.
	ConditionFenceReady = "FenceReady"
	// ConditionExcepted is true while an exception lets something through.
	ConditionExcepted = "Excepted"
	// ConditionDrifted is true when installed admission objects differ from
	// what the guard would render.
	ConditionDrifted = "Drifted"
)

// Holder is the StatefulSet that has the slot.
type Holder struct {
	// Kind is StatefulSet.
	// +kubebuilder:validation:MinLength=1
	Kind string `json:"kind"`
	// +kubebuilder:validation:MinLength=1
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// Display is namespace/name, for the printer column.
	// +optional
	Display string `json:"display,omitempty"`
	// UID is of the StatefulSet object, so that one made again under the same
	// name is another holder.
	UID types.UID `json:"uid"`
	// ClaimedAt is when the slot was claimed.
	ClaimedAt metav1.Time `json:"claimedAt"`
	// Phase is how far the claim is.
	Phase HolderPhase `json:"phase"`
	// Since is when the phase began.
	// +optional
	Since metav1.Time `json:"since,omitempty"`
	// Epoch is the epoch that this claim began.
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch"`
	// Elected says, in mode LeaderElected, that the template and every Pod have
	// been seen to take the Lease before they work. Until then only the Pod with
	// ordinal 0 is let in.
	// +optional
	Elected bool `json:"elected,omitempty"`
}

// Slot is one shard that is held.
type Slot struct {
	// Selector is the --target-label-selector that its instance works on.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=4096
	Selector string `json:"selector"`
	// Holder is the StatefulSet that runs the instance.
	Holder Holder `json:"holder"`
	// ActivePod is the instance that runs now.
	// +optional
	ActivePod *ActivePod `json:"activePod,omitempty"`
}

// HolderPhase is how far a claim is.
//
// +kubebuilder:validation:Enum=Reserved;Bound;Releasing
type HolderPhase string

const (
	// HolderReserved means that the StatefulSet was admitted and is not yet seen
	// as an object.
	HolderReserved HolderPhase = "Reserved"
	// HolderBound means that the StatefulSet exists with that uid.
	HolderBound HolderPhase = "Bound"
	// HolderReleasing means that the StatefulSet is gone for good: no instance
	// is admitted until every API server knows, and then the slot is free.
	HolderReleasing HolderPhase = "Releasing"
)

// ActivePod is the instance that runs now.
type ActivePod struct {
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
	// +optional
	Node string `json:"node,omitempty"`
	// Pending is set while the Pod has been admitted and has not started yet.
	// +optional
	Pending bool `json:"pending,omitempty"`
}

// Writer is the Pod whose writes the fence accepts.
type Writer struct {
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string    `json:"name"`
	UID  types.UID `json:"uid"`
}

// Instance is an instance that the guard has seen.
type Instance struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	UID       types.UID `json:"uid"`
	// +optional
	Node string `json:"node,omitempty"`
	// Owner is the controller that the Pod says to be of, as Kind/name.
	// +optional
	Owner string `json:"owner,omitempty"`
	// Workload is the last one up the chain of owners, as Kind/name, where it is
	// another one than Owner.
	// +optional
	Workload string `json:"workload,omitempty"`
	// Verdict is what the policy says of it.
	Verdict InstanceVerdict `json:"verdict"`
}

// Finding is one thing that is not as it should be.
type Finding struct {
	// ID says what kind of finding it is; docs/scan.md has the list.
	ID string `json:"id"`
	// Severity is critical, high, medium or low.
	Severity string `json:"severity"`
	// Object is what it is about.
	Object ObjectReference `json:"object"`
	// Path is the field of the object that it is about.
	// +optional
	Path string `json:"path,omitempty"`
	// Message says what is wrong.
	// +kubebuilder:validation:MaxLength=2048
	Message string `json:"message"`
	// Fix says what to do.
	// +optional
	// +kubebuilder:validation:MaxLength=2048
	Fix string `json:"fix,omitempty"`
	// Since is when it was found first.
	Since metav1.Time `json:"since"`
}

// ObjectReference names an object of any kind.
type ObjectReference struct {
	// +optional
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind"`
	// +optional
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// +optional
	UID types.UID `json:"uid,omitempty"`
}

// InstanceVerdict is what the policy says of an instance that exists.
//
// +kubebuilder:validation:Enum=Allowed;Excepted;Violation
type InstanceVerdict string

const (
	// InstanceAllowed is the pinned Pod.
	InstanceAllowed InstanceVerdict = "Allowed"
	// InstanceExcepted is let through by an exception.
	InstanceExcepted InstanceVerdict = "Excepted"
	// InstanceViolation should not be there.
	InstanceViolation InstanceVerdict = "Violation"
)
