package engine

import (
	"sync"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// selectors finds the parents whose selector matches an object: an index by one
// label value that the selector asks for. A selector that asks for none is tried
// with every object.
type selectors struct {
	mu sync.RWMutex
	// known by parent. Guarded by mu.
	known map[object.Key]selectorEntry
	// byLabel has the parents under a label and value that an object must have
	// for their selector to match; under the zero value those without one.
	// Guarded by mu.
	byLabel map[labelValue]map[object.Key]struct{}
}

type selectorEntry struct {
	selector labels.Selector
	under    labelValue
}

type labelValue struct{ label, value string }

func newSelectors() *selectors {
	return &selectors{known: map[object.Key]selectorEntry{}, byLabel: map[labelValue]map[object.Key]struct{}{}}
}

// set remembers the selector of a parent; nil forgets it.
func (s *selectors) set(parent object.Key, selector labels.Selector) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, ok := s.known[parent]; ok {
		delete(s.known, parent)
		if under := s.byLabel[old.under]; under != nil {
			delete(under, parent)
			if len(under) == 0 {
				delete(s.byLabel, old.under)
			}
		}
	}
	if selector == nil {
		return
	}
	entry := selectorEntry{selector: selector, under: required(selector)}
	s.known[parent] = entry
	if s.byLabel[entry.under] == nil {
		s.byLabel[entry.under] = map[object.Key]struct{}{}
	}
	s.byLabel[entry.under][parent] = struct{}{}
}

// required is a label value without which the selector does not match.
func required(selector labels.Selector) labelValue {
	if label, values := object.RequiredLabel(selector); len(values) == 1 {
		return labelValue{label, values[0]}
	}
	return labelValue{}
}

// matching are the parents in reach of an object whose selector matches it.
func (s *selectors) matching(o *object.Object) []object.Key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var found []object.Key
	try := func(under labelValue) {
		for parent := range s.byLabel[under] {
			if parent.Namespace != "" && parent.Namespace != o.Namespace() {
				continue
			}
			if s.known[parent].selector.Matches(labels.Set(o.Labels())) {
				found = append(found, parent)
			}
		}
	}
	for label, value := range o.Labels() {
		try(labelValue{label, value})
	}
	try(labelValue{})
	return found
}
