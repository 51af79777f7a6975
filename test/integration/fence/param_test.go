package fence_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
)

// staleAfter is when a parameter that an API server still does not see counts as
// stale: many times what one takes that is seen.
const staleAfter = 4 * time.Second

// TestParameterKinds shows why the fence reads a custom resource, and not the
// Lease: each kind is the parameter of a policy whose binding is taken away and
// put back, and is changed then.
func TestParameterKinds(t *testing.T) {
	w := newWorld(t)
	const name = "fence-param"
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: beats, Name: name}}
	plain := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: beats, Name: name}}
	custom := &v1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	// Each has a policy and a parameter of its own.
	t.Run("kinds", func(t *testing.T) {
		for _, kind := range []struct {
			what, version, kind, value string
			object                     client.Object
			set                        func(string) error
			// stale is what is known of the kind.
			stale bool
		}{
			{"Lease", "coordination.k8s.io/v1", "Lease", "params.?spec.?holderIdentity.orValue('')", lease, func(v string) error {
				lease.Spec.HolderIdentity = ptr.To(v)
				return w.admin().Update(w.Context(), lease)
			}, true},
			{"ConfigMap", "v1", "ConfigMap", "params.?data.?v.orValue('')", plain, func(v string) error {
				plain.Data = map[string]string{"v": v}
				return w.admin().Update(w.Context(), plain)
			}, true},
			{"SingletonPolicy", v1alpha1.GroupVersion.String(), v1alpha1.SingletonPolicyKind, "params.?status.?writer.?uid.orValue('')", custom, func(v string) error {
				custom.Status.Writer = &v1alpha1.Writer{Namespace: "a", Name: "b", UID: types.UID(v)}
				return w.admin().Status().Update(w.Context(), custom)
			}, false},
		} {
			t.Run(kind.what, func(t *testing.T) {
				t.Parallel()
				w := w.at(t)
				w.must(w.admin().Create(w.Context(), kind.object))
				t.Cleanup(func() { w.away(kind.object) })
				policy := paramPolicy(name+"-"+strings.ToLower(kind.what), kind.version, kind.kind, kind.value)
				binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{
					ObjectMeta: metav1.ObjectMeta{Name: policy.Name},
					Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
						PolicyName: policy.Name, ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
						ParamRef: &admissionregistrationv1.ParamRef{Name: name, Namespace: kind.object.GetNamespace(), ParameterNotFoundAction: ptr.To(admissionregistrationv1.DenyAction)},
					},
				}
				w.must(w.admin().Create(w.Context(), policy))
				t.Cleanup(func() { w.away(policy, binding) })
				var stale atomic.Int64
				rounds := number(t, "FENCE_PARAM", 2)
				for round := range rounds {
					w.must(w.admin().Create(w.Context(), binding.DeepCopy()))
					for server := range w.admins {
						w.eventually(func() error {
							if v := w.paramSeen(server, policy.Name); v == "" {
								return fmt.Errorf("the policy is not in force")
							}
							return nil
						})
					}
					want := fmt.Sprintf("value-%d", round+1)
					w.must(kind.set(want))
					var looking sync.WaitGroup
					for server := range w.admins {
						looking.Go(func() {
							began, seen := time.Now(), ""
							for seen = w.paramSeen(server, policy.Name); seen != want && time.Since(began) < staleAfter; seen = w.paramSeen(server, policy.Name) {
							}
							t.Logf("%s, binding made %d times, API server %d: wrote %s, it sees %s after %s", kind.what, round+1, server, want, seen, time.Since(began).Round(time.Millisecond))
							if seen != want {
								stale.Add(1)
							}
						})
					}
					looking.Wait()
					w.must(w.admin().Delete(w.Context(), binding.DeepCopy()))
					for server := range w.admins {
						w.eventually(func() error {
							if v := w.paramSeen(server, policy.Name); v != "" {
								return fmt.Errorf("the policy is still in force: %s", v)
							}
							return nil
						})
					}
				}
				t.Logf("%s: stale %d of %d", kind.what, stale.Load(), rounds*len(w.admins))
				if (stale.Load() > 0) != kind.stale {
					t.Errorf("%s was stale %d times; what docs/fence.md says of the parameter has changed", kind.what, stale.Load())
				}
			})
		}
	})
	// The fence's own bindings, all of them, away and back: it is in force again,
	// and sees the next change.
	t.Run("H12_the_fence_itself", func(t *testing.T) {
		w := w.at(t)
		w.resetPolicy()
		active, other := w.pod("metacontroller-0"), w.pod("busybox")
		for _, n := range []string{pin.FencePolicyName, pin.WriterPolicyName, pin.LeasePolicyName, pin.PolicyName, pin.WorkloadPolicyName, pin.ScalePolicyName} {
			w.must(w.admin().Delete(w.Context(), &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: n}}))
		}
		w.wantAllowed(w.bound(other))
		w.installFence()
		w.wantRefused(w.bound(other))
		w.markAs(w.bound(active)[0], active)
		w.wantAllowed(w.bound(active))
		w.status(func(status *v1alpha1.SingletonPolicyStatus) {
			status.Writer = &v1alpha1.Writer{Namespace: space, Name: active.Name, UID: "another"}
		})
		w.wantRefused(w.bound(active))
	})
}

// away deletes objects at the end of a test.
func (w *world) away(objects ...client.Object) {
	for _, object := range objects {
		if err := client.IgnoreNotFound(w.admin().Delete(context.Background(), object)); err != nil {
			w.Error(err)
		}
	}
}

// paramPolicy refuses the ConfigMap of its own name, and says what it sees in its
// parameter.
func paramPolicy(name, version, kind, value string) *admissionregistrationv1.ValidatingAdmissionPolicy {
	return &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionregistrationv1.ValidatingAdmissionPolicySpec{
		ParamKind: &admissionregistrationv1.ParamKind{APIVersion: version, Kind: kind},
		MatchConstraints: &admissionregistrationv1.MatchResources{ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{{
			ResourceNames: []string{name},
			RuleWithOperations: admissionregistrationv1.RuleWithOperations{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			},
		}}},
		Validations: []admissionregistrationv1.Validation{{Expression: "false", MessageExpression: "'sees <' + " + value + " + '>'"}},
	}}
}

// paramSeen is what the policy of a name sees in an API server, "-" for an empty
// value, or "" when it does not answer.
func (w *world) paramSeen(server int, policy string) string {
	err := w.admins[server].Create(w.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: beats, Name: policy}}, client.DryRunAll)
	if err == nil || !apierrors.IsInvalid(err) {
		return ""
	}
	_, rest, _ := strings.Cut(err.Error(), "sees <")
	value, _, _ := strings.Cut(rest, ">")
	if value == "" {
		return "-"
	}
	return value
}
