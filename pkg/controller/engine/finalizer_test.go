package engine

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/object"
)

const (
	today = "metacontroller.io/compositecontroller-a"
	old   = "metacontroller.app/compositecontroller-a"
)

func TestFinalizersOfOldAreKnown(t *testing.T) {
	cases := []struct {
		reason        string
		has           []string
		carries       bool
		with, without []string
	}{
		{"none", nil, false, []string{today}, []string{}},
		{"others", []string{"x"}, false, []string{"x", today}, []string{"x"}},
		{"today's", []string{"x", today, "y"}, true, []string{"x", today, "y"}, []string{"x", "y"}},
		{"old", []string{"x", old, "y"}, true, []string{"x", today, "y"}, []string{"x", "y"}},
		{"both", []string{old, "x", today}, true, []string{today, "x"}, []string{"x"}},
		{"of another controller", []string{old + "b"}, false, []string{old + "b", today}, []string{old + "b"}},
		{"of the other kind of controller", []string{"metacontroller.app/decoratorcontroller-a"}, false, []string{"metacontroller.app/decoratorcontroller-a", today}, []string{"metacontroller.app/decoratorcontroller-a"}},
	}
	for _, c := range cases {
		if got := WithFinalizer(c.has, today); !slices.Equal(got, c.with) {
			t.Errorf("%s: with it they are %q", c.reason, got)
		}
		if got := WithoutFinalizer(c.has, today); got == nil || !slices.Equal(got, c.without) {
			t.Errorf("%s: without it they are %q", c.reason, got)
		}
		if got := HasFinalizer(carrying(t, c.has), today); got != c.carries {
			t.Errorf("%s: carries it is %v", c.reason, got)
		}
	}
	if HasFinalizer(carrying(t, []string{"", "x"}), "") {
		t.Error("a finalizer without a name is carried")
	}
}

func carrying(t testing.TB, finalizers []string) *object.Object {
	t.Helper()
	content := map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"name": "a", "finalizers": finalizers}}
	o, err := object.FromContent(content)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Put on and taken off, one finalizer comes and goes, and those of others stay
// in their order.
func TestFinalizersOfOthersStay(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		has := rapid.SliceOf(rapid.SampledFrom([]string{today, old, "x", "y", "metacontroller.io/decoratorcontroller-a"})).Draw(rt, "finalizers")
		before := slices.Clone(has)
		others := slices.DeleteFunc(slices.Clone(has), func(f string) bool { return f == today || f == old })
		with, without := WithFinalizer(has, today), WithoutFinalizer(has, today)
		if !slices.Equal(without, others) || !slices.Equal(WithoutFinalizer(with, today), others) || !slices.Equal(has, before) {
			rt.Fatalf("others are %q, then %q and %q", others, with, without)
		}
		if n := len(with) - len(others); n != 1 || !slices.Equal(WithFinalizer(with, today), with) {
			rt.Fatalf("with it they are %q", with)
		}
	})
}
