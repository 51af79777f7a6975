package node_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/rest"

	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/node/service"
)

// serving makes a Pod that answers HTTP on a port of its own address, and is ready when it does.
func serving(port int32) func(*corev1.Pod) {
	return func(pod *corev1.Pod) {
		c := &pod.Spec.Containers[0]
		c.Image, c.Args = helper, []string{"serve", "$(POD_IP):" + strconv.Itoa(int(port))}
		c.Env = []corev1.EnvVar{{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}}
		c.Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: port}}
		c.ReadinessProbe = &corev1.Probe{PeriodSeconds: 1, FailureThreshold: 30, TimeoutSeconds: 5, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/health", Port: intstr.FromString("http")}}}
	}
}

func TestService(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	proxy, err := service.Start(t.Context(), service.Options{Config: w.cp.AdminConfig(0), Range: netip.MustParsePrefix(kit.ServiceCIDR)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Stop)
	labels := map[string]string{"role": "guard"}
	object, err := w.client.CoreV1().Services(w.namespace).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "guard"},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Name: "web", Port: 8443, TargetPort: intstr.FromString("http")}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort(object.Spec.ClusterIP, "8443")
	refused := func() error {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			_ = conn.Close()
			return errors.New("it is accepted")
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return err
		}
		return nil
	}
	if err := refused(); err != nil {
		t.Errorf("a service without pods: %v", err)
	}
	role := func(pod *corev1.Pod) { pod.Labels = labels }
	w.pod(n, "a", "", serving(18082), role)
	w.pod(n, "b", "", serving(18082), role)
	a, b := w.until("a", "ready", ready), w.until("b", "ready", ready)
	seen := map[string]bool{}
	w.eventually(func() error {
		body, err := httpGet("http://" + address)
		seen[body] = true
		if err == nil && (!seen["a"] || !seen["b"]) {
			err = fmt.Errorf("only %v answer", seen)
		}
		return err
	})
	// From here on no request fails, though one of the two is killed.
	stop, failed := make(chan struct{}), make(chan error, 1)
	var asked atomic.Int64
	go func() {
		for {
			select {
			case <-stop:
				failed <- nil
				return
			default:
			}
			if _, err := httpGet("http://" + address); err != nil {
				failed <- err
				return
			}
			asked.Add(1)
		}
	}()
	w.delete("a", metav1.DeleteOptions{})
	w.untilGone(a)
	// More requests, now without a.
	enough := asked.Load() + 20
	w.eventually(func() error {
		if n := asked.Load(); n < enough && len(failed) == 0 {
			return fmt.Errorf("%d requests of %d", n, enough)
		}
		return nil
	})
	close(stop)
	if err := <-failed; err != nil {
		t.Errorf("a request failed while a pod went: %v", err)
	}
	if body, err := httpGet("http://" + address); err != nil || body != "b" {
		t.Errorf("%q, %v", body, err)
	}
	w.delete("b", metav1.DeleteOptions{})
	w.untilGone(b)
	w.eventually(refused)
	w.pod(n, "c", "", serving(18082), role)
	w.until("c", "ready", ready)
	w.eventually(func() error { _, err := httpGet("http://" + address); return err })
	if err := w.client.CoreV1().Services(w.namespace).Delete(t.Context(), "guard", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually(refused)
}

func TestLogs(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	w.pod(n, "p", `if [ -e "$HOME/x" ]; then echo one; echo two; while [ ! -e "$HOME/y" ]; do sleep 0.1; done; echo three; exec sleep 600; fi; touch "$HOME/x"; echo before`)
	w.until("p", "restarted", func(pod *corev1.Pod) bool { return ready(pod) && pod.Status.ContainerStatuses[0].RestartCount == 1 })
	w.untilLog("p", "two\n")
	one, none := int64(1), int64(0)
	for _, c := range []struct {
		options corev1.PodLogOptions
		want    string
	}{
		{corev1.PodLogOptions{}, "one\ntwo\n"},
		{corev1.PodLogOptions{TailLines: &one}, "two\n"},
		{corev1.PodLogOptions{TailLines: &none}, ""},
		{corev1.PodLogOptions{Previous: true}, "before\n"},
		{corev1.PodLogOptions{LimitBytes: &[]int64{5}[0]}, "one\nt"},
		{corev1.PodLogOptions{SinceTime: &metav1.Time{Time: time.Now().Add(time.Hour)}}, ""},
		{corev1.PodLogOptions{SinceSeconds: &[]int64{3600}[0]}, "one\ntwo\n"},
	} {
		if got := w.logs("p", c.options); got != c.want {
			t.Errorf("%+v: %q, want %q", c.options, got, c.want)
		}
	}
	if stamped := w.logs("p", corev1.PodLogOptions{Timestamps: true}); !strings.HasPrefix(stamped, strconv.Itoa(time.Now().UTC().Year())+"-") {
		t.Errorf("timestamps: %q", stamped)
	}
	// A follower sees what comes, and its end when the pod goes.
	stream, err := w.client.CoreV1().Pods(w.namespace).GetLogs("p", &corev1.PodLogOptions{Follow: true, TailLines: &one}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = stream.Close() }()
	if out, err := w.kubectl("exec", "p", "--", "/bin/sh", "-c", `echo "$HOSTNAME"; touch "$HOME/y"`); err != nil || out != "p\n" {
		t.Errorf("exec: %q, %v", out, err)
	}
	for _, want := range []string{"two\n", "three\n"} {
		line := make([]byte, len(want))
		if _, err := io.ReadFull(stream, line); err != nil || string(line) != want {
			t.Errorf("following: %q, %v, want %q", line, err, want)
		}
	}
	w.delete("p", metav1.DeleteOptions{})
	if rest, err := io.ReadAll(stream); err != nil || len(rest) > 0 {
		t.Errorf("at the end: %q, %v", rest, err)
	}
	// kubectl itself, and its errors.
	w.pod(n, "q", "echo hello >&2; exec sleep 600")
	w.until("q", "ready", ready)
	w.untilLog("q", "hello\n")
	if out, err := w.kubectl("logs", "q", "--tail=1"); err != nil || out != "hello\n" {
		t.Errorf("kubectl logs: %q, %v", out, err)
	}
	if _, err := w.kubectl("logs", "q", "--previous"); err == nil || !strings.Contains(err.Error(), "no such log") {
		t.Errorf("kubectl logs --previous: %v", err)
	}
	if err := w.run("exec", "q", "--", "/bin/sh", "-c", "exit 9"); err == nil || !strings.Contains(err.Error(), "exit code 9") {
		t.Errorf("kubectl exec: %v", err)
	}
}

// The kubelet API wants a certificate, and the right to use the node.
func TestKubeletAPIIsGuarded(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	options := w.options()
	n := w.start(options)
	object, err := w.client.CoreV1().Nodes().Get(t.Context(), n.Name(), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	url := fmt.Sprintf("https://%s/pods", netip.AddrPortFrom(options.Address, uint16(object.Status.DaemonEndpoints.KubeletEndpoint.Port)))
	ask := func(config *rest.Config) (int, error) {
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		defer client.CloseIdleConnections()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := client.Do(request)
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	if status, err := ask(w.cp.AnonymousConfig(0)); err == nil {
		t.Errorf("without a certificate: status %d", status)
	}
	if status, err := ask(w.options().Config); err != nil || status != http.StatusForbidden {
		t.Errorf("another node: status %d, %v", status, err)
	}
	if status, err := ask(w.cp.AdminConfig(0)); err != nil || status != http.StatusOK {
		t.Errorf("the administrator: status %d, %v", status, err)
	}
}
