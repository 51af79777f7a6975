package app

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/audit"
	"github.com/metacontroller-solo/solo/pkg/guard/claim"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	"github.com/metacontroller-solo/solo/pkg/guard/webhook"
	"github.com/metacontroller-solo/solo/pkg/logging"
	"github.com/metacontroller-solo/solo/pkg/version"
)

const (
	// controllerName is of the loop that keeps the slot.
	controllerName = "claim"
	// lastLines is how long the audit log has to write what is queued.
	lastLines = 5 * time.Second
)

func serveCommand(stdout io.Writer) *cobra.Command {
	options := &serveOptions{}
	command := &cobra.Command{
		Use:   "serve",
		Short: "Answer admission requests and keep the slot",
		Args:  noArguments,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := options.validate(); err != nil {
				return usageError{err}
			}
			return serve(command.Context(), options, stdout)
		},
	}
	options.bind(command.Flags())
	return command
}

// serve runs until ctx ends, and then as long as requests may still come.
func serve(ctx context.Context, options *serveOptions, stdout io.Writer) (err error) {
	if err := options.complete(); err != nil {
		return err
	}
	if err := options.preflight(); err != nil {
		return err
	}
	config, err := restConfig(options.kubeconfig)
	if err != nil {
		return err
	}
	scheme, err := newScheme()
	if err != nil {
		return err
	}
	live, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("cannot build a client for %s: %w", config.Host, err)
	}
	slot := &claim.Slot{Client: live, Clock: clock.RealClock{}, Policy: options.policy}
	if err := readPolicyOnce(ctx, slot, config.Host); err != nil {
		return err
	}
	// Before anything logs: what cannot be opened is said in one line.
	sink, err := audit.Open(options.audit.log, stdout, options.audit.rotation)
	if err != nil {
		return err
	}
	logger := logging.SetUp(options.zap)
	serving, err := newServing(config, options, live)
	if err != nil {
		return err
	}
	manager, err := newManager(config, options, serving, ctrl.Options{Scheme: scheme, Logger: logger})
	if err != nil {
		return err
	}
	log, err := startAudit(config, options, live, manager, sink)
	if err != nil {
		return err
	}
	defer func() {
		last, cancel := context.WithTimeout(context.Background(), lastLines)
		defer cancel()
		err = errors.Join(err, log.Close(last))
	}()

	ready := &readiness{}
	if err := addWebhook(ctx, manager, options, slot, log); err != nil {
		return err
	}
	if err := addReconciler(ctx, manager, options, live); err != nil {
		return err
	}
	if err := serving.addTo(ctx, manager); err != nil {
		return err
	}
	if err := addChecks(manager, ready, serving); err != nil {
		return err
	}
	logger.Info("Starting the guard", logging.KeyVersion, version.String(), logging.KeyPolicy, options.policy)
	return run(ctx, manager, ready, options.shutdownDelay)
}

// run starts the manager. When ctx ends, it first fails /readyz, so that no
// new requests are sent here, and stops only after the delay.
func run(ctx context.Context, manager ctrl.Manager, ready *readiness, delay time.Duration) error {
	work, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		select {
		case <-ctx.Done():
		case <-ended:
			return
		}
		ready.drain()
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ended:
		}
		stop()
	}()
	if err := manager.Start(work); err != nil {
		return fmt.Errorf("cannot go on: %w", err)
	}
	return nil
}

func newManager(config *rest.Config, options *serveOptions, serving *serving, base ctrl.Options) (ctrl.Manager, error) {
	// It holds the policies and the guard's own webhook configuration, nothing
	// else: Pods and workloads are the scan's, which keeps only those that are
	// instances.
	base.Cache = cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&admissionregistrationv1.ValidatingWebhookConfiguration{}: {
				Field: fields.OneTermEqualSelector(metav1.ObjectNameField, pin.WebhookConfigurationName),
			},
		},
	}
	base.Metrics = metricsserver.Options{BindAddress: options.metricsBindAddress}
	base.HealthProbeBindAddress = options.probeBindAddress
	base.WebhookServer = ctrlwebhook.NewServer(ctrlwebhook.Options{
		Host:    options.bindAddress,
		Port:    options.webhookPort,
		TLSOpts: []func(*tls.Config){serving.configure},
	})
	l := options.leaderElection
	base.LeaderElection = l.enabled
	base.LeaderElectionNamespace = l.namespace
	base.LeaderElectionID = l.name
	base.LeaseDuration, base.RenewDeadline, base.RetryPeriod = &l.leaseDuration, &l.renewDeadline, &l.retryPeriod
	// The process ends when the manager does, so the next leader need not wait.
	base.LeaderElectionReleaseOnCancel = true
	manager, err := ctrl.NewManager(config, base)
	if err != nil {
		return nil, fmt.Errorf("cannot build the manager: %w", err)
	}
	return manager, nil
}

func addWebhook(ctx context.Context, manager ctrl.Manager, options *serveOptions, slot *claim.Slot, log *audit.Log) error {
	config := manager.GetConfig()
	dynamicClient, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("cannot build a client for %s: %w", config.Host, err)
	}
	judge := webhook.New(webhook.Deps{
		Policy:  options.policy,
		Slot:    slot,
		Targets: targets{client: dynamicClient},
		Nodes:   nodes{client: slot.Client},
		Record:  func(outcome webhook.Outcome) string { return log.Record(audit.Entry(outcome)) },
		Clock:   clock.RealClock{},
		MaxAge:  options.policyMaxAge,
	})
	manager.GetWebhookServer().Register(webhook.Path, judge)
	return onPolicyChange(ctx, manager, judge.Changed)
}

// onPolicyChange calls changed, which must not block, at each event of a policy.
func onPolicyChange(ctx context.Context, manager ctrl.Manager, changed func()) error {
	informer, err := manager.GetCache().GetInformer(ctx, &guardv1alpha1.SingletonPolicy{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("cannot watch SingletonPolicies: %w", err)
	}
	_, err = informer.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    func(any) { changed() },
		UpdateFunc: func(_, _ any) { changed() },
		DeleteFunc: func(any) { changed() },
	})
	if err != nil {
		return fmt.Errorf("cannot watch SingletonPolicies: %w", err)
	}
	return nil
}

// addReconciler runs the loop that keeps the slot, in the leader only, and the
// scan that tells it when an instance or its workload has changed.
func addReconciler(ctx context.Context, manager ctrl.Manager, options *serveOptions, live client.WithWatch) error {
	reconciler := &claim.Reconciler{
		Client: live,
		Clock:  clock.RealClock{},
		Limits: claim.Limits{Reservation: options.requestTimeout + reservationMargin, Release: options.releaseDelay},
		Fence:  fenceFacts(live),
		Policy: options.policy,
	}
	changed := &trigger{request: reconcile.Request{NamespacedName: client.ObjectKey{Name: options.policy}}}
	err := ctrl.NewControllerManagedBy(manager).
		Named(controllerName).
		For(&guardv1alpha1.SingletonPolicy{}).
		WatchesRawSource(source.Func(changed.start)).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}).
		Complete(reconciler)
	if err != nil {
		return fmt.Errorf("cannot add the claim loop: %w", err)
	}
	return addScanner(ctx, manager, options, live, changed.fire)
}

// readiness is whether requests should be sent here. The policy has been read
// by the time that it is asked, and every decision reads it again.
type readiness struct{ draining atomic.Bool }

func (r *readiness) drain() { r.draining.Store(true) }

func (r *readiness) check(*http.Request) error {
	if r.draining.Load() {
		return errors.New("shutting down")
	}
	return nil
}

func addChecks(manager ctrl.Manager, ready *readiness, serving *serving) error {
	checks := map[string]healthz.Checker{
		"webhook":     serving.started(manager.GetWebhookServer().StartedChecker()),
		"certificate": serving.check,
		"draining":    ready.check,
	}
	for name, check := range checks {
		if err := manager.AddReadyzCheck(name, check); err != nil {
			return fmt.Errorf("cannot add check %q: %w", name, err)
		}
	}
	if err := manager.AddHealthzCheck("ping", healthz.Ping); err != nil {
		return fmt.Errorf("cannot add check %q: %w", "ping", err)
	}
	return nil
}
