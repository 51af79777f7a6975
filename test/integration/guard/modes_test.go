package guard_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
)

// setSpec changes the policy's spec.
func (s *suite) setSpec(change func(*guardv1alpha1.SingletonPolicySpec)) {
	s.t.Helper()
	s.eventually(func() error {
		policy := s.policy()
		change(&policy.Spec)
		return s.admin().Update(s.ctx(), policy)
	})
}

// release deletes StatefulSets and waits until their slots are free.
func (s *suite) release(objects ...client.Object) {
	s.t.Helper()
	for _, object := range objects {
		if err := client.IgnoreNotFound(s.admin().Delete(s.ctx(), object)); err != nil {
			s.t.Fatal(err)
		}
	}
	s.eventually(func() error {
		if status := s.policy().Status; status.Holder != nil || len(status.Slots) > 0 {
			return fmt.Errorf("holder is %+v, slots are %+v", status.Holder, status.Slots)
		}
		return nil
	})
}

// at makes a suite for a subtest.
func (s *suite) at(t *testing.T) *suite {
	at := *s
	at.t = t
	return &at
}

// settles waits until an attempt, made again and again as a dry run through each
// API server, comes to what is expected: policies take a moment to see a change
// of their parameters.
func (s *suite) settles(want string, object client.Object) {
	s.t.Helper()
	for _, admin := range s.admins {
		s.eventually(func() error {
			if got, line := outcome(admin.Create(s.ctx(), object.DeepCopyObject().(client.Object), client.DryRunAll)); got != want {
				return fmt.Errorf("got %s (%s), want %s", got, line, want)
			}
			return nil
		})
	}
}

func withArgs(object *appsv1.StatefulSet, args ...string) *appsv1.StatefulSet {
	object.Spec.Template.Spec.Containers[0].Args = args
	return object
}

// TestModes goes through what a policy can say beside its defaults, with all
// layers in force.
func TestModes(t *testing.T) {
	s := install(t, 2, allLayers)
	namespace := s.namespace("modes")
	t.Run("F07_exception", func(t *testing.T) { s.at(t).exceptions(namespace) })
	t.Run("I02_I03_actions", func(t *testing.T) { s.at(t).actions(namespace) })
	t.Run("B21_leader_elected", func(t *testing.T) { s.at(t).leaderElected(namespace) })
	t.Run("B20_sharded", func(t *testing.T) { s.at(t).sharded(namespace) })
	t.Run("G01_already_two", func(t *testing.T) { s.at(t).alreadyTwo(namespace) })
	t.Run("G07_two_policies", func(t *testing.T) { s.at(t).twoPolicies(namespace) })
}

// exceptions lets a Deployment through for some seconds, in both layers, and
// holds both to refusing it again when the exception has expired.
func (s *suite) exceptions(namespace string) {
	t := s.t.(*testing.T)
	holder := statefulSet(namespace, "mc")
	if err := s.admin().Create(s.ctx(), holder); err != nil {
		t.Fatal(err)
	}
	s.phase(guardv1alpha1.HolderBound)
	excepted, excluded := deployment(namespace, "rescue"), pod(namespace, "rescue-pod", instanceImage)

	// F08: who may not write the policy grants himself nothing, by whatever he
	// writes into the object.
	helper := rest.CopyConfig(s.cp.AdminConfig(0))
	helper.Impersonate = rest.ImpersonationConfig{UserName: "helper"}
	policy := s.policy()
	policy.Spec.Exceptions = []guardv1alpha1.Exception{{Namespace: namespace, Name: "rescue", Reason: "mine", Expires: metav1.NewTime(time.Now().Add(time.Hour))}}
	if err := s.client(helper).Update(s.ctx(), policy); !apierrors.IsForbidden(err) {
		t.Fatalf("F08: an exception by somebody without the right to write the policy: %v", err)
	}
	annotated := excepted.DeepCopy()
	annotated.Annotations = map[string]string{"guard.metacontroller.io/exception": "please", "guard.metacontroller.io/reason": "please"}
	if got, line := outcome(s.admin().Create(s.ctx(), annotated)); got != string(decide.RuleSecondWorkload) {
		t.Fatalf("F08: got %s (%s)", got, line)
	}

	except := func(expires time.Time) {
		s.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) {
			spec.Exceptions = []guardv1alpha1.Exception{
				{Namespace: namespace, Name: "rescue", Reason: "the holder's node is on fire", Expires: metav1.NewTime(expires)},
				{Namespace: namespace, Name: "rescue-pod", Reason: "the same", Expires: metav1.NewTime(expires)},
			}
		})
	}
	except(time.Now().Add(time.Hour))
	s.settles(allowed, excepted)
	s.settles(allowed, excluded)
	status := s.policy().Status
	if len(status.ActiveExceptions) != 2 || !meta.IsStatusConditionTrue(status.Conditions, guardv1alpha1.ConditionExcepted) {
		t.Fatalf("not visible: %+v, %+v", status.ActiveExceptions, status.Conditions)
	}
	s.settles(string(decide.RuleSecondWorkload), deployment(namespace, "another"))
	s.settles(string(decide.RulePodNotPinned), pod(namespace, "another", instanceImage))

	// Once it has expired: refused again, in both layers, and not visible any more,
	// with nobody's help.
	const lasts = 3 * time.Second
	expires := time.Now().Add(lasts)
	except(expires)
	s.eventually(func() error {
		status := s.policy().Status
		if len(status.ActiveExceptions) != 0 || meta.IsStatusConditionTrue(status.Conditions, guardv1alpha1.ConditionExcepted) {
			return fmt.Errorf("still active: %+v", status.ActiveExceptions)
		}
		return nil
	})
	if time.Now().Before(expires.Truncate(time.Second)) {
		t.Fatal("ended before it expired")
	}
	s.settles(string(decide.RuleSecondWorkload), excepted)
	s.settles(string(decide.RulePodNotPinned), excluded)
	s.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) { spec.Exceptions = nil })
	s.release(holder)
}

// warnings collects what the API server warns of.
type warnings struct{ lines []string }

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) { w.lines = append(w.lines, text) }

// actions lets a second one in with a warning, and in silence.
func (s *suite) actions(namespace string) {
	t := s.t.(*testing.T)
	holder := statefulSet(namespace, "mc")
	if err := s.admin().Create(s.ctx(), holder); err != nil {
		t.Fatal(err)
	}
	s.phase(guardv1alpha1.HolderBound)
	heard := &warnings{}
	config := rest.CopyConfig(s.cp.AdminConfig(0))
	config.WarningHandler = heard
	loud := s.client(config)
	for _, action := range []guardv1alpha1.ValidationAction{guardv1alpha1.ActionWarn, guardv1alpha1.ActionAudit} {
		s.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) {
			spec.ValidationActions = []guardv1alpha1.ValidationAction{action}
		})
		s.settles(allowed, pod(namespace, "second", instanceImage))
		heard.lines = nil
		for rule, do := range map[decide.Rule]func() error{
			decide.RuleSecondWorkload: func() error { return loud.Create(s.ctx(), deployment(namespace, "second"), client.DryRunAll) },
			decide.RulePodNotPinned:   func() error { return loud.Create(s.ctx(), pod(namespace, "second", instanceImage), client.DryRunAll) },
			decide.RuleAutoscaler: func() error { // C08
				return loud.Create(s.ctx(), autoscalerV2(namespace, "StatefulSet", "mc", 2, 5), client.DryRunAll)
			},
		} {
			heard.lines = nil
			if err := do(); err != nil {
				t.Fatalf("%s: %v", action, err)
			}
			switch said := strings.Join(heard.lines, "\n"); {
			case action == guardv1alpha1.ActionAudit && said != "":
				t.Errorf("Audit says %q", said)
			case action == guardv1alpha1.ActionWarn && (len(heard.lines) != 1 || len([]rune(said)) > decide.MaxLine || !strings.HasPrefix(said, string(rule)+": ")):
				t.Errorf("%s warns %q", rule, said)
			}
		}
	}
	s.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) {
		spec.ValidationActions = []guardv1alpha1.ValidationAction{guardv1alpha1.ActionDeny}
	})
	s.settles(string(decide.RulePodNotPinned), pod(namespace, "second", instanceImage))
	s.release(holder)
}

const electionFlag = "--leader-election"

// leaderElected lets the holder have replicas behind one Lease.
func (s *suite) leaderElected(namespace string) {
	t := s.t.(*testing.T)
	s.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) { spec.Mode = guardv1alpha1.ModeLeaderElected })
	three := func(args ...string) *appsv1.StatefulSet {
		object := withArgs(statefulSet(namespace, "mc"), args...)
		object.Spec.Replicas, object.Spec.PodManagementPolicy = ptr.To[int32](3), appsv1.ParallelPodManagement
		return object
	}
	for name, args := range map[string][]string{
		"B21 missing flag":         {"--workers=3"},
		"B21 other namespace":      {electionFlag, "--leader-election-namespace=default"},
		"B21 other id":             {electionFlag, "--leader-election-id=mine"},
		"other lock":               {electionFlag, "--leader-election-resource-lock=endpoints"},
		"switched off again":       {electionFlag, "--leader-election=false"},
		"as the value of another":  {"--zap-log-level", electionFlag},
		"behind the first operand": {"serve", electionFlag},
		"a variable":               {electionFlag, "--leader-election-namespace=$(POD_NAMESPACE)"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) { s.at(t).settles(string(decide.RuleLeaderElection), three(args...)) })
	}
	if err := s.admin().Create(s.ctx(), three(electionFlag, "--workers=3")); err != nil {
		t.Fatal(err)
	}
	// The second and third Pod come once the guard has seen that all elect a leader.
	for _, name := range []string{"mc-0", "mc-1", "mc-2"} {
		s.awaitPod(namespace, name, "")
	}
	if holder := s.policy().Status.Holder; holder == nil || !holder.Elected {
		t.Fatalf("holder is %+v", holder)
	}
	s.settles(string(decide.RuleSecondWorkload), withArgs(statefulSet(namespace, "second"), electionFlag))
	s.settles(string(decide.RulePodNotPinned), edited(pod(namespace, "mc-3", instanceImage), func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{electionFlag} }))
	live := statefulSet(namespace, "mc")
	for name, test := range map[string]struct {
		change func(*appsv1.StatefulSet)
		want   string
	}{
		"flag_removed": {func(st *appsv1.StatefulSet) { st.Spec.Template.Spec.Containers[0].Args = nil }, string(decide.RuleLeaderElection)},
		"lease_changed": {func(st *appsv1.StatefulSet) {
			st.Spec.Template.Spec.Containers[0].Args = []string{electionFlag, "--leader-election-id=other"}
		}, string(decide.RuleLeaderElection)},
		"image_changed": {func(st *appsv1.StatefulSet) {
			st.Spec.Template.Spec.Containers[0].Image = "ghcr.io/metacontroller/metacontroller:v4.18.0"
		}, allowed},
		"scaled_up": {func(st *appsv1.StatefulSet) { st.Spec.Replicas = ptr.To[int32](4) }, allowed},
	} {
		t.Run(name, func(t *testing.T) {
			if got, line := outcome(s.at(t).patch(live, test.change)); got != test.want {
				t.Errorf("got %s (%s), want %s", got, line, test.want)
			}
		})
	}
	// The Lease is fixed while somebody may lead on it.
	policy := s.policy()
	policy.Spec.Lease = &guardv1alpha1.LeaseReference{Name: "another"}
	if err := s.admin().Update(s.ctx(), policy); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.lease") {
		t.Errorf("the Lease was changed under the holder: %v", err)
	}
	s.release(live)
	s.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) { spec.Mode = guardv1alpha1.ModeStrict })
}

// sharded gives each of several StatefulSets a slot of its own.
func (s *suite) sharded(namespace string) {
	t := s.t.(*testing.T)
	s.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) { spec.Mode = guardv1alpha1.ModeSharded })
	shard := func(name, selector string) *appsv1.StatefulSet {
		object := statefulSet(namespace, name)
		if selector != "" {
			object = withArgs(object, "--target-label-selector="+selector)
		}
		return object
	}
	for name, object := range map[string]client.Object{
		"B20_missing_selector":     shard("none", ""),
		"B20_empty_selector":       withArgs(statefulSet(namespace, "empty"), "--target-label-selector="),
		"B20_no_selector_at_all":   shard("odd", "a=b=c"),
		"selector_in_two_argument": withArgs(statefulSet(namespace, "two"), "--target-label-selector", "team=a"),
	} {
		t.Run(name, func(t *testing.T) { s.at(t).settles(string(decide.RuleShardOverlap), object) })
	}
	a, b := shard("a", "team in (a,x)"), shard("b", "team=b")
	for i, object := range []*appsv1.StatefulSet{a, b} {
		if err := s.admins[i%len(s.admins)].Create(s.ctx(), object); err != nil {
			t.Fatal(err)
		}
	}
	s.awaitPod(namespace, "a-0", "")
	s.awaitPod(namespace, "b-0", "")
	s.eventually(func() error {
		slots := s.policy().Status.Slots
		if len(slots) != 2 || slots[0].Holder.Phase != guardv1alpha1.HolderBound || slots[1].Holder.Phase != guardv1alpha1.HolderBound {
			return fmt.Errorf("slots are %+v", slots)
		}
		return nil
	})
	s.settles(string(decide.RuleShardOverlap), shard("c", "team notin (b)"))
	s.settles(string(decide.RuleShardOverlap), shard("c", "zone=1"))
	s.settles(allowed, shard("c", "team=c"))
	s.settles(string(decide.RuleWorkloadKind), deployment(namespace, "c"))
	s.settles(string(decide.RulePodNotPinned), edited(pod(namespace, "a-1", instanceImage), func(p *corev1.Pod) { p.Spec.Containers[0].Args = []string{"--target-label-selector=team in (a,x)"} }))
	if got, line := outcome(s.patch(a, func(st *appsv1.StatefulSet) {
		st.Spec.Template.Spec.Containers[0].Args = []string{"--target-label-selector=team=y"}
	})); got != string(decide.RuleShardOverlap) {
		t.Errorf("a shard changed its selector: %s (%s)", got, line)
	}
	if got, line := outcome(s.patch(a, func(st *appsv1.StatefulSet) { st.Spec.Replicas = ptr.To[int32](2) })); got != string(decide.RuleScaleAboveOne) {
		t.Errorf("a shard has two replicas: %s (%s)", got, line)
	}
	policy := s.policy()
	policy.Spec.Mode = guardv1alpha1.ModeStrict
	if err := s.admin().Update(s.ctx(), policy); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.mode") {
		t.Errorf("the mode was changed under the shards: %v", err)
	}
	s.release(a, b)
	s.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) { spec.Mode = guardv1alpha1.ModeStrict })
}

// alreadyTwo has a Deployment that runs beside the holder, as one that was there
// before: it is reported, left alone, and not scaled.
func (s *suite) alreadyTwo(namespace string) {
	t := s.t.(*testing.T)
	s.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) {
		spec.ValidationActions = []guardv1alpha1.ValidationAction{guardv1alpha1.ActionAudit}
	})
	s.settles(allowed, pod(namespace, "before", instanceImage))
	old, holder := deployment(namespace, "before"), statefulSet(namespace, "mc")
	for _, object := range []client.Object{holder, old} {
		if err := s.admin().Create(s.ctx(), object); err != nil {
			t.Fatal(err)
		}
	}
	s.phase(guardv1alpha1.HolderBound)
	s.eventually(func() error {
		pods := &corev1.PodList{}
		if err := s.admin().List(s.ctx(), pods, client.InNamespace(namespace)); err != nil {
			return err
		}
		for i := range pods.Items {
			if strings.HasPrefix(pods.Items[i].Name, "before-") {
				return nil
			}
		}
		return fmt.Errorf("the Deployment has no Pod yet")
	})
	s.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) {
		spec.ValidationActions = []guardv1alpha1.ValidationAction{guardv1alpha1.ActionDeny}
	})
	s.eventually(func() error {
		status := s.policy().Status
		if meta.IsStatusConditionTrue(status.Conditions, guardv1alpha1.ConditionCompliant) {
			return fmt.Errorf("said to be compliant: %+v", status.Instances)
		}
		for _, instance := range status.Instances {
			if instance.Verdict == guardv1alpha1.InstanceViolation && strings.HasPrefix(instance.Owner, "ReplicaSet/before-") {
				return nil
			}
		}
		return fmt.Errorf("not reported: %+v", status.Instances)
	})
	s.settles(string(decide.RuleSecondWorkload), statefulSet(namespace, "third"))
	c := &stage{suite: s, namespace: namespace, servers: len(s.admins)}
	s.eventually(func() error {
		for range s.admins {
			if got, line := outcome(c.scale(old, 3)); got != string(decide.RuleScaleAboveOne) {
				return fmt.Errorf("the violator was scaled up: %s (%s)", got, line)
			}
		}
		return nil
	})
	if err := c.scale(old, 0); err != nil {
		t.Errorf("the violator cannot be scaled down: %v", err)
	}
	s.release(holder, old)
}

// twoPolicies has a second policy beside the guard's own: it decides nothing,
// and the guard's own goes on.
func (s *suite) twoPolicies(namespace string) {
	t := s.t.(*testing.T)
	other := &guardv1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: "other"}}
	other.Spec.ValidationActions = []guardv1alpha1.ValidationAction{guardv1alpha1.ActionAudit}
	if err := s.admin().Create(s.ctx(), other); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.admins[0].Delete(t.Context(), other) })
	s.settles(string(decide.RuleWorkloadKind), deployment(namespace, "first"))
	s.settles(string(decide.RulePodNotPinned), pod(namespace, "first", instanceImage))
	s.eventually(func() error {
		live := &guardv1alpha1.SingletonPolicy{}
		if err := s.admin().Get(s.ctx(), client.ObjectKeyFromObject(other), live); err != nil {
			return err
		}
		ready := meta.FindStatusCondition(live.Status.Conditions, guardv1alpha1.ConditionReady)
		if ready == nil || ready.Status != metav1.ConditionFalse || !strings.Contains(ready.Message, guardv1alpha1.DefaultPolicyName) {
			return fmt.Errorf("condition Ready of the other policy is %+v", ready)
		}
		return nil
	})
	if err := s.admin().Delete(s.ctx(), other); err != nil {
		t.Error(err)
	}
}

// TestPolicyMissing: without a policy the built-in default is judged by, and
// nobody can take the slot.
func TestPolicyMissing(t *testing.T) {
	s := install(t, 1, webhookOnly)
	namespace := s.namespace("missing")
	policy := &guardv1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: guardv1alpha1.DefaultPolicyName}}
	if err := s.admin().Delete(s.ctx(), policy); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.resetAfter)
	t.Run("G07_policy_missing", func(t *testing.T) {
		s := s.at(t)
		s.settles(string(decide.RuleWorkloadKind), deployment(namespace, "first"))
		err := s.admin().Create(s.ctx(), statefulSet(namespace, "mc"))
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "does not exist") || !strings.Contains(err.Error(), "Next: ") {
			t.Errorf("got %v", err)
		}
		if err := s.admin().Create(s.ctx(), pod(namespace, "stranger", strangerImage)); err != nil {
			t.Error(err)
		}
	})
}

// resetAfter makes the policy again, for the admission objects' removal is seen
// by what it refuses.
func (s *suite) resetAfter() {
	policy := &guardv1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: guardv1alpha1.DefaultPolicyName}}
	if err := client.IgnoreAlreadyExists(s.admin().Create(ctxWithoutCancel(s), policy)); err != nil {
		s.t.Error(err)
	}
}

// TestPolicyFields holds the CRD to refusing every policy that contradicts
// itself or that cannot work, with a message that names the field.
func TestPolicyFields(t *testing.T) {
	s := prepare(t)
	in := metav1.NewTime(time.Now().Add(time.Hour)).UTC().Format(time.RFC3339)
	tests := map[string]struct{ spec, field string }{
		"Deny with Warn":               {`{"validationActions":["Deny","Warn"]}`, "spec.validationActions"},
		"no action":                    {`{"validationActions":[]}`, "spec.validationActions"},
		"the same action twice":        {`{"validationActions":["Warn","Warn"]}`, "spec.validationActions"},
		"unknown action":               {`{"validationActions":["Shout"]}`, "spec.validationActions"},
		"unknown mode":                 {`{"mode":"Anarchy"}`, "spec.mode"},
		"exception without expiry":     {`{"exceptions":[{"namespace":"a","name":"b","reason":"c"}]}`, "spec.exceptions[0].expires"},
		"exception without reason":     {`{"exceptions":[{"namespace":"a","name":"b","expires":"` + in + `"}]}`, "spec.exceptions[0].reason"},
		"exception with a blank one":   {`{"exceptions":[{"namespace":"a","name":"b","reason":"  ","expires":"` + in + `"}]}`, "spec.exceptions[0].reason"},
		"exception that never expires": {`{"exceptions":[{"namespace":"a","name":"b","reason":"c","expires":null}]}`, "spec.exceptions[0].expires"},
		"exception with odd expiry":    {`{"exceptions":[{"namespace":"a","name":"b","reason":"c","expires":"tomorrow"}]}`, "spec.exceptions[0].expires"},
		"exception without a name":     {`{"exceptions":[{"namespace":"a","name":"","reason":"c","expires":"` + in + `"}]}`, "spec.exceptions[0].name"},
		"exception for all":            {`{"exceptions":[{"namespace":"","name":"b","reason":"c","expires":"` + in + `"}]}`, "spec.exceptions[0].namespace"},
		"two exceptions for one": {`{"exceptions":[{"namespace":"a","name":"b","reason":"c","expires":"` + in + `"},
			{"namespace":"a","name":"b","reason":"d","expires":"` + in + `"}]}`, "spec.exceptions[1]"},
		"empty holder name":           {`{"holder":{"namespace":"a","name":""}}`, "spec.holder.name"},
		"odd holder name":             {`{"holder":{"namespace":"a","name":"A_b"}}`, "spec.holder.name"},
		"holder without namespace":    {`{"holder":{"name":"b"}}`, "spec.holder.namespace"},
		"holder among shards":         {`{"mode":"Sharded","holder":{"namespace":"a","name":"b"}}`, "spec.holder"},
		"lease in Strict":             {`{"lease":{"name":"b"}}`, "spec.lease"},
		"lease among shards":          {`{"mode":"Sharded","lease":{"name":"b"}}`, "spec.lease"},
		"odd lease":                   {`{"mode":"LeaderElected","lease":{"name":"B!"}}`, "spec.lease.name"},
		"image without registry":      {`{"match":{"images":["metacontroller/metacontroller"]}}`, "spec.match.images"},
		"image with a tag":            {`{"match":{"images":["ghcr.io/a/b:v1"]}}`, "spec.match.images"},
		"image in capitals":           {`{"match":{"images":["ghcr.io/A/b"]}}`, "spec.match.images"},
		"image with an injection":     {`{"match":{"images":["x' || true || '"]}}`, "spec.match.images"},
		"any path in the middle":      {`{"match":{"images":["ghcr.io/**/b"]}}`, "spec.match.images"},
		"excluded without a registry": {`{"match":{"excludeImages":["a/b"]}}`, "spec.match.excludeImages"},
		"command with a path":         {`{"match":{"commands":["/usr/bin/metacontroller"]}}`, "spec.match.commands"},
		"nothing is an instance":      {`{"match":{"images":[],"commands":[]}}`, "spec.match"},
		"workload without resource":   {`{"match":{"workloads":[{"group":"a.b","resource":""}]}}`, "spec.match.workloads[0].resource"},
		"workload of odd resource":    {`{"match":{"workloads":[{"group":"a.b","resource":"x\" || true"}]}}`, "spec.match.workloads[0].resource"},
		"workload with an odd path":   {`{"match":{"workloads":[{"group":"a.b","resource":"c","podTemplatePath":"spec..template"}]}}`, "spec.match.workloads[0].podTemplatePath"},
		"fence without a name":        {`{"fence":{"serviceAccount":{"namespace":"a"}}}`, "spec.fence.serviceAccount.name"},
		"unknown fence action":        {`{"fence":{"serviceAccount":{"namespace":"a","name":"b"},"action":"Maybe"}}`, "spec.fence.action"},
	}
	try := func(spec string) error {
		policy := &guardv1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: "field"}}
		raw := map[string]any{}
		if err := json.Unmarshal([]byte(spec), &raw); err != nil {
			t.Fatal(err)
		}
		object := asUnstructured(policy)
		object.Object["spec"] = raw
		return s.admin().Create(s.ctx(), object, client.DryRunAll)
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := try(test.spec)
			if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) {
				t.Fatalf("got %v, want it refused", err)
			}
			if !strings.Contains(err.Error(), test.field) {
				t.Fatalf("%v does not name the field %s", err, test.field)
			}
		})
	}
	for name, spec := range map[string]string{
		"nothing":        `{}`,
		"leader elected": `{"mode":"LeaderElected","lease":{"namespace":"a","name":"b"},"holder":{"namespace":"a","name":"b"}}`,
		"sharded":        `{"mode":"Sharded"}`,
		"warn and audit": `{"validationActions":["Warn","Audit"]}`,
		"exception":      `{"exceptions":[{"namespace":"a","name":"b","reason":"c","expires":"` + in + `"}]}`,
		"custom kind":    `{"match":{"workloads":[{"group":"apps.kruise.io","resource":"clonesets"}]}}`,
	} {
		t.Run("accepted/"+name, func(t *testing.T) {
			if err := try(spec); err != nil {
				t.Error(err)
			}
		})
	}
}
