package cluster

import (
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"os"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/metacontroller-solo/solo/test/kit"
)

// TLS says where the guard's certificate comes from.
type TLS string

// The sources that there are.
const (
	// TLSLocal is an authority of the local cluster's own, kept with its data: the
	// quickest.
	TLSLocal TLS = "local"
	// TLSCertManager is the real cert-manager, with its CA injector, as
	// config/cert-manager has it.
	TLSCertManager TLS = "cert-manager"
	// TLSSelfManaged is the guard itself, as config/self-managed has it.
	TLSSelfManaged TLS = "self-managed"
)

// TLSSources are all of them.
var TLSSources = []TLS{TLSLocal, TLSCertManager, TLSSelfManaged}

// check refuses a source that there is not.
func (t TLS) check() error {
	if !slices.Contains(TLSSources, t) {
		var names []string
		for _, source := range TLSSources {
			names = append(names, string(source))
		}
		return fmt.Errorf("there is no TLS source %q, choose one of %s", t, strings.Join(names, ", "))
	}
	return nil
}

// guardManifests are the guard's, with what its certificate needs before it can
// start.
func (c *Cluster) guardManifests(ctx context.Context) ([]byte, error) {
	namespace := fmt.Appendf(nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", guardNamespace)
	switch c.options.TLS {
	case TLSSelfManaged:
		return c.Kustomize(ctx, "test/local/manifests/self-managed")
	case TLSCertManager:
		if err := c.StartCertManager(ctx); err != nil {
			return nil, err
		}
		if err := c.issueCertificate(ctx, namespace); err != nil {
			return nil, err
		}
		return c.Kustomize(ctx, "config/guard")
	default:
		secret, err := c.guardSecret()
		if err != nil {
			return nil, err
		}
		manifests, err := c.Kustomize(ctx, "config/guard")
		return bytes.Join([][]byte{namespace, secret, manifests}, []byte("\n---\n")), err
	}
}

// admissionManifests are the admission objects, with the caBundle or with what
// fills it in.
func (c *Cluster) admissionManifests(ctx context.Context) ([]byte, error) {
	switch c.options.TLS {
	case TLSSelfManaged:
		return c.Kustomize(ctx, "config/webhook")
	case TLSCertManager:
		return c.Kustomize(ctx, "test/local/manifests/cert-manager")
	default:
		manifests, err := c.Kustomize(ctx, "config/webhook")
		if err != nil {
			return nil, err
		}
		ca, err := c.guardCA()
		if err != nil {
			return nil, err
		}
		return injectCABundle(manifests, ca.CertPEM())
	}
}

// StartCertManager starts cert-manager, which ends with the cluster.
func (c *Cluster) StartCertManager(ctx context.Context) error {
	config, err := c.plane.CertManagerConfig()
	if err != nil {
		return err
	}
	dir := c.dir("cert-manager")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot create folder %q: %w", dir, err)
	}
	manager, err := kit.StartCertManager(ctx, kit.CertManagerOptions{Config: config, Dir: dir, Progress: c.options.Progress})
	if err != nil {
		return err
	}
	c.stops = append(c.stops, manager.Stop)
	c.say("cert-manager and its CA injector are up")
	return nil
}

// issueCertificate waits until cert-manager has issued the guard's certificate.
func (c *Cluster) issueCertificate(ctx context.Context, namespace []byte) error {
	if err := c.Apply(ctx, namespace); err != nil {
		return err
	}
	if err := c.ApplyFolder(ctx, "config/certmanager"); err != nil {
		return err
	}
	clients, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		return fmt.Errorf("cannot create client: %w", err)
	}
	return Eventually(ctx, "cert-manager to issue the guard's certificate", func(ctx context.Context) error {
		secret, err := clients.CoreV1().Secrets(guardNamespace).Get(ctx, guardSecret, metav1.GetOptions{})
		if err == nil && len(secret.Data[corev1.TLSCertKey]) == 0 {
			err = fmt.Errorf("the Secret %q holds no certificate", guardSecret)
		}
		return err
	})
}

// guardSecret renders the Secret that the Deployment mounts.
func (c *Cluster) guardSecret() ([]byte, error) {
	ca, err := c.guardCA()
	if err != nil {
		return nil, err
	}
	serving, err := ca.IssueServer(guardService+"."+guardNamespace+".svc", guardService+"."+guardNamespace)
	if err != nil {
		return nil, err
	}
	secret, err := yaml.Marshal(map[string]any{
		"apiVersion": "v1",
		"kind":       "Secret",
		"type":       string(corev1.SecretTypeTLS),
		"metadata":   map[string]any{"name": guardSecret, "namespace": guardNamespace},
		"data": map[string]any{
			corev1.TLSCertKey:       base64.StdEncoding.EncodeToString(serving.Cert),
			corev1.TLSPrivateKeyKey: base64.StdEncoding.EncodeToString(serving.Key),
		},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot render the Secret %q: %w", guardSecret, err)
	}
	return secret, nil
}

// guardCA is the authority for the guard's certificate. It is kept with the
// cluster's data, so that a restart does not change the caBundle.
func (c *Cluster) guardCA() (*kit.CA, error) {
	dir := c.dir("guard-pki")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("cannot create folder %q: %w", dir, err)
	}
	return kit.LoadOrCreateCA(dir, "guard-ca")
}
