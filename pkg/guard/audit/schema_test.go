package audit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

func compile(t testing.TB, content []byte) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(content))
	if err != nil {
		t.Fatal(err)
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("record.json", document); err != nil {
		t.Fatal(err)
	}
	schema, err := compiler.Compile("record.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func validate(schema *jsonschema.Schema, line []byte) error {
	value, err := jsonschema.UnmarshalJSON(bytes.NewReader(line))
	if err != nil {
		return fmt.Errorf("%q is not JSON: %w", line, err)
	}
	return schema.Validate(value)
}

// linesOf holds every line of an output to the schema, and decodes it.
func linesOf(t testing.TB, output string) []Record {
	t.Helper()
	schema := compile(t, Schema())
	var records []Record
	for line := range strings.Lines(output) {
		if err := validate(schema, []byte(line)); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		record := Record{}
		decoder := json.NewDecoder(strings.NewReader(line))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&record); err != nil {
			t.Fatal(err)
		}
		records = append(records, record)
	}
	return records
}

// anything draws entries that no API server would send, and some that it would.
func anything(t *rapid.T) Entry {
	text := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", "mc", "evil\n{}\x1b[2K\u202e", "\xff\xfe", strings.Repeat("x", 3000)}))
	e := Entry{
		ID:      rapid.StringMatching(`[a-z0-9]{1,36}`).Draw(t, "id"),
		Time:    time.Unix(rapid.Int64Range(0, 4e9).Draw(t, "time"), 0),
		Latency: time.Duration(rapid.Int64Range(0, 1e11).Draw(t, "latency")),
	}
	a := &e.Attempt
	a.AdmissionUID = types.UID("u" + text.Draw(t, "uid"))
	a.Operation = attempt.Operation(rapid.OneOf(rapid.SampledFrom([]string{"CREATE", "UPDATE", "DELETE", "CONNECT"}), text).Draw(t, "operation"))
	a.Subresource = text.Draw(t, "subresource")
	a.Workload = attempt.Workload(rapid.IntRange(-1, int(attempt.WorkloadAutoscaler)+2).Draw(t, "workload"))
	a.Resource.Resource, a.Kind.Group, a.Kind.Version, a.Kind.Kind = text.Draw(t, "resource"), text.Draw(t, "group"), text.Draw(t, "version"), text.Draw(t, "kind")
	a.Namespace, a.Name, a.GenerateName, a.ObjectUID = text.Draw(t, "namespace"), text.Draw(t, "name"), text.Draw(t, "generateName"), types.UID(text.Draw(t, "objectUID"))
	a.DryRun = rapid.Bool().Draw(t, "dryRun")
	a.User = attempt.User{
		Name: text.Draw(t, "user"), UID: text.Draw(t, "userUID"), Groups: rapid.SliceOfN(text, 0, 40).Draw(t, "groups"),
		Extra: map[string][]string{extraPodName: {text.Draw(t, "podName")}, extraCredentialID: {}, "secret": {"SECRET=1"}},
	}
	if rapid.Bool().Draw(t, "owned") {
		a.Owner = &attempt.Owner{APIVersion: text.Draw(t, "ownerVersion"), Kind: text.Draw(t, "ownerKind"), Name: text.Draw(t, "ownerName"), UID: types.UID(text.Draw(t, "ownerUID"))}
	}
	containers := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) identify.Container {
		return identify.Container{Name: text.Draw(t, "container"), Image: text.Draw(t, "image"), Key: "SECRET=1"}
	}), 0, 40)
	a.New.Containers, a.Old.Containers, a.New.Suspects = containers.Draw(t, "new"), containers.Draw(t, "old"), containers.Draw(t, "suspects")
	e.Policy.Name, e.Policy.Generation = text.Draw(t, "policy"), rapid.Int64Range(0, 1e9).Draw(t, "generation")
	rules := append(decide.Rules(), decide.RuleNone, decide.RuleSuspectedInstance, decide.Rule(text.Draw(t, "rule")))
	e.Decision = decide.Decision{
		Verdict: decide.Verdict(rapid.IntRange(-1, 9).Draw(t, "verdict")), Rule: rapid.SampledFrom(rules).Draw(t, "of rules"), Message: text.Draw(t, "message"), Matching: true,
		Holder: decide.Holder{State: decide.State(rapid.IntRange(0, 4).Draw(t, "state")), Identity: decide.Identity{Namespace: text.Draw(t, "holderNamespace"), Name: text.Draw(t, "holder")}, UID: text.Draw(t, "holderUID")},
	}
	if rapid.Bool().Draw(t, "excepted") {
		e.Decision.Exception = &decide.Exception{Identity: decide.Identity{Namespace: "n", Name: text.Draw(t, "exception")}, Reason: text.Draw(t, "reason"), Expires: e.Time}
	}
	return e
}

// TestSchema holds what is written to what is published, whatever was asked.
func TestSchema(t *testing.T) {
	t.Run("I04 every line is valid, by version 1 too", func(t *testing.T) {
		frozen, err := os.ReadFile("testdata/record.v1.schema.json")
		if err != nil {
			t.Fatal(err)
		}
		schemas := []*jsonschema.Schema{compile(t, Schema()), compile(t, frozen)}
		rapid.Check(t, func(t *rapid.T) {
			record := RecordOf(anything(t), rapid.String().Draw(t, "replica"))
			if rapid.Bool().Draw(t, "repeated") {
				first := record.Time
				record.Repeated, record.FirstTime, record.Count = true, &first, rapid.Int64Range(1, 1e9).Draw(t, "count")
			}
			line, err := lineOf(record)
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(line, []byte("SECRET")) {
				t.Fatalf("leaked: %q", line)
			}
			for i, schema := range schemas {
				if err := validate(schema, line); err != nil {
					t.Fatalf("schema %d: %q: %v", i, line, err)
				}
			}
		})
	})
	t.Run("I04 it refuses what is no record", func(t *testing.T) {
		schema := compile(t, Schema())
		good, err := lineOf(RecordOf(entry("a"), "guard-0"))
		if err != nil {
			t.Fatal(err)
		}
		if err := validate(schema, good); err != nil {
			t.Fatal(err)
		}
		for old, bad := range map[string]string{
			`"schemaVersion":1`: `"schemaVersion":"1"`, `"count":1`: `"count":0`, `"decision":"Deny"`: `"decision":"Maybe"`,
			`"time":"1970`: `"time":"in 1970`, `"enforced":true`: `"enforced":1`, `"replica":`: `"guard":`, `"images":[`: `"images":["x",`,
		} {
			line := strings.Replace(string(good), old, bad, 1)
			if line == string(good) {
				t.Fatalf("no %s in %s", old, good)
			}
			if err := validate(schema, []byte(line)); err == nil {
				t.Errorf("%s is valid", bad)
			}
		}
	})
	t.Run("it has the fields of the type", func(t *testing.T) {
		document := map[string]any{}
		if err := json.Unmarshal(Schema(), &document); err != nil {
			t.Fatal(err)
		}
		sameFields(t, "record", reflect.TypeFor[Record](), document)
	})
}

// sameFields compares a struct with the schema of an object: names, which of them
// are required, and JSON types.
func sameFields(t *testing.T, path string, goType reflect.Type, schema map[string]any) {
	t.Helper()
	properties, _ := schema["properties"].(map[string]any)
	var names, required []string
	for i := range goType.NumField() {
		field := goType.Field(i)
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		names = append(names, name)
		if options != "omitempty" {
			required = append(required, name)
		}
		property, ok := properties[name].(map[string]any)
		if !ok {
			t.Errorf("%s.%s is not in the schema", path, name)
			continue
		}
		if property["description"] == nil && property["items"] == nil {
			t.Errorf("%s.%s has no description", path, name)
		}
		sameType(t, path+"."+name, field.Type, property)
	}
	slices.Sort(names)
	if documented := slices.Sorted(maps.Keys(properties)); !slices.Equal(documented, names) {
		t.Errorf("%s: the schema has %v, the type %v", path, documented, names)
	}
	var demanded []string
	for _, name := range schema["required"].([]any) {
		demanded = append(demanded, name.(string))
	}
	slices.Sort(demanded)
	slices.Sort(required)
	if !slices.Equal(demanded, required) {
		t.Errorf("%s: the schema requires %v, the type always has %v", path, demanded, required)
	}
}

func sameType(t *testing.T, path string, goType reflect.Type, schema map[string]any) {
	t.Helper()
	if goType.Kind() == reflect.Pointer {
		goType = goType.Elem()
	}
	want := map[reflect.Kind]string{
		reflect.String: "string", reflect.Bool: "boolean", reflect.Int: "integer", reflect.Int64: "integer",
		reflect.Float64: "number", reflect.Slice: "array", reflect.Struct: "object",
	}[goType.Kind()]
	if goType == reflect.TypeFor[time.Time]() {
		want = "string"
	}
	if got := schema["type"]; got != want && (want != "string" || schema["enum"] == nil) {
		t.Errorf("%s is %v in the schema, and %s in the type", path, got, want)
	}
	switch {
	case want == "object":
		sameFields(t, path, goType, schema)
	case want == "array" && goType.Elem().Kind() == reflect.Struct:
		sameFields(t, path+"[]", goType.Elem(), schema["items"].(map[string]any))
	case want == "array":
		sameType(t, path+"[]", goType.Elem(), schema["items"].(map[string]any))
	}
}

// TestSchemaGrows is I14: from one version to the next, fields are only added.
func TestSchemaGrows(t *testing.T) {
	frozen, err := os.ReadFile("testdata/record.v1.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	decode := func(content []byte) map[string]any {
		document := map[string]any{}
		if err := json.Unmarshal(content, &document); err != nil {
			t.Fatal(err)
		}
		return document
	}
	t.Run("I14 the schema keeps version 1", func(t *testing.T) {
		for _, problem := range notAdditive("record", decode(frozen), decode(Schema())) {
			t.Error(problem)
		}
		if SchemaVersion == 1 && !bytes.Equal(frozen, Schema()) {
			t.Error("the schema has changed: raise SchemaVersion")
		}
	})
	edit := func(old, replacement string) map[string]any {
		edited := strings.Replace(string(frozen), old, replacement, 1)
		if edited == string(frozen) {
			t.Fatalf("no %s in the schema", old)
		}
		return decode([]byte(edited))
	}
	for name, test := range map[string]struct {
		next     map[string]any
		additive bool
	}{
		"a field more":                {edit(`"replica": {`, `"zone": {"type": "string"}, "replica": {`), true},
		"a field more in the user":    {edit(`"podName": {`, `"zone": {"type": "string"}, "podName": {`), true},
		"another description":         {edit(`Id of the decision.`, `The id.`), true},
		"a field less":                {edit(`"subresource": {`, `"sub": {`), false},
		"a field more, required":      {edit(`"latencySeconds", "replica"]`, `"latencySeconds", "replica", "zone"]`), false},
		"one that may be left out":    {edit(`"latencySeconds", "replica"]`, `"latencySeconds"]`), false},
		"another type":                {edit(`"dryRun": {"type": "boolean"`, `"dryRun": {"type": "string"`), false},
		"another word":                {edit(`["Allow", "Warn", "Deny"]`, `["Allow", "Warn", "Deny", "Ask"]`), false},
		"a field less in a list":      {edit(`"digest": {"type": "string"`, `"sum": {"type": "string"`), false},
		"nothing beside these fields": {edit(`"type": "object",`, `"type": "object", "additionalProperties": false,`), false},
	} {
		t.Run("I14 "+name, func(t *testing.T) {
			problems := notAdditive("record", decode(frozen), test.next)
			if test.additive != (len(problems) == 0) {
				t.Fatalf("problems are %v", problems)
			}
		})
	}
}

// notAdditive says what of a schema is not kept by the next one: every keyword is
// the same, but for texts for people and for properties that are added.
func notAdditive(path string, before, after map[string]any) []string {
	var problems []string
	keywords := slices.Collect(maps.Keys(before))
	for keyword := range after {
		if _, ok := before[keyword]; !ok {
			keywords = append(keywords, keyword)
		}
	}
	for _, keyword := range keywords {
		switch keyword {
		case "description", "title", "$id":
		case "properties":
			next, _ := after[keyword].(map[string]any)
			for name, property := range before[keyword].(map[string]any) {
				kept, ok := next[name].(map[string]any)
				if !ok {
					problems = append(problems, fmt.Sprintf("%s.%s is gone", path, name))
					continue
				}
				problems = append(problems, notAdditive(path+"."+name, property.(map[string]any), kept)...)
			}
		case "items":
			next, _ := after[keyword].(map[string]any)
			problems = append(problems, notAdditive(path+"[]", before[keyword].(map[string]any), next)...)
		default:
			if !reflect.DeepEqual(before[keyword], after[keyword]) {
				problems = append(problems, fmt.Sprintf("%s: %s was %v and is %v", path, keyword, before[keyword], after[keyword]))
			}
		}
	}
	return problems
}
