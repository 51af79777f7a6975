package serving

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/certificate"
)

const (
	// eventCertificate begins the reasons of events about the certificate; the
	// verdict ends them.
	eventCertificate = "Certificate"
	// actionJudge is what the guard did when it found out.
	actionJudge = "JudgeCertificate"
)

// Publisher writes a judgement as a condition of the policy, and tells of each
// change by an event.
type Publisher struct {
	// Client must read from the API server, not from a cache.
	Client client.Client
	// Policy is the policy's name.
	Policy   string
	Recorder events.EventRecorder
}

// Publish does so unless it is said there already, so that a guard that begins to
// lead does not repeat it.
func (p *Publisher) Publish(ctx context.Context, judgement certificate.Judgement) error {
	policy := &guardv1alpha1.SingletonPolicy{}
	condition := metav1.Condition{
		Type:    guardv1alpha1.ConditionCertificateCurrent,
		Status:  metav1.ConditionFalse,
		Reason:  judgement.Verdict.String(),
		Message: judgement.Message,
	}
	if judgement.Verdict == certificate.Current {
		condition.Status = metav1.ConditionTrue
	}
	var before *metav1.Condition
	changed := false
	// The claim loop and the webhook write the same status.
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		changed, before = false, nil
		if err := p.Client.Get(ctx, client.ObjectKey{Name: p.Policy}, policy); err != nil {
			return err
		}
		if found := meta.FindStatusCondition(policy.Status.Conditions, condition.Type); found != nil {
			before = found.DeepCopy()
		}
		condition.ObservedGeneration = policy.Generation
		if changed = meta.SetStatusCondition(&policy.Status.Conditions, condition); !changed {
			return nil
		}
		return p.Client.Status().Update(ctx, policy)
	})
	switch {
	case apierrors.IsNotFound(err):
		// There is nothing to write it on; the metrics say it.
		return nil
	case err != nil:
		return fmt.Errorf("cannot update the status of SingletonPolicy %q: %w", p.Policy, err)
	}
	if !changed || before != nil && before.Reason == condition.Reason && before.Message == condition.Message {
		return nil
	}
	kind := corev1.EventTypeWarning
	if judgement.Verdict == certificate.Current {
		if before == nil || before.Reason == condition.Reason {
			// Good from the start, or renewed as it should be.
			return nil
		}
		kind = corev1.EventTypeNormal
	}
	p.Recorder.Eventf(policy, nil, kind, eventCertificate+condition.Reason, actionJudge, "%s", judgement.Message)
	return nil
}
