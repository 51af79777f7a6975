package engine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// parents is an API server with some.
type parents struct {
	mu sync.Mutex
	// conflicts of each name that are still to come.
	conflicts map[string]int
	// lives has what is there, by name.
	lives  map[string]*object.Object
	broken map[string]bool
	listed []*object.Object
}

var things = schema.GroupResource{Group: "demo", Resource: "things"}

func (p *parents) ListMetadata(_ context.Context, kind object.Kind, each func(*object.Object)) error {
	if kind.Resource == "absents" {
		return apierrors.NewNotFound(things, "")
	}
	for _, o := range p.listed {
		each(o)
	}
	return nil
}

func (p *parents) Get(_ context.Context, _ object.Kind, _, name string) (*object.Object, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if live := p.lives[name]; live != nil {
		return live, nil
	}
	return nil, apierrors.NewNotFound(things, name)
}

func (p *parents) SetFinalizers(_ context.Context, _ object.Kind, o *object.Object, finalizers []string) (*object.Object, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.broken[o.Name()]:
		return nil, errors.New("no right")
	case p.lives[o.Name()] == nil:
		return nil, apierrors.NewNotFound(things, o.Name())
	case p.conflicts[o.Name()] > 0 || p.lives[o.Name()].UID() != o.UID():
		p.conflicts[o.Name()]--
		return nil, apierrors.NewConflict(things, o.Name(), errors.New("changed"))
	}
	content := o.Content()
	metadata := content["metadata"].(map[string]any)
	metadata["finalizers"] = nil
	if len(finalizers) > 0 {
		metadata["finalizers"] = []any{finalizers[0]}
	}
	written, err := object.FromContent(content)
	p.lives[o.Name()] = written
	return written, err
}

func TestRelease(t *testing.T) {
	parent := func(name, uid, finalizers string) *object.Object {
		o, err := object.FromJSON(fmt.Appendf(nil, `{"apiVersion":"demo/v1","kind":"Thing","metadata":{"namespace":"ns","name":%q,"uid":%q,"finalizers":[%s]}}`, name, uid, finalizers))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	api := &parents{
		conflicts: map[string]int{"busy": 2, "hopeless": 100},
		lives: map[string]*object.Object{
			"plain": parent("plain", "1", `"fin","other"`), "none": parent("none", "2", `"other"`),
			"busy": parent("busy", "3", `"fin"`), "again": parent("again", "new", `"fin"`),
			"done": parent("done", "5", `"other"`), "broken": parent("broken", "6", `"fin"`), "hopeless": parent("hopeless", "7", `"fin"`),
		},
		broken: map[string]bool{"broken": true},
		listed: []*object.Object{
			parent("plain", "1", `"fin","other"`), parent("none", "2", `"other"`), parent("busy", "3", `"fin"`),
			parent("again", "old", `"fin"`), parent("gone", "4", `"fin"`), parent("broken", "6", `"fin"`), parent("hopeless", "7", `"fin"`),
		},
	}
	absent := thing
	absent.Resource = "absents"
	result := release(t.Context(), api, Claims{Finalizer: "fin", Parents: []object.Kind{absent, thing}})
	if result.parents != 4 || result.failures != 2 {
		t.Errorf("it is %+v", result)
	}
	if err := result.err(); err == nil || !strings.Contains(err.Error(), "ns/broken") || !strings.Contains(err.Error(), "ns/hopeless") {
		t.Errorf("the error is %v", err)
	}
	if got := api.lives["plain"].Finalizers(); !slices.Equal(got, []string{"other"}) {
		t.Errorf("the finalizers left are %q", got)
	}
	if !api.lives["again"].HasFinalizer("fin") {
		t.Error("a new parent of the name lost its finalizer")
	}

	// A second time does what is left.
	api.broken, api.conflicts = nil, map[string]int{}
	if result := release(t.Context(), api, Claims{Finalizer: "fin", Parents: []object.Kind{thing}}); result.err() != nil {
		t.Error(result.err())
	}
	for name, live := range api.lives {
		if name != "again" && live.HasFinalizer("fin") {
			t.Errorf("%s has the finalizer still", name)
		}
	}
}

func TestElders(t *testing.T) {
	other := object.Kind{GroupVersionKind: schema.GroupVersionKind{Group: "demo", Version: "v1", Kind: "Other"}, Resource: "others"}
	define := func(name, selector string, parent object.Kind, children ...object.Kind) Definition {
		parsed, err := labels.Parse(selector)
		if err != nil {
			t.Fatal(err)
		}
		d := Definition{Kind: v1alpha1.CompositeControllerKind, Name: name, Parents: []Parent{{Kind: parent, Selector: parsed}}, Hooks: Hooks{Sync: &v1alpha1.Hook{}}}
		for _, child := range children {
			d.Children = append(d.Children, Child{Kind: child})
		}
		return d
	}
	finalizeOnly := define("finalizer", "", thing, config)
	finalizeOnly.Hooks = Hooks{Finalize: &v1alpha1.Hook{}}
	mine := contender{definition: define("mine", "app=x", thing, config), created: "2030-01-02T00:00:00Z"}
	all := map[string]contender{"mine": mine}
	for created, definitions := range map[string][]Definition{
		"2030-01-01T00:00:00Z": {
			define("all", "", thing, other, config), define("set", "app in (x,y)", thing, config), define("apart", "app=y", thing, config),
			define("parents", "", other, config), define("children", "", thing, other), finalizeOnly,
		},
		"2030-01-02T00:00:00Z": {define("a", "", thing, config), define("z", "", thing, config)},
		"2030-01-03T00:00:00Z": {define("younger", "", thing, config)},
	} {
		for _, definition := range definitions {
			all[definition.Name] = contender{definition: definition, created: created}
		}
	}
	var names []string
	found := elders(mine, all)
	for _, elder := range found {
		names = append(names, elder.Name)
	}
	if !slices.Equal(names, []string{"a", "all", "set"}) {
		t.Errorf("it gives way to %q", names)
	}
	parent := build(t, thing, `,"labels":{"app":"z"}`, "")
	if !found[0].Claims(parent) || found[2].Claims(parent) {
		t.Error("the parents of a rival are not those that it selects")
	}
	// A rival has to finalize what it selects no more, and nothing to do with what
	// goes without it.
	rival := found[2]
	rival.finalizer = "fin"
	const deleted = `,"deletionTimestamp":"2030-01-01T00:00:00Z"`
	for metadata, want := range map[string]bool{
		`,"labels":{"app":"x"}`: true, `,"labels":{"app":"z"},"finalizers":["fin"]`: true, `,"labels":{"app":"z"},"finalizers":["other"]`: false,
		`,"labels":{"app":"x"}` + deleted: false, `,"labels":{"app":"x"},"finalizers":["fin"]` + deleted: true,
	} {
		if rival.Claims(build(t, thing, metadata, "")) != want {
			t.Errorf("it acts for a parent with %s: %v", metadata, !want)
		}
	}
	decorator := mine
	decorator.definition.Kind = v1alpha1.DecoratorControllerKind
	if got := elders(decorator, all); got != nil {
		t.Errorf("a decorator gives way to %v", got)
	}
	// Of two there is one that acts.
	for name, one := range all {
		for otherName, two := range all {
			if name != otherName && one.olderThan(two) == two.olderThan(one) {
				t.Errorf("%q and %q are both older", name, otherName)
			}
		}
	}
}

// nobody is a copy without objects.
type nobody struct{ Cache }

func (nobody) Get(string, string) *object.Object { return nil }

// A controller whose object went between the survey and the first event leaves its
// parents to the others.
func TestControllerThatWentUnseen(t *testing.T) {
	h := NewHost(HostConfig{Declared: nobody{}})
	h.contenders["ghost"] = contender{definition: Definition{Name: "ghost"}}
	queue := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[reconcile.Request]())
	defer queue.ShutDown()
	h.recount(queue)
	if queue.Len() != 1 {
		t.Fatalf("%d are looked at again", queue.Len())
	}
	found, _ := queue.Get()
	if _, err := h.reconcile(t.Context(), t.Context(), found.Name); err != nil {
		t.Fatal(err)
	}
	if len(h.contenders) > 0 {
		t.Errorf("the others still give way to %v", h.contenders)
	}
}

func TestFailuresInTheLog(t *testing.T) {
	var out bytes.Buffer
	log := withFailures(funcr.New(func(_, line string) { out.WriteString(line) }, funcr.Options{}))
	log.WithValues("controller", "cc").WithName("n").Error(fmt.Errorf("sync: %w", &Failure{Err: errors.New("boom"), Hook: "sync", Path: "children[0]"}), "Reconciler error")
	for _, text := range []string{`"controller"="cc"`, `"hook"="sync"`, `"path"="children[0]"`, "boom"} {
		if !strings.Contains(out.String(), text) {
			t.Errorf("%s is not in %s", text, out.String())
		}
	}
}

// A panic about one object does not reach the informer.
func TestGuardedHandler(t *testing.T) {
	var lines []string
	log := funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})
	o := build(t, thing, "", "")
	guarded(log, func(_, _ *object.Object, _ bool) { panic("boom") })(o, nil, false)
	if len(lines) != 1 || !strings.Contains(lines[0], "boom") || !strings.Contains(lines[0], "ns/a") {
		t.Errorf("the log is %q", lines)
	}
}

// forbidding is an API server that answers a question for what it does not serve
// like one for what it does, to somebody without the right.
type forbidding struct {
	API
	asked int
}

func (f *forbidding) ListMetadata(context.Context, object.Kind, func(*object.Object)) error {
	f.asked++
	return apierrors.NewForbidden(things, "", errors.New("no right"))
}

func (*forbidding) Get(context.Context, object.Kind, string, string) (*object.Object, error) {
	return nil, apierrors.NewNotFound(things, "a")
}

type events []string

func (e *events) Normal(_ *object.Object, reason, message string) {
	*e = append(*e, reason+": "+message)
}
func (e *events) Warning(_ *object.Object, reason, message string) {
	*e = append(*e, reason+": "+message)
}

// A controller, its rights and the kind of its parents go in one command.
func TestLeftoversOfAKindThatIsGone(t *testing.T) {
	var told events
	api := &forbidding{}
	served := true
	h := NewHost(HostConfig{API: api, Events: &told, Lookup: func(context.Context, string, string) (object.Kind, bool, error) {
		if served {
			return thing, false, nil
		}
		return object.Kind{}, true, errors.New("not served")
	}})
	h.leave("cc", leftover{Claims: Claims{Finalizer: "fin", Parents: []object.Kind{thing}}, declared: build(t, thing, "", "")})
	if err := h.settle(t.Context(), "cc"); err == nil || len(told) != 1 || !strings.Contains(told[0], "no right") {
		t.Errorf("while the kind is served: %v, events %q", err, told)
	}
	served = false
	if err := h.settle(t.Context(), "cc"); err != nil || len(told) != 1 {
		t.Errorf("once it is not: %v, events %q", err, told)
	}
	if err := h.settle(t.Context(), "cc"); err != nil || api.asked != 2 {
		t.Errorf("later: %v after %d requests", err, api.asked)
	}
}

// adds is a queue that notes what is added.
type adds struct {
	priorityqueue.PriorityQueue[object.Key]
	after []time.Duration
}

func (a *adds) AddWithOpts(o priorityqueue.AddOpts, _ ...object.Key) {
	a.after = append(a.after, o.After)
}

type verdict struct {
	Syncer
	outcome Outcome
}

func (v *verdict) Sync(context.Context, object.Key) Outcome { return v.outcome }

// A parent that is gone is not resynced: the queue would fill with all that ever
// were.
func TestResyncs(t *testing.T) {
	for _, c := range []struct {
		reason  string
		outcome Outcome
		want    bool
	}{
		{"a pass that went well", Outcome{Verdict: Done}, true},
		{"no such parent", Outcome{Verdict: Gone}, false},
	} {
		queue := &adds{}
		r := &run{
			definition: Definition{ResyncPeriod: time.Second}, syncer: &verdict{outcome: c.outcome}, queue: queue, backoff: newBackoff(clock.RealClock{}, backoffBase),
			busy: newBackoff(clock.RealClock{}, busyBase),
		}
		r.lanes = &lanes{
			clock: clock.RealClock{}, places: 1, sync: r.syncer.Sync,
			begin: func() (context.Context, context.CancelFunc) { return context.WithCancel(t.Context()) },
		}
		result, err := r.reconcile(t.Context(), thing.Key("ns", "a"))
		if err != nil || result.RequeueAfter != 0 || (len(queue.after) > 0) != c.want {
			t.Errorf("%s: %+v, %v, resyncs %v", c.reason, result, err, queue.after)
		}
	}
}
