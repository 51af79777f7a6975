package object_test

import (
	"bytes"
	stdjson "encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/object"
)

const pod = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","namespace":"ns","uid":"u1","resourceVersion":"17","generation":3,` +
	`"creationTimestamp":"2026-01-01T00:00:00Z","deletionTimestamp":"2026-01-02T03:04:05Z","labels":{"app":"x","q\"":"é\n"},` +
	`"annotations":{"a":"1","metacontroller.k8s.io/last-applied-configuration":"{\"a\":1}"},"finalizers":["f/1","f/2"],` +
	`"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"rs","uid":"u0","controller":true,"blockOwnerDeletion":true}]` +
	`%s},"spec":{"n":9007199254740993,"f":0.5,"big":123456789012345678901234567890}}`

func parse(t *testing.T, text string) *object.Object {
	t.Helper()
	o, err := object.FromJSON([]byte(text))
	if err != nil {
		t.Fatalf("FromJSON: %v", err)
	}
	return o
}

func TestMetadataIsDecoded(t *testing.T) {
	o := parse(t, fmt.Sprintf(pod, ""))
	if got, want := o.Key(), (object.Key{Kind: "Pod", Namespace: "ns", Name: "a"}); got != want {
		t.Errorf("Key = %v, want %v", got, want)
	}
	if o.UID() != "u1" || o.ResourceVersion() != "17" || o.Generation() != 3 {
		t.Errorf("uid %q resourceVersion %q generation %d", o.UID(), o.ResourceVersion(), o.Generation())
	}
	if !o.Terminating() || o.DeletionTimestamp().UTC().Format("2006-01-02T15:04:05") != "2026-01-02T03:04:05" {
		t.Errorf("deletionTimestamp = %v", o.DeletionTimestamp())
	}
	if diff := cmp.Diff(map[string]string{"app": "x", "q\"": "é\n"}, o.Labels()); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"a": "1", object.LastAppliedAnnotation: `{"a":1}`}, o.Annotations()); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	if value, ok := o.Annotation(object.LastAppliedAnnotation); !ok || value != `{"a":1}` {
		t.Errorf("last applied = %q, %t", value, ok)
	}
	if _, ok := o.Annotation("other"); ok {
		t.Error("an annotation that is not there was found")
	}
	if !o.HasFinalizer("f/2") || o.HasFinalizer("f/3") {
		t.Errorf("finalizers = %v", o.Finalizers())
	}
	ref := object.ControllerOf(o)
	if ref == nil || ref.UID != "u0" || !object.ControlledBy(o, "u0") || object.ControlledBy(o, "u1") || object.ControlledBy(o, "") {
		t.Errorf("controller = %v", ref)
	}
}

func TestManagedFieldsAreCut(t *testing.T) {
	const managed = `"managedFields":[{"manager":"managedFields","fieldsV1":{"f:metadata":{"f:name":{}}}}]`
	tests := []struct{ name, in, want string }{
		{"last member", fmt.Sprintf(pod, ","+managed), fmt.Sprintf(pod, "")},
		{"first member", `{"apiVersion":"v1","kind":"Pod","metadata":{` + managed + `,"name":"a","labels":{"x":"y"},"annotations":{"b":"c"}}}`,
			`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"x":"y"},"annotations":{"b":"c"}}}`},
		{"middle member", `{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"x":"y"},` + managed + `,"name":"a"}}`,
			`{"apiVersion":"v1","kind":"Pod","metadata":{"labels":{"x":"y"},"name":"a"}}`},
		{"with white space", "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{ " + managed + " ,\n \"name\" : \"a\" }}",
			"{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{ \n \"name\" : \"a\" }}"},
		{"null", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","managedFields":null}}`,
			`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}}`},
		{"the same word elsewhere stays", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"managedFields":[1]}`,
			`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"managedFields":[1]}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := parse(t, tt.in)
			if o.Body() != tt.want {
				t.Errorf("body\n got %s\nwant %s", o.Body(), tt.want)
			}
			want := parse(t, tt.want)
			if diff := cmp.Diff(metadataOf(want), metadataOf(o)); diff != "" {
				t.Errorf("metadata (-want +got):\n%s", diff)
			}
		})
	}
}

// metadataOf is everything that was decoded.
func metadataOf(o *object.Object) any {
	return struct {
		Key  object.Key
		Meta metav1.ObjectMeta
	}{o.Key(), metav1.ObjectMeta{
		Namespace: o.Namespace(), Name: o.Name(), UID: o.UID(), ResourceVersion: o.ResourceVersion(), Generation: o.Generation(),
		DeletionTimestamp: o.DeletionTimestamp(), Labels: o.Labels(), Annotations: o.Annotations(), OwnerReferences: o.OwnerReferences(), Finalizers: o.Finalizers(),
	}}
}

func TestDecorator(t *testing.T) {
	cases := []struct {
		annotations, want string
		has               bool
	}{
		{`{}`, "", false},
		{`{"a":"b"}`, "", false},
		{`{"a":"b","metacontroller.k8s.io/decorator-controller":"d"}`, "d", true},
		{`{"metacontroller.k8s.io/decorator-controller":""}`, "", true},
		{`{"metacontroller.k8s.io\u002fdecorator-controller":"\u0064"}`, "d", true},
		{`{"metacontroller.k8s.io/decorator-controller":"c","metacontroller.k8s.io/decorator-controller":"d"}`, "d", true},
		{`null`, "", false},
	}
	for _, c := range cases {
		o := parse(t, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","annotations":`+c.annotations+`}}`)
		got, has := o.Decorator()
		if other, there := o.Annotation(object.DecoratorAnnotation); got != c.want || has != c.has || other != got || there != has {
			t.Errorf("%s: %q, %v; as an annotation %q, %v", c.annotations, got, has, other, there)
		}
	}
}

func TestBadObjectsNameTheField(t *testing.T) {
	tests := []struct{ in, path string }{
		{`{"kind":"Pod","metadata":{"name":"a"}}`, "apiVersion"},
		{`{"apiVersion":"a/b/c","kind":"Pod","metadata":{"name":"a"}}`, "apiVersion"},
		{`{"apiVersion":1,"kind":"Pod","metadata":{"name":"a"}}`, "apiVersion"},
		{`{"apiVersion":"v1","metadata":{"name":"a"}}`, "kind"},
		{`{"apiVersion":"v1","kind":null,"metadata":{"name":"a"}}`, "kind"},
		{`{"apiVersion":"v1","kind":"Pod"}`, "metadata.name"},
		{`{"apiVersion":"v1","kind":"Pod","metadata":null}`, "metadata.name"},
		{`{"apiVersion":"v1","kind":"Pod","metadata":{"generateName":"a-"}}`, "metadata.name"},
		{`{"apiVersion":"v1","kind":"Pod","metadata":[]}`, "metadata"},
		{`{"apiVersion":"v1","kind":"Pod","metadata":{"name":7}}`, "metadata.name"},
		{`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":["x"]}}`, "metadata.labels"},
		{`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"x":1}}}`, "metadata.labels[x]"},
		{`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","annotations":{"x":true}}}`, "metadata.annotations[x]"},
		{`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","finalizers":["x",{}]}}`, "metadata.finalizers[1]"},
		{`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","ownerReferences":{}}}`, "metadata.ownerReferences"},
		{`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","ownerReferences":[{},{"uid":1}]}}`, "metadata.ownerReferences[1].uid"},
		{`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","ownerReferences":[null]}}`, "metadata.ownerReferences[0]"},
		{`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","ownerReferences":[{"controller":"true"}]}}`, "metadata.ownerReferences[0].controller"},
		{`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","generation":"1"}}`, "metadata.generation"},
		{`[]`, ""},
		{`null`, ""},
		{`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}} {}`, ""},
	}
	for _, tt := range tests {
		_, err := object.FromJSON([]byte(tt.in))
		var field *object.FieldError
		if !errors.As(err, &field) {
			t.Errorf("%s: error %v is no FieldError", tt.in, err)
		} else if field.Path != tt.path {
			t.Errorf("%s: path %q, want %q (%v)", tt.in, field.Path, tt.path, err)
		}
	}
	for _, in := range []string{"", "{", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"}`, "\xff", `{"apiVersion":"v1`, "<html>"} {
		if o, err := object.FromJSON([]byte(in)); err == nil {
			t.Errorf("%q made %v", in, o)
		}
	}
}

func TestNumbersKeepTheirValue(t *testing.T) {
	o := parse(t, fmt.Sprintf(pod, ""))
	spec := o.Content()["spec"].(map[string]any)
	want := map[string]any{"n": int64(9007199254740993), "f": 0.5, "big": stdjson.Number("123456789012345678901234567890")}
	if diff := cmp.Diff(want, spec); diff != "" {
		t.Errorf("spec (-want +got):\n%s", diff)
	}
	again, err := object.FromContent(o.Content())
	if err != nil {
		t.Fatal(err)
	}
	if !object.Equal(again.Content(), o.Content()) {
		t.Errorf("content changed on its way through JSON:\n%s\n%s", o.Body(), again.Body())
	}
	// client-go's own copy must be able to hold what is decoded.
	runtime.DeepCopyJSON(o.Content())
}

func TestFromUnstructuredIsDeterministicAndLeavesItsArgument(t *testing.T) {
	u := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap",
		"metadata": map[string]any{"name": "c", "managedFields": []any{}, "labels": map[string]any{"b": "2", "a": "1"}},
		"data":     map[string]any{"z": "1", "y": "<&>"},
	}}
	before := u.DeepCopy()
	first, err := object.FromUnstructured(u)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"apiVersion":"v1","data":{"y":"<&>","z":"1"},"kind":"ConfigMap","metadata":{"labels":{"a":"1","b":"2"},"name":"c"}}`
	for range 50 {
		again, err := object.FromUnstructured(u)
		if err != nil {
			t.Fatal(err)
		}
		if again.Body() != want || !again.SameAs(first) {
			t.Fatalf("body %s, want %s", again.Body(), want)
		}
	}
	if diff := cmp.Diff(before, u); diff != "" {
		t.Errorf("the argument was changed (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(first.Unstructured().Object, parse(t, want).Content()); diff != "" {
		t.Errorf("round trip:\n%s", diff)
	}
}

func TestObjectLiesInClientGoCaches(t *testing.T) {
	o := parse(t, fmt.Sprintf(pod, ""))
	var _ runtime.Object = o
	m, err := meta.Accessor(o)
	if err != nil {
		t.Fatal(err)
	}
	if m.GetName() != "a" || m.GetNamespace() != "ns" || m.GetResourceVersion() != "17" || m.GetUID() != "u1" {
		t.Errorf("accessor sees %v", m)
	}
	m.SetName("changed")
	if o.Name() != "a" || o.DeepCopyObject() != runtime.Object(o) {
		t.Error("an object can be changed through its accessor")
	}
	if got := o.GetObjectKind().GroupVersionKind(); got != o.GroupVersionKind() {
		t.Errorf("kind %v", got)
	}
}

func TestListItemsGetTheirType(t *testing.T) {
	const text = `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"99","continue":"tok"},"items":[` +
		`{"metadata":{"name":"a","managedFields":[{}]},"spec":{}},` +
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"}},` +
		` { "metadata":{"name":"c"}}]}`
	list, err := object.Reader{}.ListFromJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if list.ResourceVersion != "99" || list.Continue != "tok" || len(list.Items) != 3 {
		t.Fatalf("list = %+v", list)
	}
	want := []string{
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a"},"spec":{}}`,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"b"}}`,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"c"}}`,
	}
	for i, o := range list.Items {
		if o.Body() != want[i] {
			t.Errorf("item %d: %s, want %s", i, o.Body(), want[i])
		}
	}
	for _, in := range []string{"", "{}", `{"kind":"Pod","apiVersion":"v1"}`, `{"kind":"PodList","apiVersion":"v1","items":[null]}`,
		`{"kind":"PodList","apiVersion":"v1","items":[7]}`, `{"kind":"PodList","apiVersion":"v1","items":[{}]}`,
		`{"kind":"PodList","items":[{"metadata":{"name":"a"}}]}`, `{"kind":"PodList","apiVersion":"v1","items":[]}x`} {
		if _, err := (object.Reader{}).ListFromJSON([]byte(in)); err == nil {
			t.Errorf("%q is a list", in)
		}
	}
	empty, err := object.Reader{}.ListFromJSON([]byte(`{"kind":"PodList","apiVersion":"v1","metadata":{},"items":null}`))
	if err != nil || len(empty.Items) != 0 {
		t.Errorf("a list without items: %v, %v", empty, err)
	}
	// listKind of a custom kind may be anything.
	odd, err := object.Reader{}.ListFromJSON([]byte(`{"kind":"Herd","apiVersion":"farm/v1","items":[{"apiVersion":"farm/v1","kind":"Cow","metadata":{"name":"a"}}]}`))
	if err != nil || len(odd.Items) != 1 || odd.Items[0].Kind() != "Cow" {
		t.Errorf("a list with a name of its own: %v, %v", odd, err)
	}
}

func TestEqual(t *testing.T) {
	tests := []struct {
		a, b string
		want bool
		why  string
	}{
		{`1`, `1.0`, true, "one number however it is written"},
		{`100`, `1e2`, true, "one number however it is written"},
		{`0.1`, `0.10`, true, "one number however it is written"},
		{`9007199254740993`, `9007199254740992`, false, "whole numbers are not rounded"},
		{`9007199254740993`, `9007199254740992.0`, false, "not even against a float"},
		{`1e400`, `1e401`, false, "beyond float64"},
		{`1e400`, `10e399`, true, "beyond float64"},
		{`12345678901234567890123`, `12345678901234567890124`, false, "beyond int64"},
		{`1e999999999999`, `1`, false, "no exponent makes it hang"},
		{strings.Repeat("9", 3<<20), `1`, false, "no number of digits makes it hang"},
		{`18446744073709551615`, `18446744073709552000`, true, "what the API server makes of it"},
		{`18446744073709551615`, `18446744073709551616`, false, "beyond int64"},
		{`-9223372036854775809`, `-9223372036854776000`, true, "what the API server makes of it"},
		{`-9223372036854775809`, `-9223372036854775808`, false, "beyond int64"},
		{`-9223372036854775810`, `-9223372036854775812`, false, "beyond int64"},
		{`1e300`, `1e+300`, true, "one number however it is written"},
		{`1`, `"1"`, false, "a text is no number"},
		{`{"a":null}`, `{}`, true, "null in an object is no field"},
		{`{"a":null}`, `{"b":null}`, true, "null in an object is no field"},
		{`{"a":1}`, `{"b":1}`, false, "other fields"},
		{`{"a":1}`, `{"a":1,"b":2}`, false, "more fields"},
		{`[null]`, `[]`, false, "null in a list is an element"},
		{`[]`, `null`, false, "an empty list is not null"},
		{`[1,2]`, `[2,1]`, false, "order of a list"},
		{`false`, `null`, false, "false is not null"},
	}
	for _, tt := range tests {
		a, errA := object.Decode([]byte(tt.a))
		b, errB := object.Decode([]byte(tt.b))
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		if object.Equal(a, b) != tt.want || object.Equal(b, a) != tt.want {
			t.Errorf("Equal(%s, %s) is not %t: %s", tt.a, tt.b, tt.want, tt.why)
		}
	}
}

func TestEquivalentKnowsServerNoise(t *testing.T) {
	a := parse(t, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"x":"y"}},"spec":{"n":1}}`)
	b := parse(t, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"x":"y"},"selfLink":"/x","uid":"u","resourceVersion":"1",`+
		`"generation":2,"creationTimestamp":"t","deletionTimestamp":"t","deletionGracePeriodSeconds":3,"managedFields":[{}],`+
		`"annotations":{"metacontroller.k8s.io/last-applied-configuration":"{}"}},"spec":{"n":1.0},"status":{"phase":"Running"}}`)
	if !object.Equivalent(a, b) {
		t.Error("noise of the server counts")
	}
	for _, other := range []string{
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"x":"z"}},"spec":{"n":1}}`,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"x":"y"},"annotations":{"a":"b"}},"spec":{"n":1}}`,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"x":"y"},"finalizers":["a"]},"spec":{"n":1}}`,
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"x":"y"}},"spec":{"n":2}}`,
	} {
		if object.Equivalent(a, parse(t, other)) {
			t.Errorf("%s is the same as %s", other, a.Body())
		}
	}
}

func TestSetGroupsAndOrders(t *testing.T) {
	pods := object.Kind{GroupVersionKind: metav1.SchemeGroupVersion.WithKind("Pod"), Resource: "pods", Namespaced: true}
	pods.Group, pods.Version = "", "v1"
	deployments := pods
	deployments.Group, deployments.GroupVersionKind.Kind, deployments.Resource = "apps", "Deployment", "deployments"
	at := func(apiVersion, kind, namespace, name string) *object.Object {
		return parse(t, fmt.Sprintf(`{"apiVersion":%q,"kind":%q,"metadata":{"namespace":%q,"name":%q}}`, apiVersion, kind, namespace, name))
	}
	first, last := at("v1", "Pod", "a", "z"), at("v1", "Pod", "a", "z")
	set := object.NewSet([]object.Kind{deployments, pods, pods},
		at("v1", "Pod", "b", "a"), first, at("apps/v1beta1", "Deployment", "a", "d"), at("v1", "Pod", "a", "b"), last, at("x.io/v2", "Thing", "", "t"))
	var got []string
	for _, g := range set.Groups() {
		got = append(got, g.Kind.String()+" "+g.Kind.Resource)
		for _, o := range g.Objects {
			got = append(got, "  "+o.Key().Path())
		}
	}
	want := []string{"/v1, Kind=Pod pods", "  a/b", "  a/z", "  b/a", "apps/v1, Kind=Deployment deployments", "  a/d", "x.io/v2, Kind=Thing ", "  t"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	if set.Len() != 5 || set.Get(last.Key()) != last || set.Get(object.Key{Kind: "Pod", Name: "nope"}) != nil {
		t.Errorf("len %d, get %v", set.Len(), set.Get(last.Key()))
	}
	var none *object.Set
	if none.Len() != 0 || none.Get(last.Key()) != nil || len(none.Groups()) != 0 {
		t.Error("nil is not an empty set")
	}
}

// JSON is any JSON value, as Decode returns it.
func anyJSON(depth int) *rapid.Generator[any] {
	return rapid.Custom(func(t *rapid.T) any {
		most := 6
		if depth == 0 {
			most = 4
		}
		switch rapid.IntRange(0, most).Draw(t, "type") {
		case 0:
			return nil
		case 1:
			return rapid.Bool().Draw(t, "bool")
		case 2:
			return rapid.String().Draw(t, "text")
		case 3:
			return rapid.Int64().Draw(t, "int")
		case 4:
			return rapid.Float64Range(-1e15, 1e15).Filter(func(f float64) bool { return f != float64(int64(f)) }).Draw(t, "float")
		case 5:
			return rapid.MapOfN(rapid.String(), anyJSON(depth-1), 0, 4).Draw(t, "object")
		default:
			return rapid.SliceOfN(anyJSON(depth-1), 0, 4).Draw(t, "list")
		}
	})
}

func TestEncodeAndDecodeAreInverse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		value := anyJSON(3).Draw(t, "value")
		data, err := object.Encode(value)
		if err != nil {
			t.Fatal(err)
		}
		back, err := object.Decode(data)
		if err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		if !object.Equal(value, back) {
			t.Fatalf("%v became %v by way of %s", value, back, data)
		}
		again, err := object.Encode(back)
		if err != nil || !bytes.Equal(data, again) {
			t.Fatalf("%s was written as %s (%v)", data, again, err)
		}
		if !stdjson.Valid(data) {
			t.Fatalf("%s is no JSON", data)
		}
	})
}

func TestKeyAndReferences(t *testing.T) {
	o := parse(t, fmt.Sprintf(pod, ""))
	ref := object.ReferenceOf(o).ControllerReference()
	if ref.UID != "u1" || ref.Kind != "Pod" || ref.APIVersion != "v1" || !*ref.Controller || !*ref.BlockOwnerDeletion {
		t.Errorf("reference %v", ref)
	}
	owner := object.ControllerOf(o)
	if !object.Refers(owner, object.Key{Group: "apps", Kind: "ReplicaSet"}.GroupKind()) || object.Refers(owner, object.Key{Kind: "ReplicaSet"}.GroupKind()) {
		t.Error("Refers does not look at group and kind")
	}
	if got := (object.Key{Group: "apps", Kind: "D", Namespace: "n", Name: "x"}).String(); got != "D.apps n/x" {
		t.Errorf("String = %q", got)
	}
	a, b := object.Key{Kind: "A", Name: "b"}, object.Key{Kind: "A", Namespace: "a"}
	if a.Compare(b) >= 0 || a.Compare(object.Key{Kind: "A", Name: "b"}) != 0 {
		t.Error("keys are not ordered by namespace before name")
	}
}

// FuzzFromJSON checks that no input panics, and that what is read is read the
// same way as by encoding/json.
func FuzzFromJSON(f *testing.F) {
	f.Add(fmt.Sprintf(pod, ""))
	f.Add(fmt.Sprintf(pod, `,"managedFields":[{"a":1}]`))
	f.Add(`{"apiVersion":"v1","kind":"Pod","metadata":{"managedFields":[],"name":"\u0061","labels":{"\u0062":"c"}}}`)
	f.Add(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","name":"b"},"metadata":{"labels":null}}`)
	f.Add(`{"metadata":null}`)
	f.Fuzz(func(t *testing.T, text string) {
		o, err := object.FromJSON([]byte(text))
		if err != nil {
			return
		}
		if !stdjson.Valid([]byte(o.Body())) {
			t.Fatalf("the body is no JSON: %q", o.Body())
		}
		o.Annotations()
		content := o.Content()
		if content == nil {
			t.Fatalf("no content: %q", o.Body())
		}
		if strings.Count(text, "metadata") > 1 {
			return // a key that is there twice is read field by field, not as a whole
		}
		var typed metav1.PartialObjectMetadata
		if stdjson.Unmarshal([]byte(text), &typed) != nil {
			return
		}
		if typed.Name == o.Name() && typed.Namespace == o.Namespace() && string(typed.UID) == string(o.UID()) {
			return
		}
		// encoding/json takes fields in any case of letters; only exact ones count.
		again, err := object.FromContent(content)
		if err != nil || again.Key() != o.Key() || again.UID() != o.UID() {
			t.Fatalf("%q read as %v, its body as %v (%v)", text, o, again, err)
		}
	})
}

func TestLeftBehind(t *testing.T) {
	child := func(namespace, owner string) *object.Object {
		return parse(t, `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"c","namespace":"`+namespace+`","ownerReferences":[`+owner+`]}}`)
	}
	const (
		before = `{"apiVersion":"demo/v1","kind":"Thing","name":"a","uid":"before","controller":true}`
		now    = `{"apiVersion":"demo/v1","kind":"Thing","name":"a","uid":"now","controller":true}`
	)
	inNamespace := parse(t, `{"apiVersion":"demo/v2","kind":"Thing","metadata":{"name":"a","namespace":"ns","uid":"now"}}`)
	ofCluster := parse(t, `{"apiVersion":"demo/v1","kind":"Thing","metadata":{"name":"a","uid":"now"}}`)
	for _, c := range []struct {
		reason string
		child  *object.Object
		parent *object.Object
		want   bool
	}{
		{"of an earlier one", child("ns", before), inNamespace, true},
		{"of an earlier one of the cluster", child("ns", before), ofCluster, true},
		{"its own", child("ns", now), inNamespace, false},
		{"of one in another namespace", child("other", before), inNamespace, false},
		{"of another name", child("ns", strings.Replace(before, `"a"`, `"b"`, 1)), inNamespace, false},
		{"of another kind", child("ns", strings.Replace(before, "Thing", "Other", 1)), inNamespace, false},
		{"of another group", child("ns", strings.Replace(before, "demo/", "else/", 1)), inNamespace, false},
		{"an owner that does not control", child("ns", strings.Replace(before, "true", "false", 1)), inNamespace, false},
		{"nobody's", child("ns", ""), inNamespace, false},
	} {
		if got := object.LeftBehind(c.child, c.parent); got != c.want {
			t.Errorf("%s: %v", c.reason, got)
		}
	}
}
