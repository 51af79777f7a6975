package engine

import (
	"slices"
	"strings"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// Domains of finalizers. Parents may still carry one of old, of which the rest is
// the same.
const (
	// FinalizerDomain begins the finalizer of every controller.
	FinalizerDomain    = "metacontroller.io/"
	oldFinalizerDomain = "metacontroller.app/"
)

// isFinalizer says whether a finalizer that a parent carries is the one of this
// name, be it by the domain of old.
func isFinalizer(carried, name string) bool {
	if carried == name {
		return true
	}
	old, isOld := strings.CutPrefix(carried, oldFinalizerDomain)
	rest, ok := strings.CutPrefix(name, FinalizerDomain)
	return isOld && ok && old == rest
}

// HasFinalizer says whether an object carries the finalizer of this name, by its
// domain of today or of old. An empty name is carried by none.
func HasFinalizer(o *object.Object, name string) bool {
	return name != "" && slices.ContainsFunc(o.Finalizers(), func(carried string) bool { return isFinalizer(carried, name) })
}

// WithFinalizer is the finalizers of an object with the one of this name among
// them, once: the one of old makes way for it, in its place.
func WithFinalizer(finalizers []string, name string) []string {
	out := make([]string, 0, len(finalizers)+1)
	for _, carried := range finalizers {
		switch {
		case !isFinalizer(carried, name):
			out = append(out, carried)
		case !slices.Contains(out, name):
			out = append(out, name)
		}
	}
	if !slices.Contains(out, name) {
		out = append(out, name)
	}
	return out
}

// WithoutFinalizer is the finalizers of an object without the one of this name,
// by either domain. It is never nil.
func WithoutFinalizer(finalizers []string, name string) []string {
	out := make([]string, 0, len(finalizers))
	for _, carried := range finalizers {
		if !isFinalizer(carried, name) {
			out = append(out, carried)
		}
	}
	return out
}
