package decorator

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/labels"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/decorator/change"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/object"
)

func parse(t testing.TB, text string) *object.Object {
	t.Helper()
	o, err := object.FromJSON([]byte(text))
	if err != nil {
		t.Fatal(err, text)
	}
	return o
}

func TestSelectedAfter(t *testing.T) {
	byLabel := &engine.Parent{Selector: labels.SelectorFromSet(labels.Set{"a": "1"})}
	byAnnotation := &engine.Parent{
		Selector:    labels.Everything(),
		Annotations: &v1alpha1.AnnotationSelector{MatchAnnotations: map[string]string{"c": "3"}},
	}
	parent := parse(t, `{"apiVersion":"demo/v1","kind":"Thing","metadata":{"name":"a","labels":{"a":"1","b":"2"},"annotations":{"c":"3"}}}`)
	cases := []struct {
		reason string
		rule   *engine.Parent
		change change.Change
		want   bool
	}{
		{"unchanged", byLabel, change.Change{}, true},
		{"another label", byLabel, change.Change{Labels: map[string]any{"b": nil}}, true},
		{"label changed", byLabel, change.Change{Labels: map[string]any{"a": "2"}}, false},
		{"label gone", byLabel, change.Change{Labels: map[string]any{"a": nil}}, false},
		{"annotation of no matter", byLabel, change.Change{Annotations: map[string]any{"c": nil}}, true},
		{"annotation unchanged", byAnnotation, change.Change{}, true},
		{"annotation changed", byAnnotation, change.Change{Annotations: map[string]any{"c": "4"}}, false},
		{"annotation gone", byAnnotation, change.Change{Annotations: map[string]any{"c": nil}}, false},
	}
	for _, c := range cases {
		if got := selectedAfter(c.rule, parent, c.change); got != c.want {
			t.Errorf("%s: %v", c.reason, got)
		}
	}
	places := map[change.Place]*engine.Parent{
		change.Subresource: {HasStatus: true}, change.Field: {StatusField: true}, change.Nowhere: {},
	}
	for want, rule := range places {
		if got := placeOf(rule); got != want {
			t.Errorf("%s: place %d, not %d", fmt.Sprint(rule), got, want)
		}
	}
}
