package apply_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/apply"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/plan"
	"github.com/metacontroller-solo/solo/pkg/object"
)

func kind(group, version, name, resource string) object.Kind {
	return object.Kind{GroupVersionKind: schema.GroupVersionKind{Group: group, Version: version, Kind: name}, Resource: resource, Namespaced: true}
}

var (
	pods        = kind("", "v1", "Pod", "pods")
	deployments = kind("apps", "v1", "Deployment", "deployments")
)

func parse(t interface{ Fatal(...any) }, text string) *object.Object {
	o, err := object.FromJSON([]byte(text))
	if err != nil {
		t.Fatal(err, text)
	}
	return o
}

func parent(t interface{ Fatal(...any) }) *object.Object {
	return parse(t, `{"apiVersion":"x.io/v1","kind":"Thing","metadata":{"name":"p","namespace":"ns","uid":"p-uid"}}`)
}

// fake is a Writer of functions.
type fake struct {
	write func(action plan.Action, key object.Key) error
	// preview is what a dry run answers.
	preview func(o *object.Object) (*object.Object, error)
	// applied counts applies.
	applied *int
}

func (f fake) Apply(_ context.Context, _ object.Kind, o *object.Object) (*object.Object, error) {
	*f.applied++
	return f.done(o, f.write(plan.Update, o.Key()))
}

func (f fake) Preview(_ context.Context, _ object.Kind, o *object.Object, _ bool) (*object.Object, error) {
	return f.preview(o)
}

func (f fake) HandOver(_ context.Context, _ object.Kind, o *object.Object) (*object.Object, error) {
	return f.done(o, f.write(plan.HandOver, o.Key()))
}

func (f fake) done(o *object.Object, err error) (*object.Object, error) {
	if err != nil {
		return nil, err
	}
	return o, nil
}

func (f fake) Create(_ context.Context, _ object.Kind, o *object.Object) (*object.Object, error) {
	return f.done(o, f.write(plan.Create, o.Key()))
}

func (f fake) Update(_ context.Context, _ object.Kind, o *object.Object) (*object.Object, error) {
	return f.done(o, f.write(plan.Update, o.Key()))
}

func (f fake) Delete(_ context.Context, _ object.Kind, key object.Key, _ types.UID) error {
	return f.write(plan.Delete, key)
}

func step(t *testing.T, action plan.Action, k object.Kind, name string) plan.Step {
	o := parse(t, fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"namespace":"ns","uid":"u","resourceVersion":"1"}}`, k.APIVersion(), k.GroupVersionKind.Kind, name))
	return plan.Step{Action: action, Kind: k, Key: o.Key(), Object: o, Observed: o}
}

func TestErrorsOfTheServer(t *testing.T) {
	group := schema.GroupResource{Resource: "pods"}
	terminating := apierrors.NewForbidden(group, "a", errors.New("namespace is going away"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	notFound, conflict := apierrors.NewNotFound(group, "a"), apierrors.NewConflict(group, "a", errors.New("changed"))
	invalid := apierrors.NewBadRequest("no such field")
	const (
		done = iota
		retry
		failed
	)
	tests := []struct {
		action plan.Action
		err    error
		want   int
		why    string
	}{
		{plan.Create, nil, done, ""},
		{plan.Update, nil, done, ""},
		{plan.Delete, nil, done, ""},
		{plan.Delete, notFound, done, "it is gone, which is what was wanted"},
		{plan.Delete, conflict, retry, "another object has its name now"},
		{plan.Update, notFound, retry, "the event of its deletion is on its way"},
		{plan.Update, conflict, retry, "the event of its change is on its way"},
		{plan.Create, apierrors.NewAlreadyExists(group, "a"), retry, "the event of its creation is on its way"},
		{plan.Create, terminating, retry, "no child can be made, and no user can change that"},
		{plan.Create, notFound, failed, "the namespace or the kind is not there, and no event will tell"},
		{plan.Create, invalid, failed, "the user must know"},
		{plan.Update, invalid, failed, "the user must know"},
		{plan.Delete, invalid, failed, "the user must know"},
		{plan.Update, fmt.Errorf("wrapped: %w", conflict), retry, "wrapping changes nothing"},
		{plan.Update, errors.New("connection refused"), failed, "the user must know"},
	}
	for _, tt := range tests {
		p := plan.Plan{Steps: []plan.Step{step(t, tt.action, pods, "a"), step(t, plan.Create, pods, "b")}}
		got := apply.Run(context.Background(), fake{write: func(_ plan.Action, key object.Key) error {
			if key.Name == "a" {
				return tt.err
			}
			return nil
		}}, p, 1)
		outcome := done
		switch {
		case len(got.Failed) == 1:
			outcome = failed
			if want := fmt.Sprintf("cannot %v Pod \"ns/a\": ", tt.action); !strings.HasPrefix(got.Err().Error(), want) || !errors.Is(got.Err(), tt.err) {
				t.Errorf("%v %v: says %q", tt.action, tt.err, got.Err())
			}
		case got.Retry:
			outcome = retry
		}
		if outcome != tt.want {
			t.Errorf("%v %v: outcome %d, want %d: %s", tt.action, tt.err, outcome, tt.want, tt.why)
		}
		if outcome != failed && got.Err() != nil {
			t.Errorf("%v %v: error %v", tt.action, tt.err, got.Err())
		}
		if last := got.Done[len(got.Done)-1]; last.Key.Name != "b" || last.Written == nil {
			t.Errorf("%v %v: the rest was not done", tt.action, tt.err)
		}
	}
}

func TestNothingIsDeletedForADifferenceThatStays(t *testing.T) {
	group := schema.GroupResource{Resource: "pods"}
	observed := parse(t, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"ns","uid":"u","resourceVersion":"1"},"spec":{"a":"default"},"status":{"x":1}}`)
	would := func(text string) func(*object.Object) (*object.Object, error) {
		return func(*object.Object) (*object.Object, error) { return parse(t, text), nil }
	}
	fails := func(err error) func(*object.Object) (*object.Object, error) {
		return func(*object.Object) (*object.Object, error) { return nil, err }
	}
	tests := []struct {
		name            string
		preview         func(*object.Object) (*object.Object, error)
		deleted, failed bool
	}{
		{"nothing would change", would(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"ns","uid":"u","resourceVersion":"2","generation":2},"spec":{"a":"default"}}`), false, false},
		{"nor in another version", would(`{"apiVersion":"v1beta1","kind":"Pod","metadata":{"name":"a","namespace":"ns"},"spec":{"a":"default"}}`), false, false},
		{"something would", would(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"ns"},"spec":{"a":"other"}}`), true, false},
		{"it cannot be changed in place", fails(apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, "a", nil)), true, false},
		{"this program may not", fails(apierrors.NewForbidden(group, "a", errors.New("no right"))), true, false},
		{"it changed", fails(apierrors.NewConflict(group, "a", errors.New("changed"))), false, false},
		{"the server is not there", fails(errors.New("connection refused")), false, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			deleted := false
			p := plan.Plan{Waiting: true, Steps: []plan.Step{{
				Action: plan.Delete, Reason: plan.Differs, Kind: pods, Key: observed.Key(), Observed: observed, Unless: observed, Desired: [32]byte{7},
			}}}
			got := apply.Run(context.Background(), fake{preview: tt.preview, write: func(plan.Action, object.Key) error { deleted = true; return nil }}, p, 1)
			if deleted != tt.deleted || (len(got.Failed) > 0) != tt.failed {
				t.Errorf("deleted %t, failed %v", deleted, got.Failed)
			}
			if kept := len(got.Done) == 1 && got.Done[0].Kept; kept {
				if mark, _ := got.Settled(p).Mark(observed.Key()); mark != plan.MarkOf(observed, [32]byte{7}) || !got.Retry {
					t.Errorf("mark %v, retry %t", mark, got.Retry)
				}
			}
		})
	}
}

func TestAppliesAreNotSettledByAHandOver(t *testing.T) {
	applied := 0
	w := fake{applied: &applied, write: func(plan.Action, object.Key) error { return nil }}
	made, changed, handed := step(t, plan.Create, pods, "a"), step(t, plan.Update, pods, "b"), step(t, plan.HandOver, pods, "c")
	made.Apply, changed.Apply = true, true
	p := plan.Plan{Steps: []plan.Step{made, changed, handed}}
	got := apply.Run(context.Background(), w, p, 1)
	settled := got.Settled(p)
	if _, ok := settled.Mark(handed.Key); applied != 2 || len(got.Done) != 3 || len(settled) != 2 || ok {
		t.Errorf("%d applied, done %v, settled %v", applied, got.Done, settled)
	}
	// An apply that meets no such kind will not by waiting.
	gone := apierrors.NewNotFound(schema.GroupResource{Resource: "pods"}, "b")
	got = apply.Run(context.Background(), fake{applied: &applied, write: func(plan.Action, object.Key) error { return gone }}, plan.Plan{Steps: []plan.Step{changed}}, 1)
	if len(got.Failed) != 1 || got.Retry {
		t.Errorf("failed %v, retry %t", got.Failed, got.Retry)
	}
}

func TestStepsOfAKindRunTogetherWithinBounds(t *testing.T) {
	var p plan.Plan
	for i := range 6 {
		p.Steps = append(p.Steps, step(t, plan.Delete, pods, fmt.Sprintf("x%d", i)))
	}
	for i := range 6 {
		p.Steps = append(p.Steps, step(t, plan.Create, pods, fmt.Sprintf("p%d", i)))
	}
	for i := range 6 {
		p.Steps = append(p.Steps, step(t, plan.Update, deployments, fmt.Sprintf("d%d", i)))
	}
	p.Steps = append(p.Steps, step(t, plan.Skip, pods, "s"))

	const parallel = 3
	var mu sync.Mutex
	running, most := map[string]int{}, 0
	var full atomic.Int32
	all := make(chan struct{})
	writer := fake{write: func(action plan.Action, key object.Key) error {
		group := action.String() + key.Kind
		mu.Lock()
		running[group]++
		if len(running) > 1 {
			mu.Unlock()
			return fmt.Errorf("groups run together: %v", running)
		}
		most = max(most, running[group])
		if running[group] == parallel && full.CompareAndSwap(0, 1) {
			close(all) // as many as may run at once do
		}
		mu.Unlock()
		<-all
		mu.Lock()
		defer mu.Unlock()
		if running[group]--; running[group] == 0 {
			delete(running, group)
		}
		return nil
	}}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	got := apply.Run(ctx, writer, p, parallel)
	if err := got.Err(); err != nil {
		t.Fatal(err)
	}
	if most != parallel {
		t.Errorf("at most %d ran at once, want %d", most, parallel)
	}
	var names []string
	for _, d := range got.Done {
		names = append(names, d.Key.Name)
	}
	if want := strings.Fields("x0 x1 x2 x3 x4 x5 p0 p1 p2 p3 p4 p5 d0 d1 d2 d3 d4 d5"); !cmp.Equal(want, names) {
		t.Errorf("done %v, want %v", names, want)
	}
}

func TestOneAtATimeIsInOrder(t *testing.T) {
	var p plan.Plan
	for i := range 20 {
		p.Steps = append(p.Steps, step(t, plan.Create, pods, fmt.Sprint(i)))
	}
	var order []string
	apply.Run(context.Background(), fake{write: func(_ plan.Action, key object.Key) error {
		order = append(order, key.Name)
		return nil
	}}, p, 0)
	for i, name := range order {
		if name != fmt.Sprint(i) {
			t.Fatalf("order %v", order)
		}
	}
}

func TestContextEndsThePlan(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var p plan.Plan
	for i := range 5 {
		p.Steps = append(p.Steps, step(t, plan.Create, pods, fmt.Sprint(i)))
	}
	calls := 0
	got := apply.Run(ctx, fake{write: func(plan.Action, object.Key) error {
		if calls++; calls == 2 {
			cancel()
		}
		return nil
	}}, p, 1)
	// One more may have been begun before the end was seen.
	if calls < 2 || calls > 3 || !errors.Is(got.Err(), context.Canceled) || len(got.Done) != calls {
		t.Errorf("%d calls, %d done, %v", calls, len(got.Done), got.Err())
	}
}

// A long plan ends soon after it is no longer wanted, and what was done of it is
// known.
func TestPlanThatIsNoLongerWanted(t *testing.T) {
	k := kind("", "v1", "Pod", "pods")
	var p plan.Plan
	for i := range 100_000 {
		p.Steps = append(p.Steps, plan.Step{Action: plan.Delete, Kind: k, Key: k.Key("ns", fmt.Sprint(i)), Observed: parse(t, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"x","uid":"u"}}`)})
	}
	var written atomic.Int32
	w := fake{write: func(plan.Action, object.Key) error { written.Add(1); return nil }}
	asked := 0
	result := apply.RunWhile(t.Context(), w, p, 8, func() bool { asked++; return asked < 3 })
	if !errors.Is(result.Interrupted, apply.ErrNotWanted) || len(result.Done) != int(written.Load()) || len(result.Done) == 0 || len(result.Done) > 1000 || asked != 3 {
		t.Errorf("%d steps were done, %d known, after %d questions: %v", written.Load(), len(result.Done), asked, result.Interrupted)
	}
}

func TestWhatWasWrittenIsSettled(t *testing.T) {
	s := newServer()
	in := plan.Input{
		Parent:  parent(t),
		Kinds:   []plan.Kind{{Kind: pods, Method: v1alpha1.ChildUpdateInPlace}},
		Desired: []hook.Child{{Object: parse(t, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{"cpu":"1"}}`), Path: "children[0]"}},
	}
	p, err := plan.Make(in)
	if err != nil {
		t.Fatal(err)
	}
	result := apply.Run(context.Background(), s, p, 1)
	written := result.Done[0].Written
	mark, _ := result.Settled(p).Mark(written.Key())
	if mark.UID != written.UID() || mark.ResourceVersion != written.ResourceVersion() || written.UID() == "" {
		t.Fatalf("mark %+v of %s", mark, written.Body())
	}
	// Even where the server writes a value in a way that nobody knows of.
	in.Observed = object.NewSet(nil, parse(t, strings.Replace(written.Body(), `"cpu":"1"`, `"cpu":"one"`, 1)))
	in.Settled = result.Settled(p)
	if p, err = plan.Make(in); err != nil || len(p.Steps) != 0 {
		t.Errorf("plan %v, %v", p.Steps, err)
	}
}

// value draws what a hook may write into a field.
func value(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		most := 4
		if depth == 0 {
			most = 2
		}
		switch rapid.IntRange(0, most).Draw(t, "type") {
		case 0:
			return rapid.SampledFrom([]any{"x", "y", int64(1), int64(2), 1.5, true}).Draw(t, "scalar")
		case 1:
			return rapid.SampledFrom([]any{"", false, nil, []any{}}).Draw(t, "empty")
		case 2:
			return rapid.SliceOfN(rapid.SampledFrom([]any{"x", "y"}), 0, 3).Draw(t, "texts")
		case 3:
			out := map[string]any{}
			for _, key := range []string{"a", "b", "c"} {
				if rapid.Bool().Draw(t, "has "+key) {
					out[key] = value(depth-1).Draw(t, key)
				}
			}
			return out
		default:
			list := []any{}
			key := rapid.SampledFrom([]string{"name", "port", "nokey"}).Draw(t, "key")
			for range rapid.IntRange(0, 3).Draw(t, "len") {
				list = append(list, map[string]any{
					key:   rapid.SampledFrom([]any{"k", "l", "m"}).Draw(t, "id"),
					"val": value(depth-1).Draw(t, "val"),
				})
			}
			return list
		}
	})
}

func desired(t *rapid.T) []hook.Child {
	var out []hook.Child
	for _, k := range []object.Kind{deployments, pods} {
		for _, name := range []string{"a", "b", "c"} {
			if !rapid.Bool().Draw(t, "has "+name) {
				continue
			}
			spec := map[string]any{}
			for _, key := range []string{"f", "g", "h"} {
				if rapid.Bool().Draw(t, "has "+key) {
					spec[key] = value(2).Draw(t, key)
				}
			}
			metadata := map[string]any{"name": name}
			if rapid.Bool().Draw(t, "labelled") {
				metadata["labels"] = map[string]any{"l": rapid.SampledFrom([]any{"1", "2"}).Draw(t, "label")}
			}
			o, err := object.FromContent(map[string]any{"apiVersion": k.APIVersion(), "kind": k.GroupVersionKind.Kind, "metadata": metadata, "spec": spec})
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, hook.Child{Object: o, Path: fmt.Sprintf("children[%d]", len(out))})
		}
	}
	return out
}

// TestPlansSettle is the promise of a quiet controller: whatever was there and
// whatever is desired, after a plan was carried out the next one has nothing to
// do, with nothing remembered in between, and neither with an echo of what was
// observed. What somebody else wrote stays through all of it.
func TestPlansSettle(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newServer()
		method := rapid.SampledFrom([]v1alpha1.ChildUpdateMethod{v1alpha1.ChildUpdateInPlace, v1alpha1.ChildUpdateRecreate}).Draw(t, "method")
		in := plan.Input{
			Parent: parent(t),
			Kinds:  []plan.Kind{{Kind: pods, Method: method}, {Kind: deployments, Method: method}},
			Labels: map[string]string{object.ControllerUIDLabel: "p-uid"},
		}
		pass := func() plan.Plan {
			in.Observed = object.NewSet([]object.Kind{pods, deployments}, s.all()...)
			p, err := plan.Make(in)
			if err != nil {
				t.Fatal(err)
			}
			result := apply.Run(context.Background(), s, p, 2)
			if result.Err() != nil || result.Retry {
				t.Fatalf("%v, retry %t", result.Err(), result.Retry)
			}
			return p
		}
		settle := func(what string) {
			pass()
			if method == v1alpha1.ChildUpdateRecreate {
				pass()
			}
			if p := pass(); len(p.Steps) != 0 {
				step := p.Steps[0]
				text := ""
				if step.Object != nil {
					text = step.Object.Body()
				}
				t.Fatalf("%s: still %v %v %v\nobserved %s\nwrites %s", what, step.Action, step.Reason, step.Key, step.Observed.Body(), text)
			}
		}

		in.Desired = desired(t)
		settle("first")
		foreign := map[types.UID]bool{}
		for _, o := range s.all() {
			if rapid.Bool().Draw(t, "somebody writes") {
				foreign[o.UID()] = true
				s.edit(o.Key(), func(content map[string]any) {
					content["metadata"].(map[string]any)["labels"].(map[string]any)["foreign"] = "1"
					content["spec"].(map[string]any)["foreign"] = int64(1)
				})
			}
		}
		if p := pass(); len(p.Steps) != 0 {
			t.Fatalf("what somebody else wrote made %v", p.Steps)
		}

		in.Desired = desired(t)
		settle("second")
		for _, o := range s.all() {
			// One that was deleted and made again has nothing of anybody's.
			spec := o.Content()["spec"].(map[string]any)
			if foreign[o.UID()] && (o.Labels()["foreign"] != "1" || spec["foreign"] != int64(1)) {
				t.Fatalf("what somebody else wrote is gone: %s", o.Body())
			}
		}

		in.Desired = nil
		for i, o := range s.all() {
			in.Desired = append(in.Desired, hook.Child{Object: o, Path: fmt.Sprintf("children[%d]", i)})
		}
		before := s.writes
		settle("echo")
		if s.writes != before && method == v1alpha1.ChildUpdateRecreate {
			t.Fatal("an echo recreates")
		}
		in.Desired = nil
		pass()
		if left := s.all(); len(left) != 0 {
			t.Fatalf("left %v", left)
		}
	})
}
