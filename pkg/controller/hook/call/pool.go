package call

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

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

// Pool makes Callers. Those of one host share a transport, and those of one hook
// share their metrics while an old and a new version of a controller overlap.
type Pool struct {
	registry prometheus.Registerer
	now      func() time.Time

	mu sync.Mutex
	// transports by scheme and host. Guarded by mu.
	transports map[string]*shared[*http.Transport]
	// metrics by the identity and address of the hook. Guarded by mu.
	metrics map[metricsKey]*shared[*hookMetrics]
}

type shared[T any] struct {
	value T
	users int
}

type metricsKey struct {
	Identity
	url string
}

// NewPool returns a Pool whose metrics appear in registry.
func NewPool(registry prometheus.Registerer, now func() time.Time) *Pool {
	return &Pool{
		registry:   registry,
		now:        now,
		transports: map[string]*shared[*http.Transport]{},
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
)

// Caller returns a Caller for a hook. It must be closed. The error says what is
// wrong with the webhook.
func (p *Pool) Caller(identity Identity, webhook *v1alpha1.Webhook, endpoints []v1alpha1.EndpointConfig) (*Caller, error) {
	if err := unsupported(webhook, endpoints); err != nil {
		return nil, err
	}
	endpoint, err := Resolve(webhook)
	if err != nil {
		return nil, err
	}
	parsed, err := url.Parse(endpoint.URL)
	if err != nil {
		return nil, fmt.Errorf("cannot parse address of hook %q", identity.Hook)
	}
	host := parsed.Scheme + "://" + strings.ToLower(parsed.Host)
	key := metricsKey{Identity: identity, url: Redact(endpoint.URL)}

	p.mu.Lock()
	defer p.mu.Unlock()
	metrics := p.metrics[key]
	if metrics == nil {
		made := newHookMetrics(key)
		if err := made.register(p.registry); err != nil {
			return nil, fmt.Errorf("cannot register metrics of hook %q: %w", identity.Hook, err)
		}
		metrics = &shared[*hookMetrics]{value: made}
		p.metrics[key] = metrics
	}
	metrics.users++
	transport := p.transports[host]
	if transport == nil {
		transport = &shared[*http.Transport]{value: newTransport()}
		p.transports[host] = transport
	}
	transport.users++

	var once sync.Once
	return &Caller{
		endpoint: endpoint,
		client:   &http.Client{Transport: metrics.value.instrument(transport.value)},
		now:      p.now,
		drop:     transport.value.CloseIdleConnections,
		release:  func() { once.Do(func() { p.release(host, key) }) },
	}, nil
}

func (p *Pool) release(host string, key metricsKey) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if transport := p.transports[host]; transport != nil {
		if transport.users--; transport.users == 0 {
			transport.value.CloseIdleConnections()
			delete(p.transports, host)
		}
	}
	if metrics := p.metrics[key]; metrics != nil {
		if metrics.users--; metrics.users == 0 {
			metrics.value.unregister(p.registry)
			delete(p.metrics, key)
		}
	}
}

func newTransport() *http.Transport {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns = idleConnections
	transport.MaxIdleConnsPerHost = idleConnections
	transport.IdleConnTimeout = idleTimeout
	transport.TLSHandshakeTimeout = handshakeTimeout
	transport.MaxResponseHeaderBytes = responseHeaderMax
	return transport
}

// unsupported refuses what is not there yet.
func unsupported(webhook *v1alpha1.Webhook, endpoints []v1alpha1.EndpointConfig) error {
	field := ""
	switch {
	case len(endpoints) > 0:
		field = "endpointConfigs"
	case webhook == nil:
	case webhook.Etag != nil && webhook.Etag.Enabled != nil && *webhook.Etag.Enabled:
		field = "webhook.etag"
	case webhook.CABundle != nil:
		field = "webhook.caBundle"
	case webhook.ClientTLS != nil:
		field = "webhook.clientTLS"
	case webhook.Authorization != nil:
		field = "webhook.authorization"
	case webhook.BasicAuth != nil:
		field = "webhook.basicAuth"
	}
	if field == "" {
		return nil
	}
	return fmt.Errorf("asks for %s, which is not supported by this version", field)
}
