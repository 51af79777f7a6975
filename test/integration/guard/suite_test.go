package guard_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/audit"
	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/kit/process"
)

const (
	guardNamespace = "metacontroller-guard"
	// patience bounds whatever should happen soon.
	patience = 20 * time.Second
)

// suite is an installed guard: the manifests, and as many processes as asked for.
type suite struct {
	t        testing.TB
	cp       *kit.ControlPlane
	root     string
	dir      string
	balancer *balancer
	admins   []client.Client
	guards   []*guard
	// timeout is how many seconds an API server waits for a guard; zero is the
	// default.
	timeout int32
}

// guard is one process of the program.
type guard struct {
	process *process.Process
	config  guardConfig
	audit   string
	webhook string
	probes  string
	metrics string
	stderr  *buffer
	// replaced says that it has ended and another one runs in its place.
	replaced bool
}

// guardConfig is what differs between guards.
type guardConfig struct {
	server int
	args   []string
	// proxy, if set, is the way to the API server.
	proxy *kit.APIProxy
	// stdout, if set, is the program's standard output itself, without the kit in
	// between.
	stdout *os.File
}

// buffer is an output that can be read while it is written.
type buffer struct {
	mutex sync.Mutex // guards data
	data  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.data.Write(p)
}

func (b *buffer) String() string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	return b.data.String()
}

var scheme = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, guardv1alpha1.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}()

// guardProgram is the package of the program under test.
const guardProgram = "./cmd/guard"

// install applies the manifests and starts n guards, each at another API server.
func install(t testing.TB, n int, layers layers, args ...string) *suite {
	t.Helper()
	s := prepare(t)
	for i := range n {
		s.start(guardConfig{server: i % s.cp.APIServers(), args: args})
	}
	s.point()
	s.admission(layers)
	return s
}

// prepare applies what the guard needs before it starts.
func prepare(t testing.TB) *suite {
	t.Helper()
	root, err := kit.Root()
	if err != nil {
		t.Fatal(err)
	}
	s := &suite{t: t, cp: kit.Shared(t), root: root, dir: t.TempDir(), balancer: newBalancer(t)}
	for server := range s.cp.APIServers() {
		s.admins = append(s.admins, s.client(s.cp.AdminConfig(server)))
	}
	pair, err := s.cp.CA().IssueServer("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.Write(s.dir, "tls"); err != nil {
		t.Fatal(err)
	}
	s.apply("config/crd/guard.metacontroller.io_singletonpolicies.yaml")
	s.eventually(func() error {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := s.admin().Get(s.ctx(), client.ObjectKey{Name: "singletonpolicies.guard.metacontroller.io"}, crd); err != nil {
			return err
		}
		for _, condition := range crd.Status.Conditions {
			if condition.Type == apiextensionsv1.Established && condition.Status == apiextensionsv1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("not established")
	})
	for _, admin := range s.admins {
		s.eventually(func() error { return admin.List(s.ctx(), &guardv1alpha1.SingletonPolicyList{}) })
	}
	s.apply("config/guard/namespace.yaml")
	s.apply("config/guard/service_account.yaml")
	s.apply("config/guard/role.yaml")
	s.apply("config/guard/role_binding.yaml")
	s.clean()
	s.resetPolicy()
	return s
}

// clean removes what tests left that runs, or would run, an instance.
func (s *suite) clean() {
	s.t.Helper()
	// Controllers make Pods of what was there a moment ago, and let go of Jobs'
	// Pods in their own time.
	kit.Eventually(s.t, 3*patience, func() error {
		left := 0
		for _, list := range []client.ObjectList{
			&appsv1.StatefulSetList{}, &appsv1.DeploymentList{}, &appsv1.ReplicaSetList{}, &appsv1.DaemonSetList{},
			&batchv1.CronJobList{}, &batchv1.JobList{}, &corev1.ReplicationControllerList{}, &corev1.PodList{},
		} {
			if err := s.admin().List(s.ctx(), list); err != nil {
				return err
			}
			objects, err := meta.ExtractList(list)
			if err != nil {
				return err
			}
			for _, object := range objects {
				left++
				err := s.admin().Delete(s.ctx(), object.(client.Object), client.GracePeriodSeconds(0), client.PropagationPolicy(metav1.DeletePropagationBackground))
				if client.IgnoreNotFound(err) != nil {
					return err
				}
			}
		}
		if left > 0 {
			return fmt.Errorf("%d workloads are left", left)
		}
		return nil
	})
}

func (s *suite) ctx() context.Context { return s.t.Context() }

func (s *suite) admin() client.Client { return s.admins[0] }

func (s *suite) client(config *rest.Config) client.Client {
	s.t.Helper()
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		s.t.Fatal(err)
	}
	return c
}

func (s *suite) eventually(check func() error) {
	s.t.Helper()
	kit.Eventually(s.t, patience, check)
}

// apply applies a manifest of the project.
func (s *suite) apply(path string) {
	s.t.Helper()
	content, err := os.ReadFile(filepath.Join(s.root, path))
	if err != nil {
		s.t.Fatal(err)
	}
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), 4096)
	for {
		object := &unstructured.Unstructured{}
		if err := decoder.Decode(object); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			s.t.Fatalf("%s: %v", path, err)
		}
		if object.Object == nil {
			continue
		}
		applied := client.ApplyConfigurationFromUnstructured(object)
		s.eventually(func() error {
			return s.admin().Apply(s.ctx(), applied, client.FieldOwner("integration"), client.ForceOwnership)
		})
	}
}

// resetPolicy makes the policy anew, as it is shipped.
func (s *suite) resetPolicy() {
	s.t.Helper()
	policy := &guardv1alpha1.SingletonPolicy{}
	policy.Name = guardv1alpha1.DefaultPolicyName
	if err := client.IgnoreNotFound(s.admin().Delete(s.ctx(), policy)); err != nil {
		s.t.Fatal(err)
	}
	s.apply("config/guard/policy.yaml")
}

// start starts a guard and waits until it is ready.
func (s *suite) start(config guardConfig) *guard {
	s.t.Helper()
	g := s.launch(config)
	err := g.process.Until(s.ctx(), func(ctx context.Context) error { return g.ready(ctx) })
	if err != nil {
		s.t.Fatalf("%v\n%s", err, g.stderr)
	}
	return g
}

// launch starts a guard under its own service account.
func (s *suite) launch(config guardConfig) *guard {
	s.t.Helper()
	program := kit.Build(s.t, guardProgram)
	token, err := s.cp.TokenConfig(s.ctx(), guardNamespace, "metacontroller-guard")
	if err != nil {
		s.t.Fatal(err)
	}
	name := fmt.Sprintf("guard-%d", len(s.guards))
	kubeconfig := filepath.Join(s.dir, name+".kubeconfig")
	api := s.cp.At(config.server, token)
	if config.proxy != nil {
		api = config.proxy.Through(api)
	}
	if err := kit.WriteKubeconfig(kubeconfig, api); err != nil {
		s.t.Fatal(err)
	}
	ports := make([]string, 3)
	for i := range ports {
		port, err := kit.FreePort()
		if err != nil {
			s.t.Fatal(err)
		}
		ports[i] = strconv.Itoa(port)
	}
	g := &guard{
		config:  config,
		audit:   filepath.Join(s.dir, name+".audit"),
		webhook: net.JoinHostPort("127.0.0.1", ports[0]),
		probes:  net.JoinHostPort("127.0.0.1", ports[1]),
		metrics: net.JoinHostPort("127.0.0.1", ports[2]),
		stderr:  &buffer{},
	}
	arguments := append([]string{
		"serve", "--kubeconfig=" + kubeconfig, "--tls-cert-dir=" + s.dir,
		"--bind-address=127.0.0.1", "--webhook-port=" + ports[0],
		"--health-probe-bind-address=" + g.probes, "--metrics-bind-address=" + g.metrics,
		"--audit-log=" + g.audit, "--replica=" + name, "--shutdown-delay=100ms", "--release-delay=1s",
		// What a test changes by hand counts at once.
		"--policy-max-age=0",
		// Long enough that a busy machine does not end a guard that leads.
		"--leader-elect-lease-duration=12s", "--leader-elect-renew-deadline=10s", "--leader-elect-retry-period=500ms",
	}, config.args...)
	spec := process.Spec{Name: name, Path: program, Args: arguments, Stdout: io.Discard, Stderr: g.stderr}
	if config.stdout != nil {
		spec.Path, spec.Files = "/bin/sh", []*os.File{config.stdout}
		spec.Args = append([]string{"-c", `exec "$0" "$@" >&3 3>&-`, program}, arguments...)
	}
	g.process, err = process.Start(spec)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		g.process.Stop()
		if s.t.Failed() {
			s.t.Logf("%s wrote:\n%s", name, g.stderr)
		}
	})
	s.guards = append(s.guards, g)
	return g
}

func (g *guard) ready(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+g.probes+"/readyz", nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("readyz answers %s", response.Status)
	}
	return nil
}

// point lets the balancer send to all guards that run.
func (s *suite) point() {
	var targets []string
	for _, g := range s.guards {
		if _, ended := g.process.Status(); !ended {
			targets = append(targets, g.webhook)
		}
	}
	s.balancer.point(targets...)
}

// recordSchema is what every line of every guard is held to.
var recordSchema = sync.OnceValues(func() (*jsonschema.Schema, error) {
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(audit.Schema()))
	if err != nil {
		return nil, err
	}
	compiler := jsonschema.NewCompiler()
	compiler.AssertFormat()
	if err := compiler.AddResource("record.json", document); err != nil {
		return nil, err
	}
	return compiler.Compile("record.json")
})

// records reads the audit logs of all guards, and holds each line to the schema.
func (s *suite) records() []audit.Record {
	s.t.Helper()
	schema, err := recordSchema()
	if err != nil {
		s.t.Fatal(err)
	}
	var records []audit.Record
	for _, g := range s.guards {
		content, err := os.ReadFile(g.audit)
		if err != nil && !os.IsNotExist(err) {
			s.t.Fatal(err)
		}
		for _, line := range strings.Split(strings.TrimSpace(string(content)), "\n") {
			if line == "" {
				continue
			}
			record := audit.Record{}
			if err := json.Unmarshal([]byte(line), &record); err != nil {
				s.t.Fatalf("audit line %q: %v", line, err)
			}
			if value, err := jsonschema.UnmarshalJSON(strings.NewReader(line)); err != nil || schema.Validate(value) != nil {
				s.t.Fatalf("audit line %q is not valid by the schema: %v, %v", line, err, schema.Validate(value))
			}
			records = append(records, record)
		}
	}
	return records
}

func (s *suite) policy() *guardv1alpha1.SingletonPolicy {
	s.t.Helper()
	policy := &guardv1alpha1.SingletonPolicy{}
	if err := s.admin().Get(s.ctx(), client.ObjectKey{Name: guardv1alpha1.DefaultPolicyName}, policy); err != nil {
		s.t.Fatal(err)
	}
	return policy
}

// phase waits until the holder is in a phase; empty waits for a free slot.
func (s *suite) phase(want guardv1alpha1.HolderPhase) *guardv1alpha1.SingletonPolicy {
	s.t.Helper()
	var policy *guardv1alpha1.SingletonPolicy
	s.eventually(func() error {
		policy = s.policy()
		got := guardv1alpha1.HolderPhase("")
		if policy.Status.Holder != nil {
			got = policy.Status.Holder.Phase
		}
		if got != want {
			return fmt.Errorf("phase is %q, want %q", got, want)
		}
		return nil
	})
	return policy
}

// namespace makes a namespace for one test.
func (s *suite) namespace(prefix string) string {
	s.t.Helper()
	namespace := &corev1.Namespace{}
	namespace.GenerateName = prefix + "-"
	if err := s.admin().Create(s.ctx(), namespace); err != nil {
		s.t.Fatal(err)
	}
	return namespace.Name
}

// httpClient trusts the guards' certificate.
func (s *suite) httpClient() *http.Client {
	return &http.Client{
		Timeout:   patience,
		Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: s.cp.CA().Pool(), MinVersion: tls.VersionTLS13}, ForceAttemptHTTP2: true},
	}
}
