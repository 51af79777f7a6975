// Package explain says who holds the slot, what runs, which rules apply, and
// what would be refused.
//
//	SingletonPolicy, Pod ─ Of ─> View (+ Judged, by package check) ─ Write ─> text | json
//
// It only knows what it is given, so it can say as much as the reader's
// permissions allow; what is missing is said as well.
package explain
