package app

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const (
	firstManifest = `apiVersion: apps/v1
kind: StatefulSet
metadata: {name: mc, namespace: prod}
spec: {template: {spec: {containers: [{name: main, image: "ghcr.io/metacontroller/metacontroller:v4"}]}}}
`
	harmlessManifest = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n"
)

// call runs a command line and returns what it wrote.
func call(stdin string, args ...string) (code int, stdout, stderr string) {
	var out, err bytes.Buffer
	code = Main(append([]string{"/usr/local/bin/guard"}, args...), Streams{In: strings.NewReader(stdin), Out: &out, Err: &err})
	return code, out.String(), err.String()
}

func file(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// unreachable is a kubeconfig of an API server that nobody runs.
func unreachable(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	return file(t, "kubeconfig", "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{name: c, cluster: {server: \"https://"+address+"\"}}]\ncontexts: [{name: c, context: {cluster: c, user: u}}]\nusers: [{name: u, user: {token: t}}]\n")
}

// TestExitCodes has each code of each verb.
//
//	case I10
func TestExitCodes(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	first, harmless := file(t, "first.yaml", firstManifest), file(t, "harmless.yaml", harmlessManifest)
	second := file(t, "second.yaml", strings.Replace(firstManifest, "name: mc", "name: second", 1))
	broken := file(t, "broken.yaml", "# Broken.\nkind: [\n---\n"+firstManifest)
	policy := file(t, "policy.yaml", "apiVersion: guard.metacontroller.io/v1alpha1\nkind: SingletonPolicy\nmetadata: {name: ours}\nspec: {holder: {namespace: prod, name: other}}\n")
	closed := "--kubeconfig=" + unreachable(t)
	for _, test := range []struct {
		name   string
		stdin  string
		args   []string
		code   int
		output string
	}{
		{"clean", "", []string{"check", harmless}, exitOK, "1 file, 1 object, 0 instances: 0 violations, 0 warnings\n"},
		{"the first", "", []string{"check", first}, exitOK, "1 file, 1 object, 1 instance: 0 violations, 0 warnings\n"},
		{"the first, told", "", []string{"check", "-v", first}, exitOK, "first.yaml:1: passed: StatefulSet prod/mc: may be there\n"},
		{"I11: piped", "---\n# Source: x\n---\n" + firstManifest, []string{"check", "-"}, exitOK, "1 file, 1 object, 1 instance"},
		{"A25: two", "", []string{"check", first, second}, exitFailure, "second.yaml:1: violation: StatefulSet prod/second: second-workload: prod/mc holds the slot, only one may\n"},
		{"the slot is taken", "", []string{"check", "--holder=a/b", first}, exitFailure, "second-workload: a/b holds the slot"},
		{"by a policy", "", []string{"check", "--policy", policy, first}, exitFailure, "pec.holder of SingletonPolicy ours is prod/other"},
		{"bad file, and the rest is judged", "", []string{"check", broken, second}, exitUsage, "broken.yaml:2: error: cannot read this as YAML"},
		{"bad file, and the rest is judged", "", []string{"check", broken, second}, exitUsage, "second.yaml:1: violation"},
		{"no such file", "", []string{"check", "/nowhere.yaml"}, exitUsage, "/nowhere.yaml: error: cannot stat: no such file or directory\n"},
		{"nothing piped", "", []string{"check", "-"}, exitUsage, "no object is in -: did what should have written it fail?"},
		{"no file", "", []string{"check"}, exitUsage, "nothing to check"},
		{"no name of a file", "", []string{"check", ""}, exitUsage, "nothing to check"},
		{"bad format", "", []string{"check", "-o", "html", first}, exitUsage, `--output "html" is none of [text json sarif junit]`},
		{"bad holder", "", []string{"check", "--holder", "b", first}, exitUsage, "write it as namespace/name"},
		{"bad limit", "", []string{"check", "--max-document", "0", first}, exitUsage, "--max-document 0 is out of bounds"},
		{"bad flag", "", []string{"check", "--nothing", first}, exitUsage, "unknown flag: --nothing; see guard --help"},
		{"bad policy", "", []string{"check", "--policy", first, first}, exitUsage, `first.yaml:1: want a SingletonPolicy of guard.metacontroller.io/v1alpha1, got a "StatefulSet" of "apps/v1"`},
		{"no verb", "", nil, exitUsage, "no verb given"},
		{"unknown verb", "", []string{"destroy"}, exitUsage, `unknown argument "destroy"`},
		{"version", "", []string{"--version"}, exitOK, "\n"},
		{"explain, nobody there", "", []string{"explain", closed}, exitUnreachable, "cannot reach https://127.0.0.1:"},
		{"scan, nobody there", "", []string{"scan", closed}, exitUnreachable, "cannot reach https://127.0.0.1:"},
		{"verify, nobody there", "", []string{"verify", closed}, exitUnreachable, "cannot reach https://127.0.0.1:"},
		{"no kubeconfig", "", []string{"scan", "--kubeconfig=/nowhere"}, exitUsage, "give a kubeconfig with --kubeconfig"},
		{"no such context", "", []string{"scan", closed, "--context=prod"}, exitUsage, `context "prod" does not exist`},
		{"explain, no name", "", []string{"explain", closed, "statefulset"}, exitUsage, "write it as statefulset/name"},
		{"verify, bad Secret", "", []string{"verify", closed, "--tls-secret=x"}, exitUsage, "write it as namespace/name"},
		{"static without holder", "", []string{"render", "--static"}, exitUsage, "--static needs --holder namespace/name"},
		{"holder without static", "", []string{"render", "--holder=a/b"}, exitUsage, "--holder is for --static"},
		{"static", "", []string{"render", "--static", "--holder=a/b"}, exitOK, "name: metacontroller-guard-pin.static.k8s.io\n"},
		{"static by a policy", "", []string{"render", "--static", "--policy-file", policy}, exitOK, `dyn("prod")`},
	} {
		t.Run(test.name, func(t *testing.T) {
			code, stdout, stderr := call(test.stdin, test.args...)
			if code != test.code || !strings.Contains(stdout+stderr, test.output) {
				t.Errorf("exit code %d, want %d; stdout:\n%s\nstderr:\n%s", code, test.code, stdout, stderr)
			}
		})
	}
}

// TestFormatsAreRead reads each format with a reader of its own.
func TestFormatsAreRead(t *testing.T) {
	first := file(t, "first.yaml", firstManifest+"---\n"+strings.Replace(firstManifest, "name: mc", "name: second", 1))
	for format, read := range map[string]func([]byte) error{
		"json":  func(b []byte) error { return json.Unmarshal(b, &map[string]any{}) },
		"sarif": func(b []byte) error { return json.Unmarshal(b, &map[string]any{}) },
		"junit": func(b []byte) error { return xml.Unmarshal(b, &struct{ XMLName xml.Name }{}) },
	} {
		code, stdout, _ := call("", "check", "-o", format, first)
		if err := read([]byte(stdout)); err != nil || code != exitFailure || !strings.Contains(stdout, "second-workload") {
			t.Errorf("%s: exit code %d, %v: %s", format, code, err, stdout)
		}
	}
}

// TestNoColor has an output that is no terminal, and text from a manifest that
// would paint one.
func TestNoColor(t *testing.T) {
	_, stdout, stderr := call(strings.Replace(firstManifest, "name: mc", `name: "\e[31mred\n\u202e"`, 1)+"---\nkind: \"\\e[31m\"\n", "check", "--holder=a/b", "-")
	if strings.ContainsAny(stdout+stderr, "\x1b\u202e") || !strings.Contains(stdout, `StatefulSet prod/\x1b[31mred\n\u202e: second-workload`) {
		t.Errorf("stdout:\n%s\nstderr:\n%s", stdout, stderr)
	}
}

func TestCalledAs(t *testing.T) {
	for path, want := range map[string]string{
		"/usr/bin/guard":                   "guard",
		"./kubectl-solo_guard":             "kubectl solo-guard",
		"kubectl-solo-guard.exe":           "kubectl solo guard",
		"kubectl-":                         "guard",
		"/tmp/metacontroller-guard-v1.2.3": "guard",
	} {
		if got := calledAs(path); got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
	var out, err bytes.Buffer
	code := Main([]string{"/bin/kubectl-solo_guard", "check", "--help"}, Streams{Out: &out, Err: &err})
	if code != exitOK || !strings.Contains(out.String(), "kubectl solo-guard check FILE|FOLDER|-...") || !strings.Contains(out.String(), "| kubectl solo-guard check -") {
		t.Errorf("exit code %d:\n%s%s", code, &out, &err)
	}
	if code := Main([]string{"/bin/kubectl-solo_guard", "destroy"}, Streams{Out: &out, Err: &err}); code != exitUsage || !strings.Contains(err.String(), "see kubectl solo-guard --help") {
		t.Errorf("exit code %d: %s", code, &err)
	}
}

// TestHelp holds every verb to a help with an example whose flags exist.
func TestHelp(t *testing.T) {
	root := newCommand(programName, Streams{Out: &bytes.Buffer{}, Err: &bytes.Buffer{}})
	for _, command := range root.Commands() {
		switch command.Name() {
		case "serve", "version", "help", "completion":
			continue
		}
		if command.Example == "" || command.Short == "" {
			t.Errorf("%s has no example, or no text", command.Name())
		}
		for line := range strings.SplitSeq(command.Example, "\n") {
			for _, word := range strings.Fields(line) {
				name, isFlag := strings.CutPrefix(word, "--")
				if name, _, _ = strings.Cut(name, "="); isFlag && flagOf(command, name) == nil {
					t.Errorf("%s: the example has --%s, which is no flag", command.Name(), name)
				}
			}
		}
	}
}

func flagOf(command *cobra.Command, name string) *pflag.Flag { return command.Flags().Lookup(name) }

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if code, stdout, stderr := call("", "completion", shell); code != exitOK || !strings.Contains(stdout, "guard") {
			t.Errorf("%s: exit code %d: %s", shell, code, stderr)
		}
	}
	_, stdout, _ := call("", "__complete", "check", "-o", "")
	for _, format := range []string{"text", "json", "sarif", "junit"} {
		if !strings.Contains(stdout, format+"\n") {
			t.Errorf("%s is not offered: %s", format, stdout)
		}
	}
}

// TestManyFindings is capped, and counted.
func TestManyFindings(t *testing.T) {
	var b strings.Builder
	for i := range 1500 {
		fmt.Fprintf(&b, "{\"apiVersion\":\"v1\",\"kind\":\"Pod\",\"metadata\":{\"name\":\"p%d\"},\"spec\":{\"containers\":[{\"name\":\"m\",\"image\":\"metacontroller/metacontroller\"}]}}\n", i)
	}
	code, stdout, _ := call(b.String(), "check", "-")
	if code != exitFailure || !strings.HasSuffix(stdout, "and 500 more\n1 file, 1500 objects, 1500 instances: 1500 violations, 0 warnings\n") {
		t.Errorf("exit code %d: %s", code, stdout[max(0, len(stdout)-300):])
	}
}
