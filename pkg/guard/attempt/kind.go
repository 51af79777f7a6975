package attempt

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

// Workload says what sort of thing an attempt is about.
type Workload int

const (
	// WorkloadNone is a kind that makes no Pods that the guard knows of. It is
	// the zero value: what is not known is judged at the Pods that it makes.
	WorkloadNone Workload = iota
	// WorkloadStatefulSet is the only one that can hold the slot.
	WorkloadStatefulSet
	// WorkloadDeployment is an apps Deployment.
	WorkloadDeployment
	// WorkloadReplicaSet is an apps ReplicaSet.
	WorkloadReplicaSet
	// WorkloadDaemonSet is an apps DaemonSet.
	WorkloadDaemonSet
	// WorkloadJob is a batch Job.
	WorkloadJob
	// WorkloadCronJob is a batch CronJob.
	WorkloadCronJob
	// WorkloadReplicationController is a core ReplicationController.
	WorkloadReplicationController
	// WorkloadPod is a Pod, bare or made by a controller.
	WorkloadPod
	// WorkloadCustom is a custom kind that the policy's match.workloads lists.
	WorkloadCustom
	// WorkloadAutoscaler is a HorizontalPodAutoscaler: it runs nothing itself,
	// and asks for replicas of what it scales.
	WorkloadAutoscaler
)

var workloadNames = map[Workload]string{
	WorkloadNone:                  "object",
	WorkloadStatefulSet:           "StatefulSet",
	WorkloadDeployment:            "Deployment",
	WorkloadReplicaSet:            "ReplicaSet",
	WorkloadDaemonSet:             "DaemonSet",
	WorkloadJob:                   "Job",
	WorkloadCronJob:               "CronJob",
	WorkloadReplicationController: "ReplicationController",
	WorkloadPod:                   "Pod",
	WorkloadCustom:                "custom workload",
	WorkloadAutoscaler:            "HorizontalPodAutoscaler",
}

// String is the kind as Kubernetes names it, for messages.
func (w Workload) String() string { return workloadNames[w] }

// Layout says where a kind keeps what the guard looks at.
type Layout struct {
	Workload Workload
	// podSpecPath leads to the Pod's spec.
	podSpecPath string
	// replicasPath leads to the number of Pods at a time; empty where a kind has none.
	replicasPath string
	// unbounded is a kind that makes as many Pods as there are nodes.
	unbounded bool
}

var builtin = map[schema.GroupResource]Layout{
	{Group: "apps", Resource: "statefulsets"}: {Workload: WorkloadStatefulSet, podSpecPath: "spec.template.spec", replicasPath: "spec.replicas"},
	{Group: "apps", Resource: "deployments"}:  {Workload: WorkloadDeployment, podSpecPath: "spec.template.spec", replicasPath: "spec.replicas"},
	{Group: "apps", Resource: "replicasets"}:  {Workload: WorkloadReplicaSet, podSpecPath: "spec.template.spec", replicasPath: "spec.replicas"},
	{Group: "apps", Resource: "daemonsets"}:   {Workload: WorkloadDaemonSet, podSpecPath: "spec.template.spec", unbounded: true},
	{Group: "batch", Resource: "jobs"}:        {Workload: WorkloadJob, podSpecPath: "spec.template.spec", replicasPath: "spec.parallelism"},
	{Group: "batch", Resource: "cronjobs"}: {
		Workload:     WorkloadCronJob,
		podSpecPath:  "spec.jobTemplate.spec.template.spec",
		replicasPath: "spec.jobTemplate.spec.parallelism",
	},
	{Resource: "replicationcontrollers"}: {Workload: WorkloadReplicationController, podSpecPath: "spec.template.spec", replicasPath: "spec.replicas"},
	{Resource: "pods"}:                   {Workload: WorkloadPod, podSpecPath: "spec"},

	{Group: "autoscaling", Resource: "horizontalpodautoscalers"}: {Workload: WorkloadAutoscaler},
}

// LayoutOf finds where a resource keeps its Pod template: a built-in kind, or
// one of the policy's custom kinds. The built-in ones cannot be redefined.
func LayoutOf(resource schema.GroupResource, customs []guardv1alpha1.WorkloadRule) (Layout, bool) {
	if layout, ok := builtin[resource]; ok {
		return layout, true
	}
	for _, custom := range customs {
		if custom.Group == resource.Group && custom.Resource == resource.Resource {
			return Layout{
				Workload:     WorkloadCustom,
				podSpecPath:  orDefault(custom.PodTemplatePath, "spec.template") + ".spec",
				replicasPath: orDefault(custom.ReplicasPath, "spec.replicas"),
			}, true
		}
	}
	return Layout{}, false
}

func orDefault(value, fallback string) string {
	if value == "" {
		return fallback
	}
	return value
}
