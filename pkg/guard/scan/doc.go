// Package scan sees what admission cannot: instances that were there before the
// guard, the guard's own objects deleted or weakened, writers that are not the
// active Pod. It writes what it finds into the policy's status.
//
//	watches (Pods, workloads, admission objects) ─> view ─┐
//	live reads (policy, holder, nodes, Leases) ───────────┴─> inspect.Judge ─> status, events, metrics, report
//
// The view keeps, of every object that passes by, nothing; of the few that are
// instances it keeps some words. The lists behind it come in pages. So neither
// its memory nor its work grows with the Pods of the cluster that have nothing
// to do with the policy, but for one look at each.
//
// Run does the same once, without watches. Scanner goes on for as long as its
// guard leads. Both only read, but for the policy's status, in which the Scanner
// owns the instances, the findings and the conditions Enforcing, Compliant and
// Drifted. The slot is package claim's, which writes the same status: each by
// compare-and-swap, so neither undoes what the other wrote.
package scan
