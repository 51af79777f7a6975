package tls_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	"github.com/metacontroller-solo/solo/pkg/guard/webhook"
	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/kit/process"
)

const (
	namespace = "metacontroller-guard"
	account   = "metacontroller-guard"
	// patience bounds whatever should happen soon; the guards look at files every
	// ten seconds where nothing tells them of a change.
	patience = 90 * time.Second
	// instance is what the guard is about; stranger is not.
	instance = "ghcr.io/metacontroller/metacontroller:v4.17.2"
	stranger = "registry.k8s.io/pause:3.10"
)

var scheme = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, guardv1alpha1.AddToScheme, cmapi.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}()

// suite is a cluster for one installation of the guard.
type suite struct {
	testing.TB
	cp *kit.ControlPlane
	// admins have a client for each API server.
	admins    []client.Client
	root, dir string
	forwarder *forwarder
	guards    []*guard
}

func newSuite(t *testing.T, manifests ...string) *suite {
	t.Helper()
	s := &suite{TB: t, cp: kit.Shared(t), dir: t.TempDir(), forwarder: newForwarder(t)}
	var err error
	if s.root, err = kit.Root(); err != nil {
		t.Fatal(err)
	}
	for server := range s.cp.APIServers() {
		admin, err := client.New(s.cp.AdminConfig(server), client.Options{Scheme: scheme})
		if err != nil {
			t.Fatal(err)
		}
		s.admins = append(s.admins, admin)
	}
	t.Cleanup(s.clean)
	for _, path := range append([]string{
		"config/crd/guard.metacontroller.io_singletonpolicies.yaml", "config/guard/namespace.yaml", "config/guard/service_account.yaml",
		"config/guard/role.yaml", "config/guard/role_binding.yaml", "config/guard/policy.yaml",
	}, manifests...) {
		s.apply(path)
	}
	return s
}

// clean removes what the next installation must not find.
func (s *suite) clean() {
	ctx := context.Background()
	policy := &guardv1alpha1.SingletonPolicy{}
	policy.Name = guardv1alpha1.DefaultPolicyName
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	configuration.Name = pin.WebhookConfigurationName
	for _, object := range []client.Object{configuration, policy} {
		if err := s.admin().Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			s.Error(err)
		}
	}
	for _, object := range []client.Object{&cmapi.Certificate{}, &cmapi.Issuer{}, &cmapi.CertificateRequest{}, &corev1.Secret{}} {
		err := s.admin().DeleteAllOf(ctx, object, client.InNamespace(namespace))
		if err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
			s.Error(err)
		}
	}
}

func (s *suite) admin() client.Client { return s.admins[0] }

func (s *suite) ctx() context.Context { return context.Background() }

func (s *suite) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *suite) eventually(check func() error) {
	s.Helper()
	kit.Eventually(s, patience, check)
}

func (s *suite) apply(path string) {
	s.Helper()
	if _, err := kit.ApplyFile(s.ctx(), s.cp.AdminConfig(0), filepath.Join(s.root, path)); err != nil {
		s.Fatal(err)
	}
}

// installWebhook installs the webhook configuration, without a caBundle, as
// config/webhook has it, with the forwarder's address in place of the Service.
func (s *suite) installWebhook(annotations map[string]string) {
	s.Helper()
	for _, object := range pin.Objects(pin.Options{URL: "https://" + s.forwarder.address() + webhook.Path}) {
		if configuration, ok := object.(*admissionregistrationv1.ValidatingWebhookConfiguration); ok {
			configuration.Annotations = annotations
			s.must(s.admin().Create(s.ctx(), configuration))
		}
	}
}

func (s *suite) configuration() *admissionregistrationv1.ValidatingWebhookConfiguration {
	s.Helper()
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	s.must(s.admin().Get(s.ctx(), client.ObjectKey{Name: pin.WebhookConfigurationName}, configuration))
	return configuration
}

// changeWebhook changes the webhook configuration.
func (s *suite) changeWebhook(change func(*admissionregistrationv1.ValidatingWebhookConfiguration)) {
	s.Helper()
	s.must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		configuration := s.configuration()
		change(configuration)
		return s.admin().Update(s.ctx(), configuration)
	}))
}

// bundle is the caBundle of every webhook; an error if they differ.
func (s *suite) bundle() (string, error) {
	s.Helper()
	bundles := map[string]bool{}
	last := ""
	for _, w := range s.configuration().Webhooks {
		last = string(w.ClientConfig.CABundle)
		bundles[last] = true
	}
	if len(bundles) != 1 {
		return "", fmt.Errorf("the webhooks have %d different caBundles", len(bundles))
	}
	return last, nil
}

// awaitBundle waits for a caBundle.
func (s *suite) awaitBundle(want func(bundle string) error) string {
	s.Helper()
	got := ""
	s.eventually(func() error {
		bundle, err := s.bundle()
		if err != nil {
			return err
		}
		got = bundle
		return want(bundle)
	})
	return got
}

// guard is one process of the program.
type guard struct {
	*process.Process
	name, webhook, probes, metrics, kubeconfig string
	log                                        string
}

// start starts a guard, in which it waits for nothing.
func (s *suite) start(args ...string) *guard {
	s.Helper()
	program := kit.Build(s, "./cmd/guard")
	token, err := s.cp.TokenConfig(s.ctx(), namespace, account)
	s.must(err)
	name := fmt.Sprintf("guard-%d", len(s.guards))
	g := &guard{name: name, log: filepath.Join(s.dir, name+".log"), kubeconfig: filepath.Join(s.dir, name+".kubeconfig")}
	s.must(kit.WriteKubeconfig(g.kubeconfig, s.cp.At(len(s.guards)%s.cp.APIServers(), token)))
	for _, address := range []*string{&g.webhook, &g.probes, &g.metrics} {
		port, err := kit.FreePort()
		s.must(err)
		*address = net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	_, port, _ := net.SplitHostPort(g.webhook)
	log, err := os.Create(g.log)
	s.must(err)
	g.Process, err = process.Start(process.Spec{Name: name, Path: program, Stdout: io.Discard, Stderr: log, Args: append([]string{
		"serve", "--kubeconfig=" + g.kubeconfig, "--bind-address=127.0.0.1", "--webhook-port=" + port,
		"--health-probe-bind-address=" + g.probes, "--metrics-bind-address=" + g.metrics, "--replica=" + name, "--shutdown-delay=200ms",
		"--leader-elect-lease-duration=12s", "--leader-elect-renew-deadline=10s", "--leader-elect-retry-period=500ms",
	}, args...)})
	s.must(err)
	s.Cleanup(func() {
		g.Stop()
		_ = log.Close()
		if s.Failed() {
			content, _ := os.ReadFile(g.log)
			s.Logf("the end of what %s wrote:\n%s", name, content[max(0, len(content)-6000):])
		}
	})
	s.guards = append(s.guards, g)
	return g
}

// ready says whether requests may be sent to a guard.
func (g *guard) ready() error {
	_, err := get("http://" + g.probes + "/readyz")
	if _, ended := g.Status(); ended {
		return fmt.Errorf("%w: %w", err, g.ExitError())
	}
	return err
}

// measured says whether the guard's metrics have a line.
func (g *guard) measured(line string) error {
	exposition, err := get("http://" + g.metrics + "/metrics")
	if err == nil && !strings.Contains(exposition, "\n"+line+"\n") {
		err = fmt.Errorf("%s has no metric %s", g.name, line)
	}
	return err
}

func get(url string) (string, error) {
	client := &http.Client{Timeout: 10 * time.Second}
	response, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	content, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", url, response.Status, content)
	}
	return string(content), err
}

// served is the certificate that a guard serves, to whom it is shown does not
// matter.
func (g *guard) served() (*x509.Certificate, error) {
	var leaf *x509.Certificate
	config := &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true, VerifyConnection: func(state tls.ConnectionState) error {
		leaf = state.PeerCertificates[0]
		return nil
	}}
	conn, err := tls.Dial("tcp", g.webhook, config)
	if err != nil {
		return nil, err
	}
	return leaf, conn.Close()
}

// serve waits until guards are ready and makes the API servers call them.
func (s *suite) serve(guards ...*guard) {
	s.Helper()
	var targets []string
	for _, g := range guards {
		s.eventually(g.ready)
		targets = append(targets, g.webhook)
	}
	s.forwarder.to(targets...)
}

// deployment is a workload that the guard refuses when it is of an instance: it is
// asked, and so the answer shows that the call got through.
func deployment(image string) *appsv1.Deployment {
	labels := map[string]string{"app": "x"}
	d := &appsv1.Deployment{}
	d.Namespace, d.Name = metav1.NamespaceDefault, "x"
	d.Spec.Selector = &metav1.LabelSelector{MatchLabels: labels}
	d.Spec.Template.Labels = labels
	d.Spec.Template.Spec.Containers = []corev1.Container{{Name: "main", Image: image}}
	return d
}

// ask asks the guard through an API server; nil says that it answered.
func ask(ctx context.Context, admin client.Client) error {
	err := admin.Create(ctx, deployment(instance), client.DryRunAll)
	switch {
	case err == nil:
		return errors.New("let in without asking")
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), "workload-kind"):
		return nil
	}
	return err
}

// answered waits until every API server reaches the guard.
func (s *suite) answered() {
	s.Helper()
	for _, admin := range s.admins {
		s.eventually(func() error { return ask(s.ctx(), admin) })
	}
}

// closed holds that an instance is refused though the guard cannot be reached, and
// that nobody else notices.
func (s *suite) closed(says string) {
	s.Helper()
	for server, admin := range s.admins {
		s.eventually(func() error {
			err := admin.Create(s.ctx(), deployment(instance), client.DryRunAll)
			if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), says) {
				return fmt.Errorf("API server %d: an instance got %v, want a failed call with %q", server, err, says)
			}
			return nil
		})
		s.must(admin.Create(s.ctx(), deployment(stranger), client.DryRunAll))
	}
	// The guard's own Deployment, with all that the API server checks of it.
	content, err := os.ReadFile(filepath.Join(s.root, "config/guard/deployment.yaml"))
	s.must(err)
	own := &appsv1.Deployment{}
	s.must(yaml.UnmarshalStrict(content, own))
	s.must(s.admin().Create(s.ctx(), own, client.DryRunAll))
}

// reported waits until the policy's condition, the leader's metrics and, unless all
// is well, an event say the same.
func (s *suite) reported(verdict, says string, guards ...*guard) {
	s.Helper()
	policy := &guardv1alpha1.SingletonPolicy{}
	s.eventually(func() error {
		if err := s.admin().Get(s.ctx(), client.ObjectKey{Name: guardv1alpha1.DefaultPolicyName}, policy); err != nil {
			return err
		}
		condition := meta.FindStatusCondition(policy.Status.Conditions, guardv1alpha1.ConditionCertificateCurrent)
		want := metav1.ConditionFalse
		if verdict == "Current" {
			want = metav1.ConditionTrue
		}
		if condition == nil || condition.Status != want || condition.Reason != verdict || !strings.Contains(condition.Message, says) {
			return fmt.Errorf("condition is %+v, want %s with %q", condition, verdict, says)
		}
		return nil
	})
	for _, g := range guards {
		s.eventually(func() error {
			return g.measured(fmt.Sprintf("metacontroller_guard_certificate_state{state=%q} 1", verdict))
		})
	}
	if verdict == "Current" {
		return
	}
	s.eventually(func() error {
		events := &eventsv1.EventList{}
		if err := s.admin().List(s.ctx(), events, client.InNamespace(metav1.NamespaceDefault)); err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.Regarding.UID == policy.UID && event.Reason == "Certificate"+verdict && event.Type == corev1.EventTypeWarning && strings.Contains(event.Note, says) {
				return nil
			}
		}
		return fmt.Errorf("none of %d events has reason Certificate%s and says %q", len(events.Items), verdict, says)
	})
}
