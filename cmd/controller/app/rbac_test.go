package app

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// printed runs the verb in a folder.
func printed(t *testing.T, folder, stdin string, arguments ...string) (code int, out, problem string) {
	t.Helper()
	t.Chdir(folder)
	var stdout, stderr bytes.Buffer
	code = Main(t.Context(), append([]string{rbacVerb}, arguments...), Streams{In: strings.NewReader(stdin), Out: &stdout, Err: &stderr})
	return code, stdout.String(), stderr.String()
}

// madeBy is how the roles of a file are made, as its comment says.
var madeBy = regexp.MustCompile(`(?m)^# controller rbac (.*)$`)

// TestSampleRoles holds the roles that are shipped to what the verb prints.
func TestSampleRoles(t *testing.T) {
	files, err := filepath.Glob("../../../config/samples/*/rbac.yaml")
	if err != nil || len(files) < 8 {
		t.Fatalf("found %q, %v", files, err)
	}
	for _, file := range append(files, "../../../test/local/manifests/hook/rbac.yaml") {
		t.Run(filepath.Base(filepath.Dir(file)), func(t *testing.T) {
			content, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			match := madeBy.FindStringSubmatch(string(content))
			if match == nil {
				t.Fatal("it does not say how it is made")
			}
			code, out, problem := printed(t, filepath.Dir(file), "", strings.Fields(match[1])...)
			if code != exitOK || out != string(content) {
				t.Errorf("exit code %d %s; it is not what is printed: run \"make generate\"\n%s", code, problem, out)
			}
		})
	}
}

func TestRBACFromStandardInput(t *testing.T) {
	const controllers = `
apiVersion: v1
kind: List
items:
- apiVersion: metacontroller.k8s.io/v1alpha1
  kind: CompositeController
  metadata: {name: c}
  spec:
    parentResource: {apiVersion: demo/v1, resource: things}
    childResources: [{apiVersion: v1, resource: secrets}]
    hooks: {sync: {webhook: {url: "http://h/"}}, customize: {webhook: {url: "http://h/"}}}
---
apiVersion: metacontroller.k8s.io/v1alpha1
kind: DecoratorController
metadata: {name: d}
spec:
  resources: [{apiVersion: v1, resource: pods}]
  hooks: {sync: {webhook: {url: "http://h/", authorization: {secretRef: {namespace: hooks, name: token, key: t}}}}}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.demo}
spec: {group: demo, names: {plural: things}, versions: [{name: v1}]}
---
apiVersion: v1
kind: Service
metadata: {name: other}
`
	code, out, problem := printed(t, t.TempDir(), controllers, "-f", "-", "--related=configmaps", "--service-account=x/y")
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, problem)
	}
	for _, want := range []string{"name: metacontroller-controllers\n", "- configmaps\n", "- pods/status\n", "kind: RoleBinding\n", "namespace: hooks\n", "namespace: x\n", "- token\n", "# controller rbac -f - --related=configmaps --service-account=x/y\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if strings.Contains(out, "things/status") {
		t.Errorf("things have no status:\n%s", out)
	}
}

func TestRBACThatIsNoGood(t *testing.T) {
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "a.yaml"), []byte("apiVersion: metacontroller.k8s.io/v1alpha1\nkind: CompositeController\nmetadata: {name: c}\nspec: {parentResorce: {}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for arguments, want := range map[string]struct {
		code int
		says string
	}{
		"":                                {exitUsage, "name files with -f"},
		"--no-such":                       {exitUsage, "--no-such"},
		"-f a.yaml b.yaml":                {exitUsage, `unknown argument "b.yaml"`},
		"-f a.yaml":                       {exitError, "a.yaml:1: "},
		"-f absent.yaml":                  {exitError, "absent.yaml"},
		"-f -":                            {exitError, "no CompositeController and no DecoratorController is there"},
		"-f - --related=Secret":           {exitUsage, `--related "Secret"`},
		"-f - --apply-strategy=x":         {exitUsage, "--apply-strategy"},
		"-f - --service-account=x":        {exitUsage, "--service-account"},
		"--installed --kubeconfig=absent": {exitError, "cannot read kubeconfig"},
	} {
		code, out, problem := printed(t, folder, "", strings.Fields(arguments)...)
		if code != want.code || !strings.Contains(problem, want.says) || out != "" || strings.Count(problem, "\n") != 1 {
			t.Errorf("%q: exit code %d, %q, %q", arguments, code, out, problem)
		}
	}
	if code, out, problem := printed(t, folder, "", "--help"); code != exitOK || problem != "" || !strings.Contains(out, "--related") {
		t.Errorf("--help: exit code %d, %q, %q", code, out, problem)
	}
}
