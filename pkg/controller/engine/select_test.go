package engine

import (
	"encoding/json"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
)

func expression(key string, operator metav1.LabelSelectorOperator, values ...string) *v1alpha1.AnnotationSelector {
	return &v1alpha1.AnnotationSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: key, Operator: operator, Values: values}}}
}

func TestAnnotationsSelect(t *testing.T) {
	const free = "not a label: {\"a\": 1}, ü, and longer than the sixty-three bytes that a label may have"
	cases := []struct {
		reason, annotations string
		selector            *v1alpha1.AnnotationSelector
		want                bool
	}{
		{"no selector", `{}`, nil, true},
		{"an empty one", `{}`, &v1alpha1.AnnotationSelector{}, true},
		{"equal", `{"a":"b"}`, &v1alpha1.AnnotationSelector{MatchAnnotations: map[string]string{"a": "b"}}, true},
		{"different", `{"a":"c"}`, &v1alpha1.AnnotationSelector{MatchAnnotations: map[string]string{"a": "b"}}, false},
		{"empty value is not absent", `{}`, &v1alpha1.AnnotationSelector{MatchAnnotations: map[string]string{"a": ""}}, false},
		{"one of two", `{"a":"b"}`, &v1alpha1.AnnotationSelector{MatchAnnotations: map[string]string{"a": "b", "c": "d"}}, false},
		{"in", `{"a":"b"}`, expression("a", metav1.LabelSelectorOpIn, "x", "b"), true},
		{"not one of", `{"a":"b"}`, expression("a", metav1.LabelSelectorOpIn, "x"), false},
		{"in, absent", `{}`, expression("a", metav1.LabelSelectorOpIn, "x", ""), false},
		{"not in", `{"a":"b"}`, expression("a", metav1.LabelSelectorOpNotIn, "x"), true},
		{"not in, absent", `{}`, expression("a", metav1.LabelSelectorOpNotIn, "x"), true},
		{"not in, but is", `{"a":"x"}`, expression("a", metav1.LabelSelectorOpNotIn, "x"), false},
		{"exists", `{"a":""}`, expression("a", metav1.LabelSelectorOpExists), true},
		{"exists not", `{}`, expression("a", metav1.LabelSelectorOpExists), false},
		{"does not exist", `{}`, expression("a", metav1.LabelSelectorOpDoesNotExist), true},
		{"does not exist, but does", `{"a":""}`, expression("a", metav1.LabelSelectorOpDoesNotExist), false},
		{"unknown operator selects nothing", `{"a":"b"}`, expression("a", "Like", "b"), false},
	}
	for _, c := range cases {
		parent := &Parent{Selector: labels.Everything(), Annotations: c.selector}
		if got := parent.Selects(build(t, thing, `,"annotations":`+c.annotations, "")); got != c.want {
			t.Errorf("%s: %v", c.reason, got)
		}
	}
	value, err := json.Marshal(free)
	if err != nil {
		t.Fatal(err)
	}
	o := build(t, thing, `,"annotations":{"a":`+string(value)+`}`, "")
	for _, selector := range []*v1alpha1.AnnotationSelector{
		{MatchAnnotations: map[string]string{"a": free}}, expression("a", metav1.LabelSelectorOpIn, free),
	} {
		if parent := (&Parent{Selector: labels.Everything(), Annotations: selector}); !parent.Selects(o) {
			t.Errorf("a value that no label may have is not found by %v", selector)
		}
	}
}

// Where annotations are such as labels may be, they select as labels do.
func TestAnnotationsSelectAsLabelsDo(t *testing.T) {
	key, value := rapid.SampledFrom([]string{"a", "b"}), rapid.SampledFrom([]string{"", "x", "y"})
	rapid.Check(t, func(rt *rapid.T) {
		declared := v1alpha1.AnnotationSelector{MatchAnnotations: rapid.MapOfN(key, value, 0, 2).Draw(rt, "match")}
		for range rapid.IntRange(0, 3).Draw(rt, "expressions") {
			e := metav1.LabelSelectorRequirement{Key: key.Draw(rt, "key"), Operator: rapid.SampledFrom([]metav1.LabelSelectorOperator{
				metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn, metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist,
			}).Draw(rt, "operator")}
			if e.Operator == metav1.LabelSelectorOpIn || e.Operator == metav1.LabelSelectorOpNotIn {
				e.Values = rapid.SliceOfN(value, 1, 3).Draw(rt, "values")
			}
			declared.MatchExpressions = append(declared.MatchExpressions, e)
		}
		selector, err := metav1.LabelSelectorAsSelector(&metav1.LabelSelector{MatchLabels: declared.MatchAnnotations, MatchExpressions: declared.MatchExpressions})
		if err != nil {
			rt.Fatal(err)
		}
		has := rapid.MapOfN(key, value, 0, 2).Draw(rt, "annotations")
		encoded, err := json.Marshal(has)
		if err != nil {
			rt.Fatal(err)
		}
		parent := &Parent{Selector: labels.Everything(), Annotations: &declared}
		if got, want := parent.Selects(build(t, thing, `,"annotations":`+string(encoded), "")), selector.Matches(labels.Set(has)); got != want {
			rt.Fatalf("%v selects %v: %v", declared, has, got)
		}
	})
}

func TestRulesOfOneKindAreAlternatives(t *testing.T) {
	app := func(value string) labels.Selector { return labels.SelectorFromSet(labels.Set{"app": value}) }
	parent := &Parent{
		Selector: app("x"), IgnoreStatusChanges: true,
		Or: []Rule{{Selector: app("y")}, {Selector: app("z"), Annotations: expression("a", metav1.LabelSelectorOpExists), IgnoreStatusChanges: true}},
	}
	cases := []struct {
		reason, metadata string
		selects, ignores bool
	}{
		{"the first", `,"labels":{"app":"x"}`, true, true},
		{"the second", `,"labels":{"app":"y"}`, true, false},
		{"half of the third", `,"labels":{"app":"z"}`, false, false},
		{"the third", `,"labels":{"app":"z"},"annotations":{"a":""}`, true, true},
		{"none", ``, false, false},
	}
	for _, c := range cases {
		o := build(t, thing, c.metadata, "")
		if parent.Selects(o) != c.selects || parent.ignoresStatus(o) != c.ignores {
			t.Errorf("%s: selects %v, ignores status changes %v", c.reason, parent.Selects(o), parent.ignoresStatus(o))
		}
	}
}

func TestMarkTellsControllersApart(t *testing.T) {
	composite, mine, other := &Definition{}, &Definition{Mark: "mine"}, &Definition{Mark: "other"}
	cases := []struct {
		reason, metadata       string
		composite, mine, other bool
	}{
		{"no annotations", ``, true, false, false},
		{"other annotations", `,"annotations":{"a":"b"}`, true, false, false},
		{"mark", `,"annotations":{"metacontroller.k8s.io/decorator-controller":"mine"}`, false, true, false},
		{"mark of another", `,"annotations":{"metacontroller.k8s.io/decorator-controller":"other"}`, false, false, true},
		{"empty mark", `,"annotations":{"metacontroller.k8s.io/decorator-controller":""}`, false, false, false},
	}
	for _, c := range cases {
		o := build(t, config, c.metadata, "")
		if composite.Marked(o) != c.composite || mine.Marked(o) != c.mine || other.Marked(o) != c.other {
			t.Errorf("%s: %v %v %v", c.reason, composite.Marked(o), mine.Marked(o), other.Marked(o))
		}
	}
}
