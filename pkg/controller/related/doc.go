// Package related is the rules by which a customize hook says which objects a
// parent's other hooks are to be shown:
//
//	answer of the hook ─ Check ─> Rules ─ Select(caches) ─> objects of a request
//	                                │
//	                                └ Index.Set ─> Index ─ Affected(change) ─> parents to sync
//
// Check finds every mistake in an answer and names its place. The Index is
// inverted: it leads from an object, or a namespace, to the parents whose rules
// match it, without a look at the others.
//
// The package is pure; who calls it locks.
package related
