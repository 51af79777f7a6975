package controller_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
)

// afterBackoff is how long something may take that waits for a retry, of a watch
// or of a parent: these come up to a minute apart.
const afterBackoff = 3 * time.Minute

// secret creates a Secret in the test's namespace.
func (f *fixture) secret(name string, data map[string]string) *corev1.Secret {
	f.t.Helper()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: name}, StringData: data}
	if err := f.client.Create(f.t.Context(), secret); err != nil {
		f.t.Fatal(err)
	}
	return secret
}

// allow gives the controllers the right to one Secret in the test's namespace.
func (f *fixture) allow(secret string) {
	f.t.Helper()
	f.applyTemplate("call.yaml", "NAMESPACE", f.ns, "SECRET", secret, "ACCOUNT", f.account.Name, "HOME", f.account.Namespace)
}

func (f *fixture) tokenIn(secret string) *v1alpha1.Authorization {
	return &v1alpha1.Authorization{SecretRef: v1alpha1.SecretKeyReference{Namespace: f.ns, Name: secret, Key: "token"}}
}

// mustNotShow fails if one of the texts is in an event or in the controller's
// output.
func (f *fixture) mustNotShow(p *kit.Program, secrets ...string) {
	f.t.Helper()
	var said strings.Builder
	said.WriteString(p.Output())
	for _, namespace := range []string{f.ns, metav1.NamespaceDefault} {
		var events corev1.EventList
		if err := f.client.List(f.t.Context(), &events, client.InNamespace(namespace)); err != nil {
			f.t.Fatal(err)
		}
		for _, event := range events.Items {
			said.WriteString(event.Message + "\n")
		}
	}
	for _, secret := range secrets {
		if strings.Contains(said.String(), secret) {
			f.t.Errorf("%q was shown in an event or in the log", secret)
		}
	}
}

func TestBearerToken(t *testing.T) {
	f := newFixture(t)
	f.useLeanAccount()
	var wanted atomic.Value
	wanted.Store("first-t0ken")
	good := defaultHook()
	f.hooks.Handle("/sync", func(w http.ResponseWriter, r *http.Request, request kit.HookRequest) {
		if got := r.Header.Get("Authorization"); got != "Bearer "+wanted.Load().(string) {
			w.WriteHeader(http.StatusUnauthorized)
			_, _ = fmt.Fprintf(w, "who is %s", strings.TrimPrefix(got, "Bearer "))
			return
		}
		good(w, r, request)
	})
	f.composite(func(cc *v1alpha1.CompositeController) {
		cc.Spec.Hooks.Sync.Webhook.Authorization = f.tokenIn("hook-token")
	})
	p := f.start("--zap-log-level=6")
	// A parent for each fault: there is a limit to the events about one object.
	refused := f.thing("refused", object{"count": 1, "value": "x"})

	// Without the right to it, and without the Secret, that is said, and the hook is
	// not called.
	f.event(refused, "SyncError", f.ns, "webhook.authorization", fmt.Sprintf("Secret %q", f.ns+"/hook-token"), "list and watch", "forbidden")
	f.allow("hook-token")
	f.waitEvent(afterBackoff, f.thing("absent", object{"count": 1, "value": "x"}), "does not exist")
	if calls := f.hooks.Requests("/sync"); len(calls) > 0 {
		t.Errorf("the hook was called %d times without a token", len(calls))
	}
	secret := f.secret("hook-token", map[string]string{"other": "first-t0ken"})
	f.waitEvent(afterBackoff, f.thing("keyless", object{"count": 1, "value": "x"}), `key "token"`)
	f.patch(secret, `{"stringData":{"token":"first-t0ken\n"}}`)
	for _, name := range []string{"refused", "absent", "keyless"} {
		f.waitChild(name, "x")
	}

	// The token is rotated on both sides, the hook's first.
	wanted.Store("second-t0ken")
	rotated := f.thing("rotated", object{"count": 1, "value": "x"})
	f.event(rotated, "SyncError", "status 401", "who is [redacted]")
	f.patch(secret, `{"stringData":{"token":"second-t0ken"}}`)
	f.waitChild("rotated", "x")
	f.patch(refused, `{"spec":{"value":"y"}}`)
	f.waitChild("refused", "y")
	f.mustNotShow(p, "first-t0ken", "second-t0ken")
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// waitEvent is event with a longer patience.
func (f *fixture) waitEvent(patience time.Duration, about client.Object, text string) {
	f.t.Helper()
	kit.Eventually(f.t, patience, func() error {
		var seen []string
		for _, event := range f.eventsOf(about) {
			if strings.Contains(event.Message, text) {
				return nil
			}
			seen = append(seen, event.Message)
		}
		return fmt.Errorf("no event with %q; there are %q", text, seen)
	})
}

// waitChild waits until a parent has its one child, for as long as the back-off of
// a parent that failed may last.
func (f *fixture) waitChild(parent, value string) {
	f.t.Helper()
	kit.Eventually(f.t, afterBackoff, func() error {
		if got := f.children(parent + "-"); !maps.Equal(got, map[string]string{parent + "-0": value}) {
			return fmt.Errorf("children are %v", got)
		}
		return nil
	})
}

// TestEndpointConfigs has a sync hook that takes its token from endpointConfigs,
// and a finalize hook that says itself who calls.
func TestEndpointConfigs(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	f.hooks.Handle("/finalize", kit.JSON(func(request) (object, error) {
		return object{"children": []object{}, "finalized": true}, nil
	}))
	here, err := url.Parse(f.hooks.URL("/finalize"))
	if err != nil {
		t.Fatal(err)
	}
	f.allow("endpoint")
	f.allow("user")
	f.secret("endpoint", map[string]string{"token": "for-everyone"})
	f.secret("user", map[string]string{"username": "me\n", "password": "pa:ss\n"})
	f.composite(func(cc *v1alpha1.CompositeController) {
		elsewhere := v1alpha1.EndpointConfig{Host: "elsewhere.example.com"}
		elsewhere.Authorization = f.tokenIn("is-not-there")
		first := v1alpha1.EndpointConfig{Host: here.Host}
		first.Authorization = f.tokenIn("endpoint")
		second := v1alpha1.EndpointConfig{Host: here.Host}
		second.Authorization = f.tokenIn("is-not-there")
		cc.Spec.EndpointConfigs = []v1alpha1.EndpointConfig{elsewhere, first, second}
		address := here.String()
		finalize := &v1alpha1.Webhook{URL: &address}
		finalize.BasicAuth = &v1alpha1.BasicAuth{SecretRef: v1alpha1.SecretReference{Namespace: f.ns, Name: "user"}}
		cc.Spec.Hooks.Finalize = &v1alpha1.Hook{Webhook: finalize}
	})
	p := f.start()
	parent := f.thing("a", object{"count": 1, "value": "x"})
	f.waitChildren("a-", map[string]string{"a-0": "x"})
	f.delete(parent)
	finalized := f.hooks.WaitRequests(soon, "/finalize", 1)
	for _, call := range f.hooks.Requests("/sync") {
		if got := call.Header.Get("Authorization"); got != "Bearer for-everyone" {
			t.Errorf("the sync hook got %q", got)
		}
	}
	user := base64.StdEncoding.EncodeToString([]byte("me:pa:ss"))
	if got := finalized[0].Header.Get("Authorization"); got != "Basic "+user {
		t.Errorf("the finalize hook got %q", got)
	}
	f.mustNotShow(p, "for-everyone", "pa:ss", user)
}

// TestTLSHook renews the certificates of both sides, and the authorities.
func TestTLSHook(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	newCA := func() *kit.CA {
		ca, err := kit.NewCA("hooks")
		if err != nil {
			t.Fatal(err)
		}
		return ca
	}
	show := func(ca *kit.CA) *tls.Certificate {
		pair, err := ca.IssueServer("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		parsed, err := pair.TLS()
		if err != nil {
			t.Fatal(err)
		}
		return &parsed
	}
	client := func(ca *kit.CA) map[string]string {
		pair, err := ca.IssueClient("metacontroller")
		if err != nil {
			t.Fatal(err)
		}
		return map[string]string{"tls.crt": string(pair.Cert), "tls.key": string(pair.Key)}
	}
	servers, clients := newCA(), newCA()
	var (
		shown atomic.Pointer[tls.Certificate]
		known atomic.Pointer[x509.CertPool]
	)
	shown.Store(show(servers))
	known.Store(clients.Pool())
	behind, err := url.Parse(f.hooks.URL(""))
	if err != nil {
		t.Fatal(err)
	}
	front := httptest.NewUnstartedServer(httputil.NewSingleHostReverseProxy(behind))
	front.Config.ErrorLog = log.New(io.Discard, "", 0)
	front.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return &tls.Config{Certificates: []tls.Certificate{*shown.Load()}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: known.Load()}, nil
	}}
	front.StartTLS()
	defer front.Close()

	f.allow("client")
	secret := f.secret("client", client(clients))
	bundle := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "ca"}, Data: map[string]string{"ca.crt": string(servers.CertPEM())}}
	if err := f.client.Create(t.Context(), bundle); err != nil {
		t.Fatal(err)
	}
	f.composite(func(cc *v1alpha1.CompositeController) {
		address, webhook := front.URL+"/sync", cc.Spec.Hooks.Sync.Webhook
		webhook.URL = &address
		webhook.CABundle = &v1alpha1.CABundle{ConfigMapRef: &v1alpha1.CABundleKeyReference{Namespace: f.ns, Name: "ca"}}
		webhook.ClientTLS = &v1alpha1.ClientTLS{SecretRef: v1alpha1.SecretReference{Namespace: f.ns, Name: "client"}}
	})
	p := f.start()
	f.thing("a", object{"count": 1, "value": "x"})
	f.waitChild("a", "x")

	// The hook has a certificate of another authority.
	servers = newCA()
	shown.Store(show(servers))
	front.CloseClientConnections()
	parent := f.thing("b", object{"count": 1, "value": "x"})
	f.event(parent, "SyncError", "cannot be reached", "unknown authority")
	f.patch(bundle, fmt.Sprintf(`{"data":{"ca.crt":%q}}`, servers.CertPEM()))
	f.waitChild("b", "x")

	// The hook wants certificates of another authority.
	clients = newCA()
	known.Store(clients.Pool())
	front.CloseClientConnections()
	parent = f.thing("c", object{"count": 1, "value": "x"})
	f.event(parent, "SyncError", "cannot be reached", "tls")
	next := client(clients)
	f.patch(secret, fmt.Sprintf(`{"stringData":{"tls.crt":%q,"tls.key":%q}}`, next["tls.crt"], next["tls.key"]))
	f.waitChild("c", "x")
	f.mustNotShow(p, "BEGIN", strings.Split(next["tls.key"], "\n")[1])
}

func TestETag(t *testing.T) {
	f := newFixture(t)
	var bad atomic.Bool
	var reused [2]atomic.Int32
	f.hooks.Handle("/sync", func(w http.ResponseWriter, _ *http.Request, call kit.HookRequest) {
		var r request
		if err := call.Decode(&r); err != nil {
			t.Error(err)
		}
		asked, tag := call.Header.Get("If-None-Match"), fmt.Sprintf("W/%q", r.Parent.Spec.Value)
		switch name := r.Parent.Metadata.Name; {
		case name == "broken" && bad.Load():
			if asked != "" {
				t.Errorf("an answer that could not be used is asked for again: %s", asked)
			}
			w.Header().Set("ETag", tag)
			_, _ = io.WriteString(w, `{"children":[`)
		case asked == tag && name == "other":
			reused[1].Add(1)
			w.WriteHeader(http.StatusPreconditionFailed)
			_, _ = io.WriteString(w, `{"children":[]}`)
		case asked == tag:
			reused[0].Add(1)
			w.WriteHeader(http.StatusNotModified)
		default:
			w.Header().Set("ETag", tag)
			kit.JSON(func(r request) (object, error) {
				return object{"status": object{}, "children": desired(r)}, nil
			})(w, nil, call)
		}
	})
	f.composite(func(cc *v1alpha1.CompositeController) {
		yes := true
		cc.Spec.Hooks.Sync.Webhook.Etag = &v1alpha1.WebhookEtagConfig{Enabled: &yes}
	})
	f.start()
	for i, name := range []string{"a", "other"} {
		parent := f.thing(name, object{"count": 1, "value": "x"})
		f.waitChildren(name+"-", map[string]string{name + "-0": "x"})
		// What is kept is put to use: the answer without a body makes the child again.
		before := reused[i].Load()
		f.delete(f.configMap(name + "-0"))
		kit.Eventually(t, soon, func() error {
			if reused[i].Load() == before || f.configMap(name+"-0") == nil {
				return fmt.Errorf("answers were reused %d times, there is %v", reused[i].Load(), f.children(name))
			}
			return nil
		})
		f.patch(parent, `{"spec":{"value":"y"}}`)
		f.waitChildren(name+"-", map[string]string{name + "-0": "y"})
		for _, event := range f.eventsOf(parent) {
			t.Errorf("there is an event: %s", event.Message)
		}
	}
	bad.Store(true)
	parent := f.thing("broken", object{"count": 1, "value": "x"})
	f.event(parent, "SyncError", "no valid JSON")
	bad.Store(false)
	f.waitChild("broken", "x")
}

func TestRedirect(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", func(w http.ResponseWriter, r *http.Request, _ kit.HookRequest) {
		http.Redirect(w, r, "/moved", http.StatusTemporaryRedirect)
	})
	f.hooks.Handle("/moved", defaultHook())
	f.composite(nil)
	f.start()
	f.thing("a", object{"count": 1, "value": "x"})
	f.waitChildren("a-", map[string]string{"a-0": "x"})
	first, moved := f.hooks.Requests("/sync")[0], f.hooks.Requests("/moved")[0]
	if moved.Method != http.MethodPost || string(moved.Body) != string(first.Body) {
		t.Errorf("%s with %s went on as %s with %s", first.Method, first.Body, moved.Method, moved.Body)
	}
}

// TestRefusedConnections is about what no Secret could mend: the controller does
// not start, and the event names the field.
func TestRefusedConnections(t *testing.T) {
	f := newFixture(t)
	user := &v1alpha1.BasicAuth{SecretRef: v1alpha1.SecretReference{Namespace: f.ns, Name: "user"}}
	cases := []struct {
		name   string
		change func(*v1alpha1.CompositeController)
		says   []string
	}{
		{"both", func(cc *v1alpha1.CompositeController) {
			cc.Spec.Hooks.Sync.Webhook.Authorization, cc.Spec.Hooks.Sync.Webhook.BasicAuth = f.tokenIn("x"), user
		}, []string{"spec.hooks.sync", "webhook.authorization", "webhook.basicAuth", "exclude"}},
		{"basic", func(cc *v1alpha1.CompositeController) {
			cc.Spec.Hooks.Sync.Webhook.Authorization = f.tokenIn("x")
			cc.Spec.Hooks.Sync.Webhook.Authorization.Type = "BASIC"
		}, []string{"spec.hooks.sync", "webhook.authorization", "basicAuth"}},
		{"two-bundles", func(cc *v1alpha1.CompositeController) {
			ref := &v1alpha1.CABundleKeyReference{Namespace: f.ns, Name: "ca"}
			cc.Spec.Hooks.Sync.Webhook.CABundle = &v1alpha1.CABundle{SecretRef: ref, ConfigMapRef: ref}
		}, []string{"spec.hooks.sync", "webhook.caBundle", "exactly one"}},
		{"no-name", func(cc *v1alpha1.CompositeController) {
			cc.Spec.Hooks.Sync.Webhook.ClientTLS = &v1alpha1.ClientTLS{SecretRef: v1alpha1.SecretReference{Namespace: f.ns}}
		}, []string{"spec.hooks.sync", "webhook.clientTLS", "name"}},
		{"endpoint", func(cc *v1alpha1.CompositeController) {
			endpoint := v1alpha1.EndpointConfig{Host: "elsewhere"}
			endpoint.Authorization, endpoint.BasicAuth = f.tokenIn("x"), user
			cc.Spec.EndpointConfigs = []v1alpha1.EndpointConfig{endpoint}
		}, []string{"spec.endpointConfigs[0].authorization", "exclude"}},
		{"host", func(cc *v1alpha1.CompositeController) {
			cc.Spec.EndpointConfigs = []v1alpha1.EndpointConfig{{Host: "https://elsewhere"}}
		}, []string{"spec.endpointConfigs[0].host", "https://elsewhere"}},
	}
	f.hooks.Handle("/sync", defaultHook())
	f.start()
	for _, c := range cases {
		cc := f.composite(func(cc *v1alpha1.CompositeController) {
			cc.Name += "-" + c.name
			c.change(cc)
		})
		f.event(cc, "CreateError", c.says...)
		if err := f.client.Delete(context.Background(), cc); err != nil {
			t.Error(err)
		}
	}
}
