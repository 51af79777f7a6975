// Package cluster is the controller's only writer, of objects and of events.
//
//	apply, syncer ──> Writer ── may I still? (singleton) ──> API server
//	syncer, engine ─> Recorder ─────────────────────────────> events
//
// Bodies go out and come back as JSON bytes; nothing is decoded on the way.
package cluster

import (
	"strings"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// Path is where the API server serves an object, or with an empty name the
// objects of a namespace, or without either all of them.
func Path(kind object.Kind, namespace, name string) string {
	var path strings.Builder
	if kind.Group == "" {
		path.WriteString("/api/")
	} else {
		path.WriteString("/apis/")
	}
	path.WriteString(kind.APIVersion())
	if kind.Namespaced && namespace != "" {
		path.WriteString("/namespaces/" + namespace)
	}
	path.WriteString("/" + kind.Resource)
	if name != "" {
		path.WriteString("/" + name)
	}
	return path.String()
}
