package tls_test

import (
	"bytes"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/guard/certificate"
	"github.com/metacontroller-solo/solo/test/kit"
)

// long is the environment variable that makes these tests take more time.
const long = "TLS_LONG"

// selfManaged are the flags of guards that make their own certificate: as
// config/self-managed has them, with short times.
func selfManaged(more ...string) []string {
	return append([]string{
		"--tls-source=self-managed", "--tls-secret-namespace=" + namespace, "--tls-names=127.0.0.1", "--tls-settle-delay=2s",
	}, more...)
}

// authority is what is in the guards' Secret.
func (s *suite) authority() (*x509.Certificate, error) {
	secret := &corev1.Secret{}
	if err := s.admin().Get(s.ctx(), client.ObjectKey{Namespace: namespace, Name: caName}, secret); err != nil {
		return nil, err
	}
	parsed := certificate.Parse(secret.Data[corev1.TLSCertKey])
	if len(parsed) != 1 {
		return nil, fmt.Errorf("the Secret holds %d certificates", len(parsed))
	}
	return parsed[0], nil
}

// leader is the guard that leads.
func (s *suite) leader() *guard {
	s.Helper()
	var leads *guard
	s.eventually(func() error {
		lease := &coordinationv1.Lease{}
		if err := s.admin().Get(s.ctx(), client.ObjectKey{Namespace: namespace, Name: "metacontroller-guard"}, lease); err != nil {
			return err
		}
		for _, g := range s.guards {
			if _, ended := g.Status(); ended {
				continue
			}
			if err := g.measured(`leader_election_master_status{name="metacontroller-guard"} 1`); err == nil {
				leads = g
				return nil
			}
		}
		return errors.New("none of the guards leads")
	})
	return leads
}

// signedBy waits until every guard that runs serves a certificate of an authority.
func (s *suite) signedBy(authority *x509.Certificate) {
	s.Helper()
	for _, g := range s.guards {
		if _, ended := g.Status(); ended {
			continue
		}
		s.eventually(func() error {
			leaf, err := g.served()
			if err != nil {
				return err
			}
			if err := leaf.CheckSignatureFrom(authority); err != nil {
				return fmt.Errorf("%s serves a certificate of another authority: %w", g.name, err)
			}
			return nil
		})
	}
}

// TestSelfManaged takes three guards without cert-manager, with the role of
// config/self-managed and no more, through what happens to their certificates.
func TestSelfManaged(t *testing.T) {
	s := newSuite(t, "config/self-managed/serving/role.yaml")
	s.installWebhook(nil)

	t.Run("E15 install order", func(t *testing.T) {
		sub := *s
		sub.TB = t
		sub.closed("failed calling webhook")
	})
	for range 3 {
		s.start(selfManaged()...)
	}
	s.serve(s.guards...)
	s.answered()
	authority, err := s.authority()
	s.must(err)
	s.signedBy(authority)
	s.holds(authority)
	s.reported("Current", "its authority on", s.guards...)

	t.Run("E11 CA rotation", func(t *testing.T) {
		sub := *s
		sub.TB = t
		l := sub.load()
		l.more(50)
		secret := &corev1.Secret{}
		secret.Namespace, secret.Name = namespace, caName
		sub.must(sub.admin().Delete(sub.ctx(), secret))
		// In the midst of it the leader goes, in good order, and another guard comes.
		leader := sub.leader()
		var others []*guard
		for _, g := range sub.guards {
			if g != leader {
				others = append(others, g)
			}
		}
		sub.serve(others...)
		l.gate.Lock()
		sub.forwarder.reset(false)
		l.gate.Unlock()
		if status := leader.Stop(); status.Code != 0 {
			t.Errorf("the leader ended with %s", status)
		}
		late := sub.start(selfManaged()...)
		sub.serve(append(others, late)...)
		var next *x509.Certificate
		sub.eventually(func() (err error) {
			if next, err = sub.authority(); err == nil && next.Equal(authority) {
				err = errors.New("the authority is still the old one")
			}
			return err
		})
		sub.signedBy(next)
		l.more(100)
		sub.holds(next) // the overlap ends
		l.more(100)
		l.unharmed("a replacement of the authority, with a change of leader")
		sub.reported("Current", "its authority on", append(others, late)...)
		s.guards = sub.guards
	})

	t.Run("E12 caBundle empty", func(t *testing.T) {
		sub := *s
		sub.TB = t
		// Somebody applies the manifests again, without a caBundle.
		configuration := sub.configuration()
		for i := range configuration.Webhooks {
			configuration.Webhooks[i].ClientConfig.CABundle = nil
		}
		sub.must(sub.admin().Update(sub.ctx(), configuration))
		now, err := sub.authority()
		sub.must(err)
		sub.holds(now)
		sub.answered()
	})
}

// TestSelfManagedLeaf renews the leaf of two guards under load.
func TestSelfManagedLeaf(t *testing.T) {
	renewals := 1
	if os.Getenv(long) != "" {
		renewals = 5
	}
	s := newSuite(t, "config/self-managed/serving/role.yaml")
	s.installWebhook(nil)
	for range 2 {
		s.start(selfManaged("--tls-duration=15s", "--tls-settle-delay=1s")...)
	}
	s.serve(s.guards...)
	s.answered()
	t.Run("E14 leaf rotation", func(t *testing.T) {
		sub := *s
		sub.TB = t
		l := sub.load()
		seen := map[*guard]map[string]bool{}
		sub.eventually(func() error {
			var late error
			for _, g := range sub.guards {
				leaf, err := g.served()
				if err != nil {
					return err
				}
				if seen[g] == nil {
					seen[g] = map[string]bool{}
				}
				if seen[g][leaf.SerialNumber.String()] = true; len(seen[g]) <= renewals {
					late = fmt.Errorf("%s has served %d certificates", g.name, len(seen[g]))
				}
			}
			return late
		})
		l.more(50)
		l.unharmed(fmt.Sprintf("renewals of the leaf of each guard, at least %d", renewals))
	})
}

// TestSelfManagedWithoutTheRole says what is missing.
func TestSelfManagedWithoutTheRole(t *testing.T) {
	s := newSuite(t)
	s.remove("config/self-managed/serving/role.yaml")
	g := s.start(selfManaged()...)
	s.eventually(func() error {
		content, err := os.ReadFile(g.log)
		if err == nil && (!bytes.Contains(content, []byte("forbidden")) || !bytes.Contains(content, []byte("secrets"))) {
			err = errors.New("nothing says that the Secret is forbidden")
		}
		return err
	})
	if g.ready() == nil {
		t.Error("a guard without a certificate is ready")
	}
}

// TestCallers lets the API servers call, and nobody else.
func TestCallers(t *testing.T) {
	s := newSuite(t)
	pair, err := s.cp.CA().IssueServer("127.0.0.1")
	s.must(err)
	s.must(pair.Write(s.dir, "tls"))
	path := s.dir + "/callers.crt"
	s.must(os.WriteFile(path, callers.CertPEM(), 0o600))
	g := s.start("--tls-cert-dir="+s.dir, "--client-ca-file="+path, "--client-allowed-names="+callerName)
	s.serve(g)
	s.installWebhook(nil)
	configuration := s.configuration()
	for i := range configuration.Webhooks {
		configuration.Webhooks[i].ClientConfig.CABundle = s.cp.CA().CertPEM()
	}
	s.must(s.admin().Update(s.ctx(), configuration))
	s.answered()

	for name, issue := range map[string]func() (kit.KeyPair, error){
		"no certificate":    nil,
		"another name":      func() (kit.KeyPair, error) { return callers.IssueClient("somebody") },
		"another authority": func() (kit.KeyPair, error) { return s.cp.CA().IssueClient(callerName) },
	} {
		t.Run(name, func(t *testing.T) {
			if err := s.call(g, issue); err == nil {
				t.Error("it was answered")
			}
		})
	}
	if err := s.call(g, func() (kit.KeyPair, error) { return callers.IssueClient(callerName) }); err != nil {
		t.Errorf("the right certificate: %v", err)
	}
}
