// Package serving provides what the webhook serves TLS with, keeps it fresh without
// a restart, and reports how long it is good.
//
//	Files:       Secret mounted by the kubelet ──> certwatcher ───────────────┐
//	                                                                          ├─> GetCertificate
//	SelfManaged: authority in a Secret ──> leaf, served once the caBundle ────┘        │
//	                       │               vouches for it                              │
//	                       └─> Bundler (leader) ─> caBundle, old and new overlap       │
//	Clients:     the API servers' authority ─> who may call                            │
//	Reporter:    what is served, what is installed ─> Judgement ─> metrics, condition, event
//
// The order in SelfManaged is what makes a change of the authority go unnoticed: an
// API server gets the new authority in the caBundle first, each guard signs with it
// only afterwards, and the old one leaves the caBundle last.
package serving

import (
	"context"
	"crypto/tls"
	"crypto/x509"

	"github.com/metacontroller-solo/solo/pkg/guard/certificate"
)

// Names of the files in the folder of a mounted Secret.
const (
	CertFile = "tls.crt"
	KeyFile  = "tls.key"
)

// Source provides the certificate.
type Source interface {
	// Start keeps it fresh until ctx ends. It runs in every guard.
	Start(ctx context.Context) error
	// NeedLeaderElection is false.
	NeedLeaderElection() bool
	// GetCertificate is for tls.Config.
	GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error)
	// Ready says why requests should not be sent here; nil if they may.
	Ready() error
	// Fault says why the newest certificate cannot be served; nil if it is.
	Fault() error
	// Remedy is what a person is to look at when the certificate is not renewed.
	Remedy() string
}

// Webhooks are the webhooks that are installed, as this guard sees them; none if
// there are none.
type Webhooks func(ctx context.Context) ([]certificate.Webhook, error)

// chainOf parses what is served; empty if nothing is.
func chainOf(source Source) []*x509.Certificate {
	served, err := source.GetCertificate(nil)
	if err != nil || served == nil {
		return nil
	}
	return parseChain(served)
}

func parseChain(served *tls.Certificate) []*x509.Certificate {
	var chain []*x509.Certificate
	for _, raw := range served.Certificate {
		parsed, err := x509.ParseCertificate(raw)
		if err != nil {
			return nil
		}
		chain = append(chain, parsed)
	}
	return chain
}
