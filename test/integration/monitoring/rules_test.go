// Package monitoring_test holds config/monitoring to what the programs really
// report: promtool checks the rules and runs their unit tests, each alert has its
// section in docs/operate.md, and every metric and label that an alert or a panel
// reads is there in the /metrics of the programs and of the API server.
//
//go:generate go test . -count=1 -run ^TestPrometheusRule$ -update
package monitoring_test

import (
	"context"
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
	"github.com/metacontroller-solo/solo/test/kit"
)

var update = flag.Bool("update", false, "write config/monitoring/prometheus-rule.yaml instead of comparing it")

// Files, seen from the root.
const (
	rulesFile     = "config/monitoring/alerts.yaml"
	operatorFile  = "config/monitoring/prometheus-rule.yaml"
	dashboardFile = "config/monitoring/dashboard.json"
	unitTests     = "test/monitoring/alerts.test.yaml"
	pageFile      = "docs/operate.md"
)

// module has Prometheus's parser and promtool. The tag leaves service discovery,
// which is most of promtool, out.
const (
	module   = "test/monitoring"
	buildTag = "-tags=remove_all_sd"
	promtool = "github.com/prometheus/prometheus/cmd/promtool"
)

// rulesOf is what a file of rules has.
type rulesOf struct {
	Groups []struct {
		Name  string
		Rules []rule
	}
}

type rule struct {
	Alert       string
	Expr        string
	Labels      map[string]string
	Annotations map[string]string
}

func path(t *testing.T, file string) string {
	t.Helper()
	root, err := kit.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(root, filepath.FromSlash(file))
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	content, err := os.ReadFile(path(t, file))
	if err != nil {
		t.Fatal(err)
	}
	return content
}

func alerts(t *testing.T) []rule {
	t.Helper()
	var all rulesOf
	if err := yaml.UnmarshalStrict(stripped(read(t, rulesFile)), &all); err != nil {
		t.Fatal(err)
	}
	var alerts []rule
	for _, group := range all.Groups {
		alerts = append(alerts, group.Rules...)
	}
	if len(alerts) < 20 {
		t.Fatalf("only %d alerts were found", len(alerts))
	}
	return alerts
}

// stripped is without what rule does not have.
func stripped(content []byte) []byte {
	return regexp.MustCompile(`(?m)^ +for: .*\n`).ReplaceAll(content, nil)
}

// run runs a program of the module.
func run(ctx context.Context, t *testing.T, pkg string, args ...string) []byte {
	t.Helper()
	command := exec.CommandContext(ctx, "go", append([]string{"run", buildTag, pkg}, args...)...)
	command.Dir = path(t, module)
	output, err := command.Output()
	if err != nil {
		var stderr []byte
		if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // Output returns it as it is.
			stderr = exit.Stderr
		}
		t.Fatalf("%s %s: %v\n%s%s", pkg, strings.Join(args, " "), err, output, stderr)
	}
	return output
}

// envLong is set by make monitoring-test: promtool takes minutes to build for the
// first time, and a cluster with everything in it to start.
const envLong = "MONITORING_LONG"

// TestPromtool checks the rules, and runs their unit tests.
func TestPromtool(t *testing.T) {
	if os.Getenv(envLong) == "" {
		t.Skip("make monitoring-test does this")
	}
	t.Logf("%s", run(t.Context(), t, promtool, "check", "rules", "--lint=all", "--lint-fatal", path(t, rulesFile)))
	t.Logf("%s", run(t.Context(), t, promtool, "test", "rules", "--diff", path(t, unitTests)))
}

// TestPrometheusRule keeps the object of the Prometheus Operator equal to the rules.
func TestPrometheusRule(t *testing.T) {
	var groups map[string]any
	if err := yaml.Unmarshal(read(t, rulesFile), &groups); err != nil {
		t.Fatal(err)
	}
	object, err := yaml.Marshal(map[string]any{
		"apiVersion": "monitoring.coreos.com/v1",
		"kind":       "PrometheusRule",
		"metadata":   map[string]any{"name": "metacontroller"},
		"spec":       groups,
	})
	if err != nil {
		t.Fatal(err)
	}
	want := "# Made of alerts.yaml by \"make generate\". Do not edit.\n" + string(object)
	if *update {
		if err := os.WriteFile(path(t, operatorFile), []byte(want), 0o644); err != nil { //nolint:gosec // A manifest is for all to read.
			t.Fatal(err)
		}
	}
	if got := string(read(t, operatorFile)); got != want {
		t.Errorf("%s is not made of %s: run make generate", operatorFile, rulesFile)
	}
}

// TestEachAlertHasItsSection: what it means, what to look at, what to do.
func TestEachAlertHasItsSection(t *testing.T) {
	page := string(read(t, pageFile))
	sections := map[string]string{}
	for _, part := range strings.Split(page, "\n### ")[1:] {
		title, text, _ := strings.Cut(part, "\n")
		text, _, _ = strings.Cut(text, "\n## ")
		sections[title] = text
	}
	for _, alert := range alerts(t) {
		text, found := sections[alert.Alert]
		if !found {
			t.Errorf("%s has no section in %s", alert.Alert, pageFile)
			continue
		}
		delete(sections, alert.Alert)
		for _, part := range []string{"Means:", "Look:", "Do:"} {
			if !strings.Contains(text, part) {
				t.Errorf("the section of %s does not say %q", alert.Alert, part)
			}
		}
		if want := pageFile + "#" + strings.ToLower(alert.Alert); alert.Annotations["runbook"] != want {
			t.Errorf("the runbook of %s is %q, not %q", alert.Alert, alert.Annotations["runbook"], want)
		}
		if alert.Annotations["summary"] == "" || !slices.Contains([]string{"critical", "warning", "info"}, alert.Labels["severity"]) {
			t.Errorf("%s has no summary, or severity %q", alert.Alert, alert.Labels["severity"])
		}
	}
	for title := range sections {
		if strings.HasPrefix(title, "Metacontroller") {
			t.Errorf("%s explains %s, which is no alert", pageFile, title)
		}
	}
}

// TestEveryFindingHasAnAlert: none of what the scan finds is left out, and what
// means a second instance is together in one alert.
func TestEveryFindingHasAnAlert(t *testing.T) {
	ids := regexp.MustCompile(`metacontroller_guard_findings\{id=~?"([^"]*)"\}`)
	by := map[string]string{}
	for _, alert := range alerts(t) {
		for _, found := range ids.FindAllStringSubmatch(alert.Expr, -1) {
			for id := range strings.SplitSeq(found[1], "|") {
				by[id] = alert.Alert
			}
		}
	}
	for _, id := range inspect.IDs() {
		switch alert := by[string(id)]; {
		case id == inspect.GuardSilent:
			// Of "guard scan" alone: the guard that leads cannot find it.
		case alert == "":
			t.Errorf("finding %s has no alert", id)
		case id.Violation() != (alert == "MetacontrollerSecondInstance"):
			t.Errorf("finding %s is in alert %s", id, alert)
		}
	}
}

// TestDashboard holds the dashboard to what Grafana needs to show it.
func TestDashboard(t *testing.T) {
	var board struct {
		UID    string
		Panels []struct {
			ID      int
			Type    string
			Title   string
			GridPos struct{ X, Y, W, H int }
			Targets []struct {
				Expr       string
				Datasource struct{ UID string }
			}
		}
	}
	if err := json.Unmarshal(read(t, dashboardFile), &board); err != nil {
		t.Fatal(err)
	}
	if board.UID == "" || len(board.Panels) < 15 {
		t.Fatalf("uid %q, %d panels", board.UID, len(board.Panels))
	}
	ids := map[int]bool{}
	taken := map[[2]int]string{}
	for _, panel := range board.Panels {
		if panel.Title == "" || ids[panel.ID] {
			t.Errorf("panel %d %q has no title, or its id is another's", panel.ID, panel.Title)
		}
		ids[panel.ID] = true
		if panel.Type != "row" && len(panel.Targets) == 0 {
			t.Errorf("panel %q shows nothing", panel.Title)
		}
		for _, target := range panel.Targets {
			if target.Datasource.UID != "${datasource}" {
				t.Errorf("panel %q has the data source %q, not that of the variable", panel.Title, target.Datasource.UID)
			}
		}
		for x := panel.GridPos.X; x < panel.GridPos.X+panel.GridPos.W; x++ {
			for y := panel.GridPos.Y; y < panel.GridPos.Y+panel.GridPos.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" || x >= 24 {
					t.Fatalf("panel %q is over %q, or beside the page", panel.Title, other)
				}
				taken[[2]int{x, y}] = panel.Title
			}
		}
	}
}
