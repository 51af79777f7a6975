package serving

import (
	"context"
	"crypto/tls"
	"fmt"
	"path/filepath"

	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// Files serves a pair of files that somebody else renews: cert-manager through a
// mounted Secret. A pair that cannot be used, half written or of two different
// keys, is left aside, and the last good one goes on being served.
type Files struct {
	watcher   *certwatcher.CertWatcher
	cert, key string
}

var _ Source = &Files{}

// NewFiles loads CertFile and KeyFile of a folder. The first pair must be good.
// changed is called when another one is served.
func NewFiles(dir string, changed func()) (*Files, error) {
	f := &Files{cert: filepath.Join(dir, CertFile), key: filepath.Join(dir, KeyFile)}
	var err error
	if f.watcher, err = certwatcher.New(f.cert, f.key); err != nil {
		return nil, fmt.Errorf("cannot load the webhook's certificate from %q: %w", dir, err)
	}
	f.watcher.RegisterCallback(func(tls.Certificate) { changed() })
	return f, nil
}

// Start reads the files again when they change, and every ten seconds.
func (f *Files) Start(ctx context.Context) error { return f.watcher.Start(ctx) }

// NeedLeaderElection implements Source.
func (f *Files) NeedLeaderElection() bool { return false }

// GetCertificate implements Source.
func (f *Files) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return f.watcher.GetCertificate(hello)
}

// Ready implements Source: there is always a pair.
func (f *Files) Ready() error { return nil }

// Fault says what is wrong with the files as they are now. The watcher only logs
// it.
func (f *Files) Fault() error {
	_, err := tls.LoadX509KeyPair(f.cert, f.key)
	return err
}

// Remedy implements Source.
func (f *Files) Remedy() string {
	return "look at the Certificate that fills the Secret mounted at " + filepath.Dir(f.cert) + ", and at cert-manager (kubectl get certificates -A)"
}
