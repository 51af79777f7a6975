package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// ControllerRevision remembers one revision of a parent, and which children
// still have it while a rolling update goes on. It is not the kind of the same
// name in the group apps.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=controllerrevisions,scope=Namespaced
// +kubebuilder:metadata:annotations="api-approved.kubernetes.io=unapproved, request not yet submitted"
type ControllerRevision struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata"`

	// ParentPatch is the part of the parent that makes this revision.
	// +kubebuilder:pruning:PreserveUnknownFields
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=object
	ParentPatch runtime.RawExtension `json:"parentPatch"`
	// Children are the children that have this revision.
	// +optional
	// +listType=atomic
	Children []ControllerRevisionChildren `json:"children,omitempty"`
}

// ControllerRevisionChildren are the children of one kind.
type ControllerRevisionChildren struct {
	APIGroup string `json:"apiGroup"`
	Kind     string `json:"kind"`
	// +listType=atomic
	Names []string `json:"names"`
}

// ControllerRevisionList is a list of ControllerRevisions.
//
// +kubebuilder:object:root=true
type ControllerRevisionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`

	Items []ControllerRevision `json:"items"`
}
