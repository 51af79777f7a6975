// Program certmanager is cert-manager in one process: its controllers for Issuers,
// Certificates and CertificateRequests, those of the self-signed and the CA issuer
// only, and its CA injector for validating webhook configurations. cert-manager's
// own programs are modules that cannot be required, so its published packages are
// put together here, as those programs do it, with the same defaults.
//
//	kubeconfig ─┬─> controllers (one informer factory)        Issuer, Certificate ─> Secret
//	            └─> CA injector (a controller-runtime manager) Secret ─> caBundle
//
// It answers /readyz once both have read what is there.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	// Each of these adds itself to the known controllers or issuers.
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
	logf "github.com/cert-manager/cert-manager/pkg/logs"
)

const (
	// workers is how many objects each controller works on at once.
	workers = 5
	// Waits after an issuance that failed, as cert-manager's own program has them.
	firstBackoff = time.Hour
	lastBackoff  = 32 * time.Hour
)

func main() {
	// A set of its own: libraries have put flags into the common one.
	flags := flag.NewFlagSet("certmanager", flag.ExitOnError)
	kubeconfig := flags.String("kubeconfig", "", "Path to a kubeconfig of a user who may do what cert-manager does.")
	probes := flags.String("health-probe-bind-address", "127.0.0.1:9402", "Address and port for /readyz.")
	_ = flags.Parse(os.Args[1:]) // it exits instead of returning an error

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctrl.SetLogger(logf.Log)
	if err := run(logf.NewContext(ctx, logf.Log), *kubeconfig, *probes); err != nil {
		fmt.Fprintf(os.Stderr, "certmanager: %v\n", err)
		os.Exit(1)
	}
}

// run returns when ctx ends, or with the first error of any part.
func run(ctx context.Context, kubeconfig, probes string) error {
	injector, err := newInjector(ctx, kubeconfig, probes)
	if err != nil {
		return err
	}
	controllers, err := newControllers(ctx, kubeconfig)
	if err != nil {
		return err
	}
	if err := injector.Add(controllers); err != nil {
		return fmt.Errorf("cannot add the controllers: %w", err)
	}
	check := func(*http.Request) error {
		if !controllers.synced.Load() {
			return errors.New("the controllers have not read what is there")
		}
		return nil
	}
	if err := injector.AddReadyzCheck("controllers", check); err != nil {
		return fmt.Errorf("cannot add a check: %w", err)
	}
	if err := injector.Start(ctx); err != nil {
		return fmt.Errorf("cannot go on: %w", err)
	}
	return nil
}

// newInjector is the CA injector. It caches no content of Secrets.
func newInjector(ctx context.Context, kubeconfig, probes string) (manager.Manager, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("cannot read kubeconfig %q: %w", kubeconfig, err)
	}
	config.UserAgent = "cert-manager-cainjector"
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{cmapi.AddToScheme, corev1.AddToScheme, admissionregistrationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("cannot build scheme: %w", err)
		}
	}
	injector, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:                 scheme,
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: probes,
		Client:                 client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot build the CA injector: %w", err)
	}
	err = cainjector.RegisterAllInjectors(ctx, injector, cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor:        map[string]bool{cainjector.ValidatingWebhookConfigurationName: true},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot build the CA injector: %w", err)
	}
	return injector, nil
}

// controllers are all that have added themselves.
type controllers struct {
	context *controller.Context
	all     map[string]controller.Interface
	synced  atomic.Bool
}

func newControllers(ctx context.Context, kubeconfig string) (*controllers, error) {
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig: kubeconfig,
		CertificateOptions: controller.CertificateOptions{
			CertificateRequestMinimumBackoffDuration: firstBackoff,
			CertificateRequestMaximumBackoffDuration: lastBackoff,
		},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot build the controllers: %w", err)
	}
	c := &controllers{all: map[string]controller.Interface{}}
	if c.context, err = factory.Build(); err != nil {
		return nil, fmt.Errorf("cannot build the controllers: %w", err)
	}
	for name, construct := range controller.Known() {
		if c.all[name], err = construct(factory); err != nil {
			return nil, fmt.Errorf("cannot build controller %q: %w", name, err)
		}
	}
	return c, nil
}

// Start runs the controllers until ctx ends or one of them fails.
func (c *controllers) Start(ctx context.Context) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, len(c.all))
	for name, one := range c.all {
		go func() {
			err := one.Run(workers, ctx)
			if err != nil && ctx.Err() == nil {
				err = fmt.Errorf("controller %q failed: %w", name, err)
			}
			ended <- err
		}()
	}
	c.context.SharedInformerFactory.Start(ctx.Done())
	c.context.KubeSharedInformerFactory.Start(ctx.Done())
	c.context.SharedInformerFactory.WaitForCacheSync(ctx.Done())
	c.context.KubeSharedInformerFactory.WaitForCacheSync(ctx.Done())
	c.synced.Store(true)
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}
