package owned

import (
	"bytes"
	"fmt"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// parse reads FieldsV1. Empty is no field.
func parse(fields string) (*fieldpath.Set, error) {
	set := &fieldpath.Set{}
	if fields == "" {
		return set, nil
	}
	if err := set.FromJSON(bytes.NewBufferString(fields)); err != nil {
		return nil, fmt.Errorf("cannot read the fields of a field manager: %w", err)
	}
	return set, nil
}

// elements are the path elements of a set, those that are members and those that
// have members under them.
func elements(set *fieldpath.Set) []fieldpath.PathElement {
	var out []fieldpath.PathElement
	set.Members.Iterate(func(element fieldpath.PathElement) { out = append(out, element) })
	set.Children.Iterate(func(element fieldpath.PathElement) {
		if !set.Members.Has(element) {
			out = append(out, element)
		}
	})
	return out
}

// Ports of one number are told apart by protocol, and the API server knows it of
// a port that names none.
const (
	protocolField   = "protocol"
	defaultProtocol = "TCP"
)

// none is the index of what is not there.
const none = -1

// bind finds the element of a list that each path element means, or none. One
// element of the list is meant by one path element at most: a port without a
// protocol is the one with the default protocol, and no other.
func bind(paths []fieldpath.PathElement, list []any) []int {
	out := make([]int, len(paths))
	taken := make([]bool, len(list))
	pick := func(matches func(path fieldpath.PathElement, element any) bool, unambiguous bool) {
		for i, path := range paths {
			if out[i] != none {
				continue
			}
			found := none
			for j, element := range list {
				if taken[j] || !matches(path, element) {
					continue
				}
				if found != none {
					if unambiguous {
						found = none
					}
					break
				}
				found = j
			}
			if found != none {
				out[i], taken[found] = found, true
			}
		}
	}
	for i := range out {
		out[i] = none
	}
	for i, path := range paths {
		if path.Index != nil && *path.Index >= 0 && *path.Index < len(list) {
			out[i], taken[*path.Index] = *path.Index, true
		}
	}
	pick(func(path fieldpath.PathElement, element any) bool { return means(path, element, wholly) }, false)
	pick(func(path fieldpath.PathElement, element any) bool { return means(path, element, byDefault) }, false)
	pick(func(path fieldpath.PathElement, element any) bool { return means(path, element, perhaps) }, true)
	return out
}

// sureness is how an element of a list is recognised.
type sureness int

const (
	// wholly: it has every field of the key.
	wholly sureness = iota
	// byDefault: it lacks fields of the key whose default is known.
	byDefault
	// perhaps: it lacks fields of the key, whose default nobody here knows.
	perhaps
)

func means(path fieldpath.PathElement, element any, how sureness) bool {
	switch {
	case path.Value != nil:
		return object.Equal((*path.Value).Unstructured(), element)
	case path.Key != nil:
		fields, ok := element.(map[string]any)
		if !ok {
			return false
		}
		shared := false
		for _, field := range *path.Key {
			want := field.Value.Unstructured()
			switch now := fields[field.Name]; {
			case object.Equal(now, want):
				shared = true
			case now != nil, how == wholly:
				return false
			case field.Name == protocolField:
				if want != defaultProtocol {
					return false
				}
			case how == byDefault:
				return false
			}
		}
		return shared
	default:
		return false
	}
}

// restrict is set without the fields that value has not.
func restrict(set *fieldpath.Set, value any) *fieldpath.Set {
	out := &fieldpath.Set{}
	keep := func(path fieldpath.PathElement, inner any) {
		if inner == nil {
			return
		}
		if set.Members.Has(path) {
			out.Members.Insert(path)
		}
		if child, ok := set.Children.Get(path); ok {
			if kept := restrict(child, inner); !kept.Empty() {
				*out.Children.Descend(path) = *kept
			}
		}
	}
	switch value := value.(type) {
	case map[string]any:
		for _, path := range elements(set) {
			if path.FieldName != nil {
				keep(path, value[*path.FieldName])
			}
		}
	case []any:
		paths := elements(set)
		for i, at := range bind(paths, value) {
			if at != none {
				keep(paths[i], value[at])
			}
		}
	}
	return out
}
