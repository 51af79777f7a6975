// Package webhook answers the API server's admission reviews:
//
//	body ─> attempt.Parse ─> policy (live) ─> attempt.From ─> decide ─┬─> record ─> response
//	                            ^                                     │
//	                            └── conflict ── Slot.Take <── claim ──┘
//
// The policy is read live for every request that could get the slot, so that no
// stale cache can let one in. While the holder is bound, requests of others and
// changes of the holder are decided by a read that is at most MaxAge old. A
// review that the API server would never send gets a 4xx and leaves no record.
// The answer is given before the API server's own deadline, whatever the reads
// take.
package webhook
