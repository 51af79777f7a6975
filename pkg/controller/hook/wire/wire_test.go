package wire_test

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/hook/wire"
	"github.com/metacontroller-solo/solo/pkg/object"
)

var (
	v1     = wire.Codec{Version: v1alpha1.HookVersionV1}
	v2     = wire.Codec{Version: v1alpha1.HookVersionV2, Strict: true}
	strict = wire.Codec{Version: v1alpha1.HookVersionV1, Strict: true}
)

func kind(group, version, name string, namespaced bool) object.Kind {
	return object.Kind{GroupVersionKind: schema.GroupVersionKind{Group: group, Version: version, Kind: name},
		Resource: strings.ToLower(name) + "s", Namespaced: namespaced}
}

var (
	pods        = kind("", "v1", "Pod", true)
	deployments = kind("apps", "v1", "Deployment", true)
	roles       = kind("rbac.authorization.k8s.io", "v1", "ClusterRole", false)
)

func at(k object.Kind, namespace, name string) *object.Object {
	text := fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q}}`, k.APIVersion(), k.GroupVersionKind.Kind, name)
	if namespace != "" {
		text = fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"name":%q,"namespace":%q}}`, k.APIVersion(), k.GroupVersionKind.Kind, name, namespace)
	}
	o, err := object.FromJSON([]byte(text))
	if err != nil {
		panic(err)
	}
	return o
}

func request(flavor hook.Flavor, call hook.Call, parentNamespace string) *hook.Request {
	things := kind("x.io", "v1", "Thing", parentNamespace != "")
	return &hook.Request{
		Flavor:     flavor,
		Call:       call,
		Controller: at(kind("metacontroller.k8s.io", "v1alpha1", "CompositeController", false), "", "ctl"),
		Parent:     at(things, parentNamespace, "p"),
		Children: object.NewSet([]object.Kind{pods, deployments},
			at(pods, "ns", "b"), at(pods, "ns", "a"), at(pods, "other", "a")),
		Related: object.NewSet([]object.Kind{roles}, at(roles, "", "r")),
	}
}

func TestRequestKeys(t *testing.T) {
	tests := []struct {
		name   string
		codec  wire.Codec
		parent string
		want   map[string][]string
		why    string
	}{
		{"v1, namespaced parent", v1, "ns",
			map[string][]string{"Pod.v1": {"a", "b"}, "Deployment.apps/v1": {}, "related:ClusterRole.rbac.authorization.k8s.io/v1": {}},
			"names alone; what is not in the parent's namespace is dropped"},
		{"v1, cluster-scoped parent", v1, "",
			map[string][]string{"Pod.v1": {"ns/a", "ns/b", "other/a"}, "Deployment.apps/v1": {}, "related:ClusterRole.rbac.authorization.k8s.io/v1": {"r"}},
			"namespace/name, or the name of what has no namespace"},
		{"v2, namespaced parent", v2, "ns",
			map[string][]string{"Pod.v1": {"ns/a", "ns/b", "other/a"}, "Deployment.apps/v1": {}, "related:ClusterRole.rbac.authorization.k8s.io/v1": {"r"}},
			"nothing is dropped"},
		{"v2, cluster-scoped parent", v2, "",
			map[string][]string{"Pod.v1": {"ns/a", "ns/b", "other/a"}, "Deployment.apps/v1": {}, "related:ClusterRole.rbac.authorization.k8s.io/v1": {"r"}},
			"nothing is dropped"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			data, err := tt.codec.EncodeRequest(request(hook.Composite, hook.Sync, tt.parent))
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Controller, Parent map[string]any
				Children, Related  map[string]map[string]any
				Finalizing         *bool
			}
			if err := stdjson.Unmarshal(data, &got); err != nil {
				t.Fatalf("%v: %s", err, data)
			}
			keys := map[string][]string{}
			for prefix, objects := range map[string]map[string]map[string]any{"": got.Children, "related:": got.Related} {
				for outer, inner := range objects {
					keys[prefix+outer] = []string{}
					for _, key := range []string{"a", "b", "r", "ns/a", "ns/b", "other/a"} {
						if _, ok := inner[key]; ok {
							keys[prefix+outer] = append(keys[prefix+outer], key)
						}
					}
					if len(keys[prefix+outer]) != len(inner) {
						t.Errorf("%s has keys %v", outer, inner)
					}
				}
			}
			if diff := cmp.Diff(tt.want, keys); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.why, diff)
			}
			if got.Finalizing == nil || *got.Finalizing {
				t.Errorf("finalizing = %v in a sync request", got.Finalizing)
			}
		})
	}
}

func TestRequestsAreExact(t *testing.T) {
	const controller = `{"apiVersion":"metacontroller.k8s.io/v1alpha1","kind":"CompositeController","metadata":{"name":"ctl"}}`
	const parent = `{"apiVersion":"x.io/v1","kind":"Thing","metadata":{"name":"p","namespace":"ns"}}`
	const a = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"ns"}}`
	const b = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b","namespace":"ns"}}`
	const sets = `{"Pod.v1":{"a":` + a + `,"b":` + b + `},"Deployment.apps/v1":{}},"related":{"ClusterRole.rbac.authorization.k8s.io/v1":{}}`
	tests := []struct {
		flavor hook.Flavor
		call   hook.Call
		want   string
	}{
		{hook.Composite, hook.Sync, `{"controller":` + controller + `,"parent":` + parent + `,"children":` + sets + `,"finalizing":false}`},
		{hook.Composite, hook.Finalize, `{"controller":` + controller + `,"parent":` + parent + `,"children":` + sets + `,"finalizing":true}`},
		{hook.Decorator, hook.Sync, `{"controller":` + controller + `,"object":` + parent + `,"attachments":` + sets + `,"finalizing":false}`},
		{hook.Decorator, hook.Customize, `{"controller":` + controller + `,"parent":` + parent + `}`},
		{hook.Composite, hook.Customize, `{"controller":` + controller + `,"parent":` + parent + `}`},
	}
	for _, tt := range tests {
		got, err := v1.EncodeRequest(request(tt.flavor, tt.call, "ns"))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want, string(got)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tt.call, diff)
		}
	}
	if _, err := v1.EncodeRequest(&hook.Request{Flavor: hook.Composite, Call: hook.Sync}); err == nil {
		t.Error("a request without a parent was encoded")
	}
	if _, err := v1.EncodeRequest(request(hook.UnknownFlavor, hook.Sync, "ns")); err == nil {
		t.Error("a request of no flavor was encoded")
	}
}

func TestNewCodec(t *testing.T) {
	two, one := v1alpha1.HookVersionV2, v1alpha1.HookVersionV1
	loose, strictMode := v1alpha1.ResponseUnmarshallModeLoose, v1alpha1.ResponseUnmarshallModeStrict
	tests := []struct {
		spec *v1alpha1.Hook
		want wire.Codec
	}{
		{nil, wire.Codec{Version: one}},
		{&v1alpha1.Hook{}, wire.Codec{Version: one}},
		{&v1alpha1.Hook{Version: &two}, wire.Codec{Version: two, Strict: true}},
		{&v1alpha1.Hook{Version: &two, Webhook: &v1alpha1.Webhook{ResponseUnmarshallMode: &loose}}, wire.Codec{Version: two}},
		{&v1alpha1.Hook{Version: &one, Webhook: &v1alpha1.Webhook{ResponseUnmarshallMode: &strictMode}}, wire.Codec{Version: one, Strict: true}},
	}
	for _, tt := range tests {
		if got := wire.NewCodec(tt.spec); got != tt.want {
			t.Errorf("NewCodec(%+v) = %+v, want %+v", tt.spec, got, tt.want)
		}
	}
}

const goodPod = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}`

func TestGoodAnswers(t *testing.T) {
	label := "v"
	child := func(text string, i int) hook.Child {
		o, err := object.FromJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return hook.Child{Object: o, Path: fmt.Sprintf("children[%d]", i)}
	}
	tests := []struct {
		name   string
		flavor hook.Flavor
		call   hook.Call
		in     string
		want   hook.Response
	}{
		{"everything", hook.Composite, hook.Sync,
			` {"status":{"n":1.50},"children":[` + goodPod + `],"resyncAfterSeconds":1.5,"finalized":true} `,
			hook.Response{Status: hook.Status{Presence: hook.Given, JSON: []byte(`{"n":1.50}`)},
				ChildrenPresence: hook.Given, Children: []hook.Child{child(goodPod, 0)}, ResyncAfter: 1500 * time.Millisecond, Finalized: true}},
		{"an empty list asks for no children", hook.Composite, hook.Sync, `{"children":[]}`,
			hook.Response{ChildrenPresence: hook.Given}},
		{"so does null, which is what Go makes of a nil slice", hook.Composite, hook.Sync, `{"status":null,"children":null}`,
			hook.Response{Status: hook.Status{Presence: hook.Null}, ChildrenPresence: hook.Null}},
		{"done finalizing needs no list", hook.Composite, hook.Finalize, `{"finalized":true}`,
			hook.Response{Finalized: true}},
		{"nulls everywhere", hook.Composite, hook.Sync, `{"children":[],"resyncAfterSeconds":null,"finalized":null}`,
			hook.Response{ChildrenPresence: hook.Given}},
		{"labels to set and to delete", hook.Decorator, hook.Sync, `{"attachments":[],"labels":{"a":"v","b":null},"annotations":null}`,
			hook.Response{ChildrenPresence: hook.Given, Labels: map[string]*string{"a": &label, "b": nil}}},
	}
	for _, tt := range tests {
		for _, codec := range []wire.Codec{v1, v2, strict} {
			got, notes, err := codec.DecodeResponse(request(tt.flavor, tt.call, "ns"), []byte(tt.in))
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
				continue
			}
			if len(notes) > 0 {
				t.Errorf("%s: notes %v", tt.name, notes)
			}
			if diff := cmp.Diff(&tt.want, got, cmp.Comparer((*object.Object).SameAs)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.name, diff)
			}
		}
	}
}

func TestAnswersOfControllersWithoutChildren(t *testing.T) {
	for _, tt := range []struct {
		flavor hook.Flavor
		in     string
		ok     bool
	}{
		{hook.Composite, `{"status":{}}`, true},
		{hook.Composite, `{}`, false}, // it would wipe the status
		{hook.Composite, `{"error":"x"}`, false},
		{hook.Decorator, `{"labels":{"a":"b"}}`, true},
		{hook.Decorator, `{}`, true},
		{hook.Decorator, `{"error":"x"}`, false},
		{hook.Decorator, `null`, false},
	} {
		r := request(tt.flavor, hook.Sync, "ns")
		r.Children = object.NewSet(nil)
		got, _, err := v1.DecodeResponse(r, []byte(tt.in))
		if (err == nil) != tt.ok {
			t.Errorf("%s: %v, %v", tt.in, got, err)
		}
		if err == nil && got.ChildrenPresence != hook.Absent {
			t.Errorf("%s: children are %v", tt.in, got.ChildrenPresence)
		}
	}
}

func TestBadAnswers(t *testing.T) {
	in := func(child string) string { return `{"children":[` + goodPod + `,` + goodPod + `,` + child + `]}` }
	tests := []struct {
		name, in, path string
	}{
		{"empty", "", ""},
		{"white space", " \n", ""},
		{"null", "null", ""},
		{"a list", "[]", ""},
		{"a text", `"x"`, ""},
		{"HTML", "<html><body>502</body></html>", ""},
		{"nothing in it", "{}", "children"},
		{"an error document", `{"error":"boom","code":500}`, "children"},
		{"only a status", `{"status":{"a":1}}`, "children"},
		{"finalized without finalizing", `{"finalized":true}`, "children"},
		{"cut off", `{"children":[` + goodPod, "children"},
		{"trailing document", `{"children":[]}{"children":[]}`, ""},
		{"trailing text", `{"children":[]} x`, ""},
		{"not UTF-8", "{\"children\":[],\"status\":{\"a\":\"\xff\"}}", "status.a"},
		{"NaN", `{"children":[],"resyncAfterSeconds":NaN}`, "resyncAfterSeconds"},
		{"children no list", `{"children":{}}`, "children"},
		{"children a text", `{"children":"x"}`, "children"},
		{"a null among them", in("null"), "children[2]"},
		{"a number among them", in("7"), "children[2]"},
		{"no apiVersion", in(`{"kind":"Pod","metadata":{"name":"a"}}`), "children[2].apiVersion"},
		{"no kind", in(`{"apiVersion":"v1","metadata":{"name":"a"}}`), "children[2].kind"},
		{"no metadata", in(`{"apiVersion":"v1","kind":"Pod"}`), "children[2].metadata.name"},
		{"empty name", in(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":""}}`), "children[2].metadata.name"},
		{"name a number", in(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":3}}`), "children[2].metadata.name"},
		{"label a number", in(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"x":3}}}`), "children[2].metadata.labels[x]"},
		{"status a text", `{"children":[],"status":"ok"}`, "status"},
		{"status a list", `{"children":[],"status":[]}`, "status"},
		{"resync a text", `{"children":[],"resyncAfterSeconds":"10"}`, "resyncAfterSeconds"},
		{"finalized a text", `{"children":[],"finalized":"yes"}`, "finalized"},
		{"bad JSON within", `{"children":[{"a":tru}]}`, "children[0].a"},
	}
	for _, tt := range tests {
		for _, codec := range []wire.Codec{v1, v2} {
			got, _, err := codec.DecodeResponse(request(hook.Composite, hook.Sync, "ns"), []byte(tt.in))
			if err == nil {
				t.Errorf("%s: accepted as %+v", tt.name, got)
				continue
			}
			path := ""
			if field := (*object.FieldError)(nil); errors.As(err, &field) {
				path = field.Path
			}
			if tt.name == "cut off" || codec.Strict && tt.name == "an error document" {
				continue // where exactly is a matter of taste
			}
			if path != tt.path {
				t.Errorf("%s: path %q, want %q: %v", tt.name, path, tt.path, err)
			}
		}
	}
}

func TestBadDecoratorAnswers(t *testing.T) {
	for in, path := range map[string]string{
		`{"children":[]}`:                               "attachments",
		`{"attachments":[null]}`:                        "attachments[0]",
		`{"attachments":[],"labels":[]}`:                "labels",
		`{"attachments":[],"annotations":{"a":{}}}`:     "annotations[a]",
		`{"attachments":[],"labels":{"a":"b","c":1.5}}`: "labels[c]",
	} {
		_, _, err := v1.DecodeResponse(request(hook.Decorator, hook.Sync, "ns"), []byte(in))
		var field *object.FieldError
		if !errors.As(err, &field) || field.Path != path {
			t.Errorf("%s: %v, want path %q", in, err, path)
		}
	}
}

func TestUnknownAndDuplicateFields(t *testing.T) {
	tests := []struct {
		in   string
		want []string
	}{
		{`{"children":[],"extra":1}`, []string{"extra"}},
		{`{"children":[],"Status":{}}`, []string{"Status"}},
		{`{"children":[],"labels":{}}`, []string{"labels"}},
		{`{"children":[{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b","name":"a"},"spec":{"x":1,"x":2}}]}`,
			[]string{"children[0].metadata.name", "children[0].spec.x"}},
		{`{"children":[],"status":{"a":1,"a":{"b":1,"b":2}}}`, []string{"status.a", "status.a.b"}},
	}
	for _, tt := range tests {
		r := request(hook.Composite, hook.Sync, "ns")
		got, notes, err := v1.DecodeResponse(r, []byte(tt.in))
		if err != nil {
			t.Errorf("%s: loose: %v", tt.in, err)
			continue
		}
		var paths []string
		for _, note := range notes {
			paths = append(paths, note.Path)
		}
		if diff := cmp.Diff(tt.want, paths); diff != "" {
			t.Errorf("%s: notes (-want +got):\n%s", tt.in, diff)
		}
		for _, c := range got.Children {
			// The last one counts, for us as for whoever reads the body.
			if c.Object.Name() != "a" || strings.Count(c.Object.Body(), `"x"`) != 1 {
				t.Errorf("%s: child %s", tt.in, c.Object.Body())
			}
		}
		_, _, err = strict.DecodeResponse(r, []byte(tt.in))
		var field *object.FieldError
		if !errors.As(err, &field) || field.Path != tt.want[0] {
			t.Errorf("%s: strict: %v", tt.in, err)
		}
	}
}

func TestResyncAfterSeconds(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"0": 0, "-0": 0, "-5": 0, "-1e300": 0, "0.25": 250 * time.Millisecond, "30": 30 * time.Second,
		"1e-300": time.Millisecond, "1e-12": time.Millisecond,
		"1e10": wire.MaxResync, "1e300": wire.MaxResync, "1e999": wire.MaxResync, "-1e999": 0,
	} {
		got, _, err := v1.DecodeResponse(request(hook.Composite, hook.Sync, "ns"), []byte(`{"children":[],"resyncAfterSeconds":`+in+`}`))
		if err != nil || got.ResyncAfter != want {
			t.Errorf("resyncAfterSeconds %s: %+v, %v, want %v", in, got, err, want)
		}
	}
}

func TestLimits(t *testing.T) {
	r := request(hook.Composite, hook.Sync, "ns")
	small := v1
	small.MaxBytes = 100
	if _, _, err := small.DecodeResponse(r, bytes.Repeat([]byte(" "), 101)); err == nil || !strings.Contains(err.Error(), "100 bytes") {
		t.Errorf("a big answer: %v", err)
	}
	nested := func(n int) []byte {
		return []byte(`{"children":[],"status":{"a":` + strings.Repeat("[", n) + strings.Repeat("]", n) + `}}`)
	}
	if _, _, err := v1.DecodeResponse(r, nested(wire.MaxDepth-2)); err != nil {
		t.Errorf("an answer of the deepest allowed nesting: %v", err)
	}
	for _, n := range []int{wire.MaxDepth - 1, 1_000_000} {
		if _, _, err := v1.DecodeResponse(r, nested(n)); err == nil {
			t.Errorf("an answer nested %d deep was accepted", n)
		}
	}
	// Braces in a text are no nesting.
	if _, _, err := v1.DecodeResponse(r, []byte(`{"children":[],"status":{"a":"`+strings.Repeat(`{\"`, 1000)+`"}}`)); err != nil {
		t.Error(err)
	}
}

// What a hook can make us remember and say does not grow with its answer.
func TestHostileAnswersAreBounded(t *testing.T) {
	r := request(hook.Composite, hook.Sync, "ns")
	large := strings.Repeat("x", wire.MaxValue)
	pod := func(more string) string {
		return `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}` + more + `}`
	}
	for _, c := range []struct{ in, path, says string }{
		{`{"children":[` + pod("") + `,` + pod(`,"a":"`+large+`"`) + `]}`, "children[1]", "3 MiB"},
		{`{"children":[],"status":{"a":"` + large + `"}}`, "status", "3 MiB"},
		{`{"children":[],"x":"` + large + `","y":{"a":1,"a":2}}`, "y.a", "there twice"},
	} {
		_, _, err := v1.DecodeResponse(r, []byte(c.in))
		var field *object.FieldError
		if !errors.As(err, &field) || field.Path != c.path || !strings.Contains(field.Problem, c.says) {
			t.Errorf("%.60s: %.200v", c.in, err)
		}
	}
	decorator := request(hook.Decorator, hook.Sync, "ns")
	if _, _, err := v1.DecodeResponse(decorator, []byte(`{"attachments":[],"annotations":{"a":"`+large+`"}}`)); err == nil || !strings.Contains(err.Error(), "3 MiB") {
		t.Errorf("large annotations: %.200v", err)
	}
	// A field that nobody knows may be large: some hooks give back what they got.
	if _, notes, err := v1.DecodeResponse(r, []byte(`{"children":[],"echo":"`+large+`"}`)); err != nil || len(notes) != 1 {
		t.Errorf("a large echo: %v, %.200v", notes, err)
	}

	var twice, unknown strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&twice, `"%.1000d":1,"%.1000d":1,`, i%100, i%100)
		fmt.Fprintf(&unknown, `"%.1000d":1,`, i)
	}
	for reason, in := range map[string]string{
		"duplicate": `{` + twice.String()[:1000*2010] + `"children":[]}`,
		"unknown":   `{` + unknown.String() + `"children":[]}`,
	} {
		_, notes, err := v1.DecodeResponse(r, []byte(in))
		size := 0
		for _, note := range notes {
			size += len(note.Path) + len(note.Problem)
		}
		if err != nil || len(notes) == 0 || len(notes) > 50 || size > 20_000 {
			t.Errorf("%s fields: %d notes of %d bytes, %.200v", reason, len(notes), size, err)
		}
		if _, _, err := strict.DecodeResponse(r, []byte(in)); err == nil || len(err.Error()) > 500 || !strings.Contains(err.Error(), "more fields") {
			t.Errorf("strict, %s fields: %.600v", reason, err)
		}
	}

	pods := func(n int) []byte {
		return []byte(`{"children":[` + strings.TrimSuffix(strings.Repeat(pod("")+",", n), ",") + `]}`)
	}
	if got, _, err := v1.DecodeResponse(r, pods(wire.MaxChildren)); err != nil || len(got.Children) != wire.MaxChildren {
		t.Error(err)
	}
	if _, _, err := v1.DecodeResponse(r, pods(wire.MaxChildren+1)); err == nil || !strings.Contains(err.Error(), "children has more than 100000") {
		t.Error(err)
	}

	rules := func(n, names int) []byte {
		list := strings.TrimSuffix(strings.Repeat(`"a",`, names), ",")
		rule := `{"apiVersion":"v1","resource":"pods","names":[` + list + `]},`
		return []byte(`{"relatedResources":[` + strings.TrimSuffix(strings.Repeat(rule, n), ",") + `]}`)
	}
	for _, c := range []struct {
		n, names int
		fails    bool
	}{
		{wire.MaxRules, 1, false}, {wire.MaxRules + 1, 1, true},
		{1, wire.MaxNames, false}, {1, wire.MaxNames + 1, true}, {wire.MaxRules, 11, true},
	} {
		if _, _, err := v1.DecodeCustomize(rules(c.n, c.names)); (err != nil) != c.fails {
			t.Errorf("%d rules of %d names: %v", c.n, c.names, err)
		}
	}
}

func TestNumbersBeyondFloats(t *testing.T) {
	r := request(hook.Composite, hook.Sync, "ns")
	for number, fits := range map[string]bool{
		"1e300": true, "-1e300": true, "1.7976931348623157e308": true, "1e-400": true, "18446744073709551615": true,
		strings.Repeat("9", 308): true, "0." + strings.Repeat("3", 100_000): true, `"1e400"`: true, "1e0300": true, "true": true,
		"1e400": false, "-1E+400": false, "1.8e308": false, strings.Repeat("9", 310): false, "1e99999999999999999999": false,
	} {
		for path, in := range map[string]string{
			"status.a[1].n":           `{"children":[],"status":{"a":[0,{"n":` + number + `}]}}`,
			"children[1].spec.a[0].n": `{"children":[` + `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}},{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"},"spec":{"a":[{"n":` + number + `}]}}]}`,
		} {
			_, _, err := v1.DecodeResponse(r, []byte(in))
			var field *object.FieldError
			switch {
			case fits && err != nil, !fits && err == nil:
				t.Errorf("%.100s: %v", in, err)
			case !fits && (!errors.As(err, &field) || field.Path != path || len(err.Error()) > 500):
				t.Errorf("%.100s: %.1000v", in, err)
			}
		}
	}
}

func TestCustomize(t *testing.T) {
	got, notes, err := strict.DecodeCustomize([]byte(`{"relatedResources":[{"apiVersion":"v1","resource":"pods","namespace":"n","names":["a"]},` +
		`{"apiVersion":"v1","resource":"nodes","labelSelector":{"matchLabels":{"a":"b"}}}]}`))
	if err != nil || len(notes) > 0 || len(got.Rules) != 2 {
		t.Fatalf("%+v, %v, %v", got, notes, err)
	}
	if r := got.Rules[0]; r.APIVersion != "v1" || r.Resource != "pods" || r.Namespace != "n" || r.Names[0] != "a" {
		t.Errorf("rule %+v", r)
	}
	if r := got.Rules[1]; r.LabelSelector.MatchLabels["a"] != "b" {
		t.Errorf("rule %+v", r)
	}
	for _, in := range []string{`{"relatedResources":[]}`, `{"relatedResources":null}`} {
		if got, _, err := strict.DecodeCustomize([]byte(in)); err != nil || len(got.Rules) != 0 {
			t.Errorf("%s: %v, %v", in, got, err)
		}
	}
	for in, path := range map[string]string{
		`{}`: "relatedResources", `{"error":"x"}`: "relatedResources", `null`: "", `[]`: "", ``: "",
		`{"relatedResources":{}}`:     "relatedResources",
		`{"relatedResources":[null]}`: "relatedResources[0]",
		`{"relatedResources":[{"apiVersion":"v1","resource":"pods"},{"apiVersion":"v1"}]}`: "relatedResources[1].resource",
		`{"relatedResources":[{"resource":"pods"}]}`:                                       "relatedResources[0].apiVersion",
		`{"relatedResources":[{"apiVersion":"v1","resource":"pods","names":"a"}]}`:         "relatedResources[0].names",
		`{"relatedResources":[{"apiVersion":"v1","resource":"pods","labelSelector":[1]}]}`: "relatedResources[0].labelSelector",
	} {
		_, _, err := v1.DecodeCustomize([]byte(in))
		path0 := ""
		if field := (*object.FieldError)(nil); errors.As(err, &field) {
			path0 = field.Path
		}
		if err == nil || path0 != path {
			t.Errorf("%s: path %q, want %q: %v", in, path0, path, err)
		}
	}
	const unknown = `{"relatedResources":[{"apiVersion":"v1","resource":"pods","selector":{}}]}`
	if _, notes, err := v1.DecodeCustomize([]byte(unknown)); err != nil || len(notes) != 1 || notes[0].Path != "relatedResources[0]" {
		t.Errorf("loose: %v, %v", notes, err)
	}
	if _, _, err := strict.DecodeCustomize([]byte(unknown)); err == nil {
		t.Error("strict accepted an unknown field of a rule")
	}
}

// seeds are the answers under testdata.
func seeds(f *testing.F) {
	f.Helper()
	files, err := filepath.Glob("testdata/answers/*")
	if err != nil || len(files) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
}

func FuzzDecodeResponse(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, flavor := range []hook.Flavor{hook.Composite, hook.Decorator} {
			r := request(flavor, hook.Sync, "ns")
			loose, notes, errLoose := v1.DecodeResponse(r, data)
			_, _, errStrict := strict.DecodeResponse(r, data)
			if errStrict == nil && (errLoose != nil || len(notes) > 0) {
				t.Fatalf("strict accepts what loose has against: %v, %v", errLoose, notes)
			}
			if errLoose != nil {
				continue
			}
			if errStrict != nil && len(notes) == 0 {
				t.Fatalf("strict refuses what loose has nothing against: %v", errStrict)
			}
			if loose.ChildrenPresence == hook.Absent {
				t.Fatalf("%q has no children and was accepted", data)
			}
			if loose.ResyncAfter < 0 || loose.ResyncAfter > wire.MaxResync {
				t.Fatalf("resync after %v", loose.ResyncAfter)
			}
			if loose.Status.Presence == hook.Given && !stdjson.Valid(loose.Status.JSON) {
				t.Fatalf("status %q", loose.Status.JSON)
			}
			for _, c := range loose.Children {
				if c.Object == nil || c.Object.Name() == "" || c.Object.Kind() == "" || c.Object.APIVersion() == "" || !stdjson.Valid([]byte(c.Object.Body())) {
					t.Fatalf("child %s: %v", c.Path, c.Object)
				}
			}
		}
	})
}

func FuzzDecodeCustomize(f *testing.F) {
	seeds(f)
	f.Fuzz(func(t *testing.T, data []byte) {
		_, notes, errLoose := v1.DecodeCustomize(data)
		_, _, errStrict := strict.DecodeCustomize(data)
		if errStrict == nil && (errLoose != nil || len(notes) > 0) {
			t.Fatalf("strict accepts what loose has against: %v, %v", errLoose, notes)
		}
		if errStrict != nil && errLoose == nil && len(notes) == 0 {
			t.Fatalf("strict refuses what loose has nothing against: %v", errStrict)
		}
	})
}
