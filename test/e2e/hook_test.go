package e2e_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/metacontroller-solo/solo/test/javascript"
	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/local/cluster"
)

// nodeVariable is the path of a Node.js to run the samples with, in the place of
// goja: the same tests then show that they run under both.
const nodeVariable = "NODE"

// startHook runs the hook server of a sample and returns its URL.
func startHook(t *testing.T, sample string) string {
	t.Helper()
	root, err := kit.Root()
	if err != nil {
		t.Fatal(err)
	}
	// The two files lie side by side, as they do in the ConfigMap.
	dir := t.TempDir()
	samples := filepath.Join(root, "config", "samples")
	for name, path := range map[string]string{
		"server.js": filepath.Join(samples, "hook", "server.js"),
		"hook.js":   filepath.Join(root, cluster.SampleFolder(sample), "hook", "hook.js"),
	} {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	port, err := kit.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "hook.js")
	environ := map[string]string{"HOST": "127.0.0.1", "PORT": strconv.Itoa(port)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		if node := os.Getenv(nodeVariable); node != "" {
			command := exec.CommandContext(ctx, node, file)
			for name, value := range environ {
				command.Env = append(command.Env, name+"="+value)
			}
			_ = command.Run() // ended by ctx
			return
		}
		_, _ = javascript.Run(ctx, javascript.Options{File: file, Env: environ})
	}()
	t.Cleanup(func() { cancel(); <-ended })

	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	kit.Eventually(t, 30*time.Second, func() error {
		response, err := http.Get("http://" + address + "/healthz")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("the hook server answers %s", response.Status)
		}
		return nil
	})
	return "http://" + address
}

// ask sends a request, written in YAML, to a hook.
func ask(t *testing.T, url, request string) (int, map[string]any) {
	t.Helper()
	body, err := yaml.YAMLToJSON([]byte(request))
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.Post(url, "application/json", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	var answer map[string]any
	if err := json.Unmarshal(content, &answer); err != nil {
		t.Fatalf("%s answers %q: %v", url, content, err)
	}
	return response.StatusCode, answer
}

// decoded is YAML as JSON decodes it.
func decoded(t *testing.T, text string) map[string]any {
	t.Helper()
	var value map[string]any
	if err := yaml.Unmarshal([]byte(text), &value); err != nil {
		t.Fatal(err)
	}
	return value
}

func encoded(t *testing.T, value any) []byte {
	t.Helper()
	text, err := yaml.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// names are "kind/name" or "kind/namespace/name" of the objects of an answer, in
// its order.
func names(answer map[string]any, list string) []string {
	found := []string{}
	objects, _ := answer[list].([]any)
	for _, o := range objects {
		object := o.(map[string]any)
		metadata := object["metadata"].(map[string]any)
		name := fmt.Sprint(object["kind"], "/", metadata["name"])
		if namespace, ok := metadata["namespace"]; ok {
			name = fmt.Sprint(object["kind"], "/", namespace, "/", metadata["name"])
		}
		found = append(found, name)
	}
	return found
}

// step is one request to a hook and what is wanted of the answer.
type step struct {
	reason, path, request string
	// children are the names of the children, or attachments.
	children []string
	// rest is the answer without them, in YAML.
	rest string
}

func runSteps(t *testing.T, sample, list string, steps []step) {
	url := startHook(t, sample)
	for _, s := range steps {
		code, answer := ask(t, url+s.path, s.request)
		if code != http.StatusOK {
			t.Errorf("%s: status %d, %v", s.reason, code, answer)
			continue
		}
		if _, ok := answer[list]; !ok && s.path != "/customize" {
			t.Errorf("%s: the answer has no %s", s.reason, list)
		}
		if diff := cmp.Diff(append([]string{}, s.children...), names(answer, list)); diff != "" {
			t.Errorf("%s: %s\n%s", s.reason, list, diff)
		}
		delete(answer, list)
		if diff := cmp.Diff(decoded(t, s.rest), answer); diff != "" {
			t.Errorf("%s: the rest of the answer\n%s", s.reason, diff)
		}
	}
}

// A request that no hook can read is that request's problem alone.
func TestHooksAnswerNonsenseWithAnError(t *testing.T) {
	for _, sample := range sampleNames(t) {
		t.Run(sample, func(t *testing.T) {
			t.Parallel()
			url := startHook(t, sample)
			for range 2 {
				if code, answer := ask(t, url+"/sync", "{}"); code != http.StatusInternalServerError || answer["error"] == "" {
					t.Errorf("status %d, %v", code, answer)
				}
			}
			if code, _ := ask(t, url+"/nothing", "{}"); code != http.StatusNotFound {
				t.Errorf("an unknown path has status %d", code)
			}
		})
	}
}

const catParent = `
parent:
  metadata: {name: cat, namespace: home}
  spec:
    replicas: %d
    serviceName: cats
    selector: {matchLabels: {app: cats, tail: long}}
    template: {metadata: {labels: {app: cats, tail: long}}, spec: {containers: [{name: c, image: i}]}}
children: {Pod.v1: {%s}}
`

func cat(ordinal int, state string) string {
	status, deleted := "True", ""
	switch state {
	case "starts":
		status = "False"
	case "ends":
		deleted = `, deletionTimestamp: "2026-01-01T00:00:00Z"`
	}
	return fmt.Sprintf(`home/cat-%d: {metadata: {name: cat-%d%s}, status: {conditions: [{type: Ready, status: "%s"}]}},`, ordinal, ordinal, deleted, status)
}

func TestCatSetHook(t *testing.T) {
	status := func(replicas, ready int) string {
		return fmt.Sprintf("status: {replicas: %d, readyReplicas: %d, selector: 'app=cats,tail=long'}\n", replicas, ready)
	}
	request := func(replicas int, pods ...string) string {
		all := ""
		for _, pod := range pods {
			all += pod
		}
		return fmt.Sprintf(catParent, replicas, all)
	}
	runSteps(t, "catset", "children", []step{
		{"nothing yet", "/sync", request(3), []string{"Pod/cat-0"}, status(0, 0)},
		{"the first starts", "/sync", request(3, cat(0, "starts")), []string{"Pod/cat-0"}, status(1, 0)},
		{"the first is ready", "/sync", request(3, cat(0, "")), []string{"Pod/cat-1", "Pod/cat-0"}, status(1, 1)},
		{"complete", "/sync", request(2, cat(0, ""), cat(1, "")), []string{"Pod/cat-1", "Pod/cat-0"}, status(2, 2)},
		{"one in the middle is gone", "/sync", request(3, cat(0, ""), cat(2, "")), []string{"Pod/cat-2", "Pod/cat-1", "Pod/cat-0"}, status(2, 2)},
		{"a gap after one that starts", "/sync", request(4, cat(0, "starts"), cat(2, "")), []string{"Pod/cat-2", "Pod/cat-0"}, status(2, 1)},
		{"one ends", "/sync", request(3, cat(0, ""), cat(1, "ends")), []string{"Pod/cat-1", "Pod/cat-0"}, status(2, 1)},
		{"two too many", "/sync", request(1, cat(0, ""), cat(1, ""), cat(2, "")), []string{"Pod/cat-1", "Pod/cat-0"}, status(3, 3)},
		{"the highest ends", "/sync", request(1, cat(0, ""), cat(1, ""), cat(2, "ends")), []string{"Pod/cat-1", "Pod/cat-0"}, status(3, 2)},
		{"ten are in the order of numbers", "/sync", request(11, cat(0, ""), cat(10, ""), cat(2, "")), []string{"Pod/cat-10", "Pod/cat-2", "Pod/cat-1", "Pod/cat-0"}, status(3, 3)},
		{"none are wanted", "/sync", request(0, cat(0, "")), nil, status(1, 1)},
		{"an adopted Pod of another name", "/sync", request(1, cat(0, ""), "home/tiger: {metadata: {name: tiger}}"), []string{"Pod/cat-0"}, status(2, 1)},
		{"the set goes", "/finalize", request(3, cat(0, ""), cat(1, "")), []string{"Pod/cat-0"}, "finalized: false\n" + status(2, 2)},
		{"the last one ends", "/finalize", request(3, cat(0, "ends")), nil, "finalized: false\n" + status(1, 0)},
		{"the set is gone", "/finalize", request(3), nil, "finalized: true\n" + status(0, 0)},
	})
}

func TestServicePerPodHook(t *testing.T) {
	const object = `
object:
  metadata: {name: shard, namespace: home, annotations: {samples.metacontroller.io/service-per-pod: "%s"}}
  spec: %s
attachments: {Service.v1: {%s}}
`
	runSteps(t, "service-per-pod", "attachments", []step{
		{"one for each", "/sync", fmt.Sprintf(object, "80:8080", "{replicas: 2}", ""), []string{"Service/shard-0", "Service/shard-1"}, "{}"},
		{"other ordinals", "/sync", fmt.Sprintf(object, "80", "{replicas: 2, ordinals: {start: 5}}", ""), []string{"Service/shard-5", "Service/shard-6"}, "{}"},
		{"none", "/sync", fmt.Sprintf(object, "80", "{replicas: 0}", ""), nil, "{}"},
		{"goes", "/finalize", fmt.Sprintf(object, "80", "{replicas: 2}", "shard-0: {metadata: {name: shard-0}}"), nil, "finalized: false"},
		{"gone", "/finalize", fmt.Sprintf(object, "80", "{replicas: 2}", ""), nil, "finalized: true"},
	})
	url := startHook(t, "service-per-pod")
	_, answer := ask(t, url+"/sync", fmt.Sprintf(object, "80:8080, 9999", "{replicas: 1}", ""))
	spec := answer["attachments"].([]any)[0].(map[string]any)["spec"]
	if diff := cmp.Diff(any(decoded(t, `
selector: {statefulset.kubernetes.io/pod-name: shard-0}
ports: [{name: port-80, port: 80, targetPort: 8080}, {name: port-9999, port: 9999, targetPort: 9999}]
`)), spec); diff != "" {
		t.Errorf("the Service\n%s", diff)
	}
	for _, value := range []string{"", "http", "80:", "80,,81", "-1"} {
		if code, answer := ask(t, url+"/sync", fmt.Sprintf(object, value, "{replicas: 1}", "")); code != http.StatusInternalServerError {
			t.Errorf("the annotation %q gives %d, %v", value, code, answer)
		}
	}
}

func TestIndexedJobHook(t *testing.T) {
	request := func(completions, parallelism int, pods string) string {
		return fmt.Sprintf(`
parent:
  metadata: {name: job, namespace: home}
  spec: {completions: %d, parallelism: %d, template: {spec: {containers: [{name: c, image: i, env: [{name: A, value: b}]}]}}}
children: {Pod.v1: {%s}}
`, completions, parallelism, pods)
	}
	status := func(active, succeeded, failed int, complete string) string {
		return fmt.Sprintf("status: {active: %d, succeeded: %d, failed: %d, conditions: [{type: Complete, status: '%s'}]}", active, succeeded, failed, complete)
	}
	pod := func(index int, phase string) string {
		return fmt.Sprintf("job-%d: {metadata: {name: job-%d}, status: {phase: %s}},", index, index, phase)
	}
	runSteps(t, "indexed-job", "children", []step{
		{"the first two", "/sync", request(3, 2, ""), []string{"Pod/job-0", "Pod/job-1"}, status(0, 0, 0, "False")},
		{"they run", "/sync", request(3, 2, pod(0, "Running")+"job-1: {metadata: {name: job-1}},"), []string{"Pod/job-0", "Pod/job-1"}, status(2, 0, 0, "False")},
		{"one has ended", "/sync", request(3, 2, pod(0, "Running")+pod(1, "Succeeded")), []string{"Pod/job-0", "Pod/job-1", "Pod/job-2"}, status(1, 1, 0, "False")},
		{"one has failed", "/sync", request(2, 2, pod(0, "Failed")+pod(1, "Succeeded")), []string{"Pod/job-0", "Pod/job-1"}, status(0, 1, 1, "False")},
		{"complete", "/sync", request(2, 2, pod(0, "Succeeded")+pod(1, "Succeeded")), []string{"Pod/job-0", "Pod/job-1"}, status(0, 2, 0, "True")},
		{"fewer", "/sync", request(1, 1, pod(0, "Succeeded")+pod(1, "Succeeded")), []string{"Pod/job-0"}, status(0, 1, 0, "True")},
		{"paused", "/sync", request(2, 0, ""), nil, status(0, 0, 0, "False")},
	})
	_, answer := ask(t, startHook(t, "indexed-job")+"/sync", request(1, 1, ""))
	spec := answer["children"].([]any)[0].(map[string]any)["spec"]
	if diff := cmp.Diff(any(decoded(t, "{restartPolicy: OnFailure, containers: [{name: c, image: i, env: [{name: A, value: b}, {name: JOB_INDEX, value: '0'}]}]}")), spec); diff != "" {
		t.Errorf("the Pod\n%s", diff)
	}
}

func TestGlobalConfigMapHook(t *testing.T) {
	request := func(children, related string) string {
		return fmt.Sprintf(`
parent: {metadata: {name: g}, spec: {source: {namespace: a, name: settings}, namespaces: {matchLabels: {x: "y"}}}}
children: {ConfigMap.v1: {%s}}
related: {%s}
`, children, related)
	}
	const namespaces = `Namespace.v1: {a: {metadata: {name: a}}, b: {metadata: {name: b}}, c: {metadata: {name: c}}, d: {metadata: {name: d, deletionTimestamp: "2026-01-01T00:00:00Z"}}}`
	runSteps(t, "global-configmap", "children", []step{
		{"what to look at", "/customize", request("", ""), nil,
			`relatedResources: [{apiVersion: v1, resource: configmaps, namespace: a, names: [settings]}, {apiVersion: v1, resource: namespaces, labelSelector: {matchLabels: {x: "y"}}}]`},
		{"everywhere", "/customize", `{parent: {metadata: {name: g}, spec: {source: {namespace: a, name: settings}}}}`, nil,
			`relatedResources: [{apiVersion: v1, resource: configmaps, namespace: a, names: [settings]}, {apiVersion: v1, resource: namespaces}]`},
		{"copies", "/sync", request("", namespaces+", ConfigMap.v1: {a/settings: {metadata: {name: settings, namespace: a}, data: {k: v}}}"),
			[]string{"ConfigMap/b/settings", "ConfigMap/c/settings"}, "status: {source: Found, copies: 0}"},
		{"the original is gone", "/sync", request("b/settings: {metadata: {name: settings, namespace: b}}", namespaces+", ConfigMap.v1: {}"), nil, "status: {source: Missing, copies: 1}"},
	})
}

func TestSecretPropagationHook(t *testing.T) {
	request := func(related string) string {
		return fmt.Sprintf(`
parent: {metadata: {name: s}, spec: {secrets: {matchLabels: {p: "1"}}, from: {matchLabels: {f: "1"}}, to: {matchLabels: {t: "1"}}}}
children: {Secret.v1: {}}
related: {%s}
`, related)
	}
	secret := func(namespace, name, value string) string {
		return fmt.Sprintf("%s/%s: {metadata: {name: %s, namespace: %s, labels: {p: '1'}}, type: Opaque, data: {k: %s}},", namespace, name, name, namespace, value)
	}
	const namespaces = "Namespace.v1: {a: {metadata: {name: a}}, t: {metadata: {name: t}}}, "
	runSteps(t, "secret-propagation", "children", []step{
		{"what to look at", "/customize", request(""), nil,
			`relatedResources: [{apiVersion: v1, resource: secrets, labelSelector: {matchLabels: {p: "1"}}, namespaceSelector: {matchLabels: {f: "1"}}}, {apiVersion: v1, resource: namespaces, labelSelector: {matchLabels: {t: "1"}}}]`},
		{"copies, but not onto itself", "/sync", request(namespaces + "Secret.v1: {" + secret("a", "x", "MQ==") + secret("b", "z", "MQ==") + "}"),
			[]string{"Secret/a/z", "Secret/t/x", "Secret/t/z"}, "status: {sources: 2, namespaces: 2, copies: 0}"},
		{"nothing to copy", "/sync", request(namespaces + "Secret.v1: {}"), nil, "status: {sources: 0, namespaces: 2, copies: 0}"},
	})
	_, answer := ask(t, startHook(t, "secret-propagation")+"/sync", request("Namespace.v1: {t: {metadata: {name: t}}}, Secret.v1: {"+secret("b", "x", "Mg==")+secret("a", "x", "MQ==")+"}"))
	if diff := cmp.Diff(decoded(t, `
status: {sources: 1, namespaces: 1, copies: 0}
children: [{apiVersion: v1, kind: Secret, metadata: {name: x, namespace: t}, type: Opaque, data: {k: MQ==}}]
`), answer); diff != "" {
		t.Errorf("of two with the same name\n%s", diff)
	}
}

func TestTenantHook(t *testing.T) {
	request := func(children string) string {
		return "parent: {metadata: {name: acme}, spec: {environments: [dev, prod], pods: 3}}\nchildren: {" + children + "}"
	}
	runSteps(t, "tenant", "children", []step{
		{"namespaces first", "/sync", request("Namespace.v1: {}, ResourceQuota.v1: {}"), []string{"Namespace/acme-dev", "Namespace/acme-prod"}, "status: {namespaces: 0, quotas: 0}"},
		{"then what is in them", "/sync", request("Namespace.v1: {acme-dev: {metadata: {name: acme-dev}}}, ResourceQuota.v1: {}"),
			[]string{"Namespace/acme-dev", "ResourceQuota/acme-dev/tenant", "Namespace/acme-prod"}, "status: {namespaces: 1, quotas: 0}"},
		{"one goes away", "/sync", request(`Namespace.v1: {acme-dev: {metadata: {name: acme-dev, deletionTimestamp: "2026-01-01T00:00:00Z"}}, acme-prod: {metadata: {name: acme-prod}}}, ResourceQuota.v1: {acme-prod/tenant: {metadata: {name: tenant, namespace: acme-prod}}}`),
			[]string{"Namespace/acme-dev", "Namespace/acme-prod", "ResourceQuota/acme-prod/tenant"}, "status: {namespaces: 1, quotas: 1}"},
	})
}

func TestCRDRolesHook(t *testing.T) {
	object := func(subresources string) string {
		return `
object:
  metadata: {name: widgets.example.com}
  spec: {group: example.com, names: {plural: widgets}, versions: [{name: v1, served: true` + subresources + `}, {name: v0, served: false, subresources: {scale: {}, status: {}}}]}
attachments: {ClusterRole.rbac.authorization.k8s.io/v1: {}}
`
	}
	both := []string{"ClusterRole/widgets.example.com-view", "ClusterRole/widgets.example.com-edit"}
	runSteps(t, "crd-roles", "attachments", []step{
		{"two roles", "/sync", object(""), both, "{}"},
		{"goes", "/finalize", `{object: {}, attachments: {ClusterRole.rbac.authorization.k8s.io/v1: {a: {}}}}`, nil, "finalized: false"},
		{"gone", "/finalize", object(""), nil, "finalized: true"},
	})
	url := startHook(t, "crd-roles")
	for subresources, want := range map[string]string{
		"":                             "{view: [widgets], edit: [widgets]}",
		", subresources: {status: {}}": "{view: [widgets, widgets/status], edit: [widgets]}",
		", subresources: {status: {}, scale: {}}": "{view: [widgets, widgets/status, widgets/scale], edit: [widgets, widgets/scale]}",
	} {
		_, answer := ask(t, url+"/sync", object(subresources))
		resources := func(i int) any {
			role := answer["attachments"].([]any)[i].(map[string]any)
			return role["rules"].([]any)[0].(map[string]any)["resources"]
		}
		if diff := cmp.Diff(decoded(t, want), map[string]any{"view": resources(0), "edit": resources(1)}); diff != "" {
			t.Errorf("with %q\n%s", subresources, diff)
		}
	}
}
