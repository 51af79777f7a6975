package app

import (
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/client/config"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/metacontroller-solo/solo/pkg/controller/cluster"
	"github.com/metacontroller-solo/solo/pkg/logging"
	"github.com/metacontroller-solo/solo/pkg/singleton"
)

// Names of the flags. All but the two of the singleton lease are those of the
// public Metacontroller.
const (
	flagDiscoveryInterval   = "discovery-interval"
	flagCacheFlushInterval  = "cache-flush-interval"
	flagMetricsAddress      = "metrics-address"
	flagClientGoQPS         = "client-go-qps"
	flagClientGoBurst       = "client-go-burst"
	flagWorkers             = "workers"
	flagEventsQPS           = "events-qps"
	flagEventsBurst         = "events-burst"
	flagPprofAddress        = "pprof-address"
	flagLeaderElection      = "leader-election"
	flagLeaderElectionLock  = "leader-election-resource-lock"
	flagLeaderElectionSpace = "leader-election-namespace"
	flagLeaderElectionID    = "leader-election-id"
	flagHealthAddress       = "health-probe-bind-address"
	flagTargetLabelSelector = "target-label-selector"
	flagApplyStrategy       = "apply-strategy"
	flagApplyFieldManager   = "apply-strategy-ssa-field-manager"
	flagKubeconfig          = "kubeconfig"
	flagSingletonLeaseSpace = "singleton-lease-namespace"
	flagSingletonLeaseName  = "singleton-lease-name"
	flagVersion             = "version"
	addressOff              = "0"
	lockLeases              = "leases"
	applyDynamic            = "dynamic-apply"
	applyServerSide         = "server-side-apply"
	// defaultNamespace is where the shipped manifests install the controller.
	defaultNamespace          = "metacontroller"
	serviceAccountNamespace   = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
	defaultDiscoveryInterval  = 30 * time.Second
	defaultCacheFlushInterval = 30 * time.Minute
	defaultWorkers            = 5
	defaultEventsQPS          = 1. / 300.
	defaultEventsBurst        = 25
)

// Options are the flags.
type Options struct {
	DiscoveryInterval  time.Duration
	CacheFlushInterval time.Duration
	MetricsAddress     string
	HealthAddress      string
	PprofAddress       string
	// ClientQPS limits requests a second; 0 or less does not limit them.
	ClientQPS   float32
	ClientBurst int
	Workers     int
	EventsQPS   float32
	EventsBurst int

	LeaderElection          bool
	LeaderElectionLock      string
	LeaderElectionNamespace string
	LeaderElectionID        string
	SingletonNamespace      string
	SingletonName           string

	TargetLabelSelector string
	ApplyStrategy       string
	ApplyFieldManager   string
	Kubeconfig          string
	Version             bool

	Zap *zap.Options
}

// AddFlags declares the flags and their defaults.
func (o *Options) AddFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&o.DiscoveryInterval, flagDiscoveryInterval, defaultDiscoveryInterval, "How often what the API server serves is read again; changes of CRDs are noticed at once.")
	flags.DurationVar(&o.CacheFlushInterval, flagCacheFlushInterval, defaultCacheFlushInterval, "How often every parent is synced though nothing happened; 0 turns that off.")
	flags.StringVar(&o.MetricsAddress, flagMetricsAddress, ":9999", "Address of /metrics; 0 turns it off.")
	flags.StringVar(&o.HealthAddress, flagHealthAddress, ":8081", "Address of /healthz and /readyz; 0 turns them off.")
	flags.StringVar(&o.PprofAddress, flagPprofAddress, addressOff, "Address of /debug/pprof; 0 turns it off.")
	flags.Float32Var(&o.ClientQPS, flagClientGoQPS, 0, "Limit of requests a second to the API server; 0 sets none.")
	flags.IntVar(&o.ClientBurst, flagClientGoBurst, 0, "How many requests may exceed --client-go-qps at once; 0 means twice as many as it allows in a second.")
	flags.IntVar(&o.Workers, flagWorkers, defaultWorkers, "How many parents of one controller are synced at once.")
	flags.Float32Var(&o.EventsQPS, flagEventsQPS, defaultEventsQPS, "Limit of events a second about one object.")
	flags.IntVar(&o.EventsBurst, flagEventsBurst, defaultEventsBurst, "How many events about one object may exceed --events-qps at once.")
	flags.BoolVar(&o.LeaderElection, flagLeaderElection, false, "Also hold the lease of --leader-election-id, so that instances of the public Metacontroller with leader election wait. The singleton lease is held in any case.")
	flags.StringVar(&o.LeaderElectionLock, flagLeaderElectionLock, lockLeases, "Kind of lock for leader election: leases is the only one.")
	flags.StringVar(&o.LeaderElectionNamespace, flagLeaderElectionSpace, "", "Namespace of the lease of --leader-election; empty means that of this Pod.")
	flags.StringVar(&o.LeaderElectionID, flagLeaderElectionID, "metacontroller", "Name of the lease of --leader-election.")
	flags.StringVar(&o.SingletonNamespace, flagSingletonLeaseSpace, singleton.DefaultNamespace, "Namespace of the lease that only one instance in the cluster holds. It must be the same for all of them.")
	flags.StringVar(&o.SingletonName, flagSingletonLeaseName, singleton.DefaultName, "Name of that lease.")
	flags.StringVar(&o.TargetLabelSelector, flagTargetLabelSelector, "", "Run only the controllers whose objects have these labels.")
	flags.StringVar(&o.ApplyStrategy, flagApplyStrategy, applyDynamic, "How children are written: "+applyDynamic+" or "+applyServerSide+".")
	flags.StringVar(&o.ApplyFieldManager, flagApplyFieldManager, cluster.FieldManager, "Field manager of server-side apply.")
	flags.StringVar(&o.Kubeconfig, flagKubeconfig, "", "Path of a kubeconfig; empty means $KUBECONFIG, the Pod's service account, or ~/.kube/config.")
	flags.BoolVar(&o.Version, flagVersion, false, "Print the version and exit.")
	o.Zap = logging.BindFlags(flags)
}

// Config is what a run needs, checked.
type Config struct {
	Options
	Rest *rest.Config
	// Selector is TargetLabelSelector.
	Selector labels.Selector
	// Namespace is that of this process.
	Namespace string
}

// Complete checks the options and completes what they leave open. The error
// names the flag and says how to mend it.
func (o *Options) Complete(getenv func(string) string) (*Config, error) {
	var problems []error
	bad := func(flag, format string, arguments ...any) {
		problems = append(problems, fmt.Errorf("--%s "+format, append([]any{flag}, arguments...)...))
	}
	if o.DiscoveryInterval <= 0 {
		bad(flagDiscoveryInterval, "must be more than 0, such as 30s, not %s", o.DiscoveryInterval)
	}
	if o.CacheFlushInterval < 0 {
		bad(flagCacheFlushInterval, "must not be negative; 0 turns it off")
	}
	if o.Workers < 1 {
		bad(flagWorkers, "must be 1 or more, not %d", o.Workers)
	}
	if o.EventsQPS < 0 || o.EventsBurst < 0 {
		bad(flagEventsQPS, "and --%s must not be negative", flagEventsBurst)
	}
	addresses := []struct{ flag, address string }{
		{flagMetricsAddress, o.MetricsAddress}, {flagHealthAddress, o.HealthAddress}, {flagPprofAddress, o.PprofAddress},
	}
	for _, one := range addresses {
		if one.address == addressOff || one.address == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(one.address); err != nil {
			bad(one.flag, "%q is not host:port or :port (0 turns it off)", one.address)
		}
	}
	if o.LeaderElectionLock != lockLeases {
		bad(flagLeaderElectionLock, "must be %s, not %q", lockLeases, o.LeaderElectionLock)
	}
	names := []struct{ flag, name string }{
		{flagSingletonLeaseSpace, o.SingletonNamespace}, {flagSingletonLeaseName, o.SingletonName}, {flagLeaderElectionID, o.LeaderElectionID},
	}
	for _, one := range names {
		if wrong := validation.IsDNS1123Subdomain(one.name); len(wrong) > 0 {
			bad(one.flag, "%q is not a name: %s", one.name, wrong[0])
		}
	}
	if o.ApplyStrategy != applyDynamic && o.ApplyStrategy != applyServerSide {
		bad(flagApplyStrategy, "must be %s or %s, not %q", applyDynamic, applyServerSide, o.ApplyStrategy)
	}
	if !isFieldManager(o.ApplyFieldManager) {
		bad(flagApplyFieldManager, "must be 1 to %d printable characters, not %q", fieldManagerMaxLength, o.ApplyFieldManager)
	}
	selector, err := labels.Parse(o.TargetLabelSelector)
	if err != nil {
		bad(flagTargetLabelSelector, "%q is not a label selector: %v", o.TargetLabelSelector, err)
	}
	if err := errors.Join(problems...); err != nil {
		return nil, oneLine(err)
	}

	config := &Config{Options: *o, Selector: selector, Namespace: ownNamespace(getenv, defaultNamespace)}
	if config.LeaderElectionNamespace == "" {
		config.LeaderElectionNamespace = ownNamespace(getenv, o.SingletonNamespace)
	}
	if config.Rest, err = restConfig(o); err != nil {
		return nil, err
	}
	return config, nil
}

// fieldManagerMaxLength is the API server's limit of a field manager's name, in
// bytes (validation.FieldManagerMaxLength of apimachinery).
const fieldManagerMaxLength = 128

// isFieldManager says whether the API server takes this as a field manager's name.
func isFieldManager(name string) bool {
	return name != "" && len(name) <= fieldManagerMaxLength &&
		utf8.ValidString(name) && strings.IndexFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) < 0
}

// fieldManager is the field manager of server-side apply; empty if children are
// not written by that.
func (c *Config) fieldManager() string {
	if c.ApplyStrategy == applyServerSide {
		return c.ApplyFieldManager
	}
	return ""
}

func ownNamespace(getenv func(string) string, otherwise string) string {
	if namespace := getenv(singleton.EnvPodNamespace); namespace != "" {
		return namespace
	}
	if namespace, err := os.ReadFile(serviceAccountNamespace); err == nil && len(namespace) > 0 {
		return strings.TrimSpace(string(namespace))
	}
	return otherwise
}

func restConfig(o *Options) (*rest.Config, error) {
	var (
		config *rest.Config
		err    error
	)
	if o.Kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
		if err != nil {
			return nil, fmt.Errorf("cannot read kubeconfig %q: %w; give a readable kubeconfig with --%s", o.Kubeconfig, err, flagKubeconfig)
		}
	} else if config, err = ctrlconfig.GetConfig(); err != nil {
		return nil, fmt.Errorf("cannot find out where the API server is: %w; run in a Pod, or give a kubeconfig with --%s or $KUBECONFIG", err, flagKubeconfig)
	}
	config.QPS, config.Burst = -1, 0
	if o.ClientQPS > 0 {
		config.QPS, config.Burst = o.ClientQPS, o.ClientBurst
		if config.Burst <= 0 {
			config.Burst = max(1, int(2*o.ClientQPS))
		}
	}
	return config, nil
}

// oneLine joins errors that were joined with line breaks.
func oneLine(err error) error {
	return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
}

// doubleDashes makes --flag of -flag, which Go's own flag package, and so the
// public Metacontroller, takes as the same.
func doubleDashes(arguments []string, flags *pflag.FlagSet) []string {
	out := slices.Clone(arguments)
	for i, argument := range out {
		name, _, _ := strings.Cut(strings.TrimPrefix(argument, "-"), "=")
		if strings.HasPrefix(argument, "-") && len(name) > 1 && flags.Lookup(name) != nil {
			out[i] = "-" + argument
		}
	}
	return out
}
