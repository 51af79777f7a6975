package related

import (
	"errors"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/hook/wire"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Viewer is whom the objects are selected for.
type Viewer struct {
	// Namespace of the parent; empty if it is cluster-scoped.
	Namespace string
	// Version of the customize hook. It decides what a rule may ask for.
	Version v1alpha1.HookVersion
	// Confined says that none of the hooks that are shown the objects sees beyond
	// the namespace of a namespaced parent: all of them speak v1. What they do not
	// see is not selected either.
	Confined bool
}

// PathOf is where rule i stands in the answer of the hook.
func PathOf(i int) string { return wire.FieldRelated + "[" + strconv.Itoa(i) + "]" }

// Check makes Rules of the answer of a customize hook. Kinds are what the API
// server serves under the names in the rules, one for each. The error joins a
// *object.FieldError for each mistake.
func Check(answer []v1alpha1.RelatedResourceRule, kinds []object.Kind, viewer Viewer) (*Rules, error) {
	rules := make([]Rule, 0, len(answer))
	var problems []error
	for i := range answer {
		rule, wrong := check(PathOf(i), &answer[i], kinds[i], viewer)
		for _, one := range wrong {
			problems = append(problems, one)
		}
		rules = append(rules, rule)
	}
	if len(problems) > 0 {
		return nil, errors.Join(problems...)
	}
	return newRules(rules), nil
}

// check checks one rule. An empty list of names is, as with the public
// Metacontroller, no list at all.
func check(at string, raw *v1alpha1.RelatedResourceRule, kind object.Kind, viewer Viewer) (Rule, []*object.FieldError) {
	rule := Rule{Kind: kind, namespace: raw.Namespace, labels: labels.Everything()}
	var wrong []*object.FieldError
	refuse := func(field, problem string) {
		wrong = append(wrong, &object.FieldError{Path: at + "." + field, Problem: problem})
	}

	v1 := viewer.Version != v1alpha1.HookVersionV2
	byName, byNamespace := len(raw.Names) > 0, raw.Namespace != ""
	if byName && raw.LabelSelector != nil {
		refuse("labelSelector", "must not be there beside names")
	}
	if byName && raw.NamespaceSelector != nil {
		refuse("namespaceSelector", "must not be there beside names")
	}
	if byNamespace && raw.NamespaceSelector != nil {
		refuse("namespaceSelector", "must not be there beside namespace")
	}
	switch {
	case raw.NamespaceSelector == nil:
	case !kind.Namespaced:
		refuse("namespaceSelector", "must not be there, for "+strconv.Quote(kind.Resource)+" are cluster-scoped")
	case v1 && viewer.Namespace != "":
		refuse("namespaceSelector", "must not be there in the answer of a v1 hook for a namespaced parent, which sees its own namespace only; use version v2")
	}
	if byNamespace {
		switch bad := content.IsPathSegmentName(raw.Namespace); {
		case len(bad) > 0:
			refuse("namespace", "is no namespace: "+strings.Join(bad, ", "))
		case !kind.Namespaced:
			refuse("namespace", "must not be there, for "+strconv.Quote(kind.Resource)+" are cluster-scoped")
		case v1 && viewer.Namespace != "" && raw.Namespace != viewer.Namespace:
			refuse("namespace", "must be that of the parent, "+strconv.Quote(viewer.Namespace)+", in the answer of a v1 hook; use version v2")
		}
	}
	for i, name := range raw.Names {
		at := "names[" + strconv.Itoa(i) + "]"
		switch bad := content.IsPathSegmentName(name); {
		case name == "":
			refuse(at, "is empty")
		case strings.Contains(name, "/"):
			refuse(at, "must be a name alone; the namespace has a field of its own")
		case len(bad) > 0:
			refuse(at, "is no name: "+strings.Join(bad, ", "))
		}
	}
	if byName {
		rule.names = slices.Compact(slices.Sorted(slices.Values(raw.Names)))
	}
	if raw.LabelSelector != nil {
		selector, problems := selectorOf(at+".labelSelector", raw.LabelSelector)
		wrong = append(wrong, problems...)
		rule.labels = selector
	}
	if raw.NamespaceSelector != nil {
		selector, problems := selectorOf(at+".namespaceSelector", raw.NamespaceSelector)
		wrong = append(wrong, problems...)
		if selector != nil && !selector.Empty() {
			rule.namespaces = selector
		}
	}
	if len(wrong) > 0 {
		return Rule{}, wrong
	}
	if viewer.Confined && viewer.Namespace != "" {
		rule.confine(viewer.Namespace)
	}
	return rule, nil
}

// selectorOf parses a selector. The problems name the field of it that is wrong.
func selectorOf(at string, declared *metav1.LabelSelector) (labels.Selector, []*object.FieldError) {
	selector, err := metav1.LabelSelectorAsSelector(declared)
	if err == nil {
		return selector, nil
	}
	// The parser does not say where; the API server's validation does.
	var problems []*object.FieldError
	for _, one := range validation.ValidateLabelSelector(declared, validation.LabelSelectorValidationOptions{}, field.NewPath(at)) {
		problems = append(problems, &object.FieldError{Path: one.Field, Problem: "is wrong: " + one.ErrorBody()})
	}
	if len(problems) == 0 {
		problems = append(problems, &object.FieldError{Path: at, Problem: "is wrong: " + err.Error()})
	}
	return nil, problems
}
