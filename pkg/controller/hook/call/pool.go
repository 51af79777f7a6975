package call

import (
	"crypto/sha256"
	"crypto/tls"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
)

// Identity says whose hook is called; its fields are the constant labels of the
// hook's metrics.
type Identity struct {
	// Hook is sync, finalize or customize.
	Hook string
	// ControllerKind is CompositeController or DecoratorController.
	ControllerKind string
	ControllerName string
}

// Pool makes Callers. Those of one host with the same credentials share a
// transport, and those of one hook share their metrics while an old and a new
// version of a controller overlap.
type Pool struct {
	registry prometheus.Registerer
	sources  Sources
	clock    clock.WithDelayedExecution

	mu sync.Mutex
	// transports that have users. Guarded by mu.
	transports map[transportKey]*shared[*http.Transport]
	// metrics by the identity and address of the hook. Guarded by mu.
	metrics map[metricsKey]*shared[*hookMetrics]
}

type shared[T any] struct {
	value T
	users int
}

// transportKey says which connections may be shared.
type transportKey struct {
	// host has the scheme before it.
	host        string
	credentials [sha256.Size]byte
}

type metricsKey struct {
	Identity
	url string
}

// NewPool returns a Pool whose metrics appear in registry, and whose credentials
// come from sources.
func NewPool(registry prometheus.Registerer, sources Sources, clock clock.WithDelayedExecution) *Pool {
	return &Pool{
		registry:   registry,
		sources:    sources,
		clock:      clock,
		transports: map[transportKey]*shared[*http.Transport]{},
		metrics:    map[metricsKey]*shared[*hookMetrics]{},
	}
}

// Connections to one host. A sync waits for its hook, so there are never more
// calls under way than there are workers.
const (
	idleConnections   = 100
	idleTimeout       = 90 * time.Second
	handshakeTimeout  = 10 * time.Second
	responseHeaderMax = 64 << 10
	readBuffer        = 16 << 10
	// writeBuffer takes most requests whole: each time that it is full is a system call.
	writeBuffer = 16 << 10
	// An HTTP/2 connection is shared by all calls of the host. One that is silent
	// for pingAfter is asked for a sign of life, and given up without one: a server
	// that moved may have left nobody who could reset it.
	pingAfter   = 10 * time.Second
	pingTimeout = 5 * time.Second
)

// Caller returns a Caller for a hook. It must be closed. The error says what is
// wrong with the webhook, or with the endpointConfigs of its controller; what is
// wrong with a Secret or a ConfigMap is found out by each call.
func (p *Pool) Caller(identity Identity, webhook *v1alpha1.Webhook, endpoints []v1alpha1.EndpointConfig) (*Caller, error) {
	endpoint, err := Resolve(webhook)
	if err != nil {
		return nil, err
	}
	parsed, err := url.Parse(endpoint.URL)
	if err != nil {
		return nil, fmt.Errorf("cannot parse address of hook %q", identity.Hook)
	}
	connection, err := connectionOf(webhook, parsed, endpoints)
	if err != nil {
		return nil, err
	}
	key := metricsKey{Identity: identity, url: Redact(endpoint.URL)}
	metrics, err := p.acquireMetrics(key)
	if err != nil {
		return nil, fmt.Errorf("cannot register metrics of hook %q: %w", identity.Hook, err)
	}
	caller := &Caller{
		pool:       p,
		endpoint:   endpoint,
		host:       strings.ToLower(parsed.Scheme + "://" + parsed.Host),
		connection: connection,
		references: connection.references(),
		metrics:    metrics,
		metricsKey: key,
		answers:    newAnswers(webhook.Etag, p.clock),
		large:      make(chan struct{}, largeAnswers),
	}
	if password, has := parsed.User.Password(); has {
		caller.secrets = append(caller.secrets, password)
	}
	if parsed.RawQuery != "" {
		caller.secrets = append(caller.secrets, parsed.RawQuery)
	}
	return caller, nil
}

func (p *Pool) acquireMetrics(key metricsKey) (*hookMetrics, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	metrics := p.metrics[key]
	if metrics == nil {
		made := newHookMetrics(key)
		if err := made.register(p.registry); err != nil {
			return nil, err
		}
		metrics = &shared[*hookMetrics]{value: made}
		p.metrics[key] = metrics
	}
	metrics.users++
	return metrics.value, nil
}

func (p *Pool) releaseMetrics(key metricsKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if metrics := p.metrics[key]; metrics != nil {
		if metrics.users--; metrics.users == 0 {
			metrics.value.unregister(p.registry)
			delete(p.metrics, key)
		}
	}
}

func (p *Pool) acquireTransport(key transportKey, with *credentials) *http.Transport {
	p.mu.Lock()
	defer p.mu.Unlock()
	transport := p.transports[key]
	if transport == nil {
		transport = &shared[*http.Transport]{value: newTransport(with)}
		p.transports[key] = transport
	}
	transport.users++
	return transport.value
}

func (p *Pool) releaseTransport(key transportKey) {
	if unused := p.dropTransport(key); unused != nil {
		unused.CloseIdleConnections()
	}
}

// dropTransport returns the transport if nobody uses it any more.
func (p *Pool) dropTransport(key transportKey) *http.Transport {
	p.mu.Lock()
	defer p.mu.Unlock()
	transport := p.transports[key]
	if transport == nil {
		return nil
	}
	if transport.users--; transport.users > 0 {
		return nil
	}
	delete(p.transports, key)
	return transport.value
}

func newTransport(with *credentials) *http.Transport {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns = idleConnections
	transport.MaxIdleConnsPerHost = idleConnections
	transport.IdleConnTimeout = idleTimeout
	transport.TLSHandshakeTimeout = handshakeTimeout
	transport.MaxResponseHeaderBytes = responseHeaderMax
	transport.ReadBufferSize = readBuffer
	transport.WriteBufferSize = writeBuffer
	transport.HTTP2 = &http.HTTP2Config{SendPingTimeout: pingAfter, PingTimeout: pingTimeout}
	transport.TLSClientConfig = &tls.Config{
		MinVersion:   tls.VersionTLS12,
		RootCAs:      with.roots,
		Certificates: with.certificates,
	}
	return transport
}
