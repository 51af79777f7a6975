// Package corpus holds the manifests on which everything that recognises an
// instance has to agree: package identify, the expressions in the API server,
// the webhook and a real API server.
//
//	handwritten.yaml ─┐
//	                  ├─ All ─> Case{Object, Want, Why}
//	generate.go ──────┘
//
// What is wanted is written down with each case or with the row of the table
// that it is made from, never computed by the code under test. The cases are
// the same on every run, in the same order.
package corpus

import (
	_ "embed"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

// Verdict is what a manifest is to be taken for, by the default match.
type Verdict string

const (
	// None is for what has nothing to do with an instance.
	None Verdict = "None"
	// Image is for what runs an instance, by its image.
	Image = Verdict(identify.ByImage)
	// Command is for what runs an instance, by what is started.
	Command = Verdict(identify.ByCommand)
	// Flags is for a suspect.
	Flags = Verdict(identify.ByFlags)
)

// Instance says whether the verdict is that of an instance.
func (v Verdict) Instance() bool { return v == Image || v == Command }

// Case is one manifest.
type Case struct {
	// Name is unique.
	Name string
	// Why is the reason for what is wanted.
	Why  string
	Want Verdict
	// Invalid is set for a manifest that the API server refuses to read.
	Invalid bool
	// Resource is what Object is created as.
	Resource schema.GroupVersionResource
	// Object is complete but for its namespace. Copy it before changing it.
	Object client.Object
	// Spec is the Pod's spec in it.
	Spec *corev1.PodSpec
}

//go:embed handwritten.yaml
var handwritten []byte

// Handwritten are the cases of handwritten.yaml, each as a Pod.
func Handwritten() ([]Case, error) {
	var rows []struct {
		Why     string  `json:"why"`
		Want    Verdict `json:"want"`
		Invalid bool    `json:"invalid"`
		corev1.Container
	}
	if err := yaml.UnmarshalStrict(handwritten, &rows); err != nil {
		return nil, fmt.Errorf("cannot read the handwritten cases: %w", err)
	}
	cases := make([]Case, len(rows))
	for i, row := range rows {
		container := row.Container
		if container.Name == "" {
			container.Name = "main"
		}
		cases[i] = placed(fmt.Sprintf("handwritten-%03d", i), row.Why, row.Want, pods, identify.ListRegular, container)
		cases[i].Invalid = row.Invalid
	}
	return cases, nil
}

// All are the handwritten cases and the generated ones.
func All() ([]Case, error) {
	cases, err := Handwritten()
	if err != nil {
		return nil, err
	}
	return append(cases, Generated()...), nil
}

// kind is a kind with a Pod's spec in it.
type kind struct {
	resource schema.GroupVersionResource
	wrap     func(metav1.ObjectMeta, corev1.PodTemplateSpec) (client.Object, *corev1.PodSpec)
}

var (
	labels   = map[string]string{"app": "case"}
	selector = &metav1.LabelSelector{MatchLabels: labels}
)

func never(t corev1.PodTemplateSpec) corev1.PodTemplateSpec {
	t.Spec.RestartPolicy = corev1.RestartPolicyNever
	return t
}

var pods = kind{corev1.SchemeGroupVersion.WithResource("pods"), func(m metav1.ObjectMeta, t corev1.PodTemplateSpec) (client.Object, *corev1.PodSpec) {
	o := &corev1.Pod{TypeMeta: typeMeta("v1", "Pod"), ObjectMeta: m, Spec: t.Spec}
	return o, &o.Spec
}}

var kinds = []kind{
	pods,
	{appsv1.SchemeGroupVersion.WithResource("statefulsets"), func(m metav1.ObjectMeta, t corev1.PodTemplateSpec) (client.Object, *corev1.PodSpec) {
		o := &appsv1.StatefulSet{TypeMeta: typeMeta("apps/v1", "StatefulSet"), ObjectMeta: m, Spec: appsv1.StatefulSetSpec{Selector: selector, Template: t, ServiceName: "none"}}
		return o, &o.Spec.Template.Spec
	}},
	{appsv1.SchemeGroupVersion.WithResource("deployments"), func(m metav1.ObjectMeta, t corev1.PodTemplateSpec) (client.Object, *corev1.PodSpec) {
		o := &appsv1.Deployment{TypeMeta: typeMeta("apps/v1", "Deployment"), ObjectMeta: m, Spec: appsv1.DeploymentSpec{Selector: selector, Template: t}}
		return o, &o.Spec.Template.Spec
	}},
	{appsv1.SchemeGroupVersion.WithResource("replicasets"), func(m metav1.ObjectMeta, t corev1.PodTemplateSpec) (client.Object, *corev1.PodSpec) {
		o := &appsv1.ReplicaSet{TypeMeta: typeMeta("apps/v1", "ReplicaSet"), ObjectMeta: m, Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: t}}
		return o, &o.Spec.Template.Spec
	}},
	{appsv1.SchemeGroupVersion.WithResource("daemonsets"), func(m metav1.ObjectMeta, t corev1.PodTemplateSpec) (client.Object, *corev1.PodSpec) {
		o := &appsv1.DaemonSet{TypeMeta: typeMeta("apps/v1", "DaemonSet"), ObjectMeta: m, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: t}}
		return o, &o.Spec.Template.Spec
	}},
	{batchv1.SchemeGroupVersion.WithResource("jobs"), func(m metav1.ObjectMeta, t corev1.PodTemplateSpec) (client.Object, *corev1.PodSpec) {
		o := &batchv1.Job{TypeMeta: typeMeta("batch/v1", "Job"), ObjectMeta: m, Spec: batchv1.JobSpec{Template: never(t)}}
		return o, &o.Spec.Template.Spec
	}},
	{batchv1.SchemeGroupVersion.WithResource("cronjobs"), func(m metav1.ObjectMeta, t corev1.PodTemplateSpec) (client.Object, *corev1.PodSpec) {
		o := &batchv1.CronJob{TypeMeta: typeMeta("batch/v1", "CronJob"), ObjectMeta: m, Spec: batchv1.CronJobSpec{
			Schedule: "0 0 1 1 *", JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: never(t)}}}}
		return o, &o.Spec.JobTemplate.Spec.Template.Spec
	}},
	{corev1.SchemeGroupVersion.WithResource("replicationcontrollers"), func(m metav1.ObjectMeta, t corev1.PodTemplateSpec) (client.Object, *corev1.PodSpec) {
		o := &corev1.ReplicationController{TypeMeta: typeMeta("v1", "ReplicationController"), ObjectMeta: m, Spec: corev1.ReplicationControllerSpec{Selector: labels, Template: ptr.To(t)}}
		return o, &o.Spec.Template.Spec
	}},
}

func typeMeta(version, kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: version, Kind: kind}
}

// placed is the case of a container in a list of a Pod of a kind. In any list
// but the first there is a harmless container beside it.
func placed(name, why string, want Verdict, k kind, list identify.List, c corev1.Container) Case {
	spec := corev1.PodSpec{}
	if list != identify.ListRegular {
		spec.Containers = []corev1.Container{{Name: "beside", Image: "registry.example.com/team/app:v1"}}
	}
	switch list {
	case identify.ListInit:
		spec.InitContainers = []corev1.Container{c}
	case identify.ListSidecar:
		c.RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		spec.InitContainers = []corev1.Container{c}
	case identify.ListEphemeral:
		spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(c)}}
	default:
		spec.Containers = []corev1.Container{c}
	}
	object, podSpec := k.wrap(metav1.ObjectMeta{Name: name}, corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec})
	return Case{
		Name: name, Why: why, Want: want, Resource: k.resource, Object: object, Spec: podSpec,
		// They come by a subresource of their own, into a Pod that is there.
		Invalid: list == identify.ListEphemeral,
	}
}
