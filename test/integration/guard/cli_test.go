package guard_test

import (
	"bytes"
	"encoding/json"
	"errors"

	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
)

// Exit codes, as docs/cli.md has them.
const (
	clean       = 0
	violation   = 1
	badInput    = 2
	unreachable = 3
)

// cli is the program as a person runs it.
type cli struct {
	*suite
	program   string
	namespace string
	admin     string
}

// kubeconfig writes the file of a user.
func (c *cli) kubeconfig(name string, config *rest.Config) string {
	c.t.Helper()
	path := filepath.Join(c.dir, name+".kubeconfig")
	if err := kit.WriteKubeconfig(path, config); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// user makes a user who may do what the rules say, and nothing else.
func (c *cli) user(name string, rules ...rbacv1.PolicyRule) string {
	c.t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "cli-" + name}, Rules: rules}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "cli-" + name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}},
	}
	for _, object := range []client.Object{role, binding} {
		if err := c.suite.admin().Create(c.ctx(), object); err != nil {
			c.t.Fatal(err)
		}
		c.t.Cleanup(func() { _ = c.suite.admin().Delete(ctxWithoutCancel(c.suite), object) })
	}
	config, err := c.cp.UserConfig(name)
	if err != nil {
		c.t.Fatal(err)
	}
	return c.kubeconfig(name, config)
}

// run runs the program and returns its exit code and what it wrote.
func (c *cli) run(stdin, kubeconfig string, args ...string) (int, string) {
	c.t.Helper()
	command := exec.CommandContext(c.ctx(), c.program, args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig)
	command.Stdin = strings.NewReader(stdin)
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	err := command.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		c.t.Fatal(err)
	}
	return command.ProcessState.ExitCode(), output.String()
}

// expect runs the program and holds it to a code and to parts of what it writes.
func (c *cli) expect(code int, stdin, kubeconfig string, args []string, parts ...string) string {
	c.t.Helper()
	got, output := c.run(stdin, kubeconfig, args...)
	if got != code {
		c.t.Errorf("guard %s: exit code %d, want %d:\n%s", strings.Join(args, " "), got, code, output)
	}
	for _, part := range parts {
		if !strings.Contains(output, part) {
			c.t.Errorf("guard %s: no %q in:\n%s", strings.Join(args, " "), part, output)
		}
	}
	return output
}

const secondManifest = `{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"second","namespace":"default"},
"spec":{"template":{"spec":{"containers":[{"name":"main","image":"` + instanceImage + `"}]}}}}`

// TestCommandLine runs the built program against a cluster with a guard.
//
//	case I10
func TestCommandLine(t *testing.T) {
	s := install(t, 1, allLayers)
	c := &cli{suite: s, program: kit.Build(t, guardProgram), namespace: s.namespace("cli"), admin: s.cp.Kubeconfig(0)}
	if err := s.admin().Create(s.ctx(), statefulSet(c.namespace, "mc")); err != nil {
		t.Fatal(err)
	}
	s.phase(guardv1alpha1.HolderBound)
	s.awaitPod(c.namespace, "mc-0", "")
	s.eventually(func() error {
		if s.policy().Status.ActivePod == nil {
			return errors.New("no active Pod yet")
		}
		return nil
	})
	for _, test := range []struct {
		name string
		run  func(*cli)
	}{
		{"offline", (*cli).offline}, {"explain", (*cli).explain}, {"permissions", (*cli).permissions},
		{"scan", (*cli).scan}, {"verify", (*cli).verify}, {"unreachable", (*cli).unreachable},
	} {
		t.Run(test.name, func(t *testing.T) {
			one := *c
			one.suite = s.at(t)
			test.run(&one)
		})
	}
}

func (c *cli) offline() {
	c.expect(clean, secondManifest, "", []string{"check", "-"})
	c.expect(violation, secondManifest, "", []string{"check", "--holder=a/b", "-"}, "second-workload")
	c.expect(badInput, "kind: [", "", []string{"check", "-"}, "stdin:1: error: ")
	c.expect(unreachable, "", "", []string{"explain", "--server=https://127.0.0.1:1"}, "cannot reach https://127.0.0.1:1")
}

func (c *cli) explain() {
	c.expect(clean, "", c.admin, []string{"explain"},
		"Holder:      StatefulSet "+c.namespace+"/mc, Bound since ", "Active Pod:  "+c.namespace+"/mc-0", "Enforcing:   True", "second-workload")
	c.expect(violation, "", c.admin, []string{"explain", "sts/mc", "-n", c.namespace},
		"StatefulSet "+c.namespace+"/mc, created now: allowed: it breaks no rule", "recognised by image", "scaled to 2: refused: scale-above-one")
	c.expect(violation, secondManifest, c.admin, []string{"explain", "-f", "-"}, "stdin:1: StatefulSet default/second, created now: refused: second-workload")
	c.expect(badInput, "kind: [", c.admin, []string{"explain", "-f", "-"}, "stdin:1: cannot read this as YAML")
	c.expect(badInput, "", c.admin, []string{"explain", "statefulset/nobody"}, `"nobody" not found`)
	c.expect(badInput, "", c.admin, []string{"explain", "rocket/nobody"}, `the cluster has no type "rocket"`)
	c.expect(clean, "", c.admin, []string{"explain", "--policy=other"}, "it does not exist")

	output := c.expect(clean, "", c.admin, []string{"explain", "-o", "json"})
	view := struct {
		Slots []struct {
			State  string
			Holder struct{ Namespace, Name string }
		}
		Rules   []struct{ ID string }
		Missing []string
	}{}
	if err := json.Unmarshal([]byte(output), &view); err != nil {
		c.t.Fatalf("%v: %s", err, output)
	}
	if len(view.Slots) != 1 || view.Slots[0].State != "Bound" || view.Slots[0].Holder.Namespace != c.namespace || len(view.Rules) < 8 || len(view.Missing) != 0 {
		c.t.Errorf("got %+v", view)
	}
}

// permissions are those of people who may do little.
func (c *cli) permissions() {
	nothing := c.user("nothing")
	reader := c.user("reader", rbacv1.PolicyRule{APIGroups: []string{guardv1alpha1.GroupVersion.Group}, Resources: []string{"singletonpolicies"}, Verbs: []string{"get"}})
	for _, verb := range []string{"explain", "scan"} {
		c.expect(unreachable, "", nothing, []string{verb}, `cannot get resource "singletonpolicies" in API group "guard.metacontroller.io"`, "ask for that permission")
	}
	c.expect(unreachable, "", nothing, []string{"verify"}, "policy: cannot look: ", "webhook: the dry run was not let as far as the guard", "nothing could be checked")
	c.expect(clean, "", reader, []string{"explain"}, "Holder:      StatefulSet "+c.namespace+"/mc", `Not known:   since when the active Pod runs: `, `cannot get resource "pods"`)
	c.expect(unreachable, "", reader, []string{"explain", "statefulset/mc", "-n", c.namespace}, `cannot get resource "statefulsets" in API group "apps"`)
	c.expect(violation, secondManifest, reader, []string{"explain", "-f", "-"}, "second-workload")
}

func (c *cli) scan() {
	c.eventually(func() error {
		if code, output := c.run("", c.admin, "scan"); code != clean {
			return errors.New(output)
		}
		return nil
	})
	one := &scanned{&stage{suite: c.suite, namespace: c.namespace, servers: len(c.admins)}}
	one.webhooks(func(w *admissionregistrationv1.ValidatingWebhook) { w.TimeoutSeconds = new(int32(1)) })
	defer one.restore() // Not as a cleanup: it needs the context of the test.
	for _, verb := range []string{"scan", "verify"} {
		c.expect(violation, "", c.admin, []string{verb, "-n", c.namespace}, "ValidatingWebhookConfiguration metacontroller-guard", "timeoutSeconds")
	}
	output := c.expect(violation, "", c.admin, []string{"scan", "-o", "json"})
	report := struct {
		Findings []struct{ Level, Rule string }
	}{}
	if err := json.Unmarshal([]byte(output), &report); err != nil || len(report.Findings) == 0 || report.Findings[0].Rule != "admission-drift" {
		c.t.Errorf("%v: %s", err, output)
	}
}

func (c *cli) verify() {
	c.eventually(func() error {
		if code, output := c.run("", c.admin, "verify", "-n", c.namespace); code != clean {
			return errors.New(output)
		}
		return nil
	})
	c.expect(clean, "", c.admin, []string{"verify", "-v", "-n", c.namespace},
		"passed: SingletonPolicy metacontroller: policy", "passed: admission: ", "passed: Certificate 127.0.0.1: certificate: ",
		"passed: StatefulSet "+c.namespace+"/guard-verify-*: webhook: a dry run was refused: two-in-one-pod",
		"passed: Pod "+c.namespace+"/guard-verify-*: pin: a dry run was refused: pod-not-pinned")

	// A certificate for another name, by another authority.
	foreign, err := kit.NewCA("foreign")
	if err != nil {
		c.t.Fatal(err)
	}
	for name, ca := range map[string]*kit.CA{"authority": foreign, "names": c.cp.CA()} {
		pair, err := ca.IssueServer("elsewhere.example.com")
		if err != nil {
			c.t.Fatal(err)
		}
		if err := pair.Write(c.dir, name); err != nil {
			c.t.Fatal(err)
		}
		c.expect(violation, "", c.admin, []string{"verify", "-n", c.namespace, "--certificate", filepath.Join(c.dir, name+".crt")},
			"violation: Certificate 127.0.0.1: certificate: the API server cannot trust it")
	}
	c.expect(clean, "", c.admin, []string{"verify", "-n", c.namespace, "--min-validity=876000h"}, "warning: ", " expires in ")
	c.expect(violation, "", c.admin, []string{"verify", "-n", c.namespace, "--min-validity=876000h", "--strict"})

	// The guard is gone: the policies hold, and the API server has nobody to ask.
	for _, g := range c.guards {
		g.process.Stop()
	}
	c.expect(violation, "", c.admin, []string{"verify", "-v", "-n", c.namespace},
		"violation: StatefulSet "+c.namespace+"/guard-verify-*: webhook: the API server cannot ask the guard",
		"passed: Pod "+c.namespace+"/guard-verify-*: pin: ")
}

func (c *cli) unreachable() {
	closed := c.cp.At(0, c.cp.AdminConfig(0))
	port, err := kit.FreePort()
	if err != nil {
		c.t.Fatal(err)
	}
	closed.Host = "https://127.0.0.1:" + strconv.Itoa(port)
	path := c.kubeconfig("closed", closed)
	for _, verb := range []string{"explain", "scan", "verify"} {
		c.expect(unreachable, "", path, []string{verb}, "cannot reach "+closed.Host)
	}
}
