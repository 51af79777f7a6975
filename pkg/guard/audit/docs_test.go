package audit

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/itchyny/gojq"
	"github.com/prometheus/client_golang/prometheus"
)

const docs = "../../../docs"

// command is a call of jq in the docs, with what it prints.
var command = regexp.MustCompile(`(?m)^\$ jq (-\w+ )?'([^']*)' (\S+)\n((?:[^$\x60].*\n)*)`)

// TestDocs holds docs/audit-log.md to what is so: it names every field and every
// metric, its examples are valid, and its commands print what it says.
func TestDocs(t *testing.T) {
	page := read(t, filepath.Join(docs, "audit-log.md"))
	t.Run("fields", func(t *testing.T) {
		document := map[string]any{}
		if err := json.Unmarshal(Schema(), &document); err != nil {
			t.Fatal(err)
		}
		described(t, page, document)
	})
	t.Run("metrics", func(t *testing.T) {
		registry := prometheus.NewRegistry()
		c, err := newCounters(registry)
		if err != nil {
			t.Fatal(err)
		}
		c.count(entry("a"), RecordOf(entry("a"), "r"))
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, family := range families {
			if name := strings.TrimPrefix(family.GetName(), "metacontroller_guard_"); !strings.Contains(page, "`"+name+"`") {
				t.Errorf("%s is not in the docs", family.GetName())
			}
		}
	})
	t.Run("I04 example lines", func(t *testing.T) {
		records := linesOf(t, read(t, filepath.Join(docs, "examples", "guard-audit.jsonl")))
		if len(records) < 5 {
			t.Fatalf("only %d lines", len(records))
		}
	})
	t.Run("commands", func(t *testing.T) {
		commands := command.FindAllStringSubmatch(page, -1)
		if len(commands) < 5 || len(commands) != strings.Count(page, "$ jq ") {
			t.Fatalf("%d commands were found, the page has %d", len(commands), strings.Count(page, "$ jq "))
		}
		for _, c := range commands {
			options, program, file, want := c[1], c[2], c[3], c[4]
			if got := jq(t, options, program, filepath.Join(docs, "examples", file)); got != want {
				t.Errorf("jq %s'%s' prints\n%s\nand not\n%s", options, program, got, want)
			}
		}
	})
}

func described(t *testing.T, page string, schema map[string]any) {
	t.Helper()
	properties, _ := schema["properties"].(map[string]any)
	for name, property := range properties {
		if !strings.Contains(page, "`"+name+"`") {
			t.Errorf("field %s is not in the docs", name)
		}
		property := property.(map[string]any)
		described(t, page, property)
		if items, ok := property["items"].(map[string]any); ok {
			described(t, page, items)
		}
	}
}

// jq runs a program over the lines of a file: -s over all of them as one list, and
// -r prints texts as they are.
func jq(t *testing.T, options, program, file string) string {
	t.Helper()
	query, err := gojq.Parse(program)
	if err != nil {
		t.Fatalf("%s: %v", program, err)
	}
	var inputs []any
	for line := range strings.Lines(read(t, file)) {
		var input any
		if err := json.Unmarshal([]byte(line), &input); err != nil {
			t.Fatal(err)
		}
		inputs = append(inputs, input)
	}
	if strings.Contains(options, "s") {
		inputs = []any{inputs}
	}
	var out strings.Builder
	for _, input := range inputs {
		results := query.Run(input)
		for result, more := results.Next(); more; result, more = results.Next() {
			if err, failed := result.(error); failed {
				t.Fatalf("%s: %v", program, err)
			}
			text, raw := result.(string)
			if !raw || !strings.Contains(options, "r") {
				encoded, err := gojq.Marshal(result)
				if err != nil {
					t.Fatal(err)
				}
				text = string(encoded)
			}
			out.WriteString(text + "\n")
		}
	}
	return out.String()
}
