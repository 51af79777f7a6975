package serving

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"sync"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	admissionapply "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/metacontroller-solo/solo/pkg/guard/certificate"
	"github.com/metacontroller-solo/solo/pkg/logging"
)

const (
	// bundleManager owns the caBundles, and no other field.
	bundleManager = "metacontroller-guard-ca-bundle"
	// bundleResync is how often the caBundle is looked at without an event.
	bundleResync = 10 * time.Second
	// overlaps is for how many settle times the old authority stays in the caBundle
	// beside the new one: each guard changes over after one of them.
	overlaps = 10
)

// Bundler fills the caBundle of every webhook of one configuration with the
// authority that is kept in a Secret. It runs in the guard that leads; two of them
// would write the same.
type Bundler struct {
	// Client must read from the API server, not from a cache.
	Client client.Client
	// Secret is where the authority is kept.
	Secret client.ObjectKey
	// Settle is how long a change of the caBundle takes to reach every API server.
	Settle time.Duration
	// Clock must be monotonic, as the real one is.
	Clock clock.PassiveClock

	mutex sync.Mutex // guards the fields below
	// first is when this process first saw the authority in every caBundle.
	authority *x509.Certificate
	first     time.Time
}

// Reconcile looks at one webhook configuration.
func (b *Bundler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	again := reconcile.Result{RequeueAfter: bundleResync}
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	switch err := b.Client.Get(ctx, request.NamespacedName, configuration); {
	case apierrors.IsNotFound(err):
		// Its creation is an event.
		return reconcile.Result{}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("cannot get ValidatingWebhookConfiguration %q: %w", request.Name, err)
	}
	authority, err := readAuthority(ctx, b.Client, b.Secret)
	if apierrors.IsNotFound(err) {
		// It is about to be made, and somebody tells when it is.
		return again, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	alone, wait := b.over(configuration, authority)
	if wait > 0 {
		again.RequeueAfter = min(again.RequeueAfter, wait)
	}
	applied := admissionapply.ValidatingWebhookConfiguration(configuration.Name).WithResourceVersion(configuration.ResourceVersion)
	changed := false
	for i := range configuration.Webhooks {
		webhook := &configuration.Webhooks[i]
		bundle := certificate.Bundle(webhook.ClientConfig.CABundle, authority, alone, b.Clock.Now())
		changed = changed || !bytes.Equal(bundle, webhook.ClientConfig.CABundle)
		applied.WithWebhooks(admissionapply.ValidatingWebhook().WithName(webhook.Name).
			WithClientConfig(admissionapply.WebhookClientConfig().WithCABundle(bundle...)))
	}
	if !changed {
		return again, nil
	}
	switch err := b.Client.Apply(ctx, applied, client.FieldOwner(bundleManager), client.ForceOwnership); {
	case apierrors.IsConflict(err):
		return reconcile.Result{RequeueAfter: time.Millisecond}, nil
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("cannot set the caBundle of ValidatingWebhookConfiguration %q: %w", configuration.Name, err)
	}
	log.FromContext(ctx).Info("Set the caBundle", logging.KeyName, configuration.Name, logging.KeySerial, authority.SerialNumber.String())
	return again, nil
}

// over says whether the overlap is over, in which no other authority may go, and
// else for how long it still lasts; zero if it has not begun.
func (b *Bundler) over(configuration *admissionregistrationv1.ValidatingWebhookConfiguration, authority *x509.Certificate) (bool, time.Duration) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	for i := range configuration.Webhooks {
		if has, _ := certificate.Has(configuration.Webhooks[i].ClientConfig.CABundle, authority); !has {
			b.authority = nil
			return false, 0
		}
	}
	now := b.Clock.Now()
	if b.authority == nil || !b.authority.Equal(authority) {
		b.authority, b.first = authority, now
	}
	wait := overlaps*b.Settle - now.Sub(b.first)
	return wait <= 0, wait
}
