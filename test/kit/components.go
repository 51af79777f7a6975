package kit

import (
	"context"
	"net"
	"path/filepath"
	"strconv"
)

const (
	etcdPeer = "etcd-peer"

	clusterDomain = "cluster.local"
	tokenIssuer   = "https://kubernetes.default.svc." + clusterDomain

	adminUser             = "kubernetes-admin"
	mastersGroup          = "system:masters"
	controllerManagerUser = "system:kube-controller-manager"
	schedulerUser         = "system:kube-scheduler"
	nodeUserPrefix        = "system:node:"
	nodesGroup            = "system:nodes"
	frontProxyUser        = "front-proxy-client"
	kubeletClientUser     = "kube-apiserver-kubelet-client"

	// Names of what is kept in the pki folder.
	clusterCA       = "ca"
	etcdCA          = "etcd-ca"
	frontProxyCA    = "front-proxy-ca"
	tokenKey        = "service-account"
	etcdCert        = "etcd"
	etcdClientCert  = "etcd-client"
	apiServerCert   = "kube-apiserver"
	kubeletCert     = "kubelet-client"
	frontProxyCert  = "front-proxy-client"
	adminCert       = "admin"
	managerCert     = "kube-controller-manager"
	schedulerCert   = "kube-scheduler"
	managerServing  = "kube-controller-manager-serving"
	schedulerServe  = "kube-scheduler-serving"
	managerConfig   = "kube-controller-manager.yaml"
	schedulerConfig = "kube-scheduler.yaml"
)

// pki holds the authorities of a control plane. What they issued for its programs
// is in files.
type pki struct {
	cluster, etcd *CA
	admin         KeyPair
	etcdClient    KeyPair
	manager       KeyPair
	scheduler     KeyPair
}

// loadPKI reads the keys in the control plane's folder and makes what is missing.
//
// Three authorities, because each of the servers takes every client that its
// authority vouches for: who may speak to an API server must not thereby speak to
// etcd, or in another user's name.
func loadPKI(l layout) (*pki, error) {
	dir := l.pki()
	var p pki
	var err error
	if p.cluster, err = LoadOrCreateCA(dir, clusterCA); err != nil {
		return nil, err
	}
	if p.etcd, err = LoadOrCreateCA(dir, etcdCA); err != nil {
		return nil, err
	}
	frontProxy, err := LoadOrCreateCA(dir, frontProxyCA)
	if err != nil {
		return nil, err
	}
	if err := ensureTokenKeys(dir, tokenKey); err != nil {
		return nil, err
	}
	local := Certificate{DNSNames: []string{"localhost"}, IPs: []net.IP{net.ParseIP(loopback), net.IPv6loopback}}
	server := func(name string) Certificate {
		c := local
		c.CommonName = name
		return c
	}
	serviceIP, err := firstServiceIP()
	if err != nil {
		return nil, err
	}
	api := server("kube-apiserver")
	api.IPs = append([]net.IP{serviceIP}, local.IPs...)
	api.DNSNames = append([]string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + clusterDomain}, local.DNSNames...)

	for _, want := range []struct {
		ca   *CA
		name string
		cert Certificate
		keep *KeyPair
	}{
		{p.etcd, etcdCert, server("etcd"), nil},
		{p.etcd, etcdClientCert, Certificate{CommonName: "kube-apiserver"}, &p.etcdClient},
		{p.cluster, apiServerCert, api, nil},
		{p.cluster, kubeletCert, Certificate{CommonName: kubeletClientUser, Organizations: []string{mastersGroup}}, nil},
		{frontProxy, frontProxyCert, Certificate{CommonName: frontProxyUser}, nil},
		{p.cluster, adminCert, Certificate{CommonName: adminUser, Organizations: []string{mastersGroup}}, &p.admin},
		{p.cluster, managerCert, Certificate{CommonName: controllerManagerUser}, &p.manager},
		{p.cluster, schedulerCert, Certificate{CommonName: schedulerUser}, &p.scheduler},
		{p.cluster, managerServing, server("kube-controller-manager"), nil},
		{p.cluster, schedulerServe, server("kube-scheduler"), nil},
	} {
		pair, err := want.ca.loadOrIssue(dir, want.name, want.cert)
		if err != nil {
			return nil, err
		}
		if want.keep != nil {
			*want.keep = pair
		}
	}
	return &p, nil
}

// firstServiceIP is the cluster IP of the Service "kubernetes".
func firstServiceIP() (net.IP, error) {
	ip, _, err := net.ParseCIDR(ServiceCIDR)
	if err != nil {
		return nil, err
	}
	ip = ip.To4()
	ip[3]++
	return ip, nil
}

func apiServerName(server int) string { return apiServerProgram + "-" + strconv.Itoa(server) }

func (cp *ControlPlane) program(name string) string { return filepath.Join(cp.assets, name) }

func (cp *ControlPlane) etcd() component {
	l := cp.layout
	client, peer := httpsURL(cp.ports[etcdProgram]), httpsURL(cp.ports[etcdPeer])
	args := []string{
		"--name=etcd",
		"--data-dir=" + l.etcd(),
		"--listen-client-urls=" + client,
		"--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer,
		"--initial-advertise-peer-urls=" + peer,
		"--initial-cluster=etcd=" + peer,
		"--client-cert-auth",
		"--trusted-ca-file=" + l.cert(etcdCA),
		"--cert-file=" + l.cert(etcdCert),
		"--key-file=" + l.key(etcdCert),
		"--peer-client-cert-auth",
		"--peer-trusted-ca-file=" + l.cert(etcdCA),
		"--peer-cert-file=" + l.cert(etcdCert),
		"--peer-key-file=" + l.key(etcdCert),
		"--log-level=warn",
	}
	if !cp.options.Persistent {
		args = append(args, "--unsafe-no-fsync")
	}
	return component{
		name:    etcdProgram,
		program: etcdProgram,
		args:    append(args, cp.options.EtcdArgs...),
		ready:   answers200(httpClient(cp.pki.etcd, &cp.pki.etcdClient), client+"/readyz"),
	}
}

func (cp *ControlPlane) apiServer(server int) component {
	l, name := cp.layout, apiServerName(server)
	port := cp.ports[name]
	etcd := address(cp.ports[etcdProgram])
	if link := cp.options.EtcdLinks[server]; link != nil {
		link.To(etcd)
		etcd = link.Address()
	}
	args := []string{
		"--bind-address=" + loopback,
		"--advertise-address=" + loopback,
		"--secure-port=" + strconv.Itoa(port),
		// No Endpoints of the Service "kubernetes": they refuse loopback addresses.
		"--endpoint-reconciler-type=none",
		"--service-cluster-ip-range=" + ServiceCIDR,
		"--etcd-servers=https://" + etcd,
		"--etcd-cafile=" + l.cert(etcdCA),
		"--etcd-certfile=" + l.cert(etcdClientCert),
		"--etcd-keyfile=" + l.key(etcdClientCert),
		"--tls-cert-file=" + l.cert(apiServerCert),
		"--tls-private-key-file=" + l.key(apiServerCert),
		"--client-ca-file=" + l.cert(clusterCA),
		"--anonymous-auth=false",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged",
		"--service-account-issuer=" + tokenIssuer,
		"--service-account-key-file=" + filepath.Join(l.pki(), tokenKey+".pub"),
		"--service-account-signing-key-file=" + l.key(tokenKey),
		"--kubelet-certificate-authority=" + l.cert(clusterCA),
		"--kubelet-client-certificate=" + l.cert(kubeletCert),
		"--kubelet-client-key=" + l.key(kubeletCert),
		"--kubelet-preferred-address-types=InternalIP",
		"--requestheader-client-ca-file=" + l.cert(frontProxyCA),
		"--requestheader-allowed-names=" + frontProxyUser,
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + l.cert(frontProxyCert),
		"--proxy-client-key-file=" + l.key(frontProxyCert),
		"--profiling=false",
	}
	if cp.options.AuditPolicyFile != "" {
		args = append(args,
			"--audit-policy-file="+absolute(cp.options.AuditPolicyFile),
			"--audit-log-path="+l.audit(name),
			"--audit-log-mode=blocking", // a test reads what it has just caused
		)
		if !cp.options.Persistent {
			// A test reads on from where it was; a new file after the usual 100 MiB
			// would hide from it what the old one has.
			args = append(args, "--audit-log-maxsize=1000000")
		}
	}
	return component{
		name:    name,
		program: apiServerProgram,
		args:    append(args, cp.options.APIServerArgs...),
		ready:   answers200(httpClient(cp.pki.cluster, &cp.pki.admin), httpsURL(port)+"/readyz"),
	}
}

func (cp *ControlPlane) controllerManager() component {
	l := cp.layout
	config := l.kubeconfig(managerConfig)
	port := cp.ports[controllerManagerProgram]
	args := []string{
		"--kubeconfig=" + config,
		"--authentication-kubeconfig=" + config,
		"--authorization-kubeconfig=" + config,
		"--bind-address=" + loopback,
		"--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + l.cert(managerServing),
		"--tls-private-key-file=" + l.key(managerServing),
		"--leader-elect=false", // one of it: it need not wait for a lease of its last run
		"--use-service-account-credentials",
		"--service-account-private-key-file=" + l.key(tokenKey),
		"--root-ca-file=" + l.cert(clusterCA),
		"--cluster-signing-cert-file=" + l.cert(clusterCA),
		"--cluster-signing-key-file=" + l.key(clusterCA),
		// Endpoints and EndpointSlices refuse loopback addresses: these controllers
		// would fail for ever, and say so in events. There is no
		// address range for Pods either.
		"--controllers=*,-endpoints-controller,-endpointslice-controller,-endpointslice-mirroring-controller,-node-ipam-controller",
		"--kube-api-qps=500",
		"--kube-api-burst=1000",
		"--profiling=false",
	}
	healthy := answers200(httpClient(cp.pki.cluster, nil), httpsURL(port)+"/healthz")
	api, admin := cp.URL(0), httpClient(cp.pki.cluster, &cp.pki.admin)
	// Pods need both; the controllers that make them have worked once then.
	hasAccount := answers200(admin, api+"/api/v1/namespaces/default/serviceaccounts/default")
	hasRoots := answers200(admin, api+"/api/v1/namespaces/default/configmaps/kube-root-ca.crt")
	return component{
		name:    controllerManagerProgram,
		program: controllerManagerProgram,
		args:    append(args, cp.options.ControllerManagerArgs...),
		ready: func(ctx context.Context) error {
			for _, check := range []func(context.Context) error{healthy, hasAccount, hasRoots} {
				if err := check(ctx); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func (cp *ControlPlane) scheduler() component {
	l := cp.layout
	config := l.kubeconfig(schedulerConfig)
	port := cp.ports[schedulerProgram]
	args := []string{
		"--kubeconfig=" + config,
		"--authentication-kubeconfig=" + config,
		"--authorization-kubeconfig=" + config,
		"--bind-address=" + loopback,
		"--secure-port=" + strconv.Itoa(port),
		"--tls-cert-file=" + l.cert(schedulerServe),
		"--tls-private-key-file=" + l.key(schedulerServe),
		"--leader-elect=false",
		"--profiling=false",
	}
	return component{
		name:    schedulerProgram,
		program: schedulerProgram,
		args:    append(args, cp.options.SchedulerArgs...),
		ready:   answers200(httpClient(cp.pki.cluster, nil), httpsURL(port)+"/readyz"),
	}
}

func absolute(path string) string {
	abs, err := filepath.Abs(path)
	if err != nil { // no working folder: the program will say what it cannot open
		return path
	}
	return abs
}
