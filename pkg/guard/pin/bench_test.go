package pin

import (
	"context"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

// BenchmarkUnrelatedPod is what the policy for Pods costs an API server for each
// Pod that has nothing to do with it, without the conversion of the Pod.
func BenchmarkUnrelatedPod(b *testing.B) {
	for _, object := range Objects(Options{}) {
		policy, ok := object.(*admissionregistrationv1.ValidatingAdmissionPolicy)
		if !ok || policy.Name != PolicyName {
			continue
		}
		compiled := validator(b, policy)
		r := createPod(pod(metav1.ObjectMeta{Namespace: "default", Name: "p"}, "registry.k8s.io/pause:3.10"))
		attributes, params := r.attributes(b), unstructuredOf(b, policyOf(v1alpha1.HolderBound))
		for b.Loop() {
			compiled.Validate(context.Background(), r.resource, attributes, params, nil, celconfig.RuntimeCELCostBudget, nil)
		}
	}
}
