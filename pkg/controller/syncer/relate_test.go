package syncer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/hook/wire"
	"github.com/metacontroller-solo/solo/pkg/object"
)

var (
	thingKind = object.Kind{GroupVersionKind: schema.GroupVersionKind{Group: "demo", Version: "v1", Kind: "Thing"}, Resource: "things", Namespaced: true}
	mapKind   = object.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Resource: "configmaps", Namespaced: true}
)

// customizeHook is a hook that a test answers for.
type customizeHook struct {
	answer string
	err    error
	asked  []string
}

func (h *customizeHook) Call(_ context.Context, _ string, body []byte) ([]byte, error) {
	h.asked = append(h.asked, string(body))
	return []byte(h.answer), h.err
}
func (h *customizeHook) URL() string { return "http://h" }
func (h *customizeHook) Close()      {}
func (*customizeHook) Accept(string) {}
func (*customizeHook) Forget(string) {}

// copied is a copy with fixed objects.
type copied struct {
	engine.Cache
	objects []*object.Object
	filling bool
	failure error
}

func (c *copied) State() (bool, error)                                { return !c.filling && c.failure == nil, c.failure }
func (c *copied) Handle(func(_, _ *object.Object, _ bool)) error      { return nil }
func (c *copied) WaitForSync(context.Context) error                   { return nil }
func (c *copied) Release()                                            {}
func (c *copied) Get(string, string) *object.Object                   { return nil }
func (c *copied) Named(name string) []*object.Object                  { return c.Select("", labels.Everything()) }
func (c *copied) Select(_ string, _ labels.Selector) []*object.Object { return slices.Clone(c.objects) }

// relating is a syncer with a customize hook.
type relating struct {
	*Syncer
	hook   *customizeHook
	kinds  map[string]object.Kind
	copies map[string]*copied
	now    *clocktesting.FakePassiveClock
}

func newRelating(versions ...v1alpha1.HookVersion) *relating {
	r := &relating{
		hook:   &customizeHook{},
		kinds:  map[string]object.Kind{thingKind.Resource: thingKind, mapKind.Resource: mapKind},
		copies: map[string]*copied{thingKind.Resource: {}, mapKind.Resource: {}},
		now:    clocktesting.NewFakePassiveClock(time.Unix(1000, 0)),
	}
	lookup := func(_ context.Context, _, resource string) (object.Kind, bool, error) {
		if kind, ok := r.kinds[resource]; ok {
			return kind, false, nil
		}
		return object.Kind{}, true, fmt.Errorf("no %s", resource)
	}
	open := func(kind object.Kind) engine.Cache { return r.copies[kind.Resource] }
	deps := Deps{Flavor: hook.Decorator, Clock: r.now, Log: logr.Discard()}
	deps.Caches.Related = engine.NewRelated(open, lookup, clock.RealClock{})
	deps.Declared, _ = object.FromJSON([]byte(`{"apiVersion":"metacontroller.k8s.io/v1alpha1","kind":"DecoratorController","metadata":{"name":"dc"}}`))
	deps.Hooks.Customize = &Hook{Codec: wire.Codec{Version: v1alpha1.HookVersionV1}, Caller: r.hook}
	if len(versions) > 0 {
		deps.Hooks.Customize.Codec.Version = versions[0]
		deps.Hooks.Sync = &Hook{Codec: wire.Codec{Version: versions[1]}}
	}
	r.Syncer = New(deps)
	return r
}

// pass relates a parent and reports whether the pass would go on.
func (r *relating) pass(t testing.TB, parent *object.Object, children ...*object.Object) (*Pass, bool) {
	t.Helper()
	pass := &Pass{Syncer: r.Syncer, Declared: r.declared.Load(), Parent: parent, memory: r.memories.recall(parent), Children: object.NewSet(nil, children...)}
	return pass, pass.relate(t.Context())
}

func TestCustomizeIsAskedOncePerStateOfAParent(t *testing.T) {
	r := newRelating()
	r.hook.answer = `{"relatedResources":[{"apiVersion":"v1","resource":"configmaps"}]}`
	asked := func(what string, parent *object.Object, want int) {
		t.Helper()
		pass, ok := r.pass(t, parent)
		if !ok || len(r.hook.asked) != want {
			t.Errorf("%s: goes on %v, %d calls, problems %v", what, ok, len(r.hook.asked), pass.problems)
		}
		if _, there := pass.Related.Group(mapKind.GroupKind()); !there {
			t.Errorf("%s: the kind has no group", what)
		}
	}
	first := parent(t, "")
	asked("first", first, 1)
	asked("again", first, 1)
	asked("changed", parent(t, `,"resourceVersion":"6"`), 2)
	asked("another of the name", parent(t, `,"uid":"v","resourceVersion":"6"`), 3)
	asked("in another namespace", parent(t, `,"namespace":"m","uid":"w","resourceVersion":"6"`), 4)
	last := parent(t, `,"uid":"v","resourceVersion":"6"`)
	asked("as before", last, 4)
	r.now.SetTime(r.now.Now().Add(customizeAge + time.Second))
	asked("after long", last, 5)
	r.forget(last.Key())
	asked("after it was not ours", last, 6)
	// A decorated object is a parent here.
	for _, body := range r.hook.asked {
		if !strings.HasPrefix(body, `{"controller":{`) || !strings.Contains(body, `,"parent":{`) || strings.Contains(body, `"object":`) {
			t.Errorf("request is %s", body)
		}
	}
	// The kind is another one now; the answer is the same.
	other := mapKind
	other.Namespaced = false
	r.kinds[mapKind.Resource] = other
	asked("of another scope", last, 6)
	r.Redeclare(parent(t, `,"labels":{"new":"1"}`))
	asked("the controller's object changed", last, 7)
	if got := r.memories.of[last.Key()].customized.kinds; !slices.Equal(got, []object.Kind{other}) {
		t.Errorf("kinds are %v", got)
	}
}

func TestAnswersOfNoUseAreNotRemembered(t *testing.T) {
	const whole = `{"relatedResources":[{"apiVersion":"v1","resource":"configmaps"}]}`
	cases := []struct {
		reason string
		answer string
		err    error
		change func(*relating)
		says   string
	}{
		{"hook is down", "", errors.New("cannot be reached"), nil, "customize hook at http://h cannot be reached"},
		{"no answer", "", nil, nil, "empty"},
		{"error document", `{}`, nil, nil, "relatedResources"},
		{"null rule", `{"relatedResources":[null]}`, nil, nil, "relatedResources[0]"},
		{"bad rule", `{"relatedResources":[{"apiVersion":"v1","resource":"configmaps","names":[""]}]}`, nil, nil, "relatedResources[0].names[0] is empty"},
		{"unknown kinds", `{"relatedResources":[{"apiVersion":"v1","resource":"a"},{"apiVersion":"v1","resource":"b"}]}`, nil, nil, "relatedResources[1]: no b"},
		{"forbidden kind", whole, nil, func(r *relating) { r.copies["configmaps"].failure = errors.New("is forbidden") }, "relatedResources[0] asks for"},
	}
	for _, c := range cases {
		r := newRelating()
		r.hook.answer, r.hook.err = c.answer, c.err
		if c.change != nil {
			c.change(r)
		}
		for range 2 {
			pass, ok := r.pass(t, parent(t, ""))
			if ok || pass.again || len(pass.problems) != 1 || !strings.Contains(pass.problems[0].Error(), c.says) {
				t.Errorf("%s: goes on %v, problems %v", c.reason, ok, pass.problems)
			}
		}
		if len(r.hook.asked) != 2 {
			t.Errorf("%s: %d calls", c.reason, len(r.hook.asked))
		}
	}
	// A copy that is not full yet is nobody's fault.
	r := newRelating()
	r.hook.answer = whole
	r.copies["configmaps"].filling = true
	for range 2 {
		if pass, ok := r.pass(t, parent(t, "")); ok || !pass.again || len(pass.problems) > 0 || len(r.hook.asked) != 1 {
			t.Errorf("filling: goes on %v, problems %v, %d calls", ok, pass.problems, len(r.hook.asked))
		}
	}
}

func TestVersionsDecideWhatIsLookedFor(t *testing.T) {
	v1, v2 := v1alpha1.HookVersionV1, v1alpha1.HookVersionV2
	for _, c := range []struct {
		customize, sync v1alpha1.HookVersion
		confined        bool
	}{{v1, v1, true}, {v2, v1, true}, {v1, v2, false}, {v2, v2, false}} {
		r := newRelating(c.customize, c.sync)
		pass := &Pass{Syncer: r.Syncer, Parent: parent(t, `,"namespace":"n"`)}
		if got := pass.viewer(); got.Confined != c.confined || got.Version != c.customize || got.Namespace != "n" {
			t.Errorf("customize %s, sync %s: %+v", c.customize, c.sync, got)
		}
		r.Hooks.Finalize = &Hook{Codec: wire.Codec{Version: v2}}
		if pass.viewer().Confined {
			t.Errorf("the finalize hook of version v2 is not shown all")
		}
	}
}

func TestOneRequestShowsOneStateOfAnObject(t *testing.T) {
	r := newRelating()
	r.hook.answer = `{"relatedResources":[{"apiVersion":"demo/v1","resource":"things"},{"apiVersion":"v1","resource":"configmaps"}]}`
	child := func(version string) *object.Object {
		o, err := object.FromJSON(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","uid":"c","resourceVersion":%q}}`, version))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	older := parent(t, `,"resourceVersion":"4"`)
	r.copies["things"].objects = []*object.Object{older, parent(t, `,"name":"b","uid":"b"`)}
	r.copies["configmaps"].objects = []*object.Object{child("1")}
	now, adopted := parent(t, ""), child("2")
	pass, ok := r.pass(t, now, adopted)
	if !ok || pass.Related.Get(now.Key()) != now || pass.Related.Get(adopted.Key()) != adopted || pass.Related.Len() != 3 {
		t.Errorf("related are %v, problems %v", pass.Related, pass.problems)
	}
	if r.copies["things"].objects[0] != older {
		t.Error("the copy was changed")
	}
}
