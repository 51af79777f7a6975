package serving

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/metacontroller-solo/solo/pkg/guard/certificate"
)

const (
	settle = 10 * time.Second
	// caLife and leafLife are short, so that both kinds of renewal happen.
	caLife   = 30 * time.Minute
	leafLife = 5 * time.Minute
	host     = "guard.ns.svc"
)

var (
	secretKey = client.ObjectKey{Namespace: "ns", Name: "ca"}
	configKey = client.ObjectKey{Name: "guard"}
)

// world is guards, the one Secret, the one webhook configuration, and API servers
// that learn of a change of it some time later.
type world struct {
	t       *rapid.T
	clock   *clocktesting.FakeClock
	client  client.Client
	guards  []*SelfManaged
	bundler *Bundler
	// bundles are those that were installed, and since when.
	bundles []version
	// lag is how much later each API server sees a change; less than settle.
	lag []time.Duration
	// changes counts certificates of another authority that a guard began to serve.
	changes int
}

type version struct {
	since  time.Time
	bundle []byte
}

// fakeAuthority signs with what is in the Secret, as cert-manager's library does.
type fakeAuthority struct{ w *world }

func (fakeAuthority) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (fakeAuthority) WatchRotation(chan<- struct{}) {}
func (a fakeAuthority) Sign(template *x509.Certificate) (*x509.Certificate, error) {
	secret := &corev1.Secret{}
	if err := a.w.client.Get(context.Background(), secretKey, secret); err != nil {
		return nil, err
	}
	by := certificate.Parse(secret.Data[corev1.TLSCertKey])[0]
	key, err := x509.ParseECPrivateKey(secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, err
	}
	template.NotBefore = a.w.clock.Now()
	template.NotAfter = template.NotBefore.Add(leafLife)
	if by.NotAfter.Before(template.NotAfter) {
		template.NotAfter = by.NotAfter
	}
	return a.w.issue(template, by, template.PublicKey, key), nil
}

func (w *world) issue(template, by *x509.Certificate, public any, key *ecdsa.PrivateKey) *x509.Certificate {
	var err error
	template.SerialNumber, err = rand.Int(rand.Reader, big.NewInt(1<<60))
	if err != nil {
		w.t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, by, public, key)
	if err != nil {
		w.t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(der)
	if err != nil {
		w.t.Fatal(err)
	}
	return parsed
}

// rotate puts another authority into the Secret.
func (w *world) rotate() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		w.t.Fatal(err)
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "ca"}, NotBefore: w.clock.Now(), NotAfter: w.clock.Now().Add(caLife),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	authority := w.issue(template, template, key.Public(), key)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		w.t.Fatal(err)
	}
	secret := &corev1.Secret{Data: map[string][]byte{
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: authority.Raw}),
		corev1.TLSPrivateKeyKey: der,
	}}
	secret.Namespace, secret.Name = secretKey.Namespace, secretKey.Name
	if err := w.client.Delete(context.Background(), secret.DeepCopy()); client.IgnoreNotFound(err) != nil {
		w.t.Fatal(err)
	}
	if err := w.client.Create(context.Background(), secret); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) webhooks(ctx context.Context) ([]certificate.Webhook, error) {
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	if err := w.client.Get(ctx, configKey, configuration); err != nil {
		return nil, client.IgnoreNotFound(err)
	}
	return certificate.WebhooksOf(configuration), nil
}

func (w *world) newGuard() *SelfManaged {
	return &SelfManaged{
		Authority: fakeAuthority{w}, Secret: secretKey, Reader: w.client, Names: []string{host},
		Webhooks: w.webhooks, Settle: settle, Clock: w.clock, Changed: func() {},
	}
}

func (w *world) newBundler() *Bundler {
	return &Bundler{Client: w.client, Secret: secretKey, Settle: settle, Clock: w.clock}
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, clock: clocktesting.NewFakeClock(time.Now().Truncate(time.Second)), client: fake.NewClientBuilder().Build()}
	w.rotate()
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	configuration.Name = configKey.Name
	for _, name := range []string{"a.example.com", "b.example.com"} {
		configuration.Webhooks = append(configuration.Webhooks, admissionregistrationv1.ValidatingWebhook{
			Name: name, SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "ns", Name: "guard"}},
		})
	}
	if err := w.client.Create(context.Background(), configuration); err != nil {
		t.Fatal(err)
	}
	for range rapid.IntRange(1, 3).Draw(t, "guards") {
		w.guards = append(w.guards, w.newGuard())
	}
	for range 3 {
		w.lag = append(w.lag, time.Duration(rapid.IntRange(0, int(settle/time.Second)-1).Draw(t, "lag"))*time.Second)
	}
	w.bundler = w.newBundler()
	return w
}

// tick lets a second pass, in which every guard steps once.
func (w *world) tick(lead bool) {
	w.clock.Step(time.Second)
	if lead {
		if _, err := w.bundler.Reconcile(context.Background(), reconcile.Request{NamespacedName: types.NamespacedName(configKey)}); err != nil {
			w.t.Fatal(err)
		}
	}
	webhooks, err := w.webhooks(context.Background())
	if err != nil {
		w.t.Fatal(err)
	}
	if n := len(w.bundles); n == 0 || !bytes.Equal(w.bundles[n-1].bundle, webhooks[0].Bundle) {
		w.bundles = append(w.bundles, version{w.clock.Now(), webhooks[0].Bundle})
	}
	for _, g := range w.guards {
		before := g.servingBy
		secret, err := readAuthority(context.Background(), w.client, secretKey)
		if err != nil {
			w.t.Fatal(err)
		}
		newest := g.servingBy
		if g.next != nil {
			newest = g.nextBy
		}
		if err := g.step(context.Background(), !secret.Equal(newest)); err != nil {
			w.t.Fatal(err)
		}
		if before != nil && !before.Equal(g.servingBy) {
			w.changes++
		}
	}
	w.check()
}

// check holds that no API server finds a certificate that it does not trust, once
// it has had a caBundle at all.
func (w *world) check() {
	now := w.clock.Now()
	for server, lag := range w.lag {
		var seen []byte
		for _, v := range w.bundles {
			if !v.since.After(now.Add(-lag)) {
				seen = v.bundle
			}
		}
		if len(seen) == 0 {
			continue
		}
		for i, g := range w.guards {
			if g.Ready() != nil {
				continue
			}
			if !certificate.Trusts(certificate.Webhook{Host: host, Bundle: seen}, parseChain(g.serving), now) {
				w.t.Fatalf("%s: API server %d, %s behind, does not trust guard %d", now, server, lag, i)
			}
		}
	}
}

// TestNoAPIServerMeetsAnUnknownAuthority replaces authorities, guards and leaders
// at any moment.
func TestNoAPIServerMeetsAnUnknownAuthority(t *testing.T) {
	changes := 0
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		rotated := w.clock.Now()
		leaderless := false
		for range rapid.IntRange(1, 12).Draw(t, "events") {
			lead, most := true, 150
			switch rapid.SampledFrom([]string{"rotate", "restart", "lead", "leaderless", "wait"}).Draw(t, "event") {
			case "rotate":
				// Not again before the last one has settled: the old certificates
				// could all expire first.
				if w.clock.Now().Sub(rotated) > 2*settle {
					w.rotate()
					rotated = w.clock.Now()
				}
			case "restart":
				w.guards[rapid.IntRange(0, len(w.guards)-1).Draw(t, "guard")] = w.newGuard()
			case "lead":
				w.bundler = w.newBundler()
			case "leaderless":
				// Not longer than the last third of a certificate's life, after which
				// nobody could have made the new authority known in time.
				lead, most = lead && !leaderless, 60
			}
			leaderless = !lead
			for range rapid.IntRange(1, most).Draw(t, "seconds") {
				// The library replaces an authority after two thirds of its life.
				if w.clock.Now().Sub(rotated) > caLife*2/3 {
					w.rotate()
					rotated = w.clock.Now()
				}
				w.tick(lead)
			}
		}
		// Left alone, everybody ends up with the newest authority, and it alone.
		for range int((overlaps + 3) * settle / time.Second) {
			w.tick(true)
		}
		authority, err := readAuthority(context.Background(), w.client, secretKey)
		if err != nil {
			t.Fatal(err)
		}
		for i, g := range w.guards {
			if !g.servingBy.Equal(authority) || g.Ready() != nil {
				t.Fatalf("guard %d still serves a certificate of another authority, or is not ready: %v", i, g.Ready())
			}
		}
		if _, alone := certificate.Has(w.bundles[len(w.bundles)-1].bundle, authority); !alone {
			t.Fatal("the old authority is still trusted")
		}
		changes += w.changes
	})
	if changes == 0 {
		t.Error("no guard ever changed over: nothing was tried")
	}
}
