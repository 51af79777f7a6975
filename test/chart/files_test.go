package chart

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// sources are what the chart's files are made of: folders that kustomize builds, or
// files that are taken as they are.
var sources = map[string]string{
	"crd.yaml":             "config/crd",
	"admission.yaml":       "config/webhook",
	"guard.yaml":           "config/guard",
	"controller.yaml":      "config/controller",
	"controller-rbac.yaml": "config/rbac",
	"certmanager.yaml":     "config/certmanager",
	"self-managed.yaml":    "config/self-managed/serving/role.yaml",
}

// TestFilesAreGenerated holds what the chart installs to the manifests that
// kustomize installs: the chart's templates read these files.
func TestFilesAreGenerated(t *testing.T) {
	for name, source := range sources {
		var content string
		if filepath.Ext(source) == ".yaml" {
			data, err := os.ReadFile(filepath.Join(root(t), source))
			if err != nil {
				t.Fatal(err)
			}
			content = string(data)
		} else {
			content = kustomize(t, source)
		}
		generated(t, filepath.Join(filesFolder, name), "# Made of "+source+" by \"make generate\". Do not edit: change that.\n"+content)
	}
	found, err := os.ReadDir(filepath.Join(root(t), filesFolder))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range found {
		if sources[file.Name()] == "" {
			t.Errorf("%s/%s is made of nothing; remove it", filesFolder, file.Name())
		}
	}
}

// generated compares a file with its content, or writes it.
func generated(t testing.TB, path, content string) {
	t.Helper()
	full := filepath.Join(root(t), path)
	if *update {
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	data, err := os.ReadFile(full)
	if err != nil {
		t.Fatalf("%v; run \"make generate\"", err)
	}
	if diff := cmp.Diff(string(data), content); diff != "" {
		t.Errorf("%s is stale (-file +made); run \"make generate\"\n%s", path, diff)
	}
}
