package inspect_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
)

func object(t testing.TB, text string) map[string]any {
	t.Helper()
	var read map[string]any
	if err := json.Unmarshal([]byte(text), &read); err != nil {
		t.Fatal(err)
	}
	return read
}

const rendered = `{"kind": "W", "metadata": {"name": "w"}, "webhooks": [
	{"name": "a", "clientConfig": {"service": {"name": "g", "port": 443}}, "failurePolicy": "Fail", "timeoutSeconds": 5,
	 "namespaceSelector": {}, "rules": [{"operations": ["CREATE", "UPDATE"], "resources": ["pods"]}],
	 "matchConditions": [{"name": "x", "expression": "true"}]}]}`

// Each way to weaken a webhook configuration is one difference, at its field.
func TestDrift(t *testing.T) {
	const bundle = `"caBundle": "UEVN", "service": {"name": "g", "port": 443}`
	good := strings.Replace(rendered, `"service": {"name": "g", "port": 443}`, bundle, 1)
	tests := map[string]struct {
		reason    string
		old, new  string
		installed string
		want      []inspect.Difference
	}{
		"same":            {"nothing differs", "", "", good, nil},
		"E12 no caBundle": {"an empty one keeps the API server from the guard", "", "", rendered, []inspect.Difference{{Path: "webhooks[a].clientConfig.caBundle", Want: "a PEM bundle", Got: "empty"}}},
		"other caBundle":  {"others fill it in", "UEVN", "T1RIRVI=", good, nil},
		"metadata":        {"labels and managers are other tools'", `{"name": "w"}`, `{"name": "w", "generation": 3, "labels": {"a": "b"}}`, good, nil},
		"F02 ignore":      {"fails open", `"Fail"`, `"Ignore"`, good, []inspect.Difference{{Path: "webhooks[a].failurePolicy", Want: "Fail", Got: "Ignore"}}},
		"F02 timeout":     {"too short to answer", `"timeoutSeconds": 5`, `"timeoutSeconds": 1`, good, []inspect.Difference{{Path: "webhooks[a].timeoutSeconds", Want: "5", Got: "1"}}},
		"F02 rules":       {"narrowed", `["CREATE", "UPDATE"]`, `["CREATE"]`, good, []inspect.Difference{{Path: "webhooks[a].rules[0].operations[1]", Want: "UPDATE", Got: "absent"}}},
		"F02 selector":    {"leaves namespaces out", `"namespaceSelector": {}`, `"namespaceSelector": {"matchLabels": {"a": "b"}}`, good, []inspect.Difference{{Path: "webhooks[a].namespaceSelector.matchLabels", Want: "absent", Got: `{"a":"b"}`}}},
		"F02 selector 2":  {"a field that only the installed one has", `"namespaceSelector": {}`, `"namespaceSelector": {}, "objectSelector": {"matchLabels": {"a": "b"}}`, good, []inspect.Difference{{Path: "webhooks[a].objectSelector", Want: "absent", Got: `{"matchLabels":{"a":"b"}}`}}},
		"F02 condition":   {"matches nothing", `"true"`, `"false"`, good, []inspect.Difference{{Path: "webhooks[a].matchConditions[x].expression", Want: "true", Got: "false"}}},
		"F02 condition 2": {"one more condition", `"expression": "true"}`, `"expression": "true"}, {"name": "y", "expression": "false"}`, good, []inspect.Difference{{Path: "webhooks[a].matchConditions[y]", Want: "absent", Got: "present"}}},
		"F02 webhook":     {"it has another name", `"name": "a"`, `"name": "b"`, good, []inspect.Difference{{Path: "webhooks[a]", Want: "present", Got: "absent"}, {Path: "webhooks[b]", Want: "absent", Got: "present"}}},
		"address":         {"another service", `"port": 443`, `"port": 1`, good, []inspect.Difference{{Path: "webhooks[a].clientConfig.service.port", Want: "443", Got: "1"}}},
		"no webhooks":     {"emptied", "", "", `{"webhooks": []}`, []inspect.Difference{{Path: "webhooks[a]", Want: "present", Got: "absent"}}},
		"another type":    {"never a panic", "", "", `{"webhooks": "none"}`, []inspect.Difference{{Path: "webhooks", Want: `[{"clientConfig":{"service":{"name":"g","port":443}},"failu…`, Got: "none"}}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			installed := test.installed
			if test.old != "" {
				if installed = strings.Replace(installed, test.old, test.new, 1); installed == test.installed {
					t.Fatal("the test changes nothing")
				}
			}
			got := inspect.Drift(object(t, installed), object(t, rendered))
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
		})
	}
}

// A long expression is shown where it differs.
func TestDriftShowsTheDifference(t *testing.T) {
	long := strings.Repeat("x", 500)
	got := inspect.Drift(map[string]any{"e": long + "false"}, map[string]any{"e": long + "true"})
	if len(got) != 1 || !strings.Contains(got[0].Want, "true") || !strings.Contains(got[0].Got, "false") || len(got[0].Want) > 80 {
		t.Errorf("got %+v", got)
	}
}

func value(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		switch kind := rapid.IntRange(0, 6).Draw(t, "kind"); {
		case kind == 0:
			return rapid.Bool().Draw(t, "bool")
		case kind == 1:
			return float64(rapid.IntRange(0, 3).Draw(t, "number"))
		case kind == 2 || depth == 0:
			return rapid.StringMatching(`[a-c]{0,3}`).Draw(t, "text")
		case kind == 3:
			return rapid.SliceOfN(value(depth-1), 0, 3).Draw(t, "list")
		case kind == 4:
			names := rapid.SliceOfNDistinct(rapid.StringMatching(`[a-c]`), 0, 3, rapid.ID).Draw(t, "names")
			var list []any
			for _, name := range names {
				list = append(list, map[string]any{"name": name, "v": value(depth-1).Draw(t, "v")})
			}
			return list
		default:
			return rapid.MapOfN(rapid.StringMatching(`[a-d]`), value(depth-1), 0, 3).Draw(t, "object")
		}
	})
}

func clone(t *rapid.T, v any) any {
	raw, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var read any
	if err := json.Unmarshal(raw, &read); err != nil {
		t.Fatal(err)
	}
	return read
}

// An object does not differ from itself, whatever order its named elements have;
// and any change of a field that is compared is found.
func TestDriftFindsEveryChange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := map[string]any{"spec": value(4).Draw(t, "want")}
		same := clone(t, want).(map[string]any)
		if named, ok := same["spec"].([]any); ok && len(named) > 1 {
			if m, ok := named[0].(map[string]any); ok && m["name"] != nil {
				slices.Reverse(named)
			}
		}
		if got := inspect.Drift(same, clone(t, want).(map[string]any)); isNamed(want["spec"]) && len(got) != 0 || !isNamed(want["spec"]) && len(inspect.Drift(clone(t, want).(map[string]any), want)) != 0 {
			t.Fatalf("%v differs from itself: %v", want, got)
		}
		changed := clone(t, want).(map[string]any)
		changed["extra"] = "x"
		if got := inspect.Drift(changed, want); len(got) != 1 || got[0].Path != "extra" {
			t.Fatalf("one more field: %v", got)
		}
		other := map[string]any{"spec": value(4).Draw(t, "other")}
		wantJSON, _ := json.Marshal(want["spec"])
		otherJSON, _ := json.Marshal(other["spec"])
		if string(wantJSON) != string(otherJSON) && !emptyList(want["spec"]) && !emptyList(other["spec"]) && scalar(want["spec"]) {
			if len(inspect.Drift(other, want)) == 0 {
				t.Fatalf("%s is taken for %s", otherJSON, wantJSON)
			}
		}
	})
}

func isNamed(v any) bool {
	list, ok := v.([]any)
	if !ok || len(list) < 2 {
		return false
	}
	for _, e := range list {
		m, ok := e.(map[string]any)
		if !ok {
			return false
		}
		if _, ok := m["name"].(string); !ok {
			return false
		}
	}
	return true
}

func emptyList(v any) bool { list, ok := v.([]any); return ok && len(list) == 0 }

func scalar(v any) bool {
	switch v.(type) {
	case map[string]any, []any:
		return false
	}
	return true
}

// Whatever an API server answers, comparing it ends, and each difference has a path.
func FuzzDrift(f *testing.F) {
	f.Add([]byte(rendered), []byte(`{"webhooks": [{"name": "a"}, {"name": "a"}]}`))
	f.Add([]byte(`{"a": null}`), []byte(`{"a": [null, {"name": 1}]}`))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		var left, right map[string]any
		if json.Unmarshal(a, &left) != nil || json.Unmarshal(b, &right) != nil {
			return
		}
		for _, d := range inspect.Drift(left, right) {
			if d.Want == d.Got && !strings.Contains(d.Want, "…") {
				t.Errorf("%+v is no difference", d)
			}
		}
		var again map[string]any
		_ = json.Unmarshal(a, &again)
		for _, d := range inspect.Drift(left, again) {
			if !strings.HasSuffix(d.Path, "caBundle") {
				t.Errorf("differs from itself: %+v", d)
			}
		}
	})
}
