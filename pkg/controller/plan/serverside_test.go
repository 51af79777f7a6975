package plan_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/plan"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// ownedPod are the fields of podText that were applied for the parent.
const ownedPod = `{"f:metadata":{"f:ownerReferences":{"k:{\"uid\":\"p-uid\"}":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:name":{},"f:image":{}}}}}`

// appliedPod is what the API server has of a Pod that was applied.
func appliedPod(t fataler, name, image, fields string) *object.Object {
	text := podText(name, fmt.Sprintf(`"namespace":"ns","uid":"uid-%s","resourceVersion":"1",%s,"managedFields":[{"manager":"me","operation":"Apply","fieldsV1":%s}]`, name, mine, fields), image)
	o, err := object.Reader{FieldManager: "me"}.FromJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestServerSideApply(t *testing.T) {
	const more = `{"f:metadata":{"f:labels":{"f:gone":{}},` + `"f:ownerReferences":{"k:{\"uid\":\"p-uid\"}":{}}},"f:spec":{"f:containers":{"k:{\"name\":\"c\"}":{".":{},"f:name":{},"f:image":{}}}}}`
	created := parse(t, existing("a", "1", ""))
	tests := []struct {
		name     string
		method   v1alpha1.ChildUpdateMethod
		observed *object.Object
		image    string
		want     string
		unless   bool
	}{
		{"the same", v1alpha1.ChildUpdateInPlace, appliedPod(t, "a", "1", ownedPod), "1", "", false},
		{"another image", v1alpha1.ChildUpdateInPlace, appliedPod(t, "a", "1", ownedPod), "2", "update Differs Pod ns/a", false},
		{"a label is to go", v1alpha1.ChildUpdateInPlace, appliedPod(t, "a", "1", more), "1", "update Differs Pod ns/a", false},
		{"it was not applied", v1alpha1.ChildUpdateInPlace, appliedPod(t, "a", "1", `{}`), "1", "update Memory Pod ns/a", false},
		{"OnDelete leaves it", v1alpha1.ChildUpdateOnDelete, appliedPod(t, "a", "1", ownedPod), "2", "", false},
		{"Recreate asks first", v1alpha1.ChildUpdateRecreate, appliedPod(t, "a", "1", ownedPod), "2", "delete Differs Pod ns/a", true},
		{"Recreate, the same", v1alpha1.ChildUpdateRecreate, appliedPod(t, "a", "1", ownedPod), "1", "", false},
		{"Recreate of an orphan that is as it should be", v1alpha1.ChildUpdateRecreate, parse(t, podText("a", `"namespace":"ns","uid":"u","resourceVersion":"1",`+mine, "1")), "1", "", false},
		{"written by an update", v1alpha1.ChildUpdateInPlace, created, "1", "hand over the fields of Memory Pod ns/a", false},
		{"even if it differs", v1alpha1.ChildUpdateRollingInPlace, created, "2", "hand over the fields of Memory Pod ns/a", false},
		{"Recreate of one written by an update, the same", v1alpha1.ChildUpdateRecreate, created, "1", "", false},
		{"Recreate of one written by an update", v1alpha1.ChildUpdateRecreate, created, "2", "delete Differs Pod ns/a", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := plan.Make(plan.Input{
				Parent: parse(t, parentText), Kinds: []plan.Kind{pods(tt.method)}, ServerSide: true,
				Observed: object.NewSet(nil, tt.observed), Desired: children(t, podText("a", "", tt.image)),
			})
			if err != nil {
				t.Fatal(err)
			}
			if said := strings.Join(told(got), ", "); said != tt.want {
				t.Fatalf("plan %q, want %q", said, tt.want)
			}
			if tt.want == "" && tt.method != v1alpha1.ChildUpdateOnDelete && len(got.Settled) != 1 {
				t.Errorf("settled %v", got.Settled)
			}
			for _, step := range got.Steps {
				written := step.Object
				if step.Action == plan.Delete {
					written = step.Unless
				}
				if (step.Unless != nil) != tt.unless {
					t.Errorf("unless %v", step.Unless)
				}
				if written == nil {
					continue
				}
				want := parse(t, podText("a", `"namespace":"ns","uid":"uid-a","resourceVersion":"1",`+mine, tt.image))
				if diff := cmp.Diff(want.Content(), written.Content()); !step.Apply || diff != "" {
					t.Errorf("apply %t (-want +got):\n%s", step.Apply, diff)
				}
			}
		})
	}
}

func TestServerSideApplyOfWhatOnlyTheServerWrites(t *testing.T) {
	echo := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"x","resourceVersion":"3","generation":2,"creationTimestamp":null,"selfLink":"/",
		"deletionTimestamp":null,"managedFields":[{}],"annotations":{"metacontroller.k8s.io/last-applied-configuration":"{}","b":"c"},` + mine + `},"spec":{"x":null,"y":[null]},"status":{"z":1}}`
	got, err := plan.Make(plan.Input{
		Parent: parse(t, parentText), Kinds: []plan.Kind{pods(v1alpha1.ChildUpdateInPlace)}, ServerSide: true, Observed: object.NewSet(nil),
		Desired: children(t, echo), Annotations: map[string]string{object.DecoratorAnnotation: "d"},
	})
	if err != nil || len(got.Steps) != 1 || got.Steps[0].Action != plan.Create || !got.Steps[0].Apply {
		t.Fatalf("%v, %v", told(got), err)
	}
	want := parse(t, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"ns","resourceVersion":"9223372036854775807","annotations":{"b":"c","metacontroller.k8s.io/decorator-controller":"d"},`+mine+`},"spec":{"y":[null]}}`)
	if diff := cmp.Diff(want.Content(), got.Steps[0].Object.Content()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestMarksOutliveNoise: a status, or another resource version, is no reason to
// compare again, and a change of content or of its owners is.
func TestMarksOutliveNoise(t *testing.T) {
	at := func(version, image, fields string) *object.Object {
		text := strings.Replace(podText("a", fmt.Sprintf(`"namespace":"ns","uid":"u","resourceVersion":%q,%s,"managedFields":[{"manager":"me","operation":"Apply","fieldsV1":%s}]`, version, mine, fields), image),
			`"spec"`, `"status":{"seen":"`+version+`"},"spec"`, 1)
		o, err := object.Reader{FieldManager: "me"}.FromJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	in := plan.Input{
		Parent: parse(t, parentText), Kinds: []plan.Kind{pods(v1alpha1.ChildUpdateInPlace)}, ServerSide: true,
		Desired: children(t, podText("a", "", "1")),
	}
	in.Observed = object.NewSet(nil, at("1", "normalised", ownedPod))
	first, err := plan.Make(in)
	if err != nil || len(first.Steps) != 1 {
		t.Fatalf("%v, %v", told(first), err)
	}
	// It was written, and this is what the API server made of it.
	key := first.Steps[0].Key
	in.Settled = plan.Settled{{Key: key, Mark: plan.MarkOf(at("2", "normalised", ownedPod), first.Steps[0].Desired)}}
	for _, tt := range []struct {
		name     string
		observed *object.Object
		steps    int
	}{
		{"as it was written", at("2", "normalised", ownedPod), 0},
		{"another status", at("3", "normalised", ownedPod), 0},
		{"another image", at("3", "other", ownedPod), 1},
		{"another owner", at("3", "normalised", `{}`), 1},
	} {
		in.Observed = object.NewSet(nil, tt.observed)
		got, err := plan.Make(in)
		if err != nil || len(got.Steps) != tt.steps {
			t.Errorf("%s: %v, %v", tt.name, told(got), err)
		}
		if mark, _ := got.Settled.Mark(key); tt.steps == 0 && mark.ResourceVersion != tt.observed.ResourceVersion() {
			t.Errorf("%s: the mark is %v", tt.name, mark)
		}
	}
}

// TestRecreateOfWhatTheServerFilledIn asks the API server, if just this was
// applied before; another desired state is reason enough.
func TestRecreateOfWhatTheServerFilledIn(t *testing.T) {
	in := plan.Input{
		Parent: parse(t, parentText), Kinds: []plan.Kind{pods(v1alpha1.ChildUpdateRecreate)},
		Observed: object.NewSet(nil, parse(t, strings.Replace(existing("a", "1", ""), `"image":"1"`, `"image":"rewritten"`, 1))),
		Desired:  children(t, podText("a", `"namespace":"ns"`, "1")),
	}
	got, err := plan.Make(in)
	if err != nil || len(got.Steps) != 1 || got.Steps[0].Action != plan.Delete || got.Steps[0].Unless == nil || got.Steps[0].Apply {
		t.Fatalf("%v, %v", told(got), err)
	}
	in.Desired = children(t, podText("a", `"namespace":"ns"`, "2"))
	got, err = plan.Make(in)
	if err != nil || len(got.Steps) != 1 || got.Steps[0].Action != plan.Delete || got.Steps[0].Unless != nil {
		t.Fatalf("%v, %v", told(got), err)
	}
}
