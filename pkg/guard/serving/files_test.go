package serving_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/metacontroller-solo/solo/pkg/guard/serving"
	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/node/volume"
)

// soon bounds the reload of files: the watcher looks every ten seconds where the
// system tells it nothing.
const soon = 30 * time.Second

func newPair(t *testing.T, ca *kit.CA) kit.KeyPair {
	t.Helper()
	pair, err := ca.IssueServer("guard.ns.svc")
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// started runs a Files over a folder until the test ends.
func started(t *testing.T, dir string) *serving.Files {
	t.Helper()
	f, err := serving.NewFiles(dir, func() {})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f
}

// serves says whether a pair is the one that is served.
func serves(f *serving.Files, pair kit.KeyPair) error {
	got, err := f.GetCertificate(nil)
	if err != nil {
		return err
	}
	want, err := pair.TLS()
	if err != nil {
		return err
	}
	if string(got.Certificate[0]) != string(want.Certificate[0]) {
		return errors.New("another certificate is served")
	}
	return nil
}

func newAuthority(t *testing.T) *kit.CA {
	t.Helper()
	ca, err := kit.NewCA("ca")
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

// TestMountedSecret swaps files as a kubelet does: a link to another folder.
func TestMountedSecret(t *testing.T) {
	ca, dir := newAuthority(t), t.TempDir()
	mount := func(cert, key []byte) {
		t.Helper()
		if _, err := volume.Write(dir, volume.Payload{"tls.crt": {Data: cert, Mode: 0o600}, "tls.key": {Data: key, Mode: 0o600}}); err != nil {
			t.Fatal(err)
		}
	}
	first, second, third := newPair(t, ca), newPair(t, ca), newPair(t, ca)
	mount(first.Cert, first.Key)
	f := started(t, dir)
	if err := serves(f, first); err != nil {
		t.Fatal(err)
	}
	mount(second.Cert, second.Key)
	kit.Eventually(t, soon, func() error { return serves(f, second) })

	// A Secret with two halves that do not fit: the last good pair goes on.
	mount(third.Cert, second.Key)
	if f.Fault() == nil {
		t.Error("a pair that does not fit is no fault")
	}
	mount([]byte("garbage"), third.Key)
	if f.Fault() == nil {
		t.Error("garbage is no fault")
	}
	if err := serves(f, second); err != nil {
		t.Error(err)
	}
	mount(third.Cert, third.Key)
	kit.Eventually(t, soon, func() error { return serves(f, third) })
	if err := f.Fault(); err != nil {
		t.Error(err)
	}
}

// TestFilesWrittenOneByOne is a pair that somebody copies into place, or removes.
func TestFilesWrittenOneByOne(t *testing.T) {
	ca, dir := newAuthority(t), t.TempDir()
	first, second := newPair(t, ca), newPair(t, ca)
	write := func(name string, content []byte) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("tls.crt", first.Cert)
	write("tls.key", first.Key)
	f := started(t, dir)
	for name, half := range map[string]func(){
		"half a file":     func() { write("tls.crt", second.Cert[:len(second.Cert)/2]) },
		"one file of two": func() { write("tls.crt", second.Cert) },
		"no key":          func() { _ = os.Remove(filepath.Join(dir, "tls.key")) },
	} {
		half()
		if f.Fault() == nil {
			t.Errorf("%s is no fault", name)
		}
		if err := serves(f, first); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	write("tls.crt", second.Cert)
	write("tls.key", second.Key)
	kit.Eventually(t, soon, func() error { return serves(f, second) })
}

func TestNoFiles(t *testing.T) {
	if _, err := serving.NewFiles(t.TempDir(), func() {}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

// TestClients connects as several callers.
func TestClients(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	path := filepath.Join(t.TempDir(), "client-ca.crt")
	if err := os.WriteFile(path, ca.CertPEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	clients, err := serving.NewClients(path, []string{"kube-apiserver"})
	if err != nil {
		t.Fatal(err)
	}
	server, err := newPair(t, ca).TLS()
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{server}}
	clients.Configure(config)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", config)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer func() { _ = conn.Close() }()
				if conn.(*tls.Conn).Handshake() == nil {
					_, _ = conn.Write([]byte("x"))
				}
			}()
		}
	}()
	call := func(by *kit.CA, name string) error {
		client := &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: ca.Pool(), ServerName: "guard.ns.svc"}
		if by != nil {
			pair, err := by.IssueClient(name)
			if err != nil {
				t.Fatal(err)
			}
			parsed, err := pair.TLS()
			if err != nil {
				t.Fatal(err)
			}
			client.Certificates = []tls.Certificate{parsed}
		}
		conn, err := tls.Dial("tcp", listener.Addr().String(), client)
		if err != nil {
			return err
		}
		defer func() { _ = conn.Close() }()
		_, err = conn.Read(make([]byte, 1))
		return err
	}
	for _, test := range []struct {
		what string
		by   *kit.CA
		name string
		ok   bool
	}{
		{"the API server", ca, "kube-apiserver", true},
		{"no certificate", nil, "", false},
		{"another name", ca, "somebody", false},
		{"another authority", other, "kube-apiserver", false},
	} {
		if err := call(test.by, test.name); (err == nil) != test.ok {
			t.Errorf("%s: got %v", test.what, err)
		}
	}
}

func TestClientsAuthorityChanges(t *testing.T) {
	path := filepath.Join(t.TempDir(), "client-ca.crt")
	if _, err := serving.NewClients(path, nil); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if err := os.WriteFile(path, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := serving.NewClients(path, nil); err == nil {
		t.Error("a file without a certificate is taken")
	} else if want := fmt.Sprintf("%q holds no PEM certificate", path); err.Error() != "cannot read the clients' authority: "+want {
		t.Errorf("got %v", err)
	}
}
