// Package verify checks an installation from the outside, with what a person's
// permissions allow: no port of the guard is needed.
//
//	policy       ─ its conditions, of its newest generation
//	admission    ─ the installed objects against the rendered ones, field by field
//	certificate  ─ caBundle and the guard's certificate: time, names, chain
//	webhook      ─ a dry run that the guard must refuse
//	pin          ─ a dry run that the API server itself must refuse
//
// Each check adds findings to a report. What may not be read is skipped, and the
// report says what is missing. A dry run stores nothing and claims nothing.
package verify
