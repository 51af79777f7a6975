// Package syncer makes one pass for one parent.
//
//	load parent ─ mode ─ finalizer on ─ Observe ─ claim children ─ relate ─ Ask ─ Shape ─ Before ─ plan ─ apply ─ After ─ finalizer off ─ outcome
//
// The steps and their order are in sync.go, and nowhere else; what a
// CompositeController and a DecoratorController do differently is in their
// Policy. A pass reads from local caches only, and never from one that is older
// than what this process wrote last; it writes through one Writer.
package syncer
