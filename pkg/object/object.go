package object

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
)

// Annotations and labels with a meaning of their own.
const (
	// LastAppliedAnnotation holds the desired state that was written last, as
	// JSON; see package merge.
	LastAppliedAnnotation = "metacontroller.k8s.io/last-applied-configuration"
	// ControllerUIDLabel holds the UID of a child's parent when the controller
	// generates its selector.
	ControllerUIDLabel = "controller-uid"
	// DecoratorAnnotation names the DecoratorController on each attachment.
	DecoratorAnnotation = "metacontroller.k8s.io/decorator-controller"
)

// Object is one object of the API server, or one that is to be written to it.
// It is immutable, so it is shared and never copied; a change is a new Object.
//
// *Object satisfies runtime.Object and metav1.ObjectMetaAccessor, so that it can
// lie in the caches of client-go.
type Object struct {
	apiVersion      string
	kind            string
	namespace       string
	name            string
	uid             string
	resourceVersion string
	generation      int64
	deletion        string
	labels          map[string]string
	owners          []metav1.OwnerReference
	finalizers      []string
	// annotations is where in body the annotations are; they are decoded on
	// demand, for most of them is a copy of the body (last applied).
	annotations span
	// applied are the fields that one field manager applied, see Reader.
	applied string
	// decorator is the value of DecoratorAnnotation, which is asked of every child in
	// every sync; nil if it is not there.
	decorator *string
	// body is never written again.
	body []byte
}

// APIVersion is group/version, or the version alone in the core group.
func (o *Object) APIVersion() string { return o.apiVersion }

// Kind is the kind, without its group.
func (o *Object) Kind() string { return o.kind }

// GroupVersionKind is APIVersion and Kind in parsed form.
func (o *Object) GroupVersionKind() schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(o.apiVersion, o.kind)
}

// Namespace is empty for a cluster-scoped object.
func (o *Object) Namespace() string { return o.namespace }

// Name of the object.
func (o *Object) Name() string { return o.name }

// UID is empty for an object that was never written.
func (o *Object) UID() types.UID { return types.UID(o.uid) }

// ResourceVersion is empty for an object that was never written.
func (o *Object) ResourceVersion() string { return o.resourceVersion }

// Generation is 0 for kinds that do not count it.
func (o *Object) Generation() int64 { return o.generation }

// Terminating says that the object has a deletion timestamp.
func (o *Object) Terminating() bool { return o.deletion != "" }

// DeletionTimestamp is nil unless the object is terminating.
func (o *Object) DeletionTimestamp() *metav1.Time {
	if o.deletion == "" {
		return nil
	}
	t, err := time.Parse(time.RFC3339, o.deletion)
	if err != nil {
		// What is terminating must not look alive because of a strange clock.
		return &metav1.Time{}
	}
	return &metav1.Time{Time: t}
}

// Labels of the object, to be read only.
func (o *Object) Labels() map[string]string { return o.labels }

// Annotations of the object, decoded anew at each call: the caller owns the map.
// It is nil if there are none.
func (o *Object) Annotations() map[string]string {
	if o.annotations.empty() {
		return nil
	}
	// The parser has been here: this cannot fail.
	var out map[string]string
	_ = json.Unmarshal(o.annotations.of(o.body), &out, jsontext.AllowDuplicateNames(true))
	return out
}

// Annotation is the value of one annotation, and whether it is there.
func (o *Object) Annotation(key string) (string, bool) {
	if o.annotations.empty() {
		return "", false
	}
	return member(o.annotations.of(o.body), key)
}

// Decorator is the value of DecoratorAnnotation, and whether it is there.
func (o *Object) Decorator() (string, bool) {
	if o.decorator == nil {
		return "", false
	}
	return *o.decorator, true
}

// OwnerReferences of the object, to be read only.
func (o *Object) OwnerReferences() []metav1.OwnerReference { return o.owners }

// Finalizers of the object, to be read only.
func (o *Object) Finalizers() []string { return o.finalizers }

// HasFinalizer says whether the object carries this finalizer.
func (o *Object) HasFinalizer(name string) bool { return slices.Contains(o.finalizers, name) }

// Key says which object this is.
func (o *Object) Key() Key {
	gvk := o.GroupVersionKind()
	return Key{Group: gvk.Group, Kind: gvk.Kind, Namespace: o.namespace, Name: o.name}
}

// Body is the whole object as JSON, without metadata.managedFields, copied.
func (o *Object) Body() string { return string(o.body) }

// Bytes is Body itself, to be read only.
func (o *Object) Bytes() []byte { return o.body }

// AppendJSON appends the whole object as JSON.
func (o *Object) AppendJSON(to []byte) []byte { return append(to, o.body...) }

// MarshalJSON returns the body.
func (o *Object) MarshalJSON() ([]byte, error) { return bytes.Clone(o.body), nil }

// Content decodes the body. Numbers are int64 where they are whole and fit,
// float64 where that loses nothing, and json.Number otherwise. The caller owns
// the map.
func (o *Object) Content() map[string]any {
	// The parser has been here: this cannot fail.
	content, _ := Decode(o.body)
	out, _ := content.(map[string]any)
	return out
}

// Unstructured is Content as client-go's type. The caller owns it.
func (o *Object) Unstructured() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: o.Content()}
}

// Applied are the fields that the Reader's field manager owns by server-side
// apply, in the form that the API server keeps them in (FieldsV1 JSON). It is
// empty if there are none, or if they were not kept.
func (o *Object) Applied() string { return o.applied }

// SameAs says whether two objects are the same state of the same object, byte by
// byte.
func (o *Object) SameAs(other *Object) bool {
	return o == other || o != nil && other != nil && bytes.Equal(o.body, other.body)
}

// String is for messages.
func (o *Object) String() string { return o.Key().String() }

// ControllerOf is the owner reference of the object's controller, or nil.
func ControllerOf(o *Object) *metav1.OwnerReference {
	for i := range o.owners {
		if o.owners[i].Controller != nil && *o.owners[i].Controller {
			return &o.owners[i]
		}
	}
	return nil
}

// ControlledBy says whether the object's controller has this UID.
func ControlledBy(o *Object, uid types.UID) bool {
	ref := ControllerOf(o)
	return ref != nil && uid != "" && ref.UID == uid
}

// GetObjectKind is for client-go.
func (o *Object) GetObjectKind() schema.ObjectKind {
	return &metav1.TypeMeta{APIVersion: o.apiVersion, Kind: o.kind}
}

// DeepCopyObject returns the object itself: it is immutable.
func (o *Object) DeepCopyObject() runtime.Object { return o }

// FromUnstructured makes an Object of client-go's type, which is not kept. Keys
// are written in sorted order, so that one state has one body.
func FromUnstructured(u *unstructured.Unstructured) (*Object, error) {
	if u == nil {
		return nil, fmt.Errorf("cannot make an object of nothing")
	}
	return FromContent(u.Object)
}

// FromContent makes an Object of decoded JSON, which is not kept. Keys are
// written in sorted order, so that one state has one body.
func FromContent(content map[string]any) (*Object, error) {
	if metadata, ok := content["metadata"].(map[string]any); ok {
		if _, ok := metadata["managedFields"]; ok {
			content, metadata = maps.Clone(content), maps.Clone(metadata)
			delete(metadata, "managedFields")
			content["metadata"] = metadata
		}
	}
	data, err := Encode(content)
	if err != nil {
		return nil, err
	}
	return parse(data, keep, "")
}
