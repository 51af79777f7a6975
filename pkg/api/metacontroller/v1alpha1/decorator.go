package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DecoratorController adds labels, annotations, status and attached objects to
// existing objects, as the answer of a hook says.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:path=decoratorcontrollers,scope=Cluster,shortName=dec;decorators
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:metadata:annotations="api-approved.kubernetes.io=unapproved, request not yet submitted"
type DecoratorController struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec DecoratorControllerSpec `json:"spec"`
	// Status is empty; nothing writes it.
	// +optional
	Status DecoratorControllerStatus `json:"status,omitempty"`
}

// DecoratorControllerList is a list of DecoratorControllers.
//
// +kubebuilder:object:root=true
type DecoratorControllerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DecoratorController `json:"items"`
}

// DecoratorControllerStatus is empty. It stands for compatibility.
type DecoratorControllerStatus struct{}

// DecoratorControllerSpec says which objects are decorated, with what kinds of
// attachments, and which hooks decide.
type DecoratorControllerSpec struct {
	// Resources are the kinds of objects that are decorated.
	// +listType=atomic
	Resources []DecoratorControllerResourceRule `json:"resources"`
	// Attachments are the kinds of objects that the hook may attach.
	// +optional
	// +listType=atomic
	Attachments []DecoratorControllerAttachmentRule `json:"attachments,omitempty"`

	// Hooks are the callbacks. Without a sync hook nothing is reconciled.
	// +optional
	Hooks *DecoratorControllerHooks `json:"hooks,omitempty"`

	// EndpointConfigs hold authentication and TLS by host of a hook's address.
	// +optional
	// +listType=atomic
	EndpointConfigs []EndpointConfig `json:"endpointConfigs,omitempty"`

	// ResyncPeriodSeconds makes every decorated object be synced at least this
	// often.
	// +optional
	// +kubebuilder:validation:Minimum=1
	ResyncPeriodSeconds *int32 `json:"resyncPeriodSeconds,omitempty"`
}

// DecoratorControllerResourceRule says which objects of a kind are decorated.
type DecoratorControllerResourceRule struct {
	ResourceRule `json:",inline"`
	// LabelSelector limits the rule to objects with these labels.
	// +optional
	LabelSelector *metav1.LabelSelector `json:"labelSelector,omitempty"`
	// AnnotationSelector limits the rule to objects with these annotations.
	// +optional
	AnnotationSelector *AnnotationSelector `json:"annotationSelector,omitempty"`
	// IgnoreStatusChanges keeps an update that changes nothing but the object's
	// status from causing a sync.
	// +optional
	IgnoreStatusChanges *bool `json:"ignoreStatusChanges,omitempty"`
}

// AnnotationSelector is a label selector that looks at annotations.
type AnnotationSelector struct {
	// +optional
	MatchAnnotations map[string]string `json:"matchAnnotations,omitempty"`
	// +optional
	// +listType=atomic
	MatchExpressions []metav1.LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// DecoratorControllerAttachmentRule declares one kind of attachment.
type DecoratorControllerAttachmentRule struct {
	ResourceRule `json:",inline"`
	// UpdateStrategy says how an existing attachment is changed.
	// +optional
	UpdateStrategy *DecoratorControllerAttachmentUpdateStrategy `json:"updateStrategy,omitempty"`
}

// DecoratorControllerAttachmentUpdateStrategy is the strategy of one kind of
// attachment. The two rolling methods act as Recreate and InPlace.
type DecoratorControllerAttachmentUpdateStrategy struct {
	// Method defaults to OnDelete.
	// +optional
	Method ChildUpdateMethod `json:"method,omitempty"`
}

// DecoratorControllerHooks are the callbacks of a DecoratorController.
type DecoratorControllerHooks struct {
	// Customize returns which related objects the other hooks are shown.
	// +optional
	Customize *Hook `json:"customize,omitempty"`
	// Sync returns labels, annotations, status and attachments of an object.
	// +optional
	Sync *Hook `json:"sync,omitempty"`
	// Finalize is called in place of sync once an object is being deleted or no
	// longer matches the selectors.
	// +optional
	Finalize *Hook `json:"finalize,omitempty"`
}
