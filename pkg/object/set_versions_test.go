package object_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/metacontroller-solo/solo/pkg/object"
)

func TestSetOf(t *testing.T) {
	kind := func(version string) object.Kind {
		return object.Kind{GroupVersionKind: schema.GroupVersionKind{Group: "demo", Version: version, Kind: "Thing"}, Resource: "things", Namespaced: true}
	}
	made := func(version, name string) *object.Object {
		o, err := object.FromJSON(fmt.Appendf(nil, `{"apiVersion":"demo/%s","kind":"Thing","metadata":{"name":%q,"namespace":"n"}}`, version, name))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	first := []*object.Object{made("v1", "b"), made("v1", "a")}
	last := made("v1", "b")
	set := object.SetOf(
		object.Group{Kind: kind("v2"), Objects: []*object.Object{made("v2", "c")}},
		object.Group{Kind: kind("v1"), Objects: first},
		object.Group{Kind: kind("v3")},
		object.Group{Kind: kind("v1"), Objects: []*object.Object{last}},
	)
	groups := set.Groups()
	if len(groups) != 3 || groups[0].Kind != kind("v1") || groups[1].Kind != kind("v2") || groups[2].Kind != kind("v3") || len(groups[2].Objects) != 0 {
		t.Fatalf("groups are %v", groups)
	}
	if got := groups[0].Objects; len(got) != 2 || got[0].Name() != "a" || got[1] != last {
		t.Errorf("objects are %v", got)
	}
	if first[0].Name() != "b" {
		t.Error("the argument was changed")
	}
	if set.Get(last.Key()) != last || set.Len() != 3 {
		t.Errorf("the set has %d objects, and %v", set.Len(), set.Get(last.Key()))
	}
}

func TestRequiredLabel(t *testing.T) {
	cases := []struct {
		selector, label string
		values          int
	}{
		{"", "", 0}, {"a", "", 0}, {"!a", "", 0}, {"a!=x", "", 0}, {"a notin (x)", "", 0},
		{"a=x", "a", 1}, {"a==x", "a", 1}, {"a in (x)", "a", 1}, {"a in (x,y)", "a", 2},
		{"a in (x,y),b=z", "b", 1}, {"a!=x,b=z", "b", 1},
	}
	for _, c := range cases {
		selector, err := labels.Parse(c.selector)
		if err != nil {
			t.Fatal(err)
		}
		if label, values := object.RequiredLabel(selector); label != c.label || len(values) != c.values {
			t.Errorf("%q: %q %q", c.selector, label, values)
		}
	}
	if _, values := object.RequiredLabel(labels.Nothing()); values != nil {
		t.Errorf("nothing asks for %q", values)
	}
}
