package chart

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/local/cluster"
)

const (
	// lockWait is how long another run of these tests may take.
	lockWait = 5 * time.Minute
	// waitLimit bounds the wait for one thing; a loaded machine needs its time.
	waitLimit = 3 * time.Minute
	// helmLimit is how long Helm may wait for what it installs.
	helmLimit = "5m"
)

// restricted is a label that makes the API server refuse Pods that the restricted
// Pod Security Standard does not allow.
const restricted = "pod-security.kubernetes.io/enforce"

// lab is a local cluster that the chart is installed in.
type lab struct {
	t       *testing.T
	cluster *cluster.Cluster
	clients kubernetes.Interface
	objects dynamic.Interface
	ca      *kit.CA
	// addresses is a file with the values that have to differ in a local cluster, and
	// certificate one with those for a certificate from elsewhere.
	addresses, certificate string
	// programs is a folder with helm and guard, for the commands of a page.
	programs string
}

func newLab(t *testing.T) *lab {
	t.Helper()
	c, err := cluster.Start(t.Context(), cluster.Options{Place: cluster.Chart, LockWait: lockWait, Progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	l := &lab{t: t, cluster: c, programs: filepath.Join(root(t), "bin")}
	l.connect()
	if l.ca, err = kit.NewCA("guard-ca"); err != nil {
		t.Fatal(err)
	}
	l.addresses = filepath.Join(root(t), "test/local/values.yaml")
	data, err := yaml.Marshal(map[string]any{"tls": map[string]any{"source": "files", "caBundle": string(l.ca.CertPEM())}})
	if err != nil {
		t.Fatal(err)
	}
	l.certificate = l.file(string(data))
	return l
}

// connect makes the clients.
func (l *lab) connect() {
	l.t.Helper()
	var err error
	if l.clients, err = kubernetes.NewForConfig(l.cluster.Config()); err != nil {
		l.t.Fatal(err)
	}
	if l.objects, err = dynamic.NewForConfig(l.cluster.Config()); err != nil {
		l.t.Fatal(err)
	}
}

// in is the same lab for a subtest.
func (l *lab) in(t *testing.T) *lab {
	other := *l
	other.t = t
	return &other
}

// step says what is done from now on.
func (l *lab) step(doing string) { l.t.Log(time.Now().Format(time.TimeOnly), doing) }

func (l *lab) helm(args ...string) (string, error) {
	l.t.Helper()
	output, stderr, err := helmAs(l.t, l.cluster.Kubeconfig(), args...)
	return output + stderr, err
}

// mustHelm runs Helm, and on an error says what the Pods say.
func (l *lab) mustHelm(args ...string) string {
	l.t.Helper()
	output, err := l.helm(args...)
	if err != nil {
		l.t.Fatalf("%v\n%s", err, l.explain())
	}
	return output
}

// explain says what there is, after a failure.
func (l *lab) explain() string {
	var b strings.Builder
	for _, args := range [][]string{
		{"get", "pods,statefulsets,deployments,jobs,events", "-n", namespace},
		{"get", "singletonpolicies", "-o", "yaml"},
		{"logs", "-n", namespace, "-l", "app.kubernetes.io/name=metacontroller-guard", "--tail=20"},
		{"logs", "-n", namespace, "-l", "app.kubernetes.io/name=metacontroller-guard-check", "--tail=60"},
	} {
		output, err := l.cluster.Kubectl.Run(context.WithoutCancel(l.t.Context()), args...)
		fmt.Fprintf(&b, "kubectl %s (%v)\n%s\n", strings.Join(args, " "), err, output)
	}
	return b.String()
}

// install are the arguments for an install or upgrade of a chart as a release.
func (l *lab) release(verb, folder string, args ...string) []string {
	return slices.Concat([]string{verb, release, folder, "--namespace", namespace, "--values", l.addresses, "--values", l.certificate, "--timeout", helmLimit}, args)
}

func (l *lab) eventually(check func() error) {
	l.t.Helper()
	kit.Eventually(l.t, waitLimit, check)
}

func (l *lab) kubectl(args ...string) string {
	l.t.Helper()
	output, err := l.cluster.Kubectl.Run(l.t.Context(), args...)
	if err != nil {
		l.t.Fatal(err)
	}
	return output
}

// namespace makes a restricted namespace, with the guard's certificate in it.
func (l *lab) namespace(name string) {
	l.t.Helper()
	// One of that name may be on its way out.
	l.eventually(func() error {
		_, err := l.clients.CoreV1().Namespaces().Create(l.t.Context(), &corev1.Namespace{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{restricted: "restricted"}},
		}, metav1.CreateOptions{})
		return err
	})
	serving, err := l.ca.IssueServer("metacontroller-guard." + name + ".svc")
	if err != nil {
		l.t.Fatal(err)
	}
	_, err = l.clients.CoreV1().Secrets(name).Create(l.t.Context(), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "metacontroller-guard-tls"},
		Type:       corev1.SecretTypeTLS,
		Data:       map[string][]byte{corev1.TLSCertKey: serving.Cert, corev1.TLSPrivateKeyKey: serving.Key},
	}, metav1.CreateOptions{})
	if err != nil {
		l.t.Fatal(err)
	}
}

var policies = schema.GroupVersionResource{Group: guardv1alpha1.GroupVersion.Group, Version: guardv1alpha1.GroupVersion.Version, Resource: guardv1alpha1.SingletonPolicyResource}

// wantHolder waits until a StatefulSet has the slot.
func (l *lab) wantHolder(want string) {
	l.t.Helper()
	l.eventually(func() error {
		policy, err := l.objects.Resource(policies).Get(l.t.Context(), guardv1alpha1.DefaultPolicyName, metav1.GetOptions{})
		if err != nil {
			return err
		}
		holder, _, _ := unstructured.NestedStringMap(policy.Object, "status", "holder")
		place, _, _ := unstructured.NestedString(policy.Object, "status", "holder", "namespace")
		name, _, _ := unstructured.NestedString(policy.Object, "status", "holder", "name")
		if got := place + "/" + name; got != want {
			return fmt.Errorf("the holder is %q (%v), not %s", got, holder, want)
		}
		return nil
	})
}

// bystander asks the API server, all the time, for things that the guard has
// nothing to do with. Nobody else may notice that it is installed, upgraded or
// removed.
type bystander struct {
	stop    func()
	mu      sync.Mutex // guards the rest
	asked   int
	refused []string
	// lost are requests that no API server has answered in time, which says nothing.
	lost int
}

// unanswered tells a machine that is too busy from a refusal. An admission webhook that
// does not answer is a refusal: the API server says so, by an internal error.
func unanswered(err error) bool {
	var status apierrors.APIStatus
	return err != nil && (!errors.As(err, &status) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err))
}

func (l *lab) bystander() *bystander {
	b := &bystander{}
	ctx, cancel := context.WithCancel(l.t.Context())
	var running sync.WaitGroup
	b.stop = func() { cancel(); running.Wait() }
	l.t.Cleanup(b.stop)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "bystander-", Namespace: metav1.NamespaceDefault},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "nginx", Image: "docker.io/library/nginx"}}},
	}
	running.Go(func() {
		tick := time.NewTicker(50 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			_, err := l.clients.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			if ctx.Err() != nil {
				return
			}
			b.mu.Lock()
			switch {
			case unanswered(err):
				b.lost++
			case err != nil:
				b.refused = append(b.refused, time.Now().Format(time.TimeOnly)+" "+err.Error())
				fallthrough
			default:
				b.asked++
			}
			b.mu.Unlock()
		}
	})
	return b
}

// wantUnharmed ends it.
func (b *bystander) wantUnharmed(t *testing.T) {
	t.Helper()
	b.stop()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.refused) > 0 {
		t.Errorf("%d of %d Pods that run something else were refused: %s", len(b.refused), b.asked, b.refused[0])
	}
	if b.asked == 0 {
		t.Error("the bystander asked nothing")
	}
	t.Logf("%d Pods that run something else were let in, %d not answered", b.asked-len(b.refused), b.lost)
}

// wantNothingLeft checks that a cluster has none of the product's objects, but for
// those kinds.
func (l *lab) wantNothingLeft(keep ...string) {
	l.t.Helper()
	l.eventually(func() error {
		var left []string
		for _, kind := range []string{
			"validatingwebhookconfigurations", "validatingadmissionpolicies", "validatingadmissionpolicybindings",
			"clusterroles", "clusterrolebindings", "customresourcedefinitions",
		} {
			if slices.Contains(keep, kind) {
				continue
			}
			for _, line := range strings.Fields(l.kubectl("get", kind, "-o", "name")) {
				if strings.Contains(line, "metacontroller") {
					left = append(left, line)
				}
			}
		}
		for _, place := range []string{namespace, guardNamespace, metav1.NamespaceSystem} {
			for _, line := range strings.Fields(l.kubectl("get", "roles,rolebindings,deployments,statefulsets,services,serviceaccounts,poddisruptionbudgets,jobs", "-n", place, "-o", "name")) {
				if strings.Contains(line, "metacontroller") {
					left = append(left, line)
				}
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("these are left: %s", strings.Join(left, " "))
		}
		return nil
	})
}

// wantFree checks that nobody is kept from anything: Pods and workloads are let in,
// those that run Metacontroller too.
func (l *lab) wantFree() {
	l.t.Helper()
	for _, image := range []string{"docker.io/library/nginx", "ghcr.io/metacontroller/metacontroller:v4.17.2"} {
		l.eventually(func() error {
			_, err := l.clients.CoreV1().Pods(metav1.NamespaceDefault).Create(l.t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{GenerateName: "free-"},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}},
			}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
			return err
		})
	}
	for _, kind := range []string{"Deployment", "StatefulSet"} {
		l.eventually(func() error { return l.stranger(kind) })
	}
}

// stranger is a workload that runs Metacontroller and would be refused beside one.
func (l *lab) stranger(kind string) error {
	_, err := l.cluster.Kubectl.Run(l.t.Context(), "create", "--dry-run=server", "-f", l.file(fmt.Sprintf(`
apiVersion: apps/v1
kind: %s
metadata: {name: stranger, namespace: default}
spec:
  selector: {matchLabels: {app: stranger}}
  template:
    metadata: {labels: {app: stranger}}
    spec: {containers: [{name: metacontroller, image: "ghcr.io/metacontroller/metacontroller:v4.17.2"}]}
`, kind)))
	return err
}

// file writes a manifest.
func (l *lab) file(content string) string {
	l.t.Helper()
	path := filepath.Join(l.t.TempDir(), "manifest.yaml")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		l.t.Fatal(err)
	}
	return path
}

// wantCaBundle holds what every webhook has to what it should be.
func (l *lab) wantCABundle(want []byte) {
	l.t.Helper()
	got := l.kubectl("get", "validatingwebhookconfiguration", "metacontroller-guard", "-o", "jsonpath={.webhooks[*].clientConfig.caBundle}")
	for _, bundle := range strings.Fields(got) {
		if bundle != base64.StdEncoding.EncodeToString(want) {
			l.t.Errorf("a caBundle is %q", bundle)
		}
	}
	if got == "" && len(want) > 0 {
		l.t.Error("there is no caBundle")
	}
}
