// Package owned compares an object with a desired state by what the API server
// remembers of the last server-side apply: which fields the field manager owns.
//
//	desired ──────────────────────┐
//	observed ─────────────────────┼─> Compare ─> is there something to apply?
//	fields that we applied (FieldsV1) ┘
//
//	fields that were written by updates ─┐
//	last-applied annotation ─────────────┴─> HandOver ─> fields that we applied
//
// Ownership tells three things that values do not. A field that we own and no
// longer want is to be removed. A field that somebody else changed is no longer
// ours, whatever its value. And the fields' paths tell how the API server reads a
// list: as a set, by keys, or as a whole.
//
// It does not tell the values that we applied. Where the API server writes a value
// in its own way, or adds to one that is ours as a whole, the comparison knows
// what built-in kinds do; of anything else it says that it differs. To apply once
// too often changes nothing, and to apply too seldom would be wrong.
//
// The package is pure.
package owned
