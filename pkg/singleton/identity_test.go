package singleton_test

import (
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/singleton"
)

func TestParseIdentity(t *testing.T) {
	cases := []struct {
		reason, holder string
		want           singleton.Identity
		ok             bool
	}{
		{"as this package writes it", "metacontroller-0_8d3f", singleton.Identity{Pod: "metacontroller-0", UID: "8d3f"}, true},
		{"a name with dots", "a.b_c", singleton.Identity{Pod: "a.b", UID: "c"}, true},
		{"nobody", "", singleton.Identity{}, false},
		{"a host alone", "host", singleton.Identity{}, false},
		{"no name", "_uid", singleton.Identity{}, false},
		{"no uid", "pod_", singleton.Identity{}, false},
		{"more parts than two", "a_b_c", singleton.Identity{}, false},
	}
	for _, c := range cases {
		if got, ok := singleton.ParseIdentity(c.holder); got != c.want || ok != c.ok {
			t.Errorf("%s: ParseIdentity(%q) = %+v, %v", c.reason, c.holder, got, ok)
		}
	}
}

func TestIdentityFrom(t *testing.T) {
	cases := []struct {
		reason   string
		pod, uid string
		want     string
	}{
		{"in a Pod", "metacontroller-0", "8d3f", "metacontroller-0_8d3f"},
		{"not in a Pod", "", "", "my-host_random"},
		{"no uid", "metacontroller-0", "", "my-host_random"},
		{"a name that is none", "a_b", "8d3f", "my-host_random"},
	}
	for _, c := range cases {
		env := map[string]string{singleton.EnvPodName: c.pod, singleton.EnvPodUID: c.uid}
		got := singleton.IdentityFrom(func(name string) string { return env[name] }, "my_host", "random")
		if got.String() != c.want {
			t.Errorf("%s: %q, not %q", c.reason, got, c.want)
		}
	}
}

// Whatever the environment says, the guard can read what is written.
func TestIdentityIsReadable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringMatching(`[a-z0-9._-]{0,12}`)
		pod, uid := text.Draw(t, "pod"), text.Draw(t, "uid")
		written := singleton.IdentityFrom(func(name string) string {
			return map[string]string{singleton.EnvPodName: pod, singleton.EnvPodUID: uid}[name]
		}, "host"+text.Draw(t, "host"), "fallback")
		read, ok := singleton.ParseIdentity(written.String())
		if !ok || read != written || strings.Count(written.String(), "_") != 1 {
			t.Fatalf("%+v is read as %+v, %v", written, read, ok)
		}
	})
}

func TestHolderOf(t *testing.T) {
	if !singleton.HolderOf(&coordinationv1.Lease{}).Free() {
		t.Error("an empty lease is held")
	}
	identity, seconds, transitions := "p_u", int32(15), int32(3)
	then := metav1.NewMicroTime(time.Unix(1000, 0))
	held := singleton.HolderOf(&coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{singleton.ProcessAnnotation: "x"}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &identity, LeaseDurationSeconds: &seconds, AcquireTime: &then, RenewTime: &then, LeaseTransitions: &transitions,
		},
	})
	want := singleton.Holder{Identity: "p_u", Process: "x", Since: then.Time, Renewed: then.Time, Duration: 15 * time.Second}
	if held != want || held.Free() {
		t.Errorf("%+v, not %+v", held, want)
	}
}
