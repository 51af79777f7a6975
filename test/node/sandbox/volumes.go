package sandbox

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/metacontroller-solo/solo/test/node/environ"
	"github.com/metacontroller-solo/solo/test/node/volume"
)

const (
	// accountPath is where a container expects the files of its service account
	// (https://kubernetes.io/docs/tasks/run-application/access-api-from-pod/).
	accountPath = "/var/run/secrets/kubernetes.io/serviceaccount"
	// kubeconfigName is the file in the Pod's folder that stands for them.
	kubeconfigName = "kubeconfig"
	// renewAt is the part of a token's life after which it is renewed, as in the kubelet.
	renewAt = 0.8
)

// unsupported tells what in the Pod this node can never provide.
func unsupported(pod *corev1.Pod) error {
	for i := range pod.Spec.Volumes {
		if _, err := volume.KindOf(&pod.Spec.Volumes[i]); err != nil {
			return fmt.Errorf("cannot start pod %q: %w", pod.Name, err)
		}
	}
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for _, container := range list {
			for _, probe := range []*corev1.Probe{container.StartupProbe, container.LivenessProbe, container.ReadinessProbe} {
				if probe != nil && probe.GRPC != nil {
					return fmt.Errorf("cannot start pod %q: a gRPC probe (container %q) is %w", pod.Name, container.Name, volume.ErrUnsupported)
				}
			}
		}
	}
	return nil
}

// writeVolumes brings all volumes up to date.
func (p *Pod) writeVolumes(ctx context.Context) error {
	pod := p.object()
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		kind, err := volume.KindOf(v)
		if err != nil {
			return err
		}
		dir := p.volumeDir(v.Name)
		switch kind {
		case volume.Empty:
			if err := os.MkdirAll(dir, 0o777); err != nil {
				return fmt.Errorf("cannot create volume %q: %w", v.Name, err)
			}
		case volume.Written:
			limited, cancel := context.WithTimeout(ctx, callLimit)
			payload, err := volume.Collect(limited, v, source{p, pod})
			cancel()
			if err != nil {
				return err
			}
			if _, err := volume.Write(dir, payload); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Pod) volumeDir(name string) string { return filepath.Join(p.dir, "volumes", name) }

// refreshVolumes looks at the sources again and again. What cannot be had now stays as it is.
func (p *Pod) refreshVolumes(ctx context.Context) {
	event := newOnce()
	for p.pause(ctx, p.config.Refresh) {
		message := ""
		if err := p.writeVolumes(ctx); err != nil {
			message = err.Error()
		}
		if event.is(message) && message != "" && ctx.Err() == nil {
			p.event(nil, corev1.EventTypeWarning, eventFailedMount, "%s", message)
		}
	}
}

// mounts are the container's mount paths with the folders in their place.
func (p *Pod) mounts(pod *corev1.Pod, container *corev1.Container) (environ.Mounts, error) {
	var mounts environ.Mounts
	for _, mount := range container.VolumeMounts {
		var host string
		for i := range pod.Spec.Volumes {
			v := &pod.Spec.Volumes[i]
			if v.Name != mount.Name {
				continue
			}
			host = p.volumeDir(v.Name)
			if v.HostPath != nil {
				host = v.HostPath.Path
			}
		}
		if host == "" {
			return nil, fmt.Errorf("cannot find volume %q, which container %q mounts", mount.Name, container.Name)
		}
		sub := mount.SubPath
		if mount.SubPathExpr != "" {
			return nil, fmt.Errorf("cannot mount volume %q: subPathExpr is %w", mount.Name, volume.ErrUnsupported)
		}
		if sub != "" {
			if !filepath.IsLocal(sub) {
				return nil, fmt.Errorf("cannot mount volume %q: subPath %q leaves it", mount.Name, sub)
			}
			host = filepath.Join(host, sub)
		}
		mounts = append(mounts, environ.Mount{Path: mount.MountPath, Host: host})
	}
	return mounts, nil
}

// defaults are the variables of a container before its own.
func (p *Pod) defaults(pod *corev1.Pod, container *corev1.Container, home string) (map[string]string, error) {
	server, err := url.Parse(p.config.APIServer)
	if err != nil {
		return nil, fmt.Errorf("cannot parse API server URL %q: %w", p.config.APIServer, err)
	}
	host, port, err := net.SplitHostPort(server.Host)
	if err != nil {
		return nil, fmt.Errorf("cannot parse API server URL %q: %w", p.config.APIServer, err)
	}
	hostname := pod.Spec.Hostname
	if hostname == "" {
		hostname = pod.Name
	}
	defaults := map[string]string{
		environ.Hostname: hostname, environ.ServiceHost: host, environ.ServicePort: port,
		// What an image would bring along.
		"PATH": os.Getenv("PATH"), "HOME": home, "TMPDIR": filepath.Join(home, "tmp"),
	}
	maps.Copy(defaults, p.config.Environ)
	for _, mount := range container.VolumeMounts {
		if mount.MountPath != accountPath {
			continue
		}
		path := filepath.Join(p.dir, kubeconfigName)
		if err := p.writeKubeconfig(path, pod.Namespace, p.volumeDir(mount.Name)); err != nil {
			return nil, err
		}
		defaults[environ.KubeConfigPath] = path
	}
	return defaults, nil
}

// writeKubeconfig writes what client libraries find in a cluster under accountPath. It refers to the files, so that renewed tokens are used.
func (p *Pod) writeKubeconfig(path, namespace, account string) error {
	const name = "pod"
	config := clientcmdapi.NewConfig()
	config.Clusters[name] = &clientcmdapi.Cluster{
		Server: p.config.APIServer, TLSServerName: p.config.ServerName, CertificateAuthority: filepath.Join(account, corev1.ServiceAccountRootCAKey),
	}
	config.AuthInfos[name] = &clientcmdapi.AuthInfo{TokenFile: filepath.Join(account, corev1.ServiceAccountTokenKey)}
	config.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: namespace}
	config.CurrentContext = name
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("cannot write kubeconfig of pod: %w", err)
	}
	return nil
}

// facts fetches what the container's environment refers to.
func (p *Pod) facts(ctx context.Context, pod *corev1.Pod, container *corev1.Container) (environ.Facts, error) {
	p.mu.Lock()
	facts := environ.Facts{Pod: pod, PodIP: p.ip.String(), HostIP: p.config.HostIP, Allocatable: p.config.Allocatable}
	p.mu.Unlock()
	facts.Secrets, facts.ConfigMaps = map[string]map[string][]byte{}, map[string]map[string]string{}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	secrets, configMaps := environ.References(container)
	for _, name := range secrets {
		data, err := source{p, pod}.Secret(ctx, name)
		if errors.Is(err, volume.ErrNotFound) {
			continue // it may be optional: environ knows
		}
		if err != nil {
			return facts, err
		}
		facts.Secrets[name] = data
	}
	for _, name := range configMaps {
		object, err := p.config.Client.CoreV1().ConfigMaps(p.key.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return facts, fmt.Errorf("cannot get configmap %q: %w", name, err)
		}
		facts.ConfigMaps[name] = object.Data
		if facts.ConfigMaps[name] == nil {
			facts.ConfigMaps[name] = map[string]string{}
		}
	}
	return facts, nil
}

// source answers volume's questions with the node's rights.
type source struct {
	p   *Pod
	pod *corev1.Pod
}

var _ volume.Source = source{}

func (s source) Secret(ctx context.Context, name string) (map[string][]byte, error) {
	object, err := s.p.config.Client.CoreV1().Secrets(s.pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("secret %q %w", name, volume.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot get secret %q: %w", name, err)
	}
	if object.Data == nil {
		return map[string][]byte{}, nil
	}
	return object.Data, nil
}

func (s source) ConfigMap(ctx context.Context, name string) (map[string][]byte, error) {
	object, err := s.p.config.Client.CoreV1().ConfigMaps(s.pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("configmap %q %w", name, volume.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot get configmap %q: %w", name, err)
	}
	data := make(map[string][]byte, len(object.Data)+len(object.BinaryData))
	for key, value := range object.Data {
		data[key] = []byte(value)
	}
	maps.Copy(data, object.BinaryData)
	return data, nil
}

func (s source) Field(path string) (string, error) {
	s.p.mu.Lock()
	ip := s.p.ip.String()
	s.p.mu.Unlock()
	return environ.Field(path, s.pod, ip, s.p.config.HostIP)
}

func (s source) Resource(selector *corev1.ResourceFieldSelector) (string, error) {
	return environ.Resource(selector, nil, s.pod, s.p.config.Allocatable)
}

// Token returns a token from before while four fifths of its life are not over.
func (s source) Token(ctx context.Context, projection *corev1.ServiceAccountTokenProjection) (string, error) {
	p := s.p
	now := p.config.Clock.Now()
	key := tokenKey{audience: projection.Audience}
	if projection.ExpirationSeconds != nil {
		key.seconds = *projection.ExpirationSeconds
	}
	have, ok := p.tokens.get(key)
	if ok && now.Before(have.renew) {
		return have.value, nil
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: projection.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: s.pod.Name, UID: s.pod.UID},
	}}
	if projection.Audience != "" {
		request.Spec.Audiences = []string{projection.Audience}
	}
	answer, err := p.config.Client.CoreV1().ServiceAccounts(s.pod.Namespace).CreateToken(ctx, s.pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		if ok && now.Before(have.expires) {
			return have.value, nil
		}
		return "", fmt.Errorf("cannot get a token of service account %q: %w", s.pod.Spec.ServiceAccountName, err)
	}
	fresh := token{value: answer.Status.Token, expires: answer.Status.ExpirationTimestamp.Time}
	fresh.renew = now.Add(time.Duration(renewAt * float64(fresh.expires.Sub(now))))
	p.tokens.set(key, fresh)
	return fresh.value, nil
}

type tokenKey struct {
	audience string
	seconds  int64
}

type token struct {
	value          string
	renew, expires time.Time
}

type tokens struct {
	mu   sync.Mutex // guards held
	held map[tokenKey]token
}

func (t *tokens) get(key tokenKey) (token, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	held, ok := t.held[key]
	return held, ok
}

func (t *tokens) set(key tokenKey, value token) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held == nil {
		t.held = map[tokenKey]token{}
	}
	t.held[key] = value
}
