package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CompositeController makes a set of child objects, and the status, of each
// parent object out of the answer of a hook.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=compositecontrollers,scope=Cluster,shortName=cc;cctl
// +kubebuilder:printcolumn:name="Parent",type=string,JSONPath=`.spec.parentResource.resource`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:metadata:annotations="api-approved.kubernetes.io=unapproved, request not yet submitted"
type CompositeController struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec CompositeControllerSpec `json:"spec"`
	// Status is empty; nothing writes it.
	// +optional
	Status CompositeControllerStatus `json:"status,omitempty"`
}

// CompositeControllerList is a list of CompositeControllers.
//
// +kubebuilder:object:root=true
type CompositeControllerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CompositeController `json:"items"`
}

// CompositeControllerStatus is empty. It stands for compatibility.
type CompositeControllerStatus struct{}

// CompositeControllerSpec says what the parents are, which kinds of children
// they have, and which hooks decide.
type CompositeControllerSpec struct {
	// ParentResource is the kind of object that this controller reconciles.
	ParentResource CompositeControllerParentResourceRule `json:"parentResource"`
	// ChildResources are the kinds that the hook may return. A kind that is not
	// listed here is never created, changed or deleted.
	// +optional
	// +listType=atomic
	ChildResources []CompositeControllerChildResourceRule `json:"childResources,omitempty"`

	// Hooks are the callbacks. Without a sync hook nothing is reconciled.
	// +optional
	Hooks *CompositeControllerHooks `json:"hooks,omitempty"`

	// EndpointConfigs hold authentication and TLS by host of a hook's address.
	// +optional
	// +listType=atomic
	EndpointConfigs []EndpointConfig `json:"endpointConfigs,omitempty"`

	// ResyncPeriodSeconds makes every parent be synced at least this often.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ResyncPeriodSeconds *int32 `json:"resyncPeriodSeconds,omitempty"`
	// GenerateSelector selects children by the label controller-uid, which is
	// injected into them, in place of the parent's spec.selector.
	// +optional
	GenerateSelector *bool `json:"generateSelector,omitempty"`
}

// ResourceRule names a resource of the API server.
type ResourceRule struct {
	// APIVersion is group/version, or the version alone for the core group.
	APIVersion string `json:"apiVersion"`
	// Resource is the plural, lower-case name, such as "pods".
	Resource string `json:"resource"`
}

// CompositeControllerParentResourceRule says which objects are parents.
type CompositeControllerParentResourceRule struct {
	ResourceRule `json:",inline"`
	// RevisionHistory says which fields make a revision of the parent.
	// +optional
	RevisionHistory *CompositeControllerRevisionHistory `json:"revisionHistory,omitempty"`
	// LabelSelector limits the controller to parents with these labels; absent
	// means all of them.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// IgnoreStatusChanges keeps an update that changes nothing but the parent's
	// status from causing a sync.
	// +optional
	IgnoreStatusChanges *bool `json:"ignoreStatusChanges,omitempty"`
}

// CompositeControllerRevisionHistory says what a revision of a parent is.
type CompositeControllerRevisionHistory struct {
	// FieldPaths are dot-separated paths into the parent; the default is "spec".
	// +optional
	// +listType=atomic
	FieldPaths []string `json:"fieldPaths,omitempty"`
}

// CompositeControllerChildResourceRule declares one kind of child.
type CompositeControllerChildResourceRule struct {
	ResourceRule `json:",inline"`
	// UpdateStrategy says how an existing child is changed.
	// +optional
	UpdateStrategy *CompositeControllerChildUpdateStrategy `json:"updateStrategy,omitempty"`
}

// ChildUpdateMethod is the way in which an existing child is changed.
//
// +kubebuilder:validation:Enum={"",OnDelete,Recreate,InPlace,RollingRecreate,RollingInPlace}
type ChildUpdateMethod string

const (
	// ChildUpdateOnDelete never changes an existing child; a new one gets the
	// new state. It is the default.
	ChildUpdateOnDelete ChildUpdateMethod = "OnDelete"
	// ChildUpdateRecreate deletes a child that differs; a later sync creates it.
	ChildUpdateRecreate ChildUpdateMethod = "Recreate"
	// ChildUpdateInPlace writes the merged object.
	ChildUpdateInPlace ChildUpdateMethod = "InPlace"
	// ChildUpdateRollingRecreate is Recreate for one child per sync.
	ChildUpdateRollingRecreate ChildUpdateMethod = "RollingRecreate"
	// ChildUpdateRollingInPlace is InPlace for one child per sync.
	ChildUpdateRollingInPlace ChildUpdateMethod = "RollingInPlace"
)

// CompositeControllerChildUpdateStrategy is the strategy of one child kind.
type CompositeControllerChildUpdateStrategy struct {
	// Method defaults to OnDelete.
	// +optional
	Method ChildUpdateMethod `json:"method,omitempty"`
	// StatusChecks gate the steps of the two rolling methods.
	// +optional
	StatusChecks ChildUpdateStatusChecks `json:"statusChecks,omitempty"`
}

// ChildUpdateStatusChecks must pass on every updated child before the next one
// is changed.
type ChildUpdateStatusChecks struct {
	// +optional
	// +listType=atomic
	Conditions []StatusConditionCheck `json:"conditions,omitempty"`
}

// StatusConditionCheck looks at one of a child's status.conditions.
type StatusConditionCheck struct {
	// Type of the condition.
	Type string `json:"type"`
	// Status that the condition must have; absent means any.
	// +optional
	Status *string `json:"status,omitempty"`
	// Reason that the condition must have; absent means any.
	// +optional
	Reason *string `json:"reason,omitempty"`
}

// CompositeControllerHooks are the callbacks of a CompositeController.
type CompositeControllerHooks struct {
	// Customize returns which related objects the other hooks are shown.
	// +optional
	Customize *Hook `json:"customize,omitempty"`
	// Sync returns the children and the status of a parent.
	// +optional
	Sync *Hook `json:"sync,omitempty"`
	// Finalize is called in place of sync once a parent is being deleted or no
	// longer matches the selector.
	// +optional
	Finalize *Hook `json:"finalize,omitempty"`

	// PreUpdateChild is accepted for compatibility and never called.
	// +optional
	PreUpdateChild *Hook `json:"preUpdateChild,omitempty"`
	// PostUpdateChild is accepted for compatibility and never called.
	// +optional
	PostUpdateChild *Hook `json:"postUpdateChild,omitempty"`
}
