// Package v1alpha1 holds SingletonPolicy, in the group guard.metacontroller.io:
// the policy that says which Pods are instances of a program of which at most
// one may be active in the cluster, and who holds that one slot.
//
// +kubebuilder:object:generate=true
// +groupName=guard.metacontroller.io
package v1alpha1
