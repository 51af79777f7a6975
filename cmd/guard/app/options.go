package app

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	"github.com/metacontroller-solo/solo/pkg/logging"
)

// serveOptions are the flags of the verb serve.
type serveOptions struct {
	kubeconfig         string
	policy             string
	bindAddress        string
	webhookPort        int
	tls                tlsOptions
	metricsBindAddress string
	probeBindAddress   string
	audit              auditOptions
	replica            string
	shutdownDelay      time.Duration
	requestTimeout     time.Duration
	releaseDelay       time.Duration
	policyMaxAge       time.Duration
	webhookTimeout     int32
	leaderElection     leaderElectionOptions
	zap                *zap.Options
}

type leaderElectionOptions struct {
	enabled       bool
	namespace     string
	name          string
	leaseDuration time.Duration
	renewDeadline time.Duration
	retryPeriod   time.Duration
}

// defaultLease is the name of the Lease that guards elect their leader on.
const defaultLease = "metacontroller-guard"

// envPodName is set by the manifests, through the downward API.
const envPodName = "POD_NAME"

// reservationMargin is how much longer a reservation lives than the API server
// keeps a request.
const reservationMargin = 15 * time.Second

// defaultRequestTimeout is the API server's own default.
const defaultRequestTimeout = time.Minute

func (o *serveOptions) bind(flags *pflag.FlagSet) {
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "Path to a kubeconfig. Left out: the Pod's service account, else KUBECONFIG, else ~/.kube/config.")
	flags.StringVar(&o.policy, "policy", guardv1alpha1.DefaultPolicyName, "Name of the SingletonPolicy to judge by.")
	flags.StringVar(&o.bindAddress, "bind-address", "", "IP address that the webhook listens on. Left out: all of them.")
	flags.IntVar(&o.webhookPort, "webhook-port", 9443, "Port that the webhook listens on.")
	flags.StringVar(&o.metricsBindAddress, "metrics-bind-address", ":8080", "Address and port for metrics; 0 for none.")
	flags.StringVar(&o.probeBindAddress, "health-probe-bind-address", ":8081", "Address and port for /healthz and /readyz; 0 for none.")
	o.audit.bind(flags)
	flags.StringVar(&o.replica, "replica", "", "Name of this guard in the audit log. Left out: "+envPodName+", else the host's name.")
	flags.DurationVar(&o.shutdownDelay, "shutdown-delay", 5*time.Second, "How long requests are still taken after SIGTERM, while /readyz fails already.")
	flags.DurationVar(&o.requestTimeout, "api-request-timeout", defaultRequestTimeout, "The API server's --request-timeout. A claim that has not become an object is given up "+reservationMargin.String()+" later.")
	flags.DurationVar(&o.releaseDelay, "release-delay", defaultRequestTimeout+reservationMargin, "How long the pin is cleared before the slot is free: the time in which every API server has surely seen it, and has stored or given up what it had let in before.")
	flags.DurationVar(&o.policyMaxAge, "policy-max-age", time.Second, "How old the policy may be that a request is judged by while the holder is bound; 0 reads it for every request. At most half of --release-delay.")
	flags.Int32Var(&o.webhookTimeout, "expected-webhook-timeout-seconds", pin.DefaultTimeoutSeconds, "The timeout that the webhook configuration was rendered with (guard render --timeout-seconds). The scan reports another one.")

	o.tls.bind(flags)

	l := &o.leaderElection
	flags.BoolVar(&l.enabled, "leader-elect", true, "Let one of several guards keep the status of the policy. All of them answer requests.")
	flags.StringVar(&l.namespace, "leader-elect-resource-namespace", pin.DefaultNamespace, "Namespace of the Lease.")
	flags.StringVar(&l.name, "leader-elect-resource-name", defaultLease, "Name of the Lease.")
	flags.DurationVar(&l.leaseDuration, "leader-elect-lease-duration", 15*time.Second, "How long others wait for a leader that is silent.")
	flags.DurationVar(&l.renewDeadline, "leader-elect-renew-deadline", 10*time.Second, "How long the leader tries to renew before it gives up.")
	flags.DurationVar(&l.retryPeriod, "leader-elect-retry-period", 2*time.Second, "How long to wait between tries.")

	o.zap = logging.BindFlags(flags)
}

// complete fills what was left out.
func (o *serveOptions) complete() error {
	if o.replica == "" {
		o.replica = os.Getenv(envPodName)
	}
	if o.replica == "" {
		name, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("cannot tell the host's name, set --replica: %w", err)
		}
		o.replica = name
	}
	return nil
}

// validate checks the flags against each other. Its errors are usage errors.
func (o *serveOptions) validate() error {
	switch {
	case o.policy == "":
		return errors.New("--policy is empty, name a SingletonPolicy")
	case o.bindAddress != "" && net.ParseIP(o.bindAddress) == nil:
		return fmt.Errorf("--bind-address %q is no IP address", o.bindAddress)
	case o.webhookPort < 1 || o.webhookPort > 65535:
		return fmt.Errorf("--webhook-port %d is no port, choose 1 to 65535", o.webhookPort)
	case o.shutdownDelay < 0 || o.releaseDelay < 0:
		return errors.New("--shutdown-delay and --release-delay must not be negative")
	case o.policyMaxAge < 0 || o.policyMaxAge > o.releaseDelay/2:
		// Twice as long, so that no pause of this process matters.
		return fmt.Errorf("--policy-max-age %s must not be negative, nor above half of --release-delay %s", o.policyMaxAge, o.releaseDelay)
	case o.requestTimeout <= 0:
		return errors.New("--api-request-timeout must be above 0")
	}
	if err := o.tls.validate(); err != nil {
		return err
	}
	for flag, address := range map[string]string{
		"--metrics-bind-address":      o.metricsBindAddress,
		"--health-probe-bind-address": o.probeBindAddress,
	} {
		if address == "0" {
			continue
		}
		if _, _, err := net.SplitHostPort(address); err != nil {
			return fmt.Errorf("%s %q is no address and port, write it like 127.0.0.1:8080", flag, address)
		}
	}
	if err := o.audit.validate(); err != nil {
		return err
	}
	l := o.leaderElection
	if l.enabled && (l.namespace == "" || l.name == "") {
		return errors.New("--leader-elect needs --leader-elect-resource-namespace and --leader-elect-resource-name")
	}
	if l.enabled && (l.retryPeriod <= 0 || l.renewDeadline <= l.retryPeriod || l.leaseDuration <= l.renewDeadline) {
		return errors.New("--leader-elect-lease-duration must be longer than --leader-elect-renew-deadline, and that longer than --leader-elect-retry-period")
	}
	return nil
}

// preflight finds what would fail later, so that it is said in one line before
// anything is started.
func (o *serveOptions) preflight() error {
	if err := o.tls.preflight(); err != nil {
		return err
	}
	addresses := []struct{ flag, address string }{
		{"--webhook-port", net.JoinHostPort(o.bindAddress, strconv.Itoa(o.webhookPort))},
		{"--metrics-bind-address", o.metricsBindAddress},
		{"--health-probe-bind-address", o.probeBindAddress},
	}
	for _, a := range addresses {
		if a.address == "0" {
			continue
		}
		listener, err := net.Listen("tcp", a.address)
		if err != nil {
			return fmt.Errorf("cannot listen on %s: %w; free it or choose another with %s", a.address, err, a.flag)
		}
		if err := listener.Close(); err != nil {
			return fmt.Errorf("cannot close %s: %w", a.address, err)
		}
	}
	return nil
}
