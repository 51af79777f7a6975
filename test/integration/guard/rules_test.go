package guard_test

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
)

// refused checks that a request was refused by a rule, with the holder's name.
func refused(t testing.TB, err error, rule decide.Rule, holder string) {
	t.Helper()
	if !apierrors.IsForbidden(err) {
		t.Fatalf("got %v, want a refusal by %s", err, rule)
	}
	_, message, _ := strings.Cut(err.Error(), "denied the request: ")
	line := decide.FirstLine(message)
	if !strings.HasPrefix(line, string(rule)+": ") || !strings.Contains(line, holder) || len([]rune(line)) > decide.MaxLine {
		t.Fatalf("first line is %q, want at most %d characters, rule %s and %q", line, decide.MaxLine, rule, holder)
	}
	if !strings.Contains(message, "\nNext: ") {
		t.Fatalf("no next step in %q", message)
	}
}

func TestRules(t *testing.T) {
	s := install(t, 2, webhookOnly)
	namespace := s.namespace("rules")
	admin, other := s.admins[0], s.admins[len(s.admins)-1]
	holder := namespace + "/first"

	refused(t, admin.Create(s.ctx(), deployment(namespace, "early")), decide.RuleWorkloadKind, "the slot is free")
	refused(t, admin.Create(s.ctx(), pod(namespace, "early", instanceImage)), decide.RulePodNotPinned, "nobody holds the slot")

	dry := statefulSet(namespace, "dry")
	if err := admin.Create(s.ctx(), dry, client.DryRunAll); err != nil {
		t.Fatal(err)
	}
	if held := s.policy().Status.Holder; held != nil {
		t.Fatalf("a dry run claimed: %v", held)
	}

	first := statefulSet(namespace, "first")
	if err := admin.Create(s.ctx(), first); err != nil {
		t.Fatal(err)
	}
	// The uid that was admitted is the one that was stored: no correction is
	// needed, which would be a second epoch.
	bound := s.phase(guardv1alpha1.HolderBound)
	if bound.Status.Holder.UID != first.UID || bound.Status.Holder.Epoch != 1 {
		t.Fatalf("holder is %+v, want uid %s in epoch 1", bound.Status.Holder, first.UID)
	}

	zero := statefulSet(namespace, "zero")
	zero.Spec.Replicas = ptr.To[int32](0)
	for name, object := range map[string]client.Object{
		"StatefulSet": statefulSet(namespace, "second"), "no replicas": zero, "other namespace": statefulSet("default", "first"),
		"Deployment": deployment(namespace, "second"), "ReplicaSet": replicaSet(namespace, "second"), "DaemonSet": daemonSet(namespace, "second"),
		"Job": job(namespace, "second"), "CronJob": cronJob(namespace, "second"), "ReplicationController": replicationController(namespace, "second"),
	} {
		t.Run(name, func(t *testing.T) {
			refused(t, other.Create(s.ctx(), object.DeepCopyObject().(client.Object), client.DryRunAll), decide.RuleSecondWorkload, holder)
			refused(t, other.Create(s.ctx(), object), decide.RuleSecondWorkload, holder)
		})
	}
	refused(t, other.Create(s.ctx(), pod(namespace, "second", instanceImage)), decide.RulePodNotPinned, holder)
	squatter := pod(namespace, "first-0", instanceImage)
	if err := client.IgnoreNotFound(admin.Delete(s.ctx(), pod(namespace, "first-0", ""), client.GracePeriodSeconds(0))); err != nil {
		t.Fatal(err)
	}
	if err := other.Create(s.ctx(), squatter); !apierrors.IsForbidden(err) && !apierrors.IsAlreadyExists(err) {
		t.Fatalf("a bare Pod got the pinned name: %v", err)
	}
	if err := admin.Create(s.ctx(), pod(namespace, "stranger", strangerImage)); err != nil {
		t.Fatal(err)
	}

	// The controller's own Pod comes up.
	s.eventually(func() error {
		policy := s.policy()
		if policy.Status.ActivePod == nil || policy.Status.ActivePod.Name != "first-0" {
			return fmt.Errorf("active Pod is %+v", policy.Status.ActivePod)
		}
		return nil
	})

	scale := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 2}}
	refused(t, other.SubResource("scale").Update(s.ctx(), first.DeepCopy(), client.WithSubResourceBody(scale)), decide.RuleScaleAboveOne, holder)
	refused(t, s.patch(first, func(sts *appsv1.StatefulSet) { sts.Spec.Replicas = ptr.To[int32](2) }), decide.RuleScaleAboveOne, holder)
	for name, change := range map[string]func(*appsv1.StatefulSet){
		"annotation": func(sts *appsv1.StatefulSet) { sts.Annotations = map[string]string{"a": "b"} },
		"image": func(sts *appsv1.StatefulSet) {
			sts.Spec.Template.Spec.Containers[0].Image = "ghcr.io/metacontroller/metacontroller:v4.18.0"
		},
		"down to zero": func(sts *appsv1.StatefulSet) { sts.Spec.Replicas = ptr.To[int32](0) },
		"up to one":    func(sts *appsv1.StatefulSet) { sts.Spec.Replicas = ptr.To[int32](1) },
	} {
		if err := s.patch(first, change); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}

	// The same name again while it exists: the API server's own answer.
	if err := other.Create(s.ctx(), statefulSet(namespace, "first")); !apierrors.IsAlreadyExists(err) {
		t.Fatalf("got %v, want already exists", err)
	}

	// Made again under its name: the holder's new uid, in a later epoch.
	if err := admin.Delete(s.ctx(), first); err != nil {
		t.Fatal(err)
	}
	again := statefulSet(namespace, "first")
	if err := other.Create(s.ctx(), again); err != nil {
		t.Fatal(err)
	}
	s.eventually(func() error {
		held := s.policy().Status.Holder
		if held == nil || held.UID != again.UID || held.Phase != guardv1alpha1.HolderBound || held.Epoch <= 1 {
			return fmt.Errorf("holder is %+v, want uid %s", held, again.UID)
		}
		return nil
	})

	// Gone for good: the slot becomes free, and the epoch stays.
	epoch := s.policy().Status.Epoch
	if err := admin.Delete(s.ctx(), again); err != nil {
		t.Fatal(err)
	}
	free := s.phase("")
	if free.Status.Epoch < epoch {
		t.Fatalf("epoch fell from %d to %d", epoch, free.Status.Epoch)
	}
}

func (s *suite) patch(object *appsv1.StatefulSet, change func(*appsv1.StatefulSet)) error {
	live := &appsv1.StatefulSet{}
	if err := s.admin().Get(s.ctx(), client.ObjectKeyFromObject(object), live); err != nil {
		return err
	}
	changed := live.DeepCopy()
	change(changed)
	return s.admin().Patch(s.ctx(), changed, client.MergeFrom(live))
}
