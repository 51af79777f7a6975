package object

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// meta is an Object as client-go sees it. It asks for names and versions several
// times for each event, so nothing is copied: there are no annotations, and the
// setters do nothing.
type meta Object

// GetObjectMeta is for client-go: the decoded metadata, without the annotations.
// Writing to it changes nothing.
func (o *Object) GetObjectMeta() metav1.Object { return (*meta)(o) }

func (m *meta) GetNamespace() string                          { return m.namespace }
func (m *meta) GetName() string                               { return m.name }
func (m *meta) GetGenerateName() string                       { return "" }
func (m *meta) GetUID() types.UID                             { return types.UID(m.uid) }
func (m *meta) GetResourceVersion() string                    { return m.resourceVersion }
func (m *meta) GetGeneration() int64                          { return m.generation }
func (m *meta) GetSelfLink() string                           { return "" }
func (m *meta) GetCreationTimestamp() metav1.Time             { return metav1.Time{} }
func (m *meta) GetDeletionTimestamp() *metav1.Time            { return (*Object)(m).DeletionTimestamp() }
func (m *meta) GetDeletionGracePeriodSeconds() *int64         { return nil }
func (m *meta) GetLabels() map[string]string                  { return m.labels }
func (m *meta) GetAnnotations() map[string]string             { return nil }
func (m *meta) GetFinalizers() []string                       { return m.finalizers }
func (m *meta) GetOwnerReferences() []metav1.OwnerReference   { return m.owners }
func (m *meta) GetManagedFields() []metav1.ManagedFieldsEntry { return nil }

func (*meta) SetNamespace(string)                          {}
func (*meta) SetName(string)                               {}
func (*meta) SetGenerateName(string)                       {}
func (*meta) SetUID(types.UID)                             {}
func (*meta) SetResourceVersion(string)                    {}
func (*meta) SetGeneration(int64)                          {}
func (*meta) SetSelfLink(string)                           {}
func (*meta) SetCreationTimestamp(metav1.Time)             {}
func (*meta) SetDeletionTimestamp(*metav1.Time)            {}
func (*meta) SetDeletionGracePeriodSeconds(*int64)         {}
func (*meta) SetLabels(map[string]string)                  {}
func (*meta) SetAnnotations(map[string]string)             {}
func (*meta) SetFinalizers([]string)                       {}
func (*meta) SetOwnerReferences([]metav1.OwnerReference)   {}
func (*meta) SetManagedFields([]metav1.ManagedFieldsEntry) {}
