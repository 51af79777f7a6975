// Package manifest reads Kubernetes objects out of files as people and tools
// write them: YAML and JSON mixed in one stream, Helm's output, lists of lists.
//
//	files, folders, standard input ─ Open ─> Set ─ Objects ─> Object | *Error
//	                                             │
//	       stream ─ split ─> document ─ decode ──┘
//
// A stream is read document by document, so that memory depends on the largest
// document and not on the file. What cannot be read is an *Error with file and
// line, and what comes after it is read nevertheless.
//
// Values mean what they mean to kubectl: the YAML is turned into JSON by the
// same library, and a key that stands twice in one object is an error.
package manifest
