package kit

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// APIProxy stands between a program under test and the API servers, as a load
// balancer does, and makes trouble on demand. It ends TLS, with a certificate that
// the control plane's CA signed, so that it can answer in an API server's stead and
// change what a watch says (in JSON, not in protobuf); tokens are passed on, client
// certificates cannot be.
//
//	program ── TLS ──> APIProxy ── TLS ──> API server 0, 1, ...
//	                     │ Cut  Block  Intercept  ExpireWatches  CutWatches  DelayWatches
//
// When an API server cannot be reached the next one is tried by the next request.
// Its methods can be called from several goroutines.
type APIProxy struct {
	cp       *ControlPlane
	listener *trackedListener
	server   *http.Server
	targets  []*httputil.ReverseProxy

	mu        sync.Mutex // guards all below
	target    int
	intercept func(http.ResponseWriter, *http.Request) bool
	unblocked chan struct{} // closed unless Block holds requests
	delay     time.Duration
	watches   map[*proxiedWatch]struct{}
	counts    map[int]int
	errors    int
}

// NewAPIProxy starts a proxy that ends with the test. It leads to API server 0.
func NewAPIProxy(t testing.TB, cp *ControlPlane) *APIProxy {
	t.Helper()
	pair, err := cp.CA().IssueServer(loopback)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		t.Fatal(err)
	}
	open := make(chan struct{})
	close(open)
	p := &APIProxy{
		cp:        cp,
		listener:  &trackedListener{Listener: listener, open: map[net.Conn]struct{}{}},
		unblocked: open,
		watches:   map[*proxiedWatch]struct{}{},
		counts:    map[int]int{},
	}
	for i := range cp.APIServers() {
		target, err := url.Parse(cp.URL(i))
		if err != nil {
			t.Fatal(err)
		}
		p.targets = append(p.targets, &httputil.ReverseProxy{
			Rewrite: func(r *httputil.ProxyRequest) {
				r.SetURL(target)
				// Watches may come compressed, too; their events are to be seen.
				r.Out.Header.Del("Accept-Encoding")
			},
			Transport: &http.Transport{
				TLSClientConfig:    &tls.Config{RootCAs: cp.CA().Pool(), MinVersion: tls.VersionTLS12},
				ForceAttemptHTTP2:  true,
				DisableCompression: true,
			},
			FlushInterval:  -1,
			ErrorLog:       log.New(io.Discard, "", 0), // faults are wanted here
			ModifyResponse: p.answered,
			ErrorHandler: func(_ http.ResponseWriter, r *http.Request, _ error) {
				if r.Context().Err() == nil {
					p.failOver(i)
				}
				panic(http.ErrAbortHandler)
			},
		})
	}
	p.server = &http.Server{
		Handler:           http.HandlerFunc(p.serve),
		TLSConfig:         &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12},
		ReadHeaderTimeout: hookHeaderTime,
		ErrorLog:          log.New(io.Discard, "", 0),
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = p.server.ServeTLS(p.listener, "", "") // ends by Close
	}()
	t.Cleanup(func() {
		_ = p.server.Close()
		<-served
	})
	return p
}

// Through is a copy of a client configuration with a token that goes through the
// proxy.
func (p *APIProxy) Through(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.Host = "https://" + p.listener.Addr().String()
	return config
}

// To makes new requests go to an API server. What is under way stays.
func (p *APIProxy) To(server int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = server
}

// Target is the API server that requests go to now.
func (p *APIProxy) Target() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.target
}

func (p *APIProxy) failOver(failed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.target == failed {
		p.target = (failed + 1) % len(p.targets)
	}
}

// Cut resets all connections of the program; new ones are accepted.
func (p *APIProxy) Cut() { p.listener.cut() }

// Block holds all requests that come from now on, until Unblock, or until the
// program gives up.
func (p *APIProxy) Block() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unblocked = make(chan struct{})
}

// Unblock ends Block, and lets go what it held.
func (p *APIProxy) Unblock() {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.unblocked:
	default:
		close(p.unblocked)
	}
}

// Intercept asks a function about each new request; if it returns true it has
// answered. Nil ends that.
func (p *APIProxy) Intercept(intercept func(http.ResponseWriter, *http.Request) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.intercept = intercept
}

// DelayWatches makes each event of a watch arrive that much later than the one
// before it: a program that lags.
func (p *APIProxy) DelayWatches(delay time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = delay
}

// CutWatches breaks all open watches off.
func (p *APIProxy) CutWatches() { p.endWatches(errCut) }

// ExpireWatches ends all open watches with an event that says 410 Gone, as an API
// server does that no longer has the changes.
func (p *APIProxy) ExpireWatches() { p.endWatches(errExpired) }

// Answered is how often each status was the answer, those of Intercept included,
// and how many events of watches were errors.
func (p *APIProxy) Answered() (byStatus map[int]int, watchErrors int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.counts), p.errors
}

var (
	errCut     = errors.New("cut")
	errExpired = errors.New("expired")
)

func (p *APIProxy) endWatches(cause error) {
	p.mu.Lock()
	open := slices.Collect(maps.Keys(p.watches))
	p.mu.Unlock()
	for _, one := range open {
		one.cancel(cause)
	}
}

func (p *APIProxy) serve(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	target, intercept, unblocked := p.target, p.intercept, p.unblocked
	p.mu.Unlock()
	select {
	case <-unblocked:
	case <-r.Context().Done():
		panic(http.ErrAbortHandler)
	}
	if intercept != nil && intercept(countingWriter{w, p}, r) {
		return
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	if isWatch(r) {
		ctx = context.WithValue(ctx, watchKey{}, &proxiedWatch{proxy: p, ctx: ctx, cancel: cancel})
	}
	p.targets[target].ServeHTTP(w, r.WithContext(ctx))
}

// countingWriter counts the answers of Intercept.
type countingWriter struct {
	http.ResponseWriter
	proxy *APIProxy
}

func (w countingWriter) WriteHeader(code int) {
	w.proxy.count(code)
	w.ResponseWriter.WriteHeader(code)
}

func (p *APIProxy) count(code int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[code]++
}

func isWatch(r *http.Request) bool {
	watch := r.URL.Query().Get("watch")
	return watch == "true" || watch == "1"
}

// watchKey is the key of a request's watch in its context.
type watchKey struct{}

// answered puts the faults into the body of a watch.
func (p *APIProxy) answered(response *http.Response) error {
	p.count(response.StatusCode)
	one, ok := response.Request.Context().Value(watchKey{}).(*proxiedWatch)
	// Others than JSON's events cannot be told apart; they are passed on as they are.
	if !ok || response.StatusCode != http.StatusOK || !strings.HasPrefix(response.Header.Get("Content-Type"), jsonType) {
		return nil
	}
	one.body, one.events = response.Body, json.NewDecoder(response.Body)
	response.Body = one
	p.mu.Lock()
	defer p.mu.Unlock()
	p.watches[one] = struct{}{}
	return nil
}

// proxiedWatch is the body of a watch. Only whole events are passed on.
type proxiedWatch struct {
	proxy  *APIProxy
	ctx    context.Context //nolint:containedctx // It is the request's, whose body this is.
	cancel context.CancelCauseFunc
	body   io.ReadCloser
	events *json.Decoder
	left   []byte
	last   bool
}

// Read implements io.Reader.
func (w *proxiedWatch) Read(b []byte) (int, error) {
	if len(w.left) == 0 {
		if w.last {
			return 0, io.EOF
		}
		if err := w.next(); err != nil {
			return 0, err
		}
	}
	n := copy(b, w.left)
	w.left = w.left[n:]
	return n, nil
}

func (w *proxiedWatch) next() error {
	var event json.RawMessage
	err := w.events.Decode(&event)
	w.proxy.mu.Lock()
	delay := w.proxy.delay
	w.proxy.mu.Unlock()
	if err == nil && delay > 0 {
		timer := time.NewTimer(delay)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-w.ctx.Done():
		}
	}
	switch cause := context.Cause(w.ctx); {
	case errors.Is(cause, errExpired):
		w.last = true
		w.left = append(expiredEvent(), '\n')
		return nil
	case cause != nil:
		return cause
	case err != nil:
		return err
	}
	if bytes.HasPrefix(event, []byte(`{"type":"ERROR"`)) {
		w.proxy.mu.Lock()
		w.proxy.errors++
		w.proxy.mu.Unlock()
	}
	event = append(event, '\n')
	w.left = event
	return nil
}

// Close implements io.Closer.
func (w *proxiedWatch) Close() error {
	w.proxy.mu.Lock()
	delete(w.proxy.watches, w)
	w.proxy.mu.Unlock()
	return w.body.Close()
}

func expired() metav1.Status {
	return metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Message:  "too old resource version: injected",
		Reason:   metav1.StatusReasonExpired,
		Code:     http.StatusGone,
	}
}

func expiredEvent() []byte {
	event, err := json.Marshal(map[string]any{"type": "ERROR", "object": expired()})
	if err != nil {
		panic(err) // it is a constant
	}
	return event
}

// Gone answers a request with 410, as an API server does a watch from a resource
// version that it no longer has.
func Gone(w http.ResponseWriter) { writeStatus(w, expired()) }

// TooManyRequests answers a request with 429, to be tried again after so many
// seconds.
func TooManyRequests(w http.ResponseWriter, retryAfter int) {
	w.Header().Set("Retry-After", strconv.Itoa(retryAfter))
	writeStatus(w, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure,
		Message:  "too many requests, please try again later: injected",
		Reason:   metav1.StatusReasonTooManyRequests,
		Details:  &metav1.StatusDetails{RetryAfterSeconds: int32(retryAfter)},
		Code:     http.StatusTooManyRequests,
	})
}

func writeStatus(w http.ResponseWriter, status metav1.Status) {
	body, err := json.Marshal(status)
	if err != nil {
		panic(err) // it is a constant
	}
	answer(w, int(status.Code), jsonType, body)
}

// trackedListener knows the connections that it has accepted.
type trackedListener struct {
	net.Listener

	mu   sync.Mutex // guards open
	open map[net.Conn]struct{}
}

func (l *trackedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, fmt.Errorf("cannot accept: %w", err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open[conn] = struct{}{}
	return &trackedConn{Conn: conn, listener: l}, nil
}

func (l *trackedListener) cut() {
	l.mu.Lock()
	open := slices.Collect(maps.Keys(l.open))
	l.mu.Unlock()
	for _, conn := range open {
		reset(conn)
	}
}

type trackedConn struct {
	net.Conn
	listener *trackedListener
}

func (c *trackedConn) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.open, c.Conn)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
