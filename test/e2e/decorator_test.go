package e2e_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func testServicePerPod(t *testing.T, s *sample) {
	const (
		object   = "statefulset/shard"
		selector = "samples.metacontroller.io/stateful-set=shard"
	)
	// reached wants each Pod, and no other, behind the Service of its name.
	reached := func(count int, port string) {
		t.Helper()
		s.eventually(func() error {
			if got := len(s.list("v1/services", s.name, selector)); got != count {
				return fmt.Errorf("there are %d Services, not %d", got, count)
			}
			return nil
		})
		for i := range count {
			name := fmt.Sprint("shard-", i)
			s.wantAnswer("http://"+field(s.get("v1/services", s.name, name), "spec", "clusterIP")+":"+port+"/", name)
		}
	}
	s.step("create")
	s.example()
	reached(2, "80")
	uid := s.get("v1/services", s.name, "shard-0").GetUID()

	s.step("change: other ports, and heal")
	s.kubectl("annotate", object, "-n", s.name, "--overwrite", "samples.metacontroller.io/service-per-pod=81:8080")
	reached(2, "81")
	s.kubectl("delete", "service", "shard-1", "-n", s.name)
	reached(2, "81")

	s.step("scale up and down")
	s.kubectl("scale", object, "-n", s.name, "--replicas=3")
	reached(3, "81")
	s.kubectl("scale", object, "-n", s.name, "--replicas=1")
	reached(1, "81")

	s.step("roll: the Pods change behind their Services")
	s.kubectl("rollout", "restart", object, "-n", s.name)
	s.kubectl("rollout", "status", object, "-n", s.name, "--timeout="+waitLimit.String())
	reached(1, "81")
	if now := s.get("v1/services", s.name, "shard-0").GetUID(); now != uid {
		t.Error("the Service is another one")
	}

	s.step("the annotation goes, and comes back")
	s.kubectl("annotate", object, "-n", s.name, "samples.metacontroller.io/service-per-pod-")
	s.wantNone("v1/services", s.name, selector)
	s.eventually(func() error {
		if finalizers := s.get("apps/v1/statefulsets", s.name, "shard").GetFinalizers(); len(finalizers) > 0 {
			return fmt.Errorf("the StatefulSet has finalizers %q", finalizers)
		}
		return nil
	})
	s.kubectl("annotate", object, "-n", s.name, "samples.metacontroller.io/service-per-pod=80:8080")
	reached(1, "80")

	s.step("delete")
	s.kubectl("delete", object, "-n", s.name)
	s.wantNone("v1/services", s.name, selector)
	s.wantNone("v1/pods", s.name, "app=shard")
}

func testCRDRoles(t *testing.T, s *sample) {
	const (
		roles   = "rbac.authorization.k8s.io/v1/clusterroles"
		widgets = "widgets.samples.metacontroller.io"
		gadgets = "gadgets.samples.metacontroller.io"
		object  = "customresourcedefinition/" + widgets
	)
	// grants wants a role to be about resources.
	grants := func(name string, resources ...string) {
		t.Helper()
		s.eventually(func() error {
			role := s.get(roles, "", name)
			if role == nil {
				return fmt.Errorf("ClusterRole %q is not there", name)
			}
			if got := resourcesOf(role); !slices.Equal(got, resources) {
				return fmt.Errorf("ClusterRole %q is about %q, not %q", name, got, resources)
			}
			return nil
		})
	}
	s.step("create: two roles, which the cluster's own take up")
	s.example()
	grants(widgets+"-view", "widgets", "widgets/status")
	grants(widgets+"-edit", "widgets")
	for role, resource := range map[string]string{"view": "widgets/status", "edit": "widgets", "admin": "widgets"} {
		s.eventually(func() error {
			if all := resourcesOf(s.get(roles, "", role)); !slices.Contains(all, resource) {
				return fmt.Errorf("ClusterRole %q has not taken up %q", role, resource)
			}
			return nil
		})
	}

	s.step("change and roll: the definition gains a subresource")
	s.kubectl("patch", object, "--type=json", "-p",
		`[{"op":"add","path":"/spec/versions/0/subresources/scale","value":{"specReplicasPath":".spec.replicas","statusReplicasPath":".status.replicas"}}]`)
	grants(widgets+"-view", "widgets", "widgets/status", "widgets/scale")
	grants(widgets+"-edit", "widgets", "widgets/scale")
	s.kubectl("delete", "clusterrole", widgets+"-edit")
	grants(widgets+"-edit", "widgets", "widgets/scale")

	s.step("scale: another definition, at first without the annotation")
	definition := strings.NewReplacer("widget", "gadget", "Widget", "Gadget").Replace(s.kubectl("get", object, "-o", "yaml"))
	if err := s.cluster.Apply(t.Context(), unserved(t, definition)); err != nil {
		t.Fatal(err)
	}
	s.kubectl("annotate", "customresourcedefinition", gadgets, "samples.metacontroller.io/default-roles=true")
	grants(gadgets+"-view", "gadgets", "gadgets/status", "gadgets/scale")
	s.kubectl("annotate", "customresourcedefinition", gadgets, "samples.metacontroller.io/default-roles-")
	s.wantGone(roles, "", gadgets+"-view")
	s.wantGone(roles, "", gadgets+"-edit")

	s.step("delete")
	s.kubectl("delete", "customresourcedefinition", widgets, gadgets)
	s.wantGone(roles, "", widgets+"-view")
	s.wantGone(roles, "", widgets+"-edit")
}

// resourcesOf are those of all rules of a role.
func resourcesOf(role *unstructured.Unstructured) []string {
	var all []string
	rules, _, _ := unstructured.NestedSlice(role.Object, "rules")
	for _, rule := range rules {
		resources, _, _ := unstructured.NestedStringSlice(rule.(map[string]any), "resources")
		all = append(all, resources...)
	}
	return all
}

// unserved is a manifest without what the API server and controllers wrote.
func unserved(t *testing.T, manifest string) []byte {
	t.Helper()
	object := decoded(t, manifest)
	delete(object, "status")
	object["metadata"] = map[string]any{"name": object["metadata"].(map[string]any)["name"]}
	return encoded(t, object)
}
