// Package shard tells whether two label selectors can select the same object:
//
//	selector, selector ─> requirements by key ─> is there a value for each key? ─> disjoint or not
//
// An object's labels are independent of each other, so two selectors are
// disjoint if, and only if, for one key no value, and no absence, satisfies all
// that both require of it. For one key a few values stand for all: those that
// are named, one that is not, and one number within the bounds.
//
// The answer is sound: Disjoint never says that two selectors are disjoint when
// some object could match both. Where it is not certain it says that they are not.
package shard

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
)

// Parse reads a selector as Metacontroller's --target-label-selector does. An
// empty one, which selects everything, is an error: it is no shard.
func Parse(text string) (labels.Selector, error) {
	selector, err := labels.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("cannot parse label selector %q: %w", text, err)
	}
	if selector.Empty() {
		return nil, fmt.Errorf("cannot take label selector %q for a shard: it selects every object", text)
	}
	return selector, nil
}

// Disjoint says whether no object can match both selectors.
func Disjoint(a, b labels.Selector) bool {
	required, selectable := requirements(a, b)
	if !selectable {
		return true
	}
	for key, ofKey := range required {
		if !satisfiable(key, ofKey) {
			return true
		}
	}
	return false
}

// requirements are those of both by key; selectable is false if one of the two
// selects nothing.
func requirements(selectors ...labels.Selector) (required map[string][]labels.Requirement, selectable bool) {
	required = map[string][]labels.Requirement{}
	for _, selector := range selectors {
		all, selectable := selector.Requirements()
		if !selectable {
			return nil, false
		}
		for _, requirement := range all {
			required[requirement.Key()] = append(required[requirement.Key()], requirement)
		}
	}
	return required, true
}

// satisfiable says whether some value of a label, or its absence, satisfies all
// that is required of it.
func satisfiable(key string, required []labels.Requirement) bool {
	if all(required, labels.Set{}) {
		return true
	}
	for _, value := range candidates(required) {
		if all(required, labels.Set{key: value}) {
			return true
		}
	}
	return false
}

func all(required []labels.Requirement, set labels.Set) bool {
	for i := range required {
		if !required[i].Matches(set) {
			return false
		}
	}
	return true
}

// candidates are values that stand for all others: if none of them satisfies
// the requirements, no value does.
//
//   - Where a list of values is demanded, only those can.
//   - A value that nobody names satisfies whatever names values to exclude.
//   - Between two bounds the first number does or, where that is excluded, the
//     same number with zeros in front, of which there are more than are excluded:
//     so that no number has to be counted through.
func candidates(required []labels.Requirement) []string {
	named := map[string]bool{}
	var values []string
	over := int64(-1) // No label's value is a negative number: none begins with a dash.
	bounded := false
	for i := range required {
		requirement := &required[i]
		listed := requirement.ValuesUnsorted()
		switch requirement.Operator() {
		case selection.GreaterThan:
			bounded = true
			if bound, err := strconv.ParseInt(listed[0], 10, 64); err == nil {
				over = max(over, bound)
			}
		case selection.LessThan:
			bounded = true
		default:
			for _, value := range listed {
				named[value] = true
				values = append(values, value)
			}
		}
	}
	// Longer than what is named, so that it is none of it.
	longest := 0
	for value := range named {
		longest = max(longest, len(value))
	}
	values = append(values, strings.Repeat("x", longest+1))
	if bounded && over < math.MaxInt64 {
		first := strconv.FormatInt(over+1, 10)
		values = append(values, strings.Repeat("0", longest+1)+first)
	}
	return values
}
