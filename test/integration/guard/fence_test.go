package guard_test

import (
	"fmt"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	"github.com/metacontroller-solo/solo/pkg/singleton"
	"github.com/metacontroller-solo/solo/test/kit"
)

// fenceReady waits until the condition FenceReady has a reason.
func (s *suite) fenceReady(reason string) {
	s.t.Helper()
	// Some of it the guard says only after it has seen it for a while.
	kit.Eventually(s.t, 3*patience, func() error {
		condition := meta.FindStatusCondition(s.policy().Status.Conditions, guardv1alpha1.ConditionFenceReady)
		if condition == nil || condition.Reason != reason || (condition.Status == metav1.ConditionTrue) != (reason == "InForce") {
			return fmt.Errorf("FenceReady is %+v, want reason %s", condition, reason)
		}
		return nil
	})
}

// TestFenceReady goes through what the guard says of the fence.
func TestFenceReady(t *testing.T) {
	s := install(t, 1, allLayers)
	namespace := s.namespace("fence")
	fence := func(action guardv1alpha1.FenceAction) {
		s.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) {
			spec.Fence = &guardv1alpha1.Fence{ServiceAccount: guardv1alpha1.ServiceAccountReference{Namespace: namespace, Name: "default"}, Action: action}
		})
	}
	fence(guardv1alpha1.FenceAudit)
	s.fenceReady("NoHolder")
	holder := statefulSet(namespace, "mc")
	if err := s.admin().Create(s.ctx(), holder); err != nil {
		t.Fatal(err)
	}
	s.phase(guardv1alpha1.HolderBound)
	uid := s.awaitPod(namespace, "mc-0", "")
	s.fenceReady("Audit")
	fence(guardv1alpha1.FenceDeny)
	s.fenceReady("InForce")

	t.Run("H12_fence_missing", func(t *testing.T) {
		s := s.at(t)
		for _, object := range s.objects() {
			if object.GetName() != pin.FencePolicyName {
				continue
			}
			if err := s.admin().Delete(s.ctx(), object); err != nil {
				t.Fatal(err)
			}
			s.fenceReady("Missing")
			object.SetResourceVersion("")
			if err := s.admin().Create(s.ctx(), object); err != nil {
				t.Fatal(err)
			}
			s.fenceReady("InForce")
		}
	})
	t.Run("H12_fence_weakened", func(t *testing.T) {
		s := s.at(t)
		policies := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: pin.FencePolicyName}}
		binding := &admissionregistrationv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: pin.LeasePolicyName}}
		for _, c := range []struct {
			object       client.Object
			weaken, mend string
		}{
			{binding, `{"spec":{"validationActions":["Warn"]}}`, `{"spec":{"validationActions":["Deny"]}}`},
			{policies, `{"spec":{"matchConstraints":{"namespaceSelector":{"matchLabels":{"a":"b"}}}}}`, `{"spec":{"matchConstraints":{"namespaceSelector":{"matchLabels":null}}}}`},
		} {
			if err := s.admin().Patch(s.ctx(), c.object, client.RawPatch(types.MergePatchType, []byte(c.weaken))); err != nil {
				t.Fatal(err)
			}
			s.fenceReady("Weakened")
			if err := s.admin().Patch(s.ctx(), c.object, client.RawPatch(types.MergePatchType, []byte(c.mend))); err != nil {
				t.Fatal(err)
			}
			s.fenceReady("InForce")
		}
	})
	t.Run("H12_fence_stale", func(t *testing.T) {
		s := s.at(t)
		setWriter := func(writer *guardv1alpha1.Writer) {
			s.eventually(func() error {
				policy := s.policy()
				policy.Status.Writer = writer
				return s.admin().Status().Update(s.ctx(), policy)
			})
		}
		// The Lease names the Pod, which does not mark itself.
		fence(guardv1alpha1.FenceAudit)
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: singleton.DefaultNamespace, Name: singleton.DefaultName}}
		lease.Spec.HolderIdentity = ptr.To(singleton.Identity{Pod: "mc-0", UID: string(uid)}.String())
		s.eventually(func() error { return s.admin().Create(s.ctx(), lease.DeepCopy()) })
		s.fenceReady("NotMarked")
		// It does.
		setWriter(&guardv1alpha1.Writer{Namespace: namespace, Name: "mc-0", UID: uid})
		fence(guardv1alpha1.FenceDeny)
		s.fenceReady("InForce")
		// Its Pod is gone, and it is still the one that may write.
		setWriter(&guardv1alpha1.Writer{Namespace: namespace, Name: "mc-0", UID: "gone"})
		s.fenceReady("Stale")
		setWriter(nil)
		fence(guardv1alpha1.FenceOff)
		s.eventually(func() error { return client.IgnoreNotFound(s.admin().Delete(s.ctx(), lease)) })
	})
	s.fenceReady("Off")
	s.release(holder)
}
