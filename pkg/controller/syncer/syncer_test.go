package syncer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/object"
)

func parent(t testing.TB, metadata string) *object.Object {
	t.Helper()
	o, err := object.FromJSON(fmt.Appendf(nil, `{"apiVersion":"demo/v1","kind":"Thing","metadata":{"name":"a","uid":"u","resourceVersion":"5"%s}}`, metadata))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestModeOf(t *testing.T) {
	const (
		selected  = `,"labels":{"app":"x"}`
		finalizer = `,"finalizers":["fin"]`
		deleted   = `,"deletionTimestamp":"2030-01-01T00:00:00Z"`
		both      = `,"finalizers":["fin","foregroundDeletion"]`
	)
	h := &v1alpha1.Hook{}
	syncOnly, finalizeOnly, all := engine.Hooks{Sync: h}, engine.Hooks{Finalize: h}, engine.Hooks{Sync: h, Finalize: h}
	cases := []struct {
		reason, metadata string
		hooks            engine.Hooks
		want             Mode
		children         bool
	}{
		{"alive", selected, syncOnly, ModeSync, true},
		{"alive, with finalize hook", selected + finalizer, all, ModeSync, true},
		{"alive, nothing to do", selected + finalizer, finalizeOnly, ModeIdle, false},
		{"not selected", "", all, ModeIgnore, false},
		{"no longer selected", finalizer, all, ModeFinalize, true},
		{"no longer selected, hook is gone", finalizer, syncOnly, ModeRelease, false},
		{"being deleted, no finalizer", selected + deleted, all, ModeIgnore, false},
		{"being deleted", selected + finalizer + deleted, all, ModeFinalize, true},
		{"being deleted, children are the collector's", selected + both + deleted, all, ModeFinalize, false},
		{"being deleted, hook is gone", selected + finalizer + deleted, syncOnly, ModeRelease, false},
		{"being deleted, finalize hook alone", selected + finalizer + deleted, finalizeOnly, ModeFinalize, true},
	}
	for _, c := range cases {
		definition := &engine.Definition{Finalizer: "fin", Hooks: c.hooks}
		rule := &engine.Parent{Selector: labels.SelectorFromSet(labels.Set{"app": "x"})}
		o := parent(t, c.metadata)
		got := modeOf(definition, rule, o)
		if got != c.want || managesChildren(got, o) != c.children {
			t.Errorf("%s: mode %d, children %v", c.reason, got, managesChildren(got, o))
		}
	}
}

// said collects events.
type said []string

func (s *said) Normal(_ *object.Object, reason, message string) { *s = append(*s, reason+": "+message) }
func (s *said) Warning(_ *object.Object, reason, message string) {
	*s = append(*s, reason+": "+message)
}

type later struct{ error }

func (later) RetryAfter() time.Duration { return 7 * time.Second }

func TestOutcome(t *testing.T) {
	things := schema.GroupResource{Group: "demo", Resource: "things"}
	conflict := fmt.Errorf("cannot update: %w", apierrors.NewConflict(things, "a", errors.New("changed")))
	gone := fmt.Errorf("cannot update: %w", apierrors.NewNotFound(things, "a"))
	cases := []struct {
		reason   string
		problems []error
		again    bool
		want     engine.Verdict
		events   int
	}{
		{"nothing wrong", nil, false, engine.Done, 0},
		{"something newer", nil, true, engine.Again, 0},
		{"a conflict", []error{conflict}, false, engine.Again, 0},
		{"gone", []error{gone}, false, engine.Again, 0},
		{"there already", []error{fmt.Errorf("cannot create: %w", apierrors.NewAlreadyExists(things, "a"))}, false, engine.Again, 0},
		{"an error", []error{errors.New("boom")}, false, engine.Failed, 1},
		{"two errors are one event", []error{errors.New("boom"), errors.New("bang")}, false, engine.Failed, 1},
		{"an error beside a conflict", []error{conflict, errors.New("boom")}, true, engine.Failed, 1},
		{"a busy hook", []error{fmt.Errorf("sync hook: %w", later{errors.New("busy")})}, false, engine.Wait, 0},
	}
	for _, c := range cases {
		var events said
		pass := &Pass{
			Syncer: New(Deps{Definition: engine.Definition{Kind: "CompositeController", Name: "cc"}, Events: &events}),
			Parent: parent(t, ""), problems: c.problems, again: c.again, after: time.Minute,
		}
		got := pass.outcome(t.Context())
		if got.Verdict != c.want || len(events) != c.events || (got.Err != nil) != (c.want == engine.Failed) {
			t.Errorf("%s: %+v with events %q", c.reason, got, events)
		}
		if c.events == 1 && (!strings.HasPrefix(events[0], `SyncError: CompositeController "cc": boom`) || strings.Contains(events[0], "conflict")) {
			t.Errorf("%s: event is %q", c.reason, events[0])
		}
		if c.want == engine.Wait && got.After != 7*time.Second || c.want == engine.Done && got.After != time.Minute {
			t.Errorf("%s: after %s", c.reason, got.After)
		}
	}

	var events said
	stopped, stop := context.WithCancel(t.Context())
	stop()
	pass := &Pass{Syncer: New(Deps{Events: &events}), Parent: parent(t, ""), problems: []error{context.Canceled}}
	if got := pass.outcome(stopped); got.Verdict != engine.Done || len(events) > 0 {
		t.Errorf("after a stop: %+v with events %q", got, events)
	}
}

// cache is one object and how far the copy is.
type cache struct {
	engine.Cache
	object *object.Object
	seen   map[string]bool
}

func (c *cache) Get(string, string) *object.Object { return c.object }
func (c *cache) Seen(version string) bool          { return c.seen[version] }

func TestPassesWaitForTheirOwnWrites(t *testing.T) {
	c := &cache{seen: map[string]bool{}, object: parent(t, "")}
	m := &memory{pending: []pending{
		{cache: c, version: "7"},
		{cache: c, version: "8"},
		{cache: c, key: c.object.Key(), uid: "u"},
	}}
	if m.behind() == nil || len(m.pending) != 3 {
		t.Fatal("nothing was seen, and it goes on")
	}
	c.seen["7"], c.seen["8"] = true, true
	if m.behind() == nil || len(m.pending) != 1 {
		t.Fatal("the deletion was not seen, and it goes on")
	}
	c.object = parent(t, `,"deletionTimestamp":"2030-01-01T00:00:00Z"`)
	if m.behind() != nil || len(m.pending) != 0 {
		t.Fatal("all was seen, and it waits")
	}
	m.pending = []pending{{cache: c, key: c.object.Key(), uid: "older"}}
	if m.behind() != nil {
		t.Fatal("another object of the name is there, and it waits")
	}
	c.object = nil
	m.pending = []pending{{cache: c, uid: "u"}}
	if m.behind() != nil {
		t.Fatal("it is gone, and it waits")
	}
}

func TestMemoryIsOfOneLife(t *testing.T) {
	all := memories{of: map[object.Key]*memory{}}
	first := all.recall(parent(t, ""))
	if all.recall(parent(t, "")) != first {
		t.Error("the memory of a parent changes")
	}
	second := all.recall(parent(t, `,"uid":"v"`))
	if second == first {
		t.Error("a new parent inherits the memory of an old one")
	}
	all.forget(parent(t, "").Key())
	if len(all.of) != 0 {
		t.Error("a forgotten memory stays")
	}
}
