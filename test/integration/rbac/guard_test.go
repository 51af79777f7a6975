package rbac_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/announce"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	"github.com/metacontroller-solo/solo/pkg/guard/webhook"
	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/kit/process"
)

// guardAccount is the guard's service account.
var guardAccount = rbacv1.Subject{Kind: rbacv1.ServiceAccountKind, Namespace: "metacontroller-guard", Name: "metacontroller-guard"}

const (
	instanceImage = "ghcr.io/metacontroller/metacontroller:v4.17.2"
	strangerImage = "registry.k8s.io/pause:3.10"
)

// watchman is an installed guard.
type watchman struct {
	*testing.T
	cp     *kit.ControlPlane
	client client.Client
	ns     string
	scheme *runtime.Scheme
}

func (w *watchman) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *watchman) eventually(check func() error) {
	w.Helper()
	kit.Eventually(w, patience, check)
}

// start starts the guard and returns its address.
func (w *watchman) start() string {
	w.Helper()
	dir := w.TempDir()
	pair, err := w.cp.CA().IssueServer("127.0.0.1")
	w.must(err)
	w.must(pair.Write(dir, "tls"))
	token, err := w.cp.TokenConfig(w.Context(), guardAccount.Namespace, guardAccount.Name)
	w.must(err)
	kubeconfig := filepath.Join(dir, "kubeconfig")
	w.must(kit.WriteKubeconfig(kubeconfig, token))
	var ports [3]string
	for i := range ports {
		port, err := kit.FreePort()
		w.must(err)
		ports[i] = strconv.Itoa(port)
	}
	stderr, err := os.Create(filepath.Join(dir, "log"))
	w.must(err)
	guard, err := process.Start(process.Spec{Name: "guard", Path: kit.Build(w, "./cmd/guard"), Stdout: io.Discard, Stderr: stderr, Args: []string{
		"serve", "--kubeconfig=" + kubeconfig, "--tls-cert-dir=" + dir, "--bind-address=127.0.0.1", "--webhook-port=" + ports[0],
		"--health-probe-bind-address=127.0.0.1:" + ports[1], "--metrics-bind-address=127.0.0.1:" + ports[2],
		"--replica=guard-0", "--shutdown-delay=100ms", "--leader-elect-resource-namespace=" + guardAccount.Namespace,
		"--leader-elect-lease-duration=30s", "--leader-elect-renew-deadline=25s", "--leader-elect-retry-period=500ms",
	}})
	w.must(err)
	w.Cleanup(func() {
		guard.Stop()
		_ = stderr.Close()
		if content, err := os.ReadFile(stderr.Name()); err == nil && w.Failed() {
			w.Logf("the guard wrote:\n%s", content[max(0, len(content)-6000):])
		}
	})
	w.eventually(func() error {
		response, err := http.Get("http://127.0.0.1:" + ports[1] + "/readyz")
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	})
	return net.JoinHostPort("127.0.0.1", ports[0])
}

func (w *watchman) meta(name string, owner client.Object) metav1.ObjectMeta {
	w.Helper()
	meta := metav1.ObjectMeta{Namespace: w.ns, Name: name}
	if owner != nil {
		kind, err := apiutil.GVKForObject(owner, w.scheme)
		w.must(err)
		meta.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)}
	}
	return meta
}

func podTemplate(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "x"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}},
	}
}

// refused wants the API server to let an object in never.
func (w *watchman) refused(object client.Object) {
	w.Helper()
	w.eventually(func() error {
		err := w.client.Create(w.Context(), object)
		if err == nil {
			err = errors.Join(fmt.Errorf("%T %q is let in", object, object.GetName()), w.client.Delete(w.Context(), object, client.GracePeriodSeconds(0)))
			object.SetResourceVersion("")
			object.SetUID("")
			return err
		}
		if !apierrors.IsForbidden(err) {
			return err
		}
		return nil
	})
}

// owners are workloads that run nothing, by which Pods that run an instance say that
// they are owned; each chain of owners is followed.
func (w *watchman) owners() {
	w.Helper()
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
	create := func(object client.Object) client.Object {
		w.must(w.client.Create(w.Context(), object))
		return object
	}
	none := ptr.To[int32](0)
	deployment := create(&appsv1.Deployment{ObjectMeta: w.meta("d", nil), Spec: appsv1.DeploymentSpec{Replicas: none, Selector: selector, Template: podTemplate(strangerImage)}})
	cron := create(&batchv1.CronJob{ObjectMeta: w.meta("c", nil), Spec: batchv1.CronJobSpec{
		Schedule: "@yearly", Suspend: ptr.To(true), JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: never(podTemplate(strangerImage))}},
	}})
	for i, owner := range []client.Object{
		create(&appsv1.ReplicaSet{ObjectMeta: labelled(w.meta("r", deployment)), Spec: appsv1.ReplicaSetSpec{Replicas: none, Selector: selector, Template: podTemplate(strangerImage)}}),
		create(&batchv1.Job{ObjectMeta: w.meta("j", cron), Spec: batchv1.JobSpec{Suspend: ptr.To(true), Template: never(podTemplate(strangerImage))}}),
		create(&appsv1.StatefulSet{ObjectMeta: w.meta("s", nil), Spec: appsv1.StatefulSetSpec{Replicas: none, Selector: selector, Template: podTemplate(strangerImage)}}),
		create(&appsv1.DaemonSet{ObjectMeta: w.meta("n", nil), Spec: appsv1.DaemonSetSpec{Selector: selector, Template: podTemplate(strangerImage)}}),
		create(&corev1.ReplicationController{ObjectMeta: w.meta("o", nil), Spec: corev1.ReplicationControllerSpec{Replicas: none, Selector: selector.MatchLabels, Template: ptr.To(podTemplate(strangerImage))}}),
	} {
		w.refused(&corev1.Pod{ObjectMeta: w.meta(fmt.Sprintf("owned-%d", i), owner), Spec: podTemplate(instanceImage).Spec})
	}
}

// labelled is the metadata of what a Deployment takes for its own.
func labelled(meta metav1.ObjectMeta) metav1.ObjectMeta {
	meta.Labels = map[string]string{"app": "x"}
	return meta
}

func never(template corev1.PodTemplateSpec) corev1.PodTemplateSpec {
	template.Spec.RestartPolicy = corev1.RestartPolicyNever
	return template
}

// repeat has so many alike events sent that they become one, which counts.
func (w *watchman) repeat() {
	w.Helper()
	tries := 0
	w.eventually(func() error {
		tries++
		w.refused(&corev1.Pod{ObjectMeta: w.meta(fmt.Sprintf("again-%d", tries), nil), Spec: podTemplate(instanceImage).Spec})
		events := &corev1.EventList{}
		if err := w.client.List(w.Context(), events); err != nil {
			return err
		}
		var seen []string
		for _, event := range events.Items {
			if event.Reason != announce.ReasonRefused {
				continue
			}
			if event.Count > 1 {
				return nil
			}
			seen = append(seen, event.InvolvedObject.Name+": "+event.Message)
		}
		return fmt.Errorf("after %d refusals no event was sent again: %q", tries, seen)
	})
}

// policy waits for a state of the policy.
func (w *watchman) policy(check func(*guardv1alpha1.SingletonPolicy) error) {
	w.Helper()
	w.eventually(func() error {
		policy := &guardv1alpha1.SingletonPolicy{}
		if err := w.client.Get(w.Context(), client.ObjectKey{Name: guardv1alpha1.DefaultPolicyName}, policy); err != nil {
			return err
		}
		return check(policy)
	})
}

// rare are rights that the scenario cannot make the guard use.
var rare = map[string]string{
	"patch events.events.k8s.io": "client-go counts up an event that is told twice of one version of the policy; each finding makes another version, so it takes a status that could not be written in between",
}

// TestGuard has the guard do all that it does, with the role that is shipped.
func TestGuard(t *testing.T) {
	cp := kit.Shared(t)
	w := &watchman{T: t, cp: cp, scheme: runtime.NewScheme()}
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, guardv1alpha1.AddToScheme} {
		w.must(add(w.scheme))
	}
	var err error
	w.client, err = client.New(cp.AdminConfig(0), client.Options{Scheme: w.scheme})
	w.must(err)
	root, err := kit.Root()
	w.must(err)
	for _, file := range []string{
		"config/crd/guard.metacontroller.io_singletonpolicies.yaml", "config/guard/namespace.yaml", "config/guard/service_account.yaml",
		"config/guard/role.yaml", "config/guard/role_binding.yaml", "test/integration/guard/testdata/openreports.io_clusterreports.yaml",
	} {
		_, err := kit.ApplyFile(t.Context(), cp.AdminConfig(0), filepath.Join(root, file))
		w.must(err)
	}
	policy := &guardv1alpha1.SingletonPolicy{}
	policy.Name = guardv1alpha1.DefaultPolicyName
	w.must(client.IgnoreNotFound(w.client.Delete(t.Context(), policy)))
	_, err = kit.ApplyFile(t.Context(), cp.AdminConfig(0), filepath.Join(root, "config/guard/policy.yaml"))
	w.must(err)
	w.ns = kit.Namespace(t, cp.AdminConfig(0))
	begun := newLog(t, cp.AuditLog(0))

	objects := pin.Objects(pin.Options{URL: "https://" + w.start() + webhook.Path, CABundle: cp.CA().CertPEM()})
	slices.Reverse(objects)
	t.Cleanup(func() {
		// The one that protects the others is the last.
		for _, object := range objects {
			_ = w.client.Delete(context.WithoutCancel(t.Context()), object)
		}
	})
	// The webhook first: it is asked about Pods as long as no policy refuses them.
	w.must(w.client.Create(t.Context(), objects[0]))
	holder := &appsv1.StatefulSet{ObjectMeta: w.meta("mc", nil), Spec: appsv1.StatefulSetSpec{
		Replicas: ptr.To[int32](1), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}, Template: podTemplate(instanceImage),
	}}
	w.policy(func(p *guardv1alpha1.SingletonPolicy) error {
		for _, condition := range p.Status.Conditions {
			if condition.Type == guardv1alpha1.ConditionEnforcing && condition.Status == metav1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("it is not enforcing: %+v", p.Status.Conditions)
	})
	w.eventually(func() error { return w.client.Create(t.Context(), holder) })
	w.policy(func(p *guardv1alpha1.SingletonPolicy) error {
		if p.Status.Holder == nil || p.Status.Holder.Name != "mc" {
			return fmt.Errorf("the holder is %+v", p.Status.Holder)
		}
		return nil
	})
	w.owners()
	w.repeat()
	for _, object := range objects[1:] {
		w.must(w.client.Create(t.Context(), object))
	}
	w.policy(func(p *guardv1alpha1.SingletonPolicy) error {
		if p.Status.Holder.Phase != guardv1alpha1.HolderBound || len(p.Status.Findings) > 0 {
			return fmt.Errorf("phase %s, findings %+v", p.Status.Holder.Phase, p.Status.Findings)
		}
		return nil
	})

	// A node, of which the scan looks whether it may still run the Pod on it.
	w.must(w.client.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "one"}}))
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: w.ns, Name: "mc-0"}}
	w.eventually(func() error { return w.client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod) })
	w.must(w.client.SubResource("binding").Create(t.Context(), pod, &corev1.Binding{
		ObjectMeta: pod.ObjectMeta, Target: corev1.ObjectReference{Kind: "Node", Name: "one"},
	}))

	// What is found, and gone again, is written into the report each time.
	rendered := objects[0].(*admissionregistrationv1.ValidatingWebhookConfiguration).Webhooks
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	change := func(weaken bool) {
		w.eventually(func() error {
			if err := w.client.Get(t.Context(), client.ObjectKey{Name: pin.WebhookConfigurationName}, configuration); err != nil {
				return err
			}
			for i := range configuration.Webhooks {
				configuration.Webhooks[i].FailurePolicy, configuration.Webhooks[i].TimeoutSeconds = rendered[i].FailurePolicy, rendered[i].TimeoutSeconds
				if weaken {
					configuration.Webhooks[i].FailurePolicy, configuration.Webhooks[i].TimeoutSeconds = ptr.To(admissionregistrationv1.Ignore), ptr.To[int32](1)
				}
			}
			return w.client.Update(t.Context(), configuration)
		})
		w.policy(func(p *guardv1alpha1.SingletonPolicy) error {
			if (len(p.Status.Findings) > 0) != weaken {
				return fmt.Errorf("findings are %+v", p.Status.Findings)
			}
			return nil
		})
		report := &unstructured.Unstructured{}
		report.SetAPIVersion("openreports.io/v1alpha1")
		report.SetKind("ClusterReport")
		w.eventually(func() error {
			if err := w.client.Get(t.Context(), client.ObjectKey{Name: "singletonpolicy-metacontroller"}, report); err != nil {
				return err
			}
			results, _, _ := unstructured.NestedSlice(report.Object, "results")
			failed := slices.ContainsFunc(results, func(result any) bool { return result.(object)["result"] != "pass" })
			if failed != weaken {
				return fmt.Errorf("the report has %v", results)
			}
			return nil
		})
	}
	change(true)
	change(false)

	rights, err := rightsOf(t.Context(), w.client, guardAccount)
	w.must(err)
	asked, refused, err := begun.calls(userOf(guardAccount))
	w.must(err)
	compare(t, rights, asked, refused, rare)
}
