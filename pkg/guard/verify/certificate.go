package verify

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/guard/finding"
)

// dialTimeout bounds a try to reach the guard at its URL.
const dialTimeout = 5 * time.Second

// checkCertificate looks at the bundle that the API server checks the guard's
// certificate with, and at the certificate as far as it can be had from here.
func (r *run) checkCertificate(ctx context.Context) error {
	about := &finding.Object{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: "ValidatingWebhookConfiguration", Name: r.WebhookConfiguration}
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	switch err := r.Client.Get(ctx, client.ObjectKey{Name: r.WebhookConfiguration}, configuration); {
	case apierrors.IsNotFound(err):
		r.add(CheckCertificate, finding.Violation, about, "it is not installed\nNext: apply what \"guard render\" prints")
		return nil
	case r.refusedToRead(CheckCertificate, err):
		return nil
	case err != nil:
		return fmt.Errorf("cannot get %s: %w", about, err)
	}
	webhook := workloads(configuration, r.Webhook)
	if webhook == nil {
		r.add(CheckCertificate, finding.Violation, about, "webhook %q is missing\nNext: apply what \"guard render\" prints", r.Webhook)
		return nil
	}
	authorities, err := parsePEM(webhook.ClientConfig.CABundle)
	if err != nil {
		r.add(CheckCertificate, finding.Violation, about, "caBundle of webhook %q: %v, so the API server cannot reach the guard\nNext: let cert-manager's CA injector fill it in, or render with --ca-file", r.Webhook, err)
		return nil
	}
	pool := x509.NewCertPool()
	for _, authority := range authorities {
		pool.AddCert(authority)
		r.validity("authority "+authority.Subject.CommonName, authority, about)
	}
	chain, host, source, err := r.served(ctx, webhook.ClientConfig, pool)
	if err != nil {
		r.add(CheckCertificate, finding.Skipped, about, "cannot get the guard's certificate: %v", err)
		return nil
	}
	r.chain(chain, pool, host, source)
	return nil
}

func workloads(configuration *admissionregistrationv1.ValidatingWebhookConfiguration, name string) *admissionregistrationv1.ValidatingWebhook {
	for i := range configuration.Webhooks {
		if configuration.Webhooks[i].Name == name {
			return &configuration.Webhooks[i]
		}
	}
	return nil
}

// served is the guard's certificate with what comes along, the host that it must
// be for, and where it was read.
func (r *run) served(ctx context.Context, at admissionregistrationv1.WebhookClientConfig, pool *x509.CertPool) (chain []*x509.Certificate, host, source string, err error) {
	if at.URL != nil {
		target, err := url.Parse(*at.URL)
		if err != nil {
			return nil, "", "", fmt.Errorf("the URL is none: %w", err)
		}
		host = target.Hostname()
		if len(r.Certificate) == 0 {
			chain, err = dial(ctx, target)
			return chain, host, target.Host, err
		}
	} else {
		host = at.Service.Name + "." + at.Service.Namespace + ".svc"
	}
	if len(r.Certificate) > 0 {
		chain, err = parsePEM(r.Certificate)
		return chain, host, "the file", err
	}
	secret := &corev1.Secret{}
	if err := r.Client.Get(ctx, r.Secret, secret); err != nil {
		return nil, "", "", fmt.Errorf("%w; give it with --certificate, or name the Secret with --tls-secret", err)
	}
	chain, err = parsePEM(secret.Data[corev1.TLSCertKey])
	return chain, host, "Secret " + r.Secret.String(), err
}

// dial asks for the certificate where the guard is reached by a URL. It is judged
// afterwards, so that the report says what is wrong with it.
func dial(ctx context.Context, target *url.URL) ([]*x509.Certificate, error) {
	port := target.Port()
	if port == "" {
		port = "443"
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	dialer := &tls.Dialer{Config: &tls.Config{
		ServerName: target.Hostname(), MinVersion: tls.VersionTLS12,
		InsecureSkipVerify: true, //nolint:gosec // Only the certificate is wanted, and it is verified by chain.
	}}
	connection, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(target.Hostname(), port))
	if err != nil {
		return nil, fmt.Errorf("the guard is not reachable from here: %w", err)
	}
	defer func() { _ = connection.Close() }()
	return connection.(*tls.Conn).ConnectionState().PeerCertificates, nil
}

// chain checks a certificate as the API server does.
func (r *run) chain(chain []*x509.Certificate, roots *x509.CertPool, host, source string) {
	leaf := chain[0]
	about := &finding.Object{Kind: "Certificate", Name: host}
	if r.validity("the certificate ("+source+")", leaf, about) {
		return
	}
	intermediates := x509.NewCertPool()
	for _, certificate := range chain[1:] {
		intermediates.AddCert(certificate)
	}
	_, err := leaf.Verify(x509.VerifyOptions{
		DNSName: host, Roots: roots, Intermediates: intermediates, CurrentTime: r.Now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		r.add(CheckCertificate, finding.Violation, about, "the API server cannot trust it (%s): %v\nNext: see the Certificate of cert-manager, or what wrote it", source, err)
		return
	}
	r.add(CheckCertificate, finding.Passed, about, "the caBundle has its issuer, its names are right, and it is valid until %s (%s)", leaf.NotAfter.UTC().Format(time.RFC3339), source)
}

// validity reports a certificate that has expired, or will soon. It says whether
// it cannot be used now.
func (r *run) validity(what string, certificate *x509.Certificate, about *finding.Object) bool {
	left := certificate.NotAfter.Sub(r.Now)
	until := certificate.NotAfter.UTC().Format(time.RFC3339)
	switch {
	case left <= 0:
		r.add(CheckCertificate, finding.Violation, about, "%s expired at %s\nNext: see the Certificate of cert-manager, or what wrote it", what, until)
		return true
	case certificate.NotBefore.After(r.Now):
		r.add(CheckCertificate, finding.Violation, about, "%s is not valid before %s: compare the clocks", what, certificate.NotBefore.UTC().Format(time.RFC3339))
		return true
	case left < r.MinValidity:
		r.add(CheckCertificate, finding.Warning, about, "%s expires in %d days, at %s\nNext: see whether something renews it", what, int(left.Hours()/24), until)
	}
	return false
}

// parsePEM reads at least one certificate.
func parsePEM(data []byte) ([]*x509.Certificate, error) {
	if len(strings.TrimSpace(string(data))) == 0 {
		return nil, errors.New("it is empty")
	}
	var all []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("it has a certificate that cannot be read: %w", err)
		}
		all = append(all, certificate)
	}
	if len(all) == 0 {
		return nil, errors.New("it has no certificate in PEM")
	}
	return all, nil
}
