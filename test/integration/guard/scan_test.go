package guard_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	"github.com/metacontroller-solo/solo/pkg/guard/scan"
	"github.com/metacontroller-solo/solo/test/kit"
)

// scanned is an installed guard, a holder, and what the scan says.
type scanned struct{ *stage }

// found waits until a finding is in the status, and logs how long that took: on a
// machine that has nothing else to do it is below a second.
func (c *scanned) found(id inspect.ID, object, path string) guardv1alpha1.Finding {
	c.t.Helper()
	var found guardv1alpha1.Finding
	began := time.Now()
	c.eventually(func() error {
		for _, f := range c.policy().Status.Findings {
			if f.ID == string(id) && strings.Contains(inspect.FromStatus(f).Object.String(), object) && strings.HasPrefix(f.Path, path) {
				found = f
				return nil
			}
		}
		return fmt.Errorf("no %s of %s %s in %+v", id, object, path, c.policy().Status.Findings)
	})
	c.t.Logf("%s after %s: %s", id, time.Since(began).Round(time.Millisecond), found.Message)
	return found
}

// gone waits until nothing is found any more but what is named.
func (c *scanned) gone(except ...inspect.ID) {
	c.t.Helper()
	c.eventually(func() error {
		for _, f := range c.policy().Status.Findings {
			if !slices.Contains(except, inspect.ID(f.ID)) {
				return fmt.Errorf("still found: %+v", f)
			}
		}
		return nil
	})
}

// condition waits for a condition of the policy's present generation.
func (c *scanned) condition(kind string, want metav1.ConditionStatus) {
	c.t.Helper()
	c.eventually(func() error {
		policy := c.policy()
		got := meta.FindStatusCondition(policy.Status.Conditions, kind)
		if got == nil || got.Status != want || got.ObservedGeneration != policy.Generation {
			return fmt.Errorf("condition %s is %+v, want %s", kind, got, want)
		}
		return nil
	})
}

// webhooks changes the installed webhook configuration.
func (c *scanned) webhooks(change func(*admissionregistrationv1.ValidatingWebhook)) {
	c.t.Helper()
	c.eventually(func() error {
		live := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		if err := c.admin().Get(c.ctx(), client.ObjectKey{Name: pin.WebhookConfigurationName}, live); err != nil {
			return err
		}
		for i := range live.Webhooks {
			change(&live.Webhooks[i])
		}
		return c.admin().Update(c.ctx(), live)
	})
}

// restore installs again what was deleted or changed, and waits until it counts.
func (c *scanned) restore() {
	c.t.Helper()
	for _, object := range c.suite.objects() {
		c.eventually(func() error {
			live := object.DeepCopyObject().(client.Object)
			switch err := c.admin().Get(c.ctx(), client.ObjectKeyFromObject(object), live); {
			case err == nil:
				object.SetResourceVersion(live.GetResourceVersion())
				return c.admin().Update(c.ctx(), object)
			case client.IgnoreNotFound(err) == nil:
				object.SetResourceVersion("")
				return c.admin().Create(c.ctx(), object)
			default:
				return err
			}
		})
	}
	c.condition(guardv1alpha1.ConditionDrifted, metav1.ConditionFalse)
	c.condition(guardv1alpha1.ConditionEnforcing, metav1.ConditionTrue)
	c.asked()
}

func (c *scanned) delete(objects ...client.Object) {
	c.t.Helper()
	for _, object := range objects {
		if err := client.IgnoreNotFound(c.admin().Delete(c.ctx(), object)); err != nil {
			c.t.Fatal(err)
		}
	}
}

// denied waits until a second instance is refused, by whichever layer is left.
func (c *scanned) denied() {
	c.t.Helper()
	for _, admin := range c.admins {
		c.eventually(func() error {
			for _, second := range []client.Object{deployment(c.namespace, "second"), statefulSet(c.namespace, "second"), pod(c.namespace, "second", instanceImage)} {
				if err := admin.Create(c.ctx(), second, client.DryRunAll); err == nil {
					return fmt.Errorf("a second %T is let in", second)
				}
			}
			return nil
		})
	}
}

// TestScan is one guard, with the role that is shipped, that watches what people
// do to it and around it.
func TestScan(t *testing.T) {
	s := prepare(t)
	crd, err := os.ReadFile(filepath.Join("testdata", "openreports.io_clusterreports.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kit.ApplyYAML(s.ctx(), s.cp.AdminConfig(0), crd); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		definition := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "clusterreports.openreports.io"}}
		_ = s.admins[0].Delete(context.WithoutCancel(t.Context()), definition)
	})
	s.start(guardConfig{})
	s.point()
	s.admission(allLayers)
	namespace := s.namespace("scan")
	holder := statefulSet(namespace, "mc")
	holder.Spec.Template.Spec.ServiceAccountName = "mc"
	account := &corev1.ServiceAccount{ObjectMeta: named(namespace, "mc")}
	for _, object := range []client.Object{account, holder} {
		if err := s.admin().Create(s.ctx(), object); err != nil {
			t.Fatal(err)
		}
	}
	s.phase(guardv1alpha1.HolderBound)
	s.awaitPod(namespace, "mc-0", "")
	c := &scanned{&stage{suite: s, namespace: namespace, servers: len(s.admins)}}
	for _, test := range scanCases {
		c.sub(test.name, test.run)
	}
}

// sub is a subtest.
func (c *scanned) sub(name string, run func(*scanned)) {
	c.t.(*testing.T).Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
		run(&scanned{&stage{suite: c.at(t), namespace: c.namespace, servers: c.servers}})
	})
}

var scanCases = []struct {
	name string
	run  func(*scanned)
}{
	{"in order", func(c *scanned) {
		c.gone()
		for kind, want := range map[string]metav1.ConditionStatus{
			guardv1alpha1.ConditionReady: metav1.ConditionTrue, guardv1alpha1.ConditionEnforcing: metav1.ConditionTrue,
			guardv1alpha1.ConditionCompliant: metav1.ConditionTrue, guardv1alpha1.ConditionDrifted: metav1.ConditionFalse,
		} {
			c.condition(kind, want)
		}
		c.eventually(func() error {
			instances := c.policy().Status.Instances
			if len(instances) != 1 || instances[0].Name != "mc-0" || instances[0].Verdict != guardv1alpha1.InstanceAllowed {
				return fmt.Errorf("instances are %+v", instances)
			}
			return nil
		})
	}},
	{"F02 config weakened", func(c *scanned) {
		c.webhooks(func(w *admissionregistrationv1.ValidatingWebhook) {
			w.FailurePolicy, w.TimeoutSeconds = ptr.To(admissionregistrationv1.Ignore), ptr.To[int32](1)
			w.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"asked": "never"}}
			w.Rules[0].Operations = w.Rules[0].Operations[:1]
		})
		at := "webhooks[" + pin.WorkloadsWebhook + "]"
		for _, path := range []string{".failurePolicy", ".timeoutSeconds", ".namespaceSelector", ".rules[0].operations[1]"} {
			c.found(inspect.AdmissionDrift, pin.WebhookConfigurationName, at+path)
		}
		c.condition(guardv1alpha1.ConditionEnforcing, metav1.ConditionFalse)
		c.condition(guardv1alpha1.ConditionDrifted, metav1.ConditionTrue)
		c.denied()
		c.restore()
		c.gone()
	}},
	{"E12 caBundle empty", func(c *scanned) {
		c.webhooks(func(w *admissionregistrationv1.ValidatingWebhook) { w.ClientConfig.CABundle = nil })
		c.found(inspect.AdmissionDrift, pin.WebhookConfigurationName, "webhooks["+pin.WorkloadsWebhook+"].clientConfig.caBundle")
		c.condition(guardv1alpha1.ConditionEnforcing, metav1.ConditionFalse)
		c.denied()
		// Nobody else is kept from anything.
		if err := c.dry(pod(c.namespace, "stranger", strangerImage)); err != nil {
			c.t.Error(err)
		}
		c.restore()
	}},
	{"F01 webhook config deleted", func(c *scanned) {
		c.delete(&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: pin.WebhookConfigurationName}})
		c.found(inspect.AdmissionMissing, pin.WebhookConfigurationName, "")
		c.condition(guardv1alpha1.ConditionEnforcing, metav1.ConditionFalse)
		c.denied()
		c.restore()
	}},
	{"F03 policies deleted", func(c *scanned) {
		for _, object := range c.suite.objects() {
			_, binding := object.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding)
			if _, policy := object.(*admissionregistrationv1.ValidatingAdmissionPolicy); policy || binding {
				c.delete(object)
			}
		}
		for _, name := range []string{pin.PolicyName, pin.WorkloadPolicyName, pin.ScalePolicyName, pin.ProtectName, pin.FencePolicyName, pin.WriterPolicyName, pin.LeasePolicyName} {
			c.found(inspect.AdmissionMissing, "ValidatingAdmissionPolicy "+name, "")
			c.found(inspect.AdmissionMissing, "ValidatingAdmissionPolicyBinding "+name, "")
		}
		c.condition(guardv1alpha1.ConditionEnforcing, metav1.ConditionTrue)
		c.denied()
		c.restore()
	}},
	{"F17 deleted by Metacontroller", func(c *scanned) {
		// Its account may do everything, as the public manifests have it.
		all := &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: "f17"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: c.namespace, Name: "mc"}},
		}
		if err := c.admin().Create(c.ctx(), all); err != nil {
			c.t.Fatal(err)
		}
		defer c.delete(all)
		config, err := c.cp.TokenConfig(c.ctx(), c.namespace, "mc")
		if err != nil {
			c.t.Fatal(err)
		}
		metacontroller := c.client(config)
		c.eventually(func() error {
			return metacontroller.Delete(c.ctx(), &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: pin.WebhookConfigurationName}})
		})
		c.found(inspect.AdmissionMissing, pin.WebhookConfigurationName, "")
		c.denied()
		c.restore()
	}},
	{"F23 CRD altered", func(c *scanned) {
		c.definition(func(version *apiextensionsv1.CustomResourceDefinitionVersion) {
			// Nothing fills spec.match in any more, and what is there is dropped.
			spec := version.Schema.OpenAPIV3Schema.Properties["spec"]
			delete(spec.Properties, "match")
			version.Schema.OpenAPIV3Schema.Properties["spec"] = spec
		})
		c.found(inspect.CRDDrift, "singletonpolicies.guard.metacontroller.io", "spec.versions[v1alpha1].schema.openAPIV3Schema.properties.spec")
		// The guard goes on by the last policy that it could judge by.
		c.denied()
		c.apply("config/crd/guard.metacontroller.io_singletonpolicies.yaml")
		c.eventually(func() error {
			policy := c.policy()
			if len(policy.Spec.Match.Images) == 0 {
				return fmt.Errorf("spec.match is not filled in again: %+v", policy.Spec)
			}
			return nil
		})
		c.gone()
	}},
	{"G13 CRD upgraded", func(c *scanned) {
		before := c.policy()
		c.definition(func(*apiextensionsv1.CustomResourceDefinitionVersion) {}, func(crd *apiextensionsv1.CustomResourceDefinition) {
			next := *crd.Spec.Versions[0].DeepCopy()
			next.Name, next.Storage = "v1alpha2", false
			crd.Spec.Versions = append(crd.Spec.Versions, next)
		})
		c.found(inspect.CRDDrift, "singletonpolicies.guard.metacontroller.io", "spec.versions[v1alpha2]")
		after := c.policy()
		if after.UID != before.UID || after.Status.Holder == nil || after.Status.Holder.UID != before.Status.Holder.UID || after.Status.Epoch != before.Status.Epoch {
			c.t.Errorf("the policy was %+v and is %+v", before.Status.Holder, after.Status.Holder)
		}
		c.denied()
		c.definition(func(*apiextensionsv1.CustomResourceDefinitionVersion) {}, func(crd *apiextensionsv1.CustomResourceDefinition) { crd.Spec.Versions = crd.Spec.Versions[:1] })
		c.gone()
	}},
	{"B05 unrecognisable", func(c *scanned) {
		wrapped := pod(c.namespace, "wrapped", strangerImage)
		wrapped.Spec.ServiceAccountName = "mc"
		wrapped.Spec.Containers[0].Command = []string{"sh", "-c", "exec /opt/m"}
		if err := c.create(wrapped); err != nil {
			c.t.Fatal(err)
		}
		c.found(inspect.SharedAccount, "Pod "+c.namespace+"/wrapped", "")
		c.eventEventually("Found", string(inspect.SharedAccount))
		c.remove(wrapped)
		c.gone()
		c.eventEventually("Gone", string(inspect.SharedAccount))
	}},
	{"B22 outside process", func(c *scanned) {
		now := metav1.NowMicro()
		lease := &coordinationv1.Lease{ObjectMeta: named("kube-system", "metacontroller"), Spec: coordinationv1.LeaseSpec{
			HolderIdentity: ptr.To("laptop_5c2e"), LeaseDurationSeconds: ptr.To[int32](15), RenewTime: &now,
		}}
		if err := c.create(lease); err != nil {
			c.t.Fatal(err)
		}
		defer c.delete(lease)
		// No watch tells of a Lease: it is looked at every ten seconds.
		c.eventually(func() error { return c.has(inspect.UnknownWriter) })
		c.condition(guardv1alpha1.ConditionCompliant, metav1.ConditionFalse)
		c.delete(lease)
		c.gone()
	}},
	{"F14 template changed", func(c *scanned) {
		live := &appsv1.StatefulSet{}
		c.eventually(func() error {
			if err := c.admin().Get(c.ctx(), client.ObjectKey{Namespace: c.namespace, Name: "mc"}, live); err != nil {
				return err
			}
			main := &live.Spec.Template.Spec.Containers[0]
			main.Image, main.Env = "ghcr.io/metacontroller/metacontroller:v4.99", []corev1.EnvVar{{Name: "TOKEN", Value: "hush-hush"}}
			return c.admin().Update(c.ctx(), live)
		})
		c.eventEventually("HolderTemplateChanged", "metacontroller:v4.99")
		c.eventually(func() error {
			if log := c.guards[0].stderr.String(); !strings.Contains(log, "The holder's Pod template changed") {
				return fmt.Errorf("not in the log")
			}
			return nil
		})
		if strings.Contains(c.guards[0].stderr.String(), "hush-hush") {
			c.t.Error("a value is in the log")
		}
	}},
	{"D01 node lost", func(c *scanned) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "lost"}, Spec: corev1.NodeSpec{Unschedulable: true}}
		if err := c.create(node); err != nil {
			c.t.Fatal(err)
		}
		defer c.delete(node)
		c.nodeReady(node, corev1.ConditionUnknown)
		uid := c.bind("mc-0", node.Name)
		active := pod(c.namespace, "mc-0", instanceImage)
		if err := c.admin().Delete(c.ctx(), active, client.GracePeriodSeconds(1)); err != nil {
			c.t.Fatal(err)
		}
		found := c.found(inspect.PodBlocked, "Pod "+c.namespace+"/mc-0", "")
		if !strings.Contains(found.Message, "blocked") || !strings.Contains(found.Message, node.Name) {
			c.t.Errorf("it says %q", found.Message)
		}
		if now := c.uidOf(pod(c.namespace, "mc-0", instanceImage)); now != uid {
			c.t.Errorf("a replacement was started: %s is %s", uid, now)
		}
		// The node is tainted, the Pod is taken out of the API, and then the node says
		// that it is there.
		c.sub("D03 taint on a live node", func(c *scanned) {
			c.eventually(func() error {
				if err := c.admin().Get(c.ctx(), client.ObjectKeyFromObject(node), node); err != nil {
					return err
				}
				node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute})
				return c.admin().Update(c.ctx(), node)
			})
			c.nodeReady(node, corev1.ConditionTrue)
			c.eventually(func() error { return c.has(inspect.NodeNotProvenDead) })
			c.eventually(func() error {
				return client.IgnoreNotFound(c.admin().Delete(c.ctx(), pod(c.namespace, "mc-0", instanceImage), client.GracePeriodSeconds(0)))
			})
			c.awaitPod(c.namespace, "mc-0", uid)
			c.eventually(func() error { return c.has(inspect.NodeNotProvenDead) })
		})
		c.delete(node)
		c.gone()
	}},
	{"F04 both deleted", func(c *scanned) {
		c.suite.remove(c.suite.objects())
		second := deployment(c.namespace, "second")
		second.Spec.Strategy.Type = appsv1.RecreateDeploymentStrategyType
		mirror := pod(c.namespace, "static-n1", instanceImage)
		mirror.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
		mirror.Spec.NodeName = "n1"
		for _, object := range []client.Object{second, mirror, pod(c.namespace, "bare", instanceImage)} {
			c.eventually(func() error { return client.IgnoreAlreadyExists(c.admin().Create(c.ctx(), object)) })
		}
		c.found(inspect.AdmissionMissing, pin.PolicyName, "")
		c.found(inspect.WorkloadNotHolder, "Deployment "+c.namespace+"/second", "")
		c.found(inspect.InstanceNotPinned, "Pod "+c.namespace+"/second-", "")
		c.found(inspect.InstanceNotPinned, "Pod "+c.namespace+"/bare", "")
		c.sub("D15 static Pod", func(c *scanned) { c.found(inspect.StaticPod, "Pod "+c.namespace+"/static-n1", "") })
		c.condition(guardv1alpha1.ConditionCompliant, metav1.ConditionFalse)
		c.eventually(func() error {
			for _, instance := range c.policy().Status.Instances {
				if instance.Workload == "Deployment/second" {
					return nil
				}
			}
			return fmt.Errorf("the top of the chain is not named: %+v", c.policy().Status.Instances)
		})
		if shown, err := yaml.Marshal(c.policy().Status); err == nil {
			c.t.Logf("status:\n%s", shown) // As in docs/scan.md.
		}
		c.sub("I08 the report has it", func(c *scanned) {
			c.reported("fail", string(inspect.AdmissionMissing), string(inspect.WorkloadNotHolder), string(inspect.StaticPod))
		})
		c.restore()
		c.sub("G01 already two", func(c *scanned) {
			c.condition(guardv1alpha1.ConditionCompliant, metav1.ConditionFalse)
			c.denied()
			if living := c.second(); len(living) < 2 {
				c.t.Errorf("something was killed: %v are left", living)
			}
		})
		// What was there is not made again, and not scaled.
		c.sub("C13 Deployment Recreate and scale", func(c *scanned) {
			old := c.podOf("second-")
			// One that is let through, before the policy is in force again, is no raise the
			// next time.
			replicas := int32(2)
			c.eventually(func() error {
				replicas++
				if got, line := outcome(c.scale(second, replicas)); got != string(decide.RuleScaleAboveOne) {
					return fmt.Errorf("scaled: %s (%s)", got, line)
				}
				return nil
			})
			if err := c.admin().Delete(c.ctx(), old, client.GracePeriodSeconds(0)); err != nil {
				c.t.Fatal(err)
			}
			c.refusalEvent("second")
		})
		c.delete(second)
		for _, name := range []string{"bare", "static-n1"} {
			c.remove(pod(c.namespace, name, instanceImage))
		}
		c.gone()
		c.condition(guardv1alpha1.ConditionCompliant, metav1.ConditionTrue)
		c.sub("I08 the report follows", func(c *scanned) { c.reported("pass", "at-most-one") })
	}},
	{"G07 two policies", func(c *scanned) {
		other := &guardv1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
		if err := c.create(other); err != nil {
			c.t.Fatal(err)
		}
		defer c.delete(other)
		c.eventually(func() error { return c.has(inspect.PolicyConflict) })
		c.delete(other)
		c.gone()
	}},
	{"exception expires", func(c *scanned) {
		c.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) {
			spec.Exceptions = []guardv1alpha1.Exception{{Namespace: c.namespace, Name: "x", Reason: "a test", Expires: metav1.NewTime(time.Now().Add(2 * time.Second))}}
		})
		c.found(inspect.ExceptionExpired, guardv1alpha1.DefaultPolicyName, "spec.exceptions")
		c.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) { spec.Exceptions = nil })
		c.gone()
	}},
	{"claim of a gone uid", func(c *scanned) {
		live := statefulSet(c.namespace, "mc")
		uid := c.uidOf(pod(c.namespace, "mc-0", instanceImage))
		if err := c.admin().Delete(c.ctx(), live, client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
			c.t.Fatal(err)
		}
		c.found(inspect.HolderGone, "StatefulSet "+c.namespace+"/mc", "")
		// The same name may come again, and takes its Pod back.
		again := statefulSet(c.namespace, "mc")
		again.Spec.Template.Spec.ServiceAccountName = "mc"
		c.eventually(func() error { return c.admin().Create(c.ctx(), again) })
		c.gone()
		if now := c.uidOf(pod(c.namespace, "mc-0", instanceImage)); now == "" || uid == "" {
			c.t.Errorf("the Pod was %q and is %q", uid, now)
		}
	}},
	{"one scan", func(c *scanned) {
		config, err := c.cp.TokenConfig(c.ctx(), guardNamespace, "metacontroller-guard")
		if err != nil {
			c.t.Fatal(err)
		}
		result, err := scan.Run(c.ctx(), c.client(config), scan.Options{Policy: guardv1alpha1.DefaultPolicyName, Now: time.Now()})
		if err != nil {
			c.t.Fatal(err)
		}
		if len(result.Findings) > 0 || result.Running != 1 {
			c.t.Errorf("got %+v", result)
		}
	}},
	{"E29 no guard", func(c *scanned) {
		for _, g := range c.guards {
			g.process.Stop()
		}
		c.denied()
		// The same Pod starts again, and nobody is asked.
		c.sub("D09 reboot", func(c *scanned) {
			c.eventually(func() error {
				active := &corev1.Pod{}
				if err := c.admin().Get(c.ctx(), client.ObjectKey{Namespace: c.namespace, Name: "mc-0"}, active); err != nil {
					return err
				}
				active.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Image: instanceImage, RestartCount: 1}}
				return c.admin().Status().Update(c.ctx(), active)
			})
		})
	}},
}

// has says whether a kind of finding is in the status.
func (c *scanned) has(id inspect.ID) error {
	for _, f := range c.policy().Status.Findings {
		if f.ID == string(id) {
			return nil
		}
	}
	return fmt.Errorf("no %s in %+v", id, c.policy().Status.Findings)
}

// definition changes the CRD.
func (c *scanned) definition(version func(*apiextensionsv1.CustomResourceDefinitionVersion), more ...func(*apiextensionsv1.CustomResourceDefinition)) {
	c.t.Helper()
	c.eventually(func() error {
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := c.admin().Get(c.ctx(), client.ObjectKey{Name: "singletonpolicies.guard.metacontroller.io"}, crd); err != nil {
			return err
		}
		version(&crd.Spec.Versions[0])
		for _, change := range more {
			change(crd)
		}
		return c.admin().Update(c.ctx(), crd)
	})
}

// nodeReady sets what a node reports.
func (c *scanned) nodeReady(node *corev1.Node, ready corev1.ConditionStatus) {
	c.t.Helper()
	c.eventually(func() error {
		if err := c.admin().Get(c.ctx(), client.ObjectKeyFromObject(node), node); err != nil {
			return err
		}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
		return c.admin().Status().Update(c.ctx(), node)
	})
}

// bind puts a Pod on a node.
func (c *scanned) bind(name, node string) (uid types.UID) {
	c.t.Helper()
	c.eventually(func() error {
		active := &corev1.Pod{}
		if err := c.admin().Get(c.ctx(), client.ObjectKey{Namespace: c.namespace, Name: name}, active); err != nil {
			return err
		}
		uid = active.UID
		if active.Spec.NodeName == node {
			return nil
		}
		binding := &corev1.Binding{ObjectMeta: named(c.namespace, name), Target: corev1.ObjectReference{Kind: "Node", Name: node}}
		return c.admin().SubResource("binding").Create(c.ctx(), active, binding)
	})
	return uid
}

func (c *scanned) remove(object client.Object) {
	c.t.Helper()
	if err := client.IgnoreNotFound(c.admin().Delete(c.ctx(), object, client.GracePeriodSeconds(0))); err != nil {
		c.t.Fatal(err)
	}
}

// podOf waits for a Pod by the beginning of its name.
func (c *scanned) podOf(prefix string) *corev1.Pod {
	c.t.Helper()
	var found *corev1.Pod
	c.eventually(func() error {
		pods := &corev1.PodList{}
		if err := c.admin().List(c.ctx(), pods, client.InNamespace(c.namespace)); err != nil {
			return err
		}
		for i := range pods.Items {
			if strings.HasPrefix(pods.Items[i].Name, prefix) {
				found = &pods.Items[i]
				return nil
			}
		}
		return fmt.Errorf("no Pod %s*", prefix)
	})
	return found
}

// eventEventually waits for one Event on the policy, and that it is one.
func (c *scanned) eventEventually(reason, part string) {
	c.t.Helper()
	c.eventually(func() error {
		list := &eventsv1.EventList{}
		if err := c.admin().List(c.ctx(), list, client.InNamespace(metav1.NamespaceDefault)); err != nil {
			return err
		}
		for _, event := range list.Items {
			if event.Regarding.Kind == guardv1alpha1.SingletonPolicyKind && event.Reason == reason && strings.Contains(event.Note, part) {
				return nil
			}
		}
		return fmt.Errorf("no Event %s with %q among %d", reason, part, len(list.Items))
	})
}

// reported waits for a ClusterReport whose results are of the rules, and checks
// that it is the only one.
func (c *scanned) reported(outcome string, rules ...string) {
	c.t.Helper()
	c.eventually(func() error {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: "openreports.io", Version: "v1alpha1", Kind: "ClusterReportList"})
		if err := c.admin().List(c.ctx(), list); err != nil {
			return err
		}
		if len(list.Items) != 1 || list.Items[0].GetName() != "singletonpolicy-"+guardv1alpha1.DefaultPolicyName {
			return fmt.Errorf("%d reports", len(list.Items))
		}
		raw, err := json.Marshal(list.Items[0].Object)
		if err != nil {
			return err
		}
		for _, rule := range rules {
			if !strings.Contains(string(raw), `"rule":"`+rule+`"`) {
				return fmt.Errorf("no %s in %s", rule, raw)
			}
		}
		if count, _, _ := unstructured.NestedInt64(list.Items[0].Object, "summary", outcome); count < int64(len(rules)) {
			return fmt.Errorf("summary of %s", raw)
		}
		if outcome == "pass" && strings.Contains(string(raw), `"result":"fail"`) {
			return fmt.Errorf("still fails: %s", raw)
		}
		return nil
	})
}
