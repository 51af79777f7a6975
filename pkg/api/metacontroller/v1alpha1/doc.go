// Package v1alpha1 holds the API that people write Kubernetes controllers with:
// CompositeController, DecoratorController and ControllerRevision, in the group
// metacontroller.k8s.io. Names, JSON keys, short names and defaults are those of
// the public Metacontroller 4.17, so that every manifest of it is valid here.
//
// +kubebuilder:object:generate=true
// +groupName=metacontroller.k8s.io
package v1alpha1
