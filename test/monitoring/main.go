// Program monitoring reads alert rules and Grafana dashboards with Prometheus's own
// parser, and prints what their expressions read of which metric, as JSON. It is a
// module of its own, as Prometheus is much more than its parser.
//
//	alerts.yaml ─ rulefmt ─┐
//	                       ├─ PromQL parser ─> Expression ─> JSON
//	dashboard.json ────────┘
//
// The same module pins promtool, which checks the rules and runs their unit tests
// (alerts.test.yaml).
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

// Expression is one expression of a rule or a panel.
type Expression struct {
	// Where is the alert's name, or the dashboard's file and the panel's title.
	Where string `json:"where"`
	// Shown are the labels that texts show of the result.
	Shown     []string   `json:"shown"`
	Selectors []Selector `json:"selectors"`
	// Result are labels that the result has, if it is grouped by labels.
	Result []string `json:"result"`
}

// Selector is what an expression reads of one metric.
type Selector struct {
	Metric   string    `json:"metric"`
	Matchers []Matcher `json:"matchers"`
	// By are labels by which the values are grouped or joined.
	By []string `json:"by"`
}

// Matcher is what a label must be; Type is =, !=, =~ or !~.
type Matcher struct {
	Label string `json:"label"`
	Type  string `json:"type"`
	Value string `json:"value"`
}

func main() {
	if len(os.Args) < 2 {
		fail(errors.New("name rules (.yaml) and dashboards (.json)"))
	}
	var all []Expression
	for _, path := range os.Args[1:] {
		read := rules
		if strings.HasSuffix(path, ".json") {
			read = dashboard
		}
		some, err := read(path)
		if err != nil {
			fail(fmt.Errorf("%s: %w", path, err))
		}
		all = append(all, some...)
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", " ")
	if err := encoder.Encode(all); err != nil {
		fail(err)
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "monitoring:", err)
	os.Exit(1)
}

// promQL is the language as a Prometheus without feature flags has it.
var promQL = parser.NewParser(parser.Options{})

// rules reads a file of rules, as strictly as Prometheus does.
func rules(path string) ([]Expression, error) {
	file, errs := rulefmt.ParseFile(path, false, model.UTF8Validation, promQL, slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	var all []Expression
	for _, group := range file.Groups {
		for _, rule := range group.Rules {
			e, err := expression(rule.Alert, rule.Expr)
			if err != nil {
				return nil, err
			}
			for _, text := range rule.Annotations {
				for _, found := range shownInRule.FindAllStringSubmatch(text, -1) {
					e.Shown = append(e.Shown, found[1])
				}
			}
			all = append(all, e)
		}
	}
	return all, nil
}

var (
	shownInRule  = regexp.MustCompile(`\$labels\.(\w+)`)
	shownInPanel = regexp.MustCompile(`\{\{ *(\w+) *\}\}`)
)

// dashboard reads the panels of a Grafana dashboard.
func dashboard(path string) ([]Expression, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(content, &board); err != nil {
		return nil, err
	}
	var all []Expression
	for _, panel := range board.Panels {
		for _, target := range panel.Targets {
			// Grafana puts a time there, which depends on what is shown.
			e, err := expression(panel.Title, strings.ReplaceAll(target.Expr, "$__rate_interval", "5m"))
			if err != nil {
				return nil, err
			}
			for _, found := range shownInPanel.FindAllStringSubmatch(target.LegendFormat, -1) {
				e.Shown = append(e.Shown, found[1])
			}
			all = append(all, e)
		}
	}
	return all, nil
}

func expression(where, text string) (Expression, error) {
	e := Expression{Where: where}
	root, err := promQL.ParseExpr(text)
	if err != nil {
		return e, fmt.Errorf("%s: %w", where, err)
	}
	result := map[string]bool{}
	parser.Inspect(root, func(node parser.Node, path []parser.Node) error {
		switch n := node.(type) {
		case *parser.AggregateExpr:
			if !n.Without {
				for _, label := range n.Grouping {
					result[label] = true
				}
			}
		case *parser.Call:
			if n.Func.Name == "label_replace" {
				result[n.Args[1].(*parser.StringLiteral).Val] = true
			}
		case *parser.VectorSelector:
			e.Selectors = append(e.Selectors, selector(n, path))
		}
		return nil
	})
	for label := range result {
		e.Result = append(e.Result, label)
	}
	slices.Sort(e.Result)
	return e, nil
}

// selector is what an expression reads of a metric; path are the nodes above it.
func selector(n *parser.VectorSelector, path []parser.Node) Selector {
	s := Selector{Metric: n.Name}
	for _, m := range n.LabelMatchers {
		if m.Name != labels.MetricName {
			s.Matchers = append(s.Matchers, Matcher{Label: m.Name, Type: m.Type.String(), Value: m.Value})
		}
	}
	for i, above := range path {
		var below parser.Node = n
		if i+1 < len(path) {
			below = path[i+1]
		}
		switch a := above.(type) {
		case *parser.AggregateExpr:
			s.By = append(s.By, a.Grouping...)
		case *parser.BinaryExpr:
			// What stands there has no part in the result, only in what is in it.
			if (a.Op == parser.LAND || a.Op == parser.LUNLESS) && below == a.RHS {
				s.By = nil
			}
			if a.VectorMatching != nil && a.VectorMatching.On {
				s.By = append(s.By, a.VectorMatching.MatchingLabels...)
			}
		}
	}
	slices.Sort(s.By)
	s.By = slices.Compact(s.By)
	return s
}
