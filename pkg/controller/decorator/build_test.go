package decorator

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
func (nobody) URL() string   { return "" }
func (nobody) Close()        {}
func (nobody) Accept(string) {}
func (nobody) Forget(string) {}

func kind(group, version, name, plural string) object.Kind {
	return object.Kind{GroupVersionKind: schema.GroupVersionKind{Group: group, Version: version, Kind: name}, Resource: plural, Namespaced: true}
}

// builder knows the resources of a small cluster.
func builder() *Builder {
	known := map[string]declare.Resource{
		"demo/v1 things":      {Kind: kind("demo", "v1", "Thing", "things"), HasStatus: true, Custom: true},
		"demo/v2 things":      {Kind: kind("demo", "v2", "Thing", "things"), HasStatus: true, Custom: true},
		"demo/v1 plains":      {Kind: kind("demo", "v1", "Plain", "plains"), Custom: true},
		"demo/v1 statusless":  {Kind: kind("demo", "v1", "Statusless", "statusless"), Custom: true},
		"demo/v1 unreadables": {Kind: kind("demo", "v1", "Unreadable", "unreadables"), Custom: true},
		"v1 configmaps":       {Kind: kind("", "v1", "ConfigMap", "configmaps")},
		"v1 pods":             {Kind: kind("", "v1", "Pod", "pods"), HasStatus: true},
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
		StatusField: func(_ context.Context, kind object.Kind) (bool, error) {
			if kind.Resource == "unreadables" {
				return false, errors.New("cannot read it")
			}
			return kind.Resource == "plains", nil
		},
		Caller: func(one declare.Webhook) (syncer.Caller, error) {
			if one.Webhook == nil || one.Webhook.URL == nil {
				return nil, errors.New("says nowhere to call")
			}
			return nobody{}, nil
		},
		ResyncPeriod: time.Hour,
	}}
}

func declared(t testing.TB, spec string) *object.Object {
	t.Helper()
	var decoded map[string]any
	if err := yaml.Unmarshal([]byte(spec), &decoded); err != nil {
		t.Fatal(err)
	}
	body, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.DecoratorControllerKind,
		"metadata": map[string]any{"name": "dc", "uid": "u"}, "spec": decoded,
	})
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, string(body))
}

const (
	hookURL  = "{webhook: {url: http://h}}"
	syncHook = "hooks: {sync: " + hookURL + "}\n"
	things   = "resources: [{apiVersion: demo/v1, resource: things}]\n"
)

func resources(rules ...string) string {
	return "resources: [" + strings.Join(rules, ", ") + "]\n" + syncHook
}

func thing(more string) string { return "{apiVersion: demo/v1, resource: things" + more + "}" }

func TestBuildRefuses(t *testing.T) {
	annotations := func(selector string) string { return resources(thing(", annotationSelector: " + selector)) }
	cases := []struct {
		reason, spec, says string
		// invalid says that only another spec mends it.
		invalid bool
	}{
		{"nothing to decorate", "resources: []\n" + syncHook, "spec.resources is empty", true},
		{"no hooks", things, "neither sync nor finalize", true},
		{"no address", things + "hooks: {finalize: {webhook: {path: /x}}}", "spec.hooks.finalize says nowhere", true},
		{"no such kind", resources("{apiVersion: demo/v1, resource: nothings}"), "spec.resources[0]", false},
		{"kind cannot be looked up", resources(thing(""), "{apiVersion: broken/v1, resource: pods}"), "group is broken", false},
		{"schema cannot be read", resources("{apiVersion: demo/v1, resource: unreadables}"), "spec.resources[0]: cannot read it", false},
		{"one kind in two versions", resources(thing(""), "{apiVersion: demo/v2, resource: things}"), `spec.resources[1]: "things" is declared in "demo/v2" and, before, in "demo/v1"`, true},
		{"bad label selector", resources(thing(", labelSelector: {matchExpressions: [{key: a, operator: Like}]}")), "spec.resources[0].labelSelector", true},
		{"operator", annotations("{matchExpressions: [{key: a, operator: Like}]}"), "spec.resources[0].annotationSelector.matchExpressions[0].operator", true},
		{"key", annotations("{matchExpressions: [{key: a b, operator: Exists}]}"), "matchExpressions[0].key", true},
		{"key to match", annotations("{matchAnnotations: {a b: c}}"), "matchAnnotations[a b]", true},
		{"values missing", annotations("{matchExpressions: [{key: a, operator: In}]}"), "matchExpressions[0].values", true},
		{"values too many", annotations("{matchExpressions: [{key: a, operator: Exists, values: [x]}]}"), "matchExpressions[0].values", true},
		{"attachment twice", things + syncHook + "attachments: [{apiVersion: v1, resource: pods}, {apiVersion: v1, resource: pods}]", "spec.attachments[1]", true},
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
	_, err := builder().Build(t.Context(), declared(t, resources("{apiVersion: demo/v1, resource: nothings}")))
	if !declare.Absent(err) {
		t.Errorf("without any of its kinds the controller does not end: %v", err)
	}
}

func TestBuild(t *testing.T) {
	built, err := builder().Build(t.Context(), declared(t, resources(
		thing(", labelSelector: {matchLabels: {a: b}}, ignoreStatusChanges: true"),
		"{apiVersion: demo/v1, resource: nothings}",
		"{apiVersion: v1, resource: configmaps, annotationSelector: {matchAnnotations: {a: 'any {thing}'}}}",
		"{apiVersion: demo/v1, resource: plains}",
		"{apiVersion: demo/v1, resource: statusless}",
		thing(", annotationSelector: {matchExpressions: [{key: c, operator: Exists}]}"),
	)+`
attachments:
- {apiVersion: v1, resource: pods}
- {apiVersion: v1, resource: configmaps, updateStrategy: {method: RollingInPlace}}
- {apiVersion: demo/v1, resource: statusless, updateStrategy: {method: RollingRecreate}}
- {apiVersion: demo/v1, resource: absents}
resyncPeriodSeconds: 60
`))
	if err != nil {
		t.Fatal(err)
	}
	d := built.Definition
	if d.QueueName() != "DecoratorController-dc" || d.Finalizer != "metacontroller.io/decoratorcontroller-dc" || d.Mark != "dc" || d.ResyncPeriod != time.Minute || built.Selector != nil {
		t.Errorf("definition is %+v", d)
	}
	if got := fmt.Sprint(d.Missing); got != "[nothings in demo/v1 absents in demo/v1]" {
		t.Errorf("missing are %s", got)
	}
	var methods []v1alpha1.ChildUpdateMethod
	for _, child := range d.Children {
		methods = append(methods, child.Method)
	}
	if got := fmt.Sprint(methods); got != "[OnDelete InPlace Recreate]" {
		t.Errorf("methods are %s", got)
	}
	if len(d.Parents) != 4 {
		t.Fatalf("parents are %+v", d.Parents)
	}
	byKind := map[string]*engine.Parent{}
	for i := range d.Parents {
		byKind[d.Parents[i].Resource] = &d.Parents[i]
	}
	if p := byKind["things"]; !p.HasStatus || p.StatusField || !p.IgnoreStatusChanges || len(p.Or) != 1 || p.Or[0].IgnoreStatusChanges {
		t.Errorf("things are %+v", p)
	}
	if p := byKind["plains"]; p.HasStatus || !p.StatusField {
		t.Errorf("plains are %+v", p)
	}
	if p := byKind["configmaps"]; p.HasStatus || p.StatusField {
		t.Errorf("configmaps are %+v", p)
	}

	object := func(apiVersion, kind, metadata string) (*engine.Parent, bool) {
		o := parse(t, fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":"a"%s}}`, apiVersion, kind, metadata))
		rule := d.Parent(o.GroupVersionKind().GroupKind())
		return rule, rule.Selects(o)
	}
	selects := []struct {
		reason, apiVersion, kind, metadata string
		want                               bool
	}{
		{"by label", "demo/v1", "Thing", `,"labels":{"a":"b"}`, true},
		{"by the second rule", "demo/v1", "Thing", `,"annotations":{"c":""}`, true},
		{"by none", "demo/v1", "Thing", ``, false},
		{"by any value of an annotation", "v1", "ConfigMap", `,"annotations":{"a":"any {thing}"}`, true},
		{"all", "demo/v1", "Plain", ``, true},
		{"its own attachment", "v1", "ConfigMap", `,"annotations":{"a":"any {thing}","metacontroller.k8s.io/decorator-controller":"dc"}`, false},
		{"another's attachment", "v1", "ConfigMap", `,"annotations":{"a":"any {thing}","metacontroller.k8s.io/decorator-controller":"other"}`, true},
		{"its own attachment, by no selector", "demo/v1", "Statusless", `,"annotations":{"metacontroller.k8s.io/decorator-controller":"dc"}`, false},
	}
	for _, c := range selects {
		if _, got := object(c.apiVersion, c.kind, c.metadata); got != c.want {
			t.Errorf("%s: %v", c.reason, got)
		}
	}
}
