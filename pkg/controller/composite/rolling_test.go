package composite

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// rollingSpec is a controller of things with widgets that roll.
func rollingSpec(method, paths string) string {
	return "parentResource: {apiVersion: demo/v1, resource: things, revisionHistory: {fieldPaths: [" + paths + "]}}\n" + syncHook +
		"childResources: [{apiVersion: demo/v1, resource: widgets, updateStrategy: {method: " + method +
		", statusChecks: {conditions: [{type: Ready, status: 'True'}]}}}]\ngenerateSelector: true\n"
}

const (
	inPlace  = "RollingInPlace"
	recreate = "RollingRecreate"
	template = "spec.template"
)

func start(t tester, spec *object.Object, count int) *simulated {
	s := newSimulated(t, spec)
	s.answer = widgets
	s.add(fmt.Sprintf(`{"apiVersion":"demo/v1","kind":"Thing","metadata":{"namespace":"ns","name":"p"},"spec":{"count":%d,"template":{"value":"v1"}}}`, count))
	return s
}

// settle lets everybody do their work, the controller only when there was an
// event or it asked to be called, until there is nothing left to do.
func (s *simulated) settle() {
	s.t.Helper()
	seen := -1
	for range 400 {
		s.mu.Lock()
		now := s.changes
		s.mu.Unlock()
		if now == seen {
			return
		}
		seen = now
		if outcome, _ := s.sync(); outcome.Verdict != engine.Done {
			seen = -1
		}
		for _, o := range s.of(widgetKind) {
			if o.Terminating() {
				s.gone(o)
			} else {
				s.tend(o)
			}
		}
	}
	s.t.Fatalf("it does not come to rest: children are %v, condition is %v, events are %q", s.values(), s.condition(), s.events)
}

// finished checks that all children are on the latest revision, that this is what
// the cluster says, and that it costs nothing to look again.
func (s *simulated) finished(value string) {
	s.t.Helper()
	want := map[string]string{}
	for _, name := range widgetNames(s.parent().Content()) {
		want[name] = value
	}
	if got := s.values(); !maps.Equal(got, want) {
		s.t.Fatalf("children are %v, not %v; condition is %v, events are %q", got, want, s.condition(), s.events)
	}
	if c := s.condition(); c["status"] != "True" || c["reason"] != "OnLatestRevision" {
		s.t.Fatalf("condition is %v", c)
	}
	revisions := s.of(revisionKind)
	if len(revisions) != 1 {
		s.t.Fatalf("there are %d revisions: %v", len(revisions), revisions)
	}
	if got, wanted := claimed(revisions[0]), slices.Sorted(maps.Keys(want)); !slices.Equal(got, wanted) {
		s.t.Fatalf("the revision claims %q, not %q", got, wanted)
	}
	if outcome, writes := s.sync(); outcome.Verdict != engine.Done || len(writes) > 0 || len(s.asked) != 1 {
		s.t.Fatalf("with nothing to do it wrote %q and asked %d times: %+v", writes, len(s.asked), outcome)
	}
}

func claimed(o *object.Object) []string {
	var out []string
	list, _ := o.Content()["children"].([]any)
	for _, entry := range list {
		names, _ := entry.(map[string]any)["names"].([]any)
		for _, name := range names {
			out = append(out, name.(string))
		}
	}
	return out
}

// claims are the revisions that claim children.
func (s *simulated) claims() map[string]string {
	out := map[string]string{}
	for _, revision := range s.of(revisionKind) {
		for _, name := range claimed(revision) {
			out[name] = revision.Name()
		}
	}
	return out
}

func TestARolloutGoesOneByOne(t *testing.T) {
	for _, method := range []string{inPlace, recreate} {
		t.Run(method, func(t *testing.T) {
			s := start(t, declared(t, rollingSpec(method, template)), 3)
			if _, writes := s.sync(); len(writes) != 5 {
				t.Fatalf("wrote %q", writes)
			}
			if writes := s.writes; !strings.HasPrefix(writes[0], "create ControllerRevision") {
				t.Errorf("the children are made before the revision claims them: %q", writes)
			}
			s.settle()
			s.finished("v1")
			name := s.of(revisionKind)[0].Name()

			s.editSpec("template", map[string]any{"value": "v2"})
			var order []string
			s.onDisturb = func(key object.Key) {
				if len(s.disturbed) > 0 {
					t.Errorf("%s is changed while %v is not ready", key, s.disturbed)
				}
				order = append(order, key.Name)
			}
			outcome, writes := s.sync()
			if outcome.Verdict != engine.Done || len(s.asked) != 2 || !strings.HasPrefix(writes[0], "update ControllerRevision") ||
				!strings.HasPrefix(writes[1], "create ControllerRevision") || !strings.Contains(writes[2], "w-0") || len(writes) != 4 {
				t.Fatalf("first step: %+v, wrote %q, asked %d times", outcome, writes, len(s.asked))
			}
			if c := s.condition(); c["status"] != "False" || c["reason"] != "RolloutProgressing" || !strings.Contains(c["message"].(string), `Widget "ns/w-0" moves`) {
				t.Errorf("condition is %v", c)
			}
			s.sync()
			s.sync()
			if c := s.condition(); c["status"] != "False" || c["reason"] != "RolloutWaiting" || !strings.Contains(c["message"].(string), `"ns/w-0"`) {
				t.Errorf("condition is %v", c)
			}
			if got := s.values(); got["w-1"] != "v1" || got["w-2"] != "v1" {
				t.Errorf("children are %v before the first is ready", got)
			}
			s.settle()
			s.finished("v2")
			if !slices.Equal(order, []string{"w-0", "w-1", "w-2"}) {
				t.Errorf("the order is %q", order)
			}
			if s.of(revisionKind)[0].Name() == name {
				t.Error("the new revision has the old one's name")
			}
			if len(s.events) > 0 {
				t.Errorf("events are %q", s.events)
			}
		})
	}
}

func TestTheOrderIsTheHooks(t *testing.T) {
	s := start(t, declared(t, rollingSpec(recreate, template)), 3)
	s.editSpec("reversed", true)
	s.settle()
	var order []string
	s.onDisturb = func(key object.Key) { order = append(order, key.Name) }
	s.editSpec("template", map[string]any{"value": "v2"})
	s.settle()
	s.finished("v2")
	if !slices.Equal(order, []string{"w-2", "w-1", "w-0"}) {
		t.Errorf("the order is %q", order)
	}
}

// TestInTheMiddle is about what happens while a rollout waits: w-0 has the broken
// v2, w-1 and w-2 have v1.
func TestInTheMiddle(t *testing.T) {
	middle := func(t *testing.T, method string) *simulated {
		s := start(t, declared(t, rollingSpec(method, template)), 3)
		s.settle()
		s.editSpec("template", map[string]any{"value": "broken"})
		s.settle()
		if got := s.values(); !maps.Equal(got, map[string]string{"w-0": "broken", "w-1": "v1", "w-2": "v1"}) || s.condition()["reason"] != "RolloutWaiting" {
			t.Fatalf("children are %v, condition is %v", got, s.condition())
		}
		return s
	}
	for _, method := range []string{inPlace, recreate} {
		cases := []struct {
			name string
			do   func(s *simulated)
			// want are the children while it still waits.
			want map[string]string
		}{
			{"nothing", func(*simulated) {}, map[string]string{"w-0": "broken", "w-1": "v1", "w-2": "v1"}},
			{"a child of the old revision is deleted by hand", func(s *simulated) { s.kill(s.of(widgetKind)[1]) },
				map[string]string{"w-0": "broken", "w-1": "v1", "w-2": "v1"}},
			{"a child of the latest is deleted by hand", func(s *simulated) { s.kill(s.of(widgetKind)[0]) },
				map[string]string{"w-0": "broken", "w-1": "v1", "w-2": "v1"}},
			{"more children", func(s *simulated) { s.editSpec("count", int64(4)) },
				map[string]string{"w-0": "broken", "w-1": "v1", "w-2": "v1", "w-3": "broken"}},
			{"fewer children", func(s *simulated) { s.editSpec("count", int64(2)) }, map[string]string{"w-0": "broken", "w-1": "v1"}},
			{"a field that makes no revision", func(s *simulated) { s.editSpec("extra", "e") },
				map[string]string{"w-0": "broken", "w-1": "v1", "w-2": "v1"}},
			{"a restart", func(s *simulated) { s.restart() }, map[string]string{"w-0": "broken", "w-1": "v1", "w-2": "v1"}},
			{"all revisions are deleted by hand", func(s *simulated) {
				for _, o := range s.of(revisionKind) {
					s.kill(o)
				}
			}, map[string]string{"w-0": "broken", "w-1": "v1", "w-2": "v1"}},
			{"somebody writes nonsense into the revisions", func(s *simulated) {
				for _, o := range s.of(revisionKind) {
					s.edit(o.Key(), func(content map[string]any) {
						content["children"] = []any{nil, "x", map[string]any{"apiGroup": "demo", "kind": "Widget", "names": []any{nil, int64(7), "", "a/b/c", "nobody"}}}
					})
				}
			}, map[string]string{"w-0": "broken", "w-1": "v1", "w-2": "v1"}},
		}
		for _, c := range cases {
			t.Run(method+", "+c.name, func(t *testing.T) {
				s := middle(t, method)
				c.do(s)
				s.settle()
				if got := s.values(); !maps.Equal(got, c.want) {
					t.Errorf("children are %v", got)
				}
				if reason := s.condition()["reason"]; reason != "RolloutWaiting" {
					t.Errorf("condition is %v", s.condition())
				}
				for _, o := range s.of(widgetKind) {
					extra := o.Content()["spec"].(map[string]any)["extra"]
					if want := s.parent().Content()["spec"].(map[string]any)["extra"]; extra != want {
						t.Errorf("%s has extra %v, not %v", o, extra, want)
					}
				}
				s.editSpec("template", map[string]any{"value": "v3"})
				s.settle()
				s.finished("v3")
			})
		}
		t.Run(method+", back to the old revision", func(t *testing.T) {
			s := middle(t, method)
			s.editSpec("template", map[string]any{"value": "v1"})
			s.settle()
			s.finished("v1")
		})
	}
}

func TestOneBadRevisionAfterAnotherBreaksOneChild(t *testing.T) {
	s := start(t, declared(t, rollingSpec(inPlace, template)), 4)
	s.settle()
	s.editSpec("reversed", true)
	for i := range 5 {
		s.editSpec("template", map[string]any{"value": "broken", "n": int64(i)})
		s.editSpec("reversed", i%2 == 0)
		s.settle()
		broken := 0
		for _, value := range s.values() {
			if value == "broken" {
				broken++
			}
		}
		if broken != 1 {
			t.Fatalf("after %d bad revisions children are %v", i+1, s.values())
		}
	}
	s.editSpec("template", map[string]any{"value": "good"})
	s.settle()
	s.finished("good")
}

func TestAHookThatFailsForAnOldRevision(t *testing.T) {
	answers := map[string]any{
		"fails":             errors.New("answered 500"),
		"answers nonsense":  `{"children":[{"kind":7}]}`,
		"has no children":   `{}`,
		"wants no children": `{"children":null}`,
	}
	for name, answer := range answers {
		t.Run(name, func(t *testing.T) {
			s := start(t, declared(t, rollingSpec(inPlace, template)), 3)
			s.settle()
			s.answer = func(parent map[string]any) (any, error) {
				if parent["spec"].(map[string]any)["template"].(map[string]any)["value"] != "v1" {
					return widgets(parent)
				}
				if err, ok := answer.(error); ok {
					return nil, err
				}
				return answer, nil
			}
			s.onDisturb = func(key object.Key) {
				if len(s.disturbed) > 0 {
					t.Errorf("%s is changed while %v is not ready", key, s.disturbed)
				}
			}
			s.editSpec("template", map[string]any{"value": "v2"})
			s.settle()
			s.finished("v2")
			if told := strings.Contains(strings.Join(s.events, "\n"), "old revision"); told != (name != "wants no children") {
				t.Errorf("events are %q", s.events)
			}
		})
	}
}

func TestAnswersOfARollingController(t *testing.T) {
	cases := []struct {
		reason, answer string
		children       int
		says           string
	}{
		{"no status", `{"children":[{"apiVersion":"demo/v1","kind":"Widget","metadata":{"name":"w"}}]}`, 1, ""},
		{"null children", `{"status":{},"children":null}`, 0, ""},
		{"null status", `{"status":null,"children":[]}`, 0, ""},
		{"nothing", `{}`, 0, "children"},
		{"null", `null`, 0, "SyncError"},
		{"a null child", `{"children":[null]}`, 0, "children[0]"},
		{"one name twice", `{"children":[{"apiVersion":"demo/v1","kind":"Widget","metadata":{"name":"w"}},{"apiVersion":"demo/v1","kind":"Widget","metadata":{"name":"w"},"spec":{"value":"x"}}]}`, 1, "children[1]"},
		{"another namespace", `{"children":[{"apiVersion":"demo/v1","kind":"Widget","metadata":{"name":"w","namespace":"other"}}]}`, 0, "other"},
		{"undeclared kind", `{"children":[{"apiVersion":"v1","kind":"Secret","metadata":{"name":"w"}}]}`, 0, "Secret"},
		{"conditions are null", `{"status":{"conditions":null},"children":[]}`, 0, ""},
		{"conditions are no list", `{"status":{"conditions":{"a":1}},"children":[]}`, 0, ""},
		{"conditions are nonsense", `{"status":{"conditions":[null,7,{"type":3},{"type":"Updated","status":"Maybe"},{"type":"Updated"}]},"children":[]}`, 0, ""},
		{"another version", `{"children":[{"apiVersion":"demo/v2","kind":"Widget","metadata":{"name":"w"}}]}`, 1, ""},
	}
	for _, c := range cases {
		t.Run(c.reason, func(t *testing.T) {
			s := start(t, declared(t, rollingSpec(recreate, "")), 3)
			s.answer = func(map[string]any) (any, error) { return c.answer, nil }
			for range 3 {
				s.sync()
				for _, o := range s.of(widgetKind) {
					s.tend(o)
				}
			}
			if got := len(s.of(widgetKind)); got != c.children {
				t.Errorf("there are %d children", got)
			}
			if said := strings.Join(s.events, "\n"); c.says == "" && said != "" || !strings.Contains(said, c.says) || strings.Contains(said, "fault of the program") {
				t.Errorf("events are %q", said)
			}
			if _, writes := s.sync(); len(writes) > 0 {
				t.Errorf("with nothing new it wrote %q", writes)
			}
		})
	}
}

// TestKindsThatDoNotRoll go to the latest revision at once.
func TestKindsThatDoNotRoll(t *testing.T) {
	spec := strings.Replace(rollingSpec(inPlace, template), "childResources: [", "childResources: [{apiVersion: v1, resource: configmaps, updateStrategy: {method: InPlace}}, ", 1)
	s := start(t, declared(t, spec), 3)
	s.answer = func(parent map[string]any) (any, error) {
		answer, err := widgets(parent)
		value := parent["spec"].(map[string]any)["template"].(map[string]any)["value"]
		out := answer.(map[string]any)
		for _, name := range []string{"a", "b"} {
			out["children"] = append(out["children"].([]any), map[string]any{
				"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}, "data": map[string]any{"v": value}})
		}
		return out, err
	}
	s.settle()
	s.editSpec("template", map[string]any{"value": "broken"})
	s.settle()
	if got := s.values(); got["w-0"] != "broken" || got["w-2"] != "v1" {
		t.Errorf("children are %v", got)
	}
	for _, o := range s.of(kind("", "v1", "ConfigMap", "configmaps")) {
		if v := o.Content()["data"].(map[string]any)["v"]; v != "broken" {
			t.Errorf("%s has %v", o, v)
		}
	}
	s.editSpec("template", map[string]any{"value": "v3"})
	s.settle()
	s.finished("v3")
}

// TestChildrenThatWereThereBefore the controller began to roll are not all
// changed at once either.
func TestChildrenThatWereThereBefore(t *testing.T) {
	s := start(t, declared(t, rollingSpec(inPlace, template)), 3)
	s.settle()
	for _, o := range s.of(revisionKind) {
		s.kill(o)
	}
	s.editSpec("template", map[string]any{"value": "broken"})
	s.settle()
	if got := s.values(); !maps.Equal(got, map[string]string{"w-0": "broken", "w-1": "v1", "w-2": "v1"}) {
		t.Errorf("children are %v", got)
	}
}

// TestRolloutProperty does all at random that may happen to a rollout, and lets
// the process end at any write.
func TestRolloutProperty(t *testing.T) {
	specs := map[string]*object.Object{}
	for _, method := range []string{inPlace, recreate} {
		for _, paths := range []string{"", template} {
			specs[method+" "+paths] = declared(t, rollingSpec(method, paths))
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		s := start(t, specs[rapid.SampledFrom(slices.Sorted(maps.Keys(specs))).Draw(t, "spec")], rapid.IntRange(0, 4).Draw(t, "count"))
		s.settle()
		// begun are children whose move a crash broke off: it was their turn when
		// it was decided, and the move is completed however long that was ago.
		begun := map[string]bool{}
		// It is called from goroutines that must not end the test.
		var wrong []string
		s.onDisturb = func(key object.Key) {
			// One that is no longer wanted is deleted in this very pass.
			names := widgetNames(s.parentLocked().Content())
			maps.DeleteFunc(s.disturbed, func(key object.Key, _ bool) bool { return !slices.Contains(names, key.Name) })
			if len(s.disturbed) > 0 && !begun[key.Name] {
				wrong = append(wrong, fmt.Sprintf("%s is changed while %v is not ready because of the rollout", key, s.disturbed))
			}
			delete(begun, key.Name)
		}
		child := func() *object.Object {
			all := s.of(widgetKind)
			if len(all) == 0 {
				return nil
			}
			return rapid.SampledFrom(all).Draw(t, "child")
		}
		values := 0
		t.Repeat(map[string]func(*rapid.T){
			"": func(t *rapid.T) {
				if len(wrong) > 0 {
					t.Fatalf("%s; condition is %v", wrong, s.condition())
				}
			},
			"sync":   func(*rapid.T) { s.sync() },
			"sync 2": func(*rapid.T) { s.sync() },
			"tend": func(*rapid.T) {
				if o := child(); o != nil {
					s.tend(o)
				}
			},
			"tend all": func(*rapid.T) {
				for _, o := range s.of(widgetKind) {
					s.tend(o)
				}
			},
			"change": func(t *rapid.T) {
				values++
				value := rapid.SampledFrom([]string{"v1", "broken", fmt.Sprintf("n%d", values)}).Draw(t, "value")
				s.editSpec("template", map[string]any{"value": value})
			},
			"scale":   func(t *rapid.T) { s.editSpec("count", int64(rapid.IntRange(0, 5).Draw(t, "count"))) },
			"reverse": func(t *rapid.T) { s.editSpec("reversed", rapid.Bool().Draw(t, "reversed")) },
			"kill": func(*rapid.T) {
				if o := child(); o != nil {
					s.kill(o)
				}
			},
			"kill slowly": func(*rapid.T) {
				if o := child(); o != nil && !o.Terminating() {
					s.edit(o.Key(), func(content map[string]any) {
						metadata := content["metadata"].(map[string]any)
						metadata["finalizers"] = []any{"x"}
						metadata["deletionTimestamp"] = "2030-01-01T00:00:00Z"
					})
				}
			},
			"gone": func(*rapid.T) {
				for _, o := range s.of(widgetKind) {
					if o.Terminating() {
						s.gone(o)
					}
				}
			},
			"crash": func(t *rapid.T) {
				left, after, ended := rapid.IntRange(0, 4).Draw(t, "writes"), rapid.Bool().Draw(t, "after"), false
				s.fault = func() (error, bool) {
					if left--; left >= 0 && !ended {
						return nil, false
					}
					last := !ended && after
					ended = true
					return errCrash, last
				}
				before := s.claims()
				s.sync()
				for name, revision := range s.claims() {
					if before[name] != revision {
						begun[name] = true
					}
				}
				s.restart()
			},
			"conflict": func(*rapid.T) {
				once := false
				s.fault = func() (error, bool) {
					if once {
						return nil, false
					}
					once = true
					return apierrors.NewConflict(schema.GroupResource{}, "x", errors.New("changed")), false
				}
				s.sync()
				s.fault = nil
			},
		})
		s.editSpec("template", map[string]any{"value": "end"})
		s.settle()
		s.finished("end")
		if len(wrong) > 0 {
			t.Fatalf("%s", wrong)
		}
	})
}
