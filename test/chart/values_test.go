package chart

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/yaml"
)

// valuesPage is where the values are documented.
const valuesPage = "docs/chart.md"

// TestValuesAreDocumented makes the table of values of the comments in values.yaml,
// and sees to it that each value has one.
func TestValuesAreDocumented(t *testing.T) {
	data, err := os.ReadFile(filepath.Join(root(t), chartFolder, "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var document yamlv3.Node
	if err := yamlv3.Unmarshal(data, &document); err != nil {
		t.Fatal(err)
	}
	var page strings.Builder
	page.WriteString("# Values of the chart\n\nMade of the comments in `config/chart/values.yaml` by `make generate`. [docs/install.md](install.md) says how to install.\n\n| value | default | meaning |\n| --- | --- | --- |\n")
	rows(t, &page, "", document.Content[0])
	generated(t, valuesPage, page.String())
}

// rows writes a row for each key that has a comment; the keys below it are part of
// its value.
func rows(t testing.TB, page *strings.Builder, path string, mapping *yamlv3.Node) {
	t.Helper()
	for i := 0; i+1 < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		name := path + key.Value
		meaning, documented := strings.CutPrefix(lastLine(key.HeadComment), "# -- ")
		switch {
		case documented:
			fmt.Fprintf(page, "| `%s` | `%s` | %s |\n", name, compact(t, value), strings.ReplaceAll(meaning, "|", "\\|"))
		case value.Kind == yamlv3.MappingNode && len(value.Content) > 0:
			rows(t, page, name+".", value)
		default:
			t.Errorf("value %s has no comment that begins with \"# -- \"", name)
		}
	}
}

func lastLine(comment string) string {
	lines := strings.Split(comment, "\n")
	return lines[len(lines)-1]
}

// compact is a value in one line.
func compact(t testing.TB, value *yamlv3.Node) string {
	t.Helper()
	var decoded any
	if err := value.Decode(&decoded); err != nil {
		t.Fatal(err)
	}
	data, err := yaml.Marshal(decoded)
	if err == nil {
		data, err = yaml.YAMLToJSON(data)
	}
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// TestSchemaKnowsTheValues holds values.yaml and its schema to the same keys.
func TestSchemaKnowsTheValues(t *testing.T) {
	read := func(name string, into any) {
		data, err := os.ReadFile(filepath.Join(root(t), chartFolder, name))
		if err == nil {
			err = yaml.Unmarshal(data, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var values map[string]any
	var schema map[string]any
	read("values.yaml", &values)
	read("values.schema.json", &schema)
	var compare func(path string, value any, schema map[string]any)
	compare = func(path string, value any, schema map[string]any) {
		properties, closed := schema["properties"].(map[string]any)
		if !closed {
			return
		}
		if schema["additionalProperties"] != false {
			t.Errorf("%s lets unknown keys in", path)
		}
		object, _ := value.(map[string]any)
		for key, property := range properties {
			child, ok := object[key]
			// A key of subcharts, and keys of which one excludes the other.
			if !ok && path+key != "global" && !strings.HasPrefix(path, "podDisruptionBudget.") {
				t.Errorf("values.yaml has no %s%s", path, key)
			}
			compare(path+key+".", child, property.(map[string]any))
		}
		for key := range object {
			if properties[key] == nil {
				t.Errorf("the schema has no %s%s", path, key)
			}
		}
	}
	compare("", values, schema)
}
