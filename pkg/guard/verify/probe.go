package verify

import (
	"context"
	"fmt"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/finding"
)

const (
	// probeName begins the names of the objects of dry runs, which never exist.
	probeName = "guard-verify-"
	// probeRegistry is the registry of their images: nothing can be pulled from it.
	probeRegistry = "registry.invalid/"
)

// What the API server says of a refusal, around what the guard says.
const (
	deniedByWebhook = "admission webhook %q denied the request"
	failedCalling   = "failed calling webhook"
	deniedByPolicy  = "ValidatingAdmissionPolicy '"
)

// checkWebhook makes a dry run of a workload that the guard refuses whoever
// holds the slot: with two instances in one Pod.
func (r *run) checkWebhook(ctx context.Context) error {
	labels := map[string]string{"app.kubernetes.io/name": "guard-verify"}
	object := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{GenerateName: probeName, Namespace: r.Namespace},
		Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](0), ServiceName: "none", Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: r.podSpec(2)},
		},
	}
	return r.probe(ctx, CheckWebhook, "StatefulSet", object, decide.RuleTwoInOnePod, fmt.Sprintf(deniedByWebhook, r.Webhook))
}

// checkPin makes a dry run of a Pod that only the policy in the API server has to
// refuse.
func (r *run) checkPin(ctx context.Context) error {
	object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: probeName, Namespace: r.Namespace}, Spec: r.podSpec(1)}
	return r.probe(ctx, CheckPin, "Pod", object, decide.RulePodNotPinned, deniedByPolicy+r.PinPolicy+"'")
}

// probe creates an object in a dry run and reads from the answer who refused it.
// by is a part of the answer of whom it has to be refused by.
func (r *run) probe(ctx context.Context, check, kind string, object client.Object, rule decide.Rule, by string) error {
	r.Warnings()
	err := r.Client.Create(ctx, object, client.DryRunAll)
	warnings := strings.Join(r.Warnings(), "\n")
	about := &finding.Object{Kind: kind, Namespace: r.Namespace, Name: probeName + "*"}
	level, message := outcome(err, warnings, r.action(), rule, by)
	switch {
	case level == "" && err != nil && !answered(err):
		return fmt.Errorf("cannot make a dry run of a %s: %w", kind, err)
	case level == "":
		level, message = finding.Skipped, fmt.Sprintf("a dry run got no answer of the guard: %v", err)
	}
	r.add(check, level, about, "%s", message)
	return nil
}

// outcome is what an answer to a dry run means. The level is "" for an answer
// that says nothing about the guard.
func outcome(err error, warnings string, action decide.Action, rule decide.Rule, by string) (finding.Level, string) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	switch {
	case strings.Contains(text, by):
		return finding.Passed, "a dry run was refused: " + string(rule)
	case strings.Contains(text, failedCalling):
		return finding.Violation, "the API server cannot ask the guard: " + text + "\nNext: see whether the guard's Pods are ready, and whether the API server's network reaches them"
	case strings.Contains(text, deniedByPolicy):
		// The policy for workloads speaks while the guard does not vouch for itself.
		return finding.Violation, "a policy refused a dry run, and the guard was not asked: " + text + "\nNext: see the condition Enforcing of the policy"
	case strings.Contains(text, "denied the request"):
		return finding.Skipped, "something else refused the dry run: " + text
	case err != nil:
		if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) {
			return finding.Skipped, "the dry run was not let as far as the guard: " + text + "\nNext: choose another namespace with -n, or a user who may create there"
		}
		return "", ""
	case strings.Contains(warnings, string(rule)):
		return finding.Passed, "a dry run was warned of: " + string(rule)
	case action == decide.ActionAudit, action == decide.ActionWarn && by[0] != 'a':
		return finding.Skipped, "the policy does not deny, so a dry run cannot tell"
	default:
		return finding.Violation, "a dry run that had to be refused was let in\nNext: apply what \"guard render\" prints, and see \"guard scan\""
	}
}

func (r *run) action() decide.Action {
	if r.policy == nil {
		return decide.ActionDeny
	}
	return decide.PolicyOf(r.policy, r.Now).Action
}

// podSpec runs n instances, by what the policy recognises, and asks for nothing
// that another policy of a cluster might refuse.
func (r *run) podSpec(n int) corev1.PodSpec {
	match := guardv1alpha1.DefaultMatch()
	if r.policy != nil {
		match = r.policy.Spec.Match
	}
	spec := corev1.PodSpec{
		AutomountServiceAccountToken: ptr.To(false),
		SecurityContext: &corev1.PodSecurityContext{
			RunAsNonRoot: ptr.To(true), RunAsUser: ptr.To[int64](65532),
			SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
		},
	}
	small := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1m"), corev1.ResourceMemory: resource.MustParse("1Mi")}
	for i := range n {
		container := corev1.Container{
			Name: fmt.Sprintf("instance-%d", i), Image: probeRegistry + "guard-verify:none",
			Resources: corev1.ResourceRequirements{Requests: small, Limits: small},
			SecurityContext: &corev1.SecurityContext{
				AllowPrivilegeEscalation: ptr.To(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
			},
		}
		if len(match.Commands) > 0 {
			container.Command = []string{match.Commands[0]}
		} else if len(match.Images) > 0 {
			container.Image = imageOf(match.Images[0])
		}
		spec.Containers = append(spec.Containers, container)
	}
	return spec
}

// imageOf is a reference that a pattern matches.
func imageOf(pattern string) string {
	if rest, ok := strings.CutPrefix(pattern, "**/"); ok {
		pattern = probeRegistry + rest
	}
	return strings.ReplaceAll(pattern, "*", "x") + ":none"
}
