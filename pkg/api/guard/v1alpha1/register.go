package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of every type in this package.
var GroupVersion = schema.GroupVersion{Group: "guard.metacontroller.io", Version: "v1alpha1"}

const (
	// SingletonPolicyKind is the kind of SingletonPolicy.
	SingletonPolicyKind = "SingletonPolicy"
	// SingletonPolicyResource is its plural resource name.
	SingletonPolicyResource = "singletonpolicies"
	// DefaultPolicyName is the name of the policy that is shipped, the one for
	// Metacontroller.
	DefaultPolicyName = "metacontroller"
)

var (
	schemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)
	// AddToScheme registers the types of this package.
	AddToScheme = schemeBuilder.AddToScheme
)

func addKnownTypes(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &SingletonPolicy{}, &SingletonPolicyList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
