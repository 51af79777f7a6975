package watch

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// Select and Named find by the index, whenever it is made, what a look at every
// object finds, and without it too.
func TestSelectedAreAllFound(t *testing.T) {
	values := rapid.SampledFrom([]string{"x", "y"})
	keys := rapid.SampledFrom([]string{"a", "b"})
	rapid.Check(t, func(rt *rapid.T) {
		shared := cache.NewSharedIndexInformerWithOptions(&source{}, nil, cache.SharedIndexInformerOptions{Indexers: indexers})
		broken := rapid.IntRange(0, 5).Draw(rt, "broken") == 0
		copied := &Cache{informer: &informer{kind: configMaps, shared: shared, selecting: sync.OnceValue(func() error {
			if broken {
				return errors.New("has ended")
			}
			return shared.AddIndexers(selectIndexer)
		})}}
		if rapid.Bool().Draw(rt, "indexed first") {
			copied.informer.canSelect()
		}
		var all []*object.Object
		for range rapid.IntRange(0, 12).Draw(rt, "objects") {
			set := map[string]any{}
			for key, value := range rapid.MapOf(keys, values).Draw(rt, "labels") {
				set[key] = value
			}
			metadata := map[string]any{"name": rapid.SampledFrom([]string{"o", "p", "q"}).Draw(rt, "name"), "labels": set}
			if namespace := rapid.SampledFrom([]string{"", "n", "m"}).Draw(rt, "namespace"); namespace != "" {
				metadata["namespace"] = namespace
			}
			o, err := object.FromContent(map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
			if err != nil {
				rt.Fatal(err)
			}
			if err := shared.GetIndexer().Add(o); err != nil {
				rt.Fatal(err)
			}
			all = append(slices.DeleteFunc(all, func(old *object.Object) bool { return old.Key() == o.Key() }), o)
		}
		expect := func(what string, got []*object.Object, want func(*object.Object) bool) {
			seen := map[*object.Object]bool{}
			for _, o := range got {
				if seen[o] || !want(o) {
					rt.Fatalf("%s finds %s with %v", what, o, o.Labels())
				}
				seen[o] = true
			}
			for _, o := range all {
				if want(o) && !seen[o] {
					rt.Fatalf("%s does not find %s with %v", what, o, o.Labels())
				}
			}
		}
		for _, text := range []string{"", "a=x", "a in (x,y)", "a!=x", "a", "!a", "a=x,b=y", "b in (y),a in (x,y)"} {
			selector, err := labels.Parse(text)
			if err != nil {
				rt.Fatal(err)
			}
			for _, namespace := range []string{"", "n", "m", "none"} {
				expect(text+" in "+namespace, copied.Select(namespace, selector), func(o *object.Object) bool {
					return (namespace == "" || o.Namespace() == namespace) && selector.Matches(labels.Set(o.Labels()))
				})
			}
		}
		for _, name := range []string{"o", "p", "none"} {
			expect(name, copied.Named(name), func(o *object.Object) bool { return o.Name() == name })
		}
	})
}

func TestStateSaysWhyACopyIsNotFull(t *testing.T) {
	shared := cache.NewSharedIndexInformerWithOptions(&source{}, nil, cache.SharedIndexInformerOptions{Indexers: indexers})
	one := &informer{shared: shared}
	copied := &Cache{informer: one}
	if full, err := copied.State(); full || err != nil {
		t.Errorf("at the start: %v, %v", full, err)
	}
	one.setError(context.DeadlineExceeded)
	if full, err := copied.State(); full || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("after an error: %v, %v", full, err)
	}
}
