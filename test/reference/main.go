// Program reference writes the tables of docs/policy.md: what the CRD of
// SingletonPolicy says, which controller-gen makes of the API types' comments and
// markers. What stands before the first heading of level two is written by hand.
//
//	pkg/api/guard/v1alpha1 ─ controller-gen ─> config/crd ─> docs/policy.md
//
//go:generate go run .
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

// root is the repository's, seen from this package.
const root = "../.."

var (
	crdFile  = filepath.Join(root, "config", "crd", "guard.metacontroller.io_singletonpolicies.yaml")
	pageFile = filepath.Join(root, "docs", "policy.md")
)

func main() {
	if err := write(); err != nil {
		fmt.Fprintln(os.Stderr, "reference:", err)
		os.Exit(1)
	}
}

func write() error {
	content, err := os.ReadFile(crdFile)
	if err != nil {
		return err
	}
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(content, crd); err != nil {
		return fmt.Errorf("cannot read %s: %w", crdFile, err)
	}
	page, err := os.ReadFile(pageFile)
	if err != nil {
		return err
	}
	before, _, found := strings.Cut(string(page), "\n## ")
	if !found {
		return fmt.Errorf("%s has no heading of level two, where the tables begin", pageFile)
	}
	tables, err := tablesOf(crd)
	if err != nil {
		return err
	}
	return os.WriteFile(pageFile, []byte(before+"\n"+tables), 0o644) //nolint:gosec // A page is for all to read.
}

// tablesOf are a table for spec and one for status, and the rules that the API
// server checks.
func tablesOf(crd *apiextensionsv1.CustomResourceDefinition) (string, error) {
	if len(crd.Spec.Versions) != 1 || crd.Spec.Versions[0].Schema == nil {
		return "", errors.New("the CRD does not have the one version that is described")
	}
	schema := crd.Spec.Versions[0].Schema.OpenAPIV3Schema
	var out strings.Builder
	for _, part := range []string{"spec", "status"} {
		p := schema.Properties[part]
		fmt.Fprintf(&out, "## %s\n\n%s\n\n", part, cell(p.Description))
		out.WriteString("| field | type | default | meaning |\n| --- | --- | --- | --- |\n")
		if err := rows(&out, part, p); err != nil {
			return "", err
		}
		out.WriteString("\n")
	}
	out.WriteString("## What is refused\n\nThe API server refuses an object that breaks one of these, with the words that stand here.\n\n")
	var messages []string
	collect(&messages, *schema)
	slices.Sort(messages)
	for _, message := range slices.Compact(messages) {
		fmt.Fprintf(&out, "- %s\n", cell(message))
	}
	return out.String(), nil
}

// rows writes a row for each field below path, in the order of their names.
func rows(out *strings.Builder, path string, schema apiextensionsv1.JSONSchemaProps) error {
	names := make([]string, 0, len(schema.Properties))
	for name := range schema.Properties {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		p := schema.Properties[name]
		below, field := p, strings.TrimPrefix(path+"."+name, "spec.")
		if p.Type == "array" && p.Items != nil && p.Items.Schema != nil {
			below = *p.Items.Schema
		}
		kind, err := kindOf(p)
		if err != nil {
			return fmt.Errorf("%s: %w", field, err)
		}
		if slices.Contains(schema.Required, name) {
			kind += ", required"
		}
		def := ""
		if p.Default != nil {
			def = "`" + string(p.Default.Raw) + "`"
		}
		meaning := p.Description
		if strings.HasPrefix(meaning, "UID is a type") {
			meaning = "" // Kubernetes' words about the type, not about the field.
		}
		fmt.Fprintf(out, "| `%s` | %s | %s | %s |\n", strings.TrimPrefix(field, "status."), kind, cell(def), cell(meaning))
		if p.Type == "array" && len(below.Properties) > 0 {
			name += "[]"
		}
		// What a condition is all of Kubernetes knows.
		if name == "conditions[]" {
			continue
		}
		if err := rows(out, path+"."+name, below); err != nil {
			return err
		}
	}
	return nil
}

// kindOf is a field's type, with what it is limited to.
func kindOf(p apiextensionsv1.JSONSchemaProps) (string, error) {
	kind := p.Type
	if p.Format != "" {
		kind = p.Format
	}
	words := p
	if p.Type == "array" {
		if p.Items == nil || p.Items.Schema == nil {
			return "", errors.New("a list of nothing")
		}
		words = *p.Items.Schema
		kind = "list of " + words.Type
		if words.Type == "object" {
			kind = "list"
		}
	}
	if len(words.Enum) > 0 {
		var values []string
		for _, value := range words.Enum {
			var text string
			if err := json.Unmarshal(value.Raw, &text); err != nil {
				return "", err
			}
			values = append(values, "`"+text+"`")
		}
		kind = strings.Join(values, ", ")
		if p.Type == "array" {
			kind = "list of " + kind
		}
	}
	if p.MaxItems != nil {
		kind += fmt.Sprintf(", at most %d", *p.MaxItems)
	}
	return kind, nil
}

// collect gathers the messages of all validation rules.
func collect(messages *[]string, schema apiextensionsv1.JSONSchemaProps) {
	for _, rule := range schema.XValidations {
		*messages = append(*messages, rule.Message)
	}
	for _, p := range schema.Properties {
		collect(messages, p)
	}
	if schema.Items != nil && schema.Items.Schema != nil {
		collect(messages, *schema.Items.Schema)
	}
}

// cell is a text for one cell of a table.
func cell(text string) string {
	return strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", `\|`)
}
