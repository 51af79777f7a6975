// Package inspect judges a cluster as it is: what admission cannot see, because
// it was there before, happened elsewhere or was done to the guard itself.
//
//	Pods, workloads ──┐
//	nodes, Leases ────┼─ Facts ── Judge ──> []Finding ──> Conditions
//	policies ─────────┤
//	installed, rendered ── Drift ──> []Difference
//
// A fact is what is kept of an object, and it is small: of the Pods of a cluster
// nearly none is an instance, and nothing is kept of those. Each finding has a
// stable id, says which object it is about, and what to do.
package inspect
