// Package tls_test runs the guard's program against real API servers that check its
// certificate, with the real cert-manager and without it.
//
//	load ─> 2 kube-apiservers ─> forwarder ─> guards <─ mounted Secret <─ cert-manager
//	                 └── caBundle <─ CA injector, or the guard that leads
package tls_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/metacontroller-solo/solo/test/kit"
)

// callerName is the common name that the API servers call webhooks with.
const callerName = "kube-apiserver-webhooks"

// callers is the authority of the API servers' certificates for webhooks.
var callers *kit.CA

func TestMain(m *testing.M) {
	config, err := writeAdmissionConfig()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	kit.Main(m, kit.Options{
		APIServers:         2,
		APIServerArgs:      []string{"--admission-control-config-file=" + config},
		WithoutControllers: true,
	})
}

// writeAdmissionConfig makes the API servers show a certificate to every webhook.
func writeAdmissionConfig() (string, error) {
	dir, err := kit.TempDir("admission-")
	if err != nil {
		return "", err
	}
	if callers, err = kit.NewCA("webhook-callers"); err != nil {
		return "", err
	}
	pair, err := callers.IssueClient(callerName)
	if err != nil {
		return "", err
	}
	if err := pair.Write(dir, "caller"); err != nil {
		return "", err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	config := filepath.Join(dir, "admission.yaml")
	for path, content := range map[string]string{
		kubeconfig: fmt.Sprintf("apiVersion: v1\nkind: Config\nusers:\n- name: '*'\n  user:\n    client-certificate: %s\n    client-key: %s\n",
			filepath.Join(dir, "caller.crt"), filepath.Join(dir, "caller.key")),
		config: fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1\nkind: AdmissionConfiguration\nplugins:\n- name: ValidatingAdmissionWebhook\n"+
			"  configuration:\n    apiVersion: apiserver.config.k8s.io/v1\n    kind: WebhookAdmissionConfiguration\n    kubeConfigFile: %s\n", kubeconfig),
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			return "", err
		}
	}
	return config, nil
}
