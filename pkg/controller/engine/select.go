package engine

import (
	"maps"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Rule says which objects of a kind a controller manages, and what wakes it.
type Rule struct {
	// Selector is which of them, by their labels.
	Selector labels.Selector
	// Annotations is which of those, by their annotations; nil means all. Its
	// operators and keys are valid ones; values may be anything.
	Annotations *v1alpha1.AnnotationSelector
	// IgnoreStatusChanges says that a change of nothing but status is no reason
	// for a sync.
	IgnoreStatusChanges bool
}

// rules are the one of the parent itself and the others of its kind.
func (p *Parent) rules() []Rule {
	first := Rule{Selector: p.Selector, Annotations: p.Annotations, IgnoreStatusChanges: p.IgnoreStatusChanges}
	if len(p.Or) == 0 {
		return []Rule{first}
	}
	return append([]Rule{first}, p.Or...)
}

// Selects says whether the controller manages this object of the kind.
func (p *Parent) Selects(o *object.Object) bool {
	return p.SelectsWith(o.Labels(), o.Annotation)
}

// SelectsWith says whether the controller manages an object of the kind that has
// these labels and annotations.
func (p *Parent) SelectsWith(has map[string]string, annotation func(key string) (string, bool)) bool {
	return slices.ContainsFunc(p.rules(), func(r Rule) bool { return r.selects(has, annotation) })
}

// ignoresStatus says whether a change of nothing but status of this object is no
// reason for a sync: if no rule by which it is managed wants to know. One that is
// managed for its finalizer alone is managed by all of them.
func (p *Parent) ignoresStatus(o *object.Object) bool {
	all, selecting := true, true
	selected := false
	for _, r := range p.rules() {
		all = all && r.IgnoreStatusChanges
		if r.selects(o.Labels(), o.Annotation) {
			selected = true
			selecting = selecting && r.IgnoreStatusChanges
		}
	}
	if selected {
		return selecting
	}
	return all
}

func (r Rule) selects(has map[string]string, annotation func(key string) (string, bool)) bool {
	return r.Selector.Matches(labels.Set(has)) && (r.Annotations == nil || annotated(r.Annotations, annotation))
}

// annotated is what a label selector is, for annotations: their values may be
// anything, which label selectors refuse. Annotations are looked up one by one;
// to decode them all for each event would be dear.
func annotated(selector *v1alpha1.AnnotationSelector, annotation func(key string) (string, bool)) bool {
	for _, key := range slices.Sorted(maps.Keys(selector.MatchAnnotations)) {
		if value, has := annotation(key); !has || value != selector.MatchAnnotations[key] {
			return false
		}
	}
	for _, expression := range selector.MatchExpressions {
		value, has := annotation(expression.Key)
		listed := has && slices.Contains(expression.Values, value)
		var ok bool
		switch expression.Operator {
		case metav1.LabelSelectorOpIn:
			ok = listed
		case metav1.LabelSelectorOpNotIn:
			ok = !listed
		case metav1.LabelSelectorOpExists:
			ok = has
		case metav1.LabelSelectorOpDoesNotExist:
			ok = !has
		}
		if !ok {
			return false
		}
	}
	return true
}
