package watch

import (
	"testing"

	"k8s.io/client-go/tools/cache"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// A deletion that the watch missed comes as a stone over the last known state.
func TestTombstones(t *testing.T) {
	o, err := object.FromJSON([]byte(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a"}}`))
	if err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		reason string
		stored any
		want   *object.Object
	}{
		{"an object", o, o},
		{"a tombstone", cache.DeletedFinalStateUnknown{Key: "a", Obj: o}, o},
		{"a tombstone of nothing", cache.DeletedFinalStateUnknown{Key: "a"}, nil},
		{"a tombstone of something else", cache.DeletedFinalStateUnknown{Key: "a", Obj: "a"}, nil},
		{"something else", "a", nil},
		{"nothing", nil, nil},
	}
	for _, c := range cases {
		if got := stateOf(c.stored); got != c.want {
			t.Errorf("%s: %v", c.reason, got)
		}
	}
}
