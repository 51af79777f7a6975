package controller_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/metacontroller-solo/solo/test/kit"
)

// TestBadInput is about what ends the program: one line that says what and how to
// mend it, and a code that is not 0.
func TestBadInput(t *testing.T) {
	f := newFixture(t)
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	broken := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(broken, []byte("{ not yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := []struct {
		name string
		args []string
		code int
		says []string
	}{
		{"unknown flag", []string{"--no-such-flag"}, 2, []string{"no-such-flag", "--help"}},
		{"argument", []string{"run"}, 2, []string{`"run"`, "no arguments"}},
		{"not a duration", []string{"--discovery-interval=often"}, 2, []string{"discovery-interval", "often"}},
		{"no interval", []string{"--discovery-interval=0s"}, 2, []string{"--discovery-interval", "more than 0"}},
		{"no workers", []string{"--workers=0"}, 2, []string{"--workers", "1 or more"}},
		{"not an address", []string{"--metrics-address=localhost"}, 2, []string{"--metrics-address", "host:port"}},
		{"lock", []string{"--leader-election-resource-lock=endpoints"}, 2, []string{"--leader-election-resource-lock", "leases"}},
		{"apply strategy", []string{"--apply-strategy=guess"}, 2, []string{"--apply-strategy", "dynamic-apply"}},
		{"selector", []string{"--target-label-selector=a in"}, 2, []string{"--target-label-selector"}},
		{"lease name", []string{"--singleton-lease-name=A B"}, 2, []string{"--singleton-lease-name"}},
		{"two at once", []string{"--workers=0", "--apply-strategy=guess"}, 2, []string{"--workers", "--apply-strategy"}},
		{"kubeconfig is not there", []string{"--kubeconfig=/nowhere/kubeconfig"}, 2, []string{"/nowhere/kubeconfig", "--kubeconfig"}},
		{"kubeconfig is broken", []string{"--kubeconfig=" + broken}, 2, []string{broken}},
		{"busy metrics port", []string{"--metrics-address=" + busy.Addr().String()}, 1, []string{"in use", "--metrics-address"}},
		{"busy health port", []string{"--health-probe-bind-address=" + busy.Addr().String()}, 1, []string{"in use", "--health-probe-bind-address"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := kit.Run(t, kit.Build(t, "./cmd/controller"), f.arguments(c.args...))
			if code := p.ExitCode(soon); code != c.code {
				t.Errorf("exit code %d, not %d", code, c.code)
			}
			lines := strings.Split(strings.TrimSpace(p.Output()), "\n")
			if len(lines) != 1 || !strings.HasPrefix(lines[0], "metacontroller: ") {
				t.Errorf("output is not one line of the program: %q", lines)
			}
			for _, text := range c.says {
				if !strings.Contains(lines[0], text) {
					t.Errorf("it does not say %q: %s", text, lines[0])
				}
			}
		})
	}
}

func TestUnreachableAPIServer(t *testing.T) {
	f := newFixture(t)
	config := f.cp.AdminConfig(0)
	port, err := kit.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	config.Host = fmt.Sprintf("https://127.0.0.1:%d", port)
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := kit.WriteKubeconfig(path, config); err != nil {
		t.Fatal(err)
	}
	p := kit.Run(t, kit.Build(t, "./cmd/controller"), f.arguments("--kubeconfig="+path))
	begin := time.Now()
	if code := p.ExitCode(2 * time.Minute); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if took := time.Since(begin); took < 20*time.Second {
		t.Errorf("it gave up after %s", took)
	}
	p.WaitLine(time.Second, "metacontroller: cannot reach the API server after 6 attempts")
}

func TestMissingCRDs(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cp, err := kit.Start(ctx, kit.Options{WithoutControllers: true})
	if err != nil {
		t.Fatal(err)
	}
	defer cp.Stop()
	p := kit.Run(t, kit.Build(t, "./cmd/controller"), []string{
		"--kubeconfig=" + cp.Kubeconfig(0), "--metrics-address=127.0.0.1:0", "--health-probe-bind-address=127.0.0.1:0",
	})
	if code := p.ExitCode(soon); code != 1 {
		t.Errorf("exit code %d", code)
	}
	line := p.WaitLine(time.Second, "metacontroller: ")
	for _, text := range []string{"compositecontrollers.metacontroller.k8s.io", "kubectl apply -k config/crd"} {
		if !strings.Contains(line, text) {
			t.Errorf("it does not say %q: %s", text, line)
		}
	}
}

func TestEndpoints(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	cc := f.composite(nil)
	ports := map[string]string{}
	for _, name := range []string{"health", "metrics", "pprof"} {
		port, err := kit.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		ports[name] = fmt.Sprintf("127.0.0.1:%d", port)
	}
	// One dash is as good as two.
	f.start("-health-probe-bind-address="+ports["health"], "-metrics-address", ports["metrics"], "--pprof-address="+ports["pprof"])
	f.thing("a", object{"count": 1, "value": "x"})
	f.waitChildren("a-", map[string]string{"a-0": "x"})

	get := func(url string) (string, error) {
		response, err := http.Get(url)
		if err != nil {
			return "", err
		}
		defer response.Body.Close()
		body, err := io.ReadAll(io.LimitReader(response.Body, 4<<20))
		if response.StatusCode != http.StatusOK {
			return "", fmt.Errorf("%s: %s", url, response.Status)
		}
		return string(body), err
	}
	for _, url := range []string{"http://" + ports["health"] + "/healthz", "http://" + ports["health"] + "/readyz", "http://" + ports["pprof"] + "/debug/pprof/"} {
		if _, err := get(url); err != nil {
			t.Error(err)
		}
	}
	labels := fmt.Sprintf(`controller_name=%q,controller_type="CompositeController"`, f.ns)
	body, err := get("http://" + ports["metrics"] + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	for _, series := range []string{
		"metacontroller_sync_requests_total{code=\"200\"," + labels,
		"metacontroller_sync_request_duration_histogram_seconds_bucket{" + labels,
		"metacontroller_sync_in_flight_requests{" + labels,
		fmt.Sprintf(`workqueue_depth{controller="CompositeController-%s",name="CompositeController-%s"`, f.ns, f.ns),
		`controller_runtime_reconcile_total{controller="composite-metacontroller"`,
		"rest_client_requests_total{",
		"process_cpu_seconds_total",
		"go_goroutines",
	} {
		if !strings.Contains(body, series) {
			t.Errorf("no series %s", series)
		}
	}
	f.delete(cc)
	kit.Eventually(t, soon, func() error {
		body, err := get("http://" + ports["metrics"] + "/metrics")
		if err == nil && strings.Contains(body, f.ns) {
			return fmt.Errorf("the metrics of a removed controller are still there")
		}
		return err
	})
}
