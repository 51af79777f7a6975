// Package certificate judges whether the API servers can trust the certificate
// that the guard serves, and for how long yet. It decides alone: what is served and
// what is installed come in as values.
//
//	served chain ──┐
//	webhooks ──────┼─> Judge ─> Judgement: verdict, message, when it ends
//	now ───────────┘
//	caBundle, authority ─> Bundle ─> the caBundle in which both overlap
package certificate

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/url"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
)

// Verdict is what is to be said of the serving certificate. Later ones are worse.
type Verdict int

const (
	// Unknown means that nothing was judged.
	Unknown Verdict = iota
	// Current means that every webhook's caBundle trusts the certificate, and its
	// renewal is not overdue.
	Current
	// RenewalOverdue means that it is still good, and should be another one by now.
	RenewalOverdue
	// Unusable means that a newer one is there that cannot be used, so that the
	// last good one is still served.
	Unusable
	// NoBundle means that a webhook has no caBundle: cert-manager's CA injector, or
	// the guard itself, has not filled it in.
	NoBundle
	// NotTrusted means that a webhook's caBundle does not vouch for it under the
	// name that the API servers call.
	NotTrusted
	// Expired means that it, or the authority that vouches for it, has expired.
	Expired
)

// Verdicts are all but Unknown.
var Verdicts = []Verdict{Current, RenewalOverdue, Unusable, NoBundle, NotTrusted, Expired}

// String is the verdict's name, as conditions and metrics have it.
func (v Verdict) String() string {
	switch v {
	case Current:
		return "Current"
	case RenewalOverdue:
		return "RenewalOverdue"
	case Unusable:
		return "Unusable"
	case NoBundle:
		return "NoBundle"
	case NotTrusted:
		return "NotTrusted"
	case Expired:
		return "Expired"
	case Unknown:
	}
	return "Unknown"
}

// Webhook is what the API servers check the certificate with when they call one of
// the guard's webhooks.
type Webhook struct {
	// Name is the webhook's.
	Name string
	// Host is the name or address that the certificate must be for.
	Host string
	// Bundle is its caBundle, PEM.
	Bundle []byte
}

// WebhooksOf are the webhooks of a configuration.
func WebhooksOf(configuration *admissionregistrationv1.ValidatingWebhookConfiguration) []Webhook {
	webhooks := make([]Webhook, 0, len(configuration.Webhooks))
	for i := range configuration.Webhooks {
		config := &configuration.Webhooks[i].ClientConfig
		w := Webhook{Name: configuration.Webhooks[i].Name, Bundle: config.CABundle}
		switch {
		case config.Service != nil:
			// What the API server calls a Service, whatever the cluster's domain.
			w.Host = config.Service.Name + "." + config.Service.Namespace + ".svc"
		case config.URL != nil:
			if parsed, err := url.Parse(*config.URL); err == nil {
				w.Host = parsed.Hostname()
			}
		}
		webhooks = append(webhooks, w)
	}
	return webhooks
}

// Facts are what a judgement is made from.
type Facts struct {
	// Chain is what is served, the certificate itself first.
	Chain []*x509.Certificate
	// Webhooks are those installed; none if there are none yet.
	Webhooks []Webhook
	// Fault is why a newer certificate that is there cannot be served, or why none
	// can be; nil if nothing is wrong.
	Fault error
	// WarnBefore is how long before its end a renewal is overdue, if that is less
	// than a quarter of the certificate's life: who renews at two thirds, as
	// cert-manager does, has had time enough by then.
	WarnBefore time.Duration
	// Remedy is what a person is to look at when it is not renewed.
	Remedy string
}

// Judgement is what there is to say.
type Judgement struct {
	Verdict Verdict
	// Message says it to a person, in one line that changes once a day at most
	// until the last day.
	Message string
	// Serving is when the certificate ends; Authority when the one that vouches for
	// it does. Zero is unknown.
	Serving, Authority time.Time
}

// Judge judges the certificate at a moment.
func Judge(f Facts, now time.Time) Judgement {
	if len(f.Chain) == 0 {
		j := Judgement{Verdict: Unusable, Message: "no certificate is served: " + f.Remedy}
		if f.Fault != nil {
			j.Message = fmt.Sprintf("no certificate is served: %v: %s", f.Fault, f.Remedy)
		}
		return j
	}
	leaf := f.Chain[0]
	j := Judgement{Verdict: Current, Serving: leaf.NotAfter}
	raise := func(verdict Verdict, format string, args ...any) {
		if verdict > j.Verdict {
			j.Verdict, j.Message = verdict, fmt.Sprintf(format, args...)
		}
	}
	if !now.Before(leaf.NotAfter) {
		raise(Expired, "the serving certificate expired on %s, so no API server can call the guard: %s", date(leaf.NotAfter), f.Remedy)
	}
	var authority *x509.Certificate
	for _, w := range f.Webhooks {
		if len(w.Bundle) == 0 {
			raise(NoBundle, "webhook %q has no caBundle, so no API server can call the guard: %s", w.Name, f.Remedy)
			continue
		}
		root, err := trusts(w, f.Chain, now)
		switch {
		case err != nil && root != nil && !now.Before(root.NotAfter):
			raise(Expired, "the authority in the caBundle of webhook %q expired on %s, so no API server can call the guard: %s", w.Name, date(root.NotAfter), f.Remedy)
		case err != nil:
			raise(NotTrusted, "the caBundle of webhook %q does not vouch for the serving certificate (%v), so no API server can call the guard: %s", w.Name, err, f.Remedy)
		}
		if root != nil && (authority == nil || root.NotAfter.Before(authority.NotAfter)) {
			authority = root
		}
	}
	if f.Fault != nil {
		raise(Unusable, "the newest certificate cannot be used (%v); the last good one is served, and expires on %s: %s", f.Fault, date(leaf.NotAfter), f.Remedy)
	}
	if overdue(leaf, now, f.WarnBefore) {
		raise(RenewalOverdue, "the serving certificate expires in %s, on %s, and was not renewed in time: %s", left(leaf.NotAfter.Sub(now)), date(leaf.NotAfter), f.Remedy)
	}
	if authority != nil {
		j.Authority = authority.NotAfter
		if overdue(authority, now, f.WarnBefore) {
			raise(RenewalOverdue, "the certificate's authority expires in %s, on %s, and was not renewed in time: %s", left(authority.NotAfter.Sub(now)), date(authority.NotAfter), f.Remedy)
		}
	}
	if j.Verdict == Current {
		j.Message = "the serving certificate expires on " + date(leaf.NotAfter)
		if authority != nil {
			j.Message += ", its authority on " + date(authority.NotAfter)
		}
	}
	return j
}

// overdue says whether a certificate should have been renewed by now.
func overdue(c *x509.Certificate, now time.Time, warnBefore time.Duration) bool {
	return c.NotAfter.Sub(now) < min(warnBefore, c.NotAfter.Sub(c.NotBefore)/4)
}

// Trusts says whether a webhook's caBundle vouches for what is served.
func Trusts(w Webhook, chain []*x509.Certificate, now time.Time) bool {
	if len(chain) == 0 {
		return false
	}
	_, err := trusts(w, chain, now)
	return err == nil
}

// trusts does what an API server does when it calls. It returns the authority that
// vouches for the chain, of several the one that lasts longest, also if all have
// expired.
func trusts(w Webhook, chain []*x509.Certificate, now time.Time) (*x509.Certificate, error) {
	options := x509.VerifyOptions{DNSName: w.Host, Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now}
	options.Roots.AppendCertsFromPEM(w.Bundle)
	for _, c := range chain[1:] {
		options.Intermediates.AddCert(c)
	}
	chains, err := chain[0].Verify(options)
	var best *x509.Certificate
	for _, verified := range chains {
		// The weakest link above the leaf ends the chain.
		end := verified[len(verified)-1]
		for _, link := range verified[1:] {
			if link.NotAfter.Before(end.NotAfter) {
				end = link
			}
		}
		if best == nil || end.NotAfter.After(best.NotAfter) {
			best = end
		}
	}
	if best != nil {
		return best, nil
	}
	for _, root := range Parse(w.Bundle) {
		if chain[len(chain)-1].CheckSignatureFrom(root) == nil && (best == nil || root.NotAfter.After(best.NotAfter)) {
			best = root
		}
	}
	return best, err
}

// Parse reads the certificates of a PEM bundle. What is none is left out, as the
// API server does.
func Parse(bundle []byte) []*x509.Certificate {
	var found []*x509.Certificate
	for {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			return found
		}
		if parsed, err := x509.ParseCertificate(block.Bytes); err == nil && block.Type == pemCertificate {
			found = append(found, parsed)
		}
	}
}

const pemCertificate = "CERTIFICATE"

// mostAuthorities bounds a caBundle: an authority that is replaced over and over
// must not make the object grow.
const mostAuthorities = 8

// Bundle is the caBundle that a webhook should have, given the one that it has and
// the authority that signs now. The authority comes first; those installed stay
// behind it while they are valid, since what they signed may still be served,
// unless alone says that this is over.
func Bundle(installed []byte, authority *x509.Certificate, alone bool, now time.Time) []byte {
	keep := []*x509.Certificate{authority}
	for _, other := range Parse(installed) {
		known := false
		for _, c := range keep {
			known = known || bytes.Equal(c.Raw, other.Raw)
		}
		if known || alone || !now.Before(other.NotAfter) || len(keep) == mostAuthorities {
			continue
		}
		keep = append(keep, other)
	}
	var bundle bytes.Buffer
	for _, c := range keep {
		// A buffer takes everything.
		_ = pem.Encode(&bundle, &pem.Block{Type: pemCertificate, Bytes: c.Raw})
	}
	return bundle.Bytes()
}

// Has says whether a bundle holds an authority, and whether it holds no other.
func Has(bundle []byte, authority *x509.Certificate) (has, alone bool) {
	all := Parse(bundle)
	for _, c := range all {
		has = has || bytes.Equal(c.Raw, authority.Raw)
	}
	return has, has && len(all) == 1
}

func date(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// left says a time that is left in whole units, so that the text changes seldom.
func left(d time.Duration) string {
	const day = 24 * time.Hour
	unit := func(n time.Duration, name string) string {
		if n == 1 {
			return "1 " + name
		}
		return fmt.Sprintf("%d %ss", n, name)
	}
	switch {
	case d >= day:
		return unit(d/day, "day")
	case d >= time.Hour:
		return unit(d/time.Hour, "hour")
	default:
		return "less than an hour"
	}
}
