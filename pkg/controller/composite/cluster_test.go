package composite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/declare"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/syncer"
	"github.com/metacontroller-solo/solo/pkg/object"
)

type tester interface {
	Helper()
	Fatalf(format string, arguments ...any)
}

var (
	thingKind    = object.Kind{GroupVersionKind: schema.GroupVersionKind{Group: "demo", Version: "v1", Kind: "Thing"}, Resource: "things", Namespaced: true}
	widgetKind   = object.Kind{GroupVersionKind: schema.GroupVersionKind{Group: "demo", Version: "v1", Kind: "Widget"}, Resource: "widgets", Namespaced: true}
	revisionKind = object.Kind{GroupVersionKind: v1alpha1.GroupVersion.WithKind(v1alpha1.ControllerRevisionKind), Resource: v1alpha1.ControllerRevisionResource, Namespaced: true}
)

// errCrash is what a process that is no more gets of all that it tries.
var errCrash = errors.New("the process has ended")

// simulated is a small cluster: a store that behaves like an API server in what
// matters here, caches that show it at once, and a hook.
type simulated struct {
	t tester

	mu      sync.Mutex
	objects map[object.Key]*object.Object
	version int
	// writes are those of the controller; changes are those of anybody.
	writes  []string
	changes int
	// fault is asked before each write of the controller: the error is the
	// answer, and after says that the write is carried out nevertheless.
	fault func() (err error, after bool)
	// disturbed are children that the controller changed or deleted while they
	// were ready, and that are not ready again.
	disturbed map[object.Key]bool
	// onDisturb is told of each.
	onDisturb func(object.Key)

	// answer is the hook.
	answer func(parent map[string]any) (any, error)
	// asked are the parents that it was asked about.
	asked  []map[string]any
	events said

	controller *engine.Controller
	syncer     engine.Syncer
}

// said collects events.
type said []string

func (s *said) Normal(_ *object.Object, reason, message string) { *s = append(*s, reason+": "+message) }
func (s *said) Warning(_ *object.Object, reason, message string) {
	*s = append(*s, reason+": "+message)
}

func newSimulated(t tester, spec *object.Object) *simulated {
	t.Helper()
	s := &simulated{t: t, objects: map[object.Key]*object.Object{}, disturbed: map[object.Key]bool{}}
	known := map[string]declare.Resource{
		"demo/v1 things":  {Kind: thingKind, HasStatus: true, Custom: true},
		"demo/v1 widgets": {Kind: widgetKind, HasStatus: true, Custom: true},
		"v1 configmaps":   {Kind: kind("", "v1", "ConfigMap", "configmaps")},
		v1alpha1.GroupVersion.String() + " " + v1alpha1.ControllerRevisionResource: {Kind: revisionKind, Custom: true},
	}
	b := &Builder{declare.Tools{
		Lookup: func(_ context.Context, apiVersion, resource string) (declare.Resource, bool, error) {
			found, ok := known[apiVersion+" "+resource]
			if !ok {
				return declare.Resource{}, true, errors.New("no such resource")
			}
			return found, false, nil
		},
		Caller:    func(declare.Webhook) (syncer.Caller, error) { return s, nil },
		Writer:    s,
		Events:    &s.events,
		Clock:     clocktesting.NewFakePassiveClock(time.Unix(1700000000, 0)),
		Log:       logr.Discard(),
		Namespace: "own",
	}}
	var err error
	if s.controller, err = b.Build(context.Background(), spec); err != nil {
		t.Fatalf("cannot build: %v", err)
	}
	s.restart()
	return s
}

// restart forgets what a process remembers.
func (s *simulated) restart() {
	caches := engine.Caches{
		Parents:   map[schema.GroupKind]engine.Cache{thingKind.GroupKind(): view{s: s, kind: thingKind}},
		Children:  map[schema.GroupKind]engine.Cache{},
		Revisions: view{s: s, kind: revisionKind},
	}
	for _, child := range s.controller.Definition.Children {
		caches.Children[child.GroupKind()] = view{s: s, kind: child.Kind}
	}
	var err error
	if s.syncer, err = s.controller.Start(caches); err != nil {
		s.t.Fatalf("cannot start: %v", err)
	}
	s.fault = nil
}

// Call is the hook.
func (s *simulated) Call(_ context.Context, _ string, body []byte) ([]byte, error) {
	var request struct {
		Parent map[string]any `json:"parent"`
	}
	if err := json.Unmarshal(body, &request); err != nil {
		return nil, err
	}
	s.mu.Lock()
	s.asked = append(s.asked, request.Parent)
	s.mu.Unlock()
	answer, err := s.answer(request.Parent)
	if err != nil {
		return nil, err
	}
	if raw, ok := answer.(string); ok {
		return []byte(raw), nil
	}
	return json.Marshal(answer)
}

// Accept has nothing to remember: the hook sends no ETag.
func (s *simulated) Accept(string) {}
func (s *simulated) Forget(string) {}

func (s *simulated) URL() string { return "http://hook" }
func (s *simulated) Close()      {}

// write carries out a write of the controller, or does not.
func (s *simulated) write(what string, o *object.Object, do func() (*object.Object, error)) (*object.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var failure error
	if s.fault != nil {
		err, after := s.fault()
		if err != nil && !after {
			return nil, err
		}
		failure = err
	}
	written, err := do()
	if err == nil {
		s.writes = append(s.writes, what+" "+o.Key().String())
	}
	if failure != nil {
		return nil, failure
	}
	return written, err
}

func (s *simulated) Create(_ context.Context, _ object.Kind, o *object.Object) (*object.Object, error) {
	return s.write("create", o, func() (*object.Object, error) {
		if s.objects[o.Key()] != nil {
			return nil, apierrors.NewAlreadyExists(schema.GroupResource{}, o.Name())
		}
		return s.put(o.Content(), nil), nil
	})
}

func (s *simulated) Update(_ context.Context, _ object.Kind, o *object.Object) (*object.Object, error) {
	return s.write("update", o, func() (*object.Object, error) { return s.replace(o, false) })
}

func (s *simulated) UpdateStatus(_ context.Context, _ object.Kind, o *object.Object) (*object.Object, error) {
	return s.write("status", o, func() (*object.Object, error) { return s.replace(o, true) })
}

func (s *simulated) ServerSideApply() bool { return false }

var errNotHere = errors.New("this is not done here")

func (s *simulated) Apply(context.Context, object.Kind, *object.Object) (*object.Object, error) {
	return nil, errNotHere
}

func (s *simulated) Preview(context.Context, object.Kind, *object.Object, bool) (*object.Object, error) {
	return nil, errNotHere
}

func (s *simulated) HandOver(context.Context, object.Kind, *object.Object) (*object.Object, error) {
	return nil, errNotHere
}

func (s *simulated) Patch(context.Context, object.Kind, *object.Object, map[string]any) (*object.Object, error) {
	return nil, errNotHere
}

func (s *simulated) SetFinalizers(context.Context, object.Kind, *object.Object, []string) (*object.Object, error) {
	return nil, errors.New("there are no finalizers here")
}

func (s *simulated) Delete(_ context.Context, kind object.Kind, key object.Key, uid types.UID) error {
	o := view{s: s, kind: kind}.Get(key.Namespace, key.Name)
	if o == nil || o.UID() != uid {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	_, err := s.write("delete", o, func() (*object.Object, error) {
		if kind == widgetKind {
			s.disturb(o)
		}
		s.remove(o)
		return nil, nil
	})
	return err
}

func (s *simulated) Get(_ context.Context, _ object.Kind, namespace, name string) (*object.Object, error) {
	return view{s: s, kind: thingKind}.Get(namespace, name), nil
}

// replace is an update: of the status alone, or of all but the status.
func (s *simulated) replace(o *object.Object, status bool) (*object.Object, error) {
	current := s.objects[o.Key()]
	switch {
	case current == nil:
		return nil, apierrors.NewNotFound(schema.GroupResource{}, o.Name())
	case current.ResourceVersion() != o.ResourceVersion() || current.UID() != o.UID():
		return nil, apierrors.NewConflict(schema.GroupResource{}, o.Name(), errors.New("changed"))
	}
	content, from := o.Content(), current.Content()
	if status {
		from["status"], content = content["status"], from
	} else if content["status"] = from["status"]; from["status"] == nil {
		delete(content, "status")
	}
	if !status && o.Kind() == "Widget" && !object.Equal(content["spec"], current.Content()["spec"]) {
		s.disturb(current)
	}
	return s.put(content, current), nil
}

// put stores what an API server would make of it.
func (s *simulated) put(content map[string]any, current *object.Object) *object.Object {
	metadata := content["metadata"].(map[string]any)
	generation := int64(1)
	if current == nil {
		s.version++
		metadata["uid"] = "uid-" + strconv.Itoa(s.version)
		metadata["creationTimestamp"] = time.Unix(1600000000+int64(s.version), 0).UTC().Format(time.RFC3339)
	} else if generation = current.Generation(); !object.Equal(current.Content()["spec"], content["spec"]) {
		generation++
	}
	metadata["generation"] = generation
	if current != nil {
		metadata["resourceVersion"] = current.ResourceVersion()
		if same, err := object.FromContent(content); err == nil && object.Equal(same.Content(), current.Content()) {
			return current
		}
	}
	s.version++
	s.changes++
	metadata["resourceVersion"] = strconv.Itoa(s.version)
	stored, err := object.FromContent(content)
	if err != nil {
		s.t.Fatalf("cannot store: %v", err)
	}
	s.objects[stored.Key()] = stored
	return stored
}

// remove deletes an object, or marks it if it has finalizers.
func (s *simulated) remove(o *object.Object) {
	s.changes++
	if len(o.Finalizers()) == 0 {
		delete(s.objects, o.Key())
		return
	}
	content := o.Content()
	content["metadata"].(map[string]any)["deletionTimestamp"] = "2030-01-01T00:00:00Z"
	s.put(content, o)
}

// disturb notes that the controller changes or deletes a child that does its
// work, and that is still wanted.
func (s *simulated) disturb(o *object.Object) {
	if !isReady(o) || !s.wanted(o) {
		return
	}
	if s.onDisturb != nil {
		s.onDisturb(o.Key())
	}
	s.disturbed[o.Key()] = true
}

// wanted says whether the parent as it is wants a child, by the default hook.
func (s *simulated) wanted(o *object.Object) bool {
	for _, name := range widgetNames(s.parentLocked().Content()) {
		if name == o.Name() {
			return true
		}
	}
	return false
}

func (s *simulated) parentLocked() *object.Object {
	return s.objects[thingKind.Key("ns", "p")]
}

func (s *simulated) parent() *object.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.parentLocked()
}

// edit is a user's change of an object.
func (s *simulated) edit(key object.Key, change func(content map[string]any)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	current := s.objects[key]
	content := current.Content()
	change(content)
	s.put(content, current)
}

func (s *simulated) editSpec(field string, value any) {
	s.edit(thingKind.Key("ns", "p"), func(content map[string]any) { content["spec"].(map[string]any)[field] = value })
}

// add is a user's creation.
func (s *simulated) add(text string) *object.Object {
	o, err := object.FromJSON([]byte(text))
	if err != nil {
		s.t.Fatalf("%v", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.put(o.Content(), nil)
}

// kill is a user's deletion.
func (s *simulated) kill(o *object.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(o)
}

// gone ends a deletion.
func (s *simulated) gone(o *object.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	delete(s.objects, o.Key())
}

// of are the objects of a kind, by name.
func (s *simulated) of(kind object.Kind) []*object.Object { return view{s: s, kind: kind}.List() }

// values are what the children have.
func (s *simulated) values() map[string]string {
	out := map[string]string{}
	for _, o := range s.of(widgetKind) {
		out[o.Name()] = valueOf(o)
	}
	return out
}

func valueOf(o *object.Object) string {
	spec, _ := o.Content()["spec"].(map[string]any)
	value, _ := spec["value"].(string)
	return value
}

// isReady says that a child does its work, with the spec that it has.
func isReady(o *object.Object) bool {
	status, _ := o.Content()["status"].(map[string]any)
	return !o.Terminating() && status["ready"] == true && status["observedGeneration"] == o.Generation()
}

// tend brings the status of a child up to date, as the controller of its kind
// would. A child with the value "broken" never gets ready.
func (s *simulated) tend(o *object.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	current := s.objects[o.Key()]
	if current == nil || current.Terminating() {
		return
	}
	ready, text := valueOf(current) != "broken", "False"
	if ready {
		text = "True"
		delete(s.disturbed, o.Key())
	}
	content := current.Content()
	content["status"] = map[string]any{
		"ready": ready, "observedGeneration": current.Generation(),
		"conditions": []any{map[string]any{"type": "Ready", "status": text}},
	}
	s.put(content, current)
}

// sync makes a pass and returns what the controller wrote in it.
func (s *simulated) sync() (engine.Outcome, []string) {
	s.mu.Lock()
	s.writes, s.asked = nil, nil
	s.mu.Unlock()
	outcome := s.syncer.Sync(context.Background(), thingKind.Key("ns", "p"))
	s.mu.Lock()
	defer s.mu.Unlock()
	// What is gone or no longer wanted is nobody's trouble.
	maps.DeleteFunc(s.disturbed, func(key object.Key, _ bool) bool {
		return !slices.Contains(widgetNames(s.parentLocked().Content()), key.Name)
	})
	return outcome, s.writes
}

// condition is the one of the rollout.
func (s *simulated) condition() map[string]any {
	status, _ := s.parent().Content()["status"].(map[string]any)
	list, _ := status["conditions"].([]any)
	for _, one := range list {
		if fields, _ := one.(map[string]any); fields["type"] == "Updated" {
			return fields
		}
	}
	return nil
}

// widgetNames are the names that the default hook makes of a parent.
func widgetNames(parent map[string]any) []string {
	spec, _ := parent["spec"].(map[string]any)
	var count int
	switch n := spec["count"].(type) {
	case float64:
		count = int(n)
	case int64:
		count = int(n)
	}
	names := make([]string, 0, count)
	for i := range count {
		names = append(names, "w-"+strconv.Itoa(i))
	}
	if spec["reversed"] == true {
		slices.Reverse(names)
	}
	return names
}

// widgets is the default hook: count children with the value of the template and
// the extra of the parent.
func widgets(parent map[string]any) (any, error) {
	spec, _ := parent["spec"].(map[string]any)
	template, _ := spec["template"].(map[string]any)
	children := []any{}
	for _, name := range widgetNames(parent) {
		child := map[string]any{
			"apiVersion": "demo/v1", "kind": "Widget", "metadata": map[string]any{"name": name},
			"spec": map[string]any{"value": template["value"], "extra": spec["extra"]},
		}
		children = append(children, child)
	}
	return map[string]any{"status": map[string]any{"want": len(children)}, "children": children}, nil
}

// view is the cache of one kind.
type view struct {
	s    *simulated
	kind object.Kind
}

func (v view) List() []*object.Object { return v.filter(func(*object.Object) bool { return true }) }

func (v view) filter(keep func(*object.Object) bool) []*object.Object {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	var out []*object.Object
	for key, o := range v.s.objects {
		if key.GroupKind() == v.kind.GroupKind() && keep(o) {
			out = append(out, o)
		}
	}
	slices.SortFunc(out, func(a, b *object.Object) int { return a.Key().Compare(b.Key()) })
	return out
}

func (v view) Get(namespace, name string) *object.Object {
	v.s.mu.Lock()
	defer v.s.mu.Unlock()
	return v.s.objects[v.kind.Key(namespace, name)]
}

func (v view) State() (bool, error) { return true, nil }

func (v view) Select(namespace string, selector labels.Selector) []*object.Object {
	return v.filter(func(o *object.Object) bool {
		return (namespace == "" || o.Namespace() == namespace) && selector.Matches(labels.Set(o.Labels()))
	})
}

func (v view) Named(name string) []*object.Object {
	return v.filter(func(o *object.Object) bool { return o.Name() == name })
}

func (v view) ByOwner(uid types.UID) []*object.Object {
	return v.filter(func(o *object.Object) bool { return object.ControlledBy(o, uid) })
}

func (v view) Orphans(namespace string, selector labels.Selector) []*object.Object {
	return v.filter(func(o *object.Object) bool {
		return object.ControllerOf(o) == nil && (namespace == "" || o.Namespace() == namespace) && selector.Matches(labels.Set(o.Labels()))
	})
}

func (v view) WaitForSync(context.Context) error { return nil }
func (v view) Seen(string) bool                  { return true }
func (v view) Release()                          {}
func (v view) Handle(func(before, after *object.Object, initial bool)) error {
	return fmt.Errorf("nobody handles %s here", v.kind.Resource)
}
