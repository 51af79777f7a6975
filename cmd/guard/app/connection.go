package app

import (
	"errors"
	"fmt"
	"time"

	"github.com/spf13/pflag"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/version"
)

// answerTimeout bounds a request to the API server where the flags do not.
const answerTimeout = 30 * time.Second

// connection is how a verb finds the cluster: with the flags of kubectl.
type connection struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides *clientcmd.ConfigOverrides
	policy    string
}

// bind adds kubectl's flags, --policy, and none else.
func (c *connection) bind(flags *pflag.FlagSet) {
	c.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	c.overrides = &clientcmd.ConfigOverrides{}
	flags.StringVar(&c.rules.ExplicitPath, "kubeconfig", "", "Path to a kubeconfig. Left out: KUBECONFIG, else ~/.kube/config, else the Pod's service account.")
	clientcmd.BindOverrideFlags(c.overrides, flags, clientcmd.RecommendedConfigOverrideFlags(""))
	flags.StringVar(&c.policy, "policy", guardv1alpha1.DefaultPolicyName, "Name of the SingletonPolicy.")
}

// cluster is a cluster that can be asked.
type cluster struct {
	client client.WithWatch
	config *rest.Config
	// namespace is the one of the flags, else the kubeconfig's, else "default".
	namespace string
	warnings  *warnings
}

// open finds the cluster. Its errors say which exit code is right.
func (c *connection) open() (*cluster, error) {
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(c.rules, c.overrides)
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, usageError{fmt.Errorf("cannot find the cluster: %w; give a kubeconfig with --kubeconfig", err)}
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, usageError{fmt.Errorf("cannot read the kubeconfig: %w", err)}
	}
	if config.Timeout == 0 {
		config.Timeout = answerTimeout
	}
	config.UserAgent = "metacontroller-guard/" + version.String()
	seen := &warnings{}
	config.WarningHandlerWithContext = seen
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	live, err := client.NewWithWatch(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, clusterError{fmt.Errorf("cannot reach %s: %w", config.Host, err)}
	}
	return &cluster{client: live, config: config, namespace: namespace, warnings: seen}, nil
}

// unanswered is an error of the API server, or on the way to it.
func (c *cluster) unanswered(err error) error {
	switch {
	case err == nil:
		return nil
	case meta.IsNoMatchError(err):
		return clusterError{fmt.Errorf("the guard is not installed: %s does not serve %s; apply config/crd, or choose another cluster with --context", c.config.Host, guardv1alpha1.GroupVersion)}
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return clusterError{fmt.Errorf("%w; ask for that permission, or choose another user with --context", err)}
	case errors.As(err, new(apierrors.APIStatus)):
		return clusterError{err}
	default:
		return clusterError{fmt.Errorf("cannot reach %s: %w", c.config.Host, err)}
	}
}
