package kit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// FieldManager owns what the kit applies.
	FieldManager = "kit"

	// servedLimit bounds the wait for a custom resource to be served.
	servedLimit    = 30 * time.Second
	servedInterval = 50 * time.Millisecond

	yamlBufferSize    = 4 << 10
	namespaceNameSize = 40
	cleanupLimit      = 10 * time.Second
)

var definitionKind = schema.GroupKind{Group: "apiextensions.k8s.io", Kind: "CustomResourceDefinition"}

// ApplyFile applies a file of manifests, or all .yaml files of a folder in the
// order of their names. See ApplyYAML.
func ApplyFile(ctx context.Context, config *rest.Config, path string) ([]*unstructured.Unstructured, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("cannot apply manifests: %w", err)
	}
	files := []string{path}
	if info.IsDir() {
		if files, err = filepath.Glob(filepath.Join(path, "*.yaml")); err != nil {
			return nil, fmt.Errorf("cannot apply manifests: %w", err)
		}
		slices.Sort(files)
	}
	var applied []*unstructured.Unstructured
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return applied, fmt.Errorf("cannot apply manifests: %w", err)
		}
		objects, err := ApplyYAML(ctx, config, content)
		applied = append(applied, objects...)
		if err != nil {
			return applied, fmt.Errorf("%s: %w", file, err)
		}
	}
	return applied, nil
}

// ApplyYAML applies the documents of a YAML or JSON stream in their order, server
// side and by force, and returns what the server made of them. An object without
// a namespace goes to "default" if its kind needs one. After a
// CustomResourceDefinition it waits until the resource is served.
func ApplyYAML(ctx context.Context, config *rest.Config, content []byte) ([]*unstructured.Unstructured, error) {
	objects, err := decode(content)
	if err != nil {
		return nil, err
	}
	c, err := client.New(config, client.Options{})
	if err != nil {
		return nil, fmt.Errorf("cannot create client: %w", err)
	}
	for i, object := range objects {
		if err := applyObject(ctx, c, object); err != nil {
			return objects[:i], err
		}
	}
	return objects, nil
}

func decode(content []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), yamlBufferSize)
	for document := 1; ; document++ {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cannot decode document %d: %w", document, err)
		}
		switch {
		case len(object.Object) == 0: // only comments
		case object.IsList():
			err := object.EachListItem(func(item runtime.Object) error {
				objects = append(objects, item.(*unstructured.Unstructured))
				return nil
			})
			if err != nil {
				return nil, fmt.Errorf("cannot decode document %d: %w", document, err)
			}
		default:
			objects = append(objects, object)
		}
	}
}

func applyObject(ctx context.Context, c client.Client, object *unstructured.Unstructured) error {
	name := object.GetName()
	kind := object.GroupVersionKind().GroupKind()
	fail := func(err error) error { return fmt.Errorf("cannot apply %s %q: %w", kind.Kind, name, err) }

	// The kind may be that of a definition which was applied a moment ago.
	err := untilServed(ctx, func() error {
		namespaced, err := c.IsObjectNamespaced(object)
		if err != nil {
			return err
		}
		if namespaced && object.GetNamespace() == "" {
			object.SetNamespace(metav1.NamespaceDefault)
		}
		return c.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner(FieldManager), client.ForceOwnership)
	})
	if err != nil {
		return fail(err)
	}
	if kind != definitionKind {
		return nil
	}
	if err := untilEstablished(ctx, c, name); err != nil {
		return fail(err)
	}
	return nil
}

// untilServed calls do until it no longer fails for want of a resource.
func untilServed(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, servedLimit)
	defer cancel()
	for {
		err := do()
		if err == nil || !meta.IsNoMatchError(err) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(servedInterval):
		}
	}
}

func untilEstablished(ctx context.Context, c client.Client, name string) error {
	ctx, cancel := context.WithTimeout(ctx, servedLimit)
	defer cancel()
	for {
		crd := &unstructured.Unstructured{}
		crd.SetGroupVersionKind(definitionKind.WithVersion("v1"))
		if err := c.Get(ctx, client.ObjectKey{Name: name}, crd); err != nil {
			return err
		}
		conditions := conditionsOf(crd)
		if slices.ContainsFunc(conditions, established) {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it is not established; its conditions: %v", conditions)
		case <-time.After(servedInterval):
		}
	}
}

// conditionsOf returns an object's conditions. A definition that no controller has
// seen yet has null there, which is no error.
func conditionsOf(object *unstructured.Unstructured) []any {
	status, _ := object.Object["status"].(map[string]any)
	conditions, _ := status["conditions"].([]any)
	return conditions
}

func established(condition any) bool {
	c, ok := condition.(map[string]any)
	return ok && c["type"] == "Established" && c["status"] == "True"
}

// Namespace creates a namespace named after the test and removes it when the test
// ends; what is in it goes with it, some time later.
func Namespace(t testing.TB, config *rest.Config) string {
	t.Helper()
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	namespaces := clients.CoreV1().Namespaces()
	created, err := namespaces.Create(t.Context(), &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{GenerateName: namespacePrefix(t.Name())},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("cannot create a namespace: %v", err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupLimit)
		defer cancel()
		err := namespaces.Delete(ctx, created.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Errorf("cannot delete namespace %q: %v", created.Name, err)
		}
	})
	return created.Name
}

func namespacePrefix(test string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r - 'A' + 'a'
		default:
			return '-'
		}
	}, test)
	return strings.TrimLeft(name[:min(len(name), namespaceNameSize)], "-") + "-"
}
