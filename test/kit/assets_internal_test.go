package kit

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// A small module stands for the control plane's, which takes minutes.
func smallBuilder(t *testing.T, source string) builder {
	t.Helper()
	const module = "example.test/hello"
	dir := t.TempDir()
	for name, content := range map[string]string{"go.mod": "module " + module + "\n\ngo 1.26\n", "main.go": source} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return builder{
		what:     "hello",
		module:   dir,
		dir:      filepath.Join(t.TempDir(), "cache"),
		programs: []program{{name: "hello", module: module, pkg: module, duration: "no time"}},
		versions: map[string]string{module: "(devel)", kubernetesModule: "v1.37.2"},
	}
}

const hello = "package main\n\nfunc main() { println(\"hello\") }\n"

func TestBuildsOnceForTwo(t *testing.T) {
	b := smallBuilder(t, hello)
	var outputs [2]bytes.Buffer
	var both sync.WaitGroup
	for i := range outputs {
		b := b
		b.progress = &outputs[i]
		both.Go(func() {
			if err := b.buildMissing(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	if err := checkProgram(filepath.Join(b.dir, "hello")); err != nil {
		t.Error(err)
	}
	all := outputs[0].String() + outputs[1].String()
	if strings.Count(all, "building hello (devel) (first time only, about no time)") != 1 || strings.Count(all, "built hello (devel) in ") != 1 {
		t.Errorf("progress was\n%s", all)
	}
	parts, err := filepath.Glob(filepath.Join(b.dir, ".part-*"))
	if err != nil || len(parts) > 0 {
		t.Errorf("left behind: %v, %v", parts, err)
	}
}

func TestRebuildsAnotherVersion(t *testing.T) {
	b := smallBuilder(t, hello)
	if err := b.buildMissing(t.Context()); err != nil {
		t.Fatal(err)
	}
	if len(b.missing()) != 0 {
		t.Error("what was built is missing")
	}
	b.versions["example.test/hello"] = "v1.0.1"
	if len(b.missing()) != 1 {
		t.Error("a program of another version will do")
	}
}

func TestBuildFails(t *testing.T) {
	t.Run("compiler", func(t *testing.T) {
		err := smallBuilder(t, "package main\n\nfunc main() { undefinedThing() }\n").buildMissing(t.Context())
		if err == nil || !strings.Contains(err.Error(), "cannot build hello (devel)") || !strings.Contains(err.Error(), "undefined: undefinedThing") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no go command", func(t *testing.T) {
		b := smallBuilder(t, hello)
		t.Setenv("PATH", t.TempDir())
		err := b.buildMissing(t.Context())
		if err == nil || !strings.Contains(err.Error(), "go command is not in PATH") {
			t.Errorf("got %v", err)
		}
		if _, err := moduleVersions(t.Context(), b.module, b.programs); err == nil || !strings.Contains(err.Error(), "go command is not in PATH") {
			t.Errorf("versions: %v", err)
		}
	})
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if err := smallBuilder(t, hello).buildMissing(ctx); err == nil || !strings.Contains(err.Error(), "context canceled") {
			t.Errorf("got %v", err)
		}
	})
}

func TestVersionsComeFromTheModule(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	versions, err := moduleVersions(t.Context(), filepath.Join(root, controlPlaneModule), programs)
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range []string{kubernetesModule, etcdModule} {
		if !strings.HasPrefix(versions[module], "v") {
			t.Errorf("%s has version %q", module, versions[module])
		}
	}
}

func TestLinkerFlags(t *testing.T) {
	const want = "-s -w -X k8s.io/component-base/version.gitVersion=v1.37.2 -X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=37"
	if got := linkerFlags("v1.37.2"); got != want {
		t.Errorf("got %s", got)
	}
}

func TestReadyMadeAssets(t *testing.T) {
	dir := t.TempDir()
	for _, p := range programs {
		if err := os.WriteFile(filepath.Join(dir, p.name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(AssetsEnv, dir)
	if got, err := Assets(t.Context(), nil); got != dir || err != nil {
		t.Errorf("got %s, %v", got, err)
	}
	for _, tc := range []struct {
		name, program, want string
		spoil               func(path string) error
	}{
		{"not executable", schedulerProgram, "kube-scheduler is not executable", func(path string) error { return os.Chmod(path, 0o600) }},
		{"absent", controllerManagerProgram, "kube-controller-manager is not there", os.Remove},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.spoil(filepath.Join(dir, tc.program)); err != nil {
				t.Fatal(err)
			}
			_, err := Assets(t.Context(), nil)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v", err)
			}
		})
	}
}
