package plan_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/plan"
	"github.com/metacontroller-solo/solo/pkg/object"
)

type fataler interface{ Fatal(...any) }

func parse(t fataler, text string) *object.Object {
	o, err := object.FromJSON([]byte(text))
	if err != nil {
		t.Fatal(err, text)
	}
	return o
}

func kind(group, version, name, resource string, namespaced bool, method v1alpha1.ChildUpdateMethod) plan.Kind {
	return plan.Kind{Kind: object.Kind{
		GroupVersionKind: schema.GroupVersionKind{Group: group, Version: version, Kind: name},
		Resource:         resource, Namespaced: namespaced,
	}, Method: method}
}

func pods(method v1alpha1.ChildUpdateMethod) plan.Kind {
	return kind("", "v1", "Pod", "pods", true, method)
}

func deployments(method v1alpha1.ChildUpdateMethod) plan.Kind {
	return kind("apps", "v1", "Deployment", "deployments", true, method)
}

func roles() plan.Kind {
	return kind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", false, v1alpha1.ChildUpdateInPlace)
}

const (
	parentText  = `{"apiVersion":"x.io/v1","kind":"Thing","metadata":{"name":"p","namespace":"ns","uid":"p-uid"}}`
	clusterText = `{"apiVersion":"x.io/v1","kind":"Thing","metadata":{"name":"p","uid":"p-uid"}}`
	mine        = `"ownerReferences":[{"apiVersion":"x.io/v1","kind":"Thing","name":"p","uid":"p-uid","controller":true,"blockOwnerDeletion":true}]`
	theirs      = `"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"rs","uid":"other","controller":true}]`
)

// podText is a Pod with more metadata and an image.
func podText(name, metadata, image string) string {
	if metadata != "" {
		metadata = "," + metadata
	}
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":%q%s},"spec":{"containers":[{"name":"c","image":%q}]}}`, name, metadata, image)
}

// existing is what the API server has of a Pod of the parent.
func existing(name, image, more string) string {
	if more != "" {
		more = "," + more
	}
	last := strings.ReplaceAll(podText(name, `"namespace":"ns"`, image), `"`, `\"`)
	return podText(name, fmt.Sprintf(`"namespace":"ns","uid":"uid-%s","resourceVersion":"1",%s,"annotations":{%q:"%s"}%s`,
		name, mine, object.LastAppliedAnnotation, last, more), image)
}

func children(t fataler, texts ...string) []hook.Child {
	var out []hook.Child
	for i, text := range texts {
		out = append(out, hook.Child{Object: parse(t, text), Path: fmt.Sprintf("children[%d]", i)})
	}
	return out
}

func objects(t fataler, texts ...string) []*object.Object {
	var out []*object.Object
	for _, text := range texts {
		out = append(out, parse(t, text))
	}
	return out
}

// told is a plan in words: action reason key.
func told(p plan.Plan) []string {
	var out []string
	for _, s := range p.Steps {
		out = append(out, fmt.Sprintf("%v %v %s %s", s.Action, s.Reason, s.Key.Kind, s.Key.Path()))
	}
	return out
}

func TestMake(t *testing.T) {
	const (
		onDelete = v1alpha1.ChildUpdateOnDelete
		inPlace  = v1alpha1.ChildUpdateInPlace
		recreate = v1alpha1.ChildUpdateRecreate
		rolling  = v1alpha1.ChildUpdateRollingInPlace
	)
	dying := `"deletionTimestamp":"2026-01-01T00:00:00Z"`
	tests := []struct {
		name     string
		parent   string
		kinds    []plan.Kind
		observed []string
		desired  []string
		foreign  []string
		want     []string
		why      string
	}{
		{name: "nothing at all", kinds: []plan.Kind{pods(inPlace)}},
		{name: "missing", kinds: []plan.Kind{pods(onDelete)}, desired: []string{podText("a", "", "1")}, want: []string{"create Missing Pod ns/a"},
			why: "a child without a namespace gets the parent's"},
		{name: "as desired", kinds: []plan.Kind{pods(inPlace)}, observed: []string{existing("a", "1", "")}, desired: []string{podText("a", "", "1")}},
		{name: "differs, in place", kinds: []plan.Kind{pods(inPlace)}, observed: []string{existing("a", "1", "")}, desired: []string{podText("a", "", "2")},
			want: []string{"update Differs Pod ns/a"}},
		{name: "differs, recreate", kinds: []plan.Kind{pods(recreate)}, observed: []string{existing("a", "1", "")}, desired: []string{podText("a", "", "2")},
			want: []string{"delete Differs Pod ns/a"}, why: "it is created in a later sync"},
		{name: "differs, on delete", kinds: []plan.Kind{pods(onDelete)}, observed: []string{existing("a", "1", "")}, desired: []string{podText("a", "", "2")}},
		{name: "differs, no method", kinds: []plan.Kind{pods("")}, observed: []string{existing("a", "1", "")}, desired: []string{podText("a", "", "2")},
			why: "OnDelete is the default"},
		{name: "differs, rolling without a planner", kinds: []plan.Kind{pods(rolling)}, observed: []string{existing("a", "1", "")}, desired: []string{podText("a", "", "2")},
			want: []string{"update Differs Pod ns/a"}},
		{name: "differs, going away", kinds: []plan.Kind{pods(inPlace)}, observed: []string{existing("a", "1", dying)}, desired: []string{podText("a", "", "2")},
			why: "what is terminating is neither updated nor made again"},
		{name: "undesired", kinds: []plan.Kind{pods(onDelete)}, observed: []string{existing("b", "1", ""), existing("a", "1", "")},
			want: []string{"delete Undesired Pod ns/a", "delete Undesired Pod ns/b"}, why: "whatever the strategy"},
		{name: "undesired, going away", kinds: []plan.Kind{pods(inPlace)}, observed: []string{existing("a", "1", dying)}},
		{name: "undesired, of no declared kind", kinds: []plan.Kind{deployments(inPlace)}, observed: []string{existing("a", "1", "")},
			why: "what is not declared is not deleted either"},
		{name: "observed, but not ours", kinds: []plan.Kind{pods(inPlace)}, observed: []string{podText("a", `"namespace":"ns","uid":"u",`+theirs, "1")},
			why: "nothing is deleted without our owner reference"},
		{name: "foreign, controlled", kinds: []plan.Kind{pods(inPlace)}, foreign: []string{podText("a", `"namespace":"ns","uid":"u",`+theirs, "1")},
			desired: []string{podText("a", "", "2")}, want: []string{"skip Foreign Pod ns/a"}},
		{name: "foreign, orphan", kinds: []plan.Kind{pods(recreate)}, foreign: []string{podText("a", `"namespace":"ns","uid":"u"`, "1")},
			desired: []string{podText("a", "", "2"), podText("b", "", "2")}, want: []string{"create Missing Pod ns/b", "skip Foreign Pod ns/a"},
			why: "the others go on"},
		{name: "ours, not among the observed, going away", kinds: []plan.Kind{pods(inPlace)}, foreign: []string{existing("a", "1", dying)},
			desired: []string{podText("a", "", "2")}, why: "it only needs time"},
		{name: "ours, not among the observed", kinds: []plan.Kind{pods(inPlace)}, foreign: []string{existing("a", "1", "")},
			desired: []string{podText("a", "", "2")}, want: []string{"skip Foreign Pod ns/a"}},
		{name: "foreign, going away", kinds: []plan.Kind{pods(inPlace)}, foreign: []string{podText("a", `"namespace":"ns","uid":"u",`+dying+","+theirs, "1")},
			desired: []string{podText("a", "", "2")}, want: []string{"skip Foreign Pod ns/a"}},
		{name: "undeclared", kinds: []plan.Kind{deployments(inPlace)}, desired: []string{podText("a", "", "1"), `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"}}`},
			want: []string{"create Missing Deployment ns/d", "skip Undeclared Pod a"}, why: "the others go on"},
		{name: "another group of that kind", kinds: []plan.Kind{kind("other.io", "v1", "Pod", "pods", true, inPlace)}, desired: []string{podText("a", "", "1")},
			want: []string{"skip Undeclared Pod a"}},
		{name: "another namespace", kinds: []plan.Kind{pods(inPlace)}, desired: []string{podText("a", `"namespace":"other"`, "1")},
			want: []string{"skip OutsideNamespace Pod other/a"}},
		{name: "cluster-scoped child of a namespaced parent", kinds: []plan.Kind{roles()}, desired: []string{`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"r"}}`},
			want: []string{"skip OutsideNamespace ClusterRole r"}},
		{name: "cluster-scoped parent", parent: clusterText, kinds: []plan.Kind{roles(), pods(inPlace)},
			desired: []string{`{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"r","namespace":"odd"}}`, podText("a", `"namespace":"x"`, "1"), podText("a", "", "1")},
			want:    []string{"create Missing Pod x/a", "create Missing ClusterRole r", "skip NoNamespace Pod a"}},
		{name: "twice", kinds: []plan.Kind{pods(inPlace)}, desired: []string{podText("a", "", "1"), podText("a", `"namespace":"ns"`, "2")},
			want: []string{"create Missing Pod ns/a", "skip Duplicate Pod ns/a"}},
		{name: "order", kinds: []plan.Kind{deployments(inPlace), pods(inPlace)},
			observed: []string{existing("z", "1", ""), existing("y", "1", "")},
			desired:  []string{`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"d"}}`, podText("c", "", "1"), podText("y", "", "2"), podText("b", "", "1")},
			want:     []string{"delete Undesired Pod ns/z", "create Missing Pod ns/c", "update Differs Pod ns/y", "create Missing Pod ns/b", "create Missing Deployment ns/d"},
			why:      "deletes first, kinds in order, the hook's order within"},
		{name: "another version of the declared kind", kinds: []plan.Kind{kind("", "v1", "Pod", "pods", true, inPlace)},
			observed: []string{existing("a", "1", "")}, desired: []string{strings.Replace(podText("a", "", "1"), `"v1"`, `"v1beta1"`, 1)}},
		{name: "an echo of what was observed", kinds: []plan.Kind{pods(inPlace)}, observed: []string{existing("a", "1", `"generation":3,"labels":{"l":"m"}`)},
			desired: []string{strings.Replace(existing("a", "1", `"generation":2,"labels":{"l":"m"},"managedFields":[{}],"creationTimestamp":null`), `"spec"`, `"status":{"x":1},"spec"`, 1)}},
		{name: "the memory alone is out of date", kinds: []plan.Kind{pods(inPlace)}, observed: []string{podText("a", `"namespace":"ns","uid":"u",`+mine, "1")},
			desired: []string{podText("a", "", "1")}, want: []string{"update Memory Pod ns/a"}},
		{name: "the memory is no reason to recreate", kinds: []plan.Kind{pods(recreate)}, observed: []string{podText("a", `"namespace":"ns","uid":"u",`+mine, "1")},
			desired: []string{podText("a", "", "1")}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if tt.parent == "" {
				tt.parent = parentText
			}
			foreign := object.NewSet(nil, objects(t, tt.foreign...)...)
			got, err := plan.Make(plan.Input{
				Parent: parse(t, tt.parent), Kinds: tt.kinds,
				Observed: object.NewSet(nil, objects(t, tt.observed...)...),
				Desired:  children(t, tt.desired...),
				Lookup:   foreign.Get,
			})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, told(got)); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tt.why, diff)
			}
			for _, s := range got.Steps {
				switch s.Action {
				case plan.Create:
					ref := object.ControllerOf(s.Object)
					if ref == nil || ref.UID != "p-uid" || !*ref.BlockOwnerDeletion || s.Object.Key() != s.Key || s.Object.UID() != "" || s.Object.ResourceVersion() != "" {
						t.Errorf("creates %s", s.Object.Body())
					}
				case plan.Update:
					if s.Object.UID() != s.Observed.UID() || s.Object.ResourceVersion() != s.Observed.ResourceVersion() || !object.ControlledBy(s.Object, "p-uid") {
						t.Errorf("updates %s", s.Object.Body())
					}
				case plan.Delete:
					if s.Observed == nil || s.Observed.UID() == "" || s.Object != nil {
						t.Errorf("deletes %v", s)
					}
				case plan.Skip:
					if !strings.HasPrefix(s.Message, "children[") || s.Object != nil {
						t.Errorf("says %q", s.Message)
					}
				}
			}
		})
	}
}

func TestMessagesTellWhatToDo(t *testing.T) {
	got, err := plan.Make(plan.Input{
		Parent:  parse(t, parentText),
		Kinds:   []plan.Kind{pods(v1alpha1.ChildUpdateInPlace)},
		Desired: children(t, podText("a", "", "1"), podText("b", `"namespace":"other"`, "1"), `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"}}`, podText("c", "", "1")),
		Lookup: object.NewSet(nil,
			parse(t, podText("a", `"namespace":"ns","uid":"u",`+theirs, "1")),
			parse(t, podText("c", `"namespace":"ns","uid":"v","ownerReferences":[{"apiVersion":"x.io/v1","kind":"Thing","name":"p","uid":"before","controller":true}]`, "1")),
		).Get,
	})
	if err != nil {
		t.Fatal(err)
	}
	var messages []string
	for _, s := range got.Problems() {
		messages = append(messages, s.Message)
	}
	want := []string{
		`children[1]: Pod "other/b" is not made: it is in namespace "other", and the parent in "ns": only a cluster-scoped parent can own it`,
		`children[2]: Secret "s" is not made: its kind is not among the controller's declared child kinds: add it there`,
		`children[0]: Pod "ns/a" exists and is controlled by ReplicaSet "rs"; it is left alone: choose another name, or delete it`,
		`children[3]: Pod "ns/c" exists and was left by an earlier Thing "p" (uid before), and the garbage collector has not taken it away; it is left alone: delete it, or start kube-controller-manager anew`,
	}
	if diff := cmp.Diff(want, messages); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if got.Writes() {
		t.Error("a plan of problems writes")
	}
}

func TestSelectorMismatchIsAnErrorOfTheAnswer(t *testing.T) {
	in := plan.Input{
		Parent:   parse(t, parentText),
		Kinds:    []plan.Kind{pods(v1alpha1.ChildUpdateInPlace)},
		Observed: object.NewSet(nil, parse(t, existing("old", "1", ""))),
		Desired:  children(t, podText("a", `"labels":{"app":"x"}`, "1"), podText("b", `"labels":{"app":"y"}`, "1")),
		Selector: labels.SelectorFromSet(labels.Set{"app": "x"}),
	}
	got, err := plan.Make(in)
	var field *object.FieldError
	if !errors.As(err, &field) || field.Path != "children[1].metadata.labels" || !strings.Contains(err.Error(), `"app=x"`) || len(got.Steps) != 0 {
		t.Errorf("plan %v, %v", told(got), err)
	}
}

func TestGeneratedSelectorAndMarksAreInjected(t *testing.T) {
	in := plan.Input{
		Parent:      parse(t, parentText),
		Kinds:       []plan.Kind{pods(v1alpha1.ChildUpdateInPlace)},
		Observed:    object.NewSet(nil, parse(t, existing("b", "1", ""))),
		Desired:     children(t, podText("a", `"labels":{"app":"x","controller-uid":"forged"}`, "1"), podText("b", "", "1")),
		Selector:    labels.SelectorFromSet(labels.Set{object.ControllerUIDLabel: "p-uid"}),
		Labels:      map[string]string{object.ControllerUIDLabel: "p-uid"},
		Annotations: map[string]string{object.DecoratorAnnotation: "ctl"},
	}
	got, err := plan.Make(in)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"create Missing Pod ns/a", "update Differs Pod ns/b"}, told(got)); diff != "" {
		t.Fatalf("(-want +got):\n%s", diff)
	}
	for _, s := range got.Steps {
		mark, _ := s.Object.Annotation(object.DecoratorAnnotation)
		if s.Object.Labels()[object.ControllerUIDLabel] != "p-uid" || mark != "ctl" {
			t.Errorf("writes %s", s.Object.Body())
		}
	}
	if got.Steps[0].Object.Labels()["app"] != "x" {
		t.Error("the hook's own label is gone")
	}
}

func TestTheHookDoesNotDecideWhoControlsAChild(t *testing.T) {
	const other = `{"apiVersion":"v1","kind":"Node","name":"n","uid":"o"}`
	in := plan.Input{
		Parent: parse(t, parentText),
		Kinds:  []plan.Kind{pods(v1alpha1.ChildUpdateInPlace)},
		Desired: children(t,
			podText("a", mine, "1"),
			podText("b", theirs, "1"),
			podText("c", `"ownerReferences":[`+other+`]`, "1"),
			podText("d", "", "2")),
		// An annotation that remembers the parent's reference, as an echo under
		// another implementation leaves it behind.
		Observed: object.NewSet(nil, parse(t, podText("d", fmt.Sprintf(`"namespace":"ns","uid":"u",%s,"annotations":{%q:%q}`,
			mine, object.LastAppliedAnnotation, podText("d", `"namespace":"ns",`+mine, "1")), "1"))),
	}
	got, err := plan.Make(in)
	if err != nil || len(got.Steps) != 4 {
		t.Fatalf("%v, %v", told(got), err)
	}
	for _, step := range got.Steps {
		controllers := 0
		for _, ref := range step.Object.OwnerReferences() {
			if ref.Controller != nil && *ref.Controller {
				controllers++
			}
		}
		last, _ := step.Object.Annotation(object.LastAppliedAnnotation)
		if controllers != 1 || !object.ControlledBy(step.Object, "p-uid") || strings.Contains(last, "p-uid") {
			t.Errorf("writes %s", step.Object.Body())
		}
		if want := map[string]int{"c": 2}[step.Key.Name]; want != 0 && len(step.Object.OwnerReferences()) != want {
			t.Errorf("writes %s", step.Object.Body())
		}
	}
}

func TestStringDataOfASecretIsItsData(t *testing.T) {
	tests := []struct{ in, want, why string }{
		{`"stringData":{"a":"x","b":"y"},"data":{"a":"b2xk","c":"eg=="}`, `{"data":{"a":"eA==","b":"eQ==","c":"eg=="}}`, "stringData wins"},
		{`"stringData":{"a":"x"}`, `{"data":{"a":"eA=="}}`, ""},
		{`"stringData":null`, `{"stringData":null}`, "there is nothing in it"},
		{`"stringData":{"a":1}`, `{"stringData":{"a":1}}`, "the API server refuses it"},
		{`"stringData":{"a":"x"},"data":[]`, `{"stringData":{"a":"x"},"data":[]}`, "the API server refuses it"},
	}
	for _, tt := range tests {
		got, err := plan.Make(plan.Input{
			Parent:  parse(t, parentText),
			Kinds:   []plan.Kind{kind("", "v1", "Secret", "secrets", true, v1alpha1.ChildUpdateInPlace)},
			Desired: children(t, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s"},`+tt.in+`}`),
		})
		if err != nil || len(got.Steps) != 1 {
			t.Fatalf("%v, %v", told(got), err)
		}
		content := got.Steps[0].Object.Content()
		for _, field := range []string{"apiVersion", "kind", "metadata"} {
			delete(content, field)
		}
		want, err := object.Decode([]byte(tt.want))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, any(content)); diff != "" {
			t.Errorf("%s: %s (-want +got):\n%s", tt.in, tt.why, diff)
		}
	}
}

func TestHeldChildrenAreLeftAlone(t *testing.T) {
	in := plan.Input{
		Parent:   parse(t, parentText),
		Kinds:    []plan.Kind{pods(v1alpha1.ChildUpdateRollingRecreate)},
		Observed: object.NewSet(nil, objects(t, existing("a", "1", ""), existing("b", "1", ""), existing("c", "2", ""), existing("x", "1", ""))...),
		Desired:  children(t, podText("b", "", "2"), podText("a", "", "2"), podText("c", "", "2"), podText("d", "", "2"), podText("e", "", "2")),
		Hold:     func(key object.Key) bool { return key.Name == "a" || key.Name == "e" },
	}
	got, err := plan.Make(in)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"delete Undesired Pod ns/x", "delete Differs Pod ns/b", "create Missing Pod ns/d"}, told(got)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestAdmit is about an answer whose children are of several kinds, some of which
// are not for the parent to have.
func TestAdmit(t *testing.T) {
	dying := `"deletionTimestamp":"2026-01-01T00:00:00Z"`
	deployment := `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a"}}`
	in := plan.Input{
		Parent:   parse(t, parentText),
		Kinds:    []plan.Kind{pods(v1alpha1.ChildUpdateRollingInPlace), deployments(v1alpha1.ChildUpdateOnDelete)},
		Observed: object.NewSet(nil, objects(t, existing("same", "1", ""), existing("other", "1", ""), existing("leaving", "1", dying))...),
		Desired: children(t, podText("other", "", "2"), podText("same", "", "1"), deployment, podText("absent", "", "1"), podText("other", "", "3"),
			podText("foreign", "", "1"), podText("leaving", "", "2"), podText("elsewhere", `"namespace":"other"`, "1")),
		Lookup: func(key object.Key) *object.Object {
			if key.Name == "foreign" {
				return parse(t, podText("foreign", `"namespace":"ns","uid":"u",`+theirs, "1"))
			}
			return nil
		},
	}
	admitted, err := plan.Admit(in)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, c := range admitted.Children {
		differs, err := admitted.Differs(c)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, fmt.Sprintf("%s %s there=%v foreign=%v differs=%v", c.Key, c.Child.Path, c.Observed != nil, c.Foreign, differs))
	}
	want := []string{
		"Pod ns/other children[0] there=true foreign=false differs=true",
		"Pod ns/same children[1] there=true foreign=false differs=false",
		"Deployment.apps ns/a children[2] there=false foreign=false differs=false",
		"Pod ns/absent children[3] there=false foreign=false differs=false",
		"Pod ns/foreign children[5] there=false foreign=true differs=false",
		"Pod ns/leaving children[6] there=true foreign=false differs=false",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}

	in.Selector = labels.SelectorFromSet(labels.Set{"a": "b"})
	if _, err := plan.Admit(in); err == nil {
		t.Error("children that the selector does not match are admitted")
	}
}

func TestSettledPairsAreNotComparedAgain(t *testing.T) {
	in := plan.Input{
		Parent:   parse(t, parentText),
		Kinds:    []plan.Kind{pods(v1alpha1.ChildUpdateInPlace)},
		Observed: object.NewSet(nil, parse(t, existing("a", "1", ""))),
		Desired:  children(t, podText("a", "", "1")),
	}
	first, err := plan.Make(in)
	if err != nil || len(first.Steps) != 0 || len(first.Settled) != 1 {
		t.Fatalf("%v, %v, %v", told(first), first.Settled, err)
	}
	// A mark for a pair that does differ shows that it is believed.
	in.Settled = first.Settled
	in.Observed = object.NewSet(nil, parse(t, strings.ReplaceAll(existing("a", "1", ""), `"image":"1"`, `"image":"7"`)))
	if got, err := plan.Make(in); err != nil || len(got.Steps) != 0 || len(got.Settled) != 1 {
		t.Errorf("compared again: %v, %v", told(got), err)
	}
	for name, change := range map[string]func(*plan.Input){
		"observed": func(in *plan.Input) {
			in.Observed = object.NewSet(nil, parse(t, strings.ReplaceAll(strings.ReplaceAll(existing("a", "1", ""), `"image":"1"`, `"image":"7"`), `"resourceVersion":"1"`, `"resourceVersion":"2"`)))
		},
		"desired": func(in *plan.Input) { in.Desired = children(t, podText("a", "", "3")) },
		"labels":  func(in *plan.Input) { in.Labels = map[string]string{"a": "b"} },
	} {
		changed := in
		change(&changed)
		if got, err := plan.Make(changed); err != nil || !got.Writes() || len(got.Settled) != 0 {
			t.Errorf("%s changed, and was not compared: %v, %v", name, told(got), err)
		}
	}
}

// A child that was made of a copy of a decorator's attachment is not one.
func TestMarkOfACopyIsTakenOff(t *testing.T) {
	p := parse(t, `{"apiVersion":"x.io/v1","kind":"Thing","metadata":{"name":"p","namespace":"ns","uid":"p-uid"}}`)
	pods := object.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: "pods", Namespaced: true}
	copied := parse(t, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","annotations":{"b":"c","metacontroller.k8s.io/decorator-controller":"other"}}}`)
	for _, mark := range []string{"", "mine"} {
		in := plan.Input{Parent: p, Kinds: []plan.Kind{{Kind: pods}}, Desired: []hook.Child{{Object: copied, Path: "children[0]"}}}
		if mark != "" {
			in.Annotations = map[string]string{object.DecoratorAnnotation: mark}
		}
		made, err := plan.Make(in)
		if err != nil || len(made.Steps) != 1 {
			t.Fatal(made, err)
		}
		got, has := made.Steps[0].Object.Annotation(object.DecoratorAnnotation)
		if other, _ := made.Steps[0].Object.Annotation("b"); got != mark || has != (mark != "") || other != "c" {
			t.Errorf("with mark %q it has %q: %s", mark, got, made.Steps[0].Object.Body())
		}
	}
}
