package change_test

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/controller/decorator/change"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/hook/wire"
	"github.com/metacontroller-solo/solo/pkg/object"
)

type fataler interface{ Fatal(...any) }

func parse(t fataler, text string) *object.Object {
	o, err := object.FromJSON([]byte(text))
	if err != nil {
		t.Fatal(err, text)
	}
	return o
}

// texts are changes of labels or annotations; "-" stands for null.
func texts(pairs ...string) map[string]*string {
	out := map[string]*string{}
	for i := 0; i < len(pairs); i += 2 {
		out[pairs[i]] = &pairs[i+1]
		if pairs[i+1] == "-" {
			out[pairs[i]] = nil
		}
	}
	return out
}

func status(text string) hook.Status {
	return hook.Status{Presence: hook.Given, JSON: []byte(text)}
}

const body = `{"apiVersion":"demo/v1","kind":"Thing","metadata":{"name":"a","namespace":"ns","uid":"u","resourceVersion":"5",` +
	`"labels":{"a":"1","b":"2"},"annotations":{"c":"3","metacontroller.k8s.io/last-applied-configuration":"{}"},"finalizers":["x"]},"spec":{"n":1},"status":{"ready":1,"inner":{"p":1,"q":[1,{"z":null}]}}}`

// TestRequests is what differs and which requests that makes.
func TestRequests(t *testing.T) {
	finalizers := []string{"x"}
	type object = map[string]any
	cases := []struct {
		reason     string
		place      change.Place
		answer     hook.Response
		finalizers []string
		// status is what is put by the subresource, patch what is patched.
		status, patch object
		homeless      bool
	}{
		{reason: "nothing", place: change.Subresource},
		{reason: "null", place: change.Subresource, answer: hook.Response{Status: hook.Status{Presence: hook.Null}}},
		{reason: "an echo", place: change.Subresource, answer: hook.Response{
			Labels: texts("a", "1", "b", "2"), Annotations: texts("c", "3", "metacontroller.k8s.io/last-applied-configuration", "{}"),
			Status: status(`{"inner":{"q":[1.0,{}],"p":1},"ready":1,"none":null}`),
		}},
		{reason: "null of what is not there", place: change.Subresource, answer: hook.Response{Labels: texts("n", "-"), Annotations: texts("not even a name !", "-")}},
		{
			reason: "labels", place: change.Subresource, answer: hook.Response{Labels: texts("a", "x", "b", "-", "new", "")},
			patch: object{"metadata": object{"labels": object{"a": "x", "b": nil, "new": ""}}},
		},
		{
			reason: "annotations", place: change.Nowhere, answer: hook.Response{Annotations: texts("c", "-", "New/a", "any {thing}\n")},
			patch: object{"metadata": object{"annotations": object{"c": nil, "New/a": "any {thing}\n"}}},
		},
		{
			reason: "finalizer alone", place: change.Subresource, finalizers: finalizers,
			patch: object{"metadata": object{"finalizers": []any{"x"}}},
		},
		{
			reason: "labels and the last finalizer are one request", place: change.Subresource, finalizers: []string{}, answer: hook.Response{Labels: texts("a", "-")},
			patch: object{"metadata": object{"labels": object{"a": nil}, "finalizers": []any{}}},
		},
		{
			reason: "status alone", place: change.Subresource, answer: hook.Response{Status: status(`{"ready":2}`)},
			status: object{"ready": int64(2)},
		},
		{
			reason: "status and labels, with a subresource", place: change.Subresource, answer: hook.Response{Labels: texts("a", "x"), Status: status(`{"ready":2}`)},
			status: object{"ready": int64(2)}, patch: object{"metadata": object{"labels": object{"a": "x"}}},
		},
		{
			reason: "status and labels, without", place: change.Field, answer: hook.Response{Labels: texts("a", "x"), Status: status(`{"ready":2,"new":{"a":null}}`)},
			patch: object{"metadata": object{"labels": object{"a": "x"}}, "status": object{"ready": int64(2), "inner": nil, "new": object{}}},
		},
		{
			reason: "emptied status", place: change.Field, answer: hook.Response{Status: status(`{}`)},
			patch: object{"status": object{"ready": nil, "inner": nil}},
		},
		{reason: "status of a kind without one", place: change.Nowhere, answer: hook.Response{Labels: texts("a", "x"), Status: status(`{"ready":2}`)},
			patch: object{"metadata": object{"labels": object{"a": "x"}}}, homeless: true},
	}
	for _, c := range cases {
		got, err := change.Of(c.place, parse(t, body), &c.answer)
		if err != nil {
			t.Errorf("%s: %v", c.reason, err)
			continue
		}
		patch := got.Patch(c.finalizers)
		if diff := cmp.Diff(decoded(t, c.patch), decoded(t, patch)); diff != "" || (patch == nil) != (c.patch == nil) {
			t.Errorf("%s: patch (-want +got):\n%s", c.reason, diff)
		}
		if diff := cmp.Diff(c.status, got.Status); diff != "" {
			t.Errorf("%s: status (-want +got):\n%s", c.reason, diff)
		}
		if got.Homeless != c.homeless {
			t.Errorf("%s: homeless is %v", c.reason, got.Homeless)
		}
	}
	bare := parse(t, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`)
	got, err := change.Of(change.Nowhere, bare, &hook.Response{Status: status(`{}`)})
	if err != nil || got.Homeless || got.Patch(nil) != nil {
		t.Errorf("an empty status of a kind without one: %+v, %v", got, err)
	}
}

func decoded(t fataler, value map[string]any) any {
	data, err := object.Encode(value)
	if err != nil {
		t.Fatal(err)
	}
	out, err := object.Decode(data)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestWrongChangesAreRefused(t *testing.T) {
	cases := []struct {
		reason string
		answer hook.Response
		path   string
	}{
		{"value of a label", hook.Response{Labels: texts("a", "no label")}, "labels[a]"},
		{"long value of a label", hook.Response{Labels: texts("a", strings.Repeat("x", 64))}, "labels[a]"},
		{"key of a label", hook.Response{Labels: texts("no key", "x")}, "labels[no key]"},
		{"empty key", hook.Response{Labels: texts("", "x")}, "labels[]"},
		{"key of an annotation", hook.Response{Annotations: texts("a/b/c", "x")}, "annotations[a/b/c]"},
		{"too many annotations", hook.Response{Annotations: texts("a", strings.Repeat("x", 256<<10))}, "annotations"},
		{"memory of another controller", hook.Response{Annotations: texts("metacontroller.k8s.io/last-applied-configuration", "-")}, "annotations[metacontroller.k8s.io/last-applied-configuration]"},
		{"mark of a decorator", hook.Response{Annotations: texts("metacontroller.k8s.io/decorator-controller", "x")}, "annotations[metacontroller.k8s.io/decorator-controller]"},
		{"status is a list", hook.Response{Status: status(`[]`)}, "status"},
		{"status is no JSON", hook.Response{Status: status(`{`)}, "status"},
	}
	for _, c := range cases {
		got, err := change.Of(change.Subresource, parse(t, body), &c.answer)
		var wrong *object.FieldError
		if !errors.As(err, &wrong) || wrong.Path != c.path || len(wrong.Problem) > 1000 {
			t.Errorf("%s: %+v, %v", c.reason, got, err)
		}
	}
	// What is wrong and does not change anything was there before.
	strange := parse(t, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"a":"no label"}}}`)
	if _, err := change.Of(change.Subresource, strange, &hook.Response{Labels: texts("a", "no label")}); err != nil {
		t.Error(err)
	}
}

func value(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		most := 4
		if depth == 0 {
			most = 2
		}
		switch rapid.IntRange(0, most).Draw(t, "type") {
		case 0:
			return nil
		case 1:
			return rapid.SampledFrom([]any{int64(0), int64(9007199254740993), 1.5, true, false}).Draw(t, "scalar")
		case 2:
			return rapid.SampledFrom([]any{"", "x", "y"}).Draw(t, "text")
		case 3:
			return rapid.SliceOfN(value(depth-1), 0, 3).Draw(t, "list")
		default:
			return fields(depth-1).Draw(t, "object")
		}
	})
}

func fields(depth int) *rapid.Generator[map[string]any] {
	return rapid.Custom(func(t *rapid.T) map[string]any {
		return rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c"}), value(depth), 0, 3).Draw(t, "fields")
	})
}

func someTexts(label string, t *rapid.T, keys ...string) map[string]*string {
	out := map[string]*string{}
	for _, key := range keys {
		switch rapid.IntRange(0, 3).Draw(t, label+" "+key) {
		case 0:
			out[key] = nil
		case 1, 2:
			text := rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, label+" value")
			out[key] = &text
		}
	}
	return out
}

// TestChangesSettle is the promise of a quiet decorator: once the changes are
// made, the same answer changes nothing, and nothing but what the answer speaks
// of is another than before.
func TestChangesSettle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		place := rapid.SampledFrom([]change.Place{change.Subresource, change.Field, change.Nowhere}).Draw(t, "place")
		content := parse(t, body).Content()
		if place == change.Nowhere {
			delete(content, "status")
		} else {
			content["status"] = fields(2).Draw(t, "status")
		}
		parent, err := object.FromContent(content)
		if err != nil {
			t.Fatal(err)
		}
		answer := hook.Response{Labels: someTexts("label", t, "a", "b", "n"), Annotations: someTexts("annotation", t, "c", "n")}
		wanted := fields(2).Draw(t, "wanted")
		if rapid.Bool().Draw(t, "has a status") {
			data, err := object.Encode(wanted)
			if err != nil {
				t.Fatal(err)
			}
			answer.Status = hook.Status{Presence: hook.Given, JSON: data}
		}
		before := maps.Clone(answer.Labels)
		c, err := change.Of(place, parent, &answer)
		if err != nil {
			t.Fatal(err)
		}
		after := made(t, parent, c)
		again, err := change.Of(place, after, &answer)
		if err != nil || again.Status != nil || again.Patch(nil) != nil || again.Homeless != c.Homeless {
			t.Fatalf("%s became %s, and still there is %+v, %v", parent.Body(), after.Body(), again, err)
		}
		if answer.Status.Presence == hook.Given && place != change.Nowhere && !object.Equal(emptied(after.Content()["status"]), emptied(wanted)) {
			t.Fatalf("status %v became %v, not %v", content["status"], after.Content()["status"], wanted)
		}
		if answer.Status.Presence != hook.Given && !object.Equal(after.Content()["status"], content["status"]) {
			t.Fatal("status changed without being asked for")
		}
		for key, text := range before {
			if value, has := after.Labels()[key]; has != (text != nil) || has && value != *text {
				t.Fatalf("label %q is %q", key, value)
			}
		}
		one, other := parent.Content(), after.Content()
		for _, o := range []map[string]any{one, other} {
			delete(o, "status")
			delete(o["metadata"].(map[string]any), "labels")
			delete(o["metadata"].(map[string]any), "annotations")
		}
		if !object.Equal(one, other) {
			t.Fatalf("%s became %s", parent.Body(), after.Body())
		}
		if got, _ := after.Annotation(object.LastAppliedAnnotation); got != "{}" {
			t.Fatal("an annotation of others is gone")
		}
	})
}

// emptied makes no difference between no status and an empty one.
func emptied(value any) any {
	if value == nil {
		return map[string]any{}
	}
	return value
}

// made is the parent after the requests of a change, by another's understanding
// of merge patches.
func made(t fataler, parent *object.Object, c change.Change) *object.Object {
	content := parent.Content()
	if c.Status != nil {
		content["status"] = c.Status
	}
	data, err := object.Encode(content)
	if err != nil {
		t.Fatal(err)
	}
	if patch := c.Patch(nil); patch != nil {
		encoded, err := object.Encode(patch)
		if err != nil {
			t.Fatal(err)
		}
		if data, err = jsonpatch.MergePatch(data, encoded); err != nil {
			t.Fatal(err)
		}
	}
	return parse(t, string(data))
}

// FuzzAnswers has any answer at all: it is refused, or what it asks for is made
// and then is so.
func FuzzAnswers(f *testing.F) {
	f.Add(`{"labels":{"a":null,"n":"x"},"annotations":{"c":"y"},"status":{"ready":2,"inner":{"p":null}},"attachments":[]}`)
	f.Add(`{"labels":{"a":"no label","/":"","":""},"attachments":null}`)
	f.Add(`{"status":{"inner":[1,null,{"a":null}],"ready":1e400,"":{"":{}}}}`)
	f.Add(`{"annotations":{"metacontroller.k8s.io/decorator-controller":null},"status":[]}`)
	f.Fuzz(func(t *testing.T, text string) {
		parent := parse(t, body)
		request := &hook.Request{Flavor: hook.Decorator, Call: hook.Sync, Parent: parent}
		answer, _, err := wire.Codec{}.DecodeResponse(request, []byte(text))
		if err != nil {
			return
		}
		for _, place := range []change.Place{change.Subresource, change.Field, change.Nowhere} {
			c, err := change.Of(place, parent, answer)
			if err != nil {
				continue
			}
			after := made(t, parent, c)
			if again, err := change.Of(place, after, answer); err != nil || again.Status != nil || again.Patch(nil) != nil {
				t.Fatalf("%s became %s, and still there is %+v, %v", parent.Body(), after.Body(), again, err)
			}
		}
	})
}
