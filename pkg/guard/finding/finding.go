// Package finding is what a verb of the command line found, and how it is
// printed: for people, for programs, for code scanning and for CI.
//
//	Report ─ Write ─> text | json | sarif | junit
package finding

import (
	"fmt"
	"io"
	"slices"
	"strings"
)

// Format is a way to print a report.
type Format string

// The formats.
const (
	Text  Format = "text"
	JSON  Format = "json"
	SARIF Format = "sarif"
	JUnit Format = "junit"
)

// Formats are all of them.
func Formats() []Format { return []Format{Text, JSON, SARIF, JUnit} }

// Level is how bad a finding is.
type Level string

const (
	// Violation is what the guard refuses, or what should not be there.
	Violation Level = "violation"
	// Warning is what it lets through, and somebody should look at.
	Warning Level = "warning"
	// Passed is what was looked at and is in order.
	Passed Level = "passed"
	// Skipped is what could not be looked at.
	Skipped Level = "skipped"
)

// MaxFindings is how many findings of each level a report lists; the others are
// only counted.
const MaxFindings = 1000

// Object names what a finding is about.
type Object struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind"`
	Namespace  string `json:"namespace,omitempty"`
	Name       string `json:"name"`
}

// String is "Kind namespace/name".
func (o Object) String() string {
	name := o.Name
	if o.Namespace != "" {
		name = o.Namespace + "/" + o.Name
	}
	return strings.TrimSpace(o.Kind + " " + name)
}

// Finding is one thing that was found.
type Finding struct {
	Level Level `json:"level"`
	// Rule is the stable id of what was looked at: a rule of the guard, or a
	// check of the verb.
	Rule string `json:"rule,omitempty"`
	// Message has a first line that can stand alone.
	Message string  `json:"message,omitempty"`
	Object  *Object `json:"object,omitempty"`
	// File and Line are where the object begins; empty where it is in no file.
	File string `json:"file,omitempty"`
	Line int    `json:"line,omitempty"`
}

// Fault is a part of the input that could not be read.
type Fault struct {
	File    string `json:"file"`
	Line    int    `json:"line,omitempty"`
	Message string `json:"message"`
}

// Count is one number of the summary.
type Count struct {
	Name  string
	Value int
}

// Report is what a verb found.
type Report struct {
	// Verb is the one that was run, and Version the program's.
	Verb, Version string
	// Looked counts what was looked at, for the summary.
	Looked []Count
	// Findings are what was found, at most MaxFindings of each level.
	Findings []Finding
	Faults   []Fault
	// Rules are one line about each rule, by id.
	Rules map[string]string

	counts map[Level]int
}

// Add adds a finding.
func (r *Report) Add(f Finding) {
	if r.counts == nil {
		r.counts = map[Level]int{}
	}
	r.counts[f.Level]++
	if r.counts[f.Level] <= MaxFindings {
		r.Findings = append(r.Findings, f)
	}
}

// Count is how many findings of a level there are, listed or not.
func (r *Report) Count(level Level) int { return r.counts[level] }

// Look counts one more of what was looked at.
func (r *Report) Look(name string, n int) {
	for i := range r.Looked {
		if r.Looked[i].Name == name {
			r.Looked[i].Value += n
			return
		}
	}
	r.Looked = append(r.Looked, Count{name, n})
}

// Looks is how many of what was looked at there were.
func (r *Report) Looks(name string) int {
	for _, c := range r.Looked {
		if c.Name == name {
			return c.Value
		}
	}
	return 0
}

// Style is how text is printed.
type Style struct {
	// Color is set where colours can be shown.
	Color bool
	// Verbose prints what is in order too.
	Verbose bool
}

// Write prints a report.
func Write(w io.Writer, format Format, r *Report, style Style) error {
	var err error
	switch format {
	case JSON:
		err = writeJSON(w, r)
	case SARIF:
		err = writeSARIF(w, r)
	case JUnit:
		err = writeJUnit(w, r)
	case Text:
		err = writeText(w, r, style)
	default:
		return fmt.Errorf("cannot print as %q, choose one of %v", format, Formats())
	}
	if err != nil {
		return fmt.Errorf("cannot print the report: %w", err)
	}
	return nil
}

// unlisted says how many findings are counted and not listed.
func (r *Report) unlisted() int {
	more := 0
	for _, count := range r.counts {
		more += max(0, count-MaxFindings)
	}
	return more
}

// rules are the ids of the rules with findings, in order.
func (r *Report) rules() []string {
	var ids []string
	for _, f := range r.Findings {
		if f.Rule != "" && !slices.Contains(ids, f.Rule) {
			ids = append(ids, f.Rule)
		}
	}
	slices.Sort(ids)
	return ids
}
