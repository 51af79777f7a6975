package chart

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

	"github.com/metacontroller-solo/solo/test/kit"
)

const goldenFolder = "test/chart/testdata/golden"

// golden are the objects that the chart renders, by the name of the set of values.
// They are read from the golden files, so no Helm is needed.
func golden(t testing.TB) map[string][]*unstructured.Unstructured {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root(t), goldenFolder, "*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]*unstructured.Unstructured{}
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimSuffix(filepath.Base(path), ".yaml")] = parse(t, string(data))
	}
	if want := valuesFiles(t); len(all) != len(want) {
		t.Fatalf("there are golden files of %v, and values of %v", slices.Sorted(maps.Keys(all)), slices.Sorted(maps.Keys(want)))
	}
	return all
}

// podTemplates are the templates of every Pod that people install, by where they are from
// and what has them.
func podTemplates(t testing.TB) map[string]corev1.PodTemplateSpec {
	t.Helper()
	sets := map[string][]*unstructured.Unstructured{}
	for folder := range folders {
		sets[folder] = parse(t, kustomize(t, folder))
	}
	for name, objects := range golden(t) {
		sets["chart, "+name] = objects
	}
	all := map[string]corev1.PodTemplateSpec{}
	for set, objects := range sets {
		for _, o := range objects {
			fields, found, err := unstructured.NestedMap(o.Object, "spec", "template")
			if err != nil || !found {
				continue
			}
			var template corev1.PodTemplateSpec
			if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(fields, &template, true); err != nil {
				t.Fatalf("%s, %s: %v", set, id(o), err)
			}
			all[set+", "+o.GetKind()+" "+o.GetName()] = template
		}
	}
	if len(all) < 2*len(sets)-4 {
		t.Fatalf("only %d Pods in %d sets of objects", len(all), len(sets))
	}
	return all
}

// TestPodsAreHardened: what restricted Pod Security does not ask for, and that a
// guard and a controller have for other reasons.
func TestPodsAreHardened(t *testing.T) {
	for name, template := range podTemplates(t) {
		t.Run(name, func(t *testing.T) {
			spec := template.Spec
			if spec.HostNetwork || spec.HostPID || spec.HostIPC {
				t.Error("it shares something of the host's")
			}
			if spec.TerminationGracePeriodSeconds == nil || *spec.TerminationGracePeriodSeconds < 30 {
				t.Error("it has too little time to end")
			}
			for _, container := range slices.Concat(spec.InitContainers, spec.Containers) {
				security := container.SecurityContext
				if security == nil || security.ReadOnlyRootFilesystem == nil || !*security.ReadOnlyRootFilesystem {
					t.Errorf("container %s may write to its root file system", container.Name)
				}
				for _, list := range []corev1.ResourceList{container.Resources.Requests, container.Resources.Limits} {
					if list.Memory().IsZero() {
						t.Errorf("container %s has no request or limit of memory: %v", container.Name, container.Resources)
					}
				}
				if container.Resources.Requests.Cpu().IsZero() {
					t.Errorf("container %s has no request of CPU", container.Name)
				}
			}
		})
	}
}

// TestPodsAreRestricted has the API server judge every Pod, in a namespace that
// enforces the restricted Pod Security Standard.
func TestPodsAreRestricted(t *testing.T) {
	config := kit.Shared(t).AdminConfig(0)
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	name := kit.Namespace(t, config)
	if _, err := clients.CoreV1().Namespaces().Patch(t.Context(), name, "application/merge-patch+json",
		[]byte(`{"metadata":{"labels":{"`+restricted+`":"restricted"}}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	create := func(template corev1.PodTemplateSpec) error {
		account := template.Spec.ServiceAccountName
		_, err := clients.CoreV1().ServiceAccounts(name).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: account}}, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			t.Fatal(err)
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-", Labels: template.Labels, Annotations: template.Annotations}, Spec: template.Spec}
		if pod.Spec.RestartPolicy == "" {
			pod.Spec.RestartPolicy = corev1.RestartPolicyAlways
		}
		_, err = clients.CoreV1().Pods(name).Create(t.Context(), pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	// The API server knows the label a moment after it is there.
	kit.Eventually(t, servedLimit, func() error {
		template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{ServiceAccountName: "loose", Containers: []corev1.Container{{Name: "nginx", Image: "docker.io/library/nginx"}}}}
		if err := create(template); err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
			return fmt.Errorf("a Pod without a securityContext: %v, want a refusal", err)
		}
		return nil
	})
	for from, template := range podTemplates(t) {
		if err := create(template); err != nil {
			t.Errorf("%s: %v", from, err)
		}
	}
}
