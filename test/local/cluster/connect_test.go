package cluster

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/metacontroller-solo/solo/test/kit"
)

// Who installs a sample is told at once what is missing.
func TestSamplesThatCannotBeInstalled(t *testing.T) {
	dir := t.TempDir()
	if _, err := Connect(dir); err == nil || !strings.Contains(err.Error(), `start one with "make run"`) {
		t.Errorf("without a cluster: %v", err)
	}
	path := kit.KubeconfigIn(filepath.Join(dir, planeDir), 0)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	// Nothing listens on port 1.
	if err := kit.WriteKubeconfig(path, &rest.Config{Host: "https://127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := Connect(dir); err == nil || !strings.Contains(err.Error(), `start it with "make run"`) {
		t.Errorf("with a cluster that does not run: %v", err)
	}
	root, err := kit.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"nosuch", "../guard", ""} {
		if err := (&Cluster{Root: root}).InstallSample(t.Context(), name); err == nil || !strings.Contains(err.Error(), "docs/samples.md") {
			t.Errorf("sample %q: %v", name, err)
		}
	}
}
