package rbac_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/singleton"
	"github.com/metacontroller-solo/solo/test/kit"
)

// patience bounds whatever should happen soon, on a machine with much else to do.
const patience = 60 * time.Second

// object is decoded JSON.
type object = map[string]any

// controllerAccount is the controller's service account.
var controllerAccount = rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: kit.ControllerNamespace, Name: kit.ControllerAccount}

func userOf(account rbacv1.Subject) string {
	return "system:serviceaccount:" + account.Namespace + ":" + account.Name
}

// world is a cluster in which the controller has its base role and what "controller
// rbac" prints, and nothing else.
type world struct {
	*testing.T
	cp      *kit.ControlPlane
	client  client.Client
	hooks   *kit.HookServer
	proxy   *kit.APIProxy
	ns      string
	program string
	// controllers is the file with the controllers.
	controllers string
	// kubeconfig is of the controller's account, by way of the proxy.
	kubeconfig string
}

// fence makes the controller mark itself as the writer, as it does where the guard
// is installed.
const fence = `
apiVersion: guard.metacontroller.io/v1alpha1
kind: SingletonPolicy
metadata: {name: metacontroller}
spec: {fence: {serviceAccount: {namespace: metacontroller, name: metacontroller}}}
`

func newWorld(t *testing.T) *world {
	cp := kit.Shared(t)
	w := &world{T: t, cp: cp, hooks: kit.NewHookServer(t), proxy: kit.NewAPIProxy(t, cp), program: kit.Build(t, "./cmd/controller")}
	var err error
	w.client, err = client.New(cp.AdminConfig(0), client.Options{})
	w.must(err)
	root, err := kit.Root()
	w.must(err)
	w.must(kit.InstallController(t.Context(), cp.AdminConfig(0)))
	for _, file := range []string{filepath.Join(root, "config/crd/guard.metacontroller.io_singletonpolicies.yaml"), filepath.Join("testdata", "kinds.yaml")} {
		_, err = kit.ApplyFile(t.Context(), cp.AdminConfig(0), file)
		w.must(err)
	}
	w.ns = kit.Namespace(t, cp.AdminConfig(0))
	w.apply(fence)
	w.apply(fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: hook-token, namespace: %s}\nstringData: {token: t}\n", w.ns))
	roots := &corev1.ConfigMap{}
	roots.Namespace, roots.Name, roots.Data = w.ns, "hook-roots", map[string]string{"ca.crt": string(cp.CA().CertPEM())}
	w.must(w.client.Create(t.Context(), roots))

	template, err := os.ReadFile(filepath.Join("testdata", "controllers.yaml"))
	w.must(err)
	text := strings.NewReplacer("HOOKS", w.hooks.URL(""), "NAMESPACE", w.ns).Replace(string(template))
	w.controllers = filepath.Join(t.TempDir(), "controllers.yaml")
	w.must(os.WriteFile(w.controllers, []byte(text), 0o600))

	token, err := cp.TokenConfig(t.Context(), kit.ControllerNamespace, kit.ControllerAccount)
	w.must(err)
	w.kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	w.must(kit.WriteKubeconfig(w.kubeconfig, w.proxy.Through(token)))
	w.answer()
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) eventually(check func() error) {
	w.Helper()
	kit.Eventually(w, patience, check)
}

func (w *world) apply(manifests string) {
	w.Helper()
	w.eventually(func() error {
		_, err := kit.ApplyYAML(w.Context(), w.cp.AdminConfig(0), []byte(manifests))
		return err
	})
}

// applyControllers declares the controllers.
func (w *world) applyControllers() {
	w.Helper()
	content, err := os.ReadFile(w.controllers)
	w.must(err)
	w.apply(string(content))
}

// answer makes the hooks: each wants the children that a list in the parent's spec
// says.
func (w *world) answer() {
	type request struct {
		Parent, Object struct{ Spec object }
	}
	w.hooks.Handle("/composite", kit.JSON(func(r request) (object, error) {
		children, _ := r.Parent.Spec["children"].([]any)
		return object{"status": object{"n": len(children)}, "children": children}, nil
	}))
	w.hooks.Handle("/customize", kit.JSON(func(request) (object, error) {
		return object{"relatedResources": []object{{"apiVersion": "v1", "resource": "serviceaccounts", "names": []string{"default"}}}}, nil
	}))
	w.hooks.Handle("/finalize", kit.JSON(func(request) (object, error) {
		return object{"finalized": true, "children": []any{}, "attachments": []any{}}, nil
	}))
	for _, list := range []string{"services", "limits", "quotas"} {
		w.hooks.Handle("/"+list, kit.JSON(func(r request) (object, error) {
			children, _ := r.Object.Spec[list].([]any)
			answer := object{"attachments": children}
			if list == "services" {
				answer["labels"], answer["status"] = object{"decorated": "true"}, object{"n": len(children)}
			}
			return answer, nil
		}))
	}
}

// role applies what the verb prints, and waits until it is aggregated.
func (w *world) role(arguments ...string) {
	w.Helper()
	arguments = append([]string{"rbac", "--related=serviceaccounts", "--name=metacontroller-test"}, arguments...)
	command := exec.CommandContext(w.Context(), w.program, arguments...)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	printed, err := command.Output()
	if err != nil {
		w.Fatalf("%v: %s", err, &stderr)
	}
	w.apply(string(printed))
	w.aggregated()
}

// aggregated waits until the controller's role has the rules of the test's.
func (w *world) aggregated() {
	w.Helper()
	w.eventually(func() error {
		var own, all rbacv1.ClusterRole
		if err := w.client.Get(w.Context(), client.ObjectKey{Name: "metacontroller-test"}, &own); err != nil {
			return err
		}
		if err := w.client.Get(w.Context(), client.ObjectKey{Name: "metacontroller-managed"}, &all); err != nil {
			return err
		}
		if len(rightsIn("", own.Rules)) != len(rightsIn("", all.Rules)) {
			return fmt.Errorf("aggregated are %v", all.Rules)
		}
		return nil
	})
}

// start starts the controller.
func (w *world) start(more ...string) *kit.Program {
	w.Helper()
	p := kit.Run(w, w.program, append([]string{
		"--kubeconfig=" + w.kubeconfig, "--metrics-address=127.0.0.1:0", "--health-probe-bind-address=127.0.0.1:0",
		"--leader-election", "--zap-log-level=1",
	}, more...),
		singleton.EnvPodName+"=metacontroller-0", singleton.EnvPodUID+"=metacontroller-0-uid", singleton.EnvPodNamespace+"="+kit.ControllerNamespace)
	p.WaitLine(patience, `"Holding the singleton lease","lease":"kube-system/metacontroller"`)
	return p
}

// put makes or changes an object of the group of the test.
func (w *world) put(kind, name string, spec object) *unstructured.Unstructured {
	w.Helper()
	u := &unstructured.Unstructured{Object: object{"apiVersion": "demo.example.com/v1", "kind": kind}}
	u.SetNamespace(w.ns)
	u.SetName(name)
	w.eventually(func() error {
		err := w.client.Get(w.Context(), client.ObjectKeyFromObject(u), u)
		u.Object["spec"] = spec
		if apierrors.IsNotFound(err) {
			return w.client.Create(w.Context(), u)
		}
		if err == nil {
			err = w.client.Update(w.Context(), u)
		}
		return err
	})
	return u
}

func (w *world) read(apiVersion, kind, name string) (*unstructured.Unstructured, error) {
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, kind))
	return u, w.client.Get(w.Context(), client.ObjectKey{Namespace: w.ns, Name: name}, u)
}

// want waits until a field of an object has a value; as JSON.
func (w *world) want(apiVersion, kind, name, value string, field ...string) *unstructured.Unstructured {
	w.Helper()
	var found *unstructured.Unstructured
	w.eventually(func() error {
		u, err := w.read(apiVersion, kind, name)
		if err != nil {
			return err
		}
		got, _, err := unstructured.NestedFieldNoCopy(u.Object, field...)
		if err != nil {
			return err
		}
		encoded, err := json.Marshal(got)
		if err == nil && string(encoded) != value {
			err = fmt.Errorf("%s %q has %s in %v, not %s", kind, name, encoded, field, value)
		}
		found = u
		return err
	})
	return found
}

func (w *world) wantGone(apiVersion, kind, name string) {
	w.Helper()
	w.eventually(func() error {
		u, err := w.read(apiVersion, kind, name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("%s %q is there (%w): %v", kind, name, err, u.Object["metadata"])
	})
}

func (w *world) patch(u client.Object, patch string) {
	w.Helper()
	w.must(w.client.Patch(w.Context(), u, client.RawPatch(types.MergePatchType, []byte(patch))))
}

// child is an object that a hook wants.
func child(kind, name string, labels object, rest object) object {
	out := object{"apiVersion": "v1", "kind": kind, "metadata": object{"name": name, "labels": labels}}
	for key, value := range rest {
		out[key] = value
	}
	return out
}

func configMap(name, app, value string) object {
	return child("ConfigMap", name, object{"app": app}, object{"data": object{"v": value}})
}

func secret(name, value string) object {
	return child("Secret", name, object{}, object{"data": object{"v": base64.StdEncoding.EncodeToString([]byte(value))}})
}

func service(name string, port int64) object {
	return child("Service", name, object{}, object{"spec": object{"clusterIP": "None", "ports": []any{object{"port": port, "protocol": "TCP", "targetPort": port}}}})
}

func limits(name string) object {
	return child("LimitRange", name, object{}, object{"spec": object{"limits": []any{object{"type": "PersistentVolumeClaim", "max": object{"storage": "4Gi"}}}}})
}

func quota(name string) object {
	return child("ResourceQuota", name, object{}, object{"spec": object{"hard": object{"pods": "100"}}})
}

// drive makes the controller do all that it does for controllers of these kinds,
// with objects whose names begin with the prefix. Some of them stay.
func (w *world) drive(p string) {
	w.Helper()
	// A composite: makes, changes, adopts, deletes, finalizes.
	thing := func(name, value string) *unstructured.Unstructured {
		return w.put("Thing", name, object{
			"selector": object{"matchLabels": object{"app": name}}, "children": []any{configMap(name, name, value)},
		})
	}
	goes := thing(p+"a", "1")
	thing(p+"b", "1") // stays
	w.want("demo.example.com/v1", "Thing", p+"a", "1", "status", "n")
	w.want("v1", "ConfigMap", p+"b", `"1"`, "data", "v")
	thing(p+"a", "2")
	w.want("v1", "ConfigMap", p+"a", `"2"`, "data", "v")
	orphan := &corev1.ConfigMap{}
	orphan.Namespace, orphan.Name, orphan.Labels = w.ns, p+"orphan", map[string]string{"app": p + "a"}
	w.must(w.client.Create(w.Context(), orphan))
	w.wantGone("v1", "ConfigMap", p+"orphan")
	w.must(w.client.Delete(w.Context(), goes))
	w.wantGone("demo.example.com/v1", "Thing", p+"a")

	// A composite whose children roll.
	roll := func(value string) *unstructured.Unstructured {
		return w.put("Roll", p+"r", object{"version": value, "children": []any{secret(p+"r-0", value), secret(p+"r-1", value)}})
	}
	parent := roll("1")
	w.want("demo.example.com/v1", "Roll", p+"r", "2", "status", "n")
	w.want("v1", "Secret", p+"r-1", `"MQ=="`, "data", "v")
	roll("2")
	w.want("v1", "Secret", p+"r-0", `"Mg=="`, "data", "v")
	w.want("v1", "Secret", p+"r-1", `"Mg=="`, "data", "v")
	stray := &corev1.Secret{}
	stray.Namespace, stray.Name, stray.Labels = w.ns, p+"stray", map[string]string{"controller-uid": string(parent.GetUID())}
	w.must(w.client.Create(w.Context(), stray))
	w.wantGone("v1", "Secret", p+"stray")

	// Decorators: one for each strategy.
	w.put("Gadget", p+"g", object{"services": []any{service(p+"g", 80)}})
	w.wantPort(p+"g", 80)
	w.want("demo.example.com/v1", "Gadget", p+"g", "1", "status", "n")
	plain := func(port int64, rest object) {
		spec := object{"services": []any{service(p+"p", port)}, "limits": []any{limits(p + "p")}}
		for key, value := range rest {
			spec[key] = value
		}
		w.put("Plain", p+"p", spec)
	}
	plain(80, object{"quotas": []any{quota(p + "p"), quota(p + "q")}})
	w.wantPort(p+"p", 80)
	w.want("demo.example.com/v1", "Plain", p+"p", "1", "status", "n")
	w.want("demo.example.com/v1", "Plain", p+"p", `"true"`, "metadata", "labels", "decorated")
	w.want("v1", "ResourceQuota", p+"q", `"100"`, "spec", "hard", "pods")
	plain(81, object{"quotas": []any{quota(p + "p")}, "services": []any{service(p+"p", 81), service(p+"q", 81)}})
	w.wantPort(p+"p", 81)
	w.wantPort(p+"q", 81)
	w.wantGone("v1", "ResourceQuota", p+"q")
	plain(81, object{"quotas": []any{quota(p + "p")}})
	w.wantGone("v1", "Service", p+"q")
	w.drift(p + "p")

	w.complain(p)
	w.leave(p)
}

func (w *world) wantPort(name string, port int32) {
	w.Helper()
	w.eventually(func() error {
		var found corev1.Service
		if err := w.client.Get(w.Context(), client.ObjectKey{Namespace: w.ns, Name: name}, &found); err != nil {
			return err
		}
		if got := found.Spec.Ports[0].Port; got != port {
			return fmt.Errorf("the port of %q is %d, not %d", name, got, port)
		}
		return nil
	})
}

// drift changes a LimitRange, which is then made again.
func (w *world) drift(name string) {
	w.Helper()
	before := w.want("v1", "LimitRange", name, `[{"max":{"storage":"4Gi"},"type":"PersistentVolumeClaim"}]`, "spec", "limits")
	w.patch(before.DeepCopy(), `{"spec":{"limits":[{"type":"PersistentVolumeClaim","max":{"storage":"3Gi"}}]}}`)
	w.eventually(func() error {
		after, err := w.read("v1", "LimitRange", name)
		if err == nil && after.GetUID() == before.GetUID() {
			err = errors.New("it is still the one that was changed")
		}
		return err
	})
}

// complain has the same event sent again.
func (w *world) complain(p string) {
	w.Helper()
	broken := "apiVersion: metacontroller.k8s.io/v1alpha1\nkind: CompositeController\nmetadata: {name: " + p + "broken}\n" +
		"spec: {parentResource: {apiVersion: demo.example.com/v1, resource: absentees}, hooks: {sync: {webhook: {url: \"" + w.hooks.URL("/composite") + "\"}}}}\n"
	w.apply(broken)
	w.eventually(func() error {
		var events corev1.EventList
		if err := w.client.List(w.Context(), &events, client.InNamespace("default")); err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.InvolvedObject.Name == p+"broken" && event.Count > 1 {
				return nil
			}
		}
		return errors.New("no event was sent again")
	})
	w.declared(v1alpha1.CompositeControllerKind, p+"broken")
}

// declared deletes an object that declares a controller.
func (w *world) declared(kind, name string) {
	w.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
	u.SetName(name)
	w.must(w.client.Delete(w.Context(), u))
}

// leave deletes controllers, which take their finalizers off parents that somebody
// else writes at that moment, and declares them again.
func (w *world) leave(p string) {
	w.Helper()
	parents := map[string]string{"plains": "Plain", "gadgets": "Gadget"}
	names := map[string]string{"plains": p + "p", "gadgets": p + "g"}
	var met atomic.Int32
	busy := map[string]*atomic.Bool{"plains": {}, "gadgets": {}}
	w.proxy.Intercept(func(_ http.ResponseWriter, r *http.Request) bool {
		for plural, kind := range parents {
			if r.Method == http.MethodPatch && strings.HasSuffix(r.URL.Path, "/"+plural+"/"+names[plural]) && !busy[plural].Swap(true) {
				if u, err := w.read("demo.example.com/v1", kind, names[plural]); err == nil {
					err = w.client.Patch(context.WithoutCancel(w.Context()), u, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"touched":"`+p+`"}}}`)))
					if err == nil {
						met.Add(1)
					}
				}
			}
		}
		return false
	})
	w.declared(v1alpha1.DecoratorControllerKind, "in-place")
	w.declared(v1alpha1.CompositeControllerKind, "adopting")
	for kind, name := range map[string]string{"Plain": p + "p", "Gadget": p + "g", "Thing": p + "b"} {
		w.want("demo.example.com/v1", kind, name, "null", "metadata", "finalizers")
	}
	w.proxy.Intercept(nil)
	if met.Load() != int32(len(parents)) {
		w.Errorf("%d of %d parents were written meanwhile", met.Load(), len(parents))
	}
	w.applyControllers()
	for kind, name := range map[string]string{"Plain": p + "p", "Gadget": p + "g", "Thing": p + "b"} {
		w.eventually(func() error {
			u, err := w.read("demo.example.com/v1", kind, name)
			if err == nil && len(u.GetFinalizers()) == 0 {
				err = fmt.Errorf("%s %q has no finalizer", kind, name)
			}
			return err
		})
	}
}

// unseen are rights of which the audit log has no line.
var unseen = map[string]string{
	"update */finalizers": "asked by admission, OwnerReferencesPermissionEnforcement; TestController takes it away and shows that it is missed",
}

// TestController has the controller do all that it does, by either way of writing
// children, with the least that the verb prints.
func TestController(t *testing.T) {
	w := newWorld(t)
	begun := newLog(t, w.cp.AuditLog(0))
	check := func(from log) {
		t.Helper()
		rights, err := rightsOf(t.Context(), w.client, controllerAccount)
		w.must(err)
		asked, refused, err := from.calls(userOf(controllerAccount))
		w.must(err)
		compare(t, rights, asked, refused, unseen)
	}

	w.role("-f", w.controllers, "-f", "testdata/kinds.yaml")
	w.applyControllers()
	first := w.start()
	w.drive("one-")
	w.renewed()
	if code := first.Stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
	check(begun)

	// What was made without it stays for the second, which takes it over.
	w.dropLeases()
	begun = newLog(t, w.cp.AuditLog(0))
	w.role("-f", w.controllers, "-f", "testdata/kinds.yaml", "--apply-strategy=server-side-apply")
	second := w.start("--apply-strategy=server-side-apply")
	w.eventually(func() error {
		for kind, name := range map[string]string{"ConfigMap": "one-b", "Secret": "one-r-0", "Service": "one-g"} {
			u, err := w.read("v1", kind, name)
			if err != nil {
				return err
			}
			if _, left := u.GetAnnotations()["metacontroller.k8s.io/last-applied-configuration"]; left {
				return fmt.Errorf("%s %q is not handed over", kind, name)
			}
		}
		return nil
	})
	w.drift("one-p")
	w.drive("two-")
	w.renewed()
	check(begun)

	// What is printed for what is installed is the same.
	before := w.rules()
	w.role("--installed", "--kubeconfig="+w.adminKubeconfig(), "--apply-strategy=server-side-apply")
	if after := w.rules(); !slices.Equal(after, before) {
		t.Errorf("for what is installed it prints %v, not %v", after, before)
	}
	w.lacks()
	if code := second.Stop(); code != 0 {
		t.Fatalf("exit code %d", code)
	}
}

// rules are the rights of the test's role, in order.
func (w *world) rules() []string {
	w.Helper()
	var role rbacv1.ClusterRole
	w.must(w.client.Get(w.Context(), client.ObjectKey{Name: "metacontroller-test"}, &role))
	var out []string
	for _, right := range rightsIn("", role.Rules) {
		out = append(out, right.String())
	}
	slices.Sort(out)
	return out
}

func (w *world) adminKubeconfig() string { return w.cp.Kubeconfig(0) }

// leases are those that the controller holds.
func leases() []*unstructured.Unstructured {
	var all []*unstructured.Unstructured
	for _, namespace := range []string{singleton.DefaultNamespace, kit.ControllerNamespace} {
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(schema.GroupVersionKind{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease"})
		u.SetNamespace(namespace)
		u.SetName(singleton.DefaultName)
		all = append(all, u)
	}
	return all
}

// dropLeases has the next controller make them.
func (w *world) dropLeases() {
	w.Helper()
	for _, lease := range leases() {
		w.must(w.client.Delete(w.Context(), lease))
	}
}

// renewed waits until the controller has renewed its leases.
func (w *world) renewed() {
	w.Helper()
	for _, lease := range leases() {
		w.must(w.client.Get(w.Context(), client.ObjectKeyFromObject(lease), lease))
		before := lease.GetResourceVersion()
		w.eventually(func() error {
			if err := w.client.Get(w.Context(), client.ObjectKeyFromObject(lease), lease); err != nil {
				return err
			}
			if lease.GetResourceVersion() == before {
				return fmt.Errorf("Lease %s/%s is not renewed", lease.GetNamespace(), lease.GetName())
			}
			return nil
		})
	}
}

// lacks takes rights away one by one: the controller tells which one is missing, on
// the object that declares the controller, and goes on once it is given back.
func (w *world) lacks() {
	w.Helper()
	for i, tt := range []struct{ resource, says string }{
		{"things/status", `update "things/status" in API group "demo.example.com"`},
		{"things/finalizers", `update the subresource "finalizers" of the parents`},
		{"configmaps", `patch "configmaps" in API group ""`},
	} {
		var role rbacv1.ClusterRole
		w.must(w.client.Get(w.Context(), client.ObjectKey{Name: "metacontroller-test"}, &role))
		less := role.DeepCopy()
		for j := range less.Rules {
			rule := &less.Rules[j]
			if tt.resource == "configmaps" && slices.Contains(rule.Resources, "configmaps") {
				rule.Verbs = slices.DeleteFunc(rule.Verbs, func(verb string) bool { return verb == "patch" })
				continue
			}
			rule.Resources = slices.DeleteFunc(rule.Resources, func(resource string) bool { return resource == tt.resource })
		}
		less.Rules = slices.DeleteFunc(less.Rules, func(rule rbacv1.PolicyRule) bool { return len(rule.Resources) == 0 })
		w.must(w.client.Update(w.Context(), less))
		w.aggregated()
		name := fmt.Sprintf("lack-%d", i)
		w.put("Thing", name, object{"selector": object{"matchLabels": object{"app": name}}, "children": []any{configMap(name, name, "1")}})
		w.event("adopting", "SyncError", tt.says, "controller rbac --installed")
		w.must(w.client.Get(w.Context(), client.ObjectKey{Name: "metacontroller-test"}, less))
		less.Rules = role.Rules
		w.must(w.client.Update(w.Context(), less))
		w.aggregated()
		w.want("demo.example.com/v1", "Thing", name, "1", "status", "n")
	}
}

// event waits for an event about a controller.
func (w *world) event(about, reason string, texts ...string) {
	w.Helper()
	w.eventually(func() error {
		var events corev1.EventList
		if err := w.client.List(w.Context(), &events, client.InNamespace("default")); err != nil {
			return err
		}
		var seen []string
		for _, event := range events.Items {
			if event.InvolvedObject.Name != about || event.Reason != reason {
				continue
			}
			seen = append(seen, event.Message)
			if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(event.Message, text) }) {
				return nil
			}
		}
		return fmt.Errorf("no event has %q; there are %q", texts, seen)
	})
}
