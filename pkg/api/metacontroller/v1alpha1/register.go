package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every type in this package.
var GroupVersion = schema.GroupVersion{Group: "metacontroller.k8s.io", Version: "v1alpha1"}

// Kinds and plural resource names of this API.
const (
	CompositeControllerKind = "CompositeController"
	DecoratorControllerKind = "DecoratorController"
	ControllerRevisionKind  = "ControllerRevision"

	CompositeControllerResource = "compositecontrollers"
	DecoratorControllerResource = "decoratorcontrollers"
	ControllerRevisionResource  = "controllerrevisions"
)

var (
	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	// AddToScheme registers the types of this package.
	AddToScheme = schemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion,
		&CompositeController{}, &CompositeControllerList{},
		&DecoratorController{}, &DecoratorControllerList{},
		&ControllerRevision{}, &ControllerRevisionList{},
	)
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
