// Package scale_test measures the guard in a cluster with many Pods that have
// nothing to do with it: how much memory and time the scan takes, and that it
// asks for every list in pages. Nothing runs the Pods.
//
//	2,000 Pods (GUARD_SCALE_PODS) ─> one kube-apiserver with an audit log <─ one guard
package scale_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/claim"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
	"github.com/metacontroller-solo/solo/pkg/guard/scan"
	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/kit/process"
	"github.com/metacontroller-solo/solo/test/kit/vitals"
)

const (
	guardNamespace = "metacontroller-guard"
	// envPods sets the number of Pods.
	envPods     = "GUARD_SCALE_PODS"
	defaultPods = 2000
	// maxRSS bounds the memory of the guard, with however many Pods.
	maxRSS = 64 << 20
	// maxPage is the most objects that a list may ask for at a time.
	maxPage = 500
	// patience bounds whatever should happen soon.
	patience = 2 * time.Minute
	// auditPolicy has the guard's reads, and nothing else.
	auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ["system:serviceaccount:metacontroller-guard:metacontroller-guard"]
  verbs: [list, watch]
- level: None
`
)

func pods(t *testing.T) int {
	t.Helper()
	text := os.Getenv(envPods)
	if text == "" {
		return defaultPods
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s=%q is no number of Pods", envPods, text)
	}
	return n
}

func TestScale(t *testing.T) {
	wanted := pods(t)
	policy := filepath.Join(t.TempDir(), "audit.yaml")
	if err := os.WriteFile(policy, []byte(auditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	cp, err := kit.Start(t.Context(), kit.Options{
		WithoutControllers: true, AuditPolicyFile: policy,
		APIServerArgs: []string{"--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cp.Stop)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, guardv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	config := cp.AdminConfig(0)
	config.QPS = -1
	admin, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	root, err := kit.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		"crd/guard.metacontroller.io_singletonpolicies.yaml", "guard/namespace.yaml", "guard/service_account.yaml",
		"guard/role.yaml", "guard/role_binding.yaml", "guard/policy.yaml",
	} {
		if _, err := kit.ApplyFile(t.Context(), config, filepath.Join(root, "config", path)); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	create(t, admin, wanted)
	t.Logf("%d Pods created in %s", wanted, time.Since(began).Round(time.Second))

	// One scan, as the command line does it.
	began = time.Now()
	result, err := scan.Run(t.Context(), admin, scan.Options{Policy: guardv1alpha1.DefaultPolicyName, Now: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("one scan of everything: %s", time.Since(began).Round(time.Millisecond))
	if result.Running != 1 {
		t.Fatalf("%d instances were seen", result.Running)
	}

	// What a claim of the free slot costs: it looks at every Pod, once.
	began = time.Now()
	slot := &claim.Slot{Client: admin, Clock: clock.RealClock{}, Policy: guardv1alpha1.DefaultPolicyName, Look: patience}
	stored, err := slot.Read(t.Context())
	if err != nil || stored == nil {
		t.Fatal(stored, err)
	}
	signature, err := identify.Compile(stored.Spec.Match)
	if err != nil {
		t.Fatal(err)
	}
	taken, err := slot.Take(t.Context(), stored, signature, claim.Want{Identity: decide.Identity{Namespace: "crowd", Name: "mc"}, UID: "u", Creates: true})
	if err != nil || taken.Result != decide.ClaimCrowded || len(taken.Others) != 1 {
		t.Fatalf("a claim beside a Pod: %+v, %v", taken, err)
	}
	t.Logf("a claim's look at all Pods: %s", time.Since(began).Round(time.Millisecond))

	g := start(t, cp)
	// Synced: the one instance among them is in the status.
	kit.Eventually(t, patience, func() error {
		policy := &guardv1alpha1.SingletonPolicy{}
		if err := admin.Get(t.Context(), client.ObjectKey{Name: guardv1alpha1.DefaultPolicyName}, policy); err != nil {
			return err
		}
		if len(policy.Status.Instances) != 1 || !meta.IsStatusConditionFalse(policy.Status.Conditions, guardv1alpha1.ConditionCompliant) {
			return fmt.Errorf("instances are %+v", policy.Status.Instances)
		}
		return nil
	})
	synced := g.sample(t)
	t.Logf("after the first look: RSS %.1f MiB, heap in use %.1f MiB, CPU %.2f s", mib(synced.RSS), mib(synced.Live), synced.CPU)

	// A third of them change: each costs one event, and leaves nothing.
	changed := touch(t, admin, min(wanted/3, 3000))
	last := g.sample(t)
	t.Logf("after %d changes of Pods: RSS %.1f MiB, heap in use %.1f MiB, CPU %.2f s more (%.0f us each)",
		changed, mib(last.RSS), mib(last.Live), last.CPU-synced.CPU, (last.CPU-synced.CPU)/float64(changed)*1e6)

	// Some scans later.
	before, scans := g.sample(t), g.scans(t)
	after, made := before, 0.0
	for deadline := time.Now().Add(patience); made < 2; {
		if time.Now().After(deadline) {
			t.Fatal("the guard does not scan any more")
		}
		// Seldom, for each look costs the guard more than a scan does.
		<-time.After(scan.Interval / 4)
		after, made = g.sample(t), g.scans(t)-scans
	}
	t.Logf("%.0f more scans with nothing changed (the looks at its metrics included): RSS %.1f MiB, CPU %.0f ms each", made, mib(after.RSS), (after.CPU-before.CPU)/made*1e3)
	for _, sample := range []vitals.Sample{synced, last, after} {
		if sample.RSS > maxRSS && !raceDetector {
			t.Errorf("RSS is %.1f MiB, above %.0f MiB", mib(sample.RSS), mib(maxRSS))
		}
	}
	g.process.Stop()
	checkLists(t, cp.AuditLog(0), wanted)
}

func mib(bytes float64) float64 { return bytes / (1 << 20) }

// create makes Pods like those of a cluster: some containers, variables, labels.
// One of them is an instance.
func create(t *testing.T, admin client.Client, n int) {
	t.Helper()
	for _, object := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "crowd"}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "crowd", Name: "default"}},
	} {
		if err := admin.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(32)
	for i := range n {
		group.Go(func() error { return admin.Create(ctx, pod(i, n/2 == i)) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

func pod(i int, instance bool) *corev1.Pod {
	image := "registry.example.com/team/application:v1.2.3"
	if instance {
		image = "ghcr.io/metacontroller/metacontroller:v4.17.2"
	}
	var env []corev1.EnvVar
	for v := range 15 {
		env = append(env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", v), Value: strings.Repeat("x", 40)})
	}
	container := func(name, image string) corev1.Container {
		return corev1.Container{
			Name: name, Image: image, Env: env, Args: []string{"--flag=value", "--another=$(VARIABLE_3)"},
			Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("10m")}},
		}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "crowd", Name: fmt.Sprintf("application-7d9c5b7f4c-%05d", i),
			Labels:      map[string]string{"app.kubernetes.io/name": "application", "pod-template-hash": "7d9c5b7f4c"},
			Annotations: map[string]string{"checksum/config": strings.Repeat("a", 64)},
		},
		Spec: corev1.PodSpec{
			NodeName: fmt.Sprintf("node-%d", i%100), Containers: []corev1.Container{container("main", image), container("sidecar", "registry.example.com/mesh/proxy:v9")},
		},
	}
}

// touch changes Pods and waits until a watch has passed all of that on.
func touch(t *testing.T, admin client.WithWatch, n int) int {
	t.Helper()
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(32)
	patch := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"changed":"yes"}}}`))
	for i := range n {
		group.Go(func() error {
			return admin.Patch(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "crowd", Name: fmt.Sprintf("application-7d9c5b7f4c-%05d", i)}}, patch)
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return n
}

// guard is the program under test.
type guard struct {
	process *process.Process
	program vitals.Program
}

func start(t *testing.T, cp *kit.ControlPlane) *guard {
	t.Helper()
	dir := t.TempDir()
	pair, err := cp.CA().IssueServer("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.Write(dir, "tls"); err != nil {
		t.Fatal(err)
	}
	token, err := cp.TokenConfig(t.Context(), guardNamespace, "metacontroller-guard")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := kit.WriteKubeconfig(kubeconfig, token); err != nil {
		t.Fatal(err)
	}
	ports := make([]string, 3)
	for i := range ports {
		port, err := kit.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports[i] = strconv.Itoa(port)
	}
	g := &guard{program: vitals.Program{Metrics: net.JoinHostPort("127.0.0.1", ports[2])}}
	output := &tail{}
	g.process, err = process.Start(process.Spec{Name: "guard", Path: kit.Build(t, "./cmd/guard"), Stdout: io.Discard, Stderr: output, Args: []string{
		"serve", "--kubeconfig=" + kubeconfig, "--tls-cert-dir=" + dir, "--bind-address=127.0.0.1", "--webhook-port=" + ports[0],
		"--health-probe-bind-address=127.0.0.1:" + ports[1], "--metrics-bind-address=" + g.program.Metrics, "--audit-log=" + filepath.Join(dir, "audit"),
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		g.process.Stop()
		if t.Failed() {
			t.Logf("the guard wrote:\n%s", output)
		}
	})
	return g
}

// tail keeps the last things written.
type tail struct{ last atomic.Pointer[string] }

const tailSize = 16 << 10

// Write implements io.Writer; one goroutine writes.
func (w *tail) Write(p []byte) (int, error) {
	text := w.String() + string(p)
	text = text[max(0, len(text)-tailSize):]
	w.last.Store(&text)
	return len(p), nil
}

func (w *tail) String() string {
	if text := w.last.Load(); text != nil {
		return *text
	}
	return ""
}

func (g *guard) sample(t *testing.T) vitals.Sample {
	t.Helper()
	sample, err := g.program.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return sample
}

// scans is how many scans the guard has made.
func (g *guard) scans(t *testing.T) float64 {
	t.Helper()
	families, err := g.program.Families(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	family := families["metacontroller_guard_scan_duration_seconds"]
	if len(family.GetMetric()) != 1 {
		t.Fatal("no scan is counted")
	}
	return float64(family.Metric[0].GetHistogram().GetSampleCount())
}

// checkLists holds every list that the guard asked for to having a limit, and
// what is read of Pods to one look at each.
func checkLists(t *testing.T, path string, pods int) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	ofPods := 0
	for lines.Scan() {
		event := struct {
			Verb, RequestURI string
			User             struct{ Username string }
		}{}
		if err := json.Unmarshal(lines.Bytes(), &event); err != nil {
			t.Fatalf("audit line %q: %v", lines.Text(), err)
		}
		uri, err := url.ParseRequestURI(event.RequestURI)
		if err != nil {
			t.Fatal(err)
		}
		query := uri.Query()
		limit, _ := strconv.Atoi(query.Get("limit"))
		// Policies, and what a field selector names, are few.
		few := strings.HasSuffix(uri.Path, "/singletonpolicies") || strings.HasPrefix(query.Get("fieldSelector"), "metadata.name=")
		switch {
		case event.Verb == "watch" && query.Get("sendInitialEvents") != "" && !few:
			t.Errorf("a watch sends everything: %s", event.RequestURI)
		case event.Verb == "list" && (limit < 1 || limit > maxPage) && !few:
			t.Errorf("a list without pages: %s", event.RequestURI)
		case event.Verb == "list" && strings.HasSuffix(uri.Path, "/pods"):
			ofPods++
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	once := (pods + scan.PageSize - 1) / scan.PageSize
	t.Logf("Pods were listed in %d pages of at most %d", ofPods, scan.PageSize)
	if ofPods < once || ofPods > 2*once {
		t.Errorf("%d pages of Pods were asked for, %d are everything", ofPods, once)
	}
}
