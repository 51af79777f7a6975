// Package attempt reduces an AdmissionReview to the facts that a decision needs:
//
//	body ─ Parse ─> AdmissionRequest ─ From (with an identify.Signature) ─> Attempt
//
// It is pure and trusts nothing: what the API server would never send is a
// *MalformedError, what it sends of a kind that is not known is judged on what
// is known, and nothing panics.
package attempt
