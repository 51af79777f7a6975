package kit

import (
	"context"
	"fmt"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/clientcmd/api"
)

const (
	clusterName = "local"
	// noRateLimit turns a client's own rate limit off: the server has one.
	noRateLimit = -1
)

// URL is the address of an API server.
func (cp *ControlPlane) URL(server int) string { return httpsURL(cp.ports[apiServerName(server)]) }

// APIServers is the number of API servers.
func (cp *ControlPlane) APIServers() int { return cp.options.APIServers }

// Dir is the folder that holds the control plane's data, logs and kubeconfigs.
func (cp *ControlPlane) Dir() string { return cp.layout.dir }

// CA is the authority that the API servers trust for clients and kubelets, and
// that signed their own certificates.
func (cp *ControlPlane) CA() *CA { return cp.pki.cluster }

// AuditLog is the audit log of an API server: a JSON event per line.
func (cp *ControlPlane) AuditLog(server int) string { return cp.layout.audit(apiServerName(server)) }

// Kubeconfig is the path of an administrator's kubeconfig for an API server. It
// holds its certificates and can be copied.
func (cp *ControlPlane) Kubeconfig(server int) string {
	return KubeconfigIn(cp.layout.dir, server)
}

// KubeconfigIn is the path of that kubeconfig in the folder of a control plane that
// another process runs.
func KubeconfigIn(dir string, server int) string {
	return layout{dir: dir}.kubeconfig(fmt.Sprintf("admin-%d.yaml", server))
}

// AdminConfig is a client configuration of an administrator (system:masters),
// whom no RBAC rule holds back. It has no rate limit.
func (cp *ControlPlane) AdminConfig(server int) *rest.Config {
	return cp.clientConfig(server, cp.pki.admin)
}

// AnonymousConfig is a client configuration without any credentials.
func (cp *ControlPlane) AnonymousConfig(server int) *rest.Config {
	return rest.AnonymousClientConfig(cp.AdminConfig(server))
}

// UserConfig is a client configuration of any user, at API server 0, with nothing
// but what RBAC grants to its name and groups.
func (cp *ControlPlane) UserConfig(user string, groups ...string) (*rest.Config, error) {
	pair, err := cp.pki.cluster.IssueClient(user, groups...)
	if err != nil {
		return nil, err
	}
	return cp.clientConfig(0, pair), nil
}

// NodeConfig is a client configuration of a node's kubelet, at API server 0.
func (cp *ControlPlane) NodeConfig(name string) (*rest.Config, error) {
	return cp.UserConfig(nodeUserPrefix+name, nodesGroup)
}

// TokenConfig is a client configuration of a service account with a token that is
// good for an hour, at API server 0.
func (cp *ControlPlane) TokenConfig(ctx context.Context, namespace, name string) (*rest.Config, error) {
	clients, err := kubernetes.NewForConfig(cp.AdminConfig(0))
	if err != nil {
		return nil, fmt.Errorf("cannot create client: %w", err)
	}
	token, err := clients.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, name, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("cannot request token of service account %q: %w", namespace+"/"+name, err)
	}
	config := cp.AnonymousConfig(0)
	config.BearerToken = token.Status.Token
	return config, nil
}

// At is a copy of a client configuration that goes to another API server.
func (cp *ControlPlane) At(server int, config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Host = cp.URL(server)
	return config
}

func (cp *ControlPlane) clientConfig(server int, pair KeyPair) *rest.Config {
	return &rest.Config{
		Host: cp.URL(server),
		TLSClientConfig: rest.TLSClientConfig{
			CAData:   cp.pki.cluster.CertPEM(),
			CertData: pair.Cert,
			KeyData:  pair.Key,
		},
		QPS: noRateLimit,
	}
}

// WriteKubeconfig writes a client configuration as a kubeconfig file of this
// user's only, for a program that is to act as that client.
func WriteKubeconfig(path string, config *rest.Config) error {
	file := api.NewConfig()
	file.Clusters[clusterName] = &api.Cluster{
		Server:                   config.Host,
		CertificateAuthorityData: config.CAData,
	}
	file.AuthInfos[clusterName] = &api.AuthInfo{
		ClientCertificateData: config.CertData,
		ClientKeyData:         config.KeyData,
		Token:                 config.BearerToken,
	}
	file.Contexts[clusterName] = &api.Context{Cluster: clusterName, AuthInfo: clusterName}
	file.CurrentContext = clusterName
	content, err := clientcmd.Write(*file)
	if err != nil {
		return fmt.Errorf("cannot write kubeconfig: %w", err)
	}
	return writeFile(path, content)
}

// writeConfigs writes the kubeconfigs of the administrator and of the control
// plane's own clients.
func (cp *ControlPlane) writeConfigs() error {
	for i := range cp.options.APIServers {
		if err := WriteKubeconfig(cp.Kubeconfig(i), cp.AdminConfig(i)); err != nil {
			return err
		}
	}
	if err := WriteKubeconfig(cp.layout.kubeconfig(managerConfig), cp.clientConfig(0, cp.pki.manager)); err != nil {
		return err
	}
	return WriteKubeconfig(cp.layout.kubeconfig(schedulerConfig), cp.clientConfig(0, cp.pki.scheduler))
}
