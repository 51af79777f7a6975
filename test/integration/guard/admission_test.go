package guard_test

import (
	"context"
	"fmt"
	"slices"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	"github.com/metacontroller-solo/solo/pkg/guard/webhook"
	"github.com/metacontroller-solo/solo/test/kit"
)

// layers says which admission objects are installed.
type layers int

const (
	// webhookOnly leaves out the policies, so that every answer is the guard's.
	webhookOnly layers = iota
	// allLayers is what is shipped. The policy for Pods answers before the guard;
	// the one for workloads stands back once the guard says that it is asked.
	allLayers
)

// How the API server begins a refusal by each layer.
const (
	byWebhook = "admission webhook"
	byPolicy  = "ValidatingAdmissionPolicy"
)

// admission installs the rendered admission objects, with the balancer's
// address in place of the Service, and removes them with the test.
func (s *suite) admission(layers layers) {
	s.t.Helper()
	objects := s.objects()
	pods := byPolicy
	if layers == webhookOnly {
		pods = byWebhook
		objects = slices.DeleteFunc(objects, func(object client.Object) bool {
			_, ok := object.(*admissionregistrationv1.ValidatingWebhookConfiguration)
			return !ok
		})
	}
	s.t.Cleanup(func() { s.remove(objects) })
	s.put(objects, pods)
}

// installed installs all of them. The caller removes them.
func (s *suite) installed() []client.Object {
	s.t.Helper()
	objects := s.objects()
	s.put(objects, byPolicy)
	return objects
}

func (s *suite) objects() []client.Object {
	return pin.Objects(pin.Options{
		URL:      "https://" + s.balancer.address() + webhook.Path,
		CABundle: s.cp.CA().CertPEM(),

		TimeoutSeconds: s.timeout,
	})
}

// put creates admission objects and waits until each API server has them: Pods
// are refused by the layer that is named.
func (s *suite) put(objects []client.Object, pods string) {
	s.t.Helper()
	// The webhook configuration is the last of them and comes first here: once the
	// guard has written that it is asked, no API server can load a policy for
	// workloads that does not know.
	slices.Reverse(objects)
	for i, object := range objects {
		if err := s.admin().Create(s.ctx(), object); err != nil {
			s.t.Fatal(err)
		}
		if i == 0 {
			s.enforcing()
		}
	}
	// Effective on every API server: probes that are refused, in dry runs that
	// leave nothing behind.
	s.asked()
	for _, admin := range s.admins {
		s.eventually(func() error {
			return refusedBy(admin.Create(s.ctx(), pod("default", "probe", instanceImage), client.DryRunAll), pods)
		})
	}
}

// enforcing waits until the guard that leads has seen that it is asked.
func (s *suite) enforcing() {
	s.t.Helper()
	s.eventually(func() error {
		if !meta.IsStatusConditionTrue(s.policy().Status.Conditions, guardv1alpha1.ConditionEnforcing) {
			return fmt.Errorf("not enforcing: %+v", s.policy().Status.Conditions)
		}
		return nil
	})
}

// asked waits until every API server asks a guard about workloads.
func (s *suite) asked() {
	s.t.Helper()
	for _, admin := range s.admins {
		s.eventually(func() error {
			return refusedBy(admin.Create(s.ctx(), deployment("default", "probe"), client.DryRunAll), byWebhook)
		})
	}
}

func refusedBy(err error, layer string) error {
	if apierrors.IsForbidden(err) && strings.Contains(err.Error(), layer) {
		return nil
	}
	return fmt.Errorf("not refused by %s yet: %v", layer, err)
}

// remove deletes admission objects: bindings first, and the policy that
// protects the others last.
func (s *suite) remove(objects []client.Object) {
	order := func(object client.Object) int {
		_, binding := object.(*admissionregistrationv1.ValidatingAdmissionPolicyBinding)
		switch {
		case object.GetName() == pin.ProtectName && binding:
			return 2
		case object.GetName() == pin.ProtectName:
			return 3
		case binding:
			return 0
		default:
			return 1
		}
	}
	slices.SortStableFunc(objects, func(a, b client.Object) int { return order(a) - order(b) })
	for _, object := range objects {
		if err := client.IgnoreNotFound(s.admin().Delete(context.Background(), object)); err != nil {
			s.t.Error(err)
		}
	}
	// Gone on every API server: what was refused goes through.
	for _, admin := range s.admins {
		kit.Eventually(s.t, patience, func() error {
			return admin.Create(context.Background(), pod("default", "probe", instanceImage), client.DryRunAll)
		})
		kit.Eventually(s.t, patience, func() error {
			policy := &guardv1alpha1.SingletonPolicy{}
			policy.Name = guardv1alpha1.DefaultPolicyName
			return client.IgnoreNotFound(admin.Delete(context.Background(), policy, client.DryRunAll))
		})
	}
}
