// Package singleton holds the Lease that keeps controllers from running twice.
//
//	acquire ──> work(ctx) ───────────────> release      stopped from outside
//	   │            │  renew every 2 s
//	   │ held by    └─ deadline or stolen ─> ctx ends, ErrLost
//	   └─ another: wait, say who
//
// The Lease is an ordinary coordination.k8s.io/v1 Lease with the fields that
// client-go's leader election uses, so that every tool which reads one reads
// this one. client-go's own loop is not used for two of its habits: it gives the
// Lease back, or tries to for as long as a renewal may take, before it tells the
// work to stop; and it takes a Lease with its own identity for its own, whoever
// wrote it. Here the work has ended before the Lease is given back, its context
// ends at the renewal deadline whatever the API server does, and two processes
// of one Pod are two.
//
// The guard reads the holder with the words of this package: ParseIdentity,
// HolderOf and the constants.
package singleton
