package pin

import (
	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

// Names of the objects.
const (
	// PolicyName is the policy, and its binding, that pins Pods.
	PolicyName = "metacontroller-guard-pin"
	// WorkloadPolicyName is the policy, and its binding, for templates and scale.
	WorkloadPolicyName = "metacontroller-guard-pin-workloads"
	// ScalePolicyName is the policy, and its binding, for the scale of violators.
	ScalePolicyName = "metacontroller-guard-pin-scale"
	// FencePolicyName is the policy, and its binding, for all writes of the fenced
	// service account.
	FencePolicyName = "metacontroller-guard-fence"
	// WriterPolicyName is the policy, and its binding, for what that account writes
	// into the SingletonPolicy.
	WriterPolicyName = "metacontroller-guard-fence-writer"
	// LeasePolicyName is the policy, and its binding, for the singleton Lease.
	LeasePolicyName = "metacontroller-guard-fence-lease"
	// ProtectName is the policy, and its binding, that keeps what the others need.
	ProtectName = "metacontroller-guard-protect"
	// WebhookConfigurationName is the webhook configuration.
	WebhookConfigurationName = "metacontroller-guard"

	// WorkloadsWebhook, PodsWebhook, SuspectsWebhook and ScaleWebhook are its webhooks.
	WorkloadsWebhook = "workloads.guard.metacontroller.io"
	PodsWebhook      = "pods.guard.metacontroller.io"
	SuspectsWebhook  = "suspects.guard.metacontroller.io"
	ScaleWebhook     = "scale.guard.metacontroller.io"
	// AutoscalersWebhook and ForcedWebhook are those of the rules autoscaler and
	// force-delete.
	AutoscalersWebhook = "autoscalers.guard.metacontroller.io"
	ForcedWebhook      = "forced.guard.metacontroller.io"
)

// Users that the StatefulSet controller writes as.
const (
	// StatefulSetController is its own identity, where kube-controller-manager
	// runs with --use-service-account-credentials, as kubeadm has it.
	StatefulSetController = "system:serviceaccount:kube-system:statefulset-controller"
	// ControllerManager is kube-controller-manager's, which all controllers
	// share where it runs without.
	ControllerManager = "system:kube-controller-manager"
	// controllers is what all the controllers' own identities begin with.
	controllers = "system:serviceaccount:kube-system:"
)

// Defaults of Options.
const (
	DefaultNamespace      = "metacontroller-guard"
	DefaultService        = "metacontroller-guard"
	DefaultPort           = int32(443)
	DefaultPath           = "/validate"
	DefaultTimeoutSeconds = int32(5)
)

// Options say what to render for. The zero value is a working default.
type Options struct {
	// SingletonPolicy is the policy that the admission policies read, by
	// default "metacontroller".
	SingletonPolicy string
	// Match is what the webhooks' match conditions recognise. They have no
	// params, so whoever changes spec.match must render again. Empty stands
	// for v1alpha1.DefaultMatch.
	Match v1alpha1.Match
	// Namespace, Service, Port and Path are where the guard is reached.
	Namespace, Service string
	Port               int32
	Path               string
	// URL replaces the service by a URL, path included, for a guard outside of
	// the cluster's network.
	URL string
	// CABundle is the PEM bundle that the guard's certificate is checked with.
	// Left out, cert-manager's CA injector or the guard fills it in.
	CABundle []byte
	// TimeoutSeconds is how long the API server waits for the guard, at most 30.
	TimeoutSeconds int32
}

func (o Options) withDefaults() Options {
	set := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	set(&o.SingletonPolicy, v1alpha1.DefaultPolicyName)
	set(&o.Namespace, DefaultNamespace)
	set(&o.Service, DefaultService)
	set(&o.Path, DefaultPath)
	if o.Port == 0 {
		o.Port = DefaultPort
	}
	if o.TimeoutSeconds == 0 {
		o.TimeoutSeconds = DefaultTimeoutSeconds
	}
	if len(o.Match.Images) == 0 && len(o.Match.Commands) == 0 {
		workloads, excludes := o.Match.Workloads, o.Match.ExcludeImages
		o.Match = v1alpha1.DefaultMatch()
		o.Match.Workloads, o.Match.ExcludeImages = workloads, excludes
	}
	return o
}
