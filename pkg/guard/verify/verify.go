package verify

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/finding"
)

// The checks, by the id that a report has them under.
const (
	CheckPolicy      = "policy"
	CheckAdmission   = "admission"
	CheckCertificate = "certificate"
	CheckWebhook     = "webhook"
	CheckPin         = "pin"
)

// summaries say in one line what each check looks at.
var summaries = map[string]string{
	CheckPolicy:      "the policy exists, and the guard judges by it",
	CheckAdmission:   "the admission objects are installed as they are rendered",
	CheckCertificate: "the API server can trust the guard's certificate",
	CheckWebhook:     "the API server asks the guard, and is answered",
	CheckPin:         "the API server itself refuses a Pod that is not pinned",
}

// Difference is a field that differs.
type Difference struct{ Path, Want, Got string }

// Deps are what the checks need.
type Deps struct {
	// Client reads live.
	Client client.Client
	// Warnings returns what the API server has warned of since the last call.
	Warnings func() []string
	// Rendered are the admission objects as they should be. installed returns
	// what is there of one of them, nil if nothing is.
	Rendered func(policy *guardv1alpha1.SingletonPolicy, installed func(kind, name string) map[string]any) ([]*unstructured.Unstructured, error)
	// Drift compares an installed object with the rendered one.
	Drift func(installed, rendered map[string]any) []Difference
	// WebhookConfiguration, Webhook and PinPolicy are the names of the guard's
	// configuration, of the webhook that is asked about workloads, and of the
	// policy for Pods.
	WebhookConfiguration, Webhook, PinPolicy string
}

// Options say what to check.
type Options struct {
	// Policy is the name of the SingletonPolicy.
	Policy string
	// Namespace is where the dry runs are made.
	Namespace string
	// Secret holds the guard's certificate.
	Secret client.ObjectKey
	// Certificate, in PEM, is looked at in place of the Secret's, if it is not empty.
	Certificate []byte
	// MinValidity is how long certificates should be valid for.
	MinValidity time.Duration
	Now         time.Time
}

// run is one run of all checks.
type run struct {
	Deps
	Options
	report *finding.Report
	policy *guardv1alpha1.SingletonPolicy
}

// Run makes all checks. The error means that the cluster does not answer.
func Run(ctx context.Context, deps Deps, options Options) (*finding.Report, error) {
	r := &run{Deps: deps, Options: options, report: &finding.Report{Verb: "verify", Rules: summaries}}
	for _, check := range []func(context.Context) error{
		r.checkPolicy, r.checkAdmission, r.checkCertificate, r.checkWebhook, r.checkPin,
	} {
		if err := check(ctx); err != nil {
			return nil, err
		}
	}
	return r.report, nil
}

func (r *run) add(check string, level finding.Level, object *finding.Object, format string, args ...any) {
	r.report.Add(finding.Finding{Level: level, Rule: check, Object: object, Message: fmt.Sprintf(format, args...)})
}

// answered says whether an error is an answer of the API server; anything else
// ends the run.
func answered(err error) bool {
	return apierrors.ReasonForError(err) != metav1.StatusReasonUnknown || meta.IsNoMatchError(err)
}

// refusedToRead reports a Forbidden; ok is false for anything else.
func (r *run) refusedToRead(check string, err error) bool {
	if !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
		return false
	}
	r.add(check, finding.Skipped, nil, "cannot look: %v", err)
	return true
}

func (r *run) policyObject() *finding.Object {
	return &finding.Object{APIVersion: guardv1alpha1.GroupVersion.String(), Kind: guardv1alpha1.SingletonPolicyKind, Name: r.Policy}
}

// wanted is what each condition should be.
var wanted = []struct {
	kind   string
	status metav1.ConditionStatus
	// optional is set for a condition that not every guard has.
	optional bool
}{
	{guardv1alpha1.ConditionReady, metav1.ConditionTrue, false},
	{guardv1alpha1.ConditionEnforcing, metav1.ConditionTrue, false},
	{guardv1alpha1.ConditionCompliant, metav1.ConditionTrue, false},
	{guardv1alpha1.ConditionDrifted, metav1.ConditionFalse, true},
	{guardv1alpha1.ConditionFenceReady, metav1.ConditionTrue, true},
	{guardv1alpha1.ConditionExcepted, metav1.ConditionFalse, true},
}

// checkPolicy looks at what the guard says of itself.
func (r *run) checkPolicy(ctx context.Context) error {
	policy := &guardv1alpha1.SingletonPolicy{}
	switch err := r.Client.Get(ctx, client.ObjectKey{Name: r.Policy}, policy); {
	case meta.IsNoMatchError(err):
		r.add(CheckPolicy, finding.Violation, nil, "the API server does not serve %s\nNext: apply config/crd", guardv1alpha1.GroupVersion)
		return nil
	case apierrors.IsNotFound(err):
		r.add(CheckPolicy, finding.Violation, r.policyObject(), "it does not exist, so nobody can claim the slot\nNext: apply config/guard, or name another with --policy")
		return nil
	case r.refusedToRead(CheckPolicy, err):
		return nil
	case err != nil:
		return fmt.Errorf("cannot get SingletonPolicy %q: %w", r.Policy, err)
	}
	r.policy = policy
	before := r.report.Count(finding.Violation) + r.report.Count(finding.Warning)
	for _, want := range wanted {
		condition := meta.FindStatusCondition(policy.Status.Conditions, want.kind)
		switch {
		case condition == nil && want.optional:
		case want.kind == guardv1alpha1.ConditionFenceReady && policy.Spec.Fence.Action != guardv1alpha1.FenceDeny:
			// A fence that only looks on, or is off, is as its owner wants it.
		case condition == nil:
			r.add(CheckPolicy, finding.Violation, r.policyObject(), "condition %s is missing: no guard has looked at this policy\nNext: see the log of the guard", want.kind)
		case condition.ObservedGeneration != policy.Generation:
			r.add(CheckPolicy, finding.Violation, r.policyObject(), "condition %s is about generation %d, and the policy is at %d: no guard leads, or it has no permission\nNext: see the log of the guard", want.kind, condition.ObservedGeneration, policy.Generation)
		case condition.Status != want.status && want.kind == guardv1alpha1.ConditionExcepted:
			r.add(CheckPolicy, finding.Warning, r.policyObject(), "%s", condition.Message)
		case condition.Status != want.status:
			r.add(CheckPolicy, finding.Violation, r.policyObject(), "condition %s is %s (%s): %s", want.kind, condition.Status, condition.Reason, condition.Message)
		}
	}
	if r.report.Count(finding.Violation)+r.report.Count(finding.Warning) == before {
		r.add(CheckPolicy, finding.Passed, r.policyObject(), "the guard judges by generation %d, enforces it, and finds it complied with", policy.Generation)
	}
	return nil
}

// checkAdmission compares the installed admission objects with the rendered ones.
func (r *run) checkAdmission(ctx context.Context) error {
	read := map[string]map[string]any{}
	installed := func(kind, name string) map[string]any { return read[kind+"/"+name] }
	// Rendered twice: what is where depends on the webhook configuration.
	first, err := r.Rendered(r.policy, installed)
	if err != nil {
		return fmt.Errorf("cannot render the admission objects: %w", err)
	}
	unreadable := map[string]bool{}
	for _, object := range first {
		key := object.GetKind() + "/" + object.GetName()
		live := &unstructured.Unstructured{}
		live.SetGroupVersionKind(object.GroupVersionKind())
		switch err := r.Client.Get(ctx, client.ObjectKey{Name: object.GetName()}, live); {
		case err == nil:
			read[key] = live.Object
		case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		case r.refusedToRead(CheckAdmission, err):
			unreadable[key] = true
		default:
			return fmt.Errorf("cannot get %s %q: %w", object.GetKind(), object.GetName(), err)
		}
	}
	rendered, err := r.Rendered(r.policy, installed)
	if err != nil {
		return fmt.Errorf("cannot render the admission objects: %w", err)
	}
	same := 0
	for _, object := range rendered {
		key := object.GetKind() + "/" + object.GetName()
		about := &finding.Object{APIVersion: object.GetAPIVersion(), Kind: object.GetKind(), Name: object.GetName()}
		switch {
		case unreadable[key]:
			continue
		case read[key] == nil:
			r.add(CheckAdmission, finding.Violation, about, "it is not installed\nNext: apply what \"guard render\" prints")
			continue
		}
		differences := r.Drift(read[key], object.Object)
		for _, d := range differences {
			r.add(CheckAdmission, finding.Violation, about, "%s is %s, and should be %s\nNext: apply what \"guard render\" prints", d.Path, d.Got, d.Want)
		}
		if len(differences) == 0 {
			same++
		}
	}
	if same > 0 && same == len(rendered) {
		r.add(CheckAdmission, finding.Passed, nil, "%d objects are as rendered", same)
	}
	return nil
}
