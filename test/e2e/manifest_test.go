package e2e_test

import (
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/local/cluster"
)

// aggregateLabel adds a ClusterRole to the controller's rights.
const aggregateLabel = "rbac.metacontroller.io/aggregate-to-metacontroller"

// manifests are those of a sample, as kubectl apply -k would apply them, by kind.
func manifests(t *testing.T, sample string) map[string][]*unstructured.Unstructured {
	t.Helper()
	root, err := kit.Root()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	output, err := exec.CommandContext(ctx, "kubectl", "kustomize", filepath.Join(root, cluster.SampleFolder(sample))).CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl kustomize: %v\n%s", err, output)
	}
	return byKind(t, string(output))
}

func byKind(t *testing.T, text string) map[string][]*unstructured.Unstructured {
	t.Helper()
	kinds := map[string][]*unstructured.Unstructured{}
	for document := range strings.SplitSeq(text, "\n---\n") {
		o := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(document), &o.Object); err != nil {
			t.Fatal(err)
		}
		kinds[o.GetKind()] = append(kinds[o.GetKind()], o)
	}
	return kinds
}

func convert[T any](t *testing.T, o map[string]any) T {
	t.Helper()
	var typed T
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(o, &typed, true); err != nil {
		t.Fatal(err)
	}
	return typed
}

// What a real cluster may ask of a workload, and an administrator of its rights.
func TestManifests(t *testing.T) {
	for _, sample := range sampleNames(t) {
		t.Run(sample, func(t *testing.T) {
			t.Parallel()
			all := manifests(t, sample)
			for kind, want := range map[string]int{"Namespace": 1, "ClusterRole": 1, "Deployment": 1, "Service": 1, "ConfigMap": 1} {
				if got := len(all[kind]); got != want {
					t.Fatalf("there are %d of kind %s, not %d", got, kind, want)
				}
			}
			role := convert[rbacv1.ClusterRole](t, all["ClusterRole"][0].Object)
			if role.Labels[aggregateLabel] != "true" {
				t.Errorf("ClusterRole %q has no label %s", role.Name, aggregateLabel)
			}
			for _, rule := range role.Rules {
				if words := slices.Concat(rule.APIGroups, rule.Resources, rule.Verbs); slices.Contains(words, "*") {
					t.Errorf("ClusterRole %q asks for everything: %v", role.Name, rule)
				}
			}
			template, _, _ := unstructured.NestedMap(all["Deployment"][0].Object, "spec", "template", "spec")
			checkRestricted(t, convert[corev1.PodSpec](t, template))

			url := startHook(t, sample)
			for _, path := range hookPaths(t, sample, all) {
				if code, answer := ask(t, url+path, "{}"); code == http.StatusNotFound {
					t.Errorf("hook.js does not serve %s: %v", path, answer)
				}
			}
		})
	}
}

// checkRestricted wants of a Pod what the Pod Security Standard "restricted" wants,
// and probes.
func checkRestricted(t *testing.T, spec corev1.PodSpec) {
	t.Helper()
	pod := spec.SecurityContext
	if pod == nil || pod.RunAsNonRoot == nil || !*pod.RunAsNonRoot || pod.SeccompProfile == nil {
		t.Errorf("the Pod's security context is %v", pod)
	}
	for _, container := range spec.Containers {
		own := container.SecurityContext
		if own == nil || own.AllowPrivilegeEscalation == nil || *own.AllowPrivilegeEscalation || own.Capabilities == nil || !slices.Contains(own.Capabilities.Drop, "ALL") {
			t.Errorf("the security context of container %q is %v", container.Name, own)
		}
		if container.ReadinessProbe == nil && len(container.Ports) > 0 {
			t.Errorf("container %q serves and has no readiness probe", container.Name)
		}
	}
}

// hookPaths are the paths of a sample's hooks. They lead to its own Service.
func hookPaths(t *testing.T, sample string, all map[string][]*unstructured.Unstructured) []string {
	t.Helper()
	var hooks []*v1alpha1.Hook
	for _, o := range all[v1alpha1.CompositeControllerKind] {
		spec := convert[v1alpha1.CompositeController](t, o.Object).Spec
		hooks = append(hooks, spec.Hooks.Sync, spec.Hooks.Finalize, spec.Hooks.Customize)
	}
	for _, o := range all[v1alpha1.DecoratorControllerKind] {
		spec := convert[v1alpha1.DecoratorController](t, o.Object).Spec
		hooks = append(hooks, spec.Hooks.Sync, spec.Hooks.Finalize, spec.Hooks.Customize)
	}
	var paths []string
	for _, hook := range hooks {
		if hook == nil {
			continue
		}
		service := hook.Webhook.Service
		if service == nil || service.Namespace != all["Service"][0].GetNamespace() || service.Name != all["Service"][0].GetName() || hook.Webhook.Path == nil {
			t.Errorf("a hook of %s is at %+v", sample, hook.Webhook)
			continue
		}
		paths = append(paths, *hook.Webhook.Path)
	}
	if len(paths) == 0 {
		t.Errorf("%s has no hooks", sample)
	}
	return paths
}

// Pods of the examples are such as a restricted namespace admits.
func TestExamples(t *testing.T) {
	root, err := kit.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, sample := range sampleNames(t) {
		content, err := os.ReadFile(filepath.Join(root, cluster.SampleFolder(sample), "example.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		for _, objects := range byKind(t, string(content)) {
			for _, o := range objects {
				if template, found, _ := unstructured.NestedMap(o.Object, "spec", "template", "spec"); found {
					checkRestricted(t, convert[corev1.PodSpec](t, template))
				}
			}
		}
	}
}
