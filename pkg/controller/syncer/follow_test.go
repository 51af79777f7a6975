package syncer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// A controller that replaces another waits for what that wrote, as far as it reads
// the same kinds.
func TestAReplacementWaitsForWritesOfTheOther(t *testing.T) {
	a, b := schema.GroupKind{Kind: "A"}, schema.GroupKind{Kind: "B"}
	caches := func() (engine.Caches, map[schema.GroupKind]*cache) {
		own := map[schema.GroupKind]*cache{a: {seen: map[string]bool{}}, b: {seen: map[string]bool{}}}
		return engine.Caches{
			Parents: map[schema.GroupKind]engine.Cache{a: own[a]}, Children: map[schema.GroupKind]engine.Cache{b: own[b]},
		}, own
	}
	oldCaches, old := caches()
	before := New(Deps{Caches: oldCaches})
	writing := func(uid, version string, to *cache) object.Key {
		o := parent(t, fmt.Sprintf(`,"name":%q,"uid":%q`, uid, uid))
		m := before.memories.recall(o)
		m.pending = append(m.pending, pending{cache: to, version: version})
		return o.Key()
	}
	waits := writing("waits", "7", old[b])
	shown := writing("shown", "6", old[a])
	dropped := writing("dropped", "8", &cache{seen: map[string]bool{}})

	nowCaches, now := caches()
	now[a].seen["6"] = true
	after := New(Deps{Caches: nowCaches})
	after.Follow(before)
	if after.memories.of[shown] != nil || after.memories.of[dropped] != nil {
		t.Errorf("there is nothing to wait for, and memories are %v", after.memories.of)
	}
	m := after.memories.of[waits]
	if m == nil || m.uid != "waits" || m.behind() == nil {
		t.Fatalf("it does not wait: %v", m)
	}
	now[b].seen["7"] = true
	if m.behind() != nil {
		t.Error("it waits for what it sees")
	}
}

// claiming is an API server where everything changed just now.
type claiming struct {
	Writer
	live    *object.Object
	writes  int
	refusal error
}

func (c *claiming) Get(context.Context, object.Kind, string, string) (*object.Object, error) {
	if c.live == nil {
		return nil, apierrors.NewNotFound(schema.GroupResource{}, "a")
	}
	return c.live, nil
}

func (c *claiming) Update(_ context.Context, _ object.Kind, o *object.Object) (*object.Object, error) {
	c.writes++
	return o, c.refusal
}

// kin is the copy of a kind with orphans and children.
type kin struct {
	engine.Cache
	owned, orphans []*object.Object
}

func (k kin) ByOwner(types.UID) []*object.Object { return k.owned }

func (k kin) Orphans(string, labels.Selector) []*object.Object { return k.orphans }

// A pass that cannot take, or let go, a child because something is newer than the
// cache does not go on without it.
func TestClaimOfWhatIsNewer(t *testing.T) {
	kind := object.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Resource: "configmaps", Namespaced: true}
	child := func(metadata string) *object.Object {
		o, err := object.FromJSON(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","uid":"c","resourceVersion":"1"%s}}`, metadata))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	const matching = `,"labels":{"app":"x"}`
	orphan := kin{orphans: []*object.Object{child(matching)}}
	released := kin{owned: []*object.Object{child(`,"ownerReferences":[{"apiVersion":"demo/v1","kind":"Thing","name":"a","uid":"u","controller":true}]`)}}
	conflict := apierrors.NewConflict(schema.GroupResource{}, "c", errors.New("changed"))
	cases := []struct {
		reason   string
		cache    kin
		live     *object.Object
		refusal  error
		goes     bool
		problems int
		writes   int
	}{
		{"all is well", orphan, parent(t, ""), nil, true, 0, 1},
		{"the orphan changed", orphan, parent(t, ""), conflict, false, 0, 1},
		{"the orphan is gone", orphan, parent(t, ""), apierrors.NewNotFound(schema.GroupResource{}, "c"), false, 0, 1},
		{"the parent is gone", orphan, nil, nil, false, 0, 0},
		{"the parent is another", orphan, parent(t, `,"uid":"v"`), nil, false, 0, 0},
		{"the parent goes", orphan, parent(t, `,"deletionTimestamp":"2030-01-01T00:00:00Z"`), nil, false, 0, 0},
		{"a child to let go changed", released, parent(t, ""), conflict, false, 0, 1},
		{"not allowed", orphan, parent(t, ""), apierrors.NewForbidden(schema.GroupResource{}, "c", errors.New("no")), false, 1, 1},
	}
	for _, c := range cases {
		w := &claiming{live: c.live, refusal: c.refusal}
		pass := &Pass{
			Syncer: New(Deps{
				Writer: w, Clock: clock.RealClock{}, Definition: engine.Definition{Children: []engine.Child{{Kind: kind}}},
				Caches: engine.Caches{Children: map[schema.GroupKind]engine.Cache{kind.GroupKind(): c.cache}},
			}),
			Rule: &engine.Parent{}, Mode: ModeSync, Parent: parent(t, ""), memory: &memory{},
			Selector: labels.SelectorFromSet(labels.Set{"app": "x"}),
		}
		goes := pass.claim(t.Context(), true)
		if goes != c.goes || len(pass.problems) != c.problems || w.writes != c.writes || pass.again != (!c.goes && c.problems == 0) {
			t.Errorf("%s: goes on %v, again %v, problems %v, %d writes", c.reason, goes, pass.again, pass.problems, w.writes)
		}
	}
}

// caller is a hook's address.
type caller struct{ Caller }

func (caller) URL() string { return "http://hook" }

// forgetful is a hook that notes what it is to forget.
type forgetful struct {
	Caller
	forgotten []string
}

func (f *forgetful) Forget(subject string) { f.forgotten = append(f.forgotten, subject) }

// Nothing is remembered of a parent that is gone, or that another one replaced
// unseen: neither here nor by its hooks.
func TestNothingIsRememberedOfAParentThatIsGone(t *testing.T) {
	kind := object.Kind{GroupVersionKind: parent(t, "").GroupVersionKind(), Resource: "things"}
	there := &one{}
	sync, customize := &forgetful{}, &forgetful{}
	s := New(Deps{
		Definition: engine.Definition{
			Kind: "CompositeController", Name: "cc", Finalizer: "fin",
			Parents: []engine.Parent{{Kind: kind, Selector: labels.SelectorFromSet(labels.Set{"app": "x"})}},
		},
		Clock:  clock.RealClock{},
		Caches: engine.Caches{Parents: map[schema.GroupKind]engine.Cache{kind.GroupKind(): there}},
		Hooks:  Hooks{Sync: &Hook{Caller: sync}, Customize: &Hook{Caller: customize}},
	})
	for _, step := range []struct {
		reason string
		before string // metadata of the parent that is remembered
		now    *object.Object
		want   engine.Verdict
	}{
		{"gone", `,"uid":"one"`, nil, engine.Gone},
		{"not selected any more", `,"uid":"two"`, parent(t, `,"uid":"two"`), engine.Gone},
		{"another one of the name, not selected", `,"uid":"three"`, parent(t, `,"uid":"four"`), engine.Gone},
		{"never known", "", nil, engine.Gone},
	} {
		sync.forgotten, customize.forgotten = nil, nil
		var want []string
		if step.before != "" {
			s.memories.recall(parent(t, step.before))
			want = append(want, string(parent(t, step.before).UID()))
		}
		if step.now != nil && string(step.now.UID()) != want[0] {
			want = append(want, string(step.now.UID()))
		}
		there.object = step.now
		if got := s.Sync(t.Context(), parent(t, "").Key()); got.Verdict != step.want {
			t.Errorf("%s: it ends with %+v", step.reason, got)
		}
		if !slices.Equal(sync.forgotten, want) || !slices.Equal(customize.forgotten, want) {
			t.Errorf("%s: forgotten are %q and %q, not %q", step.reason, sync.forgotten, customize.forgotten, want)
		}
		if len(s.memories.of) > 0 {
			t.Errorf("%s: there are memories: %v", step.reason, s.memories.of)
		}
	}
}

// The log says which hook gave an answer that cannot be used, wherever that is
// found out.
func TestUnusableAnswerSaysWhichHook(t *testing.T) {
	for mode, want := range map[Mode]string{ModeSync: "sync", ModeFinalize: "finalize"} {
		pass := &Pass{Syncer: New(Deps{Hooks: Hooks{Sync: &Hook{Caller: caller{}}, Finalize: &Hook{Caller: caller{}}}}), Mode: mode}
		got := failureOf([]error{pass.Unusable(&object.FieldError{Path: "labels[a]", Problem: "is wrong"})})
		if got.Hook != want || got.Path != "labels[a]" {
			t.Errorf("it is %+v", got)
		}
	}
	if which := hook.Customize; failureOf([]error{unusable(which, &Hook{Caller: caller{}}, errors.New("wrong"))}).Hook != which.String() {
		t.Error("it does not say that it is the customize hook's")
	}
}

// Fields that a hook makes up are remembered for a while, and not more than so
// many.
func TestDroppedFieldsAreBounded(t *testing.T) {
	var p pruning
	kind, now := schema.GroupKind{Kind: "Thing"}, time.Unix(1, 0)
	for i := range 3 * maxDropped {
		p.learn(kind, map[string]any{fmt.Sprintf("f%d", i): int64(1)}, nil, now)
	}
	if got := len(p.dropped[kind]); got != maxDropped {
		t.Errorf("there are %d", got)
	}
	now = now.Add(pruneMemory)
	p.learn(kind, map[string]any{"new": int64(1)}, nil, now)
	if _, known := p.dropped[kind]["new"]; !known || len(p.dropped[kind]) != 1 {
		t.Errorf("after long there are %d", len(p.dropped[kind]))
	}
}
