package tls_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"path/filepath"
	"testing"
	"time"

	apiutil "github.com/cert-manager/cert-manager/pkg/api/util"
	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	cmmeta "github.com/cert-manager/cert-manager/pkg/apis/meta/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/guard/certificate"
	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/node/volume"
)

// Names that config/certmanager gives.
const (
	caName     = "metacontroller-guard-ca"
	leafName   = "metacontroller-guard-tls"
	secondCA   = "metacontroller-guard-ca-2"
	bundleName = "metacontroller-guard-ca-bundle"
)

// mounted keeps a folder as a kubelet keeps a mounted Secret, until the test ends.
func (s *suite) mounted(name string, every time.Duration) string {
	s.Helper()
	dir := filepath.Join(s.dir, name)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	sync := func() error {
		secret := &corev1.Secret{}
		if err := s.admin().Get(ctx, client.ObjectKey{Namespace: namespace, Name: leafName}, secret); err != nil {
			return err
		}
		payload := volume.Payload{}
		for key, data := range secret.Data {
			payload[key] = volume.File{Data: data, Mode: 0o600}
		}
		_, err := volume.Write(dir, payload)
		return err
	}
	s.eventually(sync)
	go func() {
		defer close(done)
		ticker := time.NewTicker(every)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				// A kubelet tries again as well.
				_ = sync()
			}
		}
	}()
	s.Cleanup(func() { cancel(); <-done })
	return dir
}

// secret reads a certificate's Secret.
func (s *suite) secret(name string) (*corev1.Secret, *x509.Certificate) {
	s.Helper()
	secret := &corev1.Secret{}
	s.must(s.admin().Get(s.ctx(), client.ObjectKey{Namespace: namespace, Name: name}, secret))
	parsed := certificate.Parse(secret.Data[corev1.TLSCertKey])
	if len(parsed) == 0 {
		s.Fatalf("Secret %q holds no certificate", name)
	}
	return secret, parsed[0]
}

// change changes a Certificate.
func (s *suite) change(name string, change func(*cmapi.Certificate), status bool) {
	s.Helper()
	s.must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		c := &cmapi.Certificate{}
		if err := s.admin().Get(s.ctx(), client.ObjectKey{Namespace: namespace, Name: name}, c); err != nil {
			return err
		}
		change(c)
		if status {
			return s.admin().Status().Update(s.ctx(), c)
		}
		return s.admin().Update(s.ctx(), c)
	}))
}

// renew asks cert-manager to issue a certificate anew, as "cmctl renew" does, and
// waits for it.
func (s *suite) renew(name string) *x509.Certificate {
	s.Helper()
	_, before := s.secret(name)
	s.change(name, func(c *cmapi.Certificate) {
		apiutil.SetCertificateCondition(c, c.Generation, cmapi.CertificateConditionIssuing, cmmeta.ConditionTrue, "ManuallyTriggered", "renewed by a test")
	}, true)
	return s.reissued(name, before)
}

// reissued waits for another certificate than before, and for cert-manager to be
// done with it.
func (s *suite) reissued(name string, before *x509.Certificate) *x509.Certificate {
	s.Helper()
	var after *x509.Certificate
	s.eventually(func() error {
		if _, after = s.secret(name); after.Equal(before) {
			return fmt.Errorf("certificate %q is still %s", name, before.SerialNumber)
		}
		return s.issued(name)
	})
	return after
}

// issued says whether a Certificate is ready.
func (s *suite) issued(name string) error {
	c := &cmapi.Certificate{}
	if err := s.admin().Get(s.ctx(), client.ObjectKey{Namespace: namespace, Name: name}, c); err != nil {
		return err
	}
	ready := cmapi.CertificateCondition{Type: cmapi.CertificateConditionReady, Status: cmmeta.ConditionTrue}
	if !apiutil.CertificateHasCondition(c, ready) || apiutil.CertificateHasCondition(c, cmapi.CertificateCondition{Type: cmapi.CertificateConditionIssuing, Status: cmmeta.ConditionTrue}) {
		return fmt.Errorf("certificate %q is not ready: %+v", name, c.Status.Conditions)
	}
	return nil
}

// allServe waits until every guard serves a certificate.
func (s *suite) allServe(want *x509.Certificate) {
	s.Helper()
	for _, g := range s.guards {
		s.eventually(func() error {
			got, err := g.served()
			if err == nil && !got.Equal(want) {
				err = fmt.Errorf("%s serves %s, want %s", g.name, got.SerialNumber, want.SerialNumber)
			}
			return err
		})
	}
}

// holds waits for a caBundle of exactly these authorities.
func (s *suite) holds(want ...*x509.Certificate) {
	s.Helper()
	s.awaitBundle(func(bundle string) error {
		if string(encode(want...)) != bundle {
			return fmt.Errorf("the caBundle has %d other authorities", len(certificate.Parse([]byte(bundle))))
		}
		return nil
	})
}

// includes waits for a caBundle with these authorities, and any others: the CA
// injector takes none away.
func (s *suite) includes(want ...*x509.Certificate) {
	s.Helper()
	s.awaitBundle(func(bundle string) error {
		for _, c := range want {
			if has, _ := certificate.Has([]byte(bundle), c); !has {
				return fmt.Errorf("the caBundle has not authority %s", c.SerialNumber)
			}
		}
		return nil
	})
}

// leaves sets the caBundle to one authority, until it is left so under load: the
// CA injector may be about to write what it has read before.
func (s *suite) leaves(l *load, authority *x509.Certificate) {
	s.Helper()
	s.eventually(func() error {
		s.trustOnly(authority)
		l.more(100)
		bundle, err := s.bundle()
		if err == nil && bundle != string(encode(authority)) {
			err = fmt.Errorf("the caBundle has %d authorities again", len(certificate.Parse([]byte(bundle))))
		}
		return err
	})
}

// trustOnly sets the caBundle to one authority.
func (s *suite) trustOnly(authority *x509.Certificate) {
	s.Helper()
	s.changeWebhook(func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
		for i := range c.Webhooks {
			c.Webhooks[i].ClientConfig.CABundle = encode(authority)
		}
	})
}

func encode(certificates ...*x509.Certificate) []byte {
	var b bytes.Buffer
	for _, c := range certificates {
		_ = pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: c.Raw})
	}
	return b.Bytes()
}

// put replaces the leaf in the Secret by one that the root signed for another time:
// what would be there had cert-manager been gone for so long.
func (s *suite) put(from, to time.Duration) *x509.Certificate {
	s.Helper()
	ca, root := s.secret(caName)
	block, _ := pem.Decode(ca.Data[corev1.TLSPrivateKeyKey])
	if block == nil {
		s.Fatal("the authority has no key")
	}
	by, err := x509.ParseECPrivateKey(block.Bytes)
	s.must(err)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	s.must(err)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: time.Now().Add(from), NotAfter: time.Now().Add(to),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}, root, key.Public(), by)
	s.must(err)
	leaf, err := x509.ParseCertificate(der)
	s.must(err)
	private, err := x509.MarshalECPrivateKey(key)
	s.must(err)
	s.must(retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		secret, _ := s.secret(leafName)
		secret.Data[corev1.TLSCertKey] = encode(leaf)
		secret.Data[corev1.TLSPrivateKeyKey] = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: private})
		return s.admin().Update(s.ctx(), secret)
	}))
	return leaf
}

// injectFrom lets the CA injector take the caBundle from another place.
func (s *suite) injectFrom(annotation, name string) {
	s.Helper()
	s.changeWebhook(func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
		c.Annotations = map[string]string{annotation: namespace + "/" + name}
	})
}

// TestCertManager takes one installation with cert-manager through everything that
// happens to its certificates. Each step goes on where the one before it ended.
func TestCertManager(t *testing.T) {
	s := newSuite(t)
	config, err := s.cp.CertManagerConfig()
	s.must(err)
	begin := time.Now()
	manager, err := kit.StartCertManager(s.ctx(), kit.CertManagerOptions{Config: config, Dir: s.dir, Progress: t.Output()})
	s.must(err)
	t.Cleanup(func() { manager.Stop() })
	t.Logf("cert-manager, its CRDs included, was ready after %s", time.Since(begin).Round(time.Millisecond))

	step := func(name string, run func(s *suite)) {
		t.Helper()
		ok := t.Run(name, func(t *testing.T) {
			sub := *s
			sub.TB = t
			run(&sub)
		})
		if !ok {
			t.FailNow()
		}
	}
	var guards []*guard

	step("E15 install order", func(s *suite) {
		// The configuration first: nobody answers, and no certificate is there.
		s.installWebhook(map[string]string{cmapi.WantInjectAnnotation: namespace + "/" + caName})
		s.closed("failed calling webhook")
		s.apply("config/certmanager/authority.yaml")
		s.apply("config/certmanager/certificate.yaml")
		// The API servers call an address here, not a Service.
		s.change(leafName, func(c *cmapi.Certificate) { c.Spec.IPAddresses = []string{"127.0.0.1"} }, false)
		s.eventually(func() error { return errors.Join(s.issued(caName), s.issued(leafName)) })
		_, root := s.secret(caName)
		s.holds(root)
	})

	// Two guards, whose kubelets are not equally quick.
	for i, every := range []time.Duration{50 * time.Millisecond, 700 * time.Millisecond} {
		guards = append(guards, s.start("--tls-cert-dir="+s.mounted(fmt.Sprintf("mount-%d", i), every)))
	}
	s.serve(guards...)
	s.answered()
	s.reported("Current", "expires on", guards...)

	step("E14 leaf rotation", func(s *suite) {
		l := s.load()
		l.more(50)
		for range 3 {
			s.allServe(s.renew(leafName))
			l.more(20)
		}
		l.unharmed("three renewals of the leaf")
	})

	step("E11 CA rotation, the key kept", func(s *suite) {
		before, old := s.secret(caName)
		l := s.load()
		l.more(50)
		root := s.renew(caName)
		s.holds(old, root)
		// And alone, as older CA injectors have it: the new root vouches for the old leaf.
		s.trustOnly(root)
		s.holds(root)
		l.more(50)
		after, _ := s.secret(caName)
		if root.Equal(old) || !bytes.Equal(before.Data[corev1.TLSPrivateKeyKey], after.Data[corev1.TLSPrivateKeyKey]) {
			t.Error("the root's renewal did not keep its key")
		}
		s.allServe(s.renew(leafName))
		l.more(50)
		l.unharmed("a renewal of the root and one of the leaf")
	})

	step("E11 CA rotation, another key", func(s *suite) {
		// docs/tls.md, "Replace the root", step by step.
		_, old := s.secret(caName)
		_, leaf := s.secret(leafName)
		l := s.load()
		l.more(50)
		s.second()
		_, root := s.secret(secondCA)
		bundle := &corev1.Secret{Data: map[string][]byte{cmmeta.TLSCAKey: encode(old, root)}}
		bundle.Namespace, bundle.Name = namespace, bundleName
		bundle.Annotations = map[string]string{cmapi.AllowsInjectionFromSecretAnnotation: "true"}
		s.must(s.admin().Create(s.ctx(), bundle))
		s.injectFrom(cmapi.WantInjectFromSecretAnnotation, bundleName)
		s.includes(old, root)
		l.more(200)
		s.change(leafName, func(c *cmapi.Certificate) { c.Spec.IssuerRef.Name = secondCA }, false)
		leaf = s.reissued(leafName, leaf)
		if leaf.CheckSignatureFrom(root) != nil {
			t.Error("the leaf is not of the new root")
		}
		s.allServe(leaf)
		l.more(50)
		s.injectFrom(cmapi.WantInjectAnnotation, secondCA)
		s.leaves(l, root)
		l.unharmed("a replacement of the root")
		// And back, for the steps to come.
		s.injectFrom(cmapi.WantInjectFromSecretAnnotation, bundleName)
		s.includes(old, root)
		s.change(leafName, func(c *cmapi.Certificate) { c.Spec.IssuerRef.Name = caName }, false)
		s.allServe(s.reissued(leafName, leaf))
		s.answered()
	})

	step("E11 CA rotation, out of order", func(s *suite) {
		// The old root goes before the leaf is of the new one: calls fail, the guard
		// says why, and the load sees it.
		_, root := s.secret(secondCA)
		l := s.load()
		l.more(20)
		s.changeWebhook(func(c *admissionregistrationv1.ValidatingWebhookConfiguration) { c.Annotations = nil })
		s.trustOnly(root)
		s.reported("NotTrusted", "does not vouch", guards...)
		s.closed("certificate signed by unknown authority")
		s.injectFrom(cmapi.WantInjectAnnotation, caName)
		s.answered()
		if failed := l.stop("a replacement of the root out of order"); len(failed) == 0 {
			t.Error("no call failed: the load does not see what it should")
		}
		s.reported("Current", "expires on", guards...)
	})

	step("E12 caBundle empty", func(s *suite) {
		s.changeWebhook(func(c *admissionregistrationv1.ValidatingWebhookConfiguration) {
			c.Annotations = nil
			for i := range c.Webhooks {
				c.Webhooks[i].ClientConfig.CABundle = nil
			}
		})
		s.closed("failed calling webhook")
		s.reported("NoBundle", "has no caBundle", guards...)
		s.injectFrom(cmapi.WantInjectAnnotation, caName)
		s.answered()
		s.reported("Current", "expires on", guards...)
	})

	step("E13 cert-manager removed", func(s *suite) {
		manager.Stop()
		// 78 days later.
		s.allServe(s.put(-78*24*time.Hour, 12*24*time.Hour+time.Hour))
		s.forwarder.reset(true)
		s.answered()
		s.reported("RenewalOverdue", "expires in 12 days", guards...)
	})

	step("E10 cert expired", func(s *suite) {
		s.allServe(s.put(-90*24*time.Hour, -time.Hour))
		// Until then what is open goes on.
		s.forwarder.reset(true)
		s.closed("certificate has expired")
		s.reported("Expired", "the serving certificate expired on", guards...)
		for _, g := range guards {
			s.must(g.measured(`metacontroller_guard_certificate_state{state="RenewalOverdue"} 0`))
		}
		// cert-manager comes back, and all is well without a hand.
		_, expired := s.secret(leafName)
		s.must(manager.Restart(s.ctx()))
		s.allServe(s.reissued(leafName, expired))
		s.answered()
		s.reported("Current", "expires on", guards...)
	})
	for _, g := range guards {
		if _, ended := g.Status(); ended {
			t.Errorf("%s did not live through it", g.name)
		}
	}
}

// second makes another root beside the first, and waits for it.
func (s *suite) second() {
	s.Helper()
	root := &cmapi.Certificate{}
	s.must(s.admin().Get(s.ctx(), client.ObjectKey{Namespace: namespace, Name: caName}, root))
	second := &cmapi.Certificate{Spec: *root.Spec.DeepCopy()}
	second.Namespace, second.Name, second.Spec.SecretName = namespace, secondCA, secondCA
	issuer := &cmapi.Issuer{Spec: cmapi.IssuerSpec{IssuerConfig: cmapi.IssuerConfig{CA: &cmapi.CAIssuer{SecretName: secondCA}}}}
	issuer.Namespace, issuer.Name = namespace, secondCA
	for _, object := range []client.Object{second, issuer} {
		if err := s.admin().Create(s.ctx(), object); err != nil && !apierrors.IsAlreadyExists(err) {
			s.Fatal(err)
		}
	}
	s.eventually(func() error {
		if err := s.issued(secondCA); err != nil {
			return err
		}
		if err := s.admin().Get(s.ctx(), client.ObjectKeyFromObject(issuer), issuer); err != nil {
			return err
		}
		if !apiutil.IssuerHasCondition(issuer, cmapi.IssuerCondition{Type: cmapi.IssuerConditionReady, Status: cmmeta.ConditionTrue}) {
			return fmt.Errorf("issuer is not ready: %+v", issuer.Status.Conditions)
		}
		return nil
	})
}
