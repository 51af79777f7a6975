package kit_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/metacontroller-solo/solo/test/kit"
)

func TestLink(t *testing.T) {
	echo, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = echo.Close() })
	go func() {
		for {
			conn, err := echo.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(conn, conn) }()
		}
	}()
	link, err := kit.NewLink()
	if err != nil {
		t.Fatal(err)
	}
	defer link.Close()
	link.To(echo.Addr().String())
	conn, err := net.Dial("tcp", link.Address())
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(conn)
	say := func(text string) time.Duration {
		t.Helper()
		sent := time.Now()
		if _, err := io.WriteString(conn, text+"\n"); err != nil {
			t.Fatal(err)
		}
		if got, err := lines.ReadString('\n'); err != nil || got != text+"\n" {
			t.Fatalf("got %q, %v", got, err)
		}
		return time.Since(sent)
	}
	say("at once")
	const delay = 200 * time.Millisecond
	link.Delay(delay)
	if took := say("later"); took < delay {
		t.Errorf("it came back after %s", took)
	}
	link.Delay(0)
	link.Cut()
	if _, err := lines.ReadString('\n'); err == nil {
		t.Error("the connection is not cut")
	}
	if conn, err = net.Dial("tcp", link.Address()); err != nil {
		t.Fatal(err)
	}
	lines = bufio.NewReader(conn)
	say("again")
}

func TestAPIProxy(t *testing.T) {
	cp := kit.Shared(t)
	ns := kit.Namespace(t, cp.AdminConfig(0))
	grant(t, cp, ns)
	config, err := cp.TokenConfig(t.Context(), ns, "proxied")
	if err != nil {
		t.Fatal(err)
	}
	config.ContentType = "application/json"
	proxy := kit.NewAPIProxy(t, cp)
	maps := kubernetes.NewForConfigOrDie(proxy.Through(config)).CoreV1().ConfigMaps(ns)
	admin := kubernetes.NewForConfigOrDie(cp.AdminConfig(0)).CoreV1().ConfigMaps(ns)
	create := func(name string) {
		t.Helper()
		if _, err := admin.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	follow := func() watch.Interface {
		t.Helper()
		list, err := maps.List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: list.ResourceVersion})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	next := func(w watch.Interface) (watch.Event, bool) {
		t.Helper()
		select {
		case event, ok := <-w.ResultChan():
			return event, ok
		case <-time.After(time.Minute):
			t.Fatal("no event")
			return watch.Event{}, false
		}
	}

	w := follow()
	create("a")
	if event, _ := next(w); event.Type != watch.Added {
		t.Errorf("event %v", event)
	}
	proxy.ExpireWatches()
	if event, _ := next(w); event.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
		t.Errorf("event %v", event)
	}
	w = follow()
	proxy.CutWatches()
	if event, ok := next(w); ok && event.Type != watch.Error {
		t.Errorf("event %v", event)
	}
	w = follow()
	proxy.Cut()
	if event, ok := next(w); ok && event.Type != watch.Error {
		t.Errorf("event %v", event)
	}

	const delay = 200 * time.Millisecond
	w = follow()
	proxy.DelayWatches(delay)
	begun := time.Now()
	create("b")
	if event, _ := next(w); event.Type != watch.Added || time.Since(begun) < delay {
		t.Errorf("event %v came after %s", event, time.Since(begun))
	}
	proxy.DelayWatches(0)

	var refused atomic.Bool
	proxy.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		if refused.Swap(true) {
			return false
		}
		kit.TooManyRequests(w, 1)
		return true
	})
	// The client tries again by itself, as the answer says.
	if _, err := maps.List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Error(err)
	}
	proxy.Intercept(nil)
	if counts, _ := proxy.Answered(); counts[http.StatusTooManyRequests] != 1 {
		t.Errorf("answers: %v", counts)
	}

	proxy.Block()
	done := launch(func() error { _, err := maps.List(t.Context(), metav1.ListOptions{}); return err })
	select {
	case err := <-done:
		t.Errorf("a blocked request was answered: %v", err)
	case <-time.After(delay):
	}
	proxy.Unblock()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func launch(do func() error) <-chan error {
	done := make(chan error, 1)
	go func() { done <- do() }()
	return done
}

// grant makes an account that may do what it likes in its namespace.
func grant(t *testing.T, cp *kit.ControlPlane, ns string) {
	t.Helper()
	binding := `
apiVersion: v1
kind: ServiceAccount
metadata: {name: proxied, namespace: ` + ns + `}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: anything, namespace: ` + ns + `}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: admin}
subjects:
- {kind: ServiceAccount, name: proxied, namespace: ` + ns + `}
`
	if _, err := kit.ApplyYAML(t.Context(), cp.AdminConfig(0), []byte(binding)); err != nil {
		t.Fatal(err)
	}
}
