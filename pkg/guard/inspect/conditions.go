package inspect

import (
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
)

// Reasons of the conditions that a scan sets.
const (
	ReasonDeny          = "Deny"
	ReasonNotDenying    = "NotDenying"
	ReasonNotAsked      = "NotAsked"
	ReasonInvalidMatch  = "InvalidMatch"
	ReasonAtMostOne     = "AtMostOne"
	ReasonViolations    = "Violations"
	ReasonNoClearHolder = "NoClearHolder"
	ReasonInStep        = "InStep"
	ReasonDiffers       = "Differs"
	ReasonMissing       = "Missing"
	ReasonUnreadable    = "Unreadable"
)

// Conditions are those that a scan sets, without times: Enforcing, Compliant and
// Drifted. asked is the object and the path of the webhook that the API server
// must ask about every workload; while it is as it should be, the policies in the
// API server leave workloads to the guard.
func Conditions(f Facts, findings []Finding, asked Asked) []metav1.Condition {
	if f.Policy == nil {
		return nil
	}
	conditions := []metav1.Condition{enforcing(f, asked), compliant(findings), drifted(findings)}
	for i := range conditions {
		conditions[i].ObservedGeneration = f.Policy.Generation
	}
	return conditions
}

// Asked names the webhook that is asked about every workload.
type Asked struct {
	// Kind and Name are of its configuration.
	Kind, Name string
	// Webhook is its name.
	Webhook string
}

func condition(kind string, ok bool, reason, message string) metav1.Condition {
	status := metav1.ConditionFalse
	if ok {
		status = metav1.ConditionTrue
	}
	return metav1.Condition{Type: kind, Status: status, Reason: reason, Message: message}
}

func enforcing(f Facts, asked Asked) metav1.Condition {
	const kind = guardv1alpha1.ConditionEnforcing
	if f.Invalid != "" {
		return condition(kind, false, ReasonInvalidMatch, "the policy cannot be judged by")
	}
	if decide.PolicyOf(f.Policy, f.Now).Action != decide.ActionDeny {
		return condition(kind, false, ReasonNotDenying, "spec.validationActions does not hold Deny")
	}
	if gap := asked.gap(f.Admission); gap != "" {
		return condition(kind, false, ReasonNotAsked, gap)
	}
	return condition(kind, true, ReasonDeny, "a second instance is refused")
}

// gap says why the API server does not ask the guard about every workload.
func (a Asked) gap(admission []Compared) string {
	i := slices.IndexFunc(admission, func(c Compared) bool { return c.Object.Kind == a.Kind && c.Object.Name == a.Name })
	if i < 0 || admission[i].Missing {
		return fmt.Sprintf("%s %q is not installed", a.Kind, a.Name)
	}
	prefix := "webhooks[" + a.Webhook + "]"
	for _, d := range admission[i].Differences {
		if !strings.HasPrefix(d.Path, prefix) || strings.HasSuffix(d.Path, "timeoutSeconds") {
			continue
		}
		what := fmt.Sprintf("%s is %s, not %s", strings.TrimPrefix(strings.TrimPrefix(d.Path, prefix), "."), d.Got, d.Want)
		switch {
		case d.Path == prefix:
			what = "is missing"
		case strings.HasSuffix(d.Path, fieldCABundle):
			what = "has no caBundle, so the API server cannot reach the guard"
		}
		return clip(fmt.Sprintf("webhook %q of %s %q: %s; apply what \"guard render\" prints", a.Webhook, a.Kind, a.Name, what), maxText)
	}
	return ""
}

func compliant(findings []Finding) metav1.Condition {
	const kind = guardv1alpha1.ConditionCompliant
	var found []string
	for _, f := range findings {
		switch {
		case f.ID == NoClearHolder:
			return condition(kind, false, ReasonNoClearHolder, f.Message+"; "+f.Fix)
		case f.ID.Violation():
			found = append(found, f.Object.String())
		}
	}
	if len(found) > 0 {
		return condition(kind, false, ReasonViolations, clip(fmt.Sprintf("%d thing(s) should not be there: %s; see status.findings", len(found), names(found)), maxText))
	}
	for _, f := range findings {
		if f.ID == Unreadable {
			return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown, Reason: ReasonUnreadable, Message: f.Message}
		}
	}
	return condition(kind, true, ReasonAtMostOne, "at most one instance is there")
}

func drifted(findings []Finding) metav1.Condition {
	const kind = guardv1alpha1.ConditionDrifted
	var found []string
	reason := ReasonDiffers
	for _, f := range findings {
		if !f.ID.Drift() {
			continue
		}
		if f.ID == AdmissionMissing {
			reason = ReasonMissing
		}
		found = append(found, f.Message)
	}
	if len(found) == 0 {
		return condition(kind, false, ReasonInStep, "the installed admission objects are as rendered")
	}
	return condition(kind, true, reason, clip(fmt.Sprintf("%d difference(s): %s", len(found), strings.Join(found[:min(len(found), 3)], "; ")), maxText))
}
