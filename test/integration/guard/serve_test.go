package guard_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/kit/process"
)

// run runs the program to its end and returns the exit code and standard error.
func run(t *testing.T, args ...string) (int, string) {
	t.Helper()
	program := kit.Build(t, guardProgram)
	stderr := &buffer{}
	p, err := process.Start(process.Spec{Name: "guard", Path: program, Args: args, Stdout: io.Discard, Stderr: stderr})
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.Done():
	case <-time.After(2 * patience):
		p.Kill()
		t.Fatalf("still runs; wrote %s", stderr)
	}
	status, _ := p.Status()
	return status.Code, stderr.String()
}

func TestCannotStart(t *testing.T) {
	s := prepare(t)
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	_, busyPort, _ := net.SplitHostPort(busy.Addr().String())
	port, err := kit.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := func(name string, config *rest.Config) string {
		path := filepath.Join(s.dir, name)
		if err := kit.WriteKubeconfig(path, config); err != nil {
			t.Fatal(err)
		}
		return "--kubeconfig=" + path
	}
	admin := kubeconfig("admin", s.cp.AdminConfig(0))
	nobody, err := s.cp.UserConfig("nobody")
	if err != nil {
		t.Fatal(err)
	}
	away := s.cp.AdminConfig(0)
	away.Host = fmt.Sprintf("https://127.0.0.1:%d", port)
	garbage := filepath.Join(s.dir, "garbage")
	if err := os.WriteFile(garbage, []byte("{]"), 0o600); err != nil {
		t.Fatal(err)
	}
	serve := func(args ...string) []string {
		return append([]string{
			"serve", "--tls-cert-dir=" + s.dir, "--bind-address=127.0.0.1", fmt.Sprintf("--webhook-port=%d", port),
			"--metrics-bind-address=0", "--health-probe-bind-address=0",
		}, args...)
	}
	tests := map[string]struct {
		args []string
		code int
		says []string
	}{
		"no verb":                {nil, 2, []string{"no verb"}},
		"unknown verb":           {[]string{"dance"}, 2, []string{"dance"}},
		"unknown flag":           {serve("--dance"), 2, []string{"--dance"}},
		"bad duration":           {serve("--release-delay=soon"), 2, []string{"release-delay"}},
		"bad address":            {serve("--bind-address=here"), 2, []string{"--bind-address", "here"}},
		"bad port":               {serve("--webhook-port=0"), 2, []string{"--webhook-port"}},
		"bad metrics address":    {serve("--metrics-bind-address=8080"), 2, []string{"--metrics-bind-address"}},
		"bad lease":              {serve("--leader-elect-lease-duration=1s"), 2, []string{"--leader-elect-lease-duration"}},
		"missing kubeconfig":     {serve("--kubeconfig=/does/not/exist"), 1, []string{"/does/not/exist", "--kubeconfig"}},
		"unreadable kubeconfig":  {serve("--kubeconfig=" + garbage), 1, []string{garbage}},
		"missing certificate":    {serve(admin, "--tls-cert-dir="+t.TempDir()), 1, []string{"tls.crt", "--tls-cert-dir"}},
		"busy port":              {serve(admin, "--webhook-port="+busyPort), 1, []string{busyPort, "--webhook-port"}},
		"busy metrics port":      {serve(admin, "--metrics-bind-address=127.0.0.1:"+busyPort), 1, []string{busyPort, "--metrics-bind-address"}},
		"busy probe port":        {serve(admin, "--health-probe-bind-address=127.0.0.1:"+busyPort), 1, []string{busyPort, "--health-probe-bind-address"}},
		"audit log in no folder": {serve(admin, "--audit-log="+filepath.Join(s.dir, "no", "log")), 1, []string{"audit log", "no/log"}},
		"API server away":        {serve(kubeconfig("away", away)), 1, []string{away.Host}},
		"no permission":          {serve(kubeconfig("nobody", nobody)), 1, []string{"forbidden", "config/guard"}},
	}
	check := func(t *testing.T, code, wantCode int, stderr string, says []string) {
		t.Helper()
		if code != wantCode {
			t.Errorf("exit code %d, want %d", code, wantCode)
		}
		if strings.Count(strings.TrimSpace(stderr), "\n") != 0 || !strings.HasPrefix(stderr, "guard: ") {
			t.Errorf("not one line: %q", stderr)
		}
		for _, part := range says {
			if !strings.Contains(stderr, part) {
				t.Errorf("%q does not say %q", stderr, part)
			}
		}
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			code, stderr := run(t, test.args...)
			check(t, code, test.code, stderr, test.says)
		})
	}
	t.Run("missing CRD", func(t *testing.T) {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		crd.Name = guardv1alpha1.SingletonPolicyResource + "." + guardv1alpha1.GroupVersion.Group
		if err := s.admin().Delete(s.ctx(), crd); err != nil {
			t.Fatal(err)
		}
		s.eventually(func() error {
			if err := s.admin().Get(s.ctx(), client.ObjectKeyFromObject(crd), crd); !apierrors.IsNotFound(err) {
				return fmt.Errorf("CRD is still there: %v", err)
			}
			return nil
		})
		s.eventually(func() error {
			code, stderr := run(t, serve(admin)...)
			if code != 1 || !strings.Contains(stderr, "apply config/crd") {
				return fmt.Errorf("exit code %d: %s", code, stderr)
			}
			check(t, code, 1, stderr, []string{"singletonpolicies", "config/crd"})
			return nil
		})
	})
}

func TestTLS(t *testing.T) {
	s := prepare(t)
	g := s.start(guardConfig{})
	old := &tls.Config{RootCAs: s.cp.CA().Pool(), MinVersion: tls.VersionTLS12, MaxVersion: tls.VersionTLS12}
	if conn, err := tls.Dial("tcp", g.webhook, old); err == nil {
		_ = conn.Close()
		t.Fatal("TLS 1.2 was accepted")
	}
	serial := func() string {
		conn, err := tls.Dial("tcp", g.webhook, &tls.Config{RootCAs: s.cp.CA().Pool(), MinVersion: tls.VersionTLS13})
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	before := serial()
	pair, err := s.cp.CA().IssueServer("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	if err := pair.Write(s.dir, "tls"); err != nil {
		t.Fatal(err)
	}
	s.eventually(func() error {
		if serial() == before {
			return fmt.Errorf("still the old certificate")
		}
		return nil
	})
}

func TestMalformedReviewOverTLS(t *testing.T) {
	s := prepare(t)
	g := s.start(guardConfig{})
	for name, body := range map[string]string{"empty": "", "not JSON": "{", "no request": `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`} {
		t.Run("E19 "+name, func(t *testing.T) {
			response, err := s.httpClient().Post("https://"+g.webhook+"/validate", "application/json", strings.NewReader(body))
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			if response.StatusCode != http.StatusBadRequest {
				t.Errorf("got %s", response.Status)
			}
		})
	}
	if records := s.records(); len(records) != 0 {
		t.Fatalf("left records: %+v", records)
	}
}

// TestTerminated ends a guard while a request is under way: it is answered, new
// ones are sent elsewhere meanwhile, and the exit code is 0.
func TestTerminated(t *testing.T) {
	s := prepare(t)
	g := s.start(guardConfig{args: []string{"--shutdown-delay=500ms"}})
	conn, err := tls.Dial("tcp", g.webhook, &tls.Config{RootCAs: s.cp.CA().Pool(), MinVersion: tls.VersionTLS13})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := []byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"r1","operation":"CREATE","namespace":"default",
		"kind":{"group":"apps","version":"v1","kind":"Deployment"},"resource":{"group":"apps","version":"v1","resource":"deployments"},
		"object":{"metadata":{"name":"mc"},"spec":{"template":{"spec":{"containers":[{"name":"m","image":"ghcr.io/metacontroller/metacontroller"}]}}}}}}`)
	if _, err := fmt.Fprintf(conn, "POST /validate HTTP/1.1\r\nHost: guard\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", len(body)); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write(body[:10]); err != nil {
		t.Fatal(err)
	}
	if err := g.process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	s.eventually(func() error {
		ctx, cancel := context.WithTimeout(s.ctx(), time.Second)
		defer cancel()
		if err := g.ready(ctx); err == nil {
			return fmt.Errorf("still ready")
		}
		return nil
	})
	if _, err := conn.Write(body[10:]); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	answer, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || !bytes.Contains(answer, []byte("workload-kind")) {
		t.Fatalf("got %s %s, %v", response.Status, answer, err)
	}
	_ = conn.Close()
	select {
	case <-g.process.Done():
	case <-time.After(patience):
		t.Fatal("does not end")
	}
	if status, _ := g.process.Status(); status.Code != 0 {
		t.Fatalf("ended with %s", status)
	}
	if records := s.records(); len(records) != 1 || records[0].AdmissionUID != "r1" {
		t.Fatalf("records are %+v", records)
	}
}
