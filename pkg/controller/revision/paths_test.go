package revision

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacontroller-solo/solo/pkg/object"
)

func TestParsePaths(t *testing.T) {
	cases := []struct {
		reason   string
		declared []string
		want     string
		fails    string
	}{
		{"none", nil, "spec", ""},
		{"one", []string{"spec.template"}, "spec.template", ""},
		{"in another order", []string{"spec.b", "spec.a"}, "spec.a spec.b", ""},
		{"one is part of another", []string{"spec.template.spec", "spec.template", "spec.templates"}, "spec.template spec.templates", ""},
		{"twice", []string{"spec", "spec"}, "spec", ""},
		{"beside the spec", []string{"data", "metadata.annotations"}, "data metadata.annotations", ""},
		{"empty", []string{""}, "", `[0]: "" is not a path`},
		{"leading dot", []string{"spec", ".spec.template"}, "", `[1]: ".spec.template"`},
		{"hole", []string{"spec..a"}, "", "spec..a"},
		{"status", []string{"status"}, "", "does not say what is desired"},
		{"in the status", []string{"status.a.b"}, "", "status.a.b"},
		{"all metadata", []string{"metadata"}, "", "metadata"},
		{"resourceVersion", []string{"metadata.resourceVersion"}, "", "resourceVersion"},
		{"kind", []string{"kind"}, "", "kind"},
	}
	for _, c := range cases {
		got, err := ParsePaths(c.declared)
		var texts []string
		for _, path := range got {
			texts = append(texts, path.String())
		}
		if c.fails == "" && err != nil || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) || strings.Join(texts, " ") != c.want {
			t.Errorf("%s: %q, %v", c.reason, texts, err)
		}
	}
}

func decode(t testing.TB, text string) map[string]any {
	t.Helper()
	decoded, err := object.Decode([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	content, _ := decoded.(map[string]any)
	return content
}

func TestOfAndApply(t *testing.T) {
	const metadata = `"apiVersion":"demo/v1","kind":"Thing","metadata":{"name":"p"}`
	cases := []struct {
		reason, paths, parent, patch string
		// now is the parent as it is; then is it with the patch.
		now, then string
	}{
		{"the whole spec", "spec", `"spec":{"a":1,"b":[2]}`, `{"spec":{"a":1,"b":[2]}}`, `"spec":{"a":7,"c":3},"status":{"x":1}`, `"spec":{"a":1,"b":[2]},"status":{"x":1}`},
		{"a part of it", "spec.t", `"spec":{"t":{"v":1},"n":2}`, `{"spec":{"t":{"v":1}}}`, `"spec":{"t":{"v":9,"w":9},"n":5}`, `"spec":{"t":{"v":1},"n":5}`},
		{"two parts", "spec.t spec.u.v", `"spec":{"t":1,"u":{"v":2,"w":3}}`, `{"spec":{"t":1,"u":{"v":2}}}`, `"spec":{"t":5,"u":{"v":6,"w":7}}`, `"spec":{"t":1,"u":{"v":2,"w":7}}`},
		{"absent then", "spec.t", `"spec":{}`, `{}`, `"spec":{"t":1,"n":2}`, `"spec":{"n":2}`},
		{"null then", "spec.t", `"spec":{"t":null}`, `{}`, `"spec":{"t":1}`, `"spec":{}`},
		{"absent now", "spec.t.u", `"spec":{"t":{"u":1}}`, `{"spec":{"t":{"u":1}}}`, `"other":1`, `"other":1,"spec":{"t":{"u":1}}`},
		{"no object on the way then", "spec.t.u", `"spec":{"t":[1]}`, `{}`, `"spec":{"t":{"u":1}}`, `"spec":{"t":{}}`},
		{"no object on the way now", "spec.t.u", `"spec":{"t":{"u":1}}`, `{"spec":{"t":{"u":1}}}`, `"spec":"text"`, `"spec":{"t":{"u":1}}`},
		{"a spec that is a list", "spec", `"spec":[1]`, `{"spec":[1]}`, `"spec":[2]`, `"spec":[1]`},
	}
	for _, c := range cases {
		paths, err := ParsePaths(strings.Fields(c.paths))
		if err != nil {
			t.Fatal(err)
		}
		patch := paths.Of(decode(t, "{"+metadata+","+c.parent+"}"))
		if diff := cmp.Diff(decode(t, c.patch), patch); diff != "" {
			t.Errorf("%s: patch (-want +got):\n%s", c.reason, diff)
		}
		now, err := object.FromJSON([]byte("{" + metadata + "," + c.now + "}"))
		if err != nil {
			t.Fatal(err)
		}
		then, err := paths.Apply(now, patch)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(decode(t, "{"+metadata+","+c.then+"}"), then.Content()); diff != "" {
			t.Errorf("%s: patched (-want +got):\n%s", c.reason, diff)
		}
	}
}

// FuzzPaths patches one object to the state of another: the fields of the paths
// are those of the one, all others those of the other.
func FuzzPaths(f *testing.F) {
	for _, seed := range [][3]string{
		{"spec", `{"spec":{"a":1}}`, `{"spec":{"b":2}}`},
		{"spec.a\nspec.b.c\nspec.b", `{"spec":{"a":1,"b":{"c":[1,null]}}}`, `{"spec":7}`},
		{"metadata.labels", `{"metadata":{"labels":{"x":"y"}}}`, `{"metadata":{"labels":null,"annotations":{}}}`},
		{"", `{}`, `{}`},
		{"a..b", `[]`, `null`},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	f.Fuzz(func(t *testing.T, declared, one, other string) {
		paths, err := ParsePaths(strings.Split(declared, "\n"))
		if err != nil {
			return
		}
		decodedOne, errOne := object.Decode([]byte(one))
		decodedOther, errOther := object.Decode([]byte(other))
		contentOne, okOne := decodedOne.(map[string]any)
		contentOther, okOther := decodedOther.(map[string]any)
		if errOne != nil || errOther != nil || !okOne || !okOther {
			return
		}
		metadata, ok := contentOther["metadata"].(map[string]any)
		if !ok {
			metadata = map[string]any{}
		}
		metadata["name"] = "p"
		contentOther["apiVersion"], contentOther["kind"], contentOther["metadata"] = "demo/v1", "Thing", metadata
		parent, err := object.FromContent(contentOther)
		if err != nil {
			return
		}
		patch := paths.Of(contentOne)
		if _, err := json.Marshal(patch); err != nil {
			t.Fatalf("the patch cannot be encoded: %v", err)
		}
		patched, err := paths.Apply(parent, patch)
		if err != nil {
			return // a label that is no text, say
		}
		if got := paths.Of(patched.Content()); !object.Equal(got, patch) {
			t.Fatalf("the patched fields are %v, not %v", got, patch)
		}
		again, err := paths.Apply(patched, patch)
		if err != nil || !again.SameAs(patched) {
			t.Fatalf("patched again it is %v: %v", again, err)
		}
		same, err := paths.Apply(parent, paths.Of(parent.Content()))
		if err != nil || !object.Equal(same.Content(), parent.Content()) {
			t.Fatalf("patched to what it is, it is %s, not %s: %v", same.Body(), parent.Body(), err)
		}
		for name, value := range parent.Content() {
			touched := false
			for _, path := range paths {
				touched = touched || path[0] == name
			}
			if !touched && !reflect.DeepEqual(value, patched.Content()[name]) {
				t.Fatalf("%s is changed", name)
			}
		}
	})
}
