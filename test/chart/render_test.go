package chart

import (
	"bytes"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// valuesFiles are the sets of values that the chart is tested with, by name.
func valuesFiles(t testing.TB) map[string][]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root(t), "test/chart/testdata/values/*.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]string{"default": nil}
	for _, path := range paths {
		files[strings.TrimSuffix(filepath.Base(path), ".yaml")] = []string{"--values", path}
	}
	if len(files) < 5 {
		t.Fatalf("only %d sets of values", len(files))
	}
	return files
}

func TestLint(t *testing.T) {
	needHelm(t)
	for name, args := range valuesFiles(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			output, _, err := helm(t, slices.Concat([]string{"lint", chartFolder, "--strict", "--namespace", namespace}, args)...)
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(output, "0 chart(s) failed") {
				t.Error(output)
			}
		})
	}
}

// TestGolden holds what the chart renders to files that a reviewer reads. Of CRDs
// and admission objects, whose content is compared by other tests, only the head is
// in them.
func TestGolden(t *testing.T) {
	needHelm(t)
	for name, args := range valuesFiles(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var golden bytes.Buffer
			for _, object := range parse(t, template(t, args...)) {
				if slices.Contains(append(admissionKinds, "CustomResourceDefinition"), object.GetKind()) {
					object.Object = map[string]any{"apiVersion": object.GetAPIVersion(), "kind": object.GetKind(), "metadata": object.Object["metadata"]}
				}
				data, err := yaml.Marshal(object.Object)
				if err != nil {
					t.Fatal(err)
				}
				golden.WriteString("---\n")
				golden.Write(data)
			}
			generated(t, filepath.Join(goldenFolder, name+".yaml"), golden.String())
		})
	}
}

// TestAdmissionObjectsAreTheSame compares what the chart and "guard render" make: for
// a first install, for one where the CRDs are there already, with the guard alone, and
// with a certificate of its own.
func TestAdmissionObjectsAreTheSame(t *testing.T) {
	needHelm(t)
	want := rendered(t, "--namespace", namespace)
	for name, args := range map[string][]string{
		"first install": nil,
		"CRDs there":    {"--api-versions", "guard.metacontroller.io/v1alpha1/SingletonPolicy"},
		"guard alone":   {"--set", "controller.enabled=false"},
		"self-managed":  {"--set", "tls.source=self-managed"},
	} {
		t.Run(name, func(t *testing.T) {
			objects := withoutHook(of(parse(t, template(t, args...)), admissionKinds...), "pre-delete")
			if diff := cmp.Diff(want, byID(t, objects)); diff != "" {
				t.Errorf("-rendered +chart\n%s", diff)
			}
		})
	}
}

// TestWorkloadsAreTheSame compares the Pods of the chart with those of kustomize,
// for each source of the certificate.
func TestWorkloadsAreTheSame(t *testing.T) {
	needHelm(t)
	podSpec := func(t *testing.T, objects []*unstructured.Unstructured, kind string) map[string]any {
		t.Helper()
		found := of(objects, kind)
		if len(found) != 1 {
			t.Fatalf("%d objects of kind %s", len(found), kind)
		}
		spec, _, err := unstructured.NestedMap(found[0].Object, "spec", "template", "spec")
		if err != nil {
			t.Fatal(err)
		}
		containers := spec["containers"].([]any)
		container := containers[0].(map[string]any)
		delete(container, "image")
		delete(container, "imagePullPolicy")
		// Kustomize leaves empty lists of what a patch removes.
		for _, in := range []map[string]any{spec, container} {
			for _, key := range []string{"volumes", "volumeMounts"} {
				if list, ok := in[key].([]any); ok && len(list) == 0 {
					delete(in, key)
				}
			}
		}
		// The names of a self-managed certificate have the namespace in them.
		if args, ok := container["args"].([]any); ok {
			container["args"] = slices.DeleteFunc(args, func(arg any) bool { return strings.HasPrefix(arg.(string), "--tls-names=") })
		}
		return spec
	}
	for source, folder := range map[string]string{"cert-manager": "config/cert-manager", "self-managed": "config/self-managed"} {
		for _, kind := range []string{"Deployment", "StatefulSet"} {
			t.Run(source+", "+kind, func(t *testing.T) {
				want := podSpec(t, parse(t, kustomize(t, folder)), kind)
				got := podSpec(t, parse(t, template(t, "--set", "tls.source="+source)), kind)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("-kustomize +chart\n%s", diff)
				}
			})
		}
	}
}

// TestRolesAreTheSame compares every rule of every role.
func TestRolesAreTheSame(t *testing.T) {
	needHelm(t)
	kinds := []string{"ClusterRole", "Role"}
	rules := func(objects []*unstructured.Unstructured) map[string]any {
		all := map[string]any{}
		for _, o := range objects {
			if o.GetName() != "metacontroller-guard-check" {
				all[o.GetKind()+" "+o.GetName()] = []any{o.Object["rules"], o.Object["aggregationRule"]}
			}
		}
		return all
	}
	for source, folder := range map[string]string{"cert-manager": "config/cert-manager", "self-managed": "config/self-managed"} {
		want := rules(of(parse(t, kustomize(t, folder)), kinds...))
		got := rules(of(parse(t, template(t, "--set", "tls.source="+source)), kinds...))
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: -kustomize +chart\n%s", source, diff)
		}
	}
}

// TestUnfitValuesAreRefused says what is said of values that cannot be meant.
func TestUnfitValuesAreRefused(t *testing.T) {
	needHelm(t)
	for name, test := range map[string]struct {
		set  string
		says string
	}{
		"unknown key":              {"replicaCount=3", "additional properties 'replicaCount' not allowed"},
		"unknown key further down": {"guard.replicas=3", "additional properties 'replicas' not allowed"},
		"unknown source":           {"tls.source=vault", "value must be one of 'cert-manager', 'self-managed', 'files'"},
		"wrong type":               {"guard.replicaCount=many", "got string, want integer"},
		"timeout":                  {"webhook.timeoutSeconds=31", "maximum: got 31, want 30"},
		"no grace":                 {"terminationGracePeriodSeconds=0", "minimum: got 0, want 1"},
		"digest":                   {"image.digest=latest", "does not match pattern"},
		"nothing":                  {"controller.enabled=false,guard.enabled=false,crds.enabled=false", "there is nothing to install"},
		"match":                    {"policy.spec.match.commands[0]=mc", "webhook.create: false"},
		"no caBundle (E12)":        {"tls.source=files", "tls.source: files needs tls.caBundle"},
		"two controllers":          {"replicas=2", "needs policy.spec.mode: LeaderElected"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := helm(t, "template", release, chartFolder, "--namespace", namespace, "--set", test.set)
			if err == nil || !strings.Contains(err.Error(), test.says) {
				t.Errorf("with %s: %v, want %q", test.set, err, test.says)
			}
		})
	}
}

// TestPodDisruptionBudget (E25): two guards have a budget, and one has none, for it
// would block every drain of its node.
func TestPodDisruptionBudget(t *testing.T) {
	needHelm(t)
	for replicas, want := range map[string]int{"1": 0, "2": 1, "3": 1} {
		found := of(parse(t, template(t, "--set", "guard.replicaCount="+replicas)), "PodDisruptionBudget")
		if len(found) != want {
			t.Errorf("%s guards: %d budgets, want %d", replicas, len(found), want)
		}
	}
}

// TestGuardOutranksOthers (E26): what the kubelet and the scheduler go by under
// pressure.
func TestGuardOutranksOthers(t *testing.T) {
	needHelm(t)
	deployment := of(parse(t, template(t)), "Deployment")[0]
	class, _, _ := unstructured.NestedString(deployment.Object, "spec", "template", "spec", "priorityClassName")
	if class != "system-cluster-critical" {
		t.Errorf("priority class is %q", class)
	}
	containers, _, _ := unstructured.NestedSlice(deployment.Object, "spec", "template", "spec", "containers")
	for _, resource := range []string{"cpu", "memory"} {
		if request, _, _ := unstructured.NestedString(containers[0].(map[string]any), "resources", "requests", resource); request == "" {
			t.Errorf("no request of %s", resource)
		}
	}
}

// TestNamesOfTheWebhook: the certificate has the name that the API server calls.
func TestNamesOfTheWebhook(t *testing.T) {
	needHelm(t)
	for _, place := range []string{"metacontroller", "metacontroller-guard", "other"} {
		objects := parse(t, template(t, "--namespace", place))
		text, err := json.Marshal(of(objects, "Certificate"))
		if err != nil {
			t.Fatal(err)
		}
		configuration := of(objects, "ValidatingWebhookConfiguration")[0]
		webhooks, _, _ := unstructured.NestedSlice(configuration.Object, "webhooks")
		for _, webhook := range webhooks {
			if called, _, _ := unstructured.NestedString(webhook.(map[string]any), "clientConfig", "service", "namespace"); called != place {
				t.Errorf("in %s: the webhook is called in %q", place, called)
			}
		}
		if name := "metacontroller-guard." + place + ".svc"; !bytes.Contains(text, []byte(`"`+name+`"`)) {
			t.Errorf("no certificate is for %s", name)
		}
		if want := place + "/metacontroller-guard-ca"; configuration.GetAnnotations()["cert-manager.io/inject-ca-from"] != want {
			t.Errorf("annotations %v, want the authority %s", configuration.GetAnnotations(), want)
		}
	}
}
