package controller_test

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
)

// These tests are about features that meet: each of them has tests of its own.

// combined is a fixture for several features at once.
type combined struct {
	relatedFixture
	// rounds is how often passes were asked for.
	rounds int
}

func newCombined(t *testing.T) *combined {
	t.Helper()
	f := &combined{relatedFixture: relatedFixture{newFixture(t)}}
	for _, file := range []string{"decorator.yaml", "related.yaml", "rolling.yaml", "apply.yaml", "combination.yaml"} {
		if _, err := kit.ApplyFile(t.Context(), f.cp.AdminConfig(0), filepath.Join("testdata", file)); err != nil {
			t.Fatal(err)
		}
	}
	for _, right := range []authorizationv1.ResourceAttributes{
		{Verb: "delete", Group: "demo.example.com", Resource: "gadgets"}, {Verb: "patch", Group: "demo.example.com", Resource: "gadgets"},
		{Verb: "watch", Group: "related.example.com", Resource: "sources"}, {Verb: "patch", Group: "deco.example.com", Resource: "widgets"},
		{Verb: "get", Resource: "configmaps"},
	} {
		f.may(right)
	}
	return f
}

// may waits until the controller has a right: rights are there once they are
// aggregated.
func (f *combined) may(right authorizationv1.ResourceAttributes) {
	f.t.Helper()
	right.Namespace = f.ns
	kit.Eventually(f.t, soon, func() error {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: controllerUser, Groups: []string{"system:serviceaccounts"}, ResourceAttributes: &right,
		}}
		if err := f.client.Create(f.t.Context(), review); err != nil {
			return err
		}
		if !review.Status.Allowed {
			return fmt.Errorf("the controller may not %s %s yet", right.Verb, right.Resource)
		}
		return nil
	})
}

// asking is what any hook is sent. A field that the request does not have is nil.
type asking struct {
	Controller  *metav1.PartialObjectMetadata
	Parent      *asked
	Object      *asked
	Children    map[string]map[string]any
	Attachments map[string]map[string]corev1.ConfigMap
	Related     map[string]map[string]struct {
		Spec struct{ Value string }
	}
	Finalizing *bool
}

// asked is the object that a hook is asked about.
type asked struct {
	Metadata metav1.ObjectMeta
	Spec     struct{ Source string }
}

// about is the object, whatever it is called.
func (a asking) about() *asked {
	if a.Object != nil {
		return a.Object
	}
	return a.Parent
}

// requests are those to a hook about an object.
func (f *combined) requests(path string, u *unstructured.Unstructured) []asking {
	f.t.Helper()
	var found []asking
	for _, request := range f.hooks.Requests(path) {
		var one asking
		if err := request.Decode(&one); err != nil {
			f.t.Fatal(err)
		}
		if about := one.about(); about != nil && about.Metadata.UID == u.GetUID() {
			found = append(found, one)
		}
	}
	return found
}

// waitAsked waits for a request about an object that is as wanted.
func (f *combined) waitAsked(path string, u *unstructured.Unstructured, wanted func(asking) bool) asking {
	f.t.Helper()
	var found asking
	kit.Eventually(f.t, soon, func() error {
		all := f.requests(path, u)
		at := slices.IndexFunc(all, wanted)
		if at < 0 {
			return fmt.Errorf("none of %d requests to %s about %s is the one", len(all), path, u.GetName())
		}
		found = all[at]
		return nil
	})
	return found
}

// annotationRound counts what passes are for.
const annotationRound = "round"

// passes has a hook asked twice about objects. When it returns the first pass is
// over, for one object is synced by one pass at a time.
func (f *combined) passes(path string, objects ...*unstructured.Unstructured) {
	f.t.Helper()
	for range 2 {
		f.rounds++
		round := strconv.Itoa(f.rounds)
		for _, u := range objects {
			f.annotate(u, annotationRound, round)
		}
		for _, u := range objects {
			f.waitAsked(path, u, func(a asking) bool { return a.about().Metadata.Annotations[annotationRound] == round })
		}
	}
}

// nothingWritten fails if the controller wrote anything in the test's namespace.
func (f *combined) nothingWritten(what string, since int) {
	f.t.Helper()
	for _, w := range f.writes()[since:] {
		f.t.Errorf("%s: %s %s", what, w.Verb, w.RequestURI)
	}
}

// noEvents fails if there is an event about an object.
func (f *combined) noEvents(objects ...*unstructured.Unstructured) {
	f.t.Helper()
	for _, u := range objects {
		if said := messages(f.eventsOf(u)); len(said) > 0 {
			f.t.Errorf("events about %s: %q", u.GetName(), said)
		}
	}
}

// stop ends a controller that must end well.
func (f *combined) stop(p *kit.Program) {
	f.t.Helper()
	if code := p.Stop(); code != 0 {
		f.t.Fatalf("exit code %d", code)
	}
}

// sourceNamed is a customize hook: it asks for the source that the object names.
func sourceNamed() kit.Hook {
	return kit.JSON(func(a asking) (object, error) {
		if a.Parent == nil || a.Object != nil || a.Children != nil || a.Attachments != nil || a.Related != nil || a.Finalizing != nil {
			return nil, errors.New("the request is none to a customize hook")
		}
		return object{"relatedResources": []object{{"apiVersion": relatedAPI, "resource": "sources", "names": []string{a.Parent.Spec.Source}}}}, nil
	})
}

// withSource is spec.source of a new object.
func withSource(name string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) { u.Object["spec"] = object{"source": name} }
}

// TestDecoratorWithRelatedObjects: what is related, a change of it, other rules, a
// customize hook that is busy, and a controller object whose metadata changes.
func TestDecoratorWithRelatedObjects(t *testing.T) {
	f := newCombined(t)
	customize := sourceNamed()
	var busy sync.Map // by name of the object: whether the hook was busy before
	f.hooks.Handle("/customize", func(w http.ResponseWriter, r *http.Request, request kit.HookRequest) {
		var a asking
		if err := request.Decode(&a); err == nil && a.Parent != nil && strings.HasPrefix(a.Parent.Metadata.Name, "busy") {
			if _, before := busy.LoadOrStore(a.Parent.Metadata.Name, true); !before {
				kit.Status(http.StatusTooManyRequests, "", "Retry-After: 1")(w, r, request)
				return
			}
		}
		customize(w, r, request)
	})
	decorate := func(finalized func(values string) bool) kit.Hook {
		return kit.JSON(func(a asking) (object, error) {
			if a.Object == nil || a.Parent != nil || a.Attachments == nil || a.Children != nil || a.Related == nil || a.Finalizing == nil {
				return nil, errors.New("the request is none to a decorator's hook")
			}
			values := []string{}
			for key, source := range a.Related[sourceKey] {
				values = append(values, key+"-"+source.Spec.Value)
			}
			slices.Sort(values)
			all := strings.Join(values, "_")
			return object{
				"labels": object{"sources": all}, "finalized": *a.Finalizing && finalized(all),
				"attachments": []object{{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": a.Object.Metadata.Name + "-0"}, "data": object{"v": all}}},
			}, nil
		})
	}
	f.hooks.Handle("/decorate", decorate(nil))
	f.hooks.Handle("/finalize", decorate(func(values string) bool { return values == "other-go" }))
	dc := f.decorator(func(dc *v1alpha1.DecoratorController) {
		dc.Spec.Hooks.Customize = hookAt(f.hooks.URL("/customize"))
		f.decoratorWithFinalize(dc)
	})
	f.start()
	source := f.source("one", "1", nil)
	other := f.source("other", "x", nil)
	w := f.target(decoAPI, "Widget", "w", "", withSource("one"))
	f.waitChildren("w-", map[string]string{"w-0": "one-1"})
	f.waitLive(w, labelIs("sources", "one-1"))
	f.patch(source, `{"spec":{"value":"2"}}`)
	f.waitChildren("w-", map[string]string{"w-0": "one-2"})
	f.patch(w.DeepCopy(), `{"spec":{"source":"other"}}`)
	f.waitChildren("w-", map[string]string{"w-0": "other-x"})
	f.waitLive(w, labelIs("sources", "other-x"))

	// Nothing to do is nothing done, and a change of what is no longer related is
	// none.
	f.passes("/decorate", w)
	since := len(f.writes())
	f.patch(source, `{"spec":{"value":"3"}}`)
	f.passes("/decorate", w)
	f.nothingWritten("other passes", since)

	// Both hooks are shown the controller object as it is, though the decorated
	// object did not change since.
	declared := &unstructured.Unstructured{Object: object{"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.DecoratorControllerKind}}
	declared.SetName(dc.Name)
	started := f.started(dc.Name)
	f.patch(declared, `{"metadata":{"annotations":{"told":"1"}}}`)
	edited := func(a asking) bool { return a.Controller != nil && a.Controller.Annotations["told"] == "1" }
	kit.Eventually(t, soon, func() error {
		// The edit is on its way to the controller; a related object has it look.
		f.patch(other, fmt.Sprintf(`{"spec":{"value":"y%d"}}`, len(f.hooks.Requests("/decorate"))))
		if !slices.ContainsFunc(f.requests("/decorate", w), edited) {
			return errors.New("the sync hook was not shown the edit yet")
		}
		return nil
	})
	f.waitAsked("/customize", w, edited)
	if now := f.started(dc.Name); now != started {
		t.Errorf("an edit of metadata restarted the controller: %d, before %d", now, started)
	}

	// A customize hook that is busy is left alone for as long as it says, and
	// nobody is told.
	late := f.target(decoAPI, "Widget", "busy", "", func(u *unstructured.Unstructured) {
		withSource("one")(u)
		// To put it on would be a reason to ask again.
		u.SetFinalizers([]string{"metacontroller.io/decoratorcontroller-" + dc.Name})
	})
	f.waitChildren("busy-", map[string]string{"busy-0": "one-3"})
	f.noEvents(late)
	times := []time.Time{}
	for _, request := range f.hooks.Requests("/customize") {
		if strings.Contains(string(request.Body), string(late.GetUID())) {
			times = append(times, request.At)
		}
	}
	if len(times) < 2 || times[1].Sub(times[0]) < time.Second {
		t.Errorf("the hook that was busy was asked at %v", times)
	}

	// While the object is finalized its related objects still matter.
	f.delete(w.DeepCopy())
	f.waitAsked("/finalize", w, func(a asking) bool { return len(a.Related[sourceKey]) == 1 })
	f.waitAsked("/customize", w, func(a asking) bool { return a.Parent.Metadata.DeletionTimestamp != nil })
	if f.live(w) == nil {
		t.Fatal("it is gone before the hook said so")
	}
	f.patch(other, `{"spec":{"value":"go"}}`)
	f.waitGone(w)
	f.noEvents(w)
}

// TestFinalizeWithRelatedObjects is the same of a CompositeController: children are
// kept by the finalize hook until a related object lets them go.
func TestFinalizeWithRelatedObjects(t *testing.T) {
	f := newCombined(t)
	f.hooks.Handle("/customize", sourceNamed())
	hook := kit.JSON(func(a asking) (object, error) {
		name := a.Parent.Metadata.Name + "-0"
		value := a.Related[sourceKey][a.Parent.Spec.Source].Spec.Value
		children := []object{}
		if value != "go" {
			children = append(children, object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": name}, "data": object{"v": value}})
		}
		return object{"status": object{"value": value}, "children": children, "finalized": *a.Finalizing && len(a.Children["ConfigMap.v1"]) == 0}, nil
	})
	f.hooks.Handle("/sync", hook)
	f.hooks.Handle("/finalize", hook)
	cc := f.composite(func(cc *v1alpha1.CompositeController) {
		cc.Spec.Hooks.Customize, cc.Spec.Hooks.Finalize = hookAt(f.hooks.URL("/customize")), hookAt(f.hooks.URL("/finalize"))
	})
	f.start()
	source := f.source("one", "1", nil)
	deleted := f.thing("deleted", object{"source": "one"})
	deselected := f.thing("deselected", object{"source": "one"})
	f.waitChildren("de", map[string]string{"deleted-0": "1", "deselected-0": "1"})

	// The hooks are shown what is new in the metadata of the controller object.
	f.patch(f.declared(cc), `{"metadata":{"annotations":{"told":"1"}}}`)
	kit.Eventually(t, soon, func() error {
		f.passes("/sync", deleted)
		for _, path := range []string{"/sync", "/customize"} {
			if all := f.requests(path, deleted); all[len(all)-1].Controller.Annotations["told"] != "1" {
				return fmt.Errorf("%s was shown %v", path, all[len(all)-1].Controller.Annotations)
			}
		}
		return nil
	})

	f.delete(deleted.DeepCopy())
	f.patch(deselected.DeepCopy(), `{"metadata":{"labels":{"test":null}}}`)
	both := []*unstructured.Unstructured{deleted, deselected}
	for _, u := range both {
		f.waitAsked("/finalize", u, func(a asking) bool { return *a.Finalizing && len(a.Children["ConfigMap.v1"]) == 1 })
	}
	f.patch(source, `{"spec":{"value":"2"}}`)
	f.waitChildren("de", map[string]string{"deleted-0": "2", "deselected-0": "2"})
	f.patch(source, `{"spec":{"value":"go"}}`)
	f.waitGone(deleted)
	f.waitFinalizer("metacontroller.io/compositecontroller-"+cc.Name, false, deselected)
	f.waitChildren("de", map[string]string{})
	f.noEvents(both...)
}

// TestDecoratorByServerSideApply makes, changes and removes attachments, leaves
// what is not its own alone, and is quiet after a restart.
func TestDecoratorByServerSideApply(t *testing.T) {
	f := newCombined(t)
	f.hooks.Handle("/decorate", scripted(annotationAnswer, `{"attachments":[]}`))
	dc := f.decorator(nil)
	p := f.start(serverSide)
	configMap := func(name, data string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q,"labels":{"l":"1"}},"data":%s}`, name, data)
	}
	answer := func(status, attachments string) string {
		return fmt.Sprintf(`{"labels":{"deco":"1"},"status":{"ready":%s},"attachments":[%s]}`, status, attachments)
	}
	w := f.widget("w", answer("1", configMap("w-0", `{"v":"1","gone":"1"}`)+","+configMap("w-1", `{"v":"1"}`)))
	f.waitChildren("w-", map[string]string{"w-0": "1", "w-1": "1"})
	f.waitLive(w, statusIs(`{"ready":1}`))
	f.waitLive(w, labelIs("deco", "1"))
	first := f.fixture.get("v1", "ConfigMap", "w-0")
	owner := metav1.GetControllerOf(first)
	if _, annotated := first.GetAnnotations()[lastApplied]; annotated || first.GetAnnotations()[markAnnotation] != dc.Name ||
		len(managers(first)) != 1 || !managers(first)["metacontroller Apply"] || owner == nil || owner.UID != w.GetUID() {
		t.Errorf("the attachment is %v, with managers %v", first.GetAnnotations(), managers(first))
	}

	// A value changes, a field goes, an attachment goes; what is somebody else's
	// stays, and the mark comes back.
	f.patch(first, `{"metadata":{"labels":{"theirs":"1"}},"data":{"theirs":"1"}}`)
	f.annotate(w, annotationAnswer, answer("2", configMap("w-0", `{"v":"2"}`)))
	f.waitChildren("w-", map[string]string{"w-0": "2"})
	f.waitLive(w, statusIs(`{"ready":2}`))
	now := f.configMap("w-0")
	if now.UID != first.GetUID() || !maps.Equal(now.Data, map[string]string{"v": "2", "theirs": "1"}) ||
		!maps.Equal(now.Labels, map[string]string{"l": "1", "theirs": "1"}) {
		t.Errorf("it is %v with labels %v", now.Data, now.Labels)
	}
	f.annotate(w, annotationAnswer, answer("3", `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"w-0"},"data":{"v":"3"}}`))
	f.waitField("v1", "ConfigMap", "w-0", "", "metadata", "labels", "l")
	f.waitLive(w, statusIs(`{"ready":3}`))

	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "foreign"}, Data: map[string]string{"v": "theirs"}}
	if err := f.client.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	b := f.widget("b", answer("1", configMap("foreign", `{"v":"ours"}`)+","+configMap("b-0", `{"v":"1"}`)))
	f.event(b, "SyncError", `"`+f.ns+`/foreign"`, "left alone")
	f.waitChildren("b-", map[string]string{"b-0": "1"})
	f.delete(b.DeepCopy())
	f.waitGone(b)
	if now := f.configMap("foreign"); now == nil || now.ResourceVersion != foreign.ResourceVersion {
		t.Errorf("what was somebody else's is %v", now)
	}

	f.passes("/decorate", w)
	f.stop(p)
	since := len(f.writes())
	f.start(serverSide)
	f.passes("/decorate", w)
	f.nothingWritten("a restart", since)
	f.noEvents(w)
}

// tagged is a rolling hook that is shown a related object and answers with ETags:
// the answer depends on the revision, and so does its tag.
type tagged struct {
	t *testing.T
	// reused counts, by parent and value of the template, the answers that held.
	mu     sync.Mutex // guards reused
	reused map[string]int
}

func (h *tagged) count(key string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.reused[key]
}

func (h *tagged) handle(w http.ResponseWriter, _ *http.Request, request kit.HookRequest) {
	var r struct {
		rollingRequest
		Related map[string]map[string]struct {
			Spec struct{ Value string }
		}
	}
	if err := request.Decode(&r); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	revision := r.Parent.Metadata.Name + "/" + r.Parent.Spec.Template.Value
	r.Parent.Spec.Extra = r.Related[sourceKey]["one"].Spec.Value
	tag := strconv.Quote(revision + "/" + r.Parent.Spec.Extra)
	held := request.Header.Get("If-None-Match")
	if held != "" && !strings.HasPrefix(held, `"`+revision+"/") {
		h.t.Errorf("asked about %s, by the tag %s", revision, held)
	}
	if held == tag {
		h.mu.Lock()
		h.reused[revision]++
		h.mu.Unlock()
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("ETag", tag)
	kit.JSON(func(asking) (object, error) { return object{"status": object{}, "children": r.gadgets()}, nil })(w, nil, request)
}

// TestRollingByServerSideApply rolls with both methods, a customize hook and ETags
// at once.
func TestRollingByServerSideApply(t *testing.T) {
	f := newCombined(t)
	hook := &tagged{t: t, reused: map[string]int{}}
	f.hooks.Handle("/roll", hook.handle)
	f.hooks.Handle("/customize", kit.JSON(func(asking) (object, error) {
		return object{"relatedResources": []object{{"apiVersion": relatedAPI, "resource": "sources", "names": []string{"one"}}}}, nil
	}))
	yes := true
	methods := map[string]v1alpha1.ChildUpdateMethod{"inplace": v1alpha1.ChildUpdateRollingInPlace, "recreate": v1alpha1.ChildUpdateRollingRecreate}
	for name, method := range methods {
		f.composite(func(cc *v1alpha1.CompositeController) {
			cc.Name = f.ns + "-" + name
			f.rolling(cc, map[string]v1alpha1.ChildUpdateMethod{"gadgets": method}, readyCheck())
			cc.Spec.ParentResource.LabelSelector.MatchLabels["method"] = name
			cc.Spec.Hooks.Sync, cc.Spec.Hooks.Customize = hookAt(f.hooks.URL("/roll")), hookAt(f.hooks.URL("/customize"))
			cc.Spec.Hooks.Sync.Webhook.Etag = &v1alpha1.WebhookEtagConfig{Enabled: &yes}
		})
	}
	p := f.start(serverSide)
	source := f.source("one", "r1", nil)
	var parents []*unstructured.Unstructured
	for _, name := range slices.Sorted(maps.Keys(methods)) {
		parents = append(parents, f.target(thingAPI, "Thing", name, "", func(u *unstructured.Unstructured) {
			u.SetLabels(map[string]string{testLabel: f.ns, "method": name})
			u.Object["spec"] = object{"count": int64(3), "template": object{"value": "v1"}}
		}))
	}
	gadget := func(parent *unstructured.Unstructured, i int) string {
		return fmt.Sprintf("%s-g-%d", parent.GetName(), i)
	}
	// values waits until the gadgets of a parent have these values.
	wait := func(parent *unstructured.Unstructured, values ...string) {
		t.Helper()
		want := map[string]string{}
		for i, value := range values {
			want[gadget(parent, i)] = value
		}
		f.waitGadgets(parent.GetName(), want)
	}
	uids := map[string]string{}
	for _, parent := range parents {
		wait(parent, "v1", "v1", "v1")
		for i := range 3 {
			f.ready(gadget(parent, i), "True")
		}
		f.waitUpdated(parent, "True", "OnLatestRevision")
		for name, one := range f.gadgets(parent.GetName()) {
			uids[name] = string(one.GetUID())
			if !managers(one)["metacontroller Apply"] || managers(one)["metacontroller Update"] {
				t.Errorf("managers of %s are %v", name, managers(one))
			}
		}
		f.patch(parent.DeepCopy(), `{"spec":{"template":{"value":"v2"}}}`)
	}
	for _, parent := range parents {
		wait(parent, "v2", "v1", "v1")
		// It waits for the first to be ready. What both revisions answered is asked
		// for once more, and holds.
		f.ready(gadget(parent, 0), "False")
		f.waitUpdated(parent, "False", "RolloutWaiting", "1 of 3", gadget(parent, 0))
		f.passes("/roll", parent)
		for _, value := range []string{"v1", "v2"} {
			if revision := parent.GetName() + "/" + value; hook.count(revision) == 0 {
				t.Errorf("no answer about %s was reused", revision)
			}
		}
		wait(parent, "v2", "v1", "v1")
	}
	// A related object concerns both revisions at once.
	f.patch(source, `{"spec":{"value":"r2"}}`)
	for _, parent := range parents {
		kit.Eventually(t, soon, func() error {
			for name, one := range f.gadgets(parent.GetName()) {
				if extra, _, _ := unstructured.NestedString(one.Object, "spec", "extra"); extra != "r2" {
					return fmt.Errorf("%s has extra %q", name, extra)
				}
			}
			return nil
		})
		wait(parent, "v2", "v1", "v1")
		// The change made them unready. While the first is, no other moves; one that
		// is ready again after it had moved would let the next one go.
		f.ready(gadget(parent, 1), "True")
		f.ready(gadget(parent, 2), "True")
		for i := range 3 {
			f.ready(gadget(parent, i), "True")
			want := []string{"v2", "v2", "v2"}
			for j := i + 2; j < 3; j++ {
				want[j] = "v1"
			}
			wait(parent, want...)
		}
		f.waitUpdated(parent, "True", "OnLatestRevision")
		for name, one := range f.gadgets(parent.GetName()) {
			if same := string(one.GetUID()) == uids[name]; same != (parent.GetName() == "inplace") {
				t.Errorf("%s is the same object: %v", name, same)
			}
		}
		if got := len(f.revisions(parent)); got != 1 {
			t.Errorf("there are %d revisions of %s", got, parent.GetName())
		}
	}
	f.passes("/roll", parents...)
	f.stop(p)
	since := len(f.writes())
	f.start(serverSide)
	f.passes("/roll", parents...)
	f.nothingWritten("a restart", since)
	f.noEvents(parents...)
}

// TestNamesakesOfOneParent has a composite and a decorator of one name at the same
// parents, with children of the same kind and a finalize hook each.
func TestNamesakesOfOneParent(t *testing.T) {
	f := newCombined(t)
	f.hooks.Handle("/sync", defaultHook())
	f.hooks.Handle("/finalize-composite", kit.JSON(func(r request) (object, error) {
		return object{"status": object{}, "children": []object{}, "finalized": len(r.Children["ConfigMap.v1"]) == 0}, nil
	}))
	f.hooks.Handle("/decorate", kit.JSON(func(a asking) (object, error) {
		return object{"labels": object{"deco": "1"}, "attachments": []object{configMapOf(a.Object.Metadata.Name+"-deco", object{"v": "d"}, nil)}}, nil
	}))
	f.hooks.Handle("/finalize", kit.JSON(func(a asking) (object, error) {
		return object{"labels": object{"deco": nil}, "attachments": []object{}, "finalized": len(a.Attachments["ConfigMap.v1"]) == 0}, nil
	}))
	cc := f.composite(func(cc *v1alpha1.CompositeController) {
		cc.Spec.Hooks.Finalize = hookAt(f.hooks.URL("/finalize-composite"))
	})
	dc := f.decorator(func(dc *v1alpha1.DecoratorController) {
		dc.Spec.Resources = []v1alpha1.DecoratorControllerResourceRule{f.decorates(thingAPI, "things")}
		f.decoratorWithFinalize(dc)
	})
	if cc.Name != dc.Name {
		t.Fatalf("the names are %q and %q", cc.Name, dc.Name)
	}
	ours, theirs := "metacontroller.io/compositecontroller-"+cc.Name, "metacontroller.io/decoratorcontroller-"+dc.Name
	f.start()
	a := f.thing("a", object{"count": 2, "value": "x"})
	b := f.thing("b", object{"count": 1, "value": "x"})
	f.waitChildren("a-", map[string]string{"a-0": "x", "a-1": "x", "a-deco": "d"})
	f.waitChildren("b-", map[string]string{"b-0": "x", "b-deco": "d"})
	for _, finalizer := range []string{ours, theirs} {
		f.waitFinalizer(finalizer, true, a, b)
	}
	f.waitStatus(a, 2)
	f.waitLive(a, labelIs("deco", "1"))

	// Neither is shown, or touches, what the other has made.
	f.passes("/sync", a, b)
	f.passes("/decorate", a, b)
	since := len(f.writes())
	f.passes("/sync", a, b)
	f.passes("/decorate", a, b)
	f.nothingWritten("other passes", since)
	for _, request := range f.requests("/sync", a) {
		for name := range request.Children["ConfigMap.v1"] {
			if name == "a-deco" {
				t.Error("the composite was shown an attachment")
			}
		}
	}
	for _, request := range f.requests("/decorate", a) {
		for name := range request.Attachments["ConfigMap.v1"] {
			if name != "a-deco" {
				t.Errorf("the decorator was shown %s", name)
			}
		}
	}

	// Both finalize hooks have their say about a parent that is deleted.
	f.delete(a.DeepCopy())
	f.waitGone(a)
	f.waitChildren("a-", map[string]string{})
	if f.requests("/finalize", a) == nil || f.requests("/finalize-composite", a) == nil {
		t.Error("not both finalize hooks were asked")
	}

	// A controller that is gone takes its own finalizer with it, and what it made
	// is not the other's.
	f.delete(dc.DeepCopy())
	f.waitFinalizer(theirs, false, b)
	f.passes("/sync", b)
	f.waitChildren("b-", map[string]string{"b-0": "x", "b-deco": "d"})
	f.waitFinalizer(ours, true, b)
	f.remove(cc)
	f.waitFinalizer(ours, false, b)
	f.noEvents(b)
}

// TestDecoratedChildren decorates the children of a composite, by both ways to
// write and over the change from one to the other: neither takes away what the
// other has put there.
func TestDecoratedChildren(t *testing.T) {
	f := newCombined(t)
	f.hooks.Handle("/sync", defaultHook())
	var lost atomic.Pointer[string]
	finalizer := "metacontroller.io/decoratorcontroller-" + f.ns
	f.hooks.Handle("/decorate", func(w http.ResponseWriter, r *http.Request, request kit.HookRequest) {
		var asked struct{ Object corev1.ConfigMap }
		if err := request.Decode(&asked); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		o := asked.Object
		if had := o.Annotations["decorated"] != ""; had && (o.Labels["deco"] == "" || !slices.Contains(o.Finalizers, finalizer)) {
			text := fmt.Sprintf("somebody took from %s what it was decorated with: labels %v, finalizers %v", o.Name, o.Labels, o.Finalizers)
			lost.Store(&text)
		}
		_, _ = io.WriteString(w, fmt.Sprintf(`{"labels":{"deco":%q},"annotations":{"decorated":"1"},"attachments":[]}`, o.Data["v"]))
	})
	f.hooks.Handle("/finalize", kit.Status(http.StatusOK, `{"attachments":[],"finalized":true}`))
	f.composite(nil)
	f.decorator(func(dc *v1alpha1.DecoratorController) {
		dc.Spec.Resources = []v1alpha1.DecoratorControllerResourceRule{f.decorates("v1", "configmaps")}
		dc.Spec.Attachments = nil
		f.decoratorWithFinalize(dc)
	})
	p := f.start()
	parent := f.thing("a", object{"count": 2, "value": "x", "labels": object{testLabel: f.ns, "own": "1", "second": "1"}})
	children := func() []*unstructured.Unstructured {
		return []*unstructured.Unstructured{f.fixture.get("v1", "ConfigMap", "a-0"), f.fixture.get("v1", "ConfigMap", "a-1")}
	}
	// as waits until both children are as both controllers want them.
	as := func(value, own, second string) {
		t.Helper()
		for _, name := range []string{"a-0", "a-1"} {
			f.waitField("v1", "ConfigMap", name, value, "data", "v")
			f.waitField("v1", "ConfigMap", name, value, "metadata", "labels", "deco")
			f.waitField("v1", "ConfigMap", name, own, "metadata", "labels", "own")
			f.waitField("v1", "ConfigMap", name, second, "metadata", "labels", "second")
		}
		f.waitFinalizer(finalizer, true, children()...)
	}
	still := func(what string) {
		t.Helper()
		f.passes("/sync", parent)
		f.passes("/decorate", children()...)
		since := len(f.writes())
		f.passes("/sync", parent)
		f.passes("/decorate", children()...)
		f.nothingWritten(what, since)
	}
	as("x", "1", "1")
	still("updates")
	f.patch(parent.DeepCopy(), `{"spec":{"value":"y","labels":{"own":null}}}`)
	as("y", "", "1")
	// Drift of what is the composite's, by a label of a third.
	f.patch(children()[0], `{"metadata":{"labels":{"second":"drifted","third":"1"}}}`)
	as("y", "", "1")
	still("updates, after a change")

	f.stop(p)
	p = f.start(serverSide)
	kit.Eventually(t, soon, func() error {
		for _, child := range children() {
			if _, annotated := child.GetAnnotations()[lastApplied]; annotated || !managers(child)["metacontroller Apply"] {
				return fmt.Errorf("%s is not handed over: managers %v", child.GetName(), managers(child))
			}
		}
		return nil
	})
	as("y", "", "1")
	still("applies, after the change of the strategy")
	f.patch(parent.DeepCopy(), `{"spec":{"value":"z","labels":{"own":"2","second":null}}}`)
	as("z", "2", "")
	f.patch(children()[0], `{"metadata":{"labels":{"own":"drifted"}}}`)
	as("z", "2", "")
	still("applies")

	f.stop(p)
	since := len(f.writes())
	f.start(serverSide)
	f.passes("/sync", parent)
	f.passes("/decorate", children()...)
	f.nothingWritten("a restart", since)
	if text := lost.Load(); text != nil {
		t.Error(*text)
	}
	f.noEvents(append(children(), parent)...)

	// A child goes once the decorator is done with it.
	second := children()[1]
	f.patch(parent.DeepCopy(), `{"spec":{"count":1}}`)
	f.waitGone(second)
	f.waitStatus(parent, 1)
	if len(f.requests("/finalize", second)) == 0 {
		t.Error("the decorator was not asked about the child that went")
	}
}

// TestControllerMovesToAnotherInstance: docs/controller.md says how to keep the
// finalizers when a controller object is moved to another instance.
func TestControllerMovesToAnotherInstance(t *testing.T) {
	f := newCombined(t)
	f.hooks.Handle("/sync", defaultHook())
	f.hooks.Handle("/finalize", kit.JSON(func(r request) (object, error) {
		return object{"status": object{}, "children": []object{}, "finalized": len(r.Children["ConfigMap.v1"]) == 0}, nil
	}))
	cc := f.composite(f.withFinalize)
	from := f.start()
	to := f.launch("two", "--target-label-selector="+testLabel+"="+f.ns+"-two", "--singleton-lease-name="+f.ns+"-two")
	to.WaitLine(soon, "Holding the singleton lease")
	parent := f.thing("a", object{"count": 1, "value": "x"})
	finalizer := "metacontroller.io/compositecontroller-" + cc.Name
	f.waitChildren("a-", map[string]string{"a-0": "x"})
	f.waitFinalizer(finalizer, true, parent)
	f.waitStatus(parent, 1)
	f.passes("/sync", parent)

	since, started := len(f.writes()), f.started(cc.Name)
	f.hooks.Forget()
	f.patch(f.declared(cc), `{"metadata":{"annotations":{"metacontroller.io/keep-finalizers":"true"},"labels":{"test":"`+f.ns+`-two"}}}`)
	from.WaitLine(soon, "Stopped controller")
	f.event(cc, "Stopped", "Left finalizer", "keep-finalizers")
	f.waitStarted(cc.Name, started+1)
	f.waitAsked("/sync", parent, func(a asking) bool { return a.Controller.Labels[testLabel] == f.ns+"-two" })
	f.passes("/sync", parent)
	f.nothingWritten("the move", since)
	f.waitFinalizer(finalizer, true, parent)

	// The first has no part in it any more.
	f.stop(from)
	f.patch(parent.DeepCopy(), `{"spec":{"value":"y"}}`)
	f.waitChildren("a-", map[string]string{"a-0": "y"})
	f.delete(parent.DeepCopy())
	f.waitGone(parent)
	f.waitChildren("a-", map[string]string{})
	if asked := f.requests("/finalize", parent); len(asked) == 0 {
		t.Error("the finalize hook was not asked")
	}
	f.noEvents(parent)

	// What it keeps for the next it may also be told to release there.
	other := f.thing("b", object{"count": 1, "value": "x"})
	f.waitFinalizer(finalizer, true, other)
	f.patch(f.declared(cc), `{"metadata":{"annotations":{"metacontroller.io/keep-finalizers":null}}}`)
	f.remove(cc)
	f.waitFinalizer(finalizer, false, other)
	f.stop(to)
}
