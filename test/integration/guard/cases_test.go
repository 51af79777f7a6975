package guard_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
)

// What an attempt comes to, beside the id of a rule.
const (
	allowed = "allowed"
	exists  = "already exists"
	// unrecognised is allowed, for nothing in the object says what it runs: the
	// fence is what holds then.
	unrecognised = "allowed, not recognisable"
)

// try is one attempt to get a second instance past the guard, or something that
// looks like one and is none.
type try struct {
	// name begins with the id of the case, where there is one.
	name string
	want string
	do   func(c *stage) error
}

var refusalPattern = regexp.MustCompile(`(?s)denied (?:the )?request: (\[?([a-z-]+)[\]:] [^\n]*)(.*)`)

// outcome is what an attempt came to: a rule's id, or one of the words above.
func outcome(err error) (string, string) {
	switch {
	case err == nil:
		return allowed, ""
	case apierrors.IsAlreadyExists(err):
		return exists, err.Error()
	}
	if match := refusalPattern.FindStringSubmatch(err.Error()); match != nil && apierrors.IsForbidden(err) {
		return match[2], match[1]
	}
	return "error", err.Error()
}

// run runs attempts one after the other, each with its subtest, and prints them
// as a table.
func (c *stage) run(t *testing.T, tries []try) {
	t.Helper()
	var table strings.Builder
	fmt.Fprintf(&table, "\n%-46s | %-24s | %-24s | %-15s | first line of the answer\n", "attempt", "expected", "answer", "second instance")
	for _, attempt := range tries {
		t.Run(attempt.name, func(t *testing.T) {
			at := &stage{suite: &suite{}, namespace: c.namespace, servers: c.servers, turn: c.turn}
			*at.suite = *c.suite
			at.t = t
			got, line := outcome(attempt.do(at))
			c.turn = at.turn
			second := at.second()
			runs := "none"
			if len(second) > 0 {
				runs = strings.Join(second, ", ")
				t.Errorf("a second instance runs: %s", runs)
			}
			fmt.Fprintf(&table, "%-46s | %-24s | %-24s | %-15s | %s\n", attempt.name, attempt.want, got, runs, line)
			want := attempt.want
			if want == unrecognised {
				want = allowed
			}
			if got != want {
				t.Fatalf("got %s (%s), want %s", got, line, attempt.want)
			}
			if slices.Contains(decide.Rules(), decide.Rule(got)) && len([]rune(strings.TrimSuffix(line, ""))) > decide.MaxLine {
				t.Errorf("the first line has %d characters: %q", len([]rune(line)), line)
			}
			if slices.Contains(decide.Rules(), decide.Rule(got)) && c.held() && !strings.Contains(line, c.holder()) {
				t.Errorf("%q does not name the holder %s", line, c.holder())
			}
		})
	}
	t.Log(table.String())
}

// image is an instance's Pod spec by another image.
func withImage(image string) corev1.PodSpec { return podSpec(image) }

func with(spec corev1.PodSpec, edit func(*corev1.PodSpec)) corev1.PodSpec {
	edit(&spec)
	return spec
}

func podOf(c *stage, name string, spec corev1.PodSpec) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: named(c.namespace, name), Spec: spec}
}

func edited[T client.Object](object T, edit func(T)) T {
	edit(object)
	return object
}

func autoscalerV2(namespace, kind, name string, least, most int32) *autoscalingv2.HorizontalPodAutoscaler {
	return &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: named(namespace, name+"-"+strings.ToLower(kind)), Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: kind, Name: name}, MinReplicas: &least, MaxReplicas: most,
	}}
}

// freeTries are made while nobody holds the slot.
func freeTries() []try {
	const pinned = string(decide.RulePodNotPinned)
	const kind = string(decide.RuleWorkloadKind)
	return []try{
		{"A17_dry_run_allowed", allowed, func(c *stage) error { return c.dry(statefulSet(c.namespace, "dry")) }},
		{"A17_dry_run_allowed_again", allowed, func(c *stage) error {
			if held := c.policy().Status.Holder; held != nil {
				return fmt.Errorf("a dry run claimed: %v", held)
			}
			return c.dry(statefulSet(c.namespace, "dry2"))
		}},
		{"A19_server_side_apply_dry_run", allowed, func(c *stage) error {
			return c.applyAs("me", statefulSet(c.namespace, "dry"), client.DryRunAll)
		}},
		{"C16_parallel_with_one", allowed, func(c *stage) error {
			return c.dry(edited(statefulSet(c.namespace, "dry"), func(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }))
		}},
		{"C16_parallel_with_two", string(decide.RuleScaleAboveOne), func(c *stage) error {
			return c.dry(edited(statefulSet(c.namespace, "dry"), func(s *appsv1.StatefulSet) {
				s.Spec.PodManagementPolicy, s.Spec.Replicas = appsv1.ParallelPodManagement, ptr.To[int32](2)
			}))
		}},
		{"C17_first_with_ordinals_start", string(decide.RuleOrdinals), func(c *stage) error {
			return c.dry(edited(statefulSet(c.namespace, "dry"), func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: 1} }))
		}},
		{"D05_first_with_zero_grace", string(decide.RuleZeroGrace), func(c *stage) error {
			return c.dry(edited(statefulSet(c.namespace, "dry"), func(s *appsv1.StatefulSet) {
				s.Spec.Template.Spec.TerminationGracePeriodSeconds = ptr.To[int64](0)
			}))
		}},
		{"C23_daemonset_first", kind, func(c *stage) error { return c.create(daemonSet(c.namespace, "first")) }},
		{"A03_deployment_first", kind, func(c *stage) error { return c.create(deployment(c.namespace, "first")) }},
		{"A03_job_first", kind, func(c *stage) error { return c.create(job(c.namespace, "first")) }},
		{"A03_pod_first", pinned, func(c *stage) error { return c.create(pod(c.namespace, "first", instanceImage)) }},
		{"B09_two_in_one_pod", string(decide.RuleTwoInOnePod), func(c *stage) error {
			return c.create(podOf(c, "two", with(podSpec(instanceImage), func(s *corev1.PodSpec) {
				s.Containers = append(s.Containers, corev1.Container{Name: "more", Image: instanceImage})
			})))
		}},
		{"B09_two_in_one_template", string(decide.RuleTwoInOnePod), func(c *stage) error {
			return c.create(edited(statefulSet(c.namespace, "two"), func(s *appsv1.StatefulSet) {
				s.Spec.Template.Spec.InitContainers = []corev1.Container{{Name: "more", Image: instanceImage}}
			}))
		}},
	}
}

// heldTries are made while one is active.
func heldTries() []try {
	const (
		second = string(decide.RuleSecondWorkload)
		above  = string(decide.RuleScaleAboveOne)
		pinned = string(decide.RulePodNotPinned)
		became = string(decide.RuleBecameInstance)
	)
	mc := func(c *stage) *appsv1.StatefulSet { return statefulSet(c.namespace, "mc") }
	barePod := func(spec corev1.PodSpec) func(*stage) error {
		return func(c *stage) error { return c.create(podOf(c, "second", spec)) }
	}
	dryPod := func(spec corev1.PodSpec) func(*stage) error {
		return func(c *stage) error { return c.dry(podOf(c, "looks-like", spec)) }
	}
	command := func(image string, words ...string) corev1.PodSpec {
		return with(withImage(image), func(s *corev1.PodSpec) { s.Containers[0].Command = words })
	}
	patched := func(patch string) func(*stage) error {
		return func(c *stage) error { return c.merge(mc(c), patch) }
	}
	tries := []try{
		// Group A.
		{"A14_same_name_again", exists, func(c *stage) error { return c.create(mc(c)) }},
		{"A18_dry_run_second", second, func(c *stage) error { return c.dry(statefulSet(c.namespace, "second")) }},
		{"A19_server_side_apply_second", second, func(c *stage) error { return c.applyAs("gitops", statefulSet(c.namespace, "second")) }},
		{"A21_no_op_update", allowed, patched(`{"metadata":{"annotations":{"a":"b"}}}`)},
		{"A22_status_writes", allowed, func(c *stage) error {
			before := c.webhookCalls(0)
			for range 20 {
				live := mc(c)
				if err := c.admins[0].Get(c.ctx(), client.ObjectKeyFromObject(live), live); err != nil {
					return err
				}
				live.Status.ObservedGeneration++
				if err := c.admins[0].Status().Update(c.ctx(), live); err != nil && !apierrors.IsConflict(err) {
					return err
				}
			}
			if calls := c.webhookCalls(0) - before; calls != 0 {
				return fmt.Errorf("the guard was asked %d times about status writes", calls)
			}
			return nil
		}},
		{"generateName_statefulset", second, func(c *stage) error {
			return c.create(edited(statefulSet(c.namespace, ""), func(s *appsv1.StatefulSet) { s.GenerateName = "mc-" }))
		}},
		{"generateName_pod", pinned, func(c *stage) error {
			return c.create(edited(pod(c.namespace, "", instanceImage), func(p *corev1.Pod) { p.GenerateName = "mc-" }))
		}},

		// Group B.
		{"B02_mirror_by_command", pinned, barePod(command("reg.local:5000/x/mc@sha256:"+strings.Repeat("a", 64), "/usr/bin/metacontroller"))},
		{"B03_digest_only", pinned, barePod(withImage("ghcr.io/metacontroller/metacontroller@sha256:" + strings.Repeat("b", 64)))},
		{"B04_renamed_image_default_entrypoint", unrecognised, dryPod(withImage("private.example.com/team/tool:v1"))},
		{"B05_wrapped_command", unrecognised, dryPod(command("private.example.com/team/tool:v1", "sh", "-c", "exec /opt/m"))},
		{"B07_init_container", pinned, barePod(with(withImage(strangerImage), func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{{Name: "init", Image: instanceImage}}
		}))},
		{"B08_native_sidecar", pinned, barePod(with(withImage(strangerImage), func(s *corev1.PodSpec) {
			s.InitContainers = []corev1.Container{{Name: "side", Image: instanceImage, RestartPolicy: ptr.To(corev1.ContainerRestartPolicyAlways)}}
		}))},
		{"B09_two_in_one_pod_beside_the_holder", string(decide.RuleTwoInOnePod), barePod(with(withImage(instanceImage), func(s *corev1.PodSpec) {
			s.Containers = append(s.Containers, corev1.Container{Name: "more", Image: instanceImage})
		}))},
		{"B09_second_container_in_the_holder", string(decide.RuleTwoInOnePod), patched(`{"spec":{"template":{"spec":{"containers":[{"name":"more","image":"` + instanceImage + `"}]}}}}`)},
		{"B10_ephemeral_container", became, func(c *stage) error { return c.debug("web", instanceImage) }},
		{"B10_ephemeral_container_in_the_pinned_pod", string(decide.RuleTwoInOnePod), func(c *stage) error { return c.debug("mc-0", instanceImage) }},
		{"B11_in_place_image_patch", became, func(c *stage) error {
			return c.merge(pod(c.namespace, "web", ""), `{"spec":{"containers":[{"name":"main","image":"`+instanceImage+`"}]}}`)
		}},
		{"B12_in_place_update_of_an_owned_pod", became, func(c *stage) error {
			return c.merge(pod(c.namespace, "cloned", ""), `{"spec":{"containers":[{"name":"main","image":"`+instanceImage+`"}]}}`)
		}},
		{"B11_deployment_set_image", became, func(c *stage) error {
			return c.merge(deployment(c.namespace, "web"), `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"`+instanceImage+`"}]}}}}`)
		}},
		{"B14_labels_stripped", second, func(c *stage) error {
			return c.create(edited(job(c.namespace, "unlabelled"), func(j *batchv1.Job) { j.Labels = nil }))
		}},
		{"B15_label_spoof", allowed, func(c *stage) error {
			return c.dry(edited(pod(c.namespace, "spoof", strangerImage), func(p *corev1.Pod) {
				p.Labels = map[string]string{"app.kubernetes.io/name": "metacontroller", "app": "metacontroller"}
			}))
		}},
		{"B16_hook_server", allowed, dryPod(withImage("metacontroller/nodejs-server:0.1"))},
		{"B16_hook_jsonnetd", allowed, dryPod(withImage("ghcr.io/metacontroller/jsonnetd:v1"))},
		{"B17_our_own_name", allowed, dryPod(withImage("ghcr.io/metacontroller-solo/guard:v1"))},
		// A residual: docs/recognition.md says so.
		{"B23_exec_is_not_intercepted", allowed, func(c *stage) error { return c.exec("mc-0") }},

		// Group C.
		{"C01_nil_replicas", second, func(c *stage) error { return c.create(deployment(c.namespace, "second")) }},
		{"C02_zero_replicas", second, func(c *stage) error {
			return c.create(edited(statefulSet(c.namespace, "second"), func(s *appsv1.StatefulSet) { s.Spec.Replicas = ptr.To[int32](0) }))
		}},
		{"C03_statefulset_scale", above, func(c *stage) error { return c.scale(mc(c), 2) }},
		{"C03_statefulset_scale_patch", above, func(c *stage) error {
			return c.next().SubResource("scale").Patch(c.ctx(), mc(c), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"replicas":3}}`)))
		}},
		{"C04_replicas_in_spec", above, patched(`{"spec":{"replicas":2}}`)},
		{"C04_replicas_by_apply_of_another", above, func(c *stage) error {
			return c.applyAs("other", edited(mc(c), func(s *appsv1.StatefulSet) { s.Spec.Replicas = ptr.To[int32](2) }))
		}},
		{"C06_replicaset_scale", above, func(c *stage) error { return c.scale(replicaSet(c.namespace, "old-rs"), 2) }},
		{"C06_replicationcontroller_scale", above, func(c *stage) error { return c.scale(replicationController(c.namespace, "old-rc"), 2) }},
		{"A05_scale_a_second_from_zero", allowed, func(c *stage) error {
			// To one is not asked about; the Pod is what is refused.
			if err := c.scale(replicaSet(c.namespace, "old-rs"), 1); err != nil {
				return err
			}
			c.refusalEvent("old-rs")
			return c.scale(replicaSet(c.namespace, "old-rs"), 0)
		}},
		{"C06_deployment_scale", allowed, func(c *stage) error {
			// Its ReplicaSet is what is refused.
			if err := c.scale(deployment(c.namespace, "old-deployment"), 3); err != nil {
				return err
			}
			c.refusalRecord("ReplicaSet", "old-deployment-", decide.RuleScaleAboveOne)
			if err := c.scale(deployment(c.namespace, "old-deployment"), 0); err != nil {
				return err
			}
			// Until its controller knows, it goes on asking.
			c.eventually(func() error {
				live := &appsv1.Deployment{}
				err := c.admin().Get(c.ctx(), client.ObjectKey{Namespace: c.namespace, Name: "old-deployment"}, live)
				if err == nil && live.Status.ObservedGeneration < live.Generation {
					err = fmt.Errorf("the controller of Deployment %q has not seen that it is scaled to 0", live.Name)
				}
				return err
			})
			return nil
		}},
		{"C06_scale_a_stranger", allowed, func(c *stage) error {
			return c.unasked("scale.guard.metacontroller.io", func() error {
				if err := c.scale(deployment(c.namespace, "web"), 3); err != nil {
					return err
				}
				return c.scale(deployment(c.namespace, "web"), 0)
			})
		}},
		{"C08_autoscaler", string(decide.RuleAutoscaler), func(c *stage) error { return c.create(renamed(autoscalerV2(c.namespace, "StatefulSet", "mc", 2, 5))) }},
		{"C09_autoscaler_v1", string(decide.RuleAutoscaler), func(c *stage) error {
			return c.create(&autoscalingv1.HorizontalPodAutoscaler{ObjectMeta: named(c.namespace, "v1"), Spec: autoscalingv1.HorizontalPodAutoscalerSpec{
				ScaleTargetRef: autoscalingv1.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mc"}, MaxReplicas: 5,
			}})
		}},
		{"C08_autoscaler_of_one", allowed, func(c *stage) error { return c.dry(renamed(autoscalerV2(c.namespace, "StatefulSet", "mc", 1, 1))) }},
		{"C08_autoscaler_of_a_stranger", allowed, func(c *stage) error { return c.dry(renamed(autoscalerV2(c.namespace, "StatefulSet", "web", 1, 5))) }},
		{"C08_autoscaler_moved_to_the_holder", string(decide.RuleAutoscaler), func(c *stage) error {
			if err := client.IgnoreAlreadyExists(c.create(autoscalerV2(c.namespace, "StatefulSet", "web", 1, 5))); err != nil {
				return err
			}
			return c.next().Patch(c.ctx(), autoscalerV2(c.namespace, "StatefulSet", "web", 1, 5),
				client.RawPatch(types.MergePatchType, []byte(`{"spec":{"scaleTargetRef":{"name":"mc"}}}`)))
		}},
		{"C10_resize", allowed, func(c *stage) error {
			return c.next().SubResource("resize").Patch(c.ctx(), pod(c.namespace, "mc-0", ""), client.RawPatch(types.StrategicMergePatchType,
				[]byte(`{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"20m"}}}]}}`)))
		}},
		{"C11_rolling_surge_of_a_deployment", second, func(c *stage) error {
			return c.merge(deployment(c.namespace, "old-deployment"), `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"`+instanceImage+`-next"}]}}}}`)
		}},
		{"C14_image_of_the_holder", allowed, patched(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"ghcr.io/metacontroller/metacontroller:v4.18.0"}]}}}}`)},
		{"C37_rollback_of_the_holder", allowed, patched(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"` + instanceImage + `"}]}}}}`)},
		{"C15_on_delete", allowed, patched(`{"spec":{"updateStrategy":{"type":"OnDelete","rollingUpdate":null}}}`)},
		{"C15_partition", allowed, patched(`{"spec":{"updateStrategy":{"type":"RollingUpdate","rollingUpdate":{"partition":1}}}}`)},
		{"C17_ordinals_start", string(decide.RuleOrdinals), patched(`{"spec":{"ordinals":{"start":1}}}`)},
		{"C18_max_unavailable", allowed, patched(`{"spec":{"updateStrategy":{"type":"RollingUpdate","rollingUpdate":{"partition":0,"maxUnavailable":"100%"}}}}`)},
		{"C23_daemonset", second, func(c *stage) error { return c.create(daemonSet(c.namespace, "second")) }},
		{"C28_bare_pod", pinned, barePod(withImage(instanceImage))},
		{"C29_pod_of_an_unknown_owner", pinned, func(c *stage) error {
			return c.create(edited(pod(c.namespace, "owned", instanceImage), func(p *corev1.Pod) {
				p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "argoproj.io/v1alpha1", Kind: "Workflow", Name: "w", UID: "1", Controller: ptr.To(true)}}
			}))
		}},
		{"C30_pod_template", allowed, func(c *stage) error {
			return c.dry(&corev1.PodTemplate{ObjectMeta: named(c.namespace, "t"), Template: template(instanceImage)})
		}},
		{"C31_second_helm_release", second, func(c *stage) error {
			err := c.create(edited(statefulSet("default", "other-metacontroller"), func(s *appsv1.StatefulSet) {
				s.Labels = map[string]string{"app.kubernetes.io/managed-by": "Helm"}
			}))
			if err != nil && !strings.Contains(err.Error(), "delete it first") {
				return fmt.Errorf("the message does not say how to move: %w", err)
			}
			return err
		}},
		{"cronjob", second, func(c *stage) error { return c.create(cronJob(c.namespace, "second")) }},
		{"job_with_parallelism", second, func(c *stage) error {
			return c.create(edited(job(c.namespace, "second"), func(j *batchv1.Job) { j.Spec.Parallelism = ptr.To[int32](3) }))
		}},
		{"job_raised_in_parallelism", above, func(c *stage) error {
			return c.merge(job(c.namespace, "old-job"), `{"spec":{"parallelism":4}}`)
		}},
		{"job_resumed", allowed, func(c *stage) error {
			// Its Pod is what is refused.
			if err := c.merge(job(c.namespace, "old-job"), `{"spec":{"suspend":false}}`); err != nil {
				return err
			}
			c.refusalEvent("old-job")
			return c.merge(job(c.namespace, "old-job"), `{"spec":{"suspend":true}}`)
		}},
		{"replicaset", second, func(c *stage) error { return c.create(replicaSet(c.namespace, "second")) }},
		{"replicationcontroller", second, func(c *stage) error { return c.create(replicationController(c.namespace, "second")) }},
		{"C35_delete_a_violator", allowed, func(c *stage) error {
			return c.next().Delete(c.ctx(), replicationController(c.namespace, "old-rc"), client.DryRunAll)
		}},
		{"C36_eviction", allowed, func(c *stage) error {
			return c.next().SubResource("eviction").Create(c.ctx(), pod(c.namespace, "mc-0", ""), &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}})
		}},

		// Group D.
		{"D05_zero_grace", string(decide.RuleZeroGrace), patched(`{"spec":{"template":{"spec":{"terminationGracePeriodSeconds":0}}}}`)},
		{"D12_pending_holder", second, func(c *stage) error {
			err := c.create(statefulSet(c.namespace, "second"))
			if err != nil && !strings.Contains(err.Error(), "mc-0 is Pending") {
				return fmt.Errorf("the message does not say that the first is Pending: %w", err)
			}
			return err
		}},
		{"D14_node_name_set", pinned, barePod(with(withImage(instanceImage), func(s *corev1.PodSpec) { s.NodeName = "somewhere" }))},

		// Of other groups, for they are attempts too.
		{"F09_system_masters", second, func(c *stage) error { return c.create(statefulSet("default", "mc")) }},
		{"F10_impersonated_controller", pinned, func(c *stage) error {
			// Its name alone does not make a Pod the holder's.
			as := rest.CopyConfig(c.cp.AdminConfig(0))
			as.Impersonate = rest.ImpersonationConfig{UserName: decide.UserStatefulSetController, Groups: []string{"system:masters"}}
			return c.client(as).Create(c.ctx(), edited(pod(c.namespace, "mc-1", instanceImage), func(p *corev1.Pod) {
				p.OwnerReferences = c.pinnedOwner()
			}))
		}},
		{"F12_right_name_wrong_namespace", pinned, func(c *stage) error {
			return c.create(edited(pod("default", "mc-0", instanceImage), func(p *corev1.Pod) { p.OwnerReferences = c.pinnedOwner() }))
		}},
		{"forged_owner", pinned, func(c *stage) error {
			return c.create(edited(pod(c.namespace, "mc-1", instanceImage), func(p *corev1.Pod) { p.OwnerReferences = c.pinnedOwner() }))
		}},
		{"G02_restore_into_another_namespace", second, func(c *stage) error { return c.create(statefulSet("default", "mc")) }},
		{"G12_copy_by_a_backup_controller", second, func(c *stage) error {
			live := mc(c)
			if err := c.admin().Get(c.ctx(), client.ObjectKeyFromObject(live), live); err != nil {
				return err
			}
			clone := live.DeepCopy()
			clone.ObjectMeta = metav1.ObjectMeta{Namespace: c.namespace, Name: "mc-copy", Labels: live.Labels, Annotations: live.Annotations}
			clone.Status = appsv1.StatefulSetStatus{}
			return c.create(clone)
		}},
	}
	// B01: the images that are published, in every flavour.
	for _, repository := range []string{"ghcr.io/metacontroller/metacontroller", "metacontrollerio/metacontroller", "docker.io/metacontrollerio/metacontroller", "index.docker.io/metacontrollerio/metacontroller"} {
		for _, tag := range []string{"v4.17.2", "v4.17.2-distroless", "v4.17.2-debug"} {
			image := repository + ":" + tag
			tries = append(tries, try{"B01_" + strings.NewReplacer("/", "_", ":", "_").Replace(image), pinned, func(c *stage) error {
				return c.create(pod(c.namespace, "second", image))
			}})
		}
	}
	return tries
}

func renamed(object *autoscalingv2.HorizontalPodAutoscaler) *autoscalingv2.HorizontalPodAutoscaler {
	object.Name = "try"
	return object
}

// TestCases makes every attempt through one API server, and then through two in
// turn, with all layers in force.
func TestCases(t *testing.T) {
	s := prepare(t)
	c := &stage{suite: s, namespace: s.namespace("cases"), servers: 1}
	// What was there before the guard, and runs nothing.
	zero := ptr.To[int32](0)
	for _, object := range []client.Object{
		edited(replicaSet(c.namespace, "old-rs"), func(r *appsv1.ReplicaSet) { r.Spec.Replicas = zero }),
		edited(replicationController(c.namespace, "old-rc"), func(r *corev1.ReplicationController) { r.Spec.Replicas = zero }),
		edited(deployment(c.namespace, "old-deployment"), func(d *appsv1.Deployment) { d.Spec.Replicas = zero }),
		edited(job(c.namespace, "old-job"), func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) }),
		edited(deployment(c.namespace, "web"), func(d *appsv1.Deployment) {
			d.Spec.Replicas, d.Spec.Template.Spec.Containers[0].Image = zero, strangerImage
		}),
		pod(c.namespace, "web", strangerImage),
		edited(pod(c.namespace, "cloned", strangerImage), func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Namespace", Name: "default", UID: s.uidOf(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}), Controller: ptr.To(true)}}
		}),
		// C08: it was there before the guard could refuse it, and asks for two.
		autoscalerV2(c.namespace, "StatefulSet", "mc", 2, 5),
	} {
		if err := s.admin().Create(s.ctx(), object); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 {
		s.start(guardConfig{server: i % s.cp.APIServers()})
	}
	s.point()
	s.admission(allLayers)

	for servers := 1; servers <= len(s.admins); servers++ {
		c.servers = servers
		t.Run(fmt.Sprintf("free, API servers: %d", servers), func(t *testing.T) { c.run(t, freeTries()) })
	}
	// A25: of two documents the first takes the slot, the second is refused.
	resources := corev1.ResourceList{corev1.ResourceCPU: quantity("10m")}
	first := edited(statefulSet(c.namespace, "mc"), func(st *appsv1.StatefulSet) {
		st.Spec.Template.Spec.Containers[0].Resources.Requests = resources
	})
	t.Run("A25_two_documents", func(t *testing.T) {
		if err := c.applyAs("kubectl", first); err != nil {
			t.Fatal(err)
		}
		if got, line := outcome(c.applyAs("kubectl", statefulSet("default", "mc"))); got != string(decide.RuleSecondWorkload) {
			t.Fatalf("got %s: %s", got, line)
		}
	})
	s.phase(guardv1alpha1.HolderBound)
	s.awaitPod(c.namespace, "mc-0", "")
	s.eventually(func() error {
		if active := s.policy().Status.ActivePod; active == nil || !active.Pending {
			return fmt.Errorf("active Pod is %+v", active)
		}
		return nil
	})
	for servers := 1; servers <= len(s.admins); servers++ {
		c.servers = servers
		t.Run(fmt.Sprintf("held, API servers: %d", servers), func(t *testing.T) { c.run(t, heldTries()) })
	}
	t.Run("C08_autoscaler_that_was_there_shows_the_reason", func(t *testing.T) {
		s.eventually(func() error {
			live := autoscalerV2(c.namespace, "StatefulSet", "mc", 2, 5)
			if err := s.admin().Get(s.ctx(), client.ObjectKeyFromObject(live), live); err != nil {
				return err
			}
			for _, condition := range live.Status.Conditions {
				if condition.Type == autoscalingv2.AbleToScale && strings.Contains(condition.Message, string(decide.RuleScaleAboveOne)) {
					return nil
				}
			}
			return fmt.Errorf("conditions are %+v", live.Status.Conditions)
		})
	})
	t.Run("force_delete", func(t *testing.T) { c.forceDelete(t) })
}

// forceDelete gives the holder's Pod a node that nobody runs, and tries to force
// it out. Nothing here is a kubelet: whether a container still runs is what the
// guard cannot know either.
func (c *stage) forceDelete(t *testing.T) {
	ctx := context.Background()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "lost"}, Spec: corev1.NodeSpec{Unschedulable: true}}
	if err := c.admin().Create(ctx, node); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.IgnoreNotFound(c.admin().Delete(ctx, node)) })
	mc0 := func() *corev1.Pod { return pod(c.namespace, "mc-0", "") }
	c.eventually(func() error {
		return c.admin().SubResource("binding").Create(ctx, mc0(), &corev1.Binding{ObjectMeta: named(c.namespace, "mc-0"), Target: corev1.ObjectReference{Kind: "Node", Name: node.Name}})
	})
	force := func(options ...client.DeleteOption) error {
		return c.next().Delete(ctx, mc0(), append(options, client.GracePeriodSeconds(0))...)
	}
	want := func(t *testing.T, err error, want string) {
		t.Helper()
		if got, line := outcome(err); got != want {
			t.Fatalf("got %s (%s), want %s", got, line, want)
		}
	}
	const forced = string(decide.RuleForceDelete)
	t.Run("D02_force_delete_while_the_node_may_run_it", func(t *testing.T) {
		want(t, force(), forced)
		want(t, force(client.DryRunAll), forced)
	})
	t.Run("D02_deletion_of_the_whole_collection", func(t *testing.T) {
		want(t, c.next().DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(c.namespace), client.GracePeriodSeconds(0), client.MatchingFields{"metadata.name": "mc-0"}), forced)
	})
	t.Run("C35_forced_delete_of_a_stranger", func(t *testing.T) {
		want(t, c.next().Delete(ctx, pod(c.namespace, "web", ""), client.GracePeriodSeconds(0), client.DryRunAll), allowed)
	})
	t.Run("C35_delete_with_grace", func(t *testing.T) {
		want(t, c.next().Delete(ctx, mc0(), client.DryRunAll), allowed)
	})
	t.Run("D01_terminating_stays", func(t *testing.T) {
		want(t, c.next().Delete(ctx, mc0()), allowed)
		want(t, force(), forced)
		live := mc0()
		if err := c.admin().Get(ctx, client.ObjectKeyFromObject(live), live); err != nil || live.DeletionTimestamp == nil {
			t.Fatalf("the Pod is %v, %v; want it Terminating", live.DeletionTimestamp, err)
		}
		if second := c.second(); len(second) > 0 {
			t.Fatalf("a second instance runs: %v", second)
		}
	})
	t.Run("D02_the_node_itself_says_so", func(t *testing.T) {
		as := rest.CopyConfig(c.cp.AdminConfig(0))
		as.Impersonate = rest.ImpersonationConfig{UserName: "system:node:lost", Groups: []string{"system:masters"}}
		want(t, c.client(as).Delete(ctx, mc0(), client.GracePeriodSeconds(0), client.DryRunAll), allowed)
		as.Impersonate.UserName = "system:node:other"
		want(t, c.client(as).Delete(ctx, mc0(), client.GracePeriodSeconds(0), client.DryRunAll), forced)
	})
	t.Run("D03_out_of_service", func(t *testing.T) {
		before := c.uidOf(mc0())
		live := node.DeepCopy()
		if err := c.admin().Get(ctx, client.ObjectKeyFromObject(live), live); err != nil {
			t.Fatal(err)
		}
		if err := c.admin().Patch(ctx, live, client.RawPatch(types.StrategicMergePatchType,
			[]byte(`{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","value":"nodeshutdown","effect":"NoExecute"}]}}`))); err != nil {
			t.Fatal(err)
		}
		// Pod garbage collection may be quicker, by the same rule.
		if got, line := outcome(client.IgnoreNotFound(force(client.Preconditions{UID: &before}))); got != allowed && !strings.Contains(line, "UID in precondition") {
			t.Fatalf("got %s (%s)", got, line)
		}
		c.awaitPod(c.namespace, "mc-0", before)
		if second := c.second(); len(second) > 0 {
			t.Fatalf("a second instance runs: %v", second)
		}
	})
}
