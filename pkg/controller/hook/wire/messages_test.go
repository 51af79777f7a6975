package wire

import (
	"strings"
	"testing"

	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Whoever wrote the hook is told where the answer is wrong and what was expected,
// in words of JSON.
func TestMessages(t *testing.T) {
	child := func(body string) string { return `{"children":[{"apiVersion":"v1","kind":"A",` + body + `}]}` }
	cases := []struct{ answer, want string }{
		{`{"children":[{"kind":"A","metadata":{"name":"x"}}]}`, "children[0].apiVersion is missing"},
		{`{"children":[{"apiVersion":"a/b/c","kind":"A","metadata":{"name":"x"}}]}`, "children[0].apiVersion must be group/version"},
		{`{"children":[{"apiVersion":"v1","kind":5,"metadata":{"name":"x"}}]}`, "children[0].kind must be a string"},
		{child(`"metadata":{}`), "children[0].metadata.name is missing"},
		{child(`"metadata":{"generateName":"x"}`), "children[0].metadata.name is missing"},
		{child(`"metadata":[]`), "children[0].metadata must be an object"},
		{child(`"metadata":{"name":"x","labels":{"a":1}}`), "children[0].metadata.labels[a] must be a string"},
		{`{"children":{"apiVersion":"v1","kind":"List","items":[]}}`, "children must be a list, not an object"},
		{`{"children":[[]]}`, "children[0] must be an object, not a list"},
		{`{"children":[],"status":"ok"}`, "status must be an object, not a string"},
		{`{"children":[],"resyncAfterSeconds":"5"}`, "resyncAfterSeconds must be a number of seconds, not a string"},
		{`{"children":[}`, "children[0] is no valid JSON: invalid character '}' at start of value, at line 1, byte 14"},
		{"{\n  \"children\": [],\n  \"status\": {a: 1}\n}", "at line 3, byte 14"},
		{`{"children":`, "children is no valid JSON: it ends too early, after 12 bytes"},
		{"<html>", "the answer is no valid JSON: invalid character '<' at start of value, at line 1, byte 1"},
	}
	request := &hook.Request{Flavor: hook.Composite, Call: hook.Sync, Children: object.NewSet(nil)}
	check := func(answer, want string, err error) {
		t.Helper()
		switch {
		case err == nil || !strings.Contains(err.Error(), want):
			t.Errorf("%s: %v does not say %q", answer, err, want)
		case strings.Contains(err.Error(), "Go "), strings.Contains(err.Error(), "unmarshal"), strings.Contains(err.Error(), "v1."):
			t.Errorf("%s: it speaks of Go: %v", answer, err)
		}
	}
	for _, c := range cases {
		_, _, err := Codec{}.DecodeResponse(request, []byte(c.answer))
		check(c.answer, c.want, err)
	}
	for _, c := range []struct{ rule, want string }{
		{`"names":"a"`, "relatedResources[0].names must be a list, not a string"},
		{`"namespace":{}`, "relatedResources[0].namespace must be a string, not an object"},
		{`"labelSelector":[]`, "relatedResources[0].labelSelector must be an object, not a list"},
		{`"labelSelector":{"matchLabels":{"a":1}}`, "relatedResources[0].labelSelector.matchLabels must be a string, not a number"},
	} {
		answer := `{"relatedResources":[{"apiVersion":"v1","resource":"x",` + c.rule + `}]}`
		_, _, err := Codec{}.DecodeCustomize([]byte(answer))
		check(answer, c.want, err)
	}
	_, _, err := Codec{}.DecodeCustomize([]byte(`{"relatedResources":[{"apiVersion":"v1","resource":5}]}`))
	check("a number for resource", "relatedResources[0].resource must be a string, not a number", err)
}
