package composite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/declare"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/syncer"
	"github.com/metacontroller-solo/solo/pkg/object"
)

type nobody struct{}

func (nobody) Call(context.Context, string, []byte) ([]byte, error) {
	return nil, errors.New("is not called")
}
func (nobody) Accept(string) {}
func (nobody) Forget(string) {}
func (nobody) URL() string   { return "" }
func (nobody) Close()        {}

func kind(group, version, name, plural string) object.Kind {
	return object.Kind{GroupVersionKind: schema.GroupVersionKind{Group: group, Version: version, Kind: name}, Resource: plural, Namespaced: true}
}

// builder knows the resources of a small cluster.
func builder() *Builder {
	known := map[string]declare.Resource{
		"demo/v1 things":     {Kind: kind("demo", "v1", "Thing", "things"), HasStatus: true, Custom: true},
		"demo/v1 statusless": {Kind: kind("demo", "v1", "Statusless", "statusless"), Custom: true},
		"v1 configmaps":      {Kind: kind("", "v1", "ConfigMap", "configmaps")},
		"v1 pods":            {Kind: kind("", "v1", "Pod", "pods"), HasStatus: true},
		"metacontroller.k8s.io/v1alpha1 controllerrevisions": {Kind: kind("metacontroller.k8s.io", "v1alpha1", "ControllerRevision", "controllerrevisions"), Custom: true},
	}
	return &Builder{declare.Tools{
		Lookup: func(_ context.Context, apiVersion, resource string) (declare.Resource, bool, error) {
			if apiVersion == "broken/v1" {
				return declare.Resource{}, false, errors.New("group is broken")
			}
			found, ok := known[apiVersion+" "+resource]
			if !ok {
				return declare.Resource{}, true, fmt.Errorf("no %s in %s", resource, apiVersion)
			}
			return found, false, nil
		},
		Caller: func(one declare.Webhook) (syncer.Caller, error) {
			if one.Webhook == nil || one.Webhook.URL == nil {
				return nil, errors.New("says nowhere to call")
			}
			return nobody{}, nil
		},
		ResyncPeriod: time.Hour,
		Namespace:    "own",
	}}
}

func declared(t testing.TB, spec string) *object.Object {
	t.Helper()
	var decoded map[string]any
	if err := yaml.Unmarshal([]byte(spec), &decoded); err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.CompositeControllerKind,
		"metadata": map[string]any{"name": "cc", "uid": "u"}, "spec": decoded,
	})
	if err != nil {
		t.Fatal(err)
	}
	o, err := object.FromJSON(body)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

const (
	parentThing = "parentResource: {apiVersion: demo/v1, resource: things}\n"
	hookURL     = "{webhook: {url: http://h}}"
	syncHook    = "hooks: {sync: " + hookURL + "}\n"
	configMaps  = "childResources: [{apiVersion: v1, resource: configmaps}]\n"
)

func TestBuildRefuses(t *testing.T) {
	method := func(m string) string {
		return parentThing + syncHook + "childResources: [{apiVersion: v1, resource: configmaps, updateStrategy: {method: " + m + "}}]\n"
	}
	cases := []struct {
		reason, spec, says string
		// invalid says that only another spec mends it.
		invalid bool
	}{
		{"no hooks", parentThing, "neither sync nor finalize", true},
		{"field path with a hole", strings.Replace(method("RollingInPlace"), "things}", "things, revisionHistory: {fieldPaths: [spec, spec..a]}}", 1), `spec.parentResource.revisionHistory.fieldPaths[1]: "spec..a" is not a path`, true},
		{"field path into status", strings.Replace(method("RollingRecreate"), "things}", "things, revisionHistory: {fieldPaths: [status.x]}}", 1), `fieldPaths[0]: "status.x" cannot`, true},
		{"customize alone", parentThing + "hooks: {customize: " + hookURL + "}", "neither sync nor finalize", true},
		{"customize without an address", parentThing + "hooks: {sync: " + hookURL + ", customize: {webhook: {path: /x}}}", "spec.hooks.customize says nowhere", true},
		{"no address", parentThing + "hooks: {finalize: {webhook: {path: /x}}}", "spec.hooks.finalize says nowhere", true},
		{"no parent kind", "parentResource: {apiVersion: demo/v1, resource: nothings}\n" + syncHook, "spec.parentResource", false},
		{"parent without status", "parentResource: {apiVersion: demo/v1, resource: statusless}\n" + syncHook, "status subresource", false},
		{"bad selector", "parentResource: {apiVersion: demo/v1, resource: things, labelSelector: {matchExpressions: [{key: a, operator: Like}]}}\n" + syncHook, "labelSelector", true},
		{"child twice", parentThing + syncHook + "childResources: [{apiVersion: v1, resource: pods}, {apiVersion: v1, resource: pods}]", "childResources[1]", true},
		{"child kind cannot be looked up", parentThing + syncHook + "childResources: [{apiVersion: broken/v1, resource: pods}]", "group is broken", false},
	}
	for _, c := range cases {
		built, err := builder().Build(t.Context(), declared(t, c.spec))
		if err == nil || built != nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: error is %v", c.reason, err)
			continue
		}
		var invalid *engine.InvalidError
		if errors.As(err, &invalid) != c.invalid {
			t.Errorf("%s: the error %v is of the wrong sort", c.reason, err)
		}
	}
}

// The name of a controller is in its finalizer, which has less room.
func TestNamesThatTheFinalizerHasNoRoomFor(t *testing.T) {
	const finalizeHook = "hooks: {finalize: " + hookURL + "}\n"
	for _, c := range []struct {
		hooks  string
		length int
		says   string
	}{
		{finalizeHook, 44, "metadata.name has 44 characters, and with spec.hooks.finalize it may have 43"},
		{finalizeHook, 43, ""},
		{syncHook, 200, ""},
	} {
		content := declared(t, parentThing+c.hooks).Content()
		content["metadata"].(map[string]any)["name"] = strings.Repeat("n", c.length)
		o, err := object.FromContent(content)
		if err != nil {
			t.Fatal(err)
		}
		_, err = builder().Build(t.Context(), o)
		if invalid := (*engine.InvalidError)(nil); (err != nil) != (c.says != "") || err != nil && (!errors.As(err, &invalid) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%d characters with %s: %v", c.length, c.hooks, err)
		}
	}
}

func TestBuild(t *testing.T) {
	accepted := []struct{ reason, spec string }{
		{"least", parentThing + syncHook},
		{"finalize alone", parentThing + "hooks: {finalize: " + hookURL + "}"},
		{"customize", parentThing + "hooks: {sync: " + hookURL + ", customize: " + hookURL + "}"},
		{"built-in parent without status", "parentResource: {apiVersion: v1, resource: configmaps}\n" + syncHook},
		{"hooks that nobody calls", parentThing + "hooks: {sync: " + hookURL + ", preUpdateChild: {}, postUpdateChild: {}}"},
		{"etag that is off", parentThing + "hooks: {sync: {webhook: {url: http://h, etag: {enabled: false}}}}"},
		{"revision history without a rolling update", strings.Replace(parentThing, "things}", "things, revisionHistory: {fieldPaths: [spec.template]}}", 1) + syncHook},
		{"field paths that nobody needs", strings.Replace(parentThing, "things}", "things, revisionHistory: {fieldPaths: ['']}}", 1) + syncHook},
		{"version v2", parentThing + "hooks: {sync: {version: v2, webhook: {url: http://h}}}"},
	}
	for _, c := range accepted {
		if _, err := builder().Build(t.Context(), declared(t, c.spec)); err != nil {
			t.Errorf("%s: %v", c.reason, err)
		}
	}

	built, err := builder().Build(t.Context(), declared(t, parentThing+syncHook+
		"childResources: [{apiVersion: v1, resource: pods, updateStrategy: {method: InPlace}}, {apiVersion: demo/v1, resource: nothings}, {apiVersion: v1, resource: configmaps}]\n"+
		"generateSelector: true\nresyncPeriodSeconds: 60\n"))
	if err != nil {
		t.Fatal(err)
	}
	d := built.Definition
	if d.QueueName() != "CompositeController-cc" || d.Finalizer != "metacontroller.io/compositecontroller-cc" || !d.GenerateSelector || d.ResyncPeriod != time.Minute {
		t.Errorf("definition is %+v", d)
	}
	if len(d.Children) != 2 || d.Children[0].Method != v1alpha1.ChildUpdateInPlace || d.Children[1].Method != v1alpha1.ChildUpdateOnDelete {
		t.Errorf("children are %+v", d.Children)
	}
	if len(d.Missing) != 1 || d.Missing[0] != "nothings in demo/v1" {
		t.Errorf("missing are %q", d.Missing)
	}
	if !d.Parents[0].Selector.Empty() || !d.Parents[0].HasStatus {
		t.Errorf("parent is %+v", d.Parents[0])
	}
}

func TestRevisionsAreOfControllersThatRoll(t *testing.T) {
	const rolling = "childResources: [{apiVersion: v1, resource: configmaps}, {apiVersion: v1, resource: pods, updateStrategy: {method: RollingRecreate, statusChecks: {conditions: [{type: Ready}]}}}]\n"
	build := func(spec string) engine.Definition {
		built, err := builder().Build(t.Context(), declared(t, spec))
		if err != nil {
			t.Fatal(err)
		}
		return built.Definition
	}
	d := build(parentThing + syncHook + rolling + "generateSelector: true\n")
	r := d.Revisions
	if r == nil || r.Namespace != "own" || len(r.Paths) != 1 || r.Paths[0].String() != "spec" || !r.Generated ||
		r.Parent.Resource != "things" || r.Kind.Resource != "controllerrevisions" || r.Children[0].Rolls || !r.Children[1].Rolls {
		t.Fatalf("revisions are %+v", r)
	}
	if len(d.Children[0].Checks) != 0 || len(d.Children[1].Checks) != 1 {
		t.Errorf("children are %+v", d.Children)
	}
	if d := build(parentThing + syncHook + configMaps); d.Revisions != nil {
		t.Error("there are revisions though nothing rolls")
	}
	if d := build(parentThing + "hooks: {finalize: " + hookURL + "}\n" + rolling); d.Revisions != nil {
		t.Error("there are revisions though nothing is synced")
	}

	b := builder()
	lookup := b.Lookup
	b.Lookup = func(ctx context.Context, apiVersion, resource string) (declare.Resource, bool, error) {
		if resource == v1alpha1.ControllerRevisionResource {
			return declare.Resource{}, true, errors.New("no such resource")
		}
		return lookup(ctx, apiVersion, resource)
	}
	_, err := b.Build(t.Context(), declared(t, parentThing+syncHook+rolling))
	if invalid := (*engine.InvalidError)(nil); err == nil || errors.As(err, &invalid) || !strings.Contains(err.Error(), "install their CustomResourceDefinition") {
		t.Errorf("without ControllerRevisions the error is %v", err)
	}
}

func TestSelector(t *testing.T) {
	parent := func(spec string) *object.Object {
		o, err := object.FromJSON([]byte(`{"apiVersion":"demo/v1","kind":"Thing","metadata":{"name":"a","uid":"the-uid"},"spec":` + spec + `}`))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	generated, err := policy{generated: true}.selector(parent(`{}`))
	if err != nil || generated.String() != "controller-uid=the-uid" {
		t.Errorf("generated selector is %v, %v", generated, err)
	}
	cases := []struct{ reason, spec, want, fails string }{
		{"labels", `{"selector":{"matchLabels":{"a":"b"}}}`, "a=b", ""},
		{"expressions", `{"selector":{"matchExpressions":[{"key":"a","operator":"Exists"}]}}`, "a", ""},
		{"no spec", `null`, "", "no spec.selector"},
		{"no selector", `{}`, "", "no spec.selector"},
		{"empty", `{"selector":{}}`, "", "is empty"},
		{"empty labels", `{"selector":{"matchLabels":{}}}`, "", "is empty"},
		{"text", `{"selector":"a=b"}`, "", "no spec.selector"},
		{"wrong type", `{"selector":{"matchLabels":{"a":1}}}`, "", "not a label selector"},
		{"wrong operator", `{"selector":{"matchExpressions":[{"key":"a","operator":"Like"}]}}`, "", "not valid"},
	}
	for _, c := range cases {
		got, err := policy{}.selector(parent(c.spec))
		if c.fails == "" && (err != nil || got.String() != c.want) || c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails)) {
			t.Errorf("%s: %v, %v", c.reason, got, err)
		}
		if none := (policy{}).selectorOrNone(parent(c.spec)); (none == nil) != (c.fails != "") {
			t.Errorf("%s: selectorOrNone is %v", c.reason, none)
		}
	}
}

func TestAParentWithoutSelectorCanBeFinalized(t *testing.T) {
	o, err := object.FromJSON([]byte(`{"apiVersion":"demo/v1","kind":"Thing","metadata":{"name":"a"}}`))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (policy{}).Observe(&syncer.Pass{Mode: syncer.ModeSync, Parent: o}); err == nil {
		t.Error("it is synced")
	}
	if selector, err := (policy{}).Observe(&syncer.Pass{Mode: syncer.ModeFinalize, Parent: o}); err != nil || selector != nil {
		t.Errorf("it cannot be finalized: %v, %v", selector, err)
	}
}
