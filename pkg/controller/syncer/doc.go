// Package syncer makes one pass for one parent.
//
//	load parent ─ memory: were all own writes seen? ─ mode ─ is it an elder's? ─ finalizer on
//	     │                                                                          │
//	Observe (selector) ─ claim: adopt, release ─ relate: customize, related objects ─┘
//	     │
//	    Ask (one answer; when children roll one for each revision) ─ Before (decorated object; ControllerRevisions)
//	     │
//	Shape ─ plan ─ apply ─ marks: what need not be compared again ─ After (status) ─ finalizer off ─ outcome
//
// The steps and their order are in sync.go, and nowhere else; what a
// CompositeController and a DecoratorController do differently is in their
// Policy. A pass reads from local caches only, and never from one that is older
// than what this process wrote last; it writes through one Writer. What it
// remembers of a parent (memory.go) ends with the parent.
package syncer
