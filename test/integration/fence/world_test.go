package fence_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	"github.com/metacontroller-solo/solo/pkg/singleton"
	"github.com/metacontroller-solo/solo/pkg/singleton/mark"
	"github.com/metacontroller-solo/solo/test/kit"
)

const (
	space   = "metacontroller"
	account = "metacontroller"
	// patience bounds whatever should happen soon; other programs share the machine.
	patience = 90 * time.Second
)

var scheme = func() *runtime.Scheme {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			panic(err)
		}
	}
	return scheme
}()

// world is the cluster with the fence in it.
type world struct {
	*testing.T
	cp     *kit.ControlPlane
	admins []client.Client
}

// at is the world of a subtest.
func (w *world) at(t *testing.T) *world {
	at := *w
	at.T = t
	return &at
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) eventually(check func() error) {
	w.Helper()
	kit.Eventually(w.T, patience, check)
}

// now is where the audit logs end.
func (w *world) now() position {
	w.Helper()
	at, err := now(w.cp)
	w.must(err)
	return at
}

func (w *world) admin() client.Client { return w.admins[0] }

// rights are what the service account needs beside the shipped ones: all that a
// hook could ask for.
const rights = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: metacontroller, namespace: metacontroller}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: fence-test}
rules:
- {apiGroups: ["*"], resources: ["*"], verbs: ["*"]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: fence-test}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: fence-test}
subjects: [{kind: ServiceAccount, name: metacontroller, namespace: metacontroller}]
---
apiVersion: v1
kind: Namespace
metadata: {name: fence-beats}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: beat, namespace: fence-beats}
`

// newWorld installs the CRD, the policies without the webhook configuration, for no
// guard runs here, and a SingletonPolicy whose fence denies.
func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, cp: kit.Shared(t)}
	for server := range w.cp.APIServers() {
		admin, err := client.New(w.cp.AdminConfig(server), client.Options{Scheme: scheme})
		w.must(err)
		w.admins = append(w.admins, admin)
	}
	root, err := kit.Root()
	w.must(err)
	config := w.cp.AdminConfig(0)
	for _, file := range []string{"config/controller/namespace.yaml", "config/rbac", "config/crd/guard.metacontroller.io_singletonpolicies.yaml"} {
		if file == "config/rbac" {
			for _, name := range []string{"controller.yaml", "lease.yaml"} {
				_, err := kit.ApplyFile(t.Context(), config, filepath.Join(root, file, name))
				w.must(err)
			}
			continue
		}
		_, err := kit.ApplyFile(t.Context(), config, filepath.Join(root, file))
		w.must(err)
	}
	// Pods of the tests are not made to be secure.
	w.must(w.admin().Patch(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: space}},
		client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"privileged"}}}`))))
	_, err = kit.ApplyYAML(t.Context(), config, []byte(rights))
	w.must(err)
	w.resetPolicy()
	w.installFence()
	return w
}

// installFence applies all policies and waits until both API servers ask them.
func (w *world) installFence() {
	w.Helper()
	for _, object := range pin.Objects(pin.Options{}) {
		if object.GetName() != pin.WebhookConfigurationName {
			w.apply(object)
		}
	}
	w.inForce()
}

// inForce waits until each API server refuses a token of no Pod.
func (w *world) inForce() {
	w.Helper()
	for server := range w.cp.APIServers() {
		unbound := w.unbound(server)
		w.eventually(func() error { return refused(unbound.write()) })
		// And the pin, which fails closed until it knows its parameter.
		w.eventually(func() error {
			pod := w.podObject("stranger", "nginx")
			return w.admins[server].Create(w.Context(), pod, client.DryRunAll)
		})
	}
}

func (w *world) apply(object client.Object) {
	w.Helper()
	data, err := yaml.Marshal(object)
	w.must(err)
	_, err = kit.ApplyYAML(w.Context(), w.cp.AdminConfig(0), data)
	w.must(err)
}

// freeLease takes the singleton Lease away, which the fence allows nobody.
func (w *world) freeLease() {
	w.Helper()
	w.spec(func(spec *v1alpha1.SingletonPolicySpec) { spec.Fence.Action = v1alpha1.FenceOff })
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: singleton.DefaultNamespace, Name: singleton.DefaultName}}
	w.eventually(func() error { return client.IgnoreNotFound(w.admin().Delete(w.Context(), lease)) })
	w.spec(func(spec *v1alpha1.SingletonPolicySpec) { spec.Fence.Action = v1alpha1.FenceDeny })
	w.wantRefused([]hand{w.unbound(0), w.unbound(1)})
}

// resetPolicy makes the SingletonPolicy anew, with a holder named metacontroller.
func (w *world) resetPolicy() {
	w.Helper()
	fresh := &v1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultPolicyName}}
	if err := w.admin().Create(w.Context(), fresh); !apierrors.IsAlreadyExists(err) {
		w.must(err)
	}
	w.spec(func(spec *v1alpha1.SingletonPolicySpec) {
		*spec = v1alpha1.SingletonPolicySpec{Match: v1alpha1.DefaultMatch(), Fence: &v1alpha1.Fence{
			ServiceAccount: v1alpha1.ServiceAccountReference{Namespace: space, Name: account}, Action: v1alpha1.FenceDeny,
		}}
	})
	w.status(func(status *v1alpha1.SingletonPolicyStatus) {
		*status = v1alpha1.SingletonPolicyStatus{Epoch: 1, Holder: holder("by-hand")}
	})
}

func holder(uid types.UID) *v1alpha1.Holder {
	return &v1alpha1.Holder{
		Kind: "StatefulSet", Namespace: space, Name: "metacontroller", Display: space + "/metacontroller", UID: uid,
		ClaimedAt: metav1.Now(), Phase: v1alpha1.HolderBound, Since: metav1.Now(), Epoch: 1,
	}
}

func (w *world) policy() *v1alpha1.SingletonPolicy {
	w.Helper()
	policy := &v1alpha1.SingletonPolicy{}
	w.must(w.admin().Get(w.Context(), client.ObjectKey{Name: v1alpha1.DefaultPolicyName}, policy))
	return policy
}

func (w *world) spec(change func(*v1alpha1.SingletonPolicySpec)) {
	w.Helper()
	w.eventually(func() error {
		policy := w.policy()
		change(&policy.Spec)
		return w.admin().Update(w.Context(), policy)
	})
}

func (w *world) status(change func(*v1alpha1.SingletonPolicyStatus)) {
	w.Helper()
	w.eventually(func() error {
		policy := w.policy()
		change(&policy.Status)
		return w.admin().Status().Update(w.Context(), policy)
	})
}

func (w *world) podObject(name, image string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: space, Name: name},
		Spec: corev1.PodSpec{
			ServiceAccountName: account, TerminationGracePeriodSeconds: ptr.To[int64](0),
			// No node takes it: a Pod is here for its token alone.
			NodeSelector: map[string]string{"none": "such"},
			Containers:   []corev1.Container{{Name: "a", Image: image}},
		},
	}
}

// pod makes a Pod that no policy recognises, and that ends with the test.
func (w *world) pod(name string) *corev1.Pod {
	w.Helper()
	pod := w.podObject(name, "private.example.com/tools:v1")
	pod.Spec.Containers[0].Command = []string{"sh", "-c", "exec /opt/m"}
	w.eventually(func() error {
		pod.ResourceVersion, pod.UID = "", ""
		return w.admin().Create(w.Context(), pod)
	})
	w.Cleanup(func() { w.remove(pod) })
	return pod
}

// remove takes a Pod away by force, if it is still that one.
func (w *world) remove(pod *corev1.Pod) {
	err := w.admin().Delete(context.Background(), pod, client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		w.Error(err)
	}
}

// hand is a token of the service account at an API server.
type hand struct {
	*kubernetes.Clientset
	dynamic.Interface
	config *rest.Config
}

// write is a write that is judged and not kept.
func (h hand) write() error {
	_, err := h.CoreV1().ConfigMaps(beats).Create(context.Background(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "try"}}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return err
}

func (w *world) hand(server int, config *rest.Config) hand {
	w.Helper()
	config = w.cp.At(server, config)
	config.QPS = -1
	return hand{kubernetes.NewForConfigOrDie(config), dynamic.NewForConfigOrDie(config), config}
}

func (w *world) unbound(server int) hand {
	w.Helper()
	config, err := w.cp.TokenConfig(w.Context(), space, account)
	w.must(err)
	return w.hand(server, config)
}

// bound is a token of a Pod, at each API server.
func (w *world) bound(pod *corev1.Pod) []hand {
	w.Helper()
	clients := kubernetes.NewForConfigOrDie(w.cp.AdminConfig(0))
	token, err := clients.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(w.Context(), account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}},
	}, metav1.CreateOptions{})
	w.must(err)
	config := w.cp.AnonymousConfig(0)
	config.BearerToken = token.Status.Token
	var hands []hand
	for server := range w.cp.APIServers() {
		hands = append(hands, w.hand(server, config))
	}
	return hands
}

// markAs marks a Pod as the writer, with its own token, as the controller does.
func (w *world) markAs(h hand, pod *corev1.Pod) {
	w.Helper()
	w.eventually(func() error { return markAs(w.Context(), h, pod) })
}

func markAs(ctx context.Context, h hand, pod *corev1.Pod) error {
	policy := mark.Policy{Client: h.Interface, Name: v1alpha1.DefaultPolicyName, Namespace: pod.Namespace}
	marked, err := policy.Read(ctx)
	if err != nil {
		return err
	}
	return policy.Write(ctx, marked, &singleton.Identity{Namespace: pod.Namespace, Pod: pod.Name, UID: string(pod.UID)})
}

// refused says whether err is a refusal by the fence.
func refused(err error) error {
	switch {
	case err == nil:
		return errors.New("it was let through")
	case !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "["+pin.RuleFence+"] "):
		return fmt.Errorf("it was not refused by the fence: %w", err)
	}
	return nil
}

// wantRefused holds every API server to a refusal, and wantAllowed to the opposite:
// a change of the policy takes a moment to reach them.
func (w *world) wantRefused(hands []hand) {
	w.Helper()
	for _, h := range hands {
		w.eventually(func() error { return refused(h.write()) })
	}
}

func (w *world) wantAllowed(hands []hand) {
	w.Helper()
	for _, h := range hands {
		w.eventually(h.write)
	}
}
