package cluster

import (
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const probeName = "guard-probe"

// probePod is an instance that no policy admits.
func probePod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: probeName}, Spec: probeSpec()}
}

// probeDeployment is a workload of a kind that never may hold the slot.
func probeDeployment() *appsv1.Deployment {
	labels := map[string]string{"app": probeName}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: probeName},
		Spec: appsv1.DeploymentSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: probeSpec()},
		},
	}
}

func probeSpec() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "metacontroller", Image: "ghcr.io/metacontroller/metacontroller:v4.17.2"}}}
}
