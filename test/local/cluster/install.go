package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/metacontroller-solo/solo/test/kit"
)

const (
	guardNamespace = "metacontroller-guard"
	guardService   = "metacontroller-guard"
	// guardSecret holds the guard's serving certificate; the Deployment mounts it.
	guardSecret = "metacontroller-guard-tls"
)

// Install applies the product as an administrator would: definitions first,
// then the guard, then the admission objects once the guard answers, then the
// controller, whose StatefulSet the guard admits as the holder. At last the fence,
// which looks on until then, refuses what it does not accept.
func (c *Cluster) Install(ctx context.Context) error {
	for _, stage := range []struct {
		what  string
		apply func(context.Context) error
	}{
		{"the CRDs", c.installDefinitions},
		{"the guard, with its certificate", c.installGuard},
		{"the admission objects", c.installAdmission},
		{"the controller", c.installController},
		{"the fence", c.installFence},
	} {
		c.say("installing %s", stage.what)
		if err := stage.apply(ctx); err != nil {
			return fmt.Errorf("cannot install %s: %w", stage.what, err)
		}
	}
	return nil
}

func (c *Cluster) installDefinitions(ctx context.Context) error {
	return c.ApplyFolder(ctx, "config/crd")
}

// ApplyFolder builds a folder below the repository's root with kustomize and
// applies it.
func (c *Cluster) ApplyFolder(ctx context.Context, folder string) error {
	manifests, err := c.Kustomize(ctx, folder)
	if err != nil {
		return err
	}
	return c.Apply(ctx, manifests)
}

// Kustomize builds a folder below the repository's root.
func (c *Cluster) Kustomize(ctx context.Context, folder string) ([]byte, error) {
	output, err := c.Kubectl.Run(ctx, "kustomize", folder)
	return []byte(output), err
}

// Apply applies manifests until the API server takes them: admission objects
// and the guard need a moment after their own creation.
func (c *Cluster) Apply(ctx context.Context, manifests []byte) error {
	return Eventually(ctx, "the API server to take the manifests", func(ctx context.Context) error {
		_, err := kit.ApplyYAML(ctx, c.Config(), manifests)
		return err
	})
}

func (c *Cluster) installGuard(ctx context.Context) error {
	manifests, err := c.guardManifests(ctx)
	if err != nil {
		return err
	}
	if err := c.Apply(ctx, manifests); err != nil {
		return err
	}
	return c.Available(ctx, guardNamespace, "deployment/metacontroller-guard")
}

// installAdmission applies the policies and the webhook configuration, and waits
// until the API server asks the guard.
func (c *Cluster) installAdmission(ctx context.Context) error {
	manifests, err := c.admissionManifests(ctx)
	if err != nil {
		return err
	}
	if err := c.Apply(ctx, manifests); err != nil {
		return err
	}
	return Eventually(ctx, "the admission objects to be in force", c.enforced)
}

// injectCABundle sets the caBundle of every webhook in the manifests.
func injectCABundle(manifests, bundle []byte) ([]byte, error) {
	var documents [][]byte
	found := false
	for document := range strings.SplitSeq(string(manifests), "\n---\n") {
		var meta metav1.TypeMeta
		if err := yaml.Unmarshal([]byte(document), &meta); err != nil {
			return nil, fmt.Errorf("cannot read the manifests: %w", err)
		}
		if meta.Kind != "ValidatingWebhookConfiguration" {
			documents = append(documents, []byte(document))
			continue
		}
		var configuration admissionregistrationv1.ValidatingWebhookConfiguration
		if err := yaml.UnmarshalStrict([]byte(document), &configuration); err != nil {
			return nil, fmt.Errorf("cannot read the webhook configuration: %w", err)
		}
		for i := range configuration.Webhooks {
			configuration.Webhooks[i].ClientConfig.CABundle = bundle
			found = true
		}
		rendered, err := yaml.Marshal(configuration)
		if err != nil {
			return nil, fmt.Errorf("cannot render the webhook configuration: %w", err)
		}
		documents = append(documents, rendered)
	}
	if !found {
		return nil, errors.New("there is no webhook configuration among the manifests")
	}
	return bytes.Join(documents, []byte("\n---\n")), nil
}

// enforced checks, with a dry run that changes nothing, that an instance is
// refused as soon as it is not the holder's.
func (c *Cluster) enforced(ctx context.Context) error {
	clients, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return fmt.Errorf("cannot create client: %w", err)
	}
	for _, probe := range []struct {
		what   string
		create func() error
	}{
		{"a Pod", func() error {
			_, err := clients.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, probePod(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}},
		{"a Deployment", func() error {
			_, err := clients.AppsV1().Deployments(metav1.NamespaceDefault).Create(ctx, probeDeployment(), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		}},
	} {
		switch err := probe.create(); {
		case err == nil:
			return fmt.Errorf("%s that runs Metacontroller would still be admitted", probe.what)
		case !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err):
			return err
		}
	}
	return nil
}

func (c *Cluster) installController(ctx context.Context) error {
	if err := c.ApplyFolder(ctx, "test/local/manifests/controller"); err != nil {
		return err
	}
	return c.Available(ctx, "metacontroller", "statefulset/metacontroller")
}

// installFence makes the fence deny, as docs/fence.md has it: once the controller
// is there and the guard says that the fence is in force.
func (c *Cluster) installFence(ctx context.Context) error {
	if _, err := c.Kubectl.Run(ctx, "patch", "singletonpolicy", "metacontroller", "--type=merge", "-p", `{"spec":{"fence":{"action":"Deny"}}}`); err != nil {
		return err
	}
	return Eventually(ctx, "the fence to be in force for the controller's Pod", func(ctx context.Context) error {
		got, err := c.Kubectl.Run(ctx, "get", "singletonpolicy", "metacontroller", "-o", `jsonpath={.status.writer.name} {.status.conditions[?(@.type=="FenceReady")].status} {.status.conditions[?(@.type=="FenceReady")].message}`)
		if err != nil {
			return err
		}
		if !strings.HasPrefix(got, "metacontroller-0 True ") {
			return fmt.Errorf("writer and condition FenceReady are %q", got)
		}
		return nil
	})
}

// Available waits until a workload has all its replicas ready.
func (c *Cluster) Available(ctx context.Context, namespace, workload string) error {
	_, err := c.Kubectl.Run(ctx, "rollout", "status", "--namespace", namespace, workload, "--timeout", StepLimit.String())
	if err != nil {
		pods, _ := c.Kubectl.Run(ctx, "get", "pods,events", "--namespace", namespace)
		return fmt.Errorf("%w\n%s", err, pods)
	}
	return nil
}
