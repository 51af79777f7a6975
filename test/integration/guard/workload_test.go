package guard_test

import (
	"context"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

const (
	instanceImage = "ghcr.io/metacontroller/metacontroller:v4.17.2"
	strangerImage = "registry.k8s.io/pause:3.10"
)

func named(namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name}
}

func podSpec(image string) corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: image}}}
}

func template(image string) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "x"}}, Spec: podSpec(image)}
}

func selector() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}
}

func statefulSet(namespace, name string) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{ObjectMeta: named(namespace, name), Spec: appsv1.StatefulSetSpec{
		Replicas: ptr.To[int32](1), Selector: selector(), Template: template(instanceImage),
	}}
}

func deployment(namespace, name string) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: named(namespace, name), Spec: appsv1.DeploymentSpec{
		Selector: selector(), Template: template(instanceImage),
	}}
}

func replicaSet(namespace, name string) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{ObjectMeta: named(namespace, name), Spec: appsv1.ReplicaSetSpec{
		Selector: selector(), Template: template(instanceImage),
	}}
}

func daemonSet(namespace, name string) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: named(namespace, name), Spec: appsv1.DaemonSetSpec{
		Selector: selector(), Template: template(instanceImage),
	}}
}

func replicationController(namespace, name string) *corev1.ReplicationController {
	return &corev1.ReplicationController{ObjectMeta: named(namespace, name), Spec: corev1.ReplicationControllerSpec{
		Selector: map[string]string{"app": "x"}, Template: new(template(instanceImage)),
	}}
}

func job(namespace, name string) *batchv1.Job {
	spec := template(instanceImage)
	spec.Labels = nil
	spec.Spec.RestartPolicy = corev1.RestartPolicyNever
	return &batchv1.Job{ObjectMeta: named(namespace, name), Spec: batchv1.JobSpec{Template: spec}}
}

func cronJob(namespace, name string) *batchv1.CronJob {
	return &batchv1.CronJob{ObjectMeta: named(namespace, name), Spec: batchv1.CronJobSpec{
		Schedule: "@yearly", JobTemplate: batchv1.JobTemplateSpec{Spec: job(namespace, name).Spec},
	}}
}

func pod(namespace, name, image string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: named(namespace, name), Spec: podSpec(image)}
}

func quantity(text string) resource.Quantity { return resource.MustParse(text) }

// asUnstructured is a policy whose spec a test can spoil.
func asUnstructured(policy *guardv1alpha1.SingletonPolicy) *unstructured.Unstructured {
	object := &unstructured.Unstructured{Object: map[string]any{}}
	object.SetAPIVersion(guardv1alpha1.GroupVersion.String())
	object.SetKind(guardv1alpha1.SingletonPolicyKind)
	object.SetName(policy.Name)
	return object
}

// ctxWithoutCancel outlives the test, for what is cleaned up after it.
func ctxWithoutCancel(s *suite) context.Context { return context.WithoutCancel(s.ctx()) }
