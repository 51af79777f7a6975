package serving

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/metacontroller-solo/solo/pkg/logging"
)

// clientsInterval is how often the file of the clients' authority is read.
const clientsInterval = 10 * time.Second

// Clients are those who may call: with a certificate of one authority, and one of
// some common names.
type Clients struct {
	path  string
	names []string

	mutex   sync.Mutex // guards the fields below
	content []byte
	pool    *x509.CertPool
}

// NewClients reads the authority's PEM file. Without names every common name is
// let in.
func NewClients(path string, names []string) (*Clients, error) {
	c := &Clients{path: path, names: names}
	return c, c.load()
}

// load reads the file. One that cannot be used changes nothing.
func (c *Clients) load() error {
	content, err := os.ReadFile(c.path)
	if err != nil {
		return fmt.Errorf("cannot read the clients' authority: %w", err)
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	if bytes.Equal(content, c.content) {
		return nil
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(content) {
		return fmt.Errorf("cannot read the clients' authority: %q holds no PEM certificate", c.path)
	}
	c.content, c.pool = content, pool
	return nil
}

// Start reads the file again and again until ctx ends.
func (c *Clients) Start(ctx context.Context) error {
	ticker := time.NewTicker(clientsInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := c.load(); err != nil {
				log.FromContext(ctx).Error(err, "Cannot renew the clients' authority; the last good one counts", logging.KeyPath, c.path)
			}
		}
	}
}

// NeedLeaderElection is false: every guard is called.
func (c *Clients) NeedLeaderElection() bool { return false }

// Configure makes a server ask for, and check, the client's certificate. It must
// be the last that changes the configuration.
func (c *Clients) Configure(config *tls.Config) {
	config.ClientAuth = tls.RequireAndVerifyClientCert
	// Called for resumed sessions, too.
	config.VerifyConnection = func(state tls.ConnectionState) error {
		if len(state.PeerCertificates) == 0 {
			return errors.New("no client certificate")
		}
		name := state.PeerCertificates[0].Subject.CommonName
		if len(c.names) > 0 && !slices.Contains(c.names, name) {
			return fmt.Errorf("client certificate of %q, who is not allowed to call", name)
		}
		return nil
	}
	config.ClientCAs = c.current()
	config.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		fresh := config.Clone()
		fresh.GetConfigForClient = nil
		fresh.ClientCAs = c.current()
		return fresh, nil
	}
}

func (c *Clients) current() *x509.CertPool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.pool
}
