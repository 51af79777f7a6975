// Package audit keeps the guard's own log of decisions: one JSON object a line.
//
//	Entry ─ RecordOf ─> Record ─ Log.Record ─> queue ─> writer (standard output or a file)
//	                            └> counters
//
// The queue is bounded and never waited for: a slow or full sink loses lines,
// which is counted, and never delays or changes a decision. A record holds no
// object bodies and no values of environment variables.
package audit
