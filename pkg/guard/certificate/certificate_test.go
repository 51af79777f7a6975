package certificate_test

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/guard/certificate"
)

const day = 24 * time.Hour

var now = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

type tb interface{ Fatal(args ...any) }

func newKey(t tb) *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

type authority struct {
	*x509.Certificate
	key *ecdsa.PrivateKey
}

var serial = big.NewInt(1)

// newAuthority makes a self-signed authority that lives from one offset of now to
// another.
func newAuthority(t tb, key *ecdsa.PrivateKey, from, to time.Duration) authority {
	serial.Add(serial, big.NewInt(1))
	template := &x509.Certificate{
		SerialNumber: new(big.Int).Set(serial), Subject: pkix.Name{CommonName: "ca"}, NotBefore: now.Add(from), NotAfter: now.Add(to),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	return authority{sign(t, template, template, key, key), key}
}

func sign(t tb, template, parent *x509.Certificate, public, by *ecdsa.PrivateKey) *x509.Certificate {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, public.Public(), by)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func (a authority) issue(t tb, from, to time.Duration, names ...string) *x509.Certificate {
	serial.Add(serial, big.NewInt(1))
	return sign(t, &x509.Certificate{
		SerialNumber: new(big.Int).Set(serial), NotBefore: now.Add(from), NotAfter: now.Add(to), DNSNames: names,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, a.Certificate, newKey(t), a.key)
}

func (a authority) pem() []byte { return encode(a.Certificate) }

func encode(certificates ...*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range certificates {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
	}
	return b.Bytes()
}

const host = "guard.ns.svc"

func TestJudge(t *testing.T) {
	root := newAuthority(t, newKey(t), -day, 3650*day)
	other := newAuthority(t, newKey(t), -day, 3650*day)
	// The same key in a root of its own, as cert-manager renews one whose key is kept.
	renewed := newAuthority(t, root.key, 0, 7300*day)
	ending := newAuthority(t, root.key, -3645*day, 5*day)
	ended := newAuthority(t, root.key, -3650*day, -time.Second)
	good := root.issue(t, -10*day, 80*day, host)
	late := root.issue(t, -78*day, 12*day, host)
	over := root.issue(t, -90*day, -time.Second, host)
	webhook := func(bundle []byte) []certificate.Webhook {
		return []certificate.Webhook{{Name: "w", Host: host, Bundle: bundle}}
	}
	for name, test := range map[string]struct {
		reason   string
		leaf     *x509.Certificate
		webhooks []certificate.Webhook
		fault    error
		want     certificate.Verdict
		says     string
	}{
		"good":                     {"trusted, and in time", good, webhook(root.pem()), nil, certificate.Current, "expires on 2027-02-18"},
		"not installed":            {"nobody calls yet", good, nil, nil, certificate.Current, "expires on"},
		"root renewed":             {"the key vouches, not the certificate", good, webhook(renewed.pem()), nil, certificate.Current, ""},
		"bundle of two":            {"either may vouch", good, webhook(encode(other.Certificate, root.Certificate)), nil, certificate.Current, ""},
		"renewal overdue":          {"12 of 90 days are less than 21 days", late, webhook(root.pem()), nil, certificate.RenewalOverdue, "expires in 12 days"},
		"short life":               {"a quarter of the life counts where it is shorter", root.issue(t, -3*time.Hour, 65*time.Minute, host), webhook(root.pem()), nil, certificate.Current, ""},
		"short life, late":         {"less than a quarter is left", root.issue(t, -3*time.Hour, 59*time.Minute, host), webhook(root.pem()), nil, certificate.RenewalOverdue, "less than an hour"},
		"root overdue":             {"the root ends first", good, webhook(ending.pem()), nil, certificate.RenewalOverdue, "authority expires in 5 days"},
		"one of the roots is late": {"the one that lasts longest counts", good, webhook(encode(ending.Certificate, root.Certificate)), nil, certificate.Current, ""},
		"expired":                  {"nobody trusts it", over, webhook(root.pem()), nil, certificate.Expired, "the serving certificate expired on"},
		"root expired":             {"nobody trusts it either", good, webhook(ended.pem()), nil, certificate.Expired, "the authority in the caBundle"},
		"no bundle":                {"the injector has not been there", good, webhook(nil), nil, certificate.NoBundle, "no caBundle"},
		"another root":             {"the root was replaced, the leaf was not", good, webhook(other.pem()), nil, certificate.NotTrusted, "does not vouch"},
		"garbage":                  {"a bundle without certificates trusts nobody", good, webhook([]byte("x")), nil, certificate.NotTrusted, ""},
		"another name":             {"the API servers check the name", root.issue(t, -day, 80*day, "guard.other.svc"), webhook(root.pem()), nil, certificate.NotTrusted, "guard.other.svc"},
		"one webhook of two":       {"the worst counts", good, append(webhook(root.pem()), certificate.Webhook{Name: "v", Host: host}), nil, certificate.NoBundle, `"v"`},
		"fault":                    {"the last good one is served", good, webhook(root.pem()), errors.New("key does not match"), certificate.Unusable, "key does not match"},
		"nothing served":           {"there is no last good one", nil, webhook(root.pem()), errors.New("not made yet"), certificate.Unusable, "not made yet"},
	} {
		t.Run(name, func(t *testing.T) {
			f := certificate.Facts{Webhooks: test.webhooks, Fault: test.fault, WarnBefore: 21 * day, Remedy: "look there"}
			if test.leaf != nil {
				f.Chain = []*x509.Certificate{test.leaf}
			}
			got := certificate.Judge(f, now)
			if got.Verdict != test.want {
				t.Errorf("%s: got %s (%s), want %s", test.reason, got.Verdict, got.Message, test.want)
			}
			if !strings.Contains(got.Message, test.says) || strings.Contains(got.Message, "\n") {
				t.Errorf("message is %q", got.Message)
			}
			if got.Verdict != certificate.Current && !strings.Contains(got.Message, "look there") {
				t.Errorf("message %q does not say what to do", got.Message)
			}
		})
	}
}

func TestEndOfTheAuthority(t *testing.T) {
	root := newAuthority(t, newKey(t), -day, 100*day)
	// What an intermediate signs ends with it.
	key := newKey(t)
	middle := authority{sign(t, &x509.Certificate{
		SerialNumber: big.NewInt(7), Subject: pkix.Name{CommonName: "middle"}, NotBefore: now.Add(-day), NotAfter: now.Add(50 * day),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}, root.Certificate, key, root.key), key}
	leaf := middle.issue(t, -day, 40*day, host)
	got := certificate.Judge(certificate.Facts{
		Chain:    []*x509.Certificate{leaf, middle.Certificate},
		Webhooks: []certificate.Webhook{{Host: host, Bundle: root.pem()}},
	}, now)
	if got.Verdict != certificate.Current || !got.Authority.Equal(middle.NotAfter) || !got.Serving.Equal(leaf.NotAfter) {
		t.Errorf("got %+v", got)
	}
}

func TestEveryVerdictHasAName(t *testing.T) {
	seen := map[string]bool{certificate.Unknown.String(): true}
	for _, v := range certificate.Verdicts {
		if seen[v.String()] {
			t.Errorf("%d has the name of another, %s", v, v)
		}
		seen[v.String()] = true
	}
}

func TestWebhooksOf(t *testing.T) {
	url := "https://[::1]:8443/validate"
	got := certificate.WebhooksOf(&admissionregistrationv1.ValidatingWebhookConfiguration{Webhooks: []admissionregistrationv1.ValidatingWebhook{
		{Name: "a", ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "ns", Name: "guard"}, CABundle: []byte("x")}},
		{Name: "b", ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &url}},
	}})
	if len(got) != 2 || got[0].Host != host || string(got[0].Bundle) != "x" || got[1].Host != "::1" || got[1].Name != "b" {
		t.Errorf("got %+v", got)
	}
}

// TestBundleOverlaps holds what a change of the authority relies on, for any
// sequence of authorities and any state that is found.
func TestBundleOverlaps(t *testing.T) {
	var pool []authority
	for range 12 {
		pool = append(pool, newAuthority(t, newKey(t), -day, 10*day))
	}
	expired := newAuthority(t, newKey(t), -2*day, -day)
	rapid.Check(t, func(t *rapid.T) {
		pick := rapid.SliceOfN(rapid.IntRange(0, len(pool)-1), 0, 12).Draw(t, "installed")
		installed := []byte(rapid.SampledFrom([]string{"", "garbage\n", string(expired.pem())}).Draw(t, "beside"))
		for _, i := range pick {
			installed = append(installed, pool[i].pem()...)
		}
		current := pool[rapid.IntRange(0, len(pool)-1).Draw(t, "authority")]
		alone := rapid.Bool().Draw(t, "alone")
		got := certificate.Bundle(installed, current.Certificate, alone, now)
		parsed := certificate.Parse(got)
		if len(parsed) == 0 || !parsed[0].Equal(current.Certificate) {
			t.Fatal("the authority is not the first")
		}
		if has, only := certificate.Has(got, current.Certificate); !has || alone && !only || only != (len(parsed) == 1) {
			t.Fatalf("has %v, only %v, of %d", has, only, len(parsed))
		}
		if len(parsed) > 8 {
			t.Fatalf("%d authorities", len(parsed))
		}
		seen := map[string]bool{}
		for _, c := range parsed {
			if c.Equal(expired.Certificate) || seen[string(c.Raw)] {
				t.Fatal("an authority is expired, or is there twice")
			}
			seen[string(c.Raw)] = true
		}
		distinct := map[int]bool{}
		for _, i := range pick {
			distinct[i] = true
		}
		if !alone && len(distinct) < 8 {
			for i := range distinct {
				if has, _ := certificate.Has(got, pool[i].Certificate); !has {
					t.Fatal("an authority whose certificates may still be served is gone")
				}
			}
		}
		if again := certificate.Bundle(got, current.Certificate, alone, now); !bytes.Equal(again, got) {
			t.Fatal("a second look writes again")
		}
	})
}

func FuzzParse(f *testing.F) {
	root := newAuthority(f, newKey(f), -day, day)
	leaf := root.issue(f, -time.Hour, time.Hour, host)
	f.Add(root.pem())
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Add(append([]byte("x"), root.pem()...))
	f.Fuzz(func(t *testing.T, bundle []byte) {
		bundled := certificate.Bundle(bundle, root.Certificate, false, now)
		if !certificate.Trusts(certificate.Webhook{Host: host, Bundle: bundled}, []*x509.Certificate{leaf}, now) {
			t.Error("the bundle does not vouch for what the authority signed")
		}
		certificate.Judge(certificate.Facts{Chain: []*x509.Certificate{leaf}, Webhooks: []certificate.Webhook{{Host: host, Bundle: bundle}}}, now)
	})
}
