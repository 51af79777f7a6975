// Package quiet checks against a real API server that a controller with nothing
// to do writes nothing: what the server makes of desired children, its defaults
// and its own way of writing values, is no difference to what is desired.
package quiet

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/apply"
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

// writer is an apply.Writer that counts.
type writer struct {
	client dynamic.Interface
	writes int
}

func (w *writer) resource(kind object.Kind, namespace string) dynamic.ResourceInterface {
	if kind.Namespaced {
		return w.client.Resource(kind.GroupVersionResource()).Namespace(namespace)
	}
	return w.client.Resource(kind.GroupVersionResource())
}

func (w *writer) Create(ctx context.Context, kind object.Kind, o *object.Object) (*object.Object, error) {
	w.writes++
	u, err := w.resource(kind, o.Namespace()).Create(ctx, o.Unstructured(), metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	return object.FromUnstructured(u)
}

func (w *writer) Update(ctx context.Context, kind object.Kind, o *object.Object) (*object.Object, error) {
	w.writes++
	u, err := w.resource(kind, o.Namespace()).Update(ctx, o.Unstructured(), metav1.UpdateOptions{})
	if err != nil {
		return nil, err
	}
	return object.FromUnstructured(u)
}

func (w *writer) Delete(ctx context.Context, kind object.Kind, key object.Key, uid types.UID) error {
	w.writes++
	background := metav1.DeletePropagationBackground
	return w.resource(kind, key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{
		PropagationPolicy: &background, Preconditions: &metav1.Preconditions{UID: &uid},
	})
}

// world is a namespace with a parent in it.
type world struct {
	*testing.T
	ctx    context.Context
	writer *writer
	parent *object.Object
	kinds  map[schema.GroupVersionKind]object.Kind
}

func newWorld(t *testing.T) *world {
	cp := kit.Shared(t)
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	config := cp.AdminConfig(0)
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, ctx: ctx, writer: &writer{client: client}, kinds: kinds(t, discovery.NewDiscoveryClientForConfigOrDie(config))}
	namespace := w.create("v1", "Namespace", map[string]any{"generateName": "quiet-"}).GetName()
	// Without controllers nobody makes the account that Pods run under.
	w.create("v1", "ServiceAccount", map[string]any{"name": "default", "namespace": namespace})
	parent := w.create("v1", "ConfigMap", map[string]any{"name": "parent", "namespace": namespace})
	if w.parent, err = object.FromUnstructured(parent); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *world) create(apiVersion, kind string, metadata map[string]any) *unstructured.Unstructured {
	w.Helper()
	namespace, _ := metadata["namespace"].(string)
	u, err := w.writer.resource(w.kinds[schema.FromAPIVersionAndKind(apiVersion, kind)], namespace).Create(w.ctx,
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
	in := plan.Input{Parent: w.parent, Desired: children, Labels: map[string]string{object.ControllerUIDLabel: string(w.parent.UID())}}
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
		u, err := w.writer.resource(kind, w.parent.Namespace()).Get(w.ctx, child.Object.Name(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			w.Fatal(err)
		}
		o, err := object.FromUnstructured(u)
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
		}
	}
}

func TestNothingToDoWritesNothing(t *testing.T) {
	w := newWorld(t)
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
