package app

import (
	"context"
	"fmt"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
)

// admissionGap compares the installed webhook configuration with the one that
// would be rendered for a policy, and says what keeps the API server from asking
// the guard about every workload; empty if nothing does. live must read from the
// API server, not from a cache.
func admissionGap(live client.Reader) func(context.Context, *guardv1alpha1.SingletonPolicy) (string, error) {
	return func(ctx context.Context, policy *guardv1alpha1.SingletonPolicy) (string, error) {
		installed := &admissionregistrationv1.ValidatingWebhookConfiguration{}
		switch err := live.Get(ctx, client.ObjectKey{Name: pin.WebhookConfigurationName}, installed); {
		case apierrors.IsNotFound(err):
			return fmt.Sprintf("ValidatingWebhookConfiguration %q is not installed", pin.WebhookConfigurationName), nil
		case err != nil:
			return "", fmt.Errorf("cannot get ValidatingWebhookConfiguration %q: %w", pin.WebhookConfigurationName, err)
		}
		return webhookGap(installed, policy), nil
	}
}

// webhookGap looks at the one webhook that must not be weaker than rendered:
// the one that is asked about workloads and fails closed.
func webhookGap(installed *admissionregistrationv1.ValidatingWebhookConfiguration, policy *guardv1alpha1.SingletonPolicy) string {
	var want *admissionregistrationv1.ValidatingWebhook
	for _, object := range pin.Objects(pin.Options{SingletonPolicy: policy.Name, Match: policy.Spec.Match}) {
		if configuration, ok := object.(*admissionregistrationv1.ValidatingWebhookConfiguration); ok {
			want = find(configuration, pin.WorkloadsWebhook)
		}
	}
	have := find(installed, pin.WorkloadsWebhook)
	gap := func(what string) string {
		return fmt.Sprintf("webhook %q of ValidatingWebhookConfiguration %q %s: apply what \"guard render\" prints", pin.WorkloadsWebhook, installed.Name, what)
	}
	switch {
	case have == nil:
		return gap("is missing")
	case len(have.ClientConfig.CABundle) == 0:
		return gap("has no caBundle, so the API server cannot reach the guard")
	case have.FailurePolicy == nil || *have.FailurePolicy != admissionregistrationv1.Fail:
		return gap("does not fail closed")
	case !equality.Semantic.DeepEqual(have.Rules, want.Rules):
		return gap("has other rules than the policy needs")
	case !equality.Semantic.DeepEqual(have.MatchConditions, want.MatchConditions):
		return gap("has other match conditions than the policy's spec.match needs")
	case !equality.Semantic.DeepEqual(have.NamespaceSelector, want.NamespaceSelector), !equality.Semantic.DeepEqual(have.ObjectSelector, want.ObjectSelector):
		return gap("leaves out namespaces or objects")
	}
	return ""
}

func find(configuration *admissionregistrationv1.ValidatingWebhookConfiguration, name string) *admissionregistrationv1.ValidatingWebhook {
	for i := range configuration.Webhooks {
		if configuration.Webhooks[i].Name == name {
			return &configuration.Webhooks[i]
		}
	}
	return nil
}
