package tls_test

import (
	"crypto/tls"
	"net/http"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/guard/webhook"
	"github.com/metacontroller-solo/solo/test/kit"
)

// call posts to a guard with a client certificate; nil issues none. An error says
// that no answer came.
func (s *suite) call(g *guard, issue func() (kit.KeyPair, error)) error {
	s.Helper()
	config := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: s.cp.CA().Pool()}
	if issue != nil {
		pair, err := issue()
		s.must(err)
		parsed, err := pair.TLS()
		s.must(err)
		// Whatever authorities the server names.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &parsed, nil }
	}
	transport := &http.Transport{TLSClientConfig: config}
	defer transport.CloseIdleConnections()
	response, err := (&http.Client{Transport: transport, Timeout: patience}).Post("https://"+g.webhook+webhook.Path, "application/json", strings.NewReader("{}"))
	if err != nil {
		return err
	}
	return response.Body.Close()
}

// remove deletes what a manifest of the project holds.
func (s *suite) remove(path string) {
	s.Helper()
	objects, err := kit.ApplyFile(s.ctx(), s.cp.AdminConfig(0), filepath.Join(s.root, path))
	s.must(err)
	for _, object := range objects {
		found := &unstructured.Unstructured{}
		found.SetGroupVersionKind(object.GroupVersionKind())
		found.SetNamespace(object.GetNamespace())
		found.SetName(object.GetName())
		s.must(client.IgnoreNotFound(s.admin().Delete(s.ctx(), found)))
	}
}
