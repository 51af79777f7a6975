// Package object holds the words in which the rest of the program speaks about
// objects of the API server:
//
//	Kind    an object kind as discovery knows it: group, version, kind, plural, scope
//	Key     which object: group, kind, namespace, name (no version, never a joined string)
//	Object  one object: decoded metadata, and the body as JSON bytes
//	Set     objects grouped by kind, in a fixed order
//
// An Object is an immutable value. Its body is the JSON that the API server
// sent, without metadata.managedFields, and is never written again: a hook
// request is put together from these bytes, and nothing is decoded in a sync
// that finds nothing to do. Content decodes on demand, for the few that need it.
//
// Everything here is pure; nothing talks to a server.
package object
