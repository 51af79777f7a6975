// Package change finds out what the answer of a DecoratorController's hook changes
// on the decorated object itself, and by which requests:
//
//	object, answer ─ Of ─> Change ─┬─ Status: PUT of the status subresource
//	                               └─ Patch: PATCH of all the rest
//
// The package is pure.
package change

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

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

// Place is where a kind has its status.
type Place int

const (
	// UnknownPlace is no valid value.
	UnknownPlace Place = iota
	// Nowhere: the kind has no status.
	Nowhere
	// Subresource: it is written by a request of its own.
	Subresource
	// Field: it is a field like any other.
	Field
)

// Change is where the decorated object differs from what a hook wants of it. The
// zero value is no difference.
type Change struct {
	// Labels and Annotations that differ: a string, or nil to take one off.
	Labels, Annotations map[string]any
	// Status to be put by the subresource; nil leaves it.
	Status map[string]any
	// Homeless says that the hook wants a status, and the kind has none.
	Homeless bool

	// statusField is a merge patch of a status that is a field like any other.
	statusField map[string]any
}

// Of finds out what an answer changes on the parent. The error is a
// *object.FieldError that names the field of the answer that cannot be right.
func Of(place Place, parent *object.Object, answer *hook.Response) (Change, error) {
	var (
		c   Change
		err error
	)
	if c.Labels, err = differing(fieldLabels, parent.Labels(), answer.Labels, checkLabel); err != nil {
		return Change{}, err
	}
	has := parent.Annotations()
	if c.Annotations, err = differing(fieldAnnotations, has, answer.Annotations, checkAnnotation); err != nil {
		return Change{}, err
	}
	if len(c.Annotations) > 0 {
		if err := apivalidation.ValidateAnnotationsSize(After(has, c.Annotations)); err != nil {
			return Change{}, &object.FieldError{Path: fieldAnnotations, Problem: "would make the annotations of the object larger than the API server allows: " + err.Error()}
		}
	}
	if err := c.setStatus(place, parent, answer.Status); err != nil {
		return Change{}, err
	}
	return c, nil
}

// setStatus finds out where the status differs. Null leaves it as it is; a value
// is the whole of it.
func (c *Change) setStatus(place Place, parent *object.Object, wanted hook.Status) error {
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
	has := parent.Field(fieldStatus)
	if object.Equal(has, status) || has == nil && object.Equal(map[string]any{}, status) {
		return nil
	}
	switch place {
	case Subresource:
		c.Status = status
	case Field:
		before, _ := has.(map[string]any)
		c.statusField = mergePatch(before, status)
	default:
		c.Homeless = true
	}
	return nil
}

// Patch is the request for all that the status subresource does not take, as a
// JSON merge patch: nil if there is nothing to change. Nil finalizers stay.
func (c Change) Patch(finalizers []string) map[string]any {
	metadata := map[string]any{}
	if len(c.Labels) > 0 {
		metadata[fieldLabels] = c.Labels
	}
	if len(c.Annotations) > 0 {
		metadata[fieldAnnotations] = c.Annotations
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

// After is labels or annotations after their change.
func After(has map[string]string, by map[string]any) map[string]string {
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
