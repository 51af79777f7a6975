package kit_test

import (
	"bytes"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"

	"github.com/metacontroller-solo/solo/test/kit"
)

func TestAuthority(t *testing.T) {
	ca, err := kit.NewCA("one")
	if err != nil {
		t.Fatal(err)
	}
	other, err := kit.NewCA("one") // the name is not what is trusted
	if err != nil {
		t.Fatal(err)
	}
	server, err := ca.IssueServer("guard.system.svc", "127.96.0.9")
	if err != nil {
		t.Fatal(err)
	}
	client, err := ca.IssueClient("user", "group")
	if err != nil {
		t.Fatal(err)
	}
	forServer := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	forClient := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	for _, tc := range []struct {
		name string
		pair kit.KeyPair
		opts x509.VerifyOptions
		good bool
	}{
		{"server by name", server, x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: forServer, DNSName: "guard.system.svc"}, true},
		{"server by address", server, x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: forServer, DNSName: "127.96.0.9"}, true},
		{"server by another name", server, x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: forServer, DNSName: "other.system.svc"}, false},
		{"server of another authority", server, x509.VerifyOptions{Roots: other.Pool(), KeyUsages: forServer}, false},
		{"client", client, x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: forClient}, true},
		{"client as a server", client, x509.VerifyOptions{Roots: ca.Pool(), KeyUsages: forServer}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			cert, err := tc.pair.TLS()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := cert.Leaf.Verify(tc.opts); (err == nil) != tc.good {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestAuthorityIsKept(t *testing.T) {
	dir := t.TempDir()
	first, err := kit.LoadOrCreateCA(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	second, err := kit.LoadOrCreateCA(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first.CertPEM(), second.CertPEM()) {
		t.Error("the authority changed")
	}
	info, err := os.Stat(filepath.Join(dir, "ca.key"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("others may read the key: %v, %v", info.Mode(), err)
	}
	leaf, err := second.IssueClient("user")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kit.ParseCA(leaf); err == nil {
		t.Error("a leaf certificate is taken for an authority")
	}
	if err := os.WriteFile(filepath.Join(dir, "ca.crt"), []byte("spoilt"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := kit.LoadOrCreateCA(dir, "ca"); err == nil {
		t.Error("a spoilt authority is replaced without a word")
	}
}
