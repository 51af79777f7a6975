// Package quiet checks against a real API server that a controller with nothing
// to do writes nothing: what the server makes of desired children, its defaults
// and its own way of writing values, is no difference to what is desired.
package quiet

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/apply"
	"github.com/metacontroller-solo/solo/pkg/controller/cluster"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/plan"
	"github.com/metacontroller-solo/solo/pkg/object"
	"github.com/metacontroller-solo/solo/test/kit"
)

// limit bounds one test.
const limit = 3 * time.Minute

func TestMain(m *testing.M) {
	kit.Main(m, kit.Options{WithoutControllers: true})
}

// applier is the field manager of children that are applied.
const applier = "metacontroller"

// world is a namespace with a parent in it.
type world struct {
	*testing.T
	ctx    context.Context
	client dynamic.Interface
	writer *cluster.Writer
	parent *object.Object
	kinds  map[schema.GroupVersionKind]object.Kind
}

// newWorld is a world in which children are written by server-side apply, or not.
func newWorld(t *testing.T, serverSide bool) *world {
	cp := kit.Shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	config := cp.AdminConfig(0)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := cluster.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	writer := cluster.NewWriter(raw, func() (time.Time, error) { return time.Now().Add(limit), nil })
	if serverSide {
		writer = writer.Applying(applier)
	}
	w := &world{T: t, ctx: ctx, client: client, writer: writer, kinds: kinds(t, discovery.NewDiscoveryClientForConfigOrDie(config))}
	namespace := w.create("v1", "Namespace", map[string]any{"generateName": "quiet-"}).GetName()
	// Without controllers nobody makes the account that Pods run under.
	w.create("v1", "ServiceAccount", map[string]any{"name": "default", "namespace": namespace})
	parent := w.create("v1", "ConfigMap", map[string]any{"name": "parent", "namespace": namespace})
	if w.parent, err = object.FromUnstructured(parent); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) resource(kind object.Kind, namespace string) dynamic.ResourceInterface {
	if kind.Namespaced {
		return w.client.Resource(kind.GroupVersionResource()).Namespace(namespace)
	}
	return w.client.Resource(kind.GroupVersionResource())
}

func (w *world) create(apiVersion, kind string, metadata map[string]any) *unstructured.Unstructured {
	w.Helper()
	namespace, _ := metadata["namespace"].(string)
	u, err := w.resource(w.kinds[schema.FromAPIVersionAndKind(apiVersion, kind)], namespace).Create(w.ctx,
		&unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind, "metadata": metadata}}, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return u
}

// kinds are all kinds that the server has.
func kinds(t *testing.T, client discovery.DiscoveryInterface) map[schema.GroupVersionKind]object.Kind {
	t.Helper()
	_, lists, err := client.ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	out := map[schema.GroupVersionKind]object.Kind{}
	for _, list := range lists {
		for _, r := range list.APIResources {
			if !strings.Contains(r.Name, "/") {
				gvk := schema.FromAPIVersionAndKind(list.GroupVersion, r.Kind)
				out[gvk] = object.Kind{GroupVersionKind: gvk, Resource: r.Name, Namespaced: r.Namespaced}
			}
		}
	}
	return out
}

// desired are the documents of a file.
func desired(t *testing.T, file string) []hook.Child {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var out []hook.Child
	for i, document := range bytes.Split(data, []byte("\n---\n")) {
		text, err := yaml.YAMLToJSON(document)
		if err != nil {
			t.Fatal(err)
		}
		o, err := object.FromJSON(text)
		if err != nil {
			t.Fatalf("document %d: %v", i, err)
		}
		out = append(out, hook.Child{Object: o, Path: fmt.Sprintf("children[%d]", i)})
	}
	return out
}

// input is a plan's input for children with what the server has of them now.
func (w *world) input(children []hook.Child, method v1alpha1.ChildUpdateMethod) plan.Input {
	w.Helper()
	in := plan.Input{Parent: w.parent, Desired: children, ServerSide: w.writer.ServerSideApply(), Labels: map[string]string{object.ControllerUIDLabel: string(w.parent.UID())}}
	seen := map[object.Key]bool{}
	var declared []object.Kind
	var observed []*object.Object
	for _, child := range children {
		kind, ok := w.kinds[child.Object.GroupVersionKind()]
		if !ok {
			w.Fatalf("the server has no %v", child.Object.GroupVersionKind())
		}
		if key := kind.Key("", ""); !seen[key] {
			seen[key] = true
			declared = append(declared, kind)
			in.Kinds = append(in.Kinds, plan.Kind{Kind: kind, Method: method})
		}
		o, err := w.writer.Get(w.ctx, kind, w.parent.Namespace(), child.Object.Name())
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			w.Fatal(err)
		}
		observed = append(observed, o)
	}
	in.Observed = object.NewSet(declared, observed...)
	return in
}

// pass makes a plan with nothing remembered and carries it out.
func (w *world) pass(children []hook.Child) plan.Plan {
	w.Helper()
	p, err := plan.Make(w.input(children, v1alpha1.ChildUpdateInPlace))
	if err != nil {
		w.Fatal(err)
	}
	result := apply.Run(w.ctx, w.writer, p, 4)
	if err := result.Err(); err != nil || result.Retry {
		w.Fatalf("%v, retry %t", err, result.Retry)
	}
	return p
}

func (w *world) expectQuiet(what string, children []hook.Child) {
	w.Helper()
	p, err := plan.Make(w.input(children, v1alpha1.ChildUpdateInPlace))
	if err != nil {
		w.Fatal(err)
	}
	for _, step := range p.Steps {
		w.Errorf("%s: %v %v %v %s", what, step.Action, step.Reason, step.Key, step.Message)
		if step.Object != nil && step.Observed != nil {
			w.Logf("(-observed +written):\n%s", cmp.Diff(object.WithoutNoise(step.Observed.Content()), object.WithoutNoise(step.Object.Content())))
			w.Logf("applied: %s", step.Observed.Applied())
		}
	}
}

func TestNothingToDoWritesNothing(t *testing.T) {
	w := newWorld(t, false)
	children := desired(t, "testdata/children.yaml")
	if p := w.pass(children); len(p.Steps) != len(children) {
		t.Fatalf("%d steps for %d children", len(p.Steps), len(children))
	}
	w.expectQuiet("after the creation", children)

	// A hook that returns what it was shown.
	var echo []hook.Child
	for o := range w.input(children, "").Observed.All() {
		echo = append(echo, hook.Child{Object: o, Path: fmt.Sprintf("children[%d]", len(echo))})
	}
	w.expectQuiet("an echo", echo)

	// A change, and a change back: the answers of an update are as quiet.
	var labelled []hook.Child
	for _, child := range children {
		content := child.Object.Content()
		content["metadata"].(map[string]any)["labels"] = map[string]any{"new": "label"}
		o, err := object.FromContent(content)
		if err != nil {
			t.Fatal(err)
		}
		labelled = append(labelled, hook.Child{Object: o, Path: child.Path})
	}
	for _, step := range w.pass(labelled).Steps {
		if step.Action != plan.Update {
			t.Errorf("%v %v", step.Action, step.Key)
		}
	}
	w.expectQuiet("after a label was added", labelled)
	if n := len(w.pass(children).Steps); n != len(children) {
		t.Errorf("%d updates take the label away, want %d", n, len(children))
	}
	w.expectQuiet("after the label was taken away", children)

	recreate, err := plan.Make(w.input(children, v1alpha1.ChildUpdateRecreate))
	if err != nil || len(recreate.Steps) != 0 {
		t.Errorf("recreates %d children, %v", len(recreate.Steps), err)
	}
}

// changed are children with a change to the content of each.
func changed(t *testing.T, children []hook.Child, change func(content map[string]any)) []hook.Child {
	t.Helper()
	var out []hook.Child
	for _, child := range children {
		content := child.Object.Content()
		change(content)
		o, err := object.FromContent(content)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, hook.Child{Object: o, Path: child.Path})
	}
	return out
}

// once takes out of the desired children what cannot be applied: one name of an
// environment variable twice.
func once(content map[string]any) {
	spec, _ := content["spec"].(map[string]any)
	containers, _ := spec["containers"].([]any)
	for _, container := range containers {
		fields := container.(map[string]any)
		env, ok := fields["env"].([]any)
		if !ok {
			continue
		}
		seen := map[any]bool{}
		fields["env"] = slices.DeleteFunc(env, func(one any) bool {
			name := one.(map[string]any)["name"]
			again := seen[name]
			seen[name] = true
			return again
		})
	}
}

// TestNothingToApplyAppliesNothing is the same for server-side apply, where the
// API server remembers what was applied.
func TestNothingToApplyAppliesNothing(t *testing.T) {
	w := newWorld(t, true)
	children := changed(t, desired(t, "testdata/children.yaml"), once)
	if p := w.pass(children); len(p.Steps) != len(children) {
		t.Fatalf("%d steps for %d children", len(p.Steps), len(children))
	}
	w.expectQuiet("after the creation", children)

	labelled := changed(t, children, func(content map[string]any) {
		content["metadata"].(map[string]any)["labels"] = map[string]any{"new": "label"}
	})
	for _, step := range w.pass(labelled).Steps {
		if step.Action != plan.Update || !step.Apply {
			t.Errorf("%v %v", step.Action, step.Key)
		}
	}
	w.expectQuiet("after a label was added", labelled)
	if n := len(w.pass(children).Steps); n != len(children) {
		t.Errorf("%d applies take the label away, want %d", n, len(children))
	}
	w.expectQuiet("after the label was taken away", children)
	recreate, err := plan.Make(w.input(children, v1alpha1.ChildUpdateRecreate))
	if err != nil || len(recreate.Steps) != 0 {
		t.Errorf("recreates %d children, %v", len(recreate.Steps), err)
	}

	// A hook that returns what it was shown owns it all from then on.
	var echo []hook.Child
	for o := range w.input(children, "").Observed.All() {
		echo = append(echo, hook.Child{Object: o, Path: fmt.Sprintf("children[%d]", len(echo))})
	}
	w.pass(echo)
	w.expectQuiet("an echo", echo)
}

// TestHandOver is the way from updates to applies and back, for every kind.
func TestHandOver(t *testing.T) {
	updating := newWorld(t, false)
	children := changed(t, desired(t, "testdata/children.yaml"), once)
	label := func(content map[string]any) {
		content["metadata"].(map[string]any)["labels"] = map[string]any{"new": "label"}
	}
	updating.pass(changed(t, children, label))

	applying := *updating
	applying.writer = updating.writer.Applying(applier)
	p := applying.pass(changed(t, children, label))
	for _, step := range p.Steps {
		if step.Action != plan.HandOver {
			t.Errorf("%v %v", step.Action, step.Key)
		}
	}
	if len(p.Steps) != len(children) {
		t.Errorf("%d steps, want %d", len(p.Steps), len(children))
	}
	// What was written by updates is removed by an apply.
	applying.pass(children)
	for o := range applying.input(children, "").Observed.All() {
		if _, annotated := o.Annotation(object.LastAppliedAnnotation); annotated || o.Labels()["new"] != "" {
			t.Errorf("%s has the annotation or the label: %s", o, o.Body())
		}
	}
	applying.expectQuiet("after the hand-over", children)

	// And back: what was applied is removed by an update.
	applying.pass(changed(t, children, label))
	updating.pass(changed(t, children, label))
	updating.expectQuiet("after the way back", changed(t, children, label))
	updating.pass(children)
	for o := range updating.input(children, "").Observed.All() {
		if o.Labels()["new"] != "" {
			t.Errorf("%s has the label: %s", o, o.Body())
		}
	}
	updating.expectQuiet("at the end", children)
}

// TestAnApplyTakesOverNothing: one that is to make an object meets a conflict
// where there is one, and one that is to change an object makes none.
func TestAnApplyTakesOverNothing(t *testing.T) {
	w := newWorld(t, true)
	for _, kind := range []schema.GroupVersionKind{{Version: "v1", Kind: "ConfigMap"}, {Group: "apps", Version: "v1", Kind: "Deployment"}, {Version: "v1", Kind: "Service"}} {
		var child hook.Child
		for _, one := range desired(t, "testdata/children.yaml") {
			if one.Object.GroupVersionKind() == kind {
				child = one
			}
		}
		p, err := plan.Make(w.input([]hook.Child{child}, v1alpha1.ChildUpdateInPlace))
		if err != nil || len(p.Steps) != 1 || p.Steps[0].Action != plan.Create {
			t.Fatalf("%v, %v", p.Steps, err)
		}
		step := p.Steps[0]
		// Somebody else is faster.
		foreign := child.Object.Unstructured()
		foreign.SetLabels(map[string]string{"whose": "theirs"})
		made, err := w.resource(step.Kind, w.parent.Namespace()).Create(w.ctx, foreign, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.writer.Apply(w.ctx, step.Kind, step.Object); !apierrors.IsConflict(err) {
			t.Errorf("%v: apply over somebody else's: %v", kind, err)
		}
		now, err := w.writer.Get(w.ctx, step.Kind, w.parent.Namespace(), child.Object.Name())
		if err != nil || now.ResourceVersion() != made.GetResourceVersion() || len(now.OwnerReferences()) > 0 {
			t.Errorf("%v: it was changed, %v", kind, err)
		}

		if err := w.writer.Delete(w.ctx, step.Kind, now.Key(), now.UID()); err != nil {
			t.Fatal(err)
		}
		written, err := w.writer.Apply(w.ctx, step.Kind, step.Object)
		if err != nil {
			t.Fatal(err)
		}
		if written.Applied() == "" {
			t.Errorf("%v: nothing is owned", kind)
		}
		content := step.Object.Content()
		metadata := content["metadata"].(map[string]any)
		metadata["uid"], metadata["resourceVersion"] = string(written.UID()), written.ResourceVersion()
		metadata["labels"] = map[string]any{"a": "b"}
		change, err := object.FromContent(content)
		if err != nil {
			t.Fatal(err)
		}
		again, err := w.writer.Apply(w.ctx, step.Kind, change)
		if err != nil {
			t.Fatal(err)
		}
		metadata["labels"] = map[string]any{"a": "c"}
		if change, err = object.FromContent(content); err != nil {
			t.Fatal(err)
		}
		if _, err := w.writer.Apply(w.ctx, step.Kind, change); !apierrors.IsConflict(err) {
			t.Errorf("%v: apply over a newer version: %v", kind, err)
		}
		if err := w.writer.Delete(w.ctx, step.Kind, again.Key(), again.UID()); err != nil {
			t.Fatal(err)
		}
		if _, err := w.writer.Apply(w.ctx, step.Kind, change); !apierrors.IsConflict(err) {
			t.Errorf("%v: apply to one that is gone: %v", kind, err)
		}
		if left, err := w.writer.Get(w.ctx, step.Kind, w.parent.Namespace(), child.Object.Name()); !apierrors.IsNotFound(err) {
			t.Errorf("%v: it is there again: %v, %v", kind, left, err)
		}
	}
}
