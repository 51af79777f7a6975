package serving

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/cert-manager/cert-manager/pkg/server/tls/authority"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/metacontroller-solo/solo/pkg/guard/certificate"
)

const (
	// stepInterval is how often SelfManaged looks whether something is to be done.
	stepInterval = time.Second
	// callLimit bounds one call of the API server.
	callLimit = 10 * time.Second
)

// Authority signs certificates with a key that every guard shares.
type Authority interface {
	// Run keeps the authority until ctx ends.
	Run(ctx context.Context) error
	// Sign signs a certificate for the template's public key, and sets its times.
	Sign(template *x509.Certificate) (*x509.Certificate, error)
	// WatchRotation makes it tell when it has another key or certificate.
	WatchRotation(output chan<- struct{})
}

var _ Authority = &authority.DynamicAuthority{}

// SelfManaged serves a certificate that it signs itself, with an authority that
// cert-manager's library keeps in a Secret. A certificate of a new authority is
// served only when every webhook's caBundle vouches for it, and the API servers
// have had the time to see so; until then the old one is, which the old authority,
// still in the caBundle, vouches for.
type SelfManaged struct {
	// Authority signs.
	Authority Authority
	// Secret is where it is kept, and Reader reads it from the API server.
	Secret client.ObjectKey
	Reader client.Reader
	// Names are the names and addresses that the API servers call the guard by.
	Names []string
	// Webhooks are those installed.
	Webhooks Webhooks
	// Settle is how long a change of the caBundle takes to reach every API server.
	Settle time.Duration
	// Clock tells the time.
	Clock clock.WithTicker
	// Rotated is told of each new authority; it should have room for one event.
	Rotated chan event.GenericEvent
	// Changed is called when another certificate is served.
	Changed func()

	mutex sync.Mutex // guards the fields below
	// serving is what GetCertificate gives, signed by servingBy.
	serving   *tls.Certificate
	servingBy *x509.Certificate
	// next waits for the caBundle to vouch for it.
	next   *tls.Certificate
	nextBy *x509.Certificate
	// trusted is since when every caBundle has held the authority of next.
	trusted time.Time
	ready   bool
	fault   error
}

var _ Source = &SelfManaged{}

// Start signs and serves until ctx ends.
func (s *SelfManaged) Start(ctx context.Context) error {
	rotated := make(chan struct{}, 1)
	s.Authority.WatchRotation(rotated)
	ended := make(chan error, 1)
	go func() { ended <- s.Authority.Run(ctx) }()
	ticker := s.Clock.NewTicker(stepInterval)
	defer ticker.Stop()
	stale := true
	for {
		err := s.step(ctx, stale)
		stale = stale && err != nil
		s.mutex.Lock()
		// While the authority is being made for the first time, this is no fault.
		s.fault = err
		s.mutex.Unlock()
		if err != nil && !errors.Is(err, authority.ErrCertificateNotAvailable) && ctx.Err() == nil {
			log.FromContext(ctx).Error(err, "Cannot renew the serving certificate; trying again")
		}
		select {
		case <-ctx.Done():
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
				log.FromContext(ctx).Error(err, "The authority of the serving certificate did not end well")
			}
			return nil
		case err := <-ended:
			if ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("the authority of the serving certificate stopped: %w", err)
		case <-rotated:
			stale = true
			select {
			case s.Rotated <- event.GenericEvent{Object: &corev1.Secret{}}:
			default: // one that waits there tells enough
			}
		case <-ticker.C():
		}
	}
}

// step signs a certificate when that is due, or when the authority is a new one,
// and serves it when the API servers will trust it.
func (s *SelfManaged) step(ctx context.Context, stale bool) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	now := s.Clock.Now()
	if stale || s.due(now) {
		if err := s.sign(ctx); err != nil {
			return err
		}
	}
	webhooks, err := s.Webhooks(ctx)
	if err != nil {
		return err
	}
	if s.promote(webhooks, now) {
		s.Changed()
	}
	return nil
}

// due says whether two thirds of the life of the newest certificate are over.
func (s *SelfManaged) due(now time.Time) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	newest := s.next
	if newest == nil {
		newest = s.serving
	}
	if newest == nil {
		return true
	}
	life := newest.Leaf.NotAfter.Sub(newest.Leaf.NotBefore)
	return now.After(newest.Leaf.NotAfter.Add(-life / 3))
}

// sign makes the next certificate.
func (s *SelfManaged) sign(ctx context.Context) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("cannot make a key: %w", err)
	}
	template := &x509.Certificate{
		PublicKeyAlgorithm: x509.ECDSA,
		PublicKey:          key.Public(),
		KeyUsage:           x509.KeyUsageDigitalSignature,
		ExtKeyUsage:        []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, name := range s.Names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	signed, err := s.Authority.Sign(template)
	if err != nil {
		return fmt.Errorf("cannot sign the serving certificate: %w", err)
	}
	by, err := readAuthority(ctx, s.Reader, s.Secret)
	if err != nil {
		return err
	}
	if err := signed.CheckSignatureFrom(by); err != nil {
		// It changed between the two: the next step will find both alike.
		return fmt.Errorf("cannot use the serving certificate: Secret %q holds another authority than the one that signed: %w", s.Secret, err)
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.nextBy == nil || !s.nextBy.Equal(by) {
		s.trusted = time.Time{}
	}
	s.next = &tls.Certificate{Certificate: [][]byte{signed.Raw}, PrivateKey: crypto.Signer(key), Leaf: signed}
	s.nextBy = by
	return nil
}

// promote serves the next certificate once it is trusted, and says whether it does
// now.
func (s *SelfManaged) promote(webhooks []certificate.Webhook, now time.Time) bool {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	by := s.nextBy
	if s.next == nil {
		by = s.servingBy
	}
	if by == nil {
		return false
	}
	// Where no other authority is left beside it, the overlap is over: the API
	// servers have known this one for long, or have known none.
	everywhere, alone := true, true
	for _, w := range webhooks {
		has, only := certificate.Has(w.Bundle, by)
		everywhere, alone = everywhere && has, alone && only
	}
	switch {
	case !everywhere:
		s.trusted = time.Time{}
	case s.trusted.IsZero():
		s.trusted = now
	}
	settled := everywhere && (alone || now.Sub(s.trusted) >= s.Settle)
	s.ready = s.ready || settled
	if s.next == nil {
		return false
	}
	switch {
	case s.serving == nil, !now.Before(s.serving.Leaf.NotAfter):
		// Nothing better is there.
	case !s.servingBy.Equal(by) && settled:
	case s.servingBy.Equal(by) && now.Sub(s.next.Leaf.NotBefore) >= s.Settle:
		// The clocks of API servers may be behind: to them it is not valid yet.
	default:
		return false
	}
	s.serving, s.servingBy, s.next = s.next, s.nextBy, nil
	return true
}

// NeedLeaderElection implements Source.
func (s *SelfManaged) NeedLeaderElection() bool { return false }

// GetCertificate implements Source.
func (s *SelfManaged) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if s.serving == nil {
		return nil, errors.New("no certificate is there yet")
	}
	return s.serving, nil
}

// Ready waits, once, for the API servers to trust what is served. Later it is
// better to answer those that do.
func (s *SelfManaged) Ready() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	switch {
	case s.serving == nil:
		return errors.New("no serving certificate is there yet")
	case !s.ready:
		return errors.New("the API servers do not trust the serving certificate yet")
	}
	return nil
}

// Fault implements Source.
func (s *SelfManaged) Fault() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.fault
}

// Remedy implements Source.
func (s *SelfManaged) Remedy() string {
	return fmt.Sprintf("look at the guards' logs, and whether they may update Secret %q and patch the webhook configuration (config/self-managed has the role)", s.Secret)
}

// readAuthority reads the authority's certificate.
func readAuthority(ctx context.Context, reader client.Reader, key client.ObjectKey) (*x509.Certificate, error) {
	secret := &corev1.Secret{}
	if err := reader.Get(ctx, key, secret); err != nil {
		return nil, fmt.Errorf("cannot get Secret %q: %w", key, err)
	}
	parsed := certificate.Parse(secret.Data[corev1.TLSCertKey])
	if len(parsed) == 0 {
		return nil, fmt.Errorf("cannot use Secret %q: no certificate in %s", key, corev1.TLSCertKey)
	}
	return parsed[0], nil
}
