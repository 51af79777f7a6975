// Package decide turns (Attempt, Policy, Holder) into a Decision:
//
//	which slot? ─> not judged? ─> excepted? ─> holder unknown? ─> first broken rule of the table ─> claim needed? ─> allow
//
// There is one slot, or in mode Sharded one for each shard. A forced delete and
// an autoscaler have a table of their own, of one rule each.
//
// It is pure: no client, no clock. What needs the cluster is an outcome of its
// own (Claim), settled by Settle once the claim has been tried.
package decide
