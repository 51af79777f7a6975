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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/klog/v2"
	"sigs.k8s.io/yaml"

	"github.com/metacontroller-solo/solo/test/kit"
)

var update = flag.Bool("update", false, "write the generated files instead of comparing them")

const (
	chartFolder = "config/chart"
	filesFolder = chartFolder + "/files"
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	kit.Main(m, kit.Options{})
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

// kustomize builds a folder below the repository's root.
func kustomize(t testing.TB, folder string) string {
	t.Helper()
	program, err := kustomizeTool.path()
	if err != nil {
		t.Fatal(err)
	}
	output, _, err := run(t.Context(), root(t), nil, nil, program, "build", folder)
	if err != nil {
		t.Fatal(err)
	}
	return output
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

// parse reads a stream of documents.
func parse(t testing.TB, manifests string) []*unstructured.Unstructured {
	t.Helper()
	var objects []*unstructured.Unstructured
	for _, document := range strings.Split("\n"+manifests, "\n---") {
		object := &unstructured.Unstructured{}
		if err := yaml.UnmarshalStrict([]byte(document), &object.Object); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
	return objects
}

// id says which object it is.
func id(o *unstructured.Unstructured) string {
	return strings.Trim(o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName(), "/")
}

// of returns those objects that have one of the kinds.
func of(objects []*unstructured.Unstructured, kinds ...string) []*unstructured.Unstructured {
	return slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool {
		return !slices.Contains(kinds, o.GetKind())
	})
}

// hookOf is the event of Helm at which an object is applied, if it is a hook.
func hookOf(o *unstructured.Unstructured) string { return o.GetAnnotations()["helm.sh/hook"] }

// withoutHook leaves out the hooks of an event.
func withoutHook(objects []*unstructured.Unstructured, event string) []*unstructured.Unstructured {
	return slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool {
		return strings.Contains(hookOf(o), event)
	})
}
