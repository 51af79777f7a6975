package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/cert-manager/cert-manager/pkg/server/tls/authority"
	"github.com/spf13/pflag"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/metacontroller-solo/solo/pkg/guard/certificate"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	certs "github.com/metacontroller-solo/solo/pkg/guard/serving"
)

// Sources of the serving certificate, the values of --tls-source.
const (
	tlsFiles       = "files"
	tlsSelfManaged = "self-managed"
)

const (
	// bundlerName is of the loop that keeps the caBundle.
	bundlerName = "ca-bundle"
	// reporterName is who the events about the certificate are from.
	reporterName = "metacontroller-guard"
	// authorityName is the common name of the self-managed authority.
	authorityName = "metacontroller-guard-ca"
)

// tlsOptions say what the webhook serves TLS with, and to whom.
type tlsOptions struct {
	source          string
	certDir         string
	secretNamespace string
	secretName      string
	names           []string
	caDuration      time.Duration
	leafDuration    time.Duration
	settleDelay     time.Duration
	warnBefore      time.Duration
	clientCAFile    string
	clientNames     []string
}

func (o *tlsOptions) bind(flags *pflag.FlagSet) {
	flags.StringVar(&o.source, "tls-source", tlsFiles, "Where the webhook's certificate comes from: \""+tlsFiles+"\" in --tls-cert-dir, which somebody else renews, such as cert-manager; or \""+tlsSelfManaged+"\", which keeps an authority in a Secret and the caBundle of the webhook configuration, and needs the role of config/self-managed.")
	flags.StringVar(&o.certDir, "tls-cert-dir", "/etc/metacontroller-guard/tls", "Folder with "+certs.CertFile+" and "+certs.KeyFile+" of the webhook. They are read again when they change.")
	flags.StringVar(&o.secretNamespace, "tls-secret-namespace", pin.DefaultNamespace, "Namespace of the self-managed authority's Secret.")
	flags.StringVar(&o.secretName, "tls-secret-name", authorityName, "Name of the self-managed authority's Secret.")
	flags.StringSliceVar(&o.names, "tls-names", []string{pin.DefaultService + "." + pin.DefaultNamespace + ".svc"}, "Names and IP addresses by which API servers call the webhook, for the self-managed certificate.")
	flags.DurationVar(&o.caDuration, "tls-ca-duration", 365*24*time.Hour, "Life of the self-managed authority. It is replaced after two thirds of it.")
	flags.DurationVar(&o.leafDuration, "tls-duration", 7*24*time.Hour, "Life of the self-managed certificate. It is renewed after two thirds of it.")
	flags.DurationVar(&o.settleDelay, "tls-settle-delay", 30*time.Second, "How long a change of the webhook configuration takes to reach every API server. A self-managed certificate of a new authority is served that long after the caBundle got the new one; the old one leaves the caBundle after ten times as long.")
	flags.DurationVar(&o.warnBefore, "tls-warn-before", 21*24*time.Hour, "How long before its end a certificate that was not renewed is reported, or a quarter of its life if that is shorter.")
	flags.StringVar(&o.clientCAFile, "client-ca-file", "", "File with the PEM bundle of the authority that the callers' certificates must be of. Left out: anybody who reaches the port may ask. It is read again when it changes.")
	flags.StringSliceVar(&o.clientNames, "client-allowed-names", nil, "Common names that a caller's certificate may have. Left out: any. It needs --client-ca-file.")
}

// validate checks the flags against each other.
func (o *tlsOptions) validate() error {
	switch {
	case o.source != tlsFiles && o.source != tlsSelfManaged:
		return fmt.Errorf("--tls-source %q is none, choose %s or %s", o.source, tlsFiles, tlsSelfManaged)
	case o.source == tlsFiles && o.certDir == "":
		return errors.New("--tls-cert-dir is empty, name a folder")
	case o.source == tlsSelfManaged && (o.secretNamespace == "" || o.secretName == "" || len(o.names) == 0):
		return errors.New("--tls-source=self-managed needs --tls-secret-namespace, --tls-secret-name and --tls-names")
	case o.leafDuration <= 0 || o.caDuration < 3*o.leafDuration:
		// An authority is replaced at two thirds: what it signed before must end
		// with it at the latest.
		return fmt.Errorf("--tls-duration %s must be above 0, and --tls-ca-duration %s at least three times as long", o.leafDuration, o.caDuration)
	case o.settleDelay <= 0 || o.settleDelay > o.leafDuration/6:
		return fmt.Errorf("--tls-settle-delay %s must be above 0, and at most a sixth of --tls-duration %s", o.settleDelay, o.leafDuration)
	case o.warnBefore < 0:
		return errors.New("--tls-warn-before must not be negative")
	case len(o.clientNames) > 0 && o.clientCAFile == "":
		return errors.New("--client-allowed-names needs --client-ca-file")
	}
	return nil
}

// preflight finds files that cannot be used.
func (o *tlsOptions) preflight() error {
	if o.source == tlsFiles {
		cert, key := filepath.Join(o.certDir, certs.CertFile), filepath.Join(o.certDir, certs.KeyFile)
		if _, err := tls.LoadX509KeyPair(cert, key); err != nil {
			return fmt.Errorf("cannot load the webhook's certificate from %q: %w; put %s and %s there, or set --tls-cert-dir", o.certDir, err, certs.CertFile, certs.KeyFile)
		}
	}
	if o.clientCAFile != "" {
		if _, err := certs.NewClients(o.clientCAFile, o.clientNames); err != nil {
			return fmt.Errorf("%w; give another file with --client-ca-file", err)
		}
	}
	return nil
}

// serving is what the webhook serves TLS with, wired together.
type serving struct {
	options *tlsOptions
	policy  string
	live    client.Client
	source  certs.Source
	// clients is nil where anybody may call.
	clients *certs.Clients
	// cached reads the webhook configuration from the manager's cache; it is set by
	// addTo, before anything runs.
	cached client.Reader
	// changed tells the reporter that something is to be judged anew.
	changed chan struct{}
	// rotated tells the loop that keeps the caBundle of a new authority.
	rotated chan event.GenericEvent
	// configured says that the server is about to listen.
	configured atomic.Bool
}

func newServing(config *rest.Config, options *serveOptions, live client.Client) (*serving, error) {
	s := &serving{options: &options.tls, policy: options.policy, live: live, changed: make(chan struct{}, 1), rotated: make(chan event.GenericEvent, 1)}
	var err error
	if path := s.options.clientCAFile; path != "" {
		if s.clients, err = certs.NewClients(path, s.options.clientNames); err != nil {
			return nil, err
		}
	}
	if s.options.source == tlsFiles {
		s.source, err = certs.NewFiles(s.options.certDir, s.notify)
		return s, err
	}
	s.source = &certs.SelfManaged{
		Authority: &authority.DynamicAuthority{
			SecretNamespace: s.options.secretNamespace,
			SecretName:      s.options.secretName,
			RESTConfig:      config,
			CommonName:      authorityName,
			CADuration:      s.options.caDuration,
			LeafDuration:    s.options.leafDuration,
		},
		Secret:   s.secret(),
		Reader:   live,
		Names:    s.options.names,
		Webhooks: s.webhooks,
		Settle:   s.options.settleDelay,
		Clock:    clock.RealClock{},
		Rotated:  s.rotated,
		Changed:  s.notify,
	}
	return s, nil
}

// notify makes the reporter look.
func (s *serving) notify() {
	select {
	case s.changed <- struct{}{}:
	default: // a look that waits there is enough
	}
}

func (s *serving) secret() client.ObjectKey {
	return client.ObjectKey{Namespace: s.options.secretNamespace, Name: s.options.secretName}
}

// configure makes the webhook's server serve the certificate. It is called just
// before the server listens.
func (s *serving) configure(config *tls.Config) {
	config.MinVersion = tls.VersionTLS13
	config.GetCertificate = s.source.GetCertificate
	if s.clients != nil {
		s.clients.Configure(config)
	}
	s.configured.Store(true)
}

// started is the check that the server answers. The usual one connects without a
// client certificate: where that is refused, it would only fill the log.
func (s *serving) started(usual healthz.Checker) healthz.Checker {
	if s.clients == nil {
		return usual
	}
	return func(*http.Request) error {
		if !s.configured.Load() {
			return errors.New("the webhook server has not been started yet")
		}
		return nil
	}
}

// check is whether the API servers can trust what is served.
func (s *serving) check(*http.Request) error { return s.source.Ready() }

// webhooks reads those that are installed, from the cache.
func (s *serving) webhooks(ctx context.Context) ([]certificate.Webhook, error) {
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	err := s.cached.Get(ctx, client.ObjectKey{Name: pin.WebhookConfigurationName}, configuration)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot get ValidatingWebhookConfiguration %q: %w", pin.WebhookConfigurationName, err)
	}
	return certificate.WebhooksOf(configuration), nil
}

// addTo runs the parts with a manager.
func (s *serving) addTo(ctx context.Context, mgr ctrl.Manager) error {
	s.cached = mgr.GetClient()
	publisher := &certs.Publisher{Client: s.live, Policy: s.policy, Recorder: mgr.GetEventRecorder(reporterName)}
	reporter := &certs.Reporter{
		Source:     s.source,
		Webhooks:   s.webhooks,
		WarnBefore: s.options.warnBefore,
		Clock:      clock.RealClock{},
		Leading:    mgr.Elected(),
		Publish:    publisher.Publish,
		Changed:    s.changed,
	}
	if err := reporter.Register(ctrlmetrics.Registry); err != nil {
		return fmt.Errorf("cannot register the certificate's metrics: %w", err)
	}
	runnables := []manager.Runnable{s.source, reporter}
	if s.clients != nil {
		runnables = append(runnables, s.clients)
	}
	for _, runnable := range runnables {
		if err := mgr.Add(runnable); err != nil {
			return fmt.Errorf("cannot add what keeps the certificate: %w", err)
		}
	}
	informer, err := mgr.GetCache().GetInformer(ctx, &admissionregistrationv1.ValidatingWebhookConfiguration{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("cannot watch the webhook configuration: %w", err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { s.notify() },
		UpdateFunc: func(_, _ any) { s.notify() },
		DeleteFunc: func(any) { s.notify() },
	})
	if err != nil {
		return fmt.Errorf("cannot watch the webhook configuration: %w", err)
	}
	if s.options.source != tlsSelfManaged {
		return nil
	}
	return s.addBundler(mgr)
}

// addBundler runs the loop that keeps the caBundle, in the leader only.
func (s *serving) addBundler(mgr ctrl.Manager) error {
	bundler := &certs.Bundler{Client: s.live, Secret: s.secret(), Settle: s.options.settleDelay, Clock: clock.RealClock{}}
	key := reconcile.Request{NamespacedName: client.ObjectKey{Name: pin.WebhookConfigurationName}}
	rotated := source.Channel(s.rotated, handler.EnqueueRequestsFromMapFunc(
		func(context.Context, client.Object) []reconcile.Request { return []reconcile.Request{key} }))
	err := ctrl.NewControllerManagedBy(mgr).
		Named(bundlerName).
		// The cache holds the one configuration alone.
		For(&admissionregistrationv1.ValidatingWebhookConfiguration{}).
		WatchesRawSource(rotated).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(bundler)
	if err != nil {
		return fmt.Errorf("cannot add the loop that keeps the caBundle: %w", err)
	}
	return nil
}
