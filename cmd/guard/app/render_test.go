package app

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRenderForAPolicy(t *testing.T) {
	render := func(content string) (int, string, string) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "policy.yaml")
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		var stdout, stderr bytes.Buffer
		code := Main([]string{"guard", "render", "--policy-file=" + path}, Streams{Out: &stdout, Err: &stderr})
		return code, stdout.String(), stderr.String()
	}
	const head = "apiVersion: guard.metacontroller.io/v1alpha1\nkind: SingletonPolicy\nmetadata: {name: ours}\n"
	code, stdout, stderr := render(head + "spec: {match: {workloads: [{group: apps.kruise.io, resource: clonesets}]}}\n")
	if code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	for _, part := range []string{"- clonesets\n", "- clonesets/scale\n", "name: ours\n"} {
		if !strings.Contains(stdout, part) {
			t.Errorf("%q is not rendered", part)
		}
	}
	for name, content := range map[string]string{
		"not YAML":      "{",
		"another kind":  "apiVersion: v1\nkind: Pod\n",
		"unknown field": head + "spec: {matches: {}}\n",
	} {
		if code, _, stderr := render(content); code != exitUsage || !strings.Contains(stderr, "policy.yaml") {
			t.Errorf("%s: exit code %d: %s", name, code, stderr)
		}
	}
}
