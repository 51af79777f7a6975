// Package decide turns (Attempt, Policy, Holder) into a Decision:
//
//	not judged? ─> excepted? ─> holder unknown? ─> first broken rule of the table ─> claim needed? ─> allow
//
// It is pure: no client, no clock. What needs the cluster is an outcome of its
// own (Claim), settled by Settle once the claim has been tried.
package decide
