package kit

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

const (
	// certificateLife is the life of an authority and of what it issues. Long,
	// because a kept cluster must come up again whenever its owner returns to it.
	certificateLife = 10 * 365 * 24 * time.Hour
	// clockSkew is how far in the past certificates begin to be valid.
	clockSkew = time.Hour

	pemCertificate = "CERTIFICATE"
	pemPrivateKey  = "PRIVATE KEY"
	pemPublicKey   = "PUBLIC KEY"
)

// CA is a certificate authority for tests and the local cluster. It is immutable
// and safe for concurrent use.
type CA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pair KeyPair
}

// KeyPair is a certificate with its private key, both PEM.
type KeyPair struct {
	Cert, Key []byte
}

// Certificate describes a certificate to issue.
type Certificate struct {
	// CommonName is the user's name in a client certificate.
	CommonName string
	// Organizations are the user's groups in a client certificate.
	Organizations []string
	// DNSNames and IPs are what a server may be called. With none of both the
	// certificate is good for a client only.
	DNSNames []string
	IPs      []net.IP
}

// NewCA makes an authority with a new key.
func NewCA(commonName string) (*CA, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return nil, err
	}
	template, err := certificateTemplate(pkix.Name{CommonName: commonName})
	if err != nil {
		return nil, err
	}
	template.IsCA = true
	template.BasicConstraintsValid = true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("cannot create certificate authority %q: %w", commonName, err)
	}
	return ParseCA(KeyPair{Cert: pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der}), Key: keyPEM})
}

// ParseCA returns the authority with the given certificate and key.
func ParseCA(pair KeyPair) (*CA, error) {
	parsed, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return nil, fmt.Errorf("cannot parse certificate authority: %w", err)
	}
	key, ok := parsed.PrivateKey.(*ecdsa.PrivateKey)
	if !ok || !parsed.Leaf.IsCA {
		return nil, errors.New("cannot parse certificate authority: not an authority with an ECDSA key")
	}
	return &CA{cert: parsed.Leaf, key: key, pair: pair}, nil
}

// LoadOrCreateCA returns the authority kept as name.crt and name.key in a folder,
// which it makes and writes there when there is none yet.
func LoadOrCreateCA(dir, name string) (*CA, error) {
	pair, err := readKeyPair(dir, name)
	if errors.Is(err, os.ErrNotExist) {
		ca, err := NewCA(name)
		if err != nil {
			return nil, err
		}
		return ca, ca.pair.Write(dir, name)
	}
	if err != nil {
		return nil, err
	}
	ca, err := ParseCA(pair)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, name+".crt"), err)
	}
	return ca, nil
}

// CertPEM is the authority's certificate, for those who are to trust it.
func (ca *CA) CertPEM() []byte { return ca.pair.Cert }

// Pool is a pool with this authority alone.
func (ca *CA) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(ca.cert)
	return pool
}

// Issue signs a certificate with a new key.
func (ca *CA) Issue(c Certificate) (KeyPair, error) {
	key, keyPEM, err := newKey()
	if err != nil {
		return KeyPair{}, err
	}
	template, err := certificateTemplate(pkix.Name{CommonName: c.CommonName, Organization: c.Organizations})
	if err != nil {
		return KeyPair{}, err
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if len(c.DNSNames)+len(c.IPs) > 0 {
		// A server that is one end of a mesh, like etcd, also shows it as a client.
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	template.DNSNames = c.DNSNames
	template.IPAddresses = c.IPs
	if template.NotAfter.After(ca.cert.NotAfter) {
		template.NotAfter = ca.cert.NotAfter
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		return KeyPair{}, fmt.Errorf("cannot issue certificate %q: %w", c.CommonName, err)
	}
	return KeyPair{Cert: pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der}), Key: keyPEM}, nil
}

// IssueServer signs a certificate for a server on the given names and addresses:
// whatever parses as an IP address is one.
func (ca *CA) IssueServer(hosts ...string) (KeyPair, error) {
	var c Certificate
	for _, host := range hosts {
		c.CommonName = hosts[0]
		if ip := net.ParseIP(host); ip != nil {
			c.IPs = append(c.IPs, ip)
		} else {
			c.DNSNames = append(c.DNSNames, host)
		}
	}
	return ca.Issue(c)
}

// IssueClient signs a certificate for a user in groups.
func (ca *CA) IssueClient(user string, groups ...string) (KeyPair, error) {
	return ca.Issue(Certificate{CommonName: user, Organizations: groups})
}

// loadOrIssue returns the pair kept as name.crt and name.key, or a new one that
// it keeps there. A kept one that this authority did not sign is replaced.
func (ca *CA) loadOrIssue(dir, name string, c Certificate) (KeyPair, error) {
	pair, err := readKeyPair(dir, name)
	if err == nil && ca.signed(pair) {
		return pair, nil
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return KeyPair{}, err
	}
	pair, err = ca.Issue(c)
	if err != nil {
		return KeyPair{}, err
	}
	return pair, pair.Write(dir, name)
}

func (ca *CA) signed(pair KeyPair) bool {
	parsed, err := pair.TLS()
	return err == nil && parsed.Leaf.CheckSignatureFrom(ca.cert) == nil
}

// TLS parses the pair.
func (p KeyPair) TLS() (tls.Certificate, error) {
	parsed, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("cannot parse key pair: %w", err)
	}
	return parsed, nil
}

// Write writes the pair to name.crt and name.key in a folder, readable by this
// user only.
func (p KeyPair) Write(dir, name string) error {
	if err := writeFile(filepath.Join(dir, name+".crt"), p.Cert); err != nil {
		return err
	}
	return writeFile(filepath.Join(dir, name+".key"), p.Key)
}

func readKeyPair(dir, name string) (KeyPair, error) {
	cert, err := os.ReadFile(filepath.Join(dir, name+".crt"))
	if err != nil {
		return KeyPair{}, fmt.Errorf("cannot read certificate: %w", err)
	}
	key, err := os.ReadFile(filepath.Join(dir, name+".key"))
	if err != nil {
		return KeyPair{}, fmt.Errorf("cannot read key: %w", err)
	}
	return KeyPair{Cert: cert, Key: key}, nil
}

// writeFile writes a file of this user's only, whole or not at all.
func writeFile(path string, content []byte) error {
	part := path + ".part"
	if err := os.WriteFile(part, content, 0o600); err != nil {
		return fmt.Errorf("cannot write file: %w", err)
	}
	if err := os.Rename(part, path); err != nil {
		return fmt.Errorf("cannot write file: %w", err)
	}
	return nil
}

func certificateTemplate(subject pkix.Name) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("cannot choose a serial number: %w", err)
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      subject,
		NotBefore:    now.Add(-clockSkew),
		NotAfter:     now.Add(certificateLife),
	}, nil
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot make a key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot encode a key: %w", err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: pemPrivateKey, Bytes: der}), nil
}

// ensureTokenKeys keeps the key pair of service-account tokens as name.key and
// name.pub in a folder.
func ensureTokenKeys(dir, name string) error {
	private, public := filepath.Join(dir, name+".key"), filepath.Join(dir, name+".pub")
	if exists(private) && exists(public) {
		return nil
	}
	key, keyPEM, err := newKey()
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("cannot encode a key: %w", err)
	}
	if err := writeFile(public, pem.EncodeToMemory(&pem.Block{Type: pemPublicKey, Bytes: der})); err != nil {
		return err
	}
	return writeFile(private, keyPEM)
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
