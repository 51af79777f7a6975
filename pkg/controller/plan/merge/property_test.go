package merge_test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/controller/plan/merge"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// fields draws an object of a few fields of few names, so that two draws have
// much in common. Lists of objects have elements with unique names.
func fields(depth int) *rapid.Generator[map[string]any] {
	return rapid.Custom(func(t *rapid.T) map[string]any {
		out := map[string]any{}
		for _, key := range []string{"a", "b", "c", "labels", "list"} {
			if !rapid.Bool().Draw(t, "has "+key) {
				continue
			}
			most := 3
			if depth == 0 {
				most = 1
			}
			switch rapid.IntRange(0, most).Draw(t, "type of "+key) {
			case 0:
				out[key] = rapid.SampledFrom([]any{int64(0), int64(1), "", "x", false, true, nil}).Draw(t, key)
			case 1:
				out[key] = rapid.SliceOfN(rapid.SampledFrom([]any{"x", "y"}), 0, 2).Draw(t, key)
			case 2:
				out[key] = fields(depth-1).Draw(t, key)
			default:
				list := []any{}
				for _, name := range rapid.Permutation([]string{"n", "m", "o"}).Draw(t, "names")[:rapid.IntRange(0, 3).Draw(t, "len")] {
					element := fields(depth-1).Draw(t, "element")
					element["name"] = name
					list = append(list, element)
				}
				out[key] = list
			}
		}
		return out
	})
}

// withForeign is a copy of value to which somebody added fields f1, f2 ... and
// elements of that name.
func withForeign(t *rapid.T, value any) any {
	switch value := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for _, key := range slices.Sorted(maps.Keys(value)) {
			out[key] = withForeign(t, value[key])
		}
		if rapid.Bool().Draw(t, "foreign field") {
			out["f1"] = "foreign"
		}
		return out
	case []any:
		out := []any{}
		named := len(value) > 0
		for _, element := range value {
			if _, ok := element.(map[string]any); !ok {
				named = false
			}
			out = append(out, withForeign(t, element))
		}
		if named && rapid.Bool().Draw(t, "foreign element") {
			out = append(out, map[string]any{"name": "f2", "f1": "foreign"})
		}
		return out
	default:
		return value
	}
}

// lost is where result lacks what is foreign in observed, in the places that
// desired keeps.
func lost(path string, observed, desired, result any) string {
	switch now := observed.(type) {
	case map[string]any:
		want, isWanted := desired.(map[string]any)
		got, _ := result.(map[string]any)
		if !isWanted {
			return ""
		}
		for key, value := range now {
			if strings.HasPrefix(key, "f") && !object.Equal(got[key], value) {
				return path + "." + key
			}
			if at := lost(path+"."+key, value, want[key], got[key]); at != "" {
				return at
			}
		}
	case []any:
		want, isWanted := desired.([]any)
		if !isWanted || !named(now) || !named(want) {
			return ""
		}
		for _, element := range now {
			name := element.(map[string]any)["name"].(string)
			got := find(result, name)
			if name == "f2" && got == nil {
				return path + "[f2]"
			}
			if at := lost(path+"["+name+"]", element, find(desired, name), got); at != "" {
				return at
			}
		}
	}
	return ""
}

func named(list []any) bool {
	for _, element := range list {
		if _, ok := element.(map[string]any); !ok {
			return false
		}
	}
	return true
}

func find(list any, name string) any {
	elements, _ := list.([]any)
	for _, element := range elements {
		if fields, ok := element.(map[string]any); ok && fields["name"] == name {
			return fields
		}
	}
	return nil
}

func TestMergeNeverLosesWhatIsForeign(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		last := whole(fields(2).Draw(t, "last"))
		desired := whole(fields(2).Draw(t, "desired"))
		observed := applied(t, withForeign(t, last).(map[string]any), last)
		got, err := merge.Merge(observed, desired)
		if err != nil {
			t.Fatal(err)
		}
		content := observed
		if got.Outcome != merge.Same {
			content = got.Content
		}
		// A list that has elements without a name in what was applied last has
		// no common key, and is replaced as a whole.
		if sameShape(last, desired) {
			if at := lost("", observed, desired, content); at != "" {
				t.Fatalf("%s was lost\nobserved %v\nlast     %v\ndesired  %v\nmerged   %v", at, observed, last, desired, content)
			}
		}
		if at := differs("", desired, content); at != "" {
			t.Fatalf("%s is not as desired\nobserved %v\nlast     %v\ndesired  %v\nmerged   %v", at, observed, last, desired, content)
		}
	})
}

// sameShape says whether lists are of the same sort wherever both have one.
func sameShape(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok {
			return true
		}
		for key := range a {
			if !sameShape(a[key], b[key]) {
				return false
			}
		}
	case []any:
		b, ok := b.([]any)
		if !ok {
			return true
		}
		if named(a) != named(b) {
			return false
		}
		for _, element := range a {
			if fields, ok := element.(map[string]any); ok && !sameShape(fields, find(b, fields["name"].(string))) {
				return false
			}
		}
	}
	return true
}

// differs is where content has not what desired asks for.
func differs(path string, desired, content any) string {
	switch want := desired.(type) {
	case map[string]any:
		got, ok := content.(map[string]any)
		if !ok {
			if content == nil && allEmpty(want) {
				return "" // the server leaves it out
			}
			return path
		}
		for key, value := range want {
			if at := differs(path+"."+key, value, got[key]); at != "" {
				return at
			}
		}
		return ""
	case []any:
		got, ok := content.([]any)
		if !ok && content == nil && len(want) == 0 {
			return ""
		}
		if !ok || len(got) < len(want) {
			return path
		}
		for i, element := range want {
			other := any(nil)
			if fields, ok := element.(map[string]any); ok {
				other = find(got, fields["name"].(string))
			} else {
				other = got[i]
			}
			if at := differs(path+"[]", element, other); at != "" {
				return at
			}
		}
		return ""
	case nil:
		return "" // it asks for nothing
	default:
		if content == nil && allEmpty(want) || object.Equal(want, content) {
			return ""
		}
		return path
	}
}

func allEmpty(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		for _, field := range value {
			if !allEmpty(field) {
				return false
			}
		}
		return true
	case []any:
		return len(value) == 0
	default:
		return value == nil || value == false || value == "" || value == int64(0)
	}
}

func TestMergeOfTheSameIsSame(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		desired := whole(fields(3).Draw(t, "desired"))
		observed := applied(t, withForeign(t, desired).(map[string]any), desired)
		got, err := merge.Merge(observed, desired)
		if err != nil || got.Outcome != merge.Same {
			t.Fatalf("outcome %d, %v\nobserved %v\ndesired %v\nmerged %v", got.Outcome, err, observed, desired, got.Content)
		}
	})
}

func TestMergeIsIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		observed := whole(fields(3).Draw(t, "observed"))
		if rapid.Bool().Draw(t, "annotated") {
			observed = applied(t, observed, whole(fields(3).Draw(t, "last")))
		}
		idempotent(t, observed, whole(fields(3).Draw(t, "desired")))
	})
}

func idempotent(t interface{ Fatalf(string, ...any) }, observed, desired map[string]any) {
	got, err := merge.Merge(observed, desired)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if got.Outcome == merge.Same {
		return
	}
	// As the API server would send it back.
	data, err := object.Encode(got.Content)
	if err != nil {
		t.Fatalf("%v", err)
	}
	stored, err := object.Decode(data)
	if err != nil {
		t.Fatalf("%v", err)
	}
	again, err := merge.Merge(stored.(map[string]any), desired)
	if err != nil || again.Outcome != merge.Same {
		t.Fatalf("a second merge: outcome %d, %v\nobserved %v\ndesired %v\nmerged %v\nthen %v", again.Outcome, err, observed, desired, got.Content, again.Content)
	}
}

// FuzzMerge merges any three documents: no panic, and the second merge has
// nothing to do.
func FuzzMerge(f *testing.F) {
	f.Add(`{"a":1}`, `{"a":1,"b":{"c":[1]}}`, `{"a":2}`)
	f.Add(`{"l":[{"name":"a"},{"name":"a","x":1}]}`, `{"l":[{"name":"a"}]}`, `{"l":[{"name":"b"},{"name":"a","x":0}]}`)
	f.Add(`{"ports":[{"port":53,"protocol":"TCP"},{"port":53,"protocol":"UDP"}]}`, `{"ports":[{"port":53}]}`, `{"ports":[{"port":53,"protocol":"UDP"}]}`)
	f.Add(`{"metadata":{"finalizers":["a","b"],"ownerReferences":[{"uid":"1"}]}}`, `{"metadata":{"finalizers":["a"]}}`, `{"metadata":{"ownerReferences":[{"uid":"2"}],"labels":null}}`)
	f.Add(`{"v":[{"metadata":{"name":"d"},"s":{"d":1}}]}`, `{"v":[{"metadata":{"name":"d"}}]}`, `{"v":[{"metadata":{"name":"d"},"s":{}}]}`)
	f.Add(`{"resources":{"limits":{"cpu":"1"}}}`, `{"resources":{"limits":{"cpu":1}}}`, `{"resources":{"limits":{"cpu":"1000m"}}}`)
	f.Fuzz(func(t *testing.T, observedText, lastText, desiredText string) {
		read := func(text string) map[string]any {
			value, err := object.Decode([]byte(text))
			fields, ok := value.(map[string]any)
			if err != nil || !ok {
				t.Skip()
			}
			return whole(fields)
		}
		observed, desired := read(observedText), read(desiredText)
		if lastText != "" {
			observed = applied(t, observed, read(lastText))
		}
		idempotent(t, observed, desired)
	})
}
