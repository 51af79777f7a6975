package object

import (
	"iter"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Set is objects grouped by kind. Groups are ordered by group, version and kind,
// objects within one by namespace and name. It is immutable; nil is an empty one.
// Of a kind that has groups in several versions (SetOf), look-ups find the first.
type Set struct {
	groups []Group
}

// Group is the objects of one kind in a Set.
type Group struct {
	Kind Kind
	// Objects are ordered by namespace and name, and are to be read only.
	Objects []*Object
}

// NewSet groups objects. Each of kinds has a group even if it has no objects;
// an object belongs to the kind of its group and kind, in whatever version it
// is. Where a kind is named twice the first one counts, and where a key is there
// twice the last object. An object of a kind that is not named gets a group of
// its own kind, whose Resource is empty.
func NewSet(kinds []Kind, objects ...*Object) *Set {
	index := make(map[schema.GroupKind]int, len(kinds))
	groups := make([]Group, 0, len(kinds))
	add := func(kind Kind) int {
		i := len(groups)
		index[kind.GroupKind()] = i
		groups = append(groups, Group{Kind: kind})
		return i
	}
	for _, kind := range kinds {
		if _, ok := index[kind.GroupKind()]; !ok {
			add(kind)
		}
	}
	for _, o := range objects {
		gvk := o.GroupVersionKind()
		i, ok := index[gvk.GroupKind()]
		if !ok {
			i = add(Kind{GroupVersionKind: gvk, Namespaced: o.namespace != ""})
		}
		groups[i].Objects = append(groups[i].Objects, o)
	}
	for i := range groups {
		groups[i].Objects = sortLastWins(groups[i].Objects)
	}
	slices.SortFunc(groups, func(a, b Group) int {
		return CompareKinds(a.Kind.GroupVersionKind, b.Kind.GroupVersionKind)
	})
	return &Set{groups: groups}
}

// SetOf is a Set of groups that are made already. In it one kind may have several
// groups, each of another version; groups of one version become one, and where a
// key is in such a group twice the last object counts. The slices are not kept.
func SetOf(groups ...Group) *Set {
	index := make(map[schema.GroupVersionKind]int, len(groups))
	joined := make([]Group, 0, len(groups))
	for _, group := range groups {
		i, ok := index[group.Kind.GroupVersionKind]
		if !ok {
			i = len(joined)
			index[group.Kind.GroupVersionKind] = i
			joined = append(joined, Group{Kind: group.Kind})
		}
		joined[i].Objects = append(joined[i].Objects, group.Objects...)
	}
	for i := range joined {
		joined[i].Objects = sortLastWins(joined[i].Objects)
	}
	slices.SortFunc(joined, func(a, b Group) int {
		return CompareKinds(a.Kind.GroupVersionKind, b.Kind.GroupVersionKind)
	})
	return &Set{groups: joined}
}

func sortLastWins(objects []*Object) []*Object {
	if slices.IsSortedFunc(objects, comparePaths) {
		return keepLast(objects)
	}
	slices.SortStableFunc(objects, comparePaths)
	return keepLast(objects)
}

// keepLast drops all but the last of each run of equal names.
func keepLast(objects []*Object) []*Object {
	kept := objects[:0]
	for i, o := range objects {
		if i+1 < len(objects) && comparePaths(o, objects[i+1]) == 0 {
			continue
		}
		kept = append(kept, o)
	}
	return kept
}

func comparePaths(a, b *Object) int {
	if c := strings.Compare(a.namespace, b.namespace); c != 0 {
		return c
	}
	return strings.Compare(a.name, b.name)
}

// Groups are the kinds with their objects, in order, to be read only.
func (s *Set) Groups() []Group {
	if s == nil {
		return nil
	}
	return s.groups
}

// Group is the group of a kind, in whatever version, and whether there is one.
func (s *Set) Group(kind schema.GroupKind) (Group, bool) {
	for _, g := range s.Groups() {
		if g.Kind.GroupKind() == kind {
			return g, true
		}
	}
	return Group{}, false
}

// Get is the object with this key, or nil.
func (s *Set) Get(key Key) *Object {
	g, _ := s.Group(key.GroupKind())
	i, found := slices.BinarySearchFunc(g.Objects, key, func(o *Object, key Key) int {
		if c := strings.Compare(o.namespace, key.Namespace); c != 0 {
			return c
		}
		return strings.Compare(o.name, key.Name)
	})
	if !found {
		return nil
	}
	return g.Objects[i]
}

// All are the objects, in order.
func (s *Set) All() iter.Seq[*Object] {
	return func(yield func(*Object) bool) {
		for _, g := range s.Groups() {
			for _, o := range g.Objects {
				if !yield(o) {
					return
				}
			}
		}
	}
}

// Len is the number of objects.
func (s *Set) Len() int {
	n := 0
	for _, g := range s.Groups() {
		n += len(g.Objects)
	}
	return n
}
