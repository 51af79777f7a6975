package service

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Table computes which addresses lead where: each TCP port of each cluster IP within the range to the addresses of the ready Pods that the
// Service selects. An address without a ready Pod has an empty list. It is pure.
func Table(services []*corev1.Service, pods []*corev1.Pod, within netip.Prefix) map[netip.AddrPort][]netip.AddrPort {
	table := map[netip.AddrPort][]netip.AddrPort{}
	for _, service := range services {
		ip, err := netip.ParseAddr(service.Spec.ClusterIP)
		if err != nil || !within.Contains(ip) || len(service.Spec.Selector) == 0 {
			continue
		}
		selector := labels.SelectorFromSet(service.Spec.Selector)
		for _, port := range service.Spec.Ports {
			if port.Protocol != corev1.ProtocolTCP && port.Protocol != "" {
				continue
			}
			backends := []netip.AddrPort{}
			for _, pod := range pods {
				if pod.Namespace != service.Namespace || !selector.Matches(labels.Set(pod.Labels)) || !serves(pod, service) {
					continue
				}
				address, err := netip.ParseAddr(pod.Status.PodIP)
				target := targetPort(port, pod)
				if err != nil || target == 0 {
					continue
				}
				backends = append(backends, netip.AddrPortFrom(address, target))
			}
			slices.SortFunc(backends, netip.AddrPort.Compare)
			table[netip.AddrPortFrom(ip, uint16(port.Port))] = backends
		}
	}
	return table
}

// serves reports whether a Pod takes connections of the Service.
func serves(pod *corev1.Pod, service *corev1.Service) bool {
	if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	if service.Spec.PublishNotReadyAddresses {
		return true
	}
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// targetPort is 0 if the Pod has no port of that name.
func targetPort(port corev1.ServicePort, pod *corev1.Pod) uint16 {
	switch {
	case port.TargetPort.Type == intstr.String:
		for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			for _, named := range container.Ports {
				if named.Name == port.TargetPort.StrVal {
					return uint16(named.ContainerPort)
				}
			}
		}
		return 0
	case port.TargetPort.IntVal != 0:
		return uint16(port.TargetPort.IntVal)
	}
	return uint16(port.Port)
}
