package syncer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/hook/wire"
	"github.com/metacontroller-solo/solo/pkg/controller/plan"
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
		{"a hook whose secret is gone", []error{&hookError{which: hook.Sync, err: gone}}, false, engine.Failed, 1},
		{"a busy hook", []error{fmt.Errorf("sync hook: %w", later{errors.New("busy")})}, false, engine.Wait, 0},
	}
	for _, c := range cases {
		var events said
		pass := &Pass{
			Syncer: New(Deps{Definition: engine.Definition{Kind: "CompositeController", Name: "cc"}, Events: &events, Clock: clock.RealClock{}}),
			memory: &memory{}, Parent: parent(t, ""), problems: c.problems, again: c.again, after: time.Minute,
		}
		got := pass.outcome(t.Context())
		if got.Verdict != c.want || len(events) != c.events || (got.Err != nil) != (c.want == engine.Failed) {
			t.Errorf("%s: %+v with events %q", c.reason, got, events)
		}
		if c.events == 1 && (!strings.HasPrefix(events[0], `SyncError: CompositeController "cc": `) || strings.Contains(events[0], "conflict")) {
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

// A failure that lasts is an event now and then; what is new is one at once.
func TestRepeatedFailures(t *testing.T) {
	var events said
	now := clocktesting.NewFakePassiveClock(time.Unix(1, 0))
	s := New(Deps{Definition: engine.Definition{Kind: "CompositeController", Name: "cc"}, Events: &events, Clock: now})
	m := &memory{}
	end := func(problems ...string) {
		pass := &Pass{Syncer: s, memory: m, Parent: parent(t, "")}
		for _, problem := range problems {
			pass.fail(errors.New(problem))
		}
		pass.outcome(t.Context())
	}
	steps := []struct {
		reason   string
		after    time.Duration
		problems []string
		events   int
	}{
		{"the first", 0, []string{"boom"}, 1},
		{"again", time.Second, []string{"boom"}, 1},
		{"another", time.Second, []string{"bang"}, 2},
		{"again", time.Second, []string{"bang"}, 2},
		{"after a while", sayAgain, []string{"bang"}, 3},
		{"all is well", time.Second, nil, 3},
		{"it is back", time.Second, []string{"bang"}, 4},
	}
	for _, step := range steps {
		now.SetTime(now.Now().Add(step.after))
		end(step.problems...)
		if len(events) != step.events {
			t.Fatalf("%s: %d events", step.reason, len(events))
		}
	}

	// The port of a connection is nothing new.
	end("read tcp 127.0.0.1:40001->127.0.0.1:80: read: connection reset by peer")
	count := len(events)
	end("read tcp 127.0.0.1:40002->127.0.0.1:80: read: connection reset by peer")
	end("read tcp [::1]:40003->127.0.0.1:80: read: connection reset by peer")
	if len(events) != count {
		t.Errorf("the events are %q", events)
	}

	// An answer can have thousands of mistakes.
	end(slices.Repeat([]string{"wrong"}, 5000)...)
	if last := events[len(events)-1]; strings.Count(last, "wrong") != toldProblems || !strings.Contains(last, "and 4990 more") {
		t.Errorf("the event is %q", last)
	}
}

func TestFailureSaysWhere(t *testing.T) {
	field := &object.FieldError{Path: "children[0].kind", Problem: "is missing"}
	got := failureOf([]error{errors.New("a\nb"), &hookError{which: hook.Finalize, err: fmt.Errorf("at: %w", field)}})
	if got.Hook != "finalize" || got.Path != "children[0].kind" || strings.Contains(got.Error(), "\n") {
		t.Errorf("it is %+v", got)
	}
}

// statuses is an API server that keeps some fields of a status.
type statuses struct {
	Writer
	keep   []string
	writes int
	parent *object.Object
}

func (w *statuses) UpdateStatus(_ context.Context, _ object.Kind, o *object.Object) (*object.Object, error) {
	w.writes++
	content := o.Content()
	status, _ := content["status"].(map[string]any)
	for field := range status {
		if !slices.Contains(w.keep, field) {
			delete(status, field)
		}
	}
	written, err := object.FromContent(content)
	w.parent = written
	return written, err
}

func TestPrunedStatus(t *testing.T) {
	w := &statuses{keep: []string{"seen"}}
	rule := &engine.Parent{HasStatus: true}
	s := New(Deps{Writer: w, Clock: clocktesting.NewFakePassiveClock(time.Unix(1, 0))})
	at := func(uid, version, status string) *object.Object {
		o, err := object.FromJSON(fmt.Appendf(nil, `{"apiVersion":"demo/v1","kind":"Thing","metadata":{"name":"a","uid":%q,"resourceVersion":%q}%s}`, uid, version, status))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	steps := []struct {
		reason  string
		parent  *object.Object
		status  map[string]any
		written bool
	}{
		{"new", at("u", "1", ""), map[string]any{"seen": int64(1), "observedGeneration": int64(1)}, true},
		{"nothing new", at("u", "2", `,"status":{"seen":1}`), map[string]any{"seen": int64(1), "observedGeneration": int64(1)}, false},
		{"the parent changed", at("u", "3", `,"status":{"seen":1}`), map[string]any{"seen": int64(1), "observedGeneration": int64(1)}, false},
		{"only what is pruned changed", at("u", "4", `,"status":{"seen":1}`), map[string]any{"seen": int64(1), "observedGeneration": int64(2)}, false},
		{"something else changed", at("u", "5", `,"status":{"seen":1}`), map[string]any{"seen": int64(2), "observedGeneration": int64(2)}, true},
		{"somebody changed it", at("u", "6", `,"status":{"seen":7}`), map[string]any{"seen": int64(2), "observedGeneration": int64(2)}, true},
		{"a parent that was not seen before", at("v", "7", `,"status":{"seen":1}`), map[string]any{"seen": int64(1), "observedGeneration": int64(9)}, false},
		{"an empty value is no sign", at("w", "8", `,"status":{"seen":1}`), map[string]any{"seen": int64(0), "ready": false}, true},
		{"a value for what was empty", at("x", "9", `,"status":{"seen":1}`), map[string]any{"seen": int64(1), "ready": true}, true},
	}
	for _, step := range steps {
		before := w.writes
		pass := &Pass{Syncer: s, Rule: rule, Parent: step.parent, memory: s.memories.recall(step.parent)}
		if err := pass.WriteStatus(t.Context(), step.status); err != nil {
			t.Fatalf("%s: %v", step.reason, err)
		}
		if written := w.writes > before; written != step.written {
			t.Errorf("%s: written is %v", step.reason, written)
		}
	}
}

// wild is a policy that panics.
type wild struct{ Policy }

func (wild) Observe(*Pass) (labels.Selector, error) { panic("boom") }

// one is the copy of a kind with one object.
type one struct {
	engine.Cache
	object *object.Object
}

func (o one) Get(string, string) *object.Object { return o.object }

// A panic is an event of the parent of the pass, and of no other.
func TestPanicInAPass(t *testing.T) {
	var events said
	o := parent(t, "")
	kind := object.Kind{GroupVersionKind: o.GroupVersionKind(), Resource: "things"}
	s := New(Deps{
		Definition: engine.Definition{
			Kind: "CompositeController", Name: "cc", Hooks: engine.Hooks{Sync: &v1alpha1.Hook{}},
			Parents: []engine.Parent{{Kind: kind, Selector: labels.Everything()}},
		},
		Policy: wild{}, Events: &events, Clock: clock.RealClock{},
		Caches: engine.Caches{Parents: map[schema.GroupKind]engine.Cache{kind.GroupKind(): one{object: o}}},
	})
	if got := s.Sync(t.Context(), o.Key()); got.Verdict != engine.Failed || len(events) != 1 || !strings.Contains(events[0], "boom") {
		t.Errorf("it ends with %+v and events %q", got, events)
	}
	// So is one in a goroutine of the policy.
	pass := &Pass{Syncer: s, Mode: ModeSync, Parent: o, memory: &memory{}}
	s.Hooks.Sync = &Hook{Codec: wire.Codec{}}
	if _, err := pass.Ask(t.Context(), o, ""); err == nil {
		t.Error("a call without a caller works")
	}
}

// What an earlier parent of the name left is waited for; what is somebody else's
// is told.
func TestChildrenOfAPredecessor(t *testing.T) {
	now := clocktesting.NewFakePassiveClock(time.Unix(1, 0))
	kind := object.Kind{GroupVersionKind: schema.GroupVersionKind{Group: "demo", Version: "v1", Kind: "Thing"}, Resource: "things"}
	child := func(owner, uid string) *object.Object {
		o, err := object.FromJSON(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","ownerReferences":[{"apiVersion":"demo/v1","kind":"Thing","name":%q,"uid":%q,"controller":true}]}}`, owner, uid))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	m := &memory{}
	problems := func(observed *object.Object) (int, bool) {
		pass := &Pass{Syncer: New(Deps{Clock: now}), Rule: &engine.Parent{Kind: kind}, Parent: parent(t, ""), memory: m}
		pass.problem(plan.Step{Action: plan.Skip, Reason: plan.Foreign, Observed: observed, Message: "in the way"})
		return len(pass.problems), pass.again
	}
	if told, again := problems(child("a", "old")); told != 0 || !again {
		t.Error("the child of the predecessor is told")
	}
	if told, again := problems(child("b", "other")); told != 1 || again {
		t.Error("the child of another parent is not told")
	}
	if told, again := problems(child("a", "u")); told != 1 || again {
		t.Error("the parent's own child is taken for one of its predecessor")
	}
	now.SetTime(now.Now().Add(patience))
	if told, _ := problems(child("a", "old")); told != 1 {
		t.Error("a child that does not go is not told")
	}
}

// What is not there, or not the controller's, needs no other look.
func TestParentsThatAreGone(t *testing.T) {
	kind := object.Kind{GroupVersionKind: schema.GroupVersionKind{Group: "demo", Version: "v1", Kind: "Thing"}, Resource: "things"}
	for reason, there := range map[string]*object.Object{"gone": nil, "not selected": parent(t, "")} {
		s := New(Deps{
			Definition: engine.Definition{Hooks: engine.Hooks{Sync: &v1alpha1.Hook{}}, Parents: []engine.Parent{{Kind: kind, Selector: labels.Nothing()}}},
			Caches:     engine.Caches{Parents: map[schema.GroupKind]engine.Cache{kind.GroupKind(): one{object: there}}},
			Clock:      clock.RealClock{},
		})
		if got := s.Sync(t.Context(), kind.Key("", "a")); got.Verdict != engine.Gone || len(s.memories.of) != 0 {
			t.Errorf("%s: %+v with %d memories", reason, got, len(s.memories.of))
		}
	}
}
