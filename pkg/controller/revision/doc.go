// Package revision decides how children move from one revision of their parent to
// the next, one at a time:
//
//	parent ─ Paths ─> patch ─┐
//	ControllerRevisions ─────┴─> Source.Read ─> History ─ one answer of the hook for each
//	                                               │
//	              children, answers ──> Decide <───┘
//	                                      ├─> which revision each child follows
//	                                      ├─> Writes: ControllerRevisions, to be written first
//	                                      └─> the condition Updated of the parent
//
// A revision is the value of some fields of the parent. Its ControllerRevision
// claims the children that still have it; the latest revision claims those that
// are there already. What is not claimed has an unknown state and waits for its
// turn, as it is.
//
// # Why a crash hurts nothing
//
// Everything that the next pass must know is in the ControllerRevisions, and they
// are written before the children are, in this order: an old revision loses its
// claim (or is deleted with the last one), the latest gets it, the child is
// changed. A pass that ends in between leaves a child that
//
//   - nobody claims: it stays as it is and is the next in turn; a child that is
//     missing then is made new, in the latest state;
//   - the latest claims, in the old state: the next pass finds that it differs,
//     and changes it; until then no other child moves. That holds for a revision
//     that comes in between as well: the child is then neither in the state of
//     the one that claims it nor in the new one, and so is the next in turn.
//
// A child is never claimed by two revisions, which would leave open which of them
// is the newer one: a roll back makes an old revision the latest again.
//
// The package is pure.
package revision
