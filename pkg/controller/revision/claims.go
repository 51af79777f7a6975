package revision

import (
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// Fields of the children of a ControllerRevision.
const (
	fieldChildren = "children"
	fieldAPIGroup = "apiGroup"
	fieldKind     = "kind"
	fieldNames    = "names"
)

// Claims are the children that have a revision.
type Claims map[object.Key]struct{}

// Has says whether a child is claimed.
func (c Claims) Has(key object.Key) bool {
	_, ok := c[key]
	return ok
}

func (c Claims) add(key object.Key) { c[key] = struct{}{} }

// names are the names of children by their kind, sorted.
type names map[schema.GroupKind][]string

// readNames reads the children of a ControllerRevision. Anybody may have written
// them: what is not as it should be is left out.
func readNames(children any) names {
	found := names{}
	entries, _ := children.([]any)
	for _, entry := range entries {
		fields, _ := entry.(map[string]any)
		group, isGroup := fields[fieldAPIGroup].(string)
		kind, isKind := fields[fieldKind].(string)
		list, _ := fields[fieldNames].([]any)
		if !isGroup || !isKind || kind == "" {
			continue
		}
		of := schema.GroupKind{Group: group, Kind: kind}
		for _, one := range list {
			if name, ok := one.(string); ok && name != "" {
				found[of] = append(found[of], name)
			}
		}
	}
	found.sort()
	return found
}

func (n names) sort() {
	for kind, list := range n {
		slices.Sort(list)
		n[kind] = slices.Compact(list)
	}
}

func (n names) equal(other names) bool {
	if len(n) != len(other) {
		return false
	}
	for kind, list := range n {
		if !slices.Equal(list, other[kind]) {
			return false
		}
	}
	return true
}

// content is the children of a ControllerRevision.
func (n names) content() []any {
	kinds := make([]schema.GroupKind, 0, len(n))
	for kind := range n {
		kinds = append(kinds, kind)
	}
	slices.SortFunc(kinds, func(a, b schema.GroupKind) int {
		return object.CompareKinds(a.WithVersion(""), b.WithVersion(""))
	})
	out := make([]any, 0, len(kinds))
	for _, kind := range kinds {
		list := make([]any, 0, len(n[kind]))
		for _, name := range n[kind] {
			list = append(list, name)
		}
		out = append(out, map[string]any{fieldAPIGroup: kind.Group, fieldKind: kind.Kind, fieldNames: list})
	}
	return out
}

// nameOf is a child's name in a claim of a parent in this namespace: without its
// own namespace if that is the parent's.
func nameOf(key object.Key, parentNamespace string) string {
	if parentNamespace != "" || key.Namespace == "" {
		return key.Name
	}
	return key.Namespace + "/" + key.Name
}

// keyOf is the child with this name in a claim.
func keyOf(kind object.Kind, name, parentNamespace string) (object.Key, bool) {
	namespace := parentNamespace
	if parentNamespace == "" && kind.Namespaced {
		var found bool
		if namespace, name, found = strings.Cut(name, "/"); !found || namespace == "" {
			return object.Key{}, false
		}
	}
	return kind.Key(namespace, name), name != "" && !strings.Contains(name, "/")
}
