// Package claim owns the slot, which is the holder in a SingletonPolicy's status.
//
//	webhook ── Slot.Take ──────> Reserved ─┐
//	                                       ├─ the leader's Reconciler ─> Bound ─> Releasing ─> free
//	StatefulSet found beside no holder ────┘
//
// In mode Sharded each shard is a slot of its own and goes the same way; in mode
// LeaderElected the Reconciler says when more than one Pod may run.
//
// Every change is a compare-and-swap: an update of the status under the
// resourceVersion of the very read that the change was decided on. Every read
// is live, never from a cache. So of any number of claims on any number of
// guards and API servers one wins, and each loser reads the winner's name.
//
// A grant that nobody would see again must not outlive its request. That is why
//   - a create is granted only with a write: an object made later than the slot
//     was given away would need a request that outlived its reservation, and
//     that is longer than the API server keeps a request;
//   - a create whose object exists is answered "already exists", not allowed;
//   - the slot of a holder that is gone stays cleared for as long as the API
//     server keeps a request, for another create of the holder, or its Pod, may
//     have been admitted just before.
package claim
