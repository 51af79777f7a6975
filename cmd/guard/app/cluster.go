package app

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/claim"
	"github.com/metacontroller-solo/solo/pkg/version"
)

// firstContact bounds the first read of the policy.
const firstContact = 15 * time.Second

// restConfig finds the API server.
func restConfig(kubeconfig string) (*rest.Config, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		if kubeconfig != "" {
			return nil, fmt.Errorf("cannot read kubeconfig %q: %w; give another with --kubeconfig", kubeconfig, err)
		}
		return nil, fmt.Errorf("cannot find the cluster: %w; give a kubeconfig with --kubeconfig", err)
	}
	// A decision must not wait for a rate limit of its own making: the API
	// server limits by priority and fairness.
	config.QPS = -1
	config.UserAgent = "metacontroller-guard/" + version.String()
	return config, nil
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, guardv1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("cannot build scheme: %w", err)
		}
	}
	return scheme, nil
}

// readPolicyOnce makes sure that the policy can be read before anything is
// decided. A policy that does not exist is readable: the default stands in.
func readPolicyOnce(ctx context.Context, slot *claim.Slot, server string) error {
	ctx, cancel := context.WithTimeout(ctx, firstContact)
	defer cancel()
	_, err := slot.Read(ctx)
	switch {
	case err == nil:
		return nil
	case meta.IsNoMatchError(err):
		return fmt.Errorf("cannot find the CRD %s.%s on %s: apply config/crd first (kubectl apply -k config/crd)",
			guardv1alpha1.SingletonPolicyResource, guardv1alpha1.GroupVersion.Group, server)
	case apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w; apply config/guard, which has the guard's role", err)
	default:
		return fmt.Errorf("cannot read the policy from %s: %w", server, err)
	}
}

// nodes reads nodes live.
type nodes struct{ client client.Reader }

// NodeState implements webhook.Nodes.
func (n nodes) NodeState(ctx context.Context, name string) (attempt.NodeState, error) {
	node := &corev1.Node{}
	switch err := n.client.Get(ctx, client.ObjectKey{Name: name}, node); {
	case apierrors.IsNotFound(err):
		return attempt.NodeGone, nil
	case err != nil:
		return attempt.NodeUnknown, fmt.Errorf("cannot get Node %q: %w", name, err)
	}
	return nodeStateOf(node), nil
}

// nodeStateOf reads the taint by which somebody vouches that a node is shut
// down: https://kubernetes.io/docs/concepts/cluster-administration/node-shutdown/#non-graceful-node-shutdown
func nodeStateOf(node *corev1.Node) attempt.NodeState {
	tainted := slices.ContainsFunc(node.Spec.Taints, func(taint corev1.Taint) bool { return taint.Key == corev1.TaintNodeOutOfService })
	ready := slices.ContainsFunc(node.Status.Conditions, func(condition corev1.NodeCondition) bool {
		return condition.Type == corev1.NodeReady && condition.Status == corev1.ConditionTrue
	})
	switch {
	case tainted && ready:
		return attempt.NodeOutOfServiceReady
	case tainted:
		return attempt.NodeOutOfService
	default:
		return attempt.NodePresent
	}
}

// targets reads scaled objects of any kind.
type targets struct{ client dynamic.Interface }

// Target implements webhook.Targets.
func (t targets) Target(ctx context.Context, a attempt.Attempt) ([]byte, error) {
	object, err := t.client.Resource(a.Resource).Namespace(a.Namespace).Get(ctx, a.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot get %s %q: %w", a.Resource.Resource, client.ObjectKey{Namespace: a.Namespace, Name: a.Name}, err)
	}
	raw, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("cannot encode %s %q: %w", a.Resource.Resource, a.Name, err)
	}
	return raw, nil
}
