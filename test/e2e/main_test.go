// Package e2e_test runs the samples in a local cluster as people would run them:
// installed by kustomize, hooks in their Pods, the controller and the guard as
// shipped.
//
//	TestSamples ─ test/local/cluster ─┬─ one subtest for each sample, beside one another:
//	                                  └─ install, example, change, scale, roll, delete, uninstall
//
// The tests of single hooks need no cluster.
package e2e_test

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/local/cluster"
)

const (
	// waitLimit bounds the wait for one thing; a loaded machine needs its time.
	waitLimit = 3 * time.Minute
	// lockWait is how long another run of these tests may take.
	lockWait = 5 * time.Minute
	// answerLimit bounds one HTTP request.
	answerLimit = 10 * time.Second
	// maxAnswer is what is read of an answer, in bytes.
	maxAnswer = 1 << 20
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard())
	// The samples mostly wait, so all run beside one another on any machine.
	flag.Parse()
	if err := flag.Set("test.parallel", strconv.Itoa(len(sampleTests))); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// sampleTests is what is done with each sample, by the name of its folder.
var sampleTests = map[string]func(*testing.T, *sample){
	"bluegreen":          testBlueGreen,
	"catset":             testCatSet,
	"crd-roles":          testCRDRoles,
	"global-configmap":   testGlobalConfigMap,
	"indexed-job":        testIndexedJob,
	"secret-propagation": testSecretPropagation,
	"service-per-pod":    testServicePerPod,
	"tenant":             testTenant,
}

// hookFolder is the base of all samples.
const hookFolder = "hook"

// sampleNames are the folders below config/samples.
func sampleNames(t *testing.T) []string {
	t.Helper()
	root, err := kit.Root()
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(root + "/" + cluster.SampleFolder(""))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		if entry.IsDir() && entry.Name() != hookFolder {
			names = append(names, entry.Name())
		}
	}
	return names
}

func TestSamples(t *testing.T) {
	for _, name := range sampleNames(t) {
		if sampleTests[name] == nil {
			t.Errorf("sample %q has no test", name)
		}
	}
	c, err := cluster.Start(t.Context(), cluster.Options{
		Place: cluster.Test, LockWait: lockWait, Node: os.Getenv(nodeVariable), Progress: t.Output(),
	})
	if err != nil {
		t.Fatal(err)
	}
	// Subtests that run beside one another have ended by then.
	t.Cleanup(c.Stop)
	if err := c.Install(t.Context()); err != nil {
		t.Fatal(err)
	}
	clients, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range sampleTests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &sample{t: t, cluster: c, name: name, clients: clients, objects: objects}
			t.Cleanup(s.explain)
			s.step("install")
			if err := c.InstallSample(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			test(t, s)
			s.uninstall()
		})
	}
}

// sample is one of them under test. Its hook and most of its objects are in a
// namespace of its name.
type sample struct {
	t       *testing.T
	cluster *cluster.Cluster
	name    string
	clients kubernetes.Interface
	objects dynamic.Interface
	doing   string
}

// step says what is done from now on, for errors and the log.
func (s *sample) step(doing string) {
	s.doing = doing
	s.t.Log(time.Now().Format(time.TimeOnly), doing)
}

// explain says, after a failure, what there is and what the hook and the
// controller said.
func (s *sample) explain() {
	if !s.t.Failed() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for _, args := range [][]string{
		{"get", "pods,events", "-n", s.name},
		{"get", "compositecontrollers,decoratorcontrollers"},
		{"get", "events", "-A", "--field-selector", "reason=SyncError"},
		{"get", "events", "-A", "--field-selector", "reason=CreateError"},
		{"logs", "-n", s.name, "deployment/hook", "--tail=30"},
		{"logs", "-n", "metacontroller", "metacontroller-0", "--tail=60"},
	} {
		output, err := s.cluster.Kubectl.Run(ctx, args...)
		s.t.Logf("while: %s\nkubectl %s (%v)\n%s", s.doing, strings.Join(args, " "), err, output)
	}
}

// kubectl runs a command that must succeed.
func (s *sample) kubectl(args ...string) string {
	s.t.Helper()
	output, err := s.cluster.Kubectl.Run(s.t.Context(), args...)
	if err != nil {
		s.t.Fatalf("%s: %v", s.doing, err)
	}
	return output
}

// example applies the sample's example.
func (s *sample) example() {
	s.t.Helper()
	s.kubectl("apply", "-f", cluster.SampleFolder(s.name)+"/example.yaml")
}

// patch changes an object by a JSON merge patch.
func (s *sample) patch(object, namespace, patch string) {
	s.t.Helper()
	args := []string{"patch", object, "--type=merge", "-p", patch}
	if namespace != "" {
		args = append(args, "-n", namespace)
	}
	s.kubectl(args...)
}

// eventually waits for what the present step promises.
func (s *sample) eventually(check func() error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), waitLimit)
	defer cancel()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			s.t.Fatalf("%s: waited %s in vain: %v", s.doing, waitLimit, err)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// resource is a group, version and plural name, such as "apps/v1/replicasets".
func (s *sample) resource(path string) dynamic.NamespaceableResourceInterface {
	words := strings.Split(path, "/")
	if len(words) == 2 {
		words = append([]string{""}, words...)
	}
	return s.objects.Resource(schema.GroupVersionResource{Group: words[0], Version: words[1], Resource: words[2]})
}

// get returns an object; nil means that it is not there.
func (s *sample) get(resource, namespace, name string) *unstructured.Unstructured {
	s.t.Helper()
	o, err := s.resource(resource).Namespace(namespace).Get(s.t.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		s.t.Fatalf("%s: %v", s.doing, err)
	}
	return o
}

// list returns the objects that a label selector chooses, in one namespace or all.
func (s *sample) list(resource, namespace, selector string) []unstructured.Unstructured {
	s.t.Helper()
	list, err := s.resource(resource).Namespace(namespace).List(s.t.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		s.t.Fatalf("%s: %v", s.doing, err)
	}
	return list.Items
}

// field is a field of an object as text; "" when it or the object is not there.
func field(o *unstructured.Unstructured, path ...string) string {
	if o == nil {
		return ""
	}
	value, found, err := unstructured.NestedFieldNoCopy(o.Object, path...)
	if !found || err != nil {
		return ""
	}
	return fmt.Sprint(value)
}

// want waits until fields of an object have values: pairs of a dotted path and the
// text of its value.
func (s *sample) want(resource, namespace, name string, pairs ...string) {
	s.t.Helper()
	s.eventually(func() error {
		o := s.get(resource, namespace, name)
		if o == nil {
			return fmt.Errorf("%s %q is not there", resource, name)
		}
		// A status that is about an older spec says nothing yet.
		if seen := field(o, "status", "observedGeneration"); seen != "" && seen != field(o, "metadata", "generation") {
			return fmt.Errorf("%s %q: its status is about generation %s", resource, name, seen)
		}
		for i := 0; i < len(pairs); i += 2 {
			if got := field(o, strings.Split(pairs[i], ".")...); got != pairs[i+1] {
				return fmt.Errorf("%s %q: %s is %q, not %q; its status is %s", resource, name, pairs[i], got, pairs[i+1], field(o, "status"))
			}
		}
		return nil
	})
}

// wantGone waits until an object is not there.
func (s *sample) wantGone(resource, namespace, name string) {
	s.t.Helper()
	s.eventually(func() error {
		if o := s.get(resource, namespace, name); o != nil {
			return fmt.Errorf("%s %q is still there, with finalizers %q", resource, name, o.GetFinalizers())
		}
		return nil
	})
}

// wantNone waits until a label selector chooses nothing.
func (s *sample) wantNone(resource, namespace, selector string) {
	s.t.Helper()
	s.eventually(func() error {
		if left := s.list(resource, namespace, selector); len(left) > 0 {
			return fmt.Errorf("%d %s are still there, such as %q", len(left), resource, left[0].GetName())
		}
		return nil
	})
}

// ownerSelector chooses the children of a parent with a generated selector.
func ownerSelector(parent *unstructured.Unstructured) string {
	return "controller-uid=" + string(parent.GetUID())
}

// uninstall removes what the sample brought, and sees that it goes.
func (s *sample) uninstall() {
	s.t.Helper()
	s.step("uninstall")
	s.kubectl("delete", "-f", cluster.SampleFolder(s.name)+"/example.yaml", "--ignore-not-found", "--timeout="+waitLimit.String())
	s.kubectl("delete", "-k", cluster.SampleFolder(s.name), "--timeout="+waitLimit.String())
}

// answer asks a server, in a connection of its own.
func answer(ctx context.Context, method, url string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	content, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return "", err
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("%s answers %s", url, response.Status)
	}
	return strings.TrimSpace(string(content)), nil
}

// wantAnswer waits until a server answers with a text.
func (s *sample) wantAnswer(url, want string) {
	s.t.Helper()
	s.eventually(func() error {
		got, err := answer(s.t.Context(), http.MethodGet, url)
		if err == nil && got != want {
			err = fmt.Errorf("%s answers %q, not %q", url, got, want)
		}
		return err
	})
}
