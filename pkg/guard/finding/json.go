package finding

import (
	"encoding/json"
	"io"
)

// SchemaVersion is of the JSON format; it rises when a field changes its meaning.
const SchemaVersion = "1"

func writeJSON(w io.Writer, r *Report) error {
	summary := map[string]int{
		"violations": r.Count(Violation), "warnings": r.Count(Warning), "passed": r.Count(Passed), "skipped": r.Count(Skipped),
		"errors": len(r.Faults), "unlisted": r.unlisted(),
	}
	for _, c := range r.Looked {
		summary[c.Name+"s"] = c.Value
	}
	document := struct {
		SchemaVersion string         `json:"schemaVersion"`
		Verb          string         `json:"verb"`
		Version       string         `json:"version"`
		Summary       map[string]int `json:"summary"`
		Findings      []Finding      `json:"findings"`
		Errors        []Fault        `json:"errors"`
	}{SchemaVersion, r.Verb, r.Version, summary, r.Findings, r.Faults}
	if document.Findings == nil {
		document.Findings = []Finding{}
	}
	if document.Errors == nil {
		document.Errors = []Fault{}
	}
	return Encode(w, document)
}

// Encode prints a value as the verbs print JSON: indented, and with <, > and &
// as they are.
func Encode(w io.Writer, value any) error {
	encoder := json.NewEncoder(w)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
