package watch

import (
	"io"
	"strings"
	"testing"

	"github.com/go-json-experiment/json/jsontext"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/object"
)

var configMaps = object.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Resource: "configmaps", Namespaced: true}

func TestDecoder(t *testing.T) {
	stream := `{"type":"ADDED","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"1","managedFields":[{"manager":"x"}]}}}
{"type":"BOOKMARK","object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"resourceVersion":"2","annotations":{"k8s.io/initial-events-end":"true"}}}}
{"object":{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"3"}},"type":"DELETED"}
{"type":"ERROR","object":{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Expired","code":410}}
{"type":"LATER","object":{}}
{"type":"ADDED","object":{"kind":"Conf`
	d := &decoder{body: io.NopCloser(strings.NewReader("")), in: jsontext.NewDecoder(strings.NewReader(stream), jsontext.AllowDuplicateNames(true))}

	event, got, err := d.Decode()
	added, _ := got.(*object.Object)
	if err != nil || event != watch.Added || added.Name() != "a" || strings.Contains(added.Body(), "managedFields") {
		t.Errorf("%s %v, %v", event, got, err)
	}
	event, got, err = d.Decode()
	mark, _ := got.(*metav1.PartialObjectMetadata)
	if err != nil || event != watch.Bookmark || mark.Annotations[metav1.InitialEventsAnnotationKey] != "true" || mark.ResourceVersion != "2" {
		t.Errorf("%s %v, %v", event, got, err)
	}
	if event, got, err = d.Decode(); err != nil || event != watch.Deleted || got.(*object.Object).ResourceVersion() != "3" {
		t.Errorf("%s %v, %v", event, got, err)
	}
	if event, got, err = d.Decode(); err != nil || event != watch.Error || got.(*metav1.Status).Code != 410 {
		t.Errorf("%s %v, %v", event, got, err)
	}
	if event, got, err = d.Decode(); err == nil {
		t.Errorf("%s %v", event, got)
	}
	if event, got, err = d.Decode(); err == nil {
		t.Errorf("%s %v", event, got)
	}
}

// Orphans finds by the index what a look at every object finds.
func TestOrphansAreAllFound(t *testing.T) {
	values := rapid.SampledFrom([]string{"x", "y"})
	keys := rapid.SampledFrom([]string{"a", "b"})
	rapid.Check(t, func(rt *rapid.T) {
		informer := &informer{kind: configMaps, shared: cache.NewSharedIndexInformerWithOptions(&source{}, nil, cache.SharedIndexInformerOptions{Indexers: indexers})}
		copied := &Cache{informer: informer}
		var all []*object.Object
		for i := range rapid.IntRange(0, 12).Draw(rt, "objects") {
			content := map[string]any{"apiVersion": "v1", "kind": "ConfigMap"}
			metadata := map[string]any{"name": string(rune('a' + i)), "namespace": rapid.SampledFrom([]string{"n", "m"}).Draw(rt, "namespace"), "uid": string(rune('A' + i))}
			set := map[string]any{}
			for key, value := range rapid.MapOf(keys, values).Draw(rt, "labels") {
				set[key] = value
			}
			metadata["labels"] = set
			if rapid.Bool().Draw(rt, "owned") {
				metadata["ownerReferences"] = []any{map[string]any{"apiVersion": "demo/v1", "kind": "Thing", "name": "p", "uid": "p", "controller": rapid.Bool().Draw(rt, "controlled")}}
			}
			content["metadata"] = metadata
			o, err := object.FromContent(content)
			if err != nil {
				rt.Fatal(err)
			}
			if err := informer.shared.GetIndexer().Add(o); err != nil {
				rt.Fatal(err)
			}
			all = append(all, o)
		}
		text := rapid.SampledFrom([]string{"a=x", "a in (x,y)", "a!=x", "a", "!a", "a=x,b=y", "b in (y)"}).Draw(rt, "selector")
		selector, err := labels.Parse(text)
		if err != nil {
			rt.Fatal(err)
		}
		namespace := rapid.SampledFrom([]string{"", "n"}).Draw(rt, "in")
		want := map[string]bool{}
		for _, o := range all {
			if object.ControllerOf(o) == nil && (namespace == "" || o.Namespace() == namespace) && selector.Matches(labels.Set(o.Labels())) {
				want[string(o.UID())] = true
			}
			if got := copied.Get(o.Namespace(), o.Name()); got != o {
				rt.Fatalf("Get finds %v", got)
			}
		}
		got := copied.Orphans(namespace, selector)
		for _, o := range got {
			if !want[string(o.UID())] {
				rt.Fatalf("%s finds %s with %v", text, o, o.Labels())
			}
		}
		if len(got) != len(want) {
			rt.Fatalf("%s finds %d, not %d", text, len(got), len(want))
		}
	})
}
