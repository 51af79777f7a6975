package service

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func pod(name, ip string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{"app": "x", "name": name}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}}},
		Status:     corev1.PodStatus{PodIP: ip, Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	}
	for _, c := range change {
		c(pod)
	}
	return pod
}

func service(ip string, selector map[string]string, ports ...corev1.ServicePort) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns"}, Spec: corev1.ServiceSpec{ClusterIP: ip, Selector: selector, Ports: ports}}
}

func TestTable(t *testing.T) {
	now := metav1.Now()
	notReady := func(pod *corev1.Pod) { pod.Status.Conditions[0].Status = corev1.ConditionFalse }
	pods := []*corev1.Pod{
		pod("b", "127.1.0.2"), pod("a", "127.1.0.1"),
		pod("unready", "127.1.0.3", notReady),
		pod("ending", "127.1.0.4", func(pod *corev1.Pod) { pod.DeletionTimestamp = &now }),
		pod("done", "127.1.0.5", func(pod *corev1.Pod) { pod.Status.Phase = corev1.PodSucceeded }),
		pod("no-address", ""),
		pod("elsewhere", "127.1.0.6", func(pod *corev1.Pod) { pod.Namespace = "other" }),
		pod("no-port", "127.1.0.7", func(pod *corev1.Pod) { pod.Labels["app"] = "y"; pod.Spec.Containers[0].Ports = nil }),
	}
	x := map[string]string{"app": "x"}
	http := corev1.ServicePort{Port: 80, TargetPort: intstr.FromString("http")}
	number := corev1.ServicePort{Port: 81, TargetPort: intstr.FromInt32(9000), Protocol: corev1.ProtocolTCP}
	same := corev1.ServicePort{Port: 82}
	udp := corev1.ServicePort{Port: 53, Protocol: corev1.ProtocolUDP}
	anyone := service("127.96.0.2", map[string]string{"name": "unready"}, number)
	anyone.Spec.PublishNotReadyAddresses = true
	got := Table([]*corev1.Service{
		service("127.96.0.1", x, http, number, same, udp),
		anyone,
		service("127.96.0.3", map[string]string{"app": "y"}, http),
		service("127.96.0.4", nil, http),
		service("None", x, http),
		service("10.0.0.1", x, http),
	}, pods, netip.MustParsePrefix("127.96.0.0/16"))
	at := netip.MustParseAddrPort
	want := map[netip.AddrPort][]netip.AddrPort{
		at("127.96.0.1:80"): {at("127.1.0.1:8080"), at("127.1.0.2:8080")},
		at("127.96.0.1:81"): {at("127.1.0.1:9000"), at("127.1.0.2:9000")},
		at("127.96.0.1:82"): {at("127.1.0.1:82"), at("127.1.0.2:82")},
		at("127.96.0.2:81"): {at("127.1.0.3:9000")},
		at("127.96.0.3:80"): {},
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}
