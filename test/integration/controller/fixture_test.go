package controller_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/singleton"
	"github.com/metacontroller-solo/solo/test/kit"
)

const (
	// soon is how long a thing that takes milliseconds may take on a machine with
	// much else to do.
	soon = 20 * time.Second

	controllerUser = "system:serviceaccount:" + kit.ControllerNamespace + ":" + kit.ControllerAccount

	thingAPI = "demo.example.com/v1"
	// testLabel is on the parents and on the CompositeController of a test.
	testLabel = "test"
)

// fixture is one test's corner of the control plane.
type fixture struct {
	t      *testing.T
	cp     *kit.ControlPlane
	client client.Client
	ns     string
	hooks  *kit.HookServer
	// account is the controller's service account, and kubeconfig is its.
	account    types.NamespacedName
	kubeconfig string
	// leaseName is the lease of this test's controllers.
	leaseName string
}

// newFixture is for a test that runs beside others: its controllers hold a lease
// of their own.
func newFixture(t *testing.T) *fixture {
	t.Helper()
	t.Parallel()
	f := makeFixture(t)
	f.leaseName = f.ns
	return f
}

// newSingletonFixture is for a test that runs alone, with the one lease.
func newSingletonFixture(t *testing.T) *fixture {
	t.Helper()
	f := makeFixture(t)
	f.leaseName = singleton.DefaultName
	f.dropLease()
	return f
}

func makeFixture(t *testing.T) *fixture {
	t.Helper()
	cp := kit.Shared(t)
	admin := cp.AdminConfig(0)
	install(t, admin)
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	c, err := client.New(admin, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, cp: cp, client: c, ns: kit.Namespace(t, admin), hooks: kit.NewHookServer(t)}
	f.account = types.NamespacedName{Namespace: kit.ControllerNamespace, Name: kit.ControllerAccount}
	f.kubeconfig = f.kubeconfigOf(kit.ControllerNamespace, kit.ControllerAccount)
	return f
}

// installed guards what every test shares. To apply the rights again would take
// those of running controllers away for a moment: an aggregated role is applied
// without the rules that the control plane has put into it.
var installed struct {
	sync.Mutex
	done bool
}

// install applies the CRDs and the rights, which every test shares.
func install(t *testing.T, admin *rest.Config) {
	t.Helper()
	installed.Lock()
	defer installed.Unlock()
	if installed.done {
		return
	}
	err := kit.InstallController(t.Context(), admin)
	if err == nil {
		_, err = kit.ApplyFile(t.Context(), admin, filepath.Join("testdata", "things.yaml"))
	}
	if err != nil {
		t.Fatal(err)
	}
	installed.done = true
}

// useLeanAccount is for a test of a right that is missing: other tests give theirs
// to the common account.
func (f *fixture) useLeanAccount() {
	f.t.Helper()
	f.applyTemplate("account.yaml", "NAMESPACE", f.ns)
	f.account = types.NamespacedName{Namespace: f.ns, Name: "lean"}
	f.kubeconfig = f.kubeconfigOf(f.account.Namespace, f.account.Name)
}

// applyTemplate applies a file of testdata with texts in it replaced.
func (f *fixture) applyTemplate(file string, replace ...string) {
	f.t.Helper()
	template, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		f.t.Fatal(err)
	}
	manifests := strings.NewReplacer(replace...).Replace(string(template))
	if _, err := kit.ApplyYAML(f.t.Context(), f.cp.AdminConfig(0), []byte(manifests)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) kubeconfigOf(namespace, account string) string {
	f.t.Helper()
	config, err := f.cp.TokenConfig(f.t.Context(), namespace, account)
	if err != nil {
		f.t.Fatal(err)
	}
	path := filepath.Join(f.t.TempDir(), "kubeconfig")
	if err := kit.WriteKubeconfig(path, config); err != nil {
		f.t.Fatal(err)
	}
	return path
}

// dropLease removes what an earlier test's controller, which was killed, left.
func (f *fixture) dropLease() {
	f.t.Helper()
	lease := &unstructured.Unstructured{}
	lease.SetAPIVersion("coordination.k8s.io/v1")
	lease.SetKind("Lease")
	lease.SetNamespace(singleton.DefaultNamespace)
	lease.SetName(f.leaseName)
	if err := f.client.Delete(f.t.Context(), lease); client.IgnoreNotFound(err) != nil {
		f.t.Fatal(err)
	}
}

// arguments of a controller that looks after this test's objects only.
func (f *fixture) arguments(more ...string) []string {
	return append([]string{
		"--kubeconfig=" + f.kubeconfig,
		"--metrics-address=127.0.0.1:0",
		"--health-probe-bind-address=127.0.0.1:0",
		"--target-label-selector=" + testLabel + "=" + f.ns,
		"--singleton-lease-name=" + f.leaseName,
		"--zap-log-level=1",
	}, more...)
}

// start starts a controller and waits until it holds the lease.
func (f *fixture) start(more ...string) *kit.Program {
	f.t.Helper()
	p := f.launch("one", more...)
	p.WaitLine(soon, "Holding the singleton lease")
	return p
}

// launch starts a controller as a Pod of that name would.
func (f *fixture) launch(pod string, more ...string) *kit.Program {
	f.t.Helper()
	return kit.Run(f.t, kit.Build(f.t, "./cmd/controller"), f.arguments(more...),
		singleton.EnvPodName+"="+pod, singleton.EnvPodUID+"="+pod+"-uid", singleton.EnvPodNamespace+"="+kit.ControllerNamespace)
}

// composite declares a controller of things with ConfigMaps as children.
func (f *fixture) composite(change func(*v1alpha1.CompositeController)) *v1alpha1.CompositeController {
	f.t.Helper()
	yes, url := true, f.hooks.URL("/sync")
	cc := &v1alpha1.CompositeController{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.CompositeControllerKind},
		ObjectMeta: metav1.ObjectMeta{Name: f.ns, Labels: map[string]string{testLabel: f.ns}},
	}
	cc.Spec.GenerateSelector = &yes
	cc.Spec.ParentResource.APIVersion, cc.Spec.ParentResource.Resource = thingAPI, "things"
	cc.Spec.ParentResource.LabelSelector = &metav1.LabelSelector{MatchLabels: map[string]string{testLabel: f.ns}}
	child := v1alpha1.CompositeControllerChildResourceRule{
		UpdateStrategy: &v1alpha1.CompositeControllerChildUpdateStrategy{Method: v1alpha1.ChildUpdateInPlace},
	}
	child.APIVersion, child.Resource = "v1", "configmaps"
	cc.Spec.ChildResources = []v1alpha1.CompositeControllerChildResourceRule{child}
	cc.Spec.Hooks = &v1alpha1.CompositeControllerHooks{Sync: &v1alpha1.Hook{Webhook: &v1alpha1.Webhook{URL: &url}}}
	if change != nil {
		change(cc)
	}
	f.put(cc)
	return cc
}

// put creates or replaces an object that declares a controller, and removes it at
// the end.
func (f *fixture) put(declared client.Object) {
	f.t.Helper()
	content, err := json.Marshal(declared)
	if err != nil {
		f.t.Fatal(err)
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(content, &u.Object); err != nil {
		f.t.Fatal(err)
	}
	unstructured.RemoveNestedField(u.Object, "metadata", "creationTimestamp")
	delete(u.Object, "status")
	current := u.DeepCopy()
	switch err := f.client.Get(f.t.Context(), client.ObjectKeyFromObject(u), current); {
	case err == nil:
		u.SetResourceVersion(current.GetResourceVersion())
		err = f.client.Update(f.t.Context(), u)
		if err != nil {
			f.t.Fatal(err)
		}
		return
	case !apierrors.IsNotFound(err):
		f.t.Fatal(err)
	}
	if err := f.client.Create(f.t.Context(), u); err != nil {
		f.t.Fatal(err)
	}
	f.t.Cleanup(func() { _ = f.client.Delete(context.Background(), u) })
}

// thing creates a parent. Its spec is what the default hook makes children of.
func (f *fixture) thing(name string, spec map[string]any) *unstructured.Unstructured {
	f.t.Helper()
	return f.parent("Thing", name, spec)
}

func (f *fixture) parent(kind, name string, spec map[string]any) *unstructured.Unstructured {
	f.t.Helper()
	u := &unstructured.Unstructured{Object: map[string]any{"apiVersion": thingAPI, "kind": kind, "spec": spec}}
	u.SetNamespace(f.ns)
	u.SetName(name)
	u.SetLabels(map[string]string{testLabel: f.ns})
	if err := f.client.Create(f.t.Context(), u); err != nil {
		f.t.Fatal(err)
	}
	return u
}

// patch merges into an object.
func (f *fixture) patch(o client.Object, patch string) {
	f.t.Helper()
	if err := f.client.Patch(f.t.Context(), o, client.RawPatch(types.MergePatchType, []byte(patch))); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) delete(o client.Object) {
	f.t.Helper()
	if err := f.client.Delete(f.t.Context(), o); err != nil {
		f.t.Fatal(err)
	}
}

// configMap returns one ConfigMap, nil if it is not there.
func (f *fixture) configMap(name string) *corev1.ConfigMap {
	f.t.Helper()
	found := &corev1.ConfigMap{}
	switch err := f.client.Get(f.t.Context(), client.ObjectKey{Namespace: f.ns, Name: name}, found); {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		f.t.Fatal(err)
	}
	return found
}

// children returns the data "v" of the ConfigMaps that begin with the prefix.
func (f *fixture) children(prefix string) map[string]string {
	f.t.Helper()
	var list corev1.ConfigMapList
	if err := f.client.List(f.t.Context(), &list, client.InNamespace(f.ns)); err != nil {
		f.t.Fatal(err)
	}
	found := map[string]string{}
	for _, item := range list.Items {
		if strings.HasPrefix(item.Name, prefix) {
			found[item.Name] = item.Data["v"]
		}
	}
	return found
}

// waitChildren waits until there are just these children.
func (f *fixture) waitChildren(prefix string, want map[string]string) {
	f.t.Helper()
	kit.Eventually(f.t, soon, func() error {
		if got := f.children(prefix); !maps.Equal(got, want) {
			return fmt.Errorf("children are %v, not %v", got, want)
		}
		return nil
	})
}

// waitStatus waits until the default hook has seen that many children, and the
// status is about the newest spec.
func (f *fixture) waitStatus(parent *unstructured.Unstructured, seen int64) {
	f.t.Helper()
	kit.Eventually(f.t, soon, func() error {
		now := parent.DeepCopy()
		if err := f.client.Get(f.t.Context(), client.ObjectKeyFromObject(parent), now); err != nil {
			return err
		}
		got, found, _ := unstructured.NestedInt64(now.Object, "status", "seen")
		generation, _, _ := unstructured.NestedInt64(now.Object, "status", "observedGeneration")
		if !found || got != seen || generation != now.GetGeneration() {
			return fmt.Errorf("status is %v at generation %d, not of %d children", now.Object["status"], now.GetGeneration(), seen)
		}
		return nil
	})
}

// event waits for an event about an object whose message has all the texts.
func (f *fixture) event(about client.Object, reason string, texts ...string) corev1.Event {
	f.t.Helper()
	namespace := about.GetNamespace()
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	var found corev1.Event
	kit.Eventually(f.t, soon, func() error {
		var list corev1.EventList
		if err := f.client.List(f.t.Context(), &list, client.InNamespace(namespace)); err != nil {
			return err
		}
		var seen []string
		for _, event := range list.Items {
			if event.InvolvedObject.Name != about.GetName() || event.InvolvedObject.Kind != about.GetObjectKind().GroupVersionKind().Kind {
				continue
			}
			seen = append(seen, event.Reason+": "+event.Message)
			if event.Reason == reason && !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(event.Message, text) }) {
				found = event
				return nil
			}
		}
		return fmt.Errorf("no event %q with %q; there are %q", reason, texts, seen)
	})
	if found.Source.Component != "metacontroller" {
		f.t.Errorf("component of event is %q", found.Source.Component)
	}
	return found
}

// eventsOf returns the events about an object.
func (f *fixture) eventsOf(about client.Object) []corev1.Event {
	f.t.Helper()
	var list corev1.EventList
	if err := f.client.List(f.t.Context(), &list, client.InNamespace(about.GetNamespace())); err != nil {
		f.t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(e corev1.Event) bool { return e.InvolvedObject.UID != about.GetUID() })
}

// request is what the default hook reads.
type request struct {
	Parent struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			Count  int               `json:"count"`
			Value  string            `json:"value"`
			Labels map[string]string `json:"labels"`
		} `json:"spec"`
	} `json:"parent"`
	Children   map[string]map[string]corev1.ConfigMap `json:"children"`
	Finalizing bool                                   `json:"finalizing"`
}

type object = map[string]any

// desired are the children that a parent's spec asks for.
func desired(r request) []object {
	children := []object{}
	for i := range r.Parent.Spec.Count {
		children = append(children, object{
			"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": object{"name": fmt.Sprintf("%s-%d", r.Parent.Metadata.Name, i), "labels": r.Parent.Spec.Labels},
			"data":     object{"v": r.Parent.Spec.Value},
		})
	}
	return children
}

// defaultHook makes spec.count ConfigMaps with spec.value, and counts them in the
// status.
func defaultHook() kit.Hook {
	return kit.JSON(func(r request) (object, error) {
		seen, ok := r.Children["ConfigMap.v1"]
		if !ok {
			return nil, errors.New("the kind ConfigMap.v1 is not in the request")
		}
		return object{"status": object{"seen": len(seen)}, "children": desired(r)}, nil
	})
}

// write is one write in the audit log.
type write struct {
	Verb string `json:"verb"`
	User struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef struct {
		Resource, Subresource, Namespace, Name string
	} `json:"objectRef"`
	RequestURI string `json:"requestURI"`
}

// writes are the writes and reads of single objects that the controller made in
// the test's namespace.
func (f *fixture) writes() []write {
	f.t.Helper()
	return f.writesThat(func(w write) bool { return w.ObjectRef.Namespace == f.ns })
}

// writesThat are the writes and reads of single objects, but for events, that a
// controller made and that are as wanted.
func (f *fixture) writesThat(wanted func(write) bool) []write {
	f.t.Helper()
	file, err := os.Open(f.cp.AuditLog(0))
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	var found []write
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20) // large objects are in the log too
	for lines.Scan() {
		var one write
		if json.Unmarshal(lines.Bytes(), &one) != nil {
			continue
		}
		if one.User.Username == controllerUser && one.ObjectRef.Resource != "events" && wanted(one) {
			found = append(found, one)
		}
	}
	if err := lines.Err(); err != nil {
		f.t.Fatal(err)
	}
	return found
}
