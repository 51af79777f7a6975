package webhook

import (
	"net/http"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacontroller-solo/solo/pkg/guard/decide"
)

// AnnotationDecisionID is the audit annotation that joins a decision to the API
// server's own audit log. The API server puts the webhook's name in front.
const AnnotationDecisionID = "decision-id"

func responseOf(uid types.UID, outcome Outcome) *admissionv1.AdmissionResponse {
	decision := outcome.Decision
	response := &admissionv1.AdmissionResponse{UID: uid, Allowed: decision.Verdict.Allowed()}
	if decision.Matching {
		response.AuditAnnotations = map[string]string{AnnotationDecisionID: outcome.ID}
	}
	switch decision.Verdict {
	case decide.VerdictAllow, decide.VerdictAudit:
		if decision.Notice != "" {
			response.Warnings = []string{decision.Notice}
		}
	case decide.VerdictWarn:
		response.Warnings = []string{decide.FirstLine(decision.Message)}
	case decide.VerdictExists:
		response.Result = &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusConflict,
			Reason: metav1.StatusReasonAlreadyExists, Message: decision.Message,
		}
	default:
		response.Result = &metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusForbidden,
			Reason: metav1.StatusReasonForbidden, Message: decision.Message,
		}
	}
	return response
}
