package object

import (
	"cmp"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Kind is an object kind as discovery knows it.
type Kind struct {
	schema.GroupVersionKind
	// Resource is the plural, lower-case name, such as "pods".
	Resource string
	// Namespaced says that objects of this kind live in a namespace.
	Namespaced bool
}

// GroupVersionResource is the resource that this kind is served under.
func (k Kind) GroupVersionResource() schema.GroupVersionResource {
	return k.GroupVersion().WithResource(k.Resource)
}

// APIVersion is the text that an object of this kind carries as apiVersion:
// group/version, or the version alone in the core group.
func (k Kind) APIVersion() string {
	return k.GroupVersion().String()
}

// Key is the Key of the object of this kind with this name. The namespace is
// dropped if objects of this kind have none.
func (k Kind) Key(namespace, name string) Key {
	if !k.Namespaced {
		namespace = ""
	}
	return Key{Group: k.Group, Kind: k.GroupVersionKind.Kind, Namespace: namespace, Name: name}
}

// CompareKinds orders kinds by group, then version, then kind: the order in
// which the kinds of a sync are handled.
func CompareKinds(a, b schema.GroupVersionKind) int {
	return cmp.Or(
		strings.Compare(a.Group, b.Group),
		strings.Compare(a.Version, b.Version),
		strings.Compare(a.Kind, b.Kind),
	)
}

// Key says which object is meant. It has no version: one object is served in
// every version of its kind.
type Key struct {
	// Group is empty in the core group.
	Group string
	Kind  string
	// Namespace is empty for a cluster-scoped object.
	Namespace string
	Name      string
}

// GroupKind is the kind of the object.
func (k Key) GroupKind() schema.GroupKind {
	return schema.GroupKind{Group: k.Group, Kind: k.Kind}
}

// NamespacedName is the key without its kind.
func (k Key) NamespacedName() types.NamespacedName {
	return types.NamespacedName{Namespace: k.Namespace, Name: k.Name}
}

// String is for messages: Kind.group namespace/name.
func (k Key) String() string {
	return k.GroupKind().String() + " " + k.Path()
}

// Path is for messages: namespace/name, or the name alone.
func (k Key) Path() string {
	if k.Namespace == "" {
		return k.Name
	}
	return k.Namespace + "/" + k.Name
}

// Compare orders keys by group, kind, namespace and name.
func (k Key) Compare(other Key) int {
	return cmp.Or(
		strings.Compare(k.Group, other.Group),
		strings.Compare(k.Kind, other.Kind),
		strings.Compare(k.Namespace, other.Namespace),
		strings.Compare(k.Name, other.Name),
	)
}

// Reference says which object is meant, and which life of it: an object that was
// deleted and made again under one name has another UID.
type Reference struct {
	Key
	// APIVersion is the version in which the object was seen.
	APIVersion string
	UID        types.UID
}

// ReferenceOf is the Reference of an object that was read from the API server.
func ReferenceOf(o *Object) Reference {
	return Reference{Key: o.Key(), APIVersion: o.APIVersion(), UID: o.UID()}
}

// ControllerReference is the owner reference that an object carries which r
// controls: controller and blockOwnerDeletion are set.
func (r Reference) ControllerReference() metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{
		APIVersion:         r.APIVersion,
		Kind:               r.Kind,
		Name:               r.Name,
		UID:                r.UID,
		Controller:         &yes,
		BlockOwnerDeletion: &yes,
	}
}

// OwnerKey is the Key of the owner that a reference in an object of the given
// namespace names. The reference does not say whether the owner is namespaced;
// the kind of the owner does.
func OwnerKey(ref *metav1.OwnerReference, owner Kind, namespace string) Key {
	return owner.Key(namespace, ref.Name)
}

// Refers says whether a reference names this group and kind, in whatever
// version. A malformed apiVersion names nothing.
func Refers(ref *metav1.OwnerReference, kind schema.GroupKind) bool {
	if ref == nil || ref.Kind != kind.Kind {
		return false
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	return err == nil && gv.Group == kind.Group
}

// LeftBehind says whether the controller of a child was an earlier object of the
// parent's kind and name: one that is gone, for two of one name cannot be.
func LeftBehind(child, parent *Object) bool {
	ref := ControllerOf(child)
	return ref != nil && ref.UID != parent.UID() && ref.Name == parent.Name() && Refers(ref, parent.GroupVersionKind().GroupKind()) &&
		(parent.Namespace() == "" || parent.Namespace() == child.Namespace())
}
