package adopt_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/labels"
	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/controller/adopt"
	"github.com/metacontroller-solo/solo/pkg/object"
)

func parse(t interface{ Fatal(...any) }, text string) *object.Object {
	o, err := object.FromJSON([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// thing is an object with what a decision looks at.
type thing struct {
	kind, namespace, uid string
	deleted              bool
	label                string
	owner                string // UID
	controller           bool
}

func (o thing) make(t interface{ Fatal(...any) }) *object.Object {
	var b strings.Builder
	fmt.Fprintf(&b, `{"apiVersion":"x.io/v1","kind":%q,"metadata":{"name":"n","namespace":%q,"uid":%q,"resourceVersion":"5"`, o.kind, o.namespace, o.uid)
	if o.deleted {
		b.WriteString(`,"deletionTimestamp":"2026-01-01T00:00:00Z"`)
	}
	if o.label != "" {
		fmt.Fprintf(&b, `,"labels":{"app":%q}`, o.label)
	}
	if o.owner != "" {
		fmt.Fprintf(&b, `,"ownerReferences":[{"apiVersion":"x.io/v1","kind":"Parent","name":"n","uid":%q,"controller":%t}]`, o.owner, o.controller)
	}
	b.WriteString("}}")
	return parse(t, b.String())
}

func TestDecide(t *testing.T) {
	app := labels.SelectorFromSet(labels.Set{"app": "x"})
	parent := thing{kind: "Parent", namespace: "ns", uid: "p"}
	child := thing{kind: "Child", namespace: "ns", uid: "c", label: "x"}
	with := func(change func(*thing), of thing) thing { change(&of); return of }
	owned := with(func(o *thing) { o.owner, o.controller = "p", true }, child)
	dying := with(func(o *thing) { o.deleted = true }, parent)
	tests := []struct {
		name              string
		parent, candidate thing
		selector          labels.Selector
		want              adopt.Verdict
	}{
		{"ours, and it matches", parent, owned, app, adopt.Own},
		{"ours by UID, of a parent without selector", parent, with(func(o *thing) { o.label = "" }, owned), nil, adopt.Own},
		{"ours, and it no longer matches", parent, with(func(o *thing) { o.label = "y" }, owned), app, adopt.Release},
		{"ours, no longer matching, parent going away: it goes with it", dying, with(func(o *thing) { o.label = "y" }, owned), app, adopt.Leave},
		{"ours, no longer matching, going away", parent, with(func(o *thing) { o.label, o.deleted = "y", true }, owned), app, adopt.Leave},
		{"ours while the parent goes away", dying, owned, app, adopt.Own},
		{"ours and going away", parent, with(func(o *thing) { o.deleted = true }, owned), app, adopt.Own},
		{"of a parent of that name that was there before", parent, with(func(o *thing) { o.owner = "old" }, owned), app, adopt.Foreign},
		{"somebody else's, matching or not", parent, with(func(o *thing) { o.owner, o.label = "q", "y" }, owned), app, adopt.Foreign},
		{"owned across namespaces, which is void", parent, with(func(o *thing) { o.namespace = "other" }, owned), app, adopt.Foreign},
		{"nobody's, and it matches", parent, child, app, adopt.Adopt},
		{"owned but not controlled, and it matches", parent, with(func(o *thing) { o.controller = false }, owned), app, adopt.Adopt},
		{"nobody's, and it does not match", parent, with(func(o *thing) { o.label = "y" }, child), app, adopt.Leave},
		{"nobody's, but the parent goes away", dying, child, app, adopt.Leave},
		{"nobody's, but going away", parent, with(func(o *thing) { o.deleted = true }, child), app, adopt.Leave},
		{"nobody's, in another namespace", parent, with(func(o *thing) { o.namespace = "other" }, child), app, adopt.Leave},
		{"nobody's, parent cluster-scoped", with(func(o *thing) { o.namespace = "" }, parent), child, app, adopt.Adopt},
		{"cluster-scoped, parent namespaced", parent, with(func(o *thing) { o.namespace = "" }, child), app, adopt.Leave},
		{"nobody's, and the selector is empty: that would be everything", parent, child, labels.Everything(), adopt.Leave},
		{"nobody's, and nothing is selected", parent, child, labels.Nothing(), adopt.Leave},
		{"nobody's, and there is no selector", parent, child, nil, adopt.Leave},
		{"the parent itself", parent, with(func(o *thing) { o.label = "x" }, parent), app, adopt.Leave},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := adopt.Decide(tt.parent.make(t), tt.candidate.make(t), tt.selector); got != tt.want {
				t.Errorf("Decide = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestAdoptedAndReleased(t *testing.T) {
	parent := thing{kind: "Parent", namespace: "ns", uid: "p"}.make(t)
	const body = `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"c","namespace":"ns","uid":"c","resourceVersion":"5"%s},"spec":{"n":9007199254740993}}`
	const other = `{"apiVersion":"v1","kind":"Node","name":"n","uid":"o"}`
	const weak = `{"apiVersion":"x.io/v1","kind":"Parent","name":"n","uid":"p"}`
	const mine = `{"apiVersion":"x.io/v1","blockOwnerDeletion":true,"controller":true,"kind":"Parent","name":"n","uid":"p"}`
	refs := func(list string) *object.Object { return parse(t, fmt.Sprintf(body, `,"ownerReferences":[`+list+`]`)) }
	bare := parse(t, fmt.Sprintf(body, ""))
	for _, tt := range []struct{ in, want *object.Object }{
		{bare, refs(mine)},
		{refs(other), refs(other + "," + mine)},
		{refs(weak + "," + other), refs(other + "," + mine)},
	} {
		got, err := adopt.Adopted(parent, tt.in)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want.Content(), got.Content()); diff != "" {
			t.Errorf("adopted (-want +got):\n%s", diff)
		}
	}
	for _, tt := range []struct{ in, want *object.Object }{
		{refs(mine), bare},
		{refs(mine + "," + other), refs(other)},
		{bare, bare},
	} {
		got, err := adopt.Released(parent, tt.in)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(tt.want.Content(), got.Content()); diff != "" {
			t.Errorf("released (-want +got):\n%s", diff)
		}
	}
}

// However things stand, what is adopted is then owned, what is released is then
// nobody's, and what is somebody else's is never touched.
func TestVerdictsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		one := func(name string) thing {
			return thing{
				kind:       name,
				namespace:  rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, name+" namespace"),
				uid:        name,
				deleted:    rapid.Bool().Draw(t, name+" deleted"),
				label:      rapid.SampledFrom([]string{"", "x", "y"}).Draw(t, name+" label"),
				owner:      rapid.SampledFrom([]string{"", "Parent", "other"}).Draw(t, name+" owner"),
				controller: rapid.Bool().Draw(t, name+" controlled"),
			}
		}
		parent, candidate := one("Parent").make(t), one("Child").make(t)
		selector := labels.SelectorFromSet(labels.Set{"app": "x"})
		switch got := adopt.Decide(parent, candidate, selector); got {
		case adopt.Adopt:
			adopted, err := adopt.Adopted(parent, candidate)
			if err != nil || adopt.Decide(parent, adopted, selector) != adopt.Own {
				t.Fatalf("what was adopted is not owned: %v", err)
			}
		case adopt.Release:
			released, err := adopt.Released(parent, candidate)
			if err != nil || adopt.Decide(parent, released, selector) != adopt.Leave {
				t.Fatalf("what was released is not left: %v", err)
			}
		case adopt.Own:
			if !object.ControlledBy(candidate, parent.UID()) {
				t.Fatal("own without an owner reference")
			}
		case adopt.Foreign, adopt.Leave:
		default:
			t.Fatalf("verdict %v", got)
		}
	})
}
