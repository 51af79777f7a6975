package finding

import (
	"io"
	"net/url"
	"path/filepath"
)

// The parts of SARIF 2.1.0 that are used:
// https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
const (
	sarifVersion = "2.1.0"
	sarifSchema  = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
	// sarifTool is the name of the driver.
	sarifTool = "guard"
)

type sarifText struct {
	Text string `json:"text"`
}

type sarifRule struct {
	ID               string    `json:"id"`
	ShortDescription sarifText `json:"shortDescription"`
}

type sarifLocation struct {
	Physical *sarifPhysical `json:"physicalLocation,omitempty"`
	Logical  []sarifLogical `json:"logicalLocations,omitempty"`
}

type sarifPhysical struct {
	Artifact sarifArtifact `json:"artifactLocation"`
	Region   *sarifRegion  `json:"region,omitempty"`
}

type sarifArtifact struct {
	URI string `json:"uri"`
}

type sarifRegion struct {
	StartLine int `json:"startLine"`
}

type sarifLogical struct {
	FullyQualifiedName string `json:"fullyQualifiedName"`
	Kind               string `json:"kind"`
}

type sarifResult struct {
	RuleID    string          `json:"ruleId,omitempty"`
	Kind      string          `json:"kind"`
	Level     string          `json:"level"`
	Message   sarifText       `json:"message"`
	Locations []sarifLocation `json:"locations,omitempty"`
}

type sarifNotification struct {
	Level     string          `json:"level"`
	Message   sarifText       `json:"message"`
	Locations []sarifLocation `json:"locations,omitempty"`
}

type sarifInvocation struct {
	Successful    bool                `json:"executionSuccessful"`
	Notifications []sarifNotification `json:"toolExecutionNotifications,omitempty"`
}

type sarifDriver struct {
	Name    string      `json:"name"`
	Version string      `json:"version,omitempty"`
	Rules   []sarifRule `json:"rules"`
}

type sarifRun struct {
	Tool struct {
		Driver sarifDriver `json:"driver"`
	} `json:"tool"`
	Invocations []sarifInvocation `json:"invocations"`
	Results     []sarifResult     `json:"results"`
}

func writeSARIF(w io.Writer, r *Report) error {
	run := sarifRun{Results: []sarifResult{}}
	run.Tool.Driver = sarifDriver{Name: sarifTool, Version: r.Version, Rules: []sarifRule{}}
	for _, id := range r.rules() {
		run.Tool.Driver.Rules = append(run.Tool.Driver.Rules, sarifRule{ID: id, ShortDescription: sarifText{orElse(r.Rules[id], id)}})
	}
	for _, f := range r.Findings {
		result := sarifResult{RuleID: f.Rule, Kind: "fail", Level: "error", Message: sarifText{orElse(f.Message, string(f.Level))}}
		switch f.Level {
		case Warning:
			result.Level = "warning"
		case Passed:
			result.Kind, result.Level = "pass", "none"
		case Skipped:
			result.Kind, result.Level = "open", "none"
		}
		if location := locationOf(f); location != nil {
			result.Locations = []sarifLocation{*location}
		}
		run.Results = append(run.Results, result)
	}
	invocation := sarifInvocation{Successful: len(r.Faults) == 0}
	for _, fault := range r.Faults {
		invocation.Notifications = append(invocation.Notifications, sarifNotification{
			Level: "error", Message: sarifText{fault.Message},
			Locations: []sarifLocation{{Physical: physical(fault.File, fault.Line)}},
		})
	}
	run.Invocations = []sarifInvocation{invocation}
	return Encode(w, struct {
		Schema  string     `json:"$schema"`
		Version string     `json:"version"`
		Runs    []sarifRun `json:"runs"`
	}{sarifSchema, sarifVersion, []sarifRun{run}})
}

func locationOf(f Finding) *sarifLocation {
	location := &sarifLocation{}
	if f.File != "" {
		location.Physical = physical(f.File, f.Line)
	}
	if f.Object != nil {
		location.Logical = []sarifLogical{{FullyQualifiedName: f.Object.String(), Kind: "resource"}}
	}
	if location.Physical == nil && location.Logical == nil {
		return nil
	}
	return location
}

func physical(file string, line int) *sarifPhysical {
	p := &sarifPhysical{Artifact: sarifArtifact{URI: (&url.URL{Path: filepath.ToSlash(file)}).String()}}
	if line > 0 {
		p.Region = &sarifRegion{StartLine: line}
	}
	return p
}

func orElse(text, fallback string) string {
	if text == "" {
		return fallback
	}
	return text
}
