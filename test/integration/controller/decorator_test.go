package controller_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
)

const (
	decoAPI = "deco.example.com/v1"
	// annotationAnswer of a decorated object is what the scripted hook answers
	// about it, and annotationFinalize what it answers while finalizing.
	annotationAnswer   = "answer"
	annotationFinalize = "finalize"
	markAnnotation     = "metacontroller.k8s.io/decorator-controller"
)

// decorated is what a hook of a DecoratorController is sent.
type decorated struct {
	Controller  struct{ Kind string }
	Object      metav1.PartialObjectMetadata
	Attachments map[string]map[string]unstructured.Unstructured
	Related     map[string]any
	Finalizing  bool
}

// newDecoratorFixture is a fixture with the kinds that are decorated and a hook
// that answers what an annotation of the object says.
func newDecoratorFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	if _, err := kit.ApplyFile(t.Context(), f.cp.AdminConfig(0), filepath.Join("testdata", "decorator.yaml")); err != nil {
		t.Fatal(err)
	}
	f.hooks.Handle("/decorate", scripted(annotationAnswer, `{"attachments":[]}`))
	f.hooks.Handle("/finalize", scripted(annotationFinalize, `{"attachments":[],"finalized":true}`))
	return f
}

func scripted(annotation, otherwise string) kit.Hook {
	return func(w http.ResponseWriter, _ *http.Request, request kit.HookRequest) {
		var asked decorated
		if err := request.Decode(&asked); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer, ok := asked.Object.Annotations[annotation]
		if !ok {
			answer = otherwise
		}
		_, _ = io.WriteString(w, answer)
	}
}

func hookAt(url string) *v1alpha1.Hook {
	return &v1alpha1.Hook{Webhook: &v1alpha1.Webhook{URL: &url}}
}

// decorates is a rule for the objects of a kind that are this test's.
func (f *fixture) decorates(apiVersion, resource string) v1alpha1.DecoratorControllerResourceRule {
	rule := v1alpha1.DecoratorControllerResourceRule{LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{testLabel: f.ns}}}
	rule.APIVersion, rule.Resource = apiVersion, resource
	return rule
}

func attaches(apiVersion, resource string, method v1alpha1.ChildUpdateMethod) v1alpha1.DecoratorControllerAttachmentRule {
	rule := v1alpha1.DecoratorControllerAttachmentRule{}
	if method != "" {
		rule.UpdateStrategy = &v1alpha1.DecoratorControllerAttachmentUpdateStrategy{Method: method}
	}
	rule.APIVersion, rule.Resource = apiVersion, resource
	return rule
}

// decorator declares a controller of Widgets with ConfigMaps attached.
func (f *fixture) decorator(change func(*v1alpha1.DecoratorController)) *v1alpha1.DecoratorController {
	f.t.Helper()
	dc := &v1alpha1.DecoratorController{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.DecoratorControllerKind},
		ObjectMeta: metav1.ObjectMeta{Name: f.ns, Labels: map[string]string{testLabel: f.ns}},
	}
	dc.Spec.Resources = []v1alpha1.DecoratorControllerResourceRule{f.decorates(decoAPI, "widgets")}
	dc.Spec.Attachments = []v1alpha1.DecoratorControllerAttachmentRule{attaches("v1", "configmaps", v1alpha1.ChildUpdateInPlace)}
	dc.Spec.Hooks = &v1alpha1.DecoratorControllerHooks{Sync: hookAt(f.hooks.URL("/decorate"))}
	if change != nil {
		change(dc)
	}
	f.put(dc)
	return dc
}

func (f *fixture) decoratorWithFinalize(dc *v1alpha1.DecoratorController) {
	dc.Spec.Hooks.Finalize = hookAt(f.hooks.URL("/finalize"))
}

// target creates an object to be decorated, of which the hook answers what it is
// told.
func (f *fixture) target(apiVersion, kind, name, answer string, change func(*unstructured.Unstructured)) *unstructured.Unstructured {
	f.t.Helper()
	u := &unstructured.Unstructured{Object: object{"apiVersion": apiVersion, "kind": kind}}
	u.SetNamespace(f.ns)
	u.SetName(name)
	u.SetLabels(map[string]string{testLabel: f.ns})
	if answer != "" {
		u.SetAnnotations(map[string]string{annotationAnswer: answer})
	}
	if change != nil {
		change(u)
	}
	kit.Eventually(f.t, soon, func() error {
		// A Pod needs its service account.
		err := f.client.Create(f.t.Context(), u)
		if err != nil && !apierrors.IsForbidden(err) {
			f.t.Fatal(err)
		}
		return err
	})
	if u.GetNamespace() == "" {
		f.t.Cleanup(func() { _ = f.client.Delete(context.Background(), u.DeepCopy()) })
	}
	return u
}

func (f *fixture) widget(name, answer string) *unstructured.Unstructured {
	f.t.Helper()
	return f.target(decoAPI, "Widget", name, answer, nil)
}

// annotate changes what a hook answers about an object.
func (f *fixture) annotate(u *unstructured.Unstructured, annotation, text string) {
	f.t.Helper()
	value, err := json.Marshal(text)
	if err != nil {
		f.t.Fatal(err)
	}
	f.patch(u.DeepCopy(), fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, annotation, value))
}

// live reads an object, nil if it is gone.
func (f *fixture) live(u *unstructured.Unstructured) *unstructured.Unstructured {
	f.t.Helper()
	now := u.DeepCopy()
	switch err := f.client.Get(f.t.Context(), client.ObjectKeyFromObject(u), now); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		f.t.Fatal(err)
	}
	return now
}

func (f *fixture) waitLive(u *unstructured.Unstructured, wrong func(*unstructured.Unstructured) string) *unstructured.Unstructured {
	f.t.Helper()
	var now *unstructured.Unstructured
	kit.Eventually(f.t, soon, func() error {
		if now = f.live(u); now == nil {
			return errors.New("it is gone")
		}
		if problem := wrong(now); problem != "" {
			return errors.New(problem)
		}
		return nil
	})
	return now
}

func (f *fixture) waitGone(u *unstructured.Unstructured) {
	f.t.Helper()
	kit.Eventually(f.t, soon, func() error {
		if now := f.live(u); now != nil {
			return fmt.Errorf("%s %s is still there with finalizers %q", now.GetKind(), now.GetName(), now.GetFinalizers())
		}
		return nil
	})
}

// asked are the requests of a hook about an object.
func (f *fixture) asked(path string, u *unstructured.Unstructured) []decorated {
	f.t.Helper()
	var found []decorated
	for _, request := range f.hooks.Requests(path) {
		var one decorated
		if err := request.Decode(&one); err != nil {
			f.t.Fatal(err)
		}
		if one.Object.UID == u.GetUID() {
			found = append(found, one)
		}
	}
	return found
}

// settle waits until the hook was asked about the object as it is now.
func (f *fixture) settle(path string, u *unstructured.Unstructured) decorated {
	f.t.Helper()
	var last decorated
	kit.Eventually(f.t, soon, func() error {
		now, asked := f.live(u), f.asked(path, u)
		if now == nil || len(asked) == 0 {
			return fmt.Errorf("%d requests", len(asked))
		}
		if last = asked[len(asked)-1]; last.Object.ResourceVersion != now.GetResourceVersion() {
			return fmt.Errorf("asked about version %s, it is at %s", last.Object.ResourceVersion, now.GetResourceVersion())
		}
		return nil
	})
	return last
}

// attachment is a ConfigMap for an answer.
func attachment(name, value string) string {
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":%q},"data":{"v":%q}}`, name, value)
}

func labelIs(key, want string) func(*unstructured.Unstructured) string {
	return func(u *unstructured.Unstructured) string {
		if got, has := u.GetLabels()[key]; got != want || has != (want != "") {
			return fmt.Sprintf("label %s is %q, not %q", key, got, want)
		}
		return ""
	}
}

func statusIs(want string) func(*unstructured.Unstructured) string {
	return func(u *unstructured.Unstructured) string {
		if got, _ := json.Marshal(u.Object["status"]); string(got) != want {
			return fmt.Sprintf("status is %s, not %s", got, want)
		}
		return ""
	}
}

// verbs are the writes to one object, as verb or verb/subresource.
func (f *fixture) verbs(resource, name string) []string {
	f.t.Helper()
	out := []string{}
	for _, w := range f.writesThat(func(w write) bool {
		return w.ObjectRef.Resource == resource && w.ObjectRef.Name == name && (w.ObjectRef.Namespace == f.ns || w.ObjectRef.Namespace == "" || resource == "namespaces")
	}) {
		verb := w.Verb
		if w.ObjectRef.Subresource != "" {
			verb += "/" + w.ObjectRef.Subresource
		}
		out = append(out, verb)
	}
	return out
}

func TestDecorator(t *testing.T) {
	f := newDecoratorFixture(t)
	dc := f.decorator(nil)
	f.start()
	f.event(dc, "Started", f.ns)
	w := f.widget("a", `{"labels":{"l":"1","gone":null},"annotations":{"n":"any {thing}"},"status":{"ready":1,"list":[1]},"attachments":[`+attachment("a-0", "x")+`,`+attachment("a-1", "x")+`]}`)

	f.waitChildren("a-", map[string]string{"a-0": "x", "a-1": "x"})
	child := f.configMap("a-0")
	owner := metav1.GetControllerOf(child)
	if owner == nil || owner.UID != w.GetUID() || owner.BlockOwnerDeletion == nil || !*owner.BlockOwnerDeletion || child.Annotations[markAnnotation] != dc.Name {
		t.Errorf("attachment is %v", child.ObjectMeta)
	}
	now := f.waitLive(w, statusIs(`{"list":[1],"ready":1}`))
	if now.GetLabels()["l"] != "1" || now.GetAnnotations()["n"] != "any {thing}" || now.GetLabels()[testLabel] != f.ns {
		t.Errorf("labels %v, annotations %v", now.GetLabels(), now.GetAnnotations())
	}

	request := f.settle("/decorate", w)
	if request.Controller.Kind != "DecoratorController" || request.Finalizing || request.Related == nil || len(request.Attachments["ConfigMap.v1"]) != 2 {
		t.Errorf("request is %+v", request)
	}
	first := f.asked("/decorate", w)[0]
	if kinds := slices.Collect(maps.Keys(first.Attachments)); len(kinds) != 1 || kinds[0] != "ConfigMap.v1" || len(first.Attachments["ConfigMap.v1"]) != 0 {
		t.Errorf("attachments of the first request are %v", first.Attachments)
	}

	// Null deletes a label, takes an attachment that is not named away, and leaves
	// the status.
	f.annotate(w, annotationAnswer, `{"labels":{"l":null},"annotations":{"n":null},"status":null,"attachments":[`+attachment("a-1", "y")+`]}`)
	f.waitChildren("a-", map[string]string{"a-1": "y"})
	now = f.waitLive(w, labelIs("l", ""))
	if _, has := now.GetAnnotations()["n"]; has || statusIs(`{"list":[1],"ready":1}`)(now) != "" {
		t.Errorf("annotations %v, status %v", now.GetAnnotations(), now.Object["status"])
	}
	// What is given is the whole status.
	f.annotate(w, annotationAnswer, `{"status":{"ready":2},"attachments":[`+attachment("a-1", "y")+`]}`)
	f.waitLive(w, statusIs(`{"ready":2}`))

	// An answer without attachments deletes none; null and an empty list do.
	f.annotate(w, annotationAnswer, `{"labels":{"l":"2"}}`)
	f.event(w, "SyncError", "DecoratorController", f.ns, "sync hook", "attachments", "is missing")
	if got := f.children("a-"); !maps.Equal(got, map[string]string{"a-1": "y"}) || labelIs("l", "")(f.live(w)) != "" {
		t.Errorf("after half an answer: %v, labels %v", got, f.live(w).GetLabels())
	}
	f.annotate(w, annotationAnswer, `{"labels":{"l":"3"},"attachments":null}`)
	f.waitChildren("a-", map[string]string{})
	f.waitLive(w, labelIs("l", "3"))

	// Gone, the controller leaves everything as it is.
	f.delete(dc)
	f.event(dc, "Stopped", f.ns)
	for _, reason := range []string{"Starting", "Started", "Stopping"} {
		f.event(dc, reason, f.ns)
	}
}

// TestDecoratorWrites counts: a decorated object is written once in a sync where
// the API allows it, and never without a difference.
func TestDecoratorWrites(t *testing.T) {
	f := newDecoratorFixture(t)
	f.decorator(func(dc *v1alpha1.DecoratorController) {
		dc.Spec.Resources = nil
		for _, one := range [][2]string{{decoAPI, "widgets"}, {decoAPI, "plains"}, {decoAPI, "bares"}, {"v1", "configmaps"}} {
			dc.Spec.Resources = append(dc.Spec.Resources, f.decorates(one[0], one[1]))
		}
		dc.Spec.Attachments = nil
	})
	p := f.start()
	// What the schema takes away is tried once for each version of the object.
	cases := []struct {
		name, apiVersion, kind, resource, answer string
		// writes to the object; status afterwards.
		writes []string
		status string
	}{
		{"nothing", decoAPI, "Widget", "widgets", `{}`, nil, `null`},
		{"null", decoAPI, "Widget", "widgets", `{"status":null,"labels":null,"annotations":null}`, nil, `null`},
		{"labels", decoAPI, "Widget", "widgets", `{"labels":{"l":"1","m":"2"},"annotations":{"n":"3"}}`, []string{"patch"}, `null`},
		{"status", decoAPI, "Widget", "widgets", `{"status":{"ready":1}}`, []string{"update/status"}, `{"ready":1}`},
		{"both", decoAPI, "Widget", "widgets", `{"labels":{"l":"1"},"status":{"ready":1}}`, []string{"update/status", "patch"}, `{"ready":1}`},
		{"nulls", decoAPI, "Widget", "widgets", `{"status":{"ready":1,"none":null}}`, []string{"update/status"}, `{"none":null,"ready":1}`},
		{"field", decoAPI, "Plain", "plains", `{"status":{"ready":1}}`, []string{"patch"}, `{"ready":1}`},
		{"field-and-labels", decoAPI, "Plain", "plains", `{"labels":{"l":"1"},"status":{"ready":1,"inner":{"a":"b"}}}`, []string{"patch"}, `{"inner":{"a":"b"},"ready":1}`},
		{"pruned", decoAPI, "Plain", "plains", `{"status":{"ready":1,"unknown":2}}`, []string{"patch", "patch", "patch"}, `{"ready":1}`},
		{"none", decoAPI, "Bare", "bares", `{"labels":{"l":"1"},"status":{"ready":1}}`, []string{"patch"}, `null`},
		{"none-alone", decoAPI, "Bare", "bares", `{"status":{"ready":1}}`, nil, `null`},
		{"builtin", "v1", "ConfigMap", "configmaps", `{"labels":{"l":"1"},"status":{"ready":1}}`, []string{"patch"}, `null`},
		{"builtin-null", "v1", "ConfigMap", "configmaps", `{"labels":{"l":"1"},"status":null}`, []string{"patch"}, `null`},
		{"builtin-empty", "v1", "ConfigMap", "configmaps", `{"labels":{"l":"1"},"status":{}}`, []string{"patch"}, `null`},
	}
	targets := map[string]*unstructured.Unstructured{}
	for _, c := range cases {
		targets[c.name] = f.target(c.apiVersion, c.kind, c.name, c.answer, nil)
	}
	for _, c := range cases {
		now := f.waitLive(targets[c.name], statusIs(c.status))
		if strings.Contains(c.answer, `"l":"1"`) {
			f.waitLive(now, labelIs("l", "1"))
		}
		f.settle("/decorate", targets[c.name])
	}
	// Once more, with nothing to do; the answers are the same.
	for _, c := range cases {
		f.patch(targets[c.name].DeepCopy(), `{"metadata":{"annotations":{"again":"1"}}}`)
	}
	for _, c := range cases {
		f.settle("/decorate", targets[c.name])
	}
	for _, c := range cases {
		told := slices.ContainsFunc(f.eventsOf(targets[c.name]), func(e corev1.Event) bool { return e.Reason == "SyncError" })
		homeless := slices.Contains([]string{"none", "none-alone", "builtin"}, c.name)
		if homeless {
			f.event(targets[c.name], "SyncError", f.ns, "status", c.kind)
		} else if told {
			t.Errorf("%s: there is an event", c.name)
		}
	}
	if code := p.Stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	for _, c := range cases {
		if got := f.verbs(c.resource, c.name); !slices.Equal(got, c.writes) {
			t.Errorf("%s: writes are %q, not %q", c.name, got, c.writes)
		}
	}
	before := len(f.writes())
	f.hooks.Forget()
	p = f.start()
	f.hooks.WaitRequests(soon, "/decorate", len(cases))
	if code := p.Stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	// What the schema takes away is not remembered beyond a restart.
	after := slices.DeleteFunc(f.writes()[before:], func(w write) bool { return w.ObjectRef.Name == "pruned" })
	if len(after) != 0 {
		t.Errorf("a restart wrote %v", after)
	}
}

func TestDecoratedKinds(t *testing.T) {
	f := newDecoratorFixture(t)
	kinds := []struct{ apiVersion, resource string }{
		{"v1", "pods"}, {"v1", "services"}, {"v1", "namespaces"}, {"v1", "nodes"}, {decoAPI, "realms"}, {decoAPI, "widgets"},
	}
	f.decorator(func(dc *v1alpha1.DecoratorController) {
		dc.Spec.Resources = nil
		for _, one := range kinds {
			dc.Spec.Resources = append(dc.Spec.Resources, f.decorates(one.apiVersion, one.resource))
		}
		dc.Spec.Attachments = append(dc.Spec.Attachments, attaches(decoAPI, "realms", ""))
		f.decoratorWithFinalize(dc)
	})
	f.start()
	answer := func(name, value string) string {
		return `{"labels":{"l":"1"},"attachments":[` + strings.Replace(attachment(name, value), `"name"`, fmt.Sprintf(`"namespace":%q,"name"`, f.ns), 1) + `]}`
	}
	spec := func(text string) func(*unstructured.Unstructured) {
		return func(u *unstructured.Unstructured) {
			var decoded any
			if err := json.Unmarshal([]byte(text), &decoded); err != nil {
				t.Fatal(err)
			}
			u.Object["spec"] = decoded
		}
	}
	cluster := func(u *unstructured.Unstructured) { u.SetNamespace("") }
	targets := []*unstructured.Unstructured{
		f.target("v1", "Pod", "pod", answer("of-pod", "x"), spec(`{"containers":[{"name":"c","image":"none"}]}`)),
		f.target("v1", "Service", "service", strings.Replace(answer("of-service", "x"), `{"labels"`, `{"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"}]}},"labels"`, 1), spec(`{"type":"LoadBalancer","ports":[{"port":80}]}`)),
		f.target("v1", "Node", f.ns+"-node", answer("of-node", "x"), cluster),
		f.target(decoAPI, "Realm", f.ns+"-realm", answer("of-realm", "x"), cluster),
	}
	for i, name := range []string{"of-pod", "of-service", "of-node", "of-realm"} {
		f.waitChildren(name, map[string]string{name: "x"})
		f.waitLive(targets[i], labelIs("l", "1"))
		if owner := metav1.GetControllerOf(f.configMap(name)); owner == nil || owner.UID != targets[i].GetUID() {
			t.Errorf("owner of %s is %v", name, owner)
		}
		// An attachment brings its own parent, whatever kind that is.
		f.patch(f.configMap(name), `{"data":{"v":"drifted"}}`)
		f.waitChildren(name, map[string]string{name: "x"})
	}
	f.waitLive(targets[1], statusIs(`{"loadBalancer":{"ingress":[{"ip":"192.0.2.1","ipMode":"VIP"}]}}`))

	namespace := &unstructured.Unstructured{Object: object{"apiVersion": "v1", "kind": "Namespace"}}
	namespace.SetName(f.ns)
	f.annotate(namespace, annotationAnswer, answer("of-namespace", "x"))
	f.patch(namespace.DeepCopy(), fmt.Sprintf(`{"metadata":{"labels":{"test":%q}}}`, f.ns))
	f.waitChildren("of-namespace", map[string]string{"of-namespace": "x"})

	// Where an attachment can be.
	f.annotate(targets[3], annotationAnswer, `{"attachments":[`+attachment("of-realm", "x")+`]}`)
	f.event(targets[3], "SyncError", "attachments[0]", "metadata.namespace")
	stray := f.widget("stray", `{"attachments":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"namespace":"default","name":"stray"}},`+
		`{"apiVersion":"deco.example.com/v1","kind":"Realm","metadata":{"name":"stray"}},{"apiVersion":"v1","kind":"Secret","metadata":{"name":"stray"}},`+attachment("of-stray", "x")+`]}`)
	f.event(stray, "SyncError", "attachments[0]", "default", "attachments[1]", "cluster-scoped", "attachments[2]", "not among")
	f.waitChildren("of-stray", map[string]string{"of-stray": "x"})

	for _, target := range targets {
		f.delete(target.DeepCopy())
		f.waitGone(target)
	}
	f.patch(namespace.DeepCopy(), `{"metadata":{"labels":{"test":null}}}`)
	f.waitLive(namespace, func(u *unstructured.Unstructured) string {
		if len(u.GetFinalizers()) > 0 {
			return fmt.Sprintf("finalizers are %q", u.GetFinalizers())
		}
		return ""
	})
	f.waitChildren("of-namespace", map[string]string{})
}

func TestDecoratorSelects(t *testing.T) {
	f := newDecoratorFixture(t)
	const free = "no label: {\"a\": 1}"
	f.decorator(func(dc *v1alpha1.DecoratorController) {
		yes := true
		byValue, byKey, byStatus := f.decorates(decoAPI, "widgets"), f.decorates(decoAPI, "widgets"), f.decorates(decoAPI, "widgets")
		byValue.AnnotationSelector = &v1alpha1.AnnotationSelector{MatchAnnotations: map[string]string{"kind": free}}
		byKey.AnnotationSelector = &v1alpha1.AnnotationSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
			{Key: "wanted", Operator: metav1.LabelSelectorOpExists}, {Key: "kind", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"not this: !"}},
		}}
		byStatus.LabelSelector.MatchLabels["quiet"] = "yes"
		byStatus.IgnoreStatusChanges = &yes
		dc.Spec.Resources = []v1alpha1.DecoratorControllerResourceRule{byValue, byKey, byStatus}
		dc.Spec.Attachments = nil
	})
	f.start()
	with := func(name string, labels, annotations map[string]string) *unstructured.Unstructured {
		return f.target(decoAPI, "Widget", name, "", func(u *unstructured.Unstructured) {
			all := u.GetLabels()
			maps.Copy(all, labels)
			u.SetLabels(all)
			u.SetAnnotations(annotations)
		})
	}
	none := with("none", nil, map[string]string{"kind": "other"})
	refused := with("refused", nil, map[string]string{"wanted": "", "kind": "not this: !"})
	others := with("others", map[string]string{testLabel: "other"}, map[string]string{"kind": free})
	for _, selected := range []*unstructured.Unstructured{
		with("by-value", nil, map[string]string{"kind": free}),
		with("by-key", nil, map[string]string{"wanted": ""}),
		with("quiet", map[string]string{"quiet": "yes"}, nil),
	} {
		f.settle("/decorate", selected)
	}
	for _, u := range []*unstructured.Unstructured{none, refused, others} {
		if got := f.asked("/decorate", u); len(got) > 0 {
			t.Errorf("the hook was asked about %s", u.GetName())
		}
	}
	// Selected later.
	f.annotate(none, "kind", free)
	f.settle("/decorate", none)

	// A change of status wakes nobody, where no rule wants to know of it.
	quiet := &unstructured.Unstructured{Object: object{"apiVersion": decoAPI, "kind": "Widget", "metadata": object{"namespace": f.ns, "name": "quiet"}}}
	quiet = f.live(quiet)
	calls := len(f.asked("/decorate", quiet))
	changed := quiet.DeepCopy()
	changed.Object["status"] = object{"ready": int64(1)}
	if err := f.client.Status().Update(t.Context(), changed); err != nil {
		t.Fatal(err)
	}
	// Events of one kind come in order: after the one of none, that of quiet was
	// there.
	now := f.live(none)
	now.Object["status"] = object{"ready": int64(1)}
	if err := f.client.Status().Update(t.Context(), now); err != nil {
		t.Fatal(err)
	}
	f.settle("/decorate", none)
	if got := len(f.asked("/decorate", quiet)); got != calls {
		t.Errorf("a change of status made %d calls", got-calls)
	}
	f.patch(quiet.DeepCopy(), `{"spec":{"n":1}}`)
	f.settle("/decorate", quiet)
}

func TestDecoratorFinalizes(t *testing.T) {
	f := newDecoratorFixture(t)
	yes := true
	dc := f.decorator(func(dc *v1alpha1.DecoratorController) {
		dc.Spec.Resources[0].IgnoreStatusChanges = &yes
		f.decoratorWithFinalize(dc)
	})
	finalizer := "metacontroller.io/decoratorcontroller-" + dc.Name
	p := f.start()
	answer := func(name string) string {
		return `{"labels":{"l":"1"},"attachments":[` + attachment(name, "x") + `]}`
	}
	finalizersAre := func(want ...string) func(*unstructured.Unstructured) string {
		return func(u *unstructured.Unstructured) string {
			if !slices.Equal(u.GetFinalizers(), want) {
				return fmt.Sprintf("finalizers are %q", u.GetFinalizers())
			}
			return ""
		}
	}

	deleted := f.widget("deleted", answer("deleted-0"))
	f.waitChildren("deleted-", map[string]string{"deleted-0": "x"})
	if first := f.asked("/decorate", deleted)[0]; !slices.Equal(first.Object.Finalizers, []string{finalizer}) {
		t.Errorf("the hook was asked before the finalizer was on: %q", first.Object.Finalizers)
	}
	f.settle("/decorate", deleted)
	f.annotate(deleted, annotationFinalize, `{"attachments":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"Not A Name"}}],"finalized":true}`)
	f.settle("/decorate", deleted)
	f.delete(deleted.DeepCopy())
	// The attachments are not as wanted yet, so the finalizer stays.
	f.event(deleted, "SyncError", "Not A Name")
	f.waitChildren("deleted-", map[string]string{})
	if problem := finalizersAre(finalizer)(f.live(deleted)); problem != "" {
		t.Error(problem)
	}
	if request := f.settle("/finalize", deleted); !request.Finalizing {
		t.Error("finalizing is false")
	}
	// Not before the hook says so.
	f.annotate(deleted, annotationFinalize, `{"attachments":[],"finalized":false,"annotations":{"seen":"1"}}`)
	f.waitLive(deleted, func(u *unstructured.Unstructured) string {
		if u.GetAnnotations()["seen"] != "1" {
			return "not seen"
		}
		return finalizersAre(finalizer)(u)
	})
	f.annotate(deleted, annotationFinalize, `{"labels":{"l":null},"status":{"ready":9},"finalized":true}`)
	f.waitGone(deleted)

	deselected := f.widget("deselected", answer("deselected-0"))
	f.waitChildren("deselected-", map[string]string{"deselected-0": "x"})
	f.annotate(deselected, annotationFinalize, `{"labels":{"l":null},"attachments":[],"finalized":true}`)
	f.settle("/decorate", deselected)
	f.patch(deselected.DeepCopy(), `{"metadata":{"labels":{"test":null}}}`)
	f.waitLive(deselected, finalizersAre())
	f.waitChildren("deselected-", map[string]string{})
	f.waitLive(deselected, labelIs("l", ""))

	// From the days of old.
	old := "metacontroller.app/decoratorcontroller-" + dc.Name
	withOld := func(u *unstructured.Unstructured) { u.SetFinalizers([]string{"example.com/other", old}) }
	migrated := f.target(decoAPI, "Widget", "migrated", answer("migrated-0"), withOld)
	f.waitLive(migrated, finalizersAre("example.com/other", finalizer))
	leaving := f.target(decoAPI, "Widget", "leaving", "", func(u *unstructured.Unstructured) {
		withOld(u)
		u.SetLabels(nil)
	})
	f.waitLive(leaving, finalizersAre("example.com/other"))
	if len(f.asked("/finalize", leaving)) != 1 || len(f.asked("/decorate", leaving)) != 0 {
		t.Error("the finalize hook was not asked, or not alone")
	}

	// Without a finalize hook nobody waits for it.
	dc.Spec.Hooks.Finalize = nil
	f.put(dc)
	f.waitLive(migrated, finalizersAre("example.com/other"))
	for _, u := range []*unstructured.Unstructured{migrated, leaving} {
		f.patch(u.DeepCopy(), `{"metadata":{"finalizers":null}}`)
	}
	if code := p.Stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	// The finalizer, the label; then the label and the finalizer at once.
	if got, want := f.verbs("widgets", "deselected"), []string{"patch", "patch", "patch"}; !slices.Equal(got, want) {
		t.Errorf("writes to the deselected one are %q", got)
	}
	if got := f.verbs("widgets", "leaving"); !slices.Equal(got, []string{"patch"}) {
		t.Errorf("writes to one that came with the finalizer of old are %q", got)
	}
}

func TestCompositeFinalizerOfOld(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	f.hooks.Handle("/finalize", kit.JSON(func(request) (object, error) { return object{"children": []object{}, "finalized": true}, nil }))
	cc := f.composite(func(cc *v1alpha1.CompositeController) { cc.Spec.Hooks.Finalize = hookAt(f.hooks.URL("/finalize")) })
	thing := func(name string) *unstructured.Unstructured {
		return f.target(thingAPI, "Thing", name, "", func(u *unstructured.Unstructured) {
			u.Object["spec"] = object{"count": int64(1), "value": "x"}
			u.SetFinalizers([]string{"metacontroller.app/compositecontroller-" + cc.Name})
		})
	}
	alive, dying := thing("alive"), thing("dying")
	f.delete(dying.DeepCopy())
	f.start()
	f.waitGone(dying)
	f.waitLive(alive, func(u *unstructured.Unstructured) string {
		if !slices.Equal(u.GetFinalizers(), []string{"metacontroller.io/compositecontroller-" + cc.Name}) {
			return fmt.Sprintf("finalizers are %q", u.GetFinalizers())
		}
		return ""
	})
	f.delete(alive.DeepCopy())
	f.waitGone(alive)
	if got := len(f.asked("/finalize", dying)); got > 0 {
		t.Errorf("a composite's hook was sent an object: %d", got)
	}
}

// TestDecoratorDeselects is about hooks whose answer moves the object out of the
// controller's reach.
func TestDecoratorDeselects(t *testing.T) {
	f := newDecoratorFixture(t)
	todo := func(dc *v1alpha1.DecoratorController) {
		dc.Spec.Resources[0].LabelSelector.MatchExpressions = []metav1.LabelSelectorRequirement{{Key: "done", Operator: metav1.LabelSelectorOpDoesNotExist}}
	}
	once := `{"labels":{"done":"yes"},"attachments":[%s]}`

	t.Run("without finalize hook", func(t *testing.T) {
		f := *f
		f.t = t
		f.decorator(todo)
		p := f.start()
		// The attachment is refused at first: it must not be forgotten.
		w := f.widget("a", fmt.Sprintf(once, attachment("Not A Name", "x")))
		f.event(w, "SyncError", "Not A Name")
		if problem := labelIs("done", "")(f.live(w)); problem != "" {
			t.Error(problem)
		}
		f.annotate(w, annotationAnswer, fmt.Sprintf(once, attachment("a-0", "x")))
		f.waitLive(w, labelIs("done", "yes"))
		f.waitChildren("a-", map[string]string{"a-0": "x"})
		calls := len(f.asked("/decorate", w))
		f.annotate(w, "again", "1")
		other := f.widget("b", "")
		f.settle("/decorate", other)
		if got := len(f.asked("/decorate", w)); got != calls {
			t.Errorf("%d calls after the end", got-calls)
		}
		if code := p.Stop(); code != 0 {
			t.Errorf("exit code %d", code)
		}
		if got := f.verbs("widgets", "a"); !slices.Equal(got, []string{"patch"}) {
			t.Errorf("writes are %q", got)
		}
	})
	t.Run("with one", func(t *testing.T) {
		f := *f
		f.t = t
		f.decorator(func(dc *v1alpha1.DecoratorController) {
			todo(dc)
			f.decoratorWithFinalize(dc)
		})
		f.start()
		w := f.target(decoAPI, "Widget", "c", fmt.Sprintf(once, attachment("c-0", "x")), func(u *unstructured.Unstructured) {
			annotations := u.GetAnnotations()
			// It would go on for ever.
			annotations[annotationFinalize] = `{"labels":{"done":null},"attachments":[],"finalized":true}`
			u.SetAnnotations(annotations)
		})
		f.event(w, "SyncError", "finalize hook", "select the object again")
		if problem := labelIs("done", "yes")(f.live(w)); problem != "" {
			t.Error(problem)
		}
		synced := len(f.asked("/decorate", w))
		f.annotate(w, annotationFinalize, `{"labels":{"more":"yes"},"attachments":[],"finalized":true}`)
		now := f.waitLive(w, labelIs("more", "yes"))
		if len(now.GetFinalizers()) > 0 || len(f.asked("/decorate", w)) != synced {
			t.Errorf("finalizers %q, %d more syncs", now.GetFinalizers(), len(f.asked("/decorate", w))-synced)
		}
		f.waitChildren("c-", map[string]string{})
	})
}

// TestControllersOfOneParent has two decorators and two composites at one parent,
// all with ConfigMaps.
func TestControllersOfOneParent(t *testing.T) {
	f := newDecoratorFixture(t)
	own := func(name string, labels map[string]string) []object {
		return []object{
			{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": name, "labels": labels, "annotations": object{markAnnotation: "a lie"}}, "data": object{"v": name}},
			{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": "contested", "labels": labels}, "data": object{"v": name}},
		}
	}
	seen := func(observed map[string]map[string]corev1.ConfigMap, name string) error {
		for other := range observed["ConfigMap.v1"] {
			if other != name && other != "contested" {
				return fmt.Errorf("%s was shown %s", name, other)
			}
		}
		return nil
	}
	var shown atomic.Pointer[string]
	check := func(err error) {
		if err != nil {
			text := err.Error()
			shown.Store(&text)
		}
	}
	labels := map[string]string{"app": "x"}
	for _, name := range []string{"first", "second"} {
		f.hooks.Handle("/"+name, kit.JSON(func(r struct {
			Attachments map[string]map[string]corev1.ConfigMap
		}) (object, error) {
			check(seen(r.Attachments, name))
			return object{"attachments": own(name, labels)}, nil
		}))
	}
	for _, name := range []string{"generated", "selecting"} {
		f.hooks.Handle("/"+name, kit.JSON(func(r request) (object, error) {
			check(seen(r.Children, name))
			return object{"status": object{}, "children": own(name, labels)[:1]}, nil
		}))
	}
	for _, name := range []string{"first", "second"} {
		f.decorator(func(dc *v1alpha1.DecoratorController) {
			dc.Name = f.ns + "-" + name
			dc.Spec.Resources = []v1alpha1.DecoratorControllerResourceRule{f.decorates(thingAPI, "things")}
			dc.Spec.Hooks.Sync = hookAt(f.hooks.URL("/" + name))
		})
	}
	selecting := f.composite(func(cc *v1alpha1.CompositeController) {
		cc.Name = f.ns + "-selecting"
		cc.Spec.GenerateSelector = nil
		cc.Spec.Hooks.Sync = hookAt(f.hooks.URL("/selecting"))
	})
	p := f.start()
	parent := f.thing("p", object{"selector": object{"matchLabels": object{"app": "x"}}})
	want := []string{"first", "second", "selecting"}
	all := func(names ...string) func() error {
		return func() error {
			got := f.children("")
			delete(got, "kube-root-ca.crt")
			delete(got, "contested")
			if keys := slices.Sorted(maps.Keys(got)); !slices.Equal(keys, names) {
				return fmt.Errorf("ConfigMaps are %q", keys)
			}
			return nil
		}
	}
	kit.Eventually(t, soon, all(want...))
	// One of the two has it, and the other is told.
	kit.Eventually(t, soon, func() error {
		for _, e := range f.eventsOf(parent) {
			if strings.Contains(e.Message, "contested") && strings.Contains(e.Message, "DecoratorController") {
				return nil
			}
		}
		return errors.New("no event about the contested one")
	})
	contested := f.configMap("contested")
	uids := map[string]string{}
	for _, name := range want {
		uids[name] = string(f.configMap(name).UID)
	}
	for _, name := range []string{"first", "second"} {
		if got := f.configMap(name).Annotations[markAnnotation]; got != f.ns+"-"+name {
			t.Errorf("mark of %s is %q", name, got)
		}
	}
	if mark, has := f.configMap("selecting").Annotations[markAnnotation]; has {
		t.Errorf("a child of a composite has the mark %q", mark)
	}
	// All of them look again, several times over.
	for i := range 3 {
		calls := map[string]int{}
		for _, name := range want {
			calls[name] = len(f.hooks.Requests("/" + name))
		}
		f.patch(parent.DeepCopy(), fmt.Sprintf(`{"spec":{"round":%d}}`, i))
		for _, name := range want {
			f.hooks.WaitRequests(soon, "/"+name, calls[name]+1)
		}
	}
	for _, name := range want {
		if now := f.configMap(name); now == nil || string(now.UID) != uids[name] || now.Data["v"] != name || metav1.GetControllerOf(now) == nil {
			t.Errorf("%s was touched by another: %v", name, now)
		}
	}
	if now := f.configMap("contested"); now.UID != contested.UID || now.Data["v"] != contested.Data["v"] {
		t.Errorf("the contested one was %v and is %v", contested, now)
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	// A composite with a generated selector lets go what has not its label, such as
	// the child of the other composite.
	f.delete(selecting)
	f.composite(func(cc *v1alpha1.CompositeController) { cc.Spec.Hooks.Sync = hookAt(f.hooks.URL("/generated")) })
	p = f.start()
	kit.Eventually(t, soon, all("first", "generated", "second", "selecting"))
	for _, name := range []string{"first", "second"} {
		if now := f.configMap(name); string(now.UID) != uids[name] || metav1.GetControllerOf(now) == nil {
			t.Errorf("%s was touched by a composite: %v", name, now)
		}
	}
	if text := shown.Load(); text != nil {
		t.Error(*text)
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestDecoratorOfItsOwnKind attaches what it would decorate.
func TestDecoratorOfItsOwnKind(t *testing.T) {
	f := newDecoratorFixture(t)
	f.hooks.Handle("/decorate", kit.JSON(func(r decorated) (object, error) {
		return object{"labels": object{"l": "1"}, "attachments": []object{{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": r.Object.Name + "-0", "labels": object{testLabel: f.ns}}, "data": object{"v": "x"},
		}, {
			// It is there, and not one of the attachments.
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": r.Object.Name}, "data": object{"v": "overwritten"},
		}}}, nil
	}))
	f.decorator(func(dc *v1alpha1.DecoratorController) {
		dc.Spec.Resources = []v1alpha1.DecoratorControllerResourceRule{f.decorates("v1", "configmaps")}
		f.decoratorWithFinalize(dc)
	})
	f.start()
	a := f.target("v1", "ConfigMap", "a", "", nil)
	f.waitChildren("a-", map[string]string{"a-0": "x"})
	f.waitLive(a, labelIs("l", "1"))
	f.event(a, "SyncError", "attachments[1]", f.ns+"/a")
	// Its attachment is seen, changed, and still not decorated.
	f.patch(f.configMap("a-0"), `{"data":{"v":"drifted"}}`)
	f.waitChildren("a", map[string]string{"a": "", "a-0": "x"})
	f.settle("/decorate", a)
	for _, request := range f.hooks.Requests("/decorate") {
		var one decorated
		if err := request.Decode(&one); err != nil || one.Object.Name != "a" {
			t.Errorf("the hook was asked about %s, %v", one.Object.Name, err)
		}
	}
	f.delete(a.DeepCopy())
	f.waitGone(a)
	f.waitChildren("a", map[string]string{})
}

func TestDecoratorThatOnlyFinalizes(t *testing.T) {
	f := newDecoratorFixture(t)
	dc := f.decorator(func(dc *v1alpha1.DecoratorController) {
		dc.Spec.Hooks = &v1alpha1.DecoratorControllerHooks{}
		f.decoratorWithFinalize(dc)
	})
	p := f.start()
	w := f.widget("a", "")
	f.waitLive(w, func(u *unstructured.Unstructured) string {
		if len(u.GetFinalizers()) != 1 {
			return "no finalizer"
		}
		return ""
	})
	f.patch(w.DeepCopy(), `{"spec":{"n":1}}`)
	b := f.widget("b", "")
	f.delete(b.DeepCopy())
	f.waitGone(b)
	if calls, events := f.asked("/finalize", w), f.eventsOf(w); len(calls) > 0 || len(events) > 0 {
		t.Errorf("%d calls and events %v while it lives", len(calls), events)
	}
	f.delete(w.DeepCopy())
	f.waitGone(w)
	if calls := f.asked("/finalize", w); len(calls) != 1 || !slices.Equal(calls[0].Object.Finalizers, []string{"metacontroller.io/decoratorcontroller-" + dc.Name}) {
		t.Errorf("calls are %+v", calls)
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if got := f.verbs("widgets", "a"); !slices.Equal(got, []string{"patch", "patch"}) {
		t.Errorf("writes are %q", got)
	}
}

func TestDecoratorResyncs(t *testing.T) {
	f := newDecoratorFixture(t)
	yes, period := true, int32(1)
	f.decorator(func(dc *v1alpha1.DecoratorController) {
		dc.Spec.Resources[0].IgnoreStatusChanges = &yes
		dc.Spec.ResyncPeriodSeconds = &period
	})
	f.hooks.Handle("/often", scripted("", `{"attachments":[],"resyncAfterSeconds":0.1}`))
	f.decorator(func(dc *v1alpha1.DecoratorController) {
		dc.Name += "-often"
		dc.Spec.Resources[0].IgnoreStatusChanges = &yes
		dc.Spec.Hooks.Sync = hookAt(f.hooks.URL("/often"))
	})
	f.start()
	f.widget("a", "")
	f.hooks.WaitRequests(soon, "/often", 6)
	f.hooks.WaitRequests(soon, "/decorate", 4)
}

func TestDecoratorWithMissingKinds(t *testing.T) {
	f := newDecoratorFixture(t)
	dc := f.decorator(func(dc *v1alpha1.DecoratorController) {
		dc.Spec.Resources = append(dc.Spec.Resources, f.decorates("absent.example.com/v1", "parents"))
		dc.Spec.Attachments = append(dc.Spec.Attachments, attaches("absent.example.com/v1", "children", ""))
	})
	f.start()
	f.event(dc, "CreateError", "parents in absent.example.com/v1", "children in absent.example.com/v1")
	f.widget("a", `{"attachments":[`+attachment("a-0", "x")+`]}`)
	f.waitChildren("a-", map[string]string{"a-0": "x"})

	// A change that cannot work leaves the running controller running.
	good := dc.DeepCopy()
	nowhere := ""
	dc.Spec.Hooks.Sync.Webhook.URL = &nowhere
	f.put(dc)
	f.event(dc, "CreateError", "spec.hooks.sync", "webhook.url", "as it was declared before")
	dc = good.DeepCopy()
	dc.Spec.Resources[0].AnnotationSelector = &v1alpha1.AnnotationSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "a", Operator: "Like"}}}
	f.put(dc)
	f.event(dc, "CreateError", "spec.resources[0].annotationSelector.matchExpressions[0].operator", "Like")
	f.widget("b", `{"attachments":[`+attachment("b-0", "x")+`]}`)
	f.waitChildren("b-", map[string]string{"b-0": "x"})
}

func TestDecoratorUpdateMethods(t *testing.T) {
	f := newDecoratorFixture(t)
	methods := []v1alpha1.ChildUpdateMethod{"", v1alpha1.ChildUpdateOnDelete, v1alpha1.ChildUpdateRecreate, v1alpha1.ChildUpdateInPlace, v1alpha1.ChildUpdateRollingRecreate, v1alpha1.ChildUpdateRollingInPlace}
	name := func(m v1alpha1.ChildUpdateMethod) string { return "m" + strings.ToLower(string(m)) }
	answer := func(m v1alpha1.ChildUpdateMethod, value string) string {
		return `{"attachments":[` + attachment(name(m)+"-0", value) + `,` + attachment(name(m)+"-1", value) + `]}`
	}
	for _, m := range methods {
		f.decorator(func(dc *v1alpha1.DecoratorController) {
			dc.Name = f.ns + "-" + name(m)
			dc.Spec.Resources[0].LabelSelector.MatchLabels["method"] = name(m)
			dc.Spec.Attachments[0] = attaches("v1", "configmaps", m)
		})
	}
	f.start()
	for _, m := range methods {
		w := f.target(decoAPI, "Widget", name(m), answer(m, "x"), func(u *unstructured.Unstructured) {
			u.SetLabels(map[string]string{testLabel: f.ns, "method": name(m)})
		})
		both := func(value string) map[string]string {
			return map[string]string{name(m) + "-0": value, name(m) + "-1": value}
		}
		f.waitChildren(name(m)+"-", both("x"))
		before := f.configMap(name(m) + "-0").UID
		f.annotate(w, annotationAnswer, answer(m, "y"))
		switch m {
		case "", v1alpha1.ChildUpdateOnDelete:
			f.settle("/decorate", w)
			f.delete(f.configMap(name(m) + "-1"))
			f.waitChildren(name(m)+"-", map[string]string{name(m) + "-0": "x", name(m) + "-1": "y"})
		case v1alpha1.ChildUpdateRecreate, v1alpha1.ChildUpdateRollingRecreate:
			f.waitChildren(name(m)+"-", both("y"))
			if f.configMap(name(m)+"-0").UID == before {
				t.Errorf("%s changed in place", m)
			}
		default:
			f.waitChildren(name(m)+"-", both("y"))
			if f.configMap(name(m)+"-0").UID != before {
				t.Errorf("%s recreated", m)
			}
		}
	}
}

func TestWrongAnswersOfDecorators(t *testing.T) {
	f := newDecoratorFixture(t)
	f.decorator(func(dc *v1alpha1.DecoratorController) {
		dc.Spec.Resources = append(dc.Spec.Resources, f.decorates(decoAPI, "plains"))
	})
	p := f.start()
	const rest = `,"attachments":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%s-0"},"data":{"v":"x"}}]}`
	cases := []struct {
		name, answer string
		says         []string
		// goesOn says that the attachments are made all the same.
		goesOn bool
	}{
		{"label-value", `{"labels":{"example.com/x":"no label"}` + rest, []string{"labels[example.com/x]", "no label"}, false},
		{"label-key", `{"labels":{"no key":"x"}` + rest, []string{"labels[no key]"}, false},
		{"label-number", `{"labels":{"x":1}` + rest, []string{"labels[x]", "string or null"}, false},
		{"labels-list", `{"labels":[]` + rest, []string{"labels", "must be an object"}, false},
		{"annotation-key", `{"annotations":{"a/b/c":"x"}` + rest, []string{"annotations[a/b/c]"}, false},
		{"annotations-text", `{"annotations":"x"` + rest, []string{"annotations", "must be an object"}, false},
		{"own-mark", `{"annotations":{"` + markAnnotation + `":"x"}` + rest, []string{"annotations[" + markAnnotation + "]"}, false},
		{"status-text", `{"status":"x"` + rest, []string{"status", "must be an object"}, false},
		{"status-refused", `{"labels":{"l":"1"},"status":{"ready":"x"}` + rest, []string{"status", "ready"}, true},
		{"attachments-object", `{"attachments":{}}`, []string{"attachments", "must be a list"}, false},
		{"null-attachment", `{"attachments":[null]}`, []string{"attachments[0]", "must be an object"}, false},
		{"null", `null`, []string{"must be an object"}, false},
		{"empty", `{}`, []string{"attachments", "is missing"}, false},
	}
	bystander := f.widget("bystander", `{"attachments":[]}`)
	for _, c := range cases {
		answer := c.answer
		if strings.Contains(answer, "%s") {
			answer = strings.ReplaceAll(answer, "%s", c.name)
		}
		w := f.widget(c.name, answer)
		event := f.event(w, "SyncError", append([]string{"DecoratorController", f.ns}, c.says...)...)
		if c.goesOn {
			f.waitChildren(c.name+"-", map[string]string{c.name + "-0": "x"})
			f.waitLive(w, labelIs("l", "1"))
		} else if got := f.children(c.name + "-"); len(got) > 0 {
			t.Errorf("%s: %v was made in spite of %s", c.name, got, event.Message)
		}
		f.annotate(bystander, annotationAnswer, fmt.Sprintf(`{"labels":{"l":%q},"attachments":[]}`, c.name))
		f.waitLive(bystander, labelIs("l", c.name))
		// Mended, it goes on.
		f.annotate(w, annotationAnswer, `{"labels":{"l":"mended"},"attachments":[]}`)
		f.waitLive(w, labelIs("l", "mended"))
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestConflictsOfDecoratorsAreQuiet changes the object while the hook thinks.
func TestConflictsOfDecoratorsAreQuiet(t *testing.T) {
	f := newDecoratorFixture(t)
	var meddled atomic.Bool
	good := scripted(annotationAnswer, "")
	f.hooks.Handle("/decorate", func(w http.ResponseWriter, r *http.Request, request kit.HookRequest) {
		if meddled.CompareAndSwap(false, true) {
			u := &unstructured.Unstructured{Object: object{"apiVersion": decoAPI, "kind": "Widget", "metadata": object{"namespace": f.ns, "name": "a"}}}
			f.patch(u, `{"metadata":{"labels":{"foreign":"1","l":"meddled"}}}`)
		}
		good(w, r, request)
	})
	f.decorator(nil)
	f.start()
	w := f.widget("a", `{"labels":{"l":"1"},"status":{"ready":1},"attachments":[]}`)
	f.waitLive(w, statusIs(`{"ready":1}`))
	now := f.waitLive(w, labelIs("l", "1"))
	if now.GetLabels()["foreign"] != "1" {
		t.Errorf("labels are %v", now.GetLabels())
	}
	f.settle("/decorate", w)
	for _, event := range f.eventsOf(w) {
		t.Errorf("there is an event: %s", event.Message)
	}
}

func TestMetricsOfNamesakes(t *testing.T) {
	f := newDecoratorFixture(t)
	port, err := kit.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	f.hooks.Handle("/sync", defaultHook())
	dc := f.decorator(func(dc *v1alpha1.DecoratorController) { dc.Spec.Hooks.Sync = hookAt(f.hooks.URL("/decorate")) })
	cc := f.composite(nil)
	f.start(fmt.Sprintf("--metrics-address=127.0.0.1:%d", port))
	f.settle("/decorate", f.widget("a", ""))
	f.thing("a", object{"count": 1, "value": "x"})
	f.waitChildren("a-", map[string]string{"a-0": "x"})
	series := func(name string, labels ...string) error {
		response, err := http.Get(fmt.Sprintf("http://127.0.0.1:%d/metrics", port))
		if err != nil {
			return err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(io.LimitReader(response.Body, 16<<20))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(body)) {
			if strings.HasPrefix(line, name+"{") && !slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(line, l) }) {
				return nil
			}
		}
		return fmt.Errorf("no series %s with %q", name, labels)
	}
	for _, kind := range []string{dc.Kind, cc.Kind} {
		for _, one := range [][]string{
			{"metacontroller_sync_requests_total", `controller_name="` + f.ns + `"`, `controller_type="` + kind + `"`, `code="200"`},
			{"workqueue_adds_total", `name="` + kind + "-" + f.ns + `"`},
		} {
			kit.Eventually(t, soon, func() error { return series(one[0], one[1:]...) })
		}
	}
	f.delete(dc)
	kit.Eventually(t, soon, func() error {
		if series("metacontroller_sync_requests_total", `controller_type="`+dc.Kind+`"`) == nil {
			return errors.New("the series of the decorator are still there")
		}
		return series("metacontroller_sync_requests_total", `controller_type="`+cc.Kind+`"`)
	})
}
