// Package pin_test shows what the pin and protect policies do in a real API
// server, with the real StatefulSet controller, and no guard running.
package pin_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	"github.com/metacontroller-solo/solo/test/kit"
)

const (
	image    = "ghcr.io/metacontroller/metacontroller:v4.17.2"
	patience = 60 * time.Second
	crdFile  = "config/crd/guard.metacontroller.io_singletonpolicies.yaml"
	crdName  = "singletonpolicies.guard.metacontroller.io"
)

func TestMain(m *testing.M) { kit.Main(m, kit.Options{}) }

// cluster is what the tests work with.
type cluster struct {
	testing.TB
	client.Client
	config    *rest.Config
	namespace string
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme, apiextensionsv1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	config := kit.Shared(t).AdminConfig(0)
	c, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	return &cluster{TB: t, Client: c, config: config, namespace: kit.Namespace(t, config)}
}

func (c *cluster) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: c.namespace, Name: name}
}

func podSpec(image string) corev1.PodSpec {
	return corev1.PodSpec{
		Containers:                    []corev1.Container{{Name: "a", Image: image}},
		TerminationGracePeriodSeconds: ptr.To[int64](1),
	}
}

func (c *cluster) pod(name, image string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: c.meta(name), Spec: podSpec(image)}
}

var labels = map[string]string{"app": "metacontroller"}

func template(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec(image)}
}

func (c *cluster) statefulSet(name string, replicas *int32) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{ObjectMeta: c.meta(name), Spec: appsv1.StatefulSetSpec{
		Replicas: replicas, ServiceName: "none", Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template(image),
	}}
}

func (c *cluster) deployment(name, image string) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: c.meta(name), Spec: appsv1.DeploymentSpec{
		Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template(image),
	}}
}

// try creates the object as a dry run, which is judged and not kept.
func (c *cluster) try(object client.Object) error {
	return c.Create(context.Background(), object.DeepCopyObject().(client.Object), client.DryRunAll)
}

// refusedBy says whether err is a refusal by that rule.
func refusedBy(err error, rule string) error {
	switch {
	case err == nil:
		return errors.New("it was let through")
	case !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "["+rule+"] "):
		return fmt.Errorf("it was not refused by %s: %w", rule, err)
	}
	return nil
}

func (c *cluster) wantRefused(err error, rule string) {
	c.Helper()
	if err := refusedBy(err, rule); err != nil {
		c.Error(err)
		return
	}
	c.Log(err)
}

func (c *cluster) policy() *v1alpha1.SingletonPolicy {
	c.Helper()
	p := &v1alpha1.SingletonPolicy{}
	c.must(c.Get(context.Background(), client.ObjectKey{Name: v1alpha1.DefaultPolicyName}, p))
	return p
}

// install applies the CRD and the policies, without the webhook configuration:
// no guard runs here.
func (c *cluster) install() {
	c.Helper()
	root, err := kit.Root()
	c.must(err)
	_, err = kit.ApplyFile(context.Background(), c.config, filepath.Join(root, crdFile))
	c.must(err)
	for _, object := range pin.Objects(pin.Options{}) {
		if object.GetName() == pin.WebhookConfigurationName {
			continue
		}
		data, err := yaml.Marshal(object)
		c.must(err)
		_, err = kit.ApplyYAML(context.Background(), c.config, data)
		c.must(err)
	}
}

func binding(name string) *admissionregistrationv1.ValidatingAdmissionPolicyBinding {
	return &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

// TestPin goes through the life of an installation, in order.
func TestPin(t *testing.T) {
	ctx := context.Background()
	c := newCluster(t)
	c.install()
	step := func(name string, do func(c *cluster)) {
		t.Helper()
		if !t.Run(name, func(t *testing.T) {
			at := *c
			at.TB = t
			do(&at)
		}) {
			t.FailNow()
		}
	}

	step("without a SingletonPolicy nothing is refused", func(c *cluster) {
		// The protect policy is in force at once with the pin policies, and is
		// known by what it refuses.
		kit.Eventually(c, patience, func() error {
			return refusedBy(c.Delete(ctx, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: crdName}}, client.DryRunAll), "protected")
		})
		// A policy with parameters fails closed until the API server has listed
		// them, a moment after it knows of the policy.
		kit.Eventually(c, patience, func() error { return c.try(c.pod("stranger", "nginx")) })
		kit.Eventually(c, patience, func() error { return c.try(c.deployment("stranger", "nginx")) })
		c.must(c.try(c.pod("instance", image)))
	})

	step("the CRD fills in the default match and refuses what cannot work", func(c *cluster) {
		c.must(c.Create(ctx, &v1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultPolicyName}}))
		if diff := cmp.Diff(v1alpha1.DefaultMatch(), c.policy().Spec.Match); diff != "" {
			c.Error(diff)
		}
		for field, match := range map[string]v1alpha1.Match{
			"spec.match.images": {Images: []string{"metacontroller/metacontroller"}},
			"port":              {Images: []string{"reg.local:5000/a"}},
			"2048":              {Images: long(20)},
		} {
			p := &v1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: "bad"}}
			p.Spec.Match = match
			if err := c.try(p); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.match.images") {
				c.Errorf("%s: got error %v", field, err)
			}
		}
	})

	step("with no holder no Pod is an instance, and a StatefulSet of one may come", func(c *cluster) {
		kit.Eventually(c, patience, func() error { return refusedBy(c.try(c.pod("p", image)), "pod-not-pinned") })
		kit.Eventually(c, patience, func() error { return refusedBy(c.try(c.deployment("d", image)), "workload-kind") })
		c.must(c.try(c.statefulSet("metacontroller", nil)))
		c.wantRefused(c.try(c.statefulSet("metacontroller", ptr.To[int32](2))), "scale-above-one")
	})

	step("the holder's Pod is made by the real StatefulSet controller", func(c *cluster) {
		s := c.statefulSet("metacontroller", ptr.To[int32](1))
		c.must(c.Create(ctx, s))
		p := c.policy()
		p.Status.Holder = &v1alpha1.Holder{
			Kind: "StatefulSet", Namespace: s.Namespace, Name: s.Name, Display: s.Namespace + "/" + s.Name, UID: s.UID,
			ClaimedAt: metav1.Now(), Phase: v1alpha1.HolderBound, Since: metav1.Now(), Epoch: 1,
		}
		p.Status.Epoch = 1
		c.must(c.Status().Update(ctx, p))
		c.wantPinnedPod("")
	})

	step("every second instance is refused", func(c *cluster) {
		c.wantRefused(c.try(c.pod("another", image)), "pod-not-pinned")
		c.wantRefused(c.try(c.deployment("d", image)), "second-workload")
		other := c.statefulSet("other", nil)
		c.wantRefused(c.try(other), "second-workload")
		c.wantRefused(c.try(&batchv1.Job{ObjectMeta: c.meta("j"), Spec: batchv1.JobSpec{Template: withRestart(template(image))}}), "second-workload")
		c.wantRefused(c.try(&batchv1.CronJob{ObjectMeta: c.meta("cj"), Spec: batchv1.CronJobSpec{Schedule: "* * * * *",
			JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: withRestart(template(image))}}}}), "second-workload")
		c.wantRefused(c.try(&appsv1.DaemonSet{ObjectMeta: c.meta("ds"), Spec: appsv1.DaemonSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template(image)}}), "second-workload")
		c.wantRefused(c.try(&appsv1.ReplicaSet{ObjectMeta: c.meta("rs"), Spec: appsv1.ReplicaSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels}, Template: template(image)}}), "second-workload")
		c.wantRefused(c.try(&corev1.ReplicationController{ObjectMeta: c.meta("rc"), Spec: corev1.ReplicationControllerSpec{
			Selector: labels, Template: ptr.To(template(image))}}), "second-workload")
		wrapped := c.pod("wrapped", "private.example.com/tools:v1")
		wrapped.Spec.Containers[0].Command = []string{"sh", "-c", "exec $(BIN) --x"}
		wrapped.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "BIN", Value: "/usr/bin/metacontroller"}}
		c.wantRefused(c.try(wrapped), "pod-not-pinned")
	})

	step("every manifest of the corpus is judged as it is meant", func(c *cluster) { c.judgeCorpus() })

	step("the holder is not scaled above one", func(c *cluster) {
		s := &appsv1.StatefulSet{ObjectMeta: c.meta("metacontroller")}
		c.wantRefused(c.SubResource("scale").Update(ctx, s, client.WithSubResourceBody(&autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 2}})), "scale-above-one")
		c.wantRefused(c.Patch(ctx, s, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":2}}`))), "scale-above-one")
		c.must(c.Patch(ctx, s, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":null}}`))))
		c.must(c.Patch(ctx, s, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`))))
	})

	step("nobody else makes the pinned Pod, and the controller makes it again", func(c *cluster) {
		before := &corev1.Pod{ObjectMeta: c.meta("metacontroller-0")}
		c.must(c.Get(ctx, client.ObjectKeyFromObject(before), before))
		c.must(c.Delete(ctx, before))
		squatter := c.pod("metacontroller-0", image)
		squatter.OwnerReferences = before.OwnerReferences
		err := c.try(squatter)
		for deadline := time.Now().Add(patience); apierrors.IsAlreadyExists(err) && time.Now().Before(deadline); {
			// The controller was quicker than this test; admission comes first, so
			// the name alone cannot be the reason twice.
			c.must(client.IgnoreNotFound(c.Delete(ctx, &corev1.Pod{ObjectMeta: c.meta("metacontroller-0")})))
			err = c.try(squatter)
		}
		c.wantRefused(err, "pod-not-pinned")
		c.wantPinnedPod(before.UID)
	})

	step("a harmless Pod does not become an instance", func(c *cluster) {
		harmless := c.pod("harmless", "nginx")
		harmless.Labels = labels
		c.must(c.Create(ctx, harmless))
		c.wantRefused(c.Patch(ctx, harmless.DeepCopy(), client.RawPatch(types.StrategicMergePatchType,
			[]byte(`{"spec":{"containers":[{"name":"a","image":"`+image+`"}]}}`))), "became-instance")
		// The scheduler writes to the Pod too, so a conflict is tried again.
		debug := func(image string) error {
			for {
				latest := &corev1.Pod{}
				c.must(c.Get(ctx, client.ObjectKeyFromObject(harmless), latest))
				latest.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: image}}}
				if err := c.SubResource("ephemeralcontainers").Update(ctx, latest); !apierrors.IsConflict(err) {
					return err
				}
			}
		}
		c.wantRefused(debug(image), "became-instance")
		c.must(debug("busybox"))
	})

	step("a hostile Pod is refused, and nobody else notices", func(c *cluster) {
		hostile := c.pod("hostile", "nginx")
		hostile.Spec.Containers = nil
		for i := range 50 {
			container := corev1.Container{Name: fmt.Sprint("c", i), Image: "nginx", Command: []string{"sh", "-c"}}
			for range 50 {
				container.Args = append(container.Args, "kubectl get sts metacontroller")
			}
			hostile.Spec.Containers = append(hostile.Spec.Containers, container)
		}
		err := c.try(hostile)
		if err == nil || !strings.Contains(err.Error(), pin.PolicyName) {
			c.Errorf("the hostile Pod is not refused by the policy: %v", err)
		}
		c.Log(err)
		for i := range hostile.Spec.Containers {
			for j := range hostile.Spec.Containers[i].Args {
				hostile.Spec.Containers[i].Args[j] = "kubectl get sts something"
			}
		}
		began := time.Now()
		c.must(c.try(hostile))
		c.Logf("a Pod with 50 containers and 50 args each was let through in %s", time.Since(began))
		c.must(c.try(c.pod("stranger", "nginx")))
		c.must(c.try(c.deployment("stranger", "nginx")))
	})

	step("no expression has a warning of the API server's type checker", func(c *cluster) {
		for _, name := range []string{pin.PolicyName, pin.WorkloadPolicyName, pin.ScalePolicyName, pin.ProtectName} {
			p := &admissionregistrationv1.ValidatingAdmissionPolicy{}
			kit.Eventually(c, patience, func() error {
				c.must(c.Get(ctx, client.ObjectKey{Name: name}, p))
				if p.Status.TypeChecking == nil {
					return fmt.Errorf("%s is not checked yet", name)
				}
				return nil
			})
			for _, w := range p.Status.TypeChecking.ExpressionWarnings {
				c.Errorf("%s: %s: %.600s", name, w.FieldRef, w.Warning)
			}
		}
	})

	step("a policy that warns or audits refuses nothing", func(c *cluster) {
		for _, action := range []v1alpha1.ValidationAction{v1alpha1.ActionWarn, v1alpha1.ActionAudit} {
			p := c.policy()
			p.Spec.ValidationActions = []v1alpha1.ValidationAction{action}
			c.must(c.Update(ctx, p))
			kit.Eventually(c, patience, func() error { return c.try(c.pod("another", image)) })
			kit.Eventually(c, patience, func() error { return c.try(c.deployment("another", image)) })
			p = c.policy()
			p.Spec.ValidationActions = []v1alpha1.ValidationAction{v1alpha1.ActionDeny}
			c.must(c.Update(ctx, p))
			kit.Eventually(c, patience, func() error { return refusedBy(c.try(c.pod("another", image)), "pod-not-pinned") })
		}
	})

	step("an exception lets one through", func(c *cluster) {
		p := c.policy()
		p.Status.ActiveExceptions = []v1alpha1.Exception{{Namespace: c.namespace, Name: "excepted", Reason: "test", Expires: metav1.NewTime(time.Now().Add(time.Hour))}}
		c.must(c.Status().Update(ctx, p))
		kit.Eventually(c, patience, func() error { return c.try(c.pod("excepted", image)) })
		c.wantRefused(c.try(c.pod("another", image)), "pod-not-pinned")
	})

	step("the policy and its CRD are kept", func(c *cluster) {
		c.wantRefused(c.Delete(ctx, c.policy()), "protected")
		c.wantRefused(c.DeleteAllOf(ctx, &v1alpha1.SingletonPolicy{}), "protected")
		c.wantRefused(c.Delete(ctx, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: crdName}}), "protected")
		other := &v1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
		c.must(c.Create(ctx, other))
		c.must(c.Delete(ctx, other))
	})

	step("the shipped files are accepted as they are", func(c *cluster) {
		for _, object := range pin.Objects(pin.Options{}) {
			if object.GetName() == pin.WebhookConfigurationName {
				c.must(c.try(object))
			}
		}
	})

	step("uninstalling ends it all, in the documented order", func(c *cluster) {
		for _, object := range pin.Objects(pin.Options{}) {
			if b, ok := object.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding); ok && b.Name != pin.ProtectName {
				c.must(c.Delete(ctx, binding(b.Name)))
			}
		}
		c.must(c.Delete(ctx, binding(pin.ProtectName)))
		kit.Eventually(c, patience, func() error { return c.try(c.pod("another", image)) })
		kit.Eventually(c, patience, func() error { return client.IgnoreNotFound(c.Delete(ctx, c.policy())) })
		c.must(c.Delete(ctx, &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: crdName}}))
		kit.Eventually(c, patience, func() error {
			err := c.Get(ctx, client.ObjectKey{Name: crdName}, &apiextensionsv1.CustomResourceDefinition{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return fmt.Errorf("the CRD is still there: %w", err)
		})
	})

	step("a binding without its CRD refuses every Pod: the reason for the protect policy", func(c *cluster) {
		for _, object := range pin.Objects(pin.Options{}) {
			if b, ok := object.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding); ok && b.Name == pin.PolicyName {
				c.must(c.Create(ctx, b))
			}
		}
		kit.Eventually(c, patience, func() error {
			if err := c.try(c.pod("stranger", "nginx")); err == nil || !strings.Contains(err.Error(), "paramKind") {
				return fmt.Errorf("a stranger's Pod is not refused: %w", err)
			}
			return nil
		})
		c.must(c.Delete(ctx, binding(pin.PolicyName)))
		kit.Eventually(c, patience, func() error { return c.try(c.pod("stranger", "nginx")) })
	})
}

// wantPinnedPod waits for the holder's Pod, with another uid than before.
func (c *cluster) wantPinnedPod(before types.UID) {
	c.Helper()
	kit.Eventually(c, patience, func() error {
		p := &corev1.Pod{}
		if err := c.Get(context.Background(), client.ObjectKey{Namespace: c.namespace, Name: "metacontroller-0"}, p); err != nil {
			return err
		}
		if p.UID == before {
			return errors.New("it is still the old Pod")
		}
		return nil
	})
}

func withRestart(t corev1.PodTemplateSpec) corev1.PodTemplateSpec {
	t.Spec.RestartPolicy = corev1.RestartPolicyNever
	return t
}

func long(n int) []string {
	patterns := make([]string, n)
	for i := range patterns {
		patterns[i] = fmt.Sprintf("ghcr.io/%d/%s", i, strings.Repeat("a", 200))
	}
	return patterns
}
