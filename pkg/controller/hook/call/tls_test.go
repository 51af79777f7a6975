package call_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/hook/call"
	"github.com/metacontroller-solo/solo/test/kit"
)

func authority(t *testing.T) *kit.CA {
	t.Helper()
	ca, err := kit.NewCA("call")
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// clientPair is a Secret with a client certificate.
func clientPair(t *testing.T, ca *kit.CA) map[string]string {
	t.Helper()
	pair, err := ca.IssueClient("me")
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"tls.crt": string(pair.Cert), "tls.key": string(pair.Key)}
}

func serverPair(t *testing.T, ca *kit.CA) *tls.Certificate {
	t.Helper()
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

// serveTLS serves with the certificate that is in current at the moment, and with
// clients given to those only whom it knows. It answers with the client's name.
func serveTLS(t *testing.T, current *atomic.Pointer[tls.Certificate], clients *atomic.Pointer[x509.CertPool]) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name := "nobody"
		if len(r.TLS.PeerCertificates) > 0 {
			name = r.TLS.PeerCertificates[0].Subject.CommonName + " " + r.TLS.PeerCertificates[0].SerialNumber.String()
		}
		_, _ = io.WriteString(w, name)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.TLS = &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		config := &tls.Config{Certificates: []tls.Certificate{*current.Load()}}
		if clients != nil {
			config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, clients.Load()
		}
		return config, nil
	}}
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

func pointer[T any](value *T) *atomic.Pointer[T] {
	p := &atomic.Pointer[T]{}
	p.Store(value)
	return p
}

func TestCABundle(t *testing.T) {
	ca, stranger := authority(t), authority(t)
	server := serveTLS(t, pointer(serverPair(t, ca)), nil)
	sources := &cluster{}
	sources.put(call.KindSecret, "ca", map[string]string{"ca.crt": string(ca.CertPEM()), "other.pem": string(stranger.CertPEM()), "garbage": "-----BEGIN CERTIFICATE-----\nhush\n-----END CERTIFICATE-----\n"})
	sources.put(call.KindConfigMap, "ca", map[string]string{"ca.crt": string(stranger.CertPEM()) + string(ca.CertPEM())})
	at := func(name, key string) *v1alpha1.CABundleKeyReference {
		return &v1alpha1.CABundleKeyReference{Name: name, Namespace: "ns", Key: key}
	}
	cases := []struct {
		reason string
		bundle *v1alpha1.CABundle
		fails  []string
	}{
		{"system's roots", nil, []string{"cannot be reached", "certificate"}},
		{"inline", &v1alpha1.CABundle{Inline: ptr(string(ca.CertPEM()))}, nil},
		{"inline, another", &v1alpha1.CABundle{Inline: ptr(string(stranger.CertPEM()))}, []string{"cannot be reached", "unknown authority"}},
		{"Secret", &v1alpha1.CABundle{SecretRef: at("ca", "")}, nil},
		{"Secret, key", &v1alpha1.CABundle{SecretRef: at("ca", "other.pem")}, []string{"unknown authority"}},
		{"Secret, no such key", &v1alpha1.CABundle{SecretRef: at("ca", "x")}, []string{"webhook.caBundle", `key "x" of Secret "ns/ca"`, "is not there"}},
		{"Secret, garbage", &v1alpha1.CABundle{SecretRef: at("ca", "garbage")}, []string{`key "garbage" of Secret "ns/ca"`, "no PEM certificate"}},
		{"ConfigMap with two", &v1alpha1.CABundle{ConfigMapRef: at("ca", "")}, nil},
		{"no ConfigMap", &v1alpha1.CABundle{ConfigMapRef: at("cb", "")}, []string{`ConfigMap "ns/cb"`, "does not exist"}},
	}
	for _, c := range cases {
		_, err := connected(t, newPool(sources), server.URL, v1alpha1.ConnectionConfig{CABundle: c.bundle}).Call(t.Context(), "", nil)
		if c.fails == nil && err != nil || c.fails != nil && err == nil {
			t.Errorf("%s: %v", c.reason, err)
		}
		for _, part := range c.fails {
			if err != nil && (!strings.Contains(err.Error(), part) || strings.Contains(err.Error(), "hush")) {
				t.Errorf("%s: it does not say %q: %v", c.reason, part, err)
			}
		}
	}
}

func TestRotationOfACA(t *testing.T) {
	old, renewed := authority(t), authority(t)
	shown := pointer(serverPair(t, old))
	server := serveTLS(t, shown, nil)
	sources := &cluster{}
	sources.put(call.KindConfigMap, "ca", map[string]string{"ca.crt": string(old.CertPEM())})
	caller := connected(t, newPool(sources), server.URL, v1alpha1.ConnectionConfig{
		CABundle: &v1alpha1.CABundle{ConfigMapRef: &v1alpha1.CABundleKeyReference{Name: "ca", Namespace: "ns"}},
	})
	if _, err := caller.Call(t.Context(), "", nil); err != nil {
		t.Fatal(err)
	}
	// A connection that was made while the old authority was trusted is not used
	// any more once it is not.
	sources.put(call.KindConfigMap, "ca", map[string]string{"ca.crt": string(renewed.CertPEM())})
	if _, err := caller.Call(t.Context(), "", nil); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("an authority that is not trusted any more: %v", err)
	}
	shown.Store(serverPair(t, renewed))
	if _, err := caller.Call(t.Context(), "", nil); err != nil {
		t.Error(err)
	}
}

func TestClientTLS(t *testing.T) {
	ca, clients := authority(t), authority(t)
	server := serveTLS(t, pointer(serverPair(t, ca)), pointer(clients.Pool()))
	sources := &cluster{}
	connection := v1alpha1.ConnectionConfig{
		CABundle:  &v1alpha1.CABundle{Inline: ptr(string(ca.CertPEM()))},
		ClientTLS: &v1alpha1.ClientTLS{SecretRef: v1alpha1.SecretReference{Name: "me", Namespace: "ns"}},
	}
	caller := connected(t, newPool(sources), server.URL, connection)
	ask := func() (string, error) {
		answer, err := caller.Call(t.Context(), "", nil)
		return string(answer), err
	}
	if _, err := ask(); err == nil || !strings.Contains(err.Error(), `webhook.clientTLS: Secret "ns/me" does not exist`) {
		t.Errorf("no Secret: %v", err)
	}
	first, second := clientPair(t, clients), clientPair(t, clients)
	sources.put(call.KindSecret, "me", map[string]string{"tls.crt": first["tls.crt"], "tls.key": second["tls.key"]})
	if _, err := ask(); err == nil || !strings.Contains(err.Error(), "tls.crt and tls.key") || strings.Contains(err.Error(), "BEGIN") {
		t.Errorf("a key that does not match: %v", err)
	}
	sources.put(call.KindSecret, "me", map[string]string{"tls.crt": first["tls.crt"]})
	if _, err := ask(); err == nil || !strings.Contains(err.Error(), `key "tls.key"`) {
		t.Errorf("no key: %v", err)
	}
	sources.put(call.KindSecret, "me", first)
	before, err := ask()
	if err != nil || !strings.HasPrefix(before, "me ") {
		t.Fatalf("%q, %v", before, err)
	}
	sources.put(call.KindSecret, "me", second)
	if after, err := ask(); err != nil || after == before || !strings.HasPrefix(after, "me ") {
		t.Errorf("%q after %q, %v", after, before, err)
	}
	sources.put(call.KindSecret, "me", clientPair(t, authority(t)))
	if answer, err := ask(); err == nil {
		t.Errorf("a stranger gets %q", answer)
	}
	connection.ClientTLS.CertKey, connection.ClientTLS.PrivateKeyKey = "cert", "key"
	sources.put(call.KindSecret, "me", map[string]string{"cert": first["tls.crt"], "key": first["tls.key"]})
	if answer, err := connected(t, newPool(sources), server.URL, connection).Call(t.Context(), "", nil); err != nil || string(answer) != before {
		t.Errorf("other keys: %q, %v", answer, err)
	}
}

func TestLeastTLSVersion(t *testing.T) {
	ca := authority(t)
	for version, good := range map[uint16]bool{tls.VersionTLS11: false, tls.VersionTLS12: true, tls.VersionTLS13: true} {
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.TLS = &tls.Config{MinVersion: tls.VersionTLS10, MaxVersion: version, Certificates: []tls.Certificate{*serverPair(t, ca)}}
		server.StartTLS()
		t.Cleanup(server.Close)
		caller := connected(t, newPool(nil), server.URL, v1alpha1.ConnectionConfig{CABundle: &v1alpha1.CABundle{Inline: ptr(string(ca.CertPEM()))}})
		if _, err := caller.Call(t.Context(), "", nil); (err == nil) != good {
			t.Errorf("version %x: %v", version, err)
		}
	}
}
