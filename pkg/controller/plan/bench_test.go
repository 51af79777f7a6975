package plan_test

import (
	"fmt"
	"strings"
	"testing"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/plan"
	"github.com/metacontroller-solo/solo/pkg/controller/plan/merge"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// settledInput is a parent with three children of half a KiB that are as
// desired.
func settledInput(b *testing.B) plan.Input {
	image := strings.Repeat("0123456789abcdef", 32)
	in := plan.Input{Parent: parse(b, parentText), Kinds: []plan.Kind{pods(v1alpha1.ChildUpdateInPlace)}}
	var observed, desired []string
	for i := range 3 {
		observed = append(observed, existing(fmt.Sprintf("child-%d", i), image, ""))
		desired = append(desired, podText(fmt.Sprintf("child-%d", i), "", image))
	}
	in.Observed = object.NewSet(nil, objects(b, observed...)...)
	in.Desired = children(b, desired...)
	return in
}

// BenchmarkMakeNothingToDo plans for children that are as desired: the first
// time, when they are compared, and again, when that is known.
func BenchmarkMakeNothingToDo(b *testing.B) {
	in := settledInput(b)
	run := func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			p, err := plan.Make(in)
			if err != nil || len(p.Steps) != 0 {
				b.Fatal(told(p), err)
			}
		}
	}
	b.Run("compared", run)
	p, err := plan.Make(in)
	if err != nil {
		b.Fatal(err)
	}
	in.Settled = p.Settled
	b.Run("settled", run)
}

func BenchmarkMakeChanged(b *testing.B) {
	in := settledInput(b)
	for i := range in.Desired {
		in.Desired[i].Object = parse(b, podText(fmt.Sprintf("child-%d", i), "", "2"))
	}
	b.ReportAllocs()
	for b.Loop() {
		p, err := plan.Make(in)
		if err != nil || len(p.Steps) != 3 {
			b.Fatal(told(p), err)
		}
	}
}

func BenchmarkMerge(b *testing.B) {
	in := settledInput(b)
	for observed := range in.Observed.All() {
		observed, desired := observed.Content(), in.Desired[0].Object.Content()
		desired["metadata"].(map[string]any)["namespace"] = "ns"
		b.ReportAllocs()
		for b.Loop() {
			if got, err := merge.Merge(observed, desired); err != nil || got.Outcome != merge.Same {
				b.Fatal(got, err)
			}
		}
		break
	}
}
