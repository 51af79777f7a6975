package call_test

import (
	"encoding/base64"
	"errors"
	"fmt"

	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/hook/call"
)

func TestAuthorizationHeader(t *testing.T) {
	typed := func(scheme string) v1alpha1.ConnectionConfig {
		connection := bearer()
		connection.Authorization.Type = scheme
		return connection
	}
	keyed := basic()
	keyed.BasicAuth.UsernameKey, keyed.BasicAuth.PasswordKey = "u", "p"
	user := func(name, password string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(name+":"+password))
	}
	const token = "s3cr3t-t0ken"
	cases := []struct {
		reason     string
		connection v1alpha1.ConnectionConfig
		secret     map[string]string
		want       string
		// fails is what the error says.
		fails []string
	}{
		{"nothing", v1alpha1.ConnectionConfig{}, nil, "", nil},
		{"bearer", bearer(), map[string]string{"token": token}, "Bearer " + token, nil},
		{"trimmed", bearer(), map[string]string{"token": " \t" + token + "\r\n"}, "Bearer " + token, nil},
		{"another scheme", typed(" ApiKey "), map[string]string{"token": token}, "ApiKey " + token, nil},
		{"token with spaces", typed("Digest"), map[string]string{"token": `a="b", c="d"`}, `Digest a="b", c="d"`, nil},
		{"basic", basic(), map[string]string{"username": "me\n", "password": token + "\n"}, user("me", token), nil},
		{"basic, other keys", keyed, map[string]string{"u": "me", "p": token}, user("me", token), nil},
		{"basic, colon in the password", basic(), map[string]string{"username": "me", "password": "a:b:" + token}, user("me", "a:b:"+token), nil},
		{"basic, not ASCII", basic(), map[string]string{"username": "mé", "password": "pä§"}, user("mé", "pä§"), nil},
		{"basic, no password", basic(), map[string]string{"username": "key", "password": ""}, user("key", ""), nil},

		{"no Secret", bearer(), nil, "", []string{"webhook.authorization", `Secret "ns/auth"`, "does not exist"}},
		{"no key", bearer(), map[string]string{"other": token}, "", []string{`key "token"`, `Secret "ns/auth"`, "is not there"}},
		{"empty", bearer(), map[string]string{"token": " \n"}, "", []string{`key "token"`, "is empty"}},
		{"another header in it", bearer(), map[string]string{"token": token + "\r\nX-Admin: yes"}, "", []string{`key "token"`, "control characters"}},
		{"a zero byte in it", bearer(), map[string]string{"token": token + "\x00x"}, "", []string{"control characters"}},
		{"not ASCII", bearer(), map[string]string{"token": token + "ü"}, "", []string{"not allowed in a header"}},
		{"not UTF-8", bearer(), map[string]string{"token": token + "\xff"}, "", []string{"not allowed in a header"}},
		{"no Secret of basicAuth", basic(), nil, "", []string{"webhook.basicAuth", `Secret "ns/auth"`, "does not exist"}},
		{"no user", basic(), map[string]string{"password": token}, "", []string{`key "username"`, "is not there"}},
		{"no password key", basic(), map[string]string{"username": "me"}, "", []string{`key "password"`, "is not there"}},
		{"colon in the user", basic(), map[string]string{"username": "me:" + token, "password": "x"}, "", []string{`key "username"`, "colon"}},
		{"neither", basic(), map[string]string{"username": "", "password": " "}, "", []string{"is empty"}},
		{"line break in the password", basic(), map[string]string{"username": "me", "password": token + "\nx"}, "", []string{`key "password"`, "control characters"}},
	}
	for _, c := range cases {
		t.Run(c.reason, func(t *testing.T) {
			var got atomic.Value
			got.Store("never called")
			server := serve(t, func(_ http.ResponseWriter, r *http.Request) { got.Store(r.Header.Get("Authorization")) })
			sources := &cluster{}
			if c.secret != nil {
				sources.put(call.KindSecret, "auth", c.secret)
			}
			_, err := connected(t, newPool(sources), server.URL, c.connection).Call(t.Context(), "", nil)
			if c.fails == nil {
				if err != nil || got.Load() != c.want {
					t.Errorf("header is %q, %v", got.Load(), err)
				}
				return
			}
			text := credentialError(t, err).Error()
			for _, part := range c.fails {
				if !strings.Contains(text, part) {
					t.Errorf("it does not say %q: %s", part, text)
				}
			}
			if strings.Contains(text, token) || got.Load() != "never called" {
				t.Errorf("called with %q, said %q", got.Load(), text)
			}
		})
	}
}

// A new token is used by the next call, on a connection of its own; those of the
// old one are closed.
func TestRotationOfAToken(t *testing.T) {
	var mu sync.Mutex
	var seen []string // guarded by mu
	closed := make(chan string, 10)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, r.Header.Get("Authorization")+" from "+r.RemoteAddr)
	}))
	server.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			closed <- conn.RemoteAddr().String()
		}
	}
	server.Start()
	defer server.Close()
	sources := &cluster{}
	sources.put(call.KindSecret, "auth", map[string]string{"token": "one"})
	pool := newPool(sources)
	caller, twin := connected(t, pool, server.URL, bearer()), connected(t, pool, server.URL, bearer())
	ask := func(caller *call.Caller) (header, from string) {
		t.Helper()
		if _, err := caller.Call(t.Context(), "", nil); err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		defer mu.Unlock()
		header, from, _ = strings.Cut(seen[len(seen)-1], " from ")
		return header, from
	}
	_, first := ask(caller)
	if _, second := ask(twin); second != first {
		t.Errorf("two hooks of one host and token have connections %s and %s", first, second)
	}
	// The Secret changes, and what is used of it does not.
	sources.put(call.KindSecret, "auth", map[string]string{"token": "one", "other": "x"})
	if header, from := ask(caller); header != "Bearer one" || from != first {
		t.Errorf("%s from %s, not %s", header, from, first)
	}
	sources.put(call.KindSecret, "auth", map[string]string{"token": "two"})
	if header, from := ask(caller); header != "Bearer two" || from == first {
		t.Errorf("%s from %s", header, from)
	}
	if header, _ := ask(twin); header != "Bearer two" {
		t.Errorf("the twin sends %s", header)
	}
	if gone := <-closed; gone != first {
		t.Errorf("%s was closed, not %s", gone, first)
	}
	// So are those of a token that is gone.
	_, second := ask(caller)
	sources.put(call.KindSecret, "auth", nil)
	for _, one := range []*call.Caller{caller, twin} {
		_, err := one.Call(t.Context(), "", nil)
		_ = credentialError(t, err) // fails the test for another error
	}
	if gone := <-closed; gone != second {
		t.Errorf("%s was closed, not %s", gone, second)
	}
}

// A Caller follows what it needs from its first call to its end, and no longer.
func TestSourcesComeAndGo(t *testing.T) {
	server := serve(t, func(http.ResponseWriter, *http.Request) {})
	sources := &cluster{}
	caller := connected(t, newPool(sources), server.URL, basic())
	if open, _ := sources.counts(); open != 0 {
		t.Errorf("%d are followed before the first call", open)
	}
	for range 2 {
		text := credentialError(t, func() error { _, err := caller.Call(t.Context(), "", nil); return err }()).Error()
		if !strings.Contains(text, "does not exist") {
			t.Error(text)
		}
	}
	// It works as soon as the Secret is there.
	sources.put(call.KindSecret, "auth", map[string]string{"username": "a", "password": "b"})
	if _, err := caller.Call(t.Context(), "", nil); err != nil {
		t.Error(err)
	}
	sources.fail(errors.New("secrets is forbidden"))
	_, err := caller.Call(t.Context(), "", nil)
	if found := credentialError(t, err); found.Field != "webhook.basicAuth" || !strings.Contains(err.Error(), "secrets is forbidden") || !strings.Contains(err.Error(), "list and watch") {
		t.Error(err)
	}
	if open, opened := sources.counts(); open != 1 || opened != 1 {
		t.Errorf("%d are followed, %d were", open, opened)
	}
	caller.Close()
	caller.Close()
	if open, _ := sources.counts(); open != 0 {
		t.Errorf("%d are followed after the end", open)
	}
	if _, err := caller.Call(t.Context(), "", nil); err == nil {
		t.Error("a closed Caller calls")
	}
}

// What a hook echoes of the credentials does not get into the error.
func TestCredentialsAreNotInErrors(t *testing.T) {
	sources := &cluster{}
	sources.put(call.KindSecret, "auth", map[string]string{"token": "hush-hush", "username": "me", "password": "pssst-pssst"})
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		_, password, _ := r.BasicAuth()
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprintf(w, "refused %s and %s; %s", r.Header.Get("Authorization"), password, strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	})
	address := strings.Replace(server.URL, "http://", "http://me:inTheURL@", 1) + "?key=inTheQuery"
	for reason, connection := range map[string]v1alpha1.ConnectionConfig{"bearer": bearer(), "basic": basic(), "address": {}} {
		_, err := connected(t, newPool(sources), address, connection).Call(t.Context(), "", nil)
		var status *call.StatusError
		if !errors.As(err, &status) || !strings.Contains(status.Excerpt, "refused") {
			t.Errorf("%s: %v", reason, err)
		}
		for _, secret := range []string{"hush-hush", "pssst", "inTheURL", "inTheQuery", base64.StdEncoding.EncodeToString([]byte("me:pssst-pssst"))} {
			if strings.Contains(err.Error(), secret) {
				t.Errorf("%s: %q is in %v", reason, secret, err)
			}
		}
	}
}

func TestRefusedConnections(t *testing.T) {
	ref := func(name, namespace string) v1alpha1.SecretReference {
		return v1alpha1.SecretReference{Name: name, Namespace: namespace}
	}
	bundle := func(b v1alpha1.CABundle) v1alpha1.ConnectionConfig { return v1alpha1.ConnectionConfig{CABundle: &b} }
	both := bearer()
	both.BasicAuth = basic().BasicAuth
	scheme := func(text string) v1alpha1.ConnectionConfig {
		connection := bearer()
		connection.Authorization.Type = text
		return connection
	}
	key := func(text string) v1alpha1.ConnectionConfig {
		connection := bearer()
		connection.Authorization.SecretRef.Key = text
		return connection
	}
	good := &v1alpha1.CABundleKeyReference{Name: "a", Namespace: "b"}
	cases := []struct {
		reason     string
		connection v1alpha1.ConnectionConfig
		says       []string
	}{
		{"both", both, []string{".authorization and ", ".basicAuth", "exclude"}},
		{"basic as a type", scheme("basic"), []string{".authorization", "basicAuth"}},
		{"two words", scheme("Bearer x"), []string{".authorization", "one word"}},
		{"a header in the type", scheme("Bearer\r\nX: y"), []string{".authorization", "one word"}},
		{"no key", key(""), []string{".authorization", "secretRef.key is empty"}},
		{"no possible key", key("a/b"), []string{".authorization", `"a/b"`}},
		{"no bundle", bundle(v1alpha1.CABundle{}), []string{".caBundle", "exactly one", "0"}},
		{"two bundles", bundle(v1alpha1.CABundle{SecretRef: good, ConfigMapRef: good}), []string{".caBundle", "exactly one", "2"}},
		{"an empty bundle", bundle(v1alpha1.CABundle{Inline: ptr("")}), []string{".caBundle", "PEM"}},
		{"no bundle's name", bundle(v1alpha1.CABundle{ConfigMapRef: &v1alpha1.CABundleKeyReference{Namespace: "b"}}), []string{".caBundle", "configMapRef", "name"}},
		{"a path as a namespace", v1alpha1.ConnectionConfig{ClientTLS: &v1alpha1.ClientTLS{SecretRef: ref("a", "../x")}}, []string{".clientTLS", "secretRef.namespace"}},
		{"no namespace", v1alpha1.ConnectionConfig{ClientTLS: &v1alpha1.ClientTLS{SecretRef: ref("a", "")}}, []string{".clientTLS", "namespace"}},
		{"no name", v1alpha1.ConnectionConfig{BasicAuth: &v1alpha1.BasicAuth{SecretRef: ref("", "a")}}, []string{".basicAuth", "name"}},
		{"no possible name", v1alpha1.ConnectionConfig{BasicAuth: &v1alpha1.BasicAuth{SecretRef: ref("A B", "a")}}, []string{".basicAuth", `"A B"`}},
	}
	pool := newPool(&cluster{})
	check := func(reason string, err error, path string, says []string) {
		t.Helper()
		if err == nil {
			t.Errorf("%s: not refused", reason)
			return
		}
		for _, part := range append([]string{path}, says...) {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s: it does not say %q: %v", reason, part, err)
			}
		}
	}
	for _, c := range cases {
		_, err := pool.Caller(syncHook, &v1alpha1.Webhook{URL: ptr("https://h"), ConnectionConfig: c.connection}, nil)
		check(c.reason, err, "webhook.", c.says)
		_, err = pool.Caller(syncHook, &v1alpha1.Webhook{URL: ptr("https://h")}, []v1alpha1.EndpointConfig{{Host: "first"}, {Host: "h", ConnectionConfig: c.connection}})
		check(c.reason+", endpoint", err, "spec.endpointConfigs[1].", c.says)
	}
	for _, host := range []string{"", "https://h", "h/path", "h:port", "h:0", "h:70000", "user@h", "h?x", "a b", ":80"} {
		_, err := pool.Caller(syncHook, &v1alpha1.Webhook{URL: ptr("https://h")}, []v1alpha1.EndpointConfig{{Host: host}})
		check("host "+host, err, "spec.endpointConfigs[0].host", nil)
	}
}

func TestEndpointConfigs(t *testing.T) {
	var got atomic.Value
	server := serve(t, func(_ http.ResponseWriter, r *http.Request) { got.Store(r.Header.Get("Authorization")) })
	sources := &cluster{}
	sources.put(call.KindSecret, "auth", map[string]string{"token": "theirs", "username": "me", "password": "p"})
	sources.put(call.KindSecret, "other", map[string]string{"token": "other"})
	other := bearer()
	other.Authorization.SecretRef.Name = "other"
	here := strings.TrimPrefix(server.URL, "http://")
	pool := newPool(sources)
	cases := []struct {
		reason    string
		own       v1alpha1.ConnectionConfig
		endpoints []v1alpha1.EndpointConfig
		want      string
	}{
		{"one that matches", v1alpha1.ConnectionConfig{}, []v1alpha1.EndpointConfig{{Host: here, ConnectionConfig: bearer()}}, "Bearer theirs"},
		{"the first that matches", v1alpha1.ConnectionConfig{}, []v1alpha1.EndpointConfig{
			{Host: "elsewhere", ConnectionConfig: bearer()}, {Host: here, ConnectionConfig: other}, {Host: here, ConnectionConfig: bearer()}}, "Bearer other"},
		{"the first that matches is empty", v1alpha1.ConnectionConfig{}, []v1alpha1.EndpointConfig{{Host: here}, {Host: here, ConnectionConfig: bearer()}}, ""},
		{"none that matches", v1alpha1.ConnectionConfig{}, []v1alpha1.EndpointConfig{{Host: "127.0.0.1", ConnectionConfig: bearer()}}, ""},
		{"the hook's own", other, []v1alpha1.EndpointConfig{{Host: here, ConnectionConfig: bearer()}}, "Bearer other"},
		{"no merging", v1alpha1.ConnectionConfig{ClientTLS: &v1alpha1.ClientTLS{SecretRef: v1alpha1.SecretReference{Name: "pair", Namespace: "ns"}}},
			[]v1alpha1.EndpointConfig{{Host: here, ConnectionConfig: bearer()}}, ""},
	}
	sources.put(call.KindSecret, "pair", clientPair(t, authority(t)))
	for _, c := range cases {
		caller, err := pool.Caller(syncHook, &v1alpha1.Webhook{URL: &server.URL, ConnectionConfig: c.own}, c.endpoints)
		if err != nil {
			t.Fatal(err)
		}
		got.Store("never called")
		if _, err := caller.Call(t.Context(), "", nil); err != nil || got.Load() != c.want {
			t.Errorf("%s: header is %q, %v", c.reason, got.Load(), err)
		}
		caller.Close()
	}
}
