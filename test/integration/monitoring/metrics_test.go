package monitoring_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/kit/vitals"
	"github.com/metacontroller-solo/solo/test/local/cluster"
)

const (
	// waitLimit bounds the wait for one thing; a loaded machine needs its time.
	waitLimit = 3 * time.Minute
	lockWait  = 5 * time.Minute
)

// expression is what the program of the module says of one.
type expression struct {
	Where     string
	Shown     []string
	Selectors []selector
	Result    []string
}

type selector struct {
	Metric   string
	Matchers []struct{ Label, Type, Value string }
	By       []string
}

// ofPrometheus are labels that Prometheus adds to what it scrapes.
var ofPrometheus = []string{"job", "instance"}

// series are the label sets that were seen of each metric, under the name that
// PromQL has for it.
type series map[string][]map[string]string

func (s series) add(families map[string]*dto.MetricFamily) {
	for name, family := range families {
		for _, metric := range family.GetMetric() {
			labels := map[string]string{}
			for _, pair := range metric.GetLabel() {
				labels[pair.GetName()] = pair.GetValue()
			}
			if family.GetType() != dto.MetricType_HISTOGRAM {
				s[name] = append(s[name], labels)
				continue
			}
			s[name+"_sum"] = append(s[name+"_sum"], labels)
			s[name+"_count"] = append(s[name+"_count"], labels)
			for _, bucket := range metric.GetHistogram().GetBucket() {
				with := map[string]string{"le": fmt.Sprint(bucket.GetUpperBound())}
				for label, value := range labels {
					with[label] = value
				}
				s[name+"_bucket"] = append(s[name+"_bucket"], with)
			}
		}
	}
}

// values that a label of a metric had; there is no such label if there are none.
func (s series) values(metric, label string) []string {
	var values []string
	for _, labels := range s[metric] {
		if value, ok := labels[label]; ok {
			values = append(values, value)
		}
	}
	slices.Sort(values)
	return slices.Compact(values)
}

// check says what an expression reads that is not there.
func (s series) check(e expression) error {
	var errs []error
	for _, one := range e.Selectors {
		if len(s[one.Metric]) == 0 {
			errs = append(errs, fmt.Errorf("no program has the metric %s", one.Metric))
			continue
		}
		for _, label := range one.By {
			if len(s.values(one.Metric, label)) == 0 && !slices.Contains(ofPrometheus, label) {
				errs = append(errs, fmt.Errorf("%s has no label %s", one.Metric, label))
			}
		}
		for _, m := range one.Matchers {
			values := s.values(one.Metric, m.Label)
			if len(values) == 0 {
				errs = append(errs, fmt.Errorf("%s has no label %s", one.Metric, m.Label))
				continue
			}
			if strings.HasPrefix(m.Type, "!") {
				continue
			}
			// Each word of a list is a value, as far as values are a list of words.
			wanted := []string{m.Value}
			if m.Type == "=~" && m.Label == "id" {
				wanted = strings.Split(m.Value, "|")
			}
			for _, value := range wanted {
				pattern := value
				if m.Type == "=" {
					pattern = regexp.QuoteMeta(value)
				}
				if !slices.ContainsFunc(values, regexp.MustCompile("^(?:"+pattern+")$").MatchString) {
					errs = append(errs, fmt.Errorf("the label %s of %s never is %s; it is one of %q", m.Label, one.Metric, value, values))
				}
			}
		}
	}
	for _, label := range e.Shown {
		if !slices.Contains(e.Result, label) {
			errs = append(errs, fmt.Errorf("%s is shown, and the result has only %q", label, e.Result))
		}
	}
	return errors.Join(errs...)
}

// TestEveryMetricExists starts a cluster with both programs, lets happen what the
// alerts are about, and looks for everything that alerts and dashboard read.
func TestEveryMetricExists(t *testing.T) {
	if os.Getenv(envLong) == "" {
		t.Skip("make monitoring-test does this")
	}
	var all []expression
	if err := json.Unmarshal(run(t.Context(), t, ".", path(t, rulesFile), path(t, dashboardFile)), &all); err != nil {
		t.Fatal(err)
	}
	if len(all) < 50 {
		t.Fatalf("only %d expressions", len(all))
	}
	w := start(t)
	w.commands()
	w.sync()
	w.refuse()
	w.except()
	w.fence()
	seen := w.scrape()
	w.withoutGuard()
	w.addAPIServer(seen)
	for _, e := range all {
		if err := seen.check(e); err != nil {
			t.Errorf("%s: %v", e.Where, err)
		}
	}

	t.Run("the check finds what is not there", func(t *testing.T) {
		for _, e := range []expression{
			{Selectors: []selector{{Metric: "metacontroller_guard_active_instance"}}},
			{Selectors: []selector{{Metric: "metacontroller_guard_active_instances", By: []string{"pod"}}}},
			{Selectors: []selector{{Metric: "metacontroller_guard_findings", Matchers: []struct{ Label, Type, Value string }{{"id", "=~", "static-pod|second"}}}}},
			{Shown: []string{"id"}},
		} {
			if seen.check(e) == nil {
				t.Errorf("%+v is taken for good", e)
			}
		}
	})
}

// world is the cluster.
type world struct {
	*testing.T
	*cluster.Cluster
	clients kubernetes.Interface
}

func start(t *testing.T) *world {
	t.Helper()
	c, err := cluster.Start(t.Context(), cluster.Options{Place: cluster.Monitoring, LockWait: lockWait, Progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	if err := c.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	return &world{t, c, clients}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) kubectl(args ...string) string {
	w.Helper()
	output, err := w.Kubectl.Run(w.Context(), args...)
	w.must(err)
	return output
}

func (w *world) apply(manifest string) {
	w.Helper()
	_, err := kit.ApplyYAML(w.Context(), w.Config(), []byte(manifest))
	w.must(err)
}

// Prometheus Operator's CRDs are in its module, of which nothing else is needed.
const (
	operatorModule = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
	operatorSum    = "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s="
)

// installOperatorCRDs installs those of the kinds in config/monitoring.
func (w *world) installOperatorCRDs() {
	command := exec.CommandContext(w.Context(), "go", "mod", "download", "-json", operatorModule)
	command.Dir = w.TempDir()
	output, err := command.Output()
	w.must(err)
	var found struct{ Dir, Sum string }
	w.must(json.Unmarshal(output, &found))
	if found.Sum != operatorSum {
		w.Fatalf("%s has the sum %s, not %s", operatorModule, found.Sum, operatorSum)
	}
	for _, kind := range []string{"prometheusrules", "podmonitors"} {
		_, err := kit.ApplyFile(w.Context(), w.Config(), filepath.Join(found.Dir, "example", "prometheus-operator-crd", "monitoring.coreos.com_"+kind+".yaml"))
		w.must(err)
		w.kubectl("wait", "crd", kind+".monitoring.coreos.com", "--for=condition=Established")
	}
}

var (
	block  = regexp.MustCompile("(?ms)^```sh\n(.*?)^```$")
	inline = regexp.MustCompile("`((?:kubectl|guard) [^`\n]+)`")
)

// elsewhere are commands of the page that need cert-manager, which is not here.
var elsewhere = []string{
	"kubectl describe certificate -n metacontroller-guard",
	"kubectl delete secret metacontroller-guard-tls -n metacontroller-guard",
}

// commands runs every command of docs/operate.md and docs/policy.md.
func (w *world) commands() {
	w.installOperatorCRDs()
	var scripts []string
	for _, file := range []string{pageFile, "docs/policy.md"} {
		page := string(read(w.T, file))
		for _, found := range append(block.FindAllStringSubmatch(page, -1), inline.FindAllStringSubmatch(page, -1)...) {
			if !slices.Contains(elsewhere, found[1]) {
				scripts = append(scripts, found[1])
			}
		}
	}
	if len(scripts) < 10 {
		w.Fatalf("only %d commands", len(scripts))
	}
	programs := filepath.Dir(kit.Build(w.T, "./cmd/guard"))
	for _, script := range scripts {
		kit.Eventually(w.T, waitLimit, func() error {
			command := exec.CommandContext(w.Context(), "bash", "-euo", "pipefail", "-c", script)
			command.Dir = w.Root
			command.Env = append(os.Environ(), "KUBECONFIG="+w.Kubeconfig(), "PATH="+programs+":"+os.Getenv("PATH"))
			output, err := command.CombinedOutput()
			if err != nil {
				return fmt.Errorf("%s: %w: %s", script, err, output)
			}
			return nil
		})
	}
	if got := w.kubectl("get", "prometheusrule", "metacontroller", "-n", "metacontroller-guard", "-o", "jsonpath={.spec.groups[*].name}"); !strings.Contains(got, "metacontroller-apiserver") {
		w.Errorf("the PrometheusRule has the groups %q", got)
	}
	if got := w.kubectl("get", "configmap", "metacontroller-dashboard", "-n", "metacontroller-guard", "-o", "jsonpath={.data}"); !strings.Contains(got, "metacontroller_guard_findings") {
		w.Error("the dashboard is not in its ConfigMap")
	}
}

// controllerManifest has every hook there is, and what "controller rbac" prints for
// them.
const controllerManifest = `
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata:
  name: metacontroller-measured
  labels: {rbac.metacontroller.io/aggregate-to-metacontroller: "true"}
rules:
- {apiGroups: [demo.metacontroller.io], resources: [greetings], verbs: [get, list, watch, patch]}
- {apiGroups: [demo.metacontroller.io], resources: [greetings/status, greetings/finalizers], verbs: [update]}
- {apiGroups: [""], resources: [configmaps], verbs: [list, watch, create, delete]}
---
apiVersion: metacontroller.k8s.io/v1alpha1
kind: CompositeController
metadata: {name: measured}
spec:
  generateSelector: true
  parentResource: {apiVersion: demo.metacontroller.io/v1, resource: greetings}
  childResources: [{apiVersion: v1, resource: configmaps}]
  hooks:
    sync: {webhook: {url: "%[1]s/sync"}}
    finalize: {webhook: {url: "%[1]s/finalize"}}
    customize: {webhook: {url: "%[1]s/customize"}}
---
apiVersion: demo.metacontroller.io/v1
kind: Greeting
metadata: {name: measured, namespace: default}
`

// sync lets a controller call each of its hooks, each of which fails at first.
func (w *world) sync() {
	hooks := kit.NewHookServer(w.T)
	answers := map[string]string{
		"/sync": `{"status":{},"children":[]}`, "/finalize": `{"status":{},"children":[],"finalized":true}`, "/customize": `{"relatedResources":[]}`,
	}
	for path, answer := range answers {
		var calls atomic.Int32
		hooks.Handle(path, func(out http.ResponseWriter, _ *http.Request, _ kit.HookRequest) {
			if calls.Add(1) == 1 {
				http.Error(out, "not yet", http.StatusInternalServerError)
				return
			}
			_, _ = out.Write([]byte(answer))
		})
	}
	w.must(w.Apply(w.Context(), []byte(crd(w))))
	kit.Eventually(w.T, waitLimit, func() error {
		_, err := kit.ApplyYAML(w.Context(), w.Config(), fmt.Appendf(nil, controllerManifest, hooks.URL("")))
		return err
	})
	kit.Eventually(w.T, waitLimit, func() error {
		if calls := len(hooks.Requests("/sync")); calls < 2 {
			return fmt.Errorf("%d calls of the sync hook", calls)
		}
		return nil
	})
	w.kubectl("delete", "greeting", "measured", "--timeout="+waitLimit.String())
}

// crd is that of the demo.
func crd(w *world) string {
	return string(read(w.T, filepath.Join("test/local/manifests/hook", "crd.yaml")))
}

// refuse asks for what the guard, and what the API server, refuses.
func (w *world) refuse() {
	forbidden := func(args ...string) {
		if output, err := w.Kubectl.Run(w.Context(), args...); err == nil {
			w.Fatalf("kubectl %v was not refused: %s", args, output)
		}
	}
	forbidden("scale", "statefulset", "metacontroller", "-n", "metacontroller", "--replicas=2")
	forbidden("create", "deployment", "second", "--image=ghcr.io/metacontroller/metacontroller:v4.17.2")
	forbidden("run", "second", "--image=ghcr.io/metacontroller/metacontroller:v4.17.2")
}

// except writes an exception.
func (w *world) except() {
	w.kubectl("patch", "singletonpolicy", "metacontroller", "--type=merge", "-p",
		fmt.Sprintf(`{"spec":{"exceptions":[{"namespace":"default","name":"rescue","reason":"a test","expires":%q}]}}`, time.Now().Add(time.Hour).UTC().Format(time.RFC3339)))
}

// fence writes with the controller's service account and without its Pod, while
// the fence denies and while it looks on.
func (w *world) fence() {
	token, err := w.clients.CoreV1().ServiceAccounts("metacontroller").CreateToken(w.Context(), "metacontroller", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	w.must(err)
	config := rest.AnonymousClientConfig(w.Config())
	config.BearerToken = token.Status.Token
	stranger, err := kubernetes.NewForConfig(config)
	w.must(err)
	write := func() error {
		_, err := stranger.CoreV1().ConfigMaps("default").Create(w.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "stranger-"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	kit.Eventually(w.T, waitLimit, func() error {
		if err := write(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "[fence]") {
			return fmt.Errorf("not refused by the fence: %v", err)
		}
		return nil
	})
	w.kubectl("patch", "singletonpolicy", "metacontroller", "--type=merge", "-p", `{"spec":{"fence":{"action":"Audit"}}}`)
	kit.Eventually(w.T, waitLimit, write)
}

// scrape reads both programs, as soon as the guard has seen the exception.
func (w *world) scrape() series {
	pods := func(namespace, selector, port string) []string {
		list, err := w.clients.CoreV1().Pods(namespace).List(w.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=" + selector})
		w.must(err)
		var addresses []string
		for _, pod := range list.Items {
			addresses = append(addresses, pod.Status.PodIP+":"+port)
		}
		return addresses
	}
	addresses := append(pods("metacontroller", "metacontroller", "9999"), pods("metacontroller-guard", "metacontroller-guard", "8080")...)
	var seen series
	kit.Eventually(w.T, waitLimit, func() error {
		seen = series{}
		for _, address := range addresses {
			families, err := vitals.Program{Metrics: address}.Families(w.Context())
			if err != nil {
				return err
			}
			seen.add(families)
		}
		if len(seen["metacontroller_guard_exception_expiration_timestamp_seconds"]) != 1 {
			return errors.New("no guard has seen the exception yet")
		}
		return nil
	})
	return seen
}

// bystander has nothing to do with Metacontroller.
const bystander = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: bystander, namespace: default}
spec:
  replicas: 0
  selector: {matchLabels: {app: bystander}}
  template:
    metadata: {labels: {app: bystander}}
    spec: {containers: [{name: a, image: registry.example/bystander}]}
`

// withoutGuard lets the API server ask a guard that is not there: about a second
// Metacontroller, which is refused then, and about what goes on.
func (w *world) withoutGuard() {
	w.apply(bystander)
	w.kubectl("scale", "deployment", "metacontroller-guard", "-n", "metacontroller-guard", "--replicas=0")
	w.kubectl("wait", "pods", "-n", "metacontroller-guard", "--all", "--for=delete", "--timeout="+waitLimit.String())
	w.kubectl("scale", "statefulset", "bystander", "--replicas=2", "--dry-run=server")
	if output, err := w.Kubectl.Run(w.Context(), "create", "deployment", "second", "--image=ghcr.io/metacontroller/metacontroller:v4.17.2"); err == nil {
		w.Fatalf("a second Metacontroller was let in: %s", output)
	}
}

func (w *world) addAPIServer(to series) {
	ctx, cancel := context.WithTimeout(w.Context(), waitLimit)
	defer cancel()
	body, err := w.clients.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	w.must(err)
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(string(body)))
	w.must(err)
	to.add(families)
}
