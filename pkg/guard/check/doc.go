// Package check judges manifests without a cluster: as if they were applied one
// after the other, in the order in which they stand, to a cluster in which only
// the guard is there and, perhaps, the holder.
//
//	manifest.Object ─ World.Apply ─> attempt.From ─> decide.Decide (─> Settle) ─> Verdict
//	                      │                               │
//	                      └── what was let in before <────┘
//
// The decision is that of the webhook, by the same packages; only what the
// webhook reads from the API server is kept here.
package check
