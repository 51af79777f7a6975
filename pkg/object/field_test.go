package object_test

import (
	"maps"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// One field, read or set on its own, is what it is in the whole content.
func TestFieldsAreThoseOfTheContent(t *testing.T) {
	value := rapid.SampledFrom([]string{`null`, `{}`, `{"a":[1,2.5,"é\n"]}`, `"x"`, `7`, `{"status":1}`})
	rapid.Check(t, func(rt *rapid.T) {
		space := rapid.SampledFrom([]string{"", " ", "\n "}).Draw(rt, "space")
		text := "{" + space + `"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","status":"no","annotations":{"x":"y"}}`
		for _, name := range rapid.SliceOfN(rapid.SampledFrom([]string{"spec", "status", "data", `st\u0061tus`}), 0, 3).Draw(rt, "fields") {
			text += space + "," + space + `"` + name + `"` + space + ":" + space + value.Draw(rt, "value")
		}
		o, err := object.FromJSON([]byte(text + space + "}" + space))
		if err != nil {
			rt.Fatal(err)
		}
		for _, name := range []string{"status", "spec", "none"} {
			if diff := cmp.Diff(o.Content()[name], o.Field(name)); diff != "" {
				rt.Fatalf("%s of %s: %s", name, o.Body(), diff)
			}
			set := value.Draw(rt, "set")
			changed, err := o.WithField(name, []byte(set))
			if err != nil {
				rt.Fatal(err)
			}
			want := maps.Clone(o.Content())
			if want[name], err = object.Decode([]byte(set)); err != nil {
				rt.Fatal(err)
			}
			if diff := cmp.Diff(want, changed.Content()); diff != "" {
				rt.Fatalf("%s with %s %s: %s", o.Body(), name, set, diff)
			}
			if diff := cmp.Diff(metadataOf(o), metadataOf(changed)); diff != "" {
				rt.Fatal(diff)
			}
		}
	})
}
