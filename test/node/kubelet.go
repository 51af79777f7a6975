package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	stdlog "log"

	"github.com/go-logr/logr"
	"github.com/virtual-kubelet/virtual-kubelet/node/api"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/metacontroller-solo/solo/test/node/link"
)

const (
	headerLimit  = 10 * time.Second
	accessLimit  = 10 * time.Second
	streamLimit  = 4 * time.Hour // as the kubelet's
	tailLinesKey = "tailLines"
)

var errNotSupported = errors.New("not supported by this node, whose containers are host processes")

// kubelet is the HTTPS server that the API server asks for logs. It is reached through a link of its own, for a partition has two directions.
type kubelet struct {
	link   *link.Link
	server *http.Server
	done   chan struct{}
	port   int
}

// startKubelet listens. Clients need a certificate of an authority in clientCAs, and the API server's word that they may.
func startKubelet(o *Options, p *provider, client kubernetes.Interface) (*kubelet, error) {
	listener, err := net.Listen("tcp", netip.AddrPortFrom(o.Address, 0).String())
	if err != nil {
		return nil, fmt.Errorf("cannot listen for the kubelet API of node %q: %w", o.Name, err)
	}
	wire, err := link.Listen(netip.AddrPortFrom(o.Address, uint16(o.KubeletPort)).String(), listener.Addr().String())
	if err != nil {
		_ = listener.Close()
		return nil, fmt.Errorf("cannot listen for the kubelet API of node %q: %w", o.Name, err)
	}
	address, err := netip.ParseAddrPort(wire.Addr())
	if err != nil {
		_ = listener.Close()
		wire.Close()
		return nil, fmt.Errorf("cannot tell the port of the kubelet API of node %q: %w", o.Name, err)
	}
	handler := api.PodHandler(api.PodHandlerConfig{
		RunInContainer: func(ctx context.Context, namespace, pod, container string, command []string, io api.AttachIO) error {
			return p.exec(ctx, namespace, pod, container, command, io)
		},
		AttachToContainer: func(context.Context, string, string, string, api.AttachIO) error {
			return fmt.Errorf("attach is %w", errNotSupported)
		},
		PortForward: func(context.Context, string, string, int32, io.ReadWriteCloser) error {
			return fmt.Errorf("port-forward is %w: a Pod's address is reachable on the host itself", errNotSupported)
		},
		GetContainerLogs: p.logs,
		GetPods:          p.GetPods,
		GetPodsFromKubernetes: func(context.Context) ([]*corev1.Pod, error) {
			return p.lister.List(labels.Everything())
		},
		StreamIdleTimeout:     streamLimit,
		StreamCreationTimeout: headerLimit,
	}, true)
	k := &kubelet{link: wire, port: int(address.Port()), done: make(chan struct{})}
	k.server = &http.Server{
		Handler:           authorized(o, client, withTail(handler)),
		ReadHeaderTimeout: headerLimit,
		TLSConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{o.ServingCert},
			ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: o.ClientCAs,
		},
		ErrorLog: quietLog(o.Log),
	}
	go func() {
		defer close(k.done)
		if err := k.server.ServeTLS(listener, "", ""); !errors.Is(err, http.ErrServerClosed) {
			o.Log.Error(err, "The kubelet API ended")
		}
	}()
	return k, nil
}

func (k *kubelet) stop() {
	k.link.Close()
	_ = k.server.Close()
	<-k.done
}

// authorized asks the API server whether the holder of the client certificate may use the node, as a kubelet in webhook mode does.
func authorized(o *Options, client kubernetes.Interface, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		ctx, cancel := context.WithTimeout(r.Context(), accessLimit)
		defer cancel()
		user := r.TLS.PeerCertificates[0]
		review, err := client.AuthorizationV1().SubjectAccessReviews().Create(ctx, accessReview(o.Name, r.Method, user), metav1.CreateOptions{})
		if err != nil {
			http.Error(w, "cannot ask the API server for the right to use this node: "+err.Error(), http.StatusInternalServerError)
			return
		}
		if !review.Status.Allowed {
			http.Error(w, fmt.Sprintf("user %q may not use the kubelet API of node %q", user.Subject.CommonName, o.Name), http.StatusForbidden)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// accessReview is about the subresource "proxy" of the node, which covers all that this server does
// (https://kubernetes.io/docs/reference/access-authn-authz/kubelet-authn-authz/).
func accessReview(node, method string, user *x509.Certificate) *authorizationv1.SubjectAccessReview {
	verb := "get"
	if method == http.MethodPost {
		verb = "create"
	}
	return &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: user.Subject.CommonName, Groups: user.Subject.Organization,
		ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Version: "v1", Resource: "nodes", Subresource: "proxy", Name: node},
	}}
}

type tailContext struct{}

// withTail keeps the number of lines asked for: VK's handler does not tell none from not set.
func withTail(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if n, err := strconv.Atoi(r.URL.Query().Get(tailLinesKey)); err == nil && n >= 0 {
			r = r.WithContext(context.WithValue(r.Context(), tailContext{}, n))
		}
		next.ServeHTTP(w, r)
	})
}

func tailOf(ctx context.Context) *int {
	if n, ok := ctx.Value(tailContext{}).(int); ok {
		return &n
	}
	return nil
}

// exec runs a command beside a container's process.
func (p *provider) exec(ctx context.Context, namespace, name, container string, command []string, attach api.AttachIO) error {
	if attach.TTY() {
		return fmt.Errorf("a terminal (-t) is %w", errNotSupported)
	}
	pod := p.named(namespace, name)
	if pod == nil {
		return fmt.Errorf("cannot find pod %q on this node", namespace+"/"+name)
	}
	return pod.Exec(ctx, container, command, attach.Stdin(), attach.Stdout(), attach.Stderr())
}

// quietLog takes the server's messages about clients that broke off.
func quietLog(l logr.Logger) *stdlog.Logger { return newStdlog(l.V(1)) }
