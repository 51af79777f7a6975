package environ

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Field resolves a field of the Pod for the downward API
// (https://kubernetes.io/docs/concepts/workloads/pods/downward-api/). The addresses are given apart, for the Pod's status may not have them yet.
func Field(path string, pod *corev1.Pod, podIP, hostIP string) (string, error) {
	if name, key, ok := subscript(path); ok {
		switch name {
		case "metadata.labels":
			return pod.Labels[key], nil
		case "metadata.annotations":
			return pod.Annotations[key], nil
		}
		return "", fmt.Errorf("cannot resolve field %q", path)
	}
	switch path {
	case "metadata.name":
		return pod.Name, nil
	case "metadata.namespace":
		return pod.Namespace, nil
	case "metadata.uid":
		return string(pod.UID), nil
	case "metadata.labels":
		return format(pod.Labels), nil
	case "metadata.annotations":
		return format(pod.Annotations), nil
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.podIP", "status.podIPs":
		return podIP, nil
	case "status.hostIP", "status.hostIPs":
		return hostIP, nil
	}
	return "", fmt.Errorf("cannot resolve field %q", path)
}

// subscript splits metadata.labels['key'].
func subscript(path string) (name, key string, ok bool) {
	name, rest, ok := strings.Cut(path, "['")
	if !ok {
		return "", "", false
	}
	key, ok = strings.CutSuffix(rest, "']")
	return name, key, ok
}

// format writes a map as the downward API does: sorted, a quoted value per line.
func format(m map[string]string) string {
	lines := make([]string, 0, len(m))
	for _, key := range slices.Sorted(maps.Keys(m)) {
		lines = append(lines, key+"="+strconv.Quote(m[key]))
	}
	return strings.Join(lines, "\n")
}

// Resource resolves a container's resource. A limit that is not set is what the node can give. The selector may name
// another container of the Pod, as volumes do.
func Resource(selector *corev1.ResourceFieldSelector, container *corev1.Container, pod *corev1.Pod, allocatable corev1.ResourceList) (string, error) {
	if selector.ContainerName != "" {
		container = find(pod, selector.ContainerName)
	}
	if container == nil {
		return "", fmt.Errorf("cannot find container %q for resource %q", selector.ContainerName, selector.Resource)
	}
	kind, name, ok := strings.Cut(selector.Resource, ".")
	if !ok || kind != "limits" && kind != "requests" {
		return "", fmt.Errorf("cannot resolve resource %q", selector.Resource)
	}
	list := container.Resources.Requests
	if kind == "limits" {
		list = container.Resources.Limits
	}
	quantity, set := list[corev1.ResourceName(name)]
	if !set && kind == "limits" {
		quantity = allocatable[corev1.ResourceName(name)]
	}
	divisor := selector.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if name == string(corev1.ResourceCPU) {
		return strconv.FormatInt(int64(math.Ceil(float64(quantity.MilliValue())/float64(divisor.MilliValue()))), 10), nil
	}
	return strconv.FormatInt(int64(math.Ceil(float64(quantity.Value())/float64(divisor.Value()))), 10), nil
}

func find(pod *corev1.Pod, name string) *corev1.Container {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i]
			}
		}
	}
	return nil
}
