package finding

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// The parts of JUnit's report that CI systems read.
type junitSuites struct {
	XMLName  xml.Name     `xml:"testsuites"`
	Name     string       `xml:"name,attr"`
	Tests    int          `xml:"tests,attr"`
	Failures int          `xml:"failures,attr"`
	Errors   int          `xml:"errors,attr"`
	Suites   []junitSuite `xml:"testsuite"`
}

type junitSuite struct {
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Errors   int         `xml:"errors,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
}

type junitCase struct {
	Name      string       `xml:"name,attr"`
	Class     string       `xml:"classname,attr"`
	File      string       `xml:"file,attr,omitempty"`
	Line      int          `xml:"line,attr,omitempty"`
	Failure   *junitDetail `xml:"failure,omitempty"`
	Error     *junitDetail `xml:"error,omitempty"`
	Skipped   *junitDetail `xml:"skipped,omitempty"`
	SystemOut string       `xml:"system-out,omitempty"`
}

type junitDetail struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr,omitempty"`
	Text    string `xml:",chardata"`
}

// writeJUnit prints a suite for each file, and a case for each finding. A
// warning is a case that passes, with its text as output.
func writeJUnit(w io.Writer, r *Report) error {
	all := junitSuites{Name: "guard " + r.Verb}
	index := map[string]int{}
	add := func(file string, c junitCase) {
		name := orElse(file, r.Verb)
		i, known := index[name]
		if !known {
			i = len(all.Suites)
			index[name] = i
			all.Suites = append(all.Suites, junitSuite{Name: Clean(name)})
		}
		suite := &all.Suites[i]
		suite.Cases = append(suite.Cases, c)
		suite.Tests++
		all.Tests++
		switch {
		case c.Failure != nil:
			suite.Failures++
			all.Failures++
		case c.Error != nil:
			suite.Errors++
			all.Errors++
		case c.Skipped != nil:
			suite.Skipped++
		}
	}
	for _, f := range r.Findings {
		c := junitCase{Name: f.Rule, Class: "guard." + r.Verb, File: Clean(f.File), Line: f.Line}
		if f.Object != nil {
			c.Name = strings.TrimSpace(Clean(f.Object.String()))
		}
		c.Name = orElse(c.Name, r.Verb)
		first, _, _ := strings.Cut(f.Message, "\n")
		detail := &junitDetail{Message: Clean(first), Type: f.Rule, Text: cleanLines(f.Message)}
		switch f.Level {
		case Violation:
			c.Failure = detail
		case Warning:
			c.SystemOut = "warning: " + detail.Text
		case Skipped:
			c.Skipped = detail
		}
		add(f.File, c)
	}
	for _, fault := range r.Faults {
		add(fault.File, junitCase{
			Name: fmt.Sprintf("can be read (line %d)", fault.Line), Class: "guard." + r.Verb, File: Clean(fault.File), Line: fault.Line,
			Error: &junitDetail{Message: Clean(fault.Message), Type: "input", Text: Clean(fault.Message)},
		})
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	encoder := xml.NewEncoder(w)
	encoder.Indent("", "  ")
	if err := encoder.Encode(all); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

func cleanLines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = Clean(lines[i])
	}
	return strings.Join(lines, "\n")
}
