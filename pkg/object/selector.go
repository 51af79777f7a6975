package object

import (
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// RequiredLabel is a label that an object must have for the selector to match,
// and the values one of which it must have. It is what an index is asked for. A
// selector that asks for the value of no label has no values here.
func RequiredLabel(selector labels.Selector) (label string, values []string) {
	requirements, _ := selector.Requirements()
	for _, requirement := range requirements {
		switch requirement.Operator() {
		case selection.Equals, selection.DoubleEquals, selection.In:
			found := requirement.ValuesUnsorted()
			if len(found) > 0 && (values == nil || len(found) < len(values)) {
				label, values = requirement.Key(), found
			}
		}
	}
	return label, values
}
