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
	"fmt"
	"math/big"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	admissionapply "k8s.io/client-go/applyconfigurations/admissionregistration/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
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
	store   *store
	guards  []*SelfManaged
	bundler *Bundler
	// due is when the bundler looks next: when it asked to, or at an event.
	due time.Time
	// bundles are those that were installed, and since when.
	bundles []version
	// lag is how much later each API server sees a change; less than settle.
	lag []time.Duration
	// authority is what is in the Secret.
	authority *x509.Certificate
	// trusted are those that were trusted once. It lasts as long as the leaf does,
	// which no authority ends before: only its times are looked at anew.
	trusted map[sight]bool
	// changes counts certificates of another authority that a guard began to serve.
	changes int
}

type version struct {
	since  time.Time
	bundle []byte
}

// store is the API server, with one Secret and one webhook configuration. A call
// that nothing here makes finds the nil client and panics.
type store struct {
	client.Client
	secret        *corev1.Secret
	configuration *admissionregistrationv1.ValidatingWebhookConfiguration
}

func (s *store) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	switch into := into.(type) {
	case *corev1.Secret:
		if key == secretKey {
			s.secret.DeepCopyInto(into)
			return nil
		}
	case *admissionregistrationv1.ValidatingWebhookConfiguration:
		if key == configKey {
			s.configuration.DeepCopyInto(into)
			return nil
		}
	}
	return fmt.Errorf("there is no %T %s", into, key)
}

// Apply takes the caBundles, and nothing else.
func (s *store) Apply(_ context.Context, applied runtime.ApplyConfiguration, _ ...client.ApplyOption) error {
	configuration, ok := applied.(*admissionapply.ValidatingWebhookConfigurationApplyConfiguration)
	if !ok || *configuration.Name != configKey.Name || len(configuration.Webhooks) != len(s.configuration.Webhooks) {
		return fmt.Errorf("cannot apply %+v", applied)
	}
	for i := range s.configuration.Webhooks {
		installed, wanted := &s.configuration.Webhooks[i], &configuration.Webhooks[i]
		if *wanted.Name != installed.Name {
			return fmt.Errorf("cannot apply webhook %q", *wanted.Name)
		}
		installed.ClientConfig.CABundle = wanted.ClientConfig.CABundle
	}
	return nil
}

// sight is a leaf before the eyes of who has a caBundle.
type sight struct {
	bundle string
	leaf   *x509.Certificate
}

// fakeAuthority signs with what is in the Secret, as cert-manager's library does.
type fakeAuthority struct{ w *world }

func (fakeAuthority) Run(ctx context.Context) error { <-ctx.Done(); return nil }
func (fakeAuthority) WatchRotation(chan<- struct{}) {}
func (a fakeAuthority) Sign(template *x509.Certificate) (*x509.Certificate, error) {
	key, err := x509.ParseECPrivateKey(a.w.store.secret.Data[corev1.TLSPrivateKeyKey])
	if err != nil {
		return nil, err
	}
	template.NotBefore = a.w.clock.Now()
	template.NotAfter = template.NotBefore.Add(leafLife)
	if end := a.w.authority.NotAfter; end.Before(template.NotAfter) {
		template.NotAfter = end
	}
	return a.w.issue(template, a.w.authority, template.PublicKey, key), nil
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
	w.authority = w.issue(template, template, key.Public(), key)
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		w.t.Fatal(err)
	}
	w.due = w.clock.Now()
	w.store.secret = &corev1.Secret{Data: map[string][]byte{
		corev1.TLSCertKey:       pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: w.authority.Raw}),
		corev1.TLSPrivateKeyKey: der,
	}}
}

func (w *world) webhooks(context.Context) ([]certificate.Webhook, error) {
	return certificate.WebhooksOf(w.store.configuration), nil
}

func (w *world) newGuard() *SelfManaged {
	return &SelfManaged{
		Authority: fakeAuthority{w}, Secret: secretKey, Reader: w.store, Names: []string{host},
		Webhooks: w.webhooks, Settle: settle, Clock: w.clock, Changed: func() {},
	}
}

func (w *world) newBundler() *Bundler {
	return &Bundler{Client: w.store, Secret: secretKey, Settle: settle, Clock: w.clock}
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, clock: clocktesting.NewFakeClock(time.Now().Truncate(time.Second)), store: &store{}, trusted: map[sight]bool{}}
	w.rotate()
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{}
	configuration.Name = configKey.Name
	for _, name := range []string{"a.example.com", "b.example.com"} {
		configuration.Webhooks = append(configuration.Webhooks, admissionregistrationv1.ValidatingWebhook{
			Name: name, SideEffects: ptr.To(admissionregistrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "ns", Name: "guard"}},
		})
	}
	w.store.configuration = configuration
	for range rapid.IntRange(1, 3).Draw(t, "guards") {
		w.guards = append(w.guards, w.newGuard())
	}
	for range 3 {
		w.lag = append(w.lag, time.Duration(rapid.IntRange(0, int(settle/time.Second)-1).Draw(t, "lag"))*time.Second)
	}
	w.bundler = w.newBundler()
	return w
}

// bundle lets the bundler look if it is to.
func (w *world) bundle() {
	now := w.clock.Now()
	if now.Before(w.due) {
		return
	}
	before := w.store.configuration.Webhooks[0].ClientConfig.CABundle
	result, err := w.bundler.Reconcile(context.Background(), reconcile.Request{NamespacedName: configKey})
	if err != nil {
		w.t.Fatal(err)
	}
	w.due = now.Add(result.RequeueAfter)
	if !bytes.Equal(before, w.store.configuration.Webhooks[0].ClientConfig.CABundle) {
		w.due = now // what it wrote is an event
	}
}

// tick lets a second pass, in which every guard steps once.
func (w *world) tick(lead bool) {
	w.clock.Step(time.Second)
	if lead {
		w.bundle()
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
		newest := g.servingBy
		if g.next != nil {
			newest = g.nextBy
		}
		if err := g.step(context.Background(), !w.authority.Equal(newest)); err != nil {
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
			if !w.trusts(seen, g.serving.Leaf) {
				w.t.Fatalf("%s: API server %d, %s behind, does not trust guard %d", now, server, lag, i)
			}
		}
	}
}

// trusts says whether an API server with a caBundle trusts a leaf now.
func (w *world) trusts(bundle []byte, leaf *x509.Certificate) bool {
	now, key := w.clock.Now(), sight{string(bundle), leaf}
	if now.Before(leaf.NotBefore) || !now.Before(leaf.NotAfter) {
		return false
	}
	if !w.trusted[key] {
		w.trusted[key] = certificate.Trusts(certificate.Webhook{Host: host, Bundle: bundle}, []*x509.Certificate{leaf}, now)
	}
	return w.trusted[key]
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
				w.bundler, w.due = w.newBundler(), w.clock.Now()
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
		for i, g := range w.guards {
			if !g.servingBy.Equal(w.authority) || g.Ready() != nil {
				t.Fatalf("guard %d still serves a certificate of another authority, or is not ready: %v", i, g.Ready())
			}
		}
		if _, alone := certificate.Has(w.bundles[len(w.bundles)-1].bundle, w.authority); !alone {
			t.Fatal("the old authority is still trusted")
		}
		changes += w.changes
	})
	if changes == 0 {
		t.Error("no guard ever changed over: nothing was tried")
	}
}
