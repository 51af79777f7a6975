package call

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
)

func TestHosts(t *testing.T) {
	cases := []struct {
		host, address string
		want          bool
	}{
		{"hooks.demo", "http://hooks.demo/x", true},
		{"HOOKS.Demo", "http://hooks.dEMO:80/x", true},
		{"hooks.demo:80", "http://hooks.demo/x", true},
		{"hooks.demo:443", "https://hooks.demo/x", true},
		{"hooks.demo", "https://hooks.demo:443/x", true},
		{"hooks.demo", "HTTPS://hooks.demo:443/x", true},
		{"hooks.demo:080", "http://hooks.demo", true},
		{"hooks.demo:443", "http://hooks.demo:443/x", true},
		{"hooks.demo", "https://hooks.demo:80/x", false},
		{"hooks.demo", "http://hooks.demo:443/x", false},
		{"hooks.demo:80", "https://hooks.demo/x", false},
		{"hooks.demo:443", "http://hooks.demo/x", false},
		{"hooks.demo", "http://hooks.demo:8080/x", false},
		{"hooks.demo:8080", "http://hooks.demo:8080/x", true},
		{"hooks.demo", "http://a.hooks.demo/x", false},
		{"demo", "http://hooks.demo/x", false},
		{"hooks.demo", "http://user:hooks.demo@other/x", false},
		{"[::1]", "http://[::1]/x", true},
		{"::1", "http://[0:0:0:0:0:0:0:1]:80/x", true},
		{"[::1]:8443", "https://[::1]:8443/x", true},
		{"[::1]:8443", "https://[::1]/x", false},
		{"127.0.0.1", "http://127.0.0.1/x", true},
	}
	for _, c := range cases {
		parsed, err := url.Parse(c.address)
		if err != nil {
			t.Fatal(err)
		}
		host, err := parseHost(c.host)
		if err != nil || host.covers(hostOf(parsed)) != c.want {
			t.Errorf("%s for %s: %+v, %v", c.host, c.address, host, err)
		}
	}
}

func TestTrust(t *testing.T) {
	cases := []struct {
		from, to string
		want     bool
	}{
		{"http://h/a", "http://H:80/b", true},
		{"http://h/a", "https://h/b", true},
		{"http://h:8080/a", "https://h:8080/b", true},
		{"http://h:8080/a", "https://h/b", false},
		{"https://h/a", "http://h/b", false},
		{"https://h/a", "https://h:8443/b", false},
		{"https://h/a", "https://sub.h/b", false},
		{"https://h:443/a", "https://h/b", true},
		{"https://h/a", "http://h:443/b", false},
	}
	for _, c := range cases {
		from, _ := url.Parse(c.from)
		to, _ := url.Parse(c.to)
		if hostOf(from).trusts(hostOf(to)) != c.want {
			t.Errorf("from %s to %s", c.from, c.to)
		}
	}
}

// FuzzHost: a host that is accepted covers an address made of it, however it is
// written, and never that of another name.
func FuzzHost(f *testing.F) {
	for _, seed := range []string{"h", "hooks.demo:80", "[::1]:443", "::1", "a@b", "h/x", "H:", "%41", "h:65536", "[fe80::1%25eth0]", "ü.de"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		host, err := parseHost(text)
		if err != nil {
			return
		}
		if host.name == "" || strings.ContainsAny(host.name, "/@?#") {
			t.Fatalf("%q is %+v", text, host)
		}
		if again, err := parseHost(text); err != nil || again != host {
			t.Fatalf("%q is %+v and %+v", text, host, again)
		}
		if strings.Contains(host.name, ":") {
			return
		}
		for _, scheme := range []string{"http", "https"} {
			address, err := url.Parse(scheme + "://" + text)
			if err != nil {
				continue
			}
			if !host.covers(hostOf(address)) {
				t.Fatalf("%q does not cover %q", text, address)
			}
			address.Host = "x" + address.Host
			if host.covers(hostOf(address)) {
				t.Fatalf("%q covers %q", text, address)
			}
		}
	})
}

// FuzzAuthorization: whatever is in a Secret, there is one header that Go's client
// would send, or an error without it.
func FuzzAuthorization(f *testing.F) {
	for _, seed := range []string{"token", " a b\n", "a\r\nX: y", "ü", "\xff", ""} {
		f.Add(seed, seed)
	}
	f.Fuzz(func(t *testing.T, first, second string) { checkHeader(t, first, second) })
}

// TestAnyAuthorization is FuzzAuthorization with texts that are nearly right.
func TestAnyAuthorization(t *testing.T) {
	text := rapid.OneOf(rapid.String(), rapid.StringMatching(`[ \t\r\n]*[a-z:\x00-\x20\x7f\x80ü]{0,4}[ \r\n]*`),
		rapid.Map(rapid.SliceOf(rapid.Byte()), func(raw []byte) string { return string(raw) }))
	rapid.Check(t, func(rt *rapid.T) { checkHeader(rt, text.Draw(rt, "first"), text.Draw(rt, "second")) })
}

func checkHeader(t interface{ Fatalf(string, ...any) }, first, second string) {
	ref := Reference{Kind: KindSecret, Namespace: "ns", Name: "auth"}
	contents := map[Reference]*Content{ref: {Data: map[string][]byte{"username": []byte(first), "password": []byte(second), "token": []byte(first)}}}
	for _, config := range []v1alpha1.ConnectionConfig{
		{Authorization: &v1alpha1.Authorization{SecretRef: v1alpha1.SecretKeyReference{Namespace: "ns", Name: "auth", Key: "token"}}},
		{BasicAuth: &v1alpha1.BasicAuth{SecretRef: v1alpha1.SecretReference{Namespace: "ns", Name: "auth"}}},
	} {
		checked, err := checkConnection(pathWebhook, config)
		if err != nil {
			t.Fatalf("%v", err)
		}
		made, err := checked.credentials(contents)
		if err != nil {
			if len(first) > 12 && strings.Contains(err.Error(), first) {
				t.Fatalf("%q is in %v", first, err)
			}
			continue
		}
		for _, r := range []byte(made.authorization) {
			if r < ' ' || r > '~' {
				t.Fatalf("%q becomes %q", first, made.authorization)
			}
		}
		request := &http.Request{Header: http.Header{headerAuthorization: {made.authorization}}}
		if user, password, ok := request.BasicAuth(); config.BasicAuth != nil && (!ok || user != strings.TrimSpace(first) || password != strings.TrimSpace(second)) {
			t.Fatalf("%q and %q become %q and %q", first, second, user, password)
		}
	}
}

// Equal credentials share connections, others never do.
func TestIdentityOfCredentials(t *testing.T) {
	texts := rapid.StringMatching(`[a-c]{1,2}`)
	rapid.Check(t, func(rt *rapid.T) {
		draw := func(name string) (string, [32]byte) {
			user, password := texts.Draw(rt, name+" user"), texts.Draw(rt, name+" password")
			ref := Reference{Kind: KindSecret, Namespace: "ns", Name: "auth"}
			checked, err := checkConnection("webhook", v1alpha1.ConnectionConfig{BasicAuth: &v1alpha1.BasicAuth{SecretRef: v1alpha1.SecretReference{Namespace: "ns", Name: "auth"}}})
			if err != nil {
				rt.Fatal(err)
			}
			made, err := checked.credentials(map[Reference]*Content{ref: {Data: map[string][]byte{"username": []byte(user), "password": []byte(password)}}})
			if err != nil {
				rt.Fatal(err)
			}
			return user + ":" + password, made.identity
		}
		one, first := draw("first")
		two, second := draw("second")
		if (one == two) != (first == second) {
			rt.Fatalf("%s and %s have identities %x and %x", one, two, first, second)
		}
	})
}

func enabled(timeout, cleanup *int32) *v1alpha1.WebhookEtagConfig {
	on := true
	return &v1alpha1.WebhookEtagConfig{Enabled: &on, CacheTimeoutSeconds: timeout, CacheCleanupSeconds: cleanup}
}

func TestEtagDefaults(t *testing.T) {
	seconds := func(n int32) *int32 { return &n }
	for _, c := range []struct {
		timeout, cleanup         *int32
		wantTimeout, wantCleanup time.Duration
	}{
		{nil, nil, DefaultEtagTimeout, DefaultEtagCleanup},
		{seconds(0), seconds(-1), DefaultEtagTimeout, DefaultEtagCleanup},
		{seconds(5), nil, 5 * time.Second, DefaultEtagCleanup},
		{nil, seconds(7), DefaultEtagTimeout, 7 * time.Second},
	} {
		if got := newAnswers(enabled(c.timeout, c.cleanup), nil); got.timeout != c.wantTimeout || got.cleanup != c.wantCleanup {
			t.Errorf("%s and %s", got.timeout, got.cleanup)
		}
	}
}

func TestAnswersAreBounded(t *testing.T) {
	a := newAnswers(enabled(nil, nil), clocktesting.NewFakeClock(time.Unix(1e9, 0)))
	defer a.close()
	a.limit = 10 * (answerOverhead + 100)
	for i := range 100 {
		about := fmt.Sprint(i)
		a.put(about, "tag", []byte(strings.Repeat("x", 50)))
		a.mark(about, true)
		// One that is used often stays.
		if _, _, found := a.find("0"); !found {
			t.Fatalf("0 is gone after %d", i)
		}
		if a.bytes > a.limit || len(a.by) != a.recent.Len() {
			t.Fatalf("%d bytes, %d and %d answers", a.bytes, len(a.by), a.recent.Len())
		}
	}
	if len(a.by) < 9 || len(a.by) > 12 {
		t.Errorf("%d answers are kept", len(a.by))
	}
	a.put("0", "tag", make([]byte, a.limit))
	if _, kept := a.by["0"]; kept {
		t.Error("what is larger than everything is kept, or the one before it")
	}
	for about := range a.by {
		a.put(about, "", nil)
	}
	if a.bytes != 0 || a.recent.Len() != 0 {
		t.Errorf("%d bytes are left of nothing", a.bytes)
	}
}

// What is past its time is dropped though nobody asks, and nothing waits when
// there is nothing left.
func TestAnswersAreCleanedUp(t *testing.T) {
	now := clocktesting.NewFakeClock(time.Unix(1e9, 0))
	seconds := func(n int32) *int32 { return &n }
	a := newAnswers(enabled(seconds(100), seconds(60)), now)
	defer a.close()
	kept := func() int {
		a.mu.Lock()
		defer a.mu.Unlock()
		return len(a.by)
	}
	eventually := func(what string, is func() bool) {
		t.Helper()
		for deadline := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(what)
			}
		}
	}
	if now.HasWaiters() {
		t.Error("it waits for nothing")
	}
	a.put("gone", "tag", []byte("body"))
	now.Step(60 * time.Second)
	// The sweep finds nothing to drop and makes the next one due.
	eventually("no further sweep", now.HasWaiters)
	a.put("newer", "tag", []byte("body"))
	now.Step(60 * time.Second)
	eventually("the old one is still there", func() bool { return kept() == 1 })
	eventually("no further sweep", now.HasWaiters)
	now.Step(60 * time.Second)
	eventually("the newer one is still there", func() bool { return kept() == 0 })
	a.put("last", "tag", []byte("body"))
	a.close()
	if now.HasWaiters() || kept() != 0 {
		t.Error("something is left after the end")
	}
	a.put("late", "tag", []byte("body"))
	if now.HasWaiters() || kept() != 0 {
		t.Error("something is kept after the end")
	}
}
