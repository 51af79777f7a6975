// Package watch keeps local copies of objects, one for each kind, shared by all
// controllers and kept as long as one of them uses it.
//
//	API server ── stream ──> object.Object ──> store with indexes ──> handlers(old, new)
//	                                              │
//	                     Get, ByOwner, Orphans <──┘   no read in a sync goes to the API server
//
// Objects come as JSON and are kept as object.Object: nothing but the metadata
// is decoded, and managedFields are left out.
package watch
