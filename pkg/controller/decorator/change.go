package decorator

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Fields of an answer, of which problems tell the path, and of an object.
const (
	fieldLabels      = "labels"
	fieldAnnotations = "annotations"
	fieldStatus      = "status"
	fieldMetadata    = "metadata"
	fieldFinalizers  = "finalizers"
)

// change is where the decorated object differs from what a hook wants of it. The
// zero value is no difference.
type change struct {
	// labels and annotations that differ; nil takes one off.
	labels, annotations map[string]any
	// status to be put by the subresource; nil leaves it.
	status map[string]any
	// statusField is a merge patch of a status that is a field like any other.
	statusField map[string]any
	// homeless says that the hook wants a status, and the kind has none.
	homeless bool
	// selected says whether the controller will manage the object with its new
	// labels and annotations.
	selected bool
}

// changeOf finds out what an answer changes on the parent. The error names the
// field of the answer that cannot be right.
func changeOf(rule *engine.Parent, parent *object.Object, answer *hook.Response) (change, error) {
	var (
		c   change
		err error
	)
	hasLabels, hasAnnotations := parent.Labels(), parent.Annotations()
	if c.labels, err = differing(fieldLabels, hasLabels, answer.Labels, checkLabel); err != nil {
		return change{}, err
	}
	if c.annotations, err = differing(fieldAnnotations, hasAnnotations, answer.Annotations, checkAnnotation); err != nil {
		return change{}, err
	}
	annotations := changed(hasAnnotations, c.annotations)
	if len(c.annotations) > 0 {
		if err := apivalidation.ValidateAnnotationsSize(annotations); err != nil {
			return change{}, &object.FieldError{Path: fieldAnnotations, Problem: "would make the annotations of the object larger than the API server allows: " + err.Error()}
		}
	}
	c.selected = rule.SelectsWith(changed(hasLabels, c.labels), func(key string) (string, bool) {
		value, has := annotations[key]
		return value, has
	})
	return c, c.setStatus(rule, parent, answer.Status)
}

// setStatus finds out where the status differs. Null leaves it as it is; a value
// is the whole of it.
func (c *change) setStatus(rule *engine.Parent, parent *object.Object, wanted hook.Status) error {
	if wanted.Presence != hook.Given {
		return nil
	}
	decoded, err := object.Decode(wanted.JSON)
	if err != nil {
		return &object.FieldError{Path: fieldStatus, Problem: "is wrong: " + err.Error()}
	}
	status, ok := decoded.(map[string]any)
	if !ok {
		return &object.FieldError{Path: fieldStatus, Problem: "must be an object"}
	}
	has := parent.Content()[fieldStatus]
	if object.Equal(has, status) || has == nil && object.Equal(map[string]any{}, status) {
		return nil
	}
	switch {
	case rule.HasStatus:
		c.status = status
	case rule.StatusField:
		before, _ := has.(map[string]any)
		c.statusField = mergePatch(before, status)
	default:
		c.homeless = true
	}
	return nil
}

// patch is the request for all that the status subresource does not take, as a
// JSON merge patch: nil if there is nothing to change. Nil finalizers stay.
func (c change) patch(finalizers []string) map[string]any {
	metadata := map[string]any{}
	if len(c.labels) > 0 {
		metadata[fieldLabels] = c.labels
	}
	if len(c.annotations) > 0 {
		metadata[fieldAnnotations] = c.annotations
	}
	if finalizers != nil {
		metadata[fieldFinalizers] = finalizers
	}
	patch := map[string]any{}
	if len(metadata) > 0 {
		patch[fieldMetadata] = metadata
	}
	if len(c.statusField) > 0 {
		patch[fieldStatus] = c.statusField
	}
	if len(patch) == 0 {
		return nil
	}
	return patch
}

// differing are the changes that change something.
func differing(path string, has map[string]string, wanted map[string]*string, check func(key, value string) string) (map[string]any, error) {
	out := map[string]any{}
	for _, key := range slices.Sorted(maps.Keys(wanted)) {
		value := wanted[key]
		now, there := has[key]
		if value == nil && !there || value != nil && there && now == *value {
			continue
		}
		problem := reserved(key)
		if problem == "" && value != nil {
			problem = check(key, *value)
		}
		if problem != "" {
			return nil, &object.FieldError{Path: path + "[" + key + "]", Problem: problem}
		}
		if value == nil {
			out[key] = nil
		} else {
			out[key] = *value
		}
	}
	return out, nil
}

// reserved says why a hook cannot change a label or annotation: the memory and
// the owner of an object that another controller looks after hang on it.
func reserved(key string) string {
	switch key {
	case object.LastAppliedAnnotation, object.DecoratorAnnotation:
		return "is the controllers' own and cannot be changed by a hook"
	default:
		return ""
	}
}

func checkLabel(key, value string) string {
	if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
		return "has a key that is no name of a label: " + strings.Join(wrong, "; ")
	}
	if wrong := validation.IsValidLabelValue(value); len(wrong) > 0 {
		return fmt.Sprintf("is %q, which is no value of a label: %s", shortened(value), strings.Join(wrong, "; "))
	}
	return ""
}

func checkAnnotation(key, _ string) string {
	for _, wrong := range apivalidation.ValidateAnnotations(map[string]string{key: ""}, field.NewPath(fieldAnnotations)) {
		return "has a key that is no name of an annotation: " + wrong.Detail
	}
	return ""
}

// shownBytes is how much of a wrong value a message shows.
const shownBytes = 80

func shortened(value string) string {
	if len(value) <= shownBytes {
		return value
	}
	return strings.ToValidUTF8(value[:shownBytes], "") + "…"
}

// changed is labels or annotations after their change.
func changed(has map[string]string, by map[string]any) map[string]string {
	out := make(map[string]string, len(has)+len(by))
	maps.Copy(out, has)
	for key, value := range by {
		if text, ok := value.(string); ok {
			out[key] = text
		} else {
			delete(out, key)
		}
	}
	return out
}

// mergePatch is the JSON merge patch (RFC 7386) that makes to out of from. A null
// in to is as good as an absent field, which is what a patch makes of it.
func mergePatch(from, to map[string]any) map[string]any {
	patch := map[string]any{}
	for key, before := range from {
		if before != nil && to[key] == nil {
			patch[key] = nil
		}
	}
	for key, after := range to {
		before, there := from[key]
		if after == nil || there && object.Equal(before, after) {
			continue
		}
		inner, isObject := after.(map[string]any)
		old, wasObject := before.(map[string]any)
		switch {
		case isObject && wasObject:
			patch[key] = mergePatch(old, inner)
		case isObject:
			patch[key] = mergePatch(nil, inner)
		default:
			patch[key] = after
		}
	}
	return patch
}
