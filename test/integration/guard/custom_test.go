package guard_test

import (
	"fmt"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	"github.com/metacontroller-solo/solo/pkg/guard/webhook"
)

const customGroup = "workloads.example.com"

// customKind is a kind with a Pod template at a path of its own, and a scale.
func customKind(kind, plural string) *apiextensionsv1.CustomResourceDefinition {
	open := apiextensionsv1.JSONSchemaProps{Type: "object", XPreserveUnknownFields: ptr.To(true)}
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: plural + "." + customGroup},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: customGroup, Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Kind: kind, Plural: plural},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": open, "status": open},
				}},
				Subresources: &apiextensionsv1.CustomResourceSubresources{Scale: &apiextensionsv1.CustomResourceSubresourceScale{
					SpecReplicasPath: ".spec.size", StatusReplicasPath: ".status.size",
				}},
			}},
		},
	}
}

func customObject(namespace, kind, name, image string, size int64) *unstructured.Unstructured {
	spec, err := runtime.DefaultUnstructuredConverter.ToUnstructured(ptr.To(podSpec(image)))
	if err != nil {
		panic(err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"spec": map[string]any{"size": size, "workload": map[string]any{"spec": spec}},
	}}
	object.SetAPIVersion(customGroup + "/v1")
	object.SetKind(kind)
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

// TestCustomWorkloads: a custom kind that the policy lists is judged as it is
// written and as it is scaled; one that it does not list, at its Pods.
func TestCustomWorkloads(t *testing.T) {
	s := prepare(t)
	namespace := s.namespace("custom")
	kinds := map[string]string{"Listed": "listeds", "Other": "others"}
	for kind, plural := range kinds {
		crd := customKind(kind, plural)
		if err := client.IgnoreAlreadyExists(s.admin().Create(s.ctx(), crd)); err != nil {
			t.Fatal(err)
		}
		for _, admin := range s.admins {
			s.eventually(func() error {
				return admin.Create(s.ctx(), customObject(namespace, kind, "probe", strangerImage, 1), client.DryRunAll)
			})
		}
	}
	// What the role of the guard says about custom kinds.
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "guard-custom"}, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{customGroup}, Resources: []string{"listeds"}, Verbs: []string{"get"},
	}}}
	binding := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "guard-custom"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: guardNamespace, Name: "metacontroller-guard"}},
	}
	for _, object := range []client.Object{role, binding} {
		if err := client.IgnoreAlreadyExists(s.admin().Create(s.ctx(), object)); err != nil {
			t.Fatal(err)
		}
	}
	// There before the guard, and running nothing.
	for kind := range kinds {
		if err := s.admin().Create(s.ctx(), customObject(namespace, kind, "old", instanceImage, 0)); err != nil {
			t.Fatal(err)
		}
	}
	s.start(guardConfig{})
	s.point()
	s.admission(allLayers)
	s.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) {
		spec.Match.Workloads = []guardv1alpha1.WorkloadRule{{Group: customGroup, Resource: "listeds", PodTemplatePath: "spec.workload", ReplicasPath: "spec.size"}}
	})
	// Whoever changes spec.match renders again.
	s.eventually(func() error {
		live := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		if err := s.admin().Get(s.ctx(), client.ObjectKey{Name: pin.WebhookConfigurationName}, live); err != nil {
			return err
		}
		for _, object := range pin.Objects(pin.Options{
			URL: "https://" + s.balancer.address() + webhook.Path, CABundle: s.cp.CA().CertPEM(), Match: s.policy().Spec.Match,
		}) {
			if rendered, ok := object.(*admissionregistrationv1.ValidatingWebhookConfiguration); ok {
				live.Webhooks = rendered.Webhooks
			}
		}
		return s.admin().Update(s.ctx(), live)
	})
	s.settles(string(decide.RuleWorkloadKind), customObject(namespace, "Listed", "first", instanceImage, 1))

	if err := s.admin().Create(s.ctx(), statefulSet(namespace, "mc")); err != nil {
		t.Fatal(err)
	}
	s.phase(guardv1alpha1.HolderBound)
	s.settles(string(decide.RulePodNotPinned), pod(namespace, "second", instanceImage))
	c := &stage{suite: s, namespace: namespace, servers: len(s.admins)}
	scaleTo := func(kind string) func(*stage) error {
		return func(c *stage) error {
			return c.next().SubResource("scale").Patch(c.ctx(), customObject(namespace, kind, "old", "", 0), client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"replicas":2}}`)))
		}
	}
	c.run(t, []try{
		{"listed_kind", string(decide.RuleSecondWorkload), func(c *stage) error {
			return c.create(customObject(namespace, "Listed", "second", instanceImage, 1))
		}},
		{"listed_kind_becomes_an_instance", string(decide.RuleBecameInstance), func(c *stage) error {
			if err := client.IgnoreAlreadyExists(c.create(customObject(namespace, "Listed", "web", strangerImage, 1))); err != nil {
				return err
			}
			live := customObject(namespace, "Listed", "web", "", 1)
			return c.next().Patch(c.ctx(), live, client.RawPatch("application/merge-patch+json",
				[]byte(`{"spec":{"workload":{"spec":{"containers":[{"name":"main","image":"`+instanceImage+`"}]}}}}`)))
		}},
		{"listed_kind_of_a_stranger", allowed, func(c *stage) error { return c.dry(customObject(namespace, "Listed", "fine", strangerImage, 9)) }},
		{"C07_scale_of_a_listed_kind", string(decide.RuleScaleAboveOne), scaleTo("Listed")},
		{"C07_scale_of_another_kind", allowed, scaleTo("Other")},
		{"C29_another_kind", allowed, func(c *stage) error { return c.dry(customObject(namespace, "Other", "second", instanceImage, 1)) }},
		{"C29_pod_of_another_kind", string(decide.RulePodNotPinned), func(c *stage) error {
			owner := customObject(namespace, "Other", "old", "", 0)
			return c.create(edited(pod(namespace, "old-x1", instanceImage), func(p *corev1.Pod) {
				p.OwnerReferences = []metav1.OwnerReference{{APIVersion: customGroup + "/v1", Kind: "Other", Name: "old", UID: c.uidOf(owner), Controller: ptr.To(true)}}
			}))
		}},
	})
	if t.Failed() {
		return
	}
	s.eventually(func() error {
		if second := c.second(); len(second) > 0 {
			return fmt.Errorf("a second instance runs: %v", second)
		}
		return nil
	})
	t.Run("scan_of_a_listed_kind", func(t *testing.T) {
		c := &scanned{&stage{suite: s.at(t), namespace: namespace, servers: len(s.admins)}}
		// What may not be read is said, and then it is seen.
		c.found(inspect.Unreadable, "listeds."+customGroup, "")
		role.Rules[0].Verbs = []string{"get", "list", "watch"}
		if err := c.admin().Update(c.ctx(), role); err != nil {
			t.Fatal(err)
		}
		c.found(inspect.WorkloadNotHolder, "Listed "+namespace+"/old", "")
	})
}
