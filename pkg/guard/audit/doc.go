// Package audit keeps the guard's own log of decisions: one JSON object a line.
//
//	Entry ─ RecordOf ─> Record ─┬─ sent again ──> the id that is in the log
//	                            ├─> counters
//	                            └─> series ─> queue ─> owners ─> writer (standard
//	                                          └> Notify          output or a file)
//
// The queue is bounded and never waited for: a slow or full sink loses lines,
// which is counted, and never delays or changes a decision. Decisions that only
// repeat an earlier one are counted and get a line now and then. A record holds
// no object bodies and no values of environment variables.
package audit
