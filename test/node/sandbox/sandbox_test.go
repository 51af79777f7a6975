package sandbox

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake" //nolint:depguard // A real API server grants no token for less than ten minutes, and its renewal is what is tested.
	clienttesting "k8s.io/client-go/testing"
	clocktesting "k8s.io/utils/clock/testing"

	"pgregory.net/rapid"
)

// A token is asked for again when four fifths of its life are over, kept while the API server cannot be asked, and given up at its end. The
// API server's shortest token lives ten minutes, so this is the one test without it.
func TestTokenIsRenewed(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	client := fake.NewClientset()
	asked, down := 0, false
	client.PrependReactor("create", "serviceaccounts", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if down {
			return true, nil, errors.New("down")
		}
		asked++
		request := action.(clienttesting.CreateAction).GetObject().(*authenticationv1.TokenRequest)
		if bound := request.Spec.BoundObjectRef; bound == nil || bound.Kind != "Pod" || bound.Name != "p" || bound.UID != "u" {
			t.Errorf("the token is bound to %+v", bound)
		}
		life := time.Duration(*request.Spec.ExpirationSeconds) * time.Second
		request.Status = authenticationv1.TokenRequestStatus{Token: fmt.Sprint(asked), ExpirationTimestamp: metav1.NewTime(clock.Now().Add(life))}
		return true, request, nil
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}, Spec: corev1.PodSpec{ServiceAccountName: "sa"}}
	from := source{&Pod{config: &Config{Client: client, Clock: clock}}, pod}
	seconds := int64(1000)
	projection := &corev1.ServiceAccountTokenProjection{ExpirationSeconds: &seconds}
	for _, c := range []struct {
		pass time.Duration
		down bool
		want string
	}{
		{0, false, "1"}, {799 * time.Second, false, "1"}, {time.Second, false, "2"},
		{900 * time.Second, true, "2"}, {99 * time.Second, true, "2"}, {2 * time.Second, true, ""}, {0, false, "3"},
	} {
		clock.Step(c.pass)
		down = c.down
		got, err := from.Token(context.Background(), projection)
		if got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("after %s more: %q, %v, want %q", c.pass, got, err, c.want)
		}
	}
}

func TestGracePeriod(t *testing.T) {
	n := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		deletion, spec *int64
		want           time.Duration
	}{
		{nil, nil, time.Second}, {nil, n(30), 30 * time.Second}, {n(5), n(30), 5 * time.Second}, {n(0), n(30), time.Second}, {nil, n(0), time.Second}, {n(60), n(30), time.Minute},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionGracePeriodSeconds: c.deletion}, Spec: corev1.PodSpec{TerminationGracePeriodSeconds: c.spec}}
		if got := gracePeriod(pod); got != c.want {
			t.Errorf("%v, %v: %s, want %s", c.deletion, c.spec, got, c.want)
		}
	}
}

func TestImages(t *testing.T) {
	images, err := Images{
		"ghcr.io/metacontroller/metacontroller": {Path: "/bin/mc", Args: []string{"lead"}, Entrypoints: []string{"/usr/bin/metacontroller"}},
		"nginx":                                 {Path: "/bin/nginx"},
	}.normal()
	if err != nil {
		t.Fatal(err)
	}
	for image, want := range map[string]string{
		"ghcr.io/metacontroller/metacontroller":         "/bin/mc",
		"ghcr.io/metacontroller/metacontroller:v4.17.2": "/bin/mc",
		"ghcr.io/metacontroller/metacontroller@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef": "/bin/mc",
		"nginx": "/bin/nginx", "docker.io/library/nginx:1": "/bin/nginx", "index.docker.io/library/nginx": "/bin/nginx",
	} {
		if got, err := images.find(image); err != nil || got.Path != want {
			t.Errorf("%s: %q, %v, want %q", image, got.Path, err, want)
		}
	}
	for _, image := range []string{"", "UPPER", "ghcr.io/metacontroller/other", "metacontroller/metacontroller", "ghcr.io/metacontroller/metacontroller-x:v1"} {
		if got, err := images.find(image); err == nil {
			t.Errorf("%q is %q", image, got.Path)
		}
	}
	mc, _ := images.find("ghcr.io/metacontroller/metacontroller")
	for _, c := range []struct{ command, args, want string }{
		{"", "a b", "/bin/mc lead a b"}, {"/usr/bin/metacontroller x", "a", "/bin/mc lead x a"}, {"/bin/sh -c", "true", "/bin/sh -c true"}, {"", "", "/bin/mc lead"},
	} {
		path, args := mc.command(strings.Fields(c.command), strings.Fields(c.args))
		if got := strings.Join(append([]string{path}, args...), " "); got != c.want {
			t.Errorf("%q %q: %q, want %q", c.command, c.args, got, c.want)
		}
	}
}

// No address is given twice, and every one is given again.
func TestAddresses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, err := NewAddresses(netip.MustParsePrefix("127.99.0.0/29"))
		if err != nil {
			t.Fatal(err)
		}
		if a.Len() != 6 {
			t.Fatalf("%d addresses", a.Len())
		}
		var taken []netip.Addr
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			if len(taken) > 0 && rapid.Bool().Draw(t, "give") {
				i := rapid.IntRange(0, len(taken)-1).Draw(t, "which")
				a.give(taken[i])
				taken = append(taken[:i], taken[i+1:]...)
				continue
			}
			addr, err := a.take()
			if (err == nil) != (len(taken) < a.Len()) {
				t.Fatalf("%d taken: %v", len(taken), err)
			}
			if err != nil {
				continue
			}
			for _, other := range taken {
				if other == addr {
					t.Fatalf("%s is given twice", addr)
				}
			}
			taken = append(taken, addr)
		}
	})
}

func TestUnsupported(t *testing.T) {
	probe := &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{}}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c"}}}}
	if err := unsupported(pod); err != nil {
		t.Error(err)
	}
	pod.Spec.Containers[0].LivenessProbe = probe
	if err := unsupported(pod); err == nil || !strings.Contains(err.Error(), "gRPC") {
		t.Errorf("error %v", err)
	}
}
