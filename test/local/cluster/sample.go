package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
)

// bufferSize is how much of a manifest is read to tell YAML from JSON, in bytes.
const bufferSize = 4096

// SampleFolder is where a sample is, below the repository's root.
func SampleFolder(name string) string { return path.Join("config/samples", name) }

// InstallSample installs a sample as kubectl apply -k does, and returns when its
// hook server is ready. One thing differs: there is no cluster DNS here, so the
// hooks' URLs have the Service's address in the place of its name.
func (c *Cluster) InstallSample(ctx context.Context, name string) error {
	if _, err := os.Stat(filepath.Join(c.Root, SampleFolder(name), "kustomization.yaml")); err != nil || name != path.Base(name) {
		return errors.New("config/samples has no sample of that name; docs/samples.md lists them")
	}
	manifests, err := c.Kustomize(ctx, SampleFolder(name))
	if err != nil {
		return err
	}
	objects, err := decode(manifests)
	if err != nil {
		return err
	}
	controllers, others := split(objects)
	if err := c.applyObjects(ctx, others); err != nil {
		return err
	}
	for _, o := range others {
		if o.GetKind() == "Deployment" {
			if err := c.Available(ctx, o.GetNamespace(), "deployment/"+o.GetName()); err != nil {
				return err
			}
		}
	}
	clients, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return fmt.Errorf("cannot create client: %w", err)
	}
	for _, o := range controllers {
		if err := localize(o, func(namespace, name string) (string, error) {
			service, err := clients.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return "", fmt.Errorf("cannot get the Service of a hook: %w", err)
			}
			return service.Spec.ClusterIP, nil
		}); err != nil {
			return err
		}
	}
	return c.applyObjects(ctx, controllers)
}

func (c *Cluster) applyObjects(ctx context.Context, objects []*unstructured.Unstructured) error {
	var manifests [][]byte
	for _, o := range objects {
		manifest, err := yaml.Marshal(o.Object)
		if err != nil {
			return fmt.Errorf("cannot render %s %q: %w", o.GetKind(), o.GetName(), err)
		}
		manifests = append(manifests, manifest)
	}
	return c.Apply(ctx, bytes.Join(manifests, []byte("\n---\n")))
}

func decode(manifests []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(manifests), bufferSize)
	for {
		o := &unstructured.Unstructured{}
		err := decoder.Decode(&o.Object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("cannot decode the manifests: %w", err)
		}
		objects = append(objects, o)
	}
}

// split tells the controller objects from the others.
func split(objects []*unstructured.Unstructured) (controllers, others []*unstructured.Unstructured) {
	for _, o := range objects {
		if o.GroupVersionKind().Group == v1alpha1.GroupVersion.Group {
			controllers = append(controllers, o)
		} else {
			others = append(others, o)
		}
	}
	return controllers, others
}

// localize gives each hook of a controller object a URL in the place of the
// Service and path. The scheme is HTTP and the port 80, as they are where the
// manifest says nothing.
func localize(o *unstructured.Unstructured, addressOf func(namespace, name string) (string, error)) error {
	hooks, _, err := unstructured.NestedMap(o.Object, "spec", "hooks")
	if err != nil {
		return fmt.Errorf("cannot read the hooks of %s %q: %w", o.GetKind(), o.GetName(), err)
	}
	for name := range hooks {
		webhook, found, err := unstructured.NestedMap(hooks, name, "webhook")
		if err != nil {
			return fmt.Errorf("cannot read the hook %s of %s %q: %w", name, o.GetKind(), o.GetName(), err)
		}
		namespace, _, _ := unstructured.NestedString(webhook, "service", "namespace")
		service, _, _ := unstructured.NestedString(webhook, "service", "name")
		if !found || service == "" {
			continue
		}
		address, err := addressOf(namespace, service)
		if err != nil {
			return err
		}
		rest, _, _ := unstructured.NestedString(webhook, "path")
		delete(webhook, "service")
		delete(webhook, "path")
		webhook["url"] = "http://" + address + rest
		if err := unstructured.SetNestedMap(o.Object, webhook, "spec", "hooks", name, "webhook"); err != nil {
			return fmt.Errorf("cannot set the hook %s of %s %q: %w", name, o.GetKind(), o.GetName(), err)
		}
	}
	return nil
}
