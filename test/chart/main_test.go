package chart

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/metacontroller-solo/solo/test/kit"
)

var update = flag.Bool("update", false, "write the generated files instead of comparing them")

// long says whether to run what needs Helm, which takes minutes to build for the
// first time, and minutes to install; make chart-test sets it.
var long = os.Getenv("CHART_LONG") != ""

// needHelm skips a test that has no business in make test.
func needHelm(t testing.TB) {
	t.Helper()
	if !long {
		t.Skip("this needs Helm: run \"make chart-test\", or set CHART_LONG=1")
	}
}

const (
	release   = "metacontroller"
	namespace = "metacontroller"
	// guardNamespace is where kustomize puts the guard; the chart has one namespace.
	guardNamespace = "metacontroller-guard"
	chartFolder    = "config/chart"
	filesFolder    = chartFolder + "/files"
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	// The shared control plane checks objects only.
	kit.Main(m, kit.Options{WithoutControllers: true})
}

// root is the repository's.
func root(t testing.TB) string {
	t.Helper()
	root, err := kit.Root()
	if err != nil {
		t.Fatal(err)
	}
	return root
}

// run runs a command in the repository's root and returns what it wrote to its two
// outputs.
func run(ctx context.Context, dir string, env []string, stdin []byte, command string, args ...string) (stdout, stderr string, err error) {
	c := exec.CommandContext(ctx, command, args...)
	c.Dir = dir
	c.Env = append(os.Environ(), env...)
	c.Stdin = bytes.NewReader(stdin)
	var out, errs bytes.Buffer
	c.Stdout, c.Stderr = &out, &errs
	if err = c.Run(); err != nil {
		err = fmt.Errorf("%s %s: %w: %s%s", filepath.Base(command), strings.Join(args, " "), err, errs.String(), out.String())
	}
	return out.String(), errs.String(), err
}

// tool is the path of a program that a module pins, built once.
type tool struct {
	module, name string
	path         func() (string, error)
}

func newTool(module, name string) *tool {
	t := &tool{module: module, name: name}
	t.path = sync.OnceValues(func() (string, error) {
		root, err := kit.Root()
		if err != nil {
			return "", err
		}
		path, _, err := run(context.Background(), root, nil, nil, "go", "tool", "-modfile="+module, "-n", name)
		return strings.TrimSpace(path), err
	})
	return t
}

var (
	helmTool      = newTool("test/helm/go.mod", "helm")
	kustomizeTool = newTool("test/tools/go.mod", "kustomize")
)

// built are the kustomizations that have been built, by folder: the tests look at each
// of them several times.
var built sync.Map

// kustomize builds a folder below the repository's root.
func kustomize(t testing.TB, folder string) string {
	t.Helper()
	build, _ := built.LoadOrStore(folder, sync.OnceValues(func() (string, error) {
		root, err := kit.Root()
		if err != nil {
			return "", err
		}
		program, err := kustomizeTool.path()
		if err != nil {
			return "", err
		}
		output, _, err := run(context.Background(), root, nil, nil, program, "build", folder)
		return output, err
	}))
	output, err := build.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return output
}

// guard runs the program and returns what it writes.
func guard(t testing.TB, stdin string, args ...string) (string, error) {
	t.Helper()
	output, _, err := run(t.Context(), root(t), nil, []byte(stdin), kit.Build(t, "./cmd/guard"), args...)
	return output, err
}

// helm runs Helm with folders of its own, so that nothing of the person's is used.
func helm(t testing.TB, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	return helmAs(t, "/dev/null", args...)
}

func helmAs(t testing.TB, kubeconfig string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	program, err := helmTool.path()
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	return run(t.Context(), root(t), []string{
		"KUBECONFIG=" + kubeconfig, "HOME=" + home,
		"HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home,
	}, nil, program, args...)
}

// template renders the chart as for a first install.
func template(t testing.TB, args ...string) string {
	t.Helper()
	output, _, err := helm(t, slices.Concat([]string{"template", release, chartFolder, "--namespace", namespace}, args)...)
	if err != nil {
		t.Fatal(err)
	}
	return output
}
