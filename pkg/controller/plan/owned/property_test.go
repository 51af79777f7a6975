package owned_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"
	"sigs.k8s.io/structured-merge-diff/v6/merge"
	"sigs.k8s.io/structured-merge-diff/v6/typed"

	planmerge "github.com/metacontroller-solo/solo/pkg/controller/plan/merge"
	"github.com/metacontroller-solo/solo/pkg/controller/plan/owned"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// schema has one field of each sort that a schema of the API server can have.
const schema = `types:
- name: thing
  map:
    fields:
    - {name: a, type: {scalar: untyped}}
    - {name: b, type: {scalar: untyped}}
    - {name: struct, type: {namedType: struct}}
    - name: labels
      type: {map: {elementType: {scalar: string}}}
    - name: whole
      type: {map: {elementType: {scalar: string}, elementRelationship: atomic}}
    - name: items
      type: {list: {elementRelationship: associative, keys: [name], elementType: {namedType: item}}}
    - name: ports
      type: {list: {elementRelationship: associative, keys: [port, protocol], elementType: {namedType: port}}}
    - name: set
      type: {list: {elementRelationship: associative, elementType: {scalar: string}}}
    - name: args
      type: {list: {elementRelationship: atomic, elementType: {scalar: string}}}
- name: struct
  map:
    fields:
    - {name: a, type: {scalar: untyped}}
    - {name: b, type: {scalar: untyped}}
    - {name: struct, type: {namedType: struct}}
- name: item
  map:
    fields:
    - {name: name, type: {scalar: string}}
    - {name: a, type: {scalar: untyped}}
    - {name: b, type: {scalar: untyped}}
    - {name: struct, type: {namedType: struct}}
- name: port
  map:
    fields:
    - {name: port, type: {scalar: numeric}}
    - {name: protocol, type: {scalar: string}, default: TCP}
    - {name: name, type: {scalar: string}}
`

const us, them = "us", "them"

// oneVersion converts nothing.
type oneVersion struct{}

func (oneVersion) Convert(o *typed.TypedValue, _ fieldpath.APIVersion) (*typed.TypedValue, error) {
	return o, nil
}
func (oneVersion) IsMissingVersionError(error) bool { return false }

// server merges as the API server does, with its own library.
type server struct {
	t       *rapid.T
	parser  *typed.Parser
	updater *merge.Updater
	live    *typed.TypedValue
	managed fieldpath.ManagedFields
}

func newServer(t *rapid.T) *server {
	parser, err := typed.NewParser(schema)
	if err != nil {
		t.Fatal(err)
	}
	s := &server{t: t, parser: parser, updater: (&merge.UpdaterBuilder{Converter: oneVersion{}, ReturnInputOnNoop: true}).BuildUpdater(), managed: fieldpath.ManagedFields{}}
	s.live = s.typed(map[string]any{})
	return s
}

func (s *server) typed(content map[string]any) *typed.TypedValue {
	value, err := s.parser.Type("thing").FromUnstructured(content)
	if err != nil {
		s.t.Fatalf("%v: %v", content, err)
	}
	return value
}

func (s *server) apply(desired map[string]any) {
	live, managed, err := s.updater.Apply(s.live, s.typed(desired), "v1", s.managed.Copy(), us, true)
	if err != nil {
		s.t.Fatalf("%v: %v", desired, err)
	}
	s.live, s.managed = live, managed
}

func (s *server) update(content map[string]any) {
	live, managed, err := s.updater.Update(s.live, s.typed(content), "v1", s.managed.Copy(), them)
	if err != nil {
		s.t.Fatalf("%v: %v", content, err)
	}
	s.live, s.managed = live, managed
}

func (s *server) content() map[string]any {
	content, _ := s.live.AsValue().Unstructured().(map[string]any)
	if content == nil {
		content = map[string]any{}
	}
	return content
}

func (s *server) fields() string {
	set := s.managed[us]
	if set == nil {
		return ""
	}
	text, err := set.Set().ToJSON()
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// thing draws a desired state.
func thing(t *rapid.T, what string) map[string]any {
	has := func(name string) bool { return rapid.Bool().Draw(t, what+" has "+name) }
	scalar := func(name string) any {
		return rapid.SampledFrom([]any{int64(0), int64(1), "", "x", false, true}).Draw(t, what+" "+name)
	}
	texts := func(name string) []string {
		return rapid.Permutation([]string{"x", "y", "z"}).Draw(t, what+" "+name)[:rapid.IntRange(0, 3).Draw(t, what+" length of "+name)]
	}
	var structure func(name string, depth int) map[string]any
	structure = func(name string, depth int) map[string]any {
		out := map[string]any{}
		for _, field := range []string{"a", "b"} {
			if has(name + "." + field) {
				out[field] = scalar(name + "." + field)
			}
		}
		if depth > 0 && has(name+".struct") {
			out["struct"] = structure(name+".struct", depth-1)
		}
		return out
	}
	out := structure("thing", 2)
	for _, name := range []string{"labels", "whole"} {
		if has(name) {
			fields := map[string]any{}
			for _, key := range texts(name) {
				fields[key] = rapid.SampledFrom([]any{"", "1"}).Draw(t, what+" "+name+" "+key)
			}
			out[name] = fields
		}
	}
	for _, name := range []string{"set", "args"} {
		if has(name) {
			list := []any{}
			for _, text := range texts(name) {
				list = append(list, text)
			}
			out[name] = list
		}
	}
	if has("items") {
		list := []any{}
		for _, name := range texts("items") {
			item := structure("items."+name, 1)
			item["name"] = name
			list = append(list, item)
		}
		out["items"] = list
	}
	if has("ports") {
		list := []any{}
		for _, text := range texts("ports") {
			switch text {
			case "x":
				list = append(list, map[string]any{"port": int64(53)})
			case "y":
				list = append(list, map[string]any{"port": int64(53), "protocol": "UDP"})
			default:
				list = append(list, map[string]any{"port": int64(80), "protocol": "TCP", "name": "web"})
			}
		}
		out["ports"] = list
	}
	return out
}

// TestCompareAgreesWithTheServer: what is said to be the same, an apply does not
// change, neither the object nor who owns it; and after an apply it is the same.
// In between somebody else changes what he likes.
func TestCompareAgreesWithTheServer(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newServer(t)
		for range rapid.IntRange(1, 4).Draw(t, "rounds") {
			if rapid.Bool().Draw(t, "somebody writes") {
				s.update(thing(t, "theirs"))
			}
			desired := thing(t, "desired")
			before, fields := s.content(), s.fields()
			verdict := owned.Compare(before, desired, fields)
			s.apply(desired)
			changed := !object.Equal(tidy(before), tidy(s.content()))
			switch {
			case verdict == owned.Same && (changed || fields != s.fields() && !emptyList(desired)):
				t.Fatalf("said the same\nobserved %v\ndesired  %v\nfields   %s\nthen     %v\nfields   %s", before, desired, fields, s.content(), s.fields())
			case verdict == owned.Unowned && !object.Equal(tidy(before), tidy(s.content())):
				t.Fatalf("said that only owners differ\nobserved %v\ndesired  %v\nfields   %s\nthen     %v", before, desired, fields, s.content())
			}
			if got := owned.Compare(s.content(), desired, s.fields()); got != owned.Same && !undecided(s.content(), desired) {
				t.Fatalf("after an apply: verdict %d\nobserved %v\ndesired  %v\nfields   %s", got, s.content(), desired, s.fields())
			}
		}
	})
}

// tidy is value without what is empty, and with lists of objects in a certain
// order: that an apply adds something empty, or gives elements that are told apart
// by a key the desired order, is no change.
func tidy(value any) any {
	switch value := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, field := range value {
			if field = tidy(field); !planmerge.Empty(field) {
				out[key] = field
			}
		}
		return out
	case []any:
		out := slices.Clone(value)
		if slices.ContainsFunc(out, func(element any) bool { _, ok := element.(map[string]any); return !ok }) {
			return out
		}
		for i := range out {
			out[i] = tidy(out[i])
		}
		slices.SortFunc(out, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
		return out
	default:
		return value
	}
}

// emptyList says whether an empty list is desired somewhere: that of texts can be
// owned, and that of elements with owners cannot, so nobody asks who owns it.
func emptyList(value any) bool {
	switch value := value.(type) {
	case map[string]any:
		for _, field := range value {
			if emptyList(field) {
				return true
			}
		}
	case []any:
		return len(value) == 0
	}
	return false
}

// undecided says whether an empty object or list is desired in which somebody else
// has something: it may be one that is owned as a whole, or not at all.
func undecided(observed, desired any) bool {
	switch want := desired.(type) {
	case map[string]any:
		now, _ := observed.(map[string]any)
		if len(want) == 0 {
			return len(now) > 0
		}
		for key := range want {
			if undecided(now[key], want[key]) {
				return true
			}
		}
	case []any:
		now, _ := observed.([]any)
		if len(want) == 0 {
			return len(now) > 0
		}
		for _, element := range want {
			fields, ok := element.(map[string]any)
			if !ok || fields["name"] == nil {
				continue
			}
			for _, other := range now {
				if seen, ok := other.(map[string]any); ok && seen["name"] == fields["name"] && undecided(seen, fields) {
					return true
				}
			}
		}
	}
	return false
}

// FuzzCompare compares any documents: no panic, and a verdict.
func FuzzCompare(f *testing.F) {
	f.Add(`{"a":1}`, `{"a":1}`, `{"f:a":{}}`)
	f.Add(`{"l":[{"port":53,"protocol":"UDP"}]}`, `{"l":[{"port":53},null]}`, `{"f:l":{"k:{\"port\":53,\"protocol\":\"TCP\"}":{".":{}},"v:1":{},"i:7":{}}}`)
	f.Add(`{"metadata":{"name":"a","labels":{"b":"c"}}}`, `{"metadata":null}`, `{"f:metadata":{"f:labels":{"f:b":{}},"f:name":{}}}`)
	f.Add(`{"tolerations":[1]}`, `{"tolerations":[]}`, `{"f:tolerations":{".":{},"i:-1":{}}}`)
	f.Fuzz(func(t *testing.T, observedText, desiredText, fields string) {
		read := func(text string) map[string]any {
			value, err := object.Decode([]byte(text))
			content, ok := value.(map[string]any)
			if err != nil || !ok {
				t.Skip()
			}
			return content
		}
		observed, desired := read(observedText), owned.WithoutNulls(read(desiredText))
		if got := owned.Compare(observed, desired, fields); got < owned.Same || got > owned.Differs {
			t.Fatalf("verdict %d", got)
		}
		if got := owned.Compare(observed, owned.WithoutNulls(observed), ""); got == owned.Differs {
			t.Fatalf("an object differs from itself: %v", observed)
		}
		managed := []metav1.ManagedFieldsEntry{
			{Manager: us, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsV1: metav1.NewFieldsV1(fields)},
		}
		if _, err := owned.HandOver(managed, desired, us, us); err != nil {
			t.Fatal(err)
		}
	})
}
