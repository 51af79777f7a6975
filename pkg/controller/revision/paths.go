package revision

import (
	"fmt"
	"slices"
	"strings"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// defaultPath is the field that makes a revision unless a controller names
// others.
const defaultPath = "spec"

// serverPaths are fields that the API server, or this controller, writes. A
// revision made of one would be a new one after each write.
var serverPaths = []string{
	"apiVersion", "kind", "status",
	"metadata.creationTimestamp", "metadata.deletionGracePeriodSeconds", "metadata.deletionTimestamp",
	"metadata.finalizers", "metadata.generation", "metadata.managedFields", "metadata.name", "metadata.namespace",
	"metadata.ownerReferences", "metadata.resourceVersion", "metadata.selfLink", "metadata.uid",
}

// Paths are the fields of a parent that make a revision. None is part of
// another.
type Paths []Path

// Path is the names of fields on the way from the object to one of them.
type Path []string

// String is the path as it is declared.
func (p Path) String() string { return strings.Join(p, ".") }

// ParsePaths reads dot-separated paths, such as spec.template; none means spec.
// The error says which one cannot be used, and why.
func ParsePaths(declared []string) (Paths, error) {
	if len(declared) == 0 {
		declared = []string{defaultPath}
	}
	all := make(Paths, 0, len(declared))
	for i, text := range declared {
		path := Path(strings.Split(text, "."))
		if slices.Contains(path, "") {
			return nil, fmt.Errorf("[%d]: %q is not a path: write the names of fields with dots between them, such as spec.template", i, text)
		}
		for _, server := range serverPaths {
			if within(path, strings.Split(server, ".")) || text == "metadata" {
				return nil, fmt.Errorf("[%d]: %q cannot make a revision, since it does not say what is desired; name a field such as spec", i, text)
			}
		}
		all = append(all, path)
	}
	slices.SortFunc(all, slices.Compare)
	// A path sorts before what is part of it.
	kept := all[:0]
	for _, path := range all {
		if !slices.ContainsFunc(kept, func(whole Path) bool { return within(path, whole) }) {
			kept = append(kept, path)
		}
	}
	return kept, nil
}

// within says whether path is whole, or a part of it.
func within(path, whole Path) bool {
	return len(path) >= len(whole) && slices.Equal(path[:len(whole)], whole)
}

// Of is the part of an object that makes its revision: the fields of the paths
// and what leads to them. A field that is absent or null is left out. The result
// shares with the content.
func (p Paths) Of(content map[string]any) map[string]any {
	patch := map[string]any{}
	for _, path := range p {
		if value := get(content, path); value != nil {
			set(patch, path, value)
		}
	}
	return patch
}

// Apply is the parent as it is now, with the fields of the paths as they were in
// the revision that patch was made of.
func (p Paths) Apply(parent *object.Object, patch map[string]any) (*object.Object, error) {
	content := parent.Content()
	for _, path := range p {
		if value := get(patch, path); value != nil {
			set(content, path, value)
		} else {
			unset(content, path)
		}
	}
	patched, err := object.FromContent(content)
	if err != nil {
		return nil, fmt.Errorf("cannot patch %q to its revision: %w", parent, err)
	}
	return patched, nil
}

// get is the value of a field, nil if there is none.
func get(content map[string]any, path Path) any {
	var value any = content
	for _, name := range path {
		fields, ok := value.(map[string]any)
		if !ok {
			return nil
		}
		value = fields[name]
	}
	return value
}

// set gives a field a value. What is in the way and has no fields is replaced.
func set(content map[string]any, path Path, value any) {
	last := len(path) - 1
	for _, name := range path[:last] {
		fields, ok := content[name].(map[string]any)
		if !ok {
			fields = map[string]any{}
			content[name] = fields
		}
		content = fields
	}
	content[path[last]] = value
}

// unset removes a field.
func unset(content map[string]any, path Path) {
	last := len(path) - 1
	for _, name := range path[:last] {
		fields, ok := content[name].(map[string]any)
		if !ok {
			return
		}
		content = fields
	}
	delete(content, path[last])
}
