package app

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

const kubeconfig = `
apiVersion: v1
kind: Config
current-context: c
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
contexts: [{name: c, context: {cluster: c, user: u}}]
users: [{name: u, user: {token: t}}]
`

func complete(t *testing.T, arguments ...string) *Config {
	t.Helper()
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	var options Options
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	options.AddFlags(flags)
	if err := flags.Parse(doubleDashes(append(arguments, "--kubeconfig="+path), flags)); err != nil {
		t.Fatal(err)
	}
	config, err := options.Complete(func(name string) string {
		return map[string]string{"POD_NAMESPACE": "mine"}[name]
	})
	if err != nil {
		t.Fatal(err)
	}
	return config
}

// The defaults are those of the public Metacontroller.
func TestDefaults(t *testing.T) {
	c := complete(t)
	if c.DiscoveryInterval != 30*time.Second || c.CacheFlushInterval != 30*time.Minute || c.Workers != 5 {
		t.Errorf("%+v", c.Options)
	}
	if c.MetricsAddress != ":9999" || c.HealthAddress != ":8081" || c.PprofAddress != "0" {
		t.Errorf("%+v", c.Options)
	}
	if c.EventsBurst != 25 || c.EventsQPS != float32(1./300.) || c.Rest.QPS != -1 {
		t.Errorf("%+v, QPS %v", c.Options, c.Rest.QPS)
	}
	if c.LeaderElection || c.LeaderElectionID != "metacontroller" || c.LeaderElectionNamespace != "mine" || c.Namespace != "mine" {
		t.Errorf("%+v", c.Options)
	}
	if c.SingletonNamespace != "kube-system" || c.SingletonName != "metacontroller" || !c.Selector.Empty() {
		t.Errorf("%+v", c.Options)
	}
}

func TestAllFlagsOfThePublicOne(t *testing.T) {
	c := complete(t,
		"--discovery-interval=20s", "--cache-flush-interval=1m", "--metrics-address=127.0.0.1:1", "--client-go-qps=5", "--client-go-burst=10",
		"--workers=7", "--events-qps=1", "--events-burst=2", "--pprof-address=127.0.0.1:2", "--leader-election=true",
		"--leader-election-resource-lock=leases", "--leader-election-namespace=a", "--leader-election-id=b",
		"--health-probe-bind-address=127.0.0.1:3", "--target-label-selector=a=b,c!=d", "--apply-strategy=dynamic-apply",
		"--apply-strategy-ssa-field-manager=me", "--zap-devel=true", "--zap-encoder=json", "--zap-log-level=4",
		"--zap-stacktrace-level=panic", "--zap-time-encoding=iso8601")
	if c.Rest.QPS != 5 || c.Rest.Burst != 10 || c.Workers != 7 || !c.LeaderElection || c.LeaderElectionNamespace != "a" {
		t.Errorf("%+v", c.Options)
	}
	if c := complete(t, "--client-go-qps=0.2"); c.Rest.Burst != 1 {
		t.Errorf("burst is %d", c.Rest.Burst)
	}
}

func TestFieldManager(t *testing.T) {
	if got := complete(t).fieldManager(); got != "" {
		t.Errorf("%q without server-side apply", got)
	}
	if got := complete(t, "--apply-strategy=server-side-apply").fieldManager(); got != "metacontroller" {
		t.Errorf("%q by default", got)
	}
	if got := complete(t, "--apply-strategy=server-side-apply", "--apply-strategy-ssa-field-manager=me").fieldManager(); got != "me" {
		t.Errorf("%q is not the one of the flag", got)
	}
	for name, valid := range map[string]bool{
		"a": true, "my manager/1": true, strings.Repeat("x", 128): true, strings.Repeat("x", 129): false, "": false, "a\nb": false, "\xff": false,
	} {
		if isFieldManager(name) != valid {
			t.Errorf("%q: valid %t", name, !valid)
		}
	}
}

func TestDoubleDashes(t *testing.T) {
	flags := pflag.NewFlagSet("test", pflag.ContinueOnError)
	flags.String("workers", "", "")
	flags.BoolP("verbose", "v", false, "")
	got := doubleDashes([]string{"-workers=1", "-workers", "2", "--workers=3", "-v", "-unknown", "-", "--"}, flags)
	want := []string{"--workers=1", "--workers", "2", "--workers=3", "-v", "-unknown", "-", "--"}
	if !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}
