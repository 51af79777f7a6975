package owned

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	stdjson "encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// HandOver is managedFields in which an applying field manager owns what was
// written by updates before, and remembered in the last-applied annotation:
// then what is no longer desired is removed by the next apply, as it would have
// been by the next update.
//
// The updates are those by a field manager of one of the given names, and by any
// that owns the annotation: whoever wrote that was a Metacontroller, under the
// name that its program file had. Their entries go. Of what they owned, only what
// was remembered passes on: the rest are defaults and what an admission webhook
// put there, such as a sidecar, and no apply may take that away.
//
// Entries that cannot be read stay as they are.
func HandOver(managed []metav1.ManagedFieldsEntry, last map[string]any, applier string, updaters ...string) ([]metav1.ManagedFieldsEntry, error) {
	annotation := fieldpath.MakePathOrDie("metadata", "annotations", object.LastAppliedAnnotation)
	var (
		kept     []metav1.ManagedFieldsEntry
		taken    []*metav1.ManagedFieldsEntry
		takenSet []*fieldpath.Set
	)
	for i, entry := range managed {
		if entry.Operation != metav1.ManagedFieldsOperationUpdate || entry.Subresource != "" || entry.FieldsV1 == nil {
			kept = append(kept, entry)
			continue
		}
		set, err := parse(entry.FieldsV1.GetRawString())
		if err != nil || !slices.Contains(updaters, entry.Manager) && !set.Has(annotation) {
			kept = append(kept, entry)
			continue
		}
		taken, takenSet = append(taken, &managed[i]), append(takenSet, restrict(set, last))
	}
	if len(taken) == 0 {
		return managed, nil
	}
	at := slices.IndexFunc(kept, func(entry metav1.ManagedFieldsEntry) bool {
		return entry.Manager == applier && entry.Operation == metav1.ManagedFieldsOperationApply && entry.Subresource == ""
	})
	if at < 0 {
		entry := *taken[0]
		entry.Manager, entry.Operation, entry.FieldsV1 = applier, metav1.ManagedFieldsOperationApply, nil
		kept = append(kept, entry)
		at = len(kept) - 1
	}
	union := &fieldpath.Set{}
	if fields := kept[at].FieldsV1; fields != nil {
		own, err := parse(fields.GetRawString())
		if err != nil {
			return nil, err
		}
		union = own
	}
	for i, entry := range taken {
		// Paths of another version may mean other fields.
		if entry.APIVersion == kept[at].APIVersion {
			union = union.Union(takenSet[i])
		}
	}
	if union.Empty() {
		return slices.Delete(kept, at, at+1), nil
	}
	raw, err := union.ToJSON()
	if err != nil {
		return nil, fmt.Errorf("cannot write the fields of a field manager: %w", err)
	}
	kept[at].FieldsType, kept[at].FieldsV1 = "FieldsV1", metav1.NewFieldsV1(string(raw))
	return kept, nil
}

// Migration is the JSON patch (RFC 6902) that ends the time of the last-applied
// annotation of a live object, as the API server sent it: it hands over, and
// takes the annotation off, both at once or not at all. It is refused with a
// conflict if the object changes before.
func Migration(live []byte, applier string, updaters ...string) ([]byte, error) {
	var decoded struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	if err := stdjson.Unmarshal(live, &decoded); err != nil {
		return nil, fmt.Errorf("cannot read metadata: %w", err)
	}
	text, ok := decoded.Metadata.Annotations[object.LastAppliedAnnotation]
	if !ok {
		return nil, errors.New("it has no last-applied annotation")
	}
	// One that cannot be read remembers nothing.
	value, _ := object.Decode([]byte(text))
	last, _ := value.(map[string]any)
	managed, err := HandOver(decoded.Metadata.ManagedFields, last, applier, updaters...)
	if err != nil {
		return nil, err
	}
	type operation struct {
		Op    string `json:"op"`
		Path  string `json:"path"`
		Value any    `json:"value,omitempty"`
	}
	patch := []operation{
		// To replace, and not to test: an object that changed is a conflict then,
		// and no bad patch.
		{Op: "replace", Path: "/metadata/resourceVersion", Value: decoded.Metadata.ResourceVersion},
		{Op: "remove", Path: "/metadata/annotations/" + escape(object.LastAppliedAnnotation)},
	}
	if len(managed) > 0 {
		patch = append(patch, operation{Op: "replace", Path: "/metadata/managedFields", Value: managed})
	}
	return stdjson.Marshal(patch)
}

// escape is a name as a part of a JSON pointer (RFC 6901).
func escape(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}
