package call_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/hook/call"
)

func ptr[T any](v T) *T { return &v }

func TestResolve(t *testing.T) {
	service := func(port *int32, protocol *string) *v1alpha1.ServiceReference {
		return &v1alpha1.ServiceReference{Name: "hooks", Namespace: "demo", Port: port, Protocol: protocol}
	}
	cases := []struct {
		reason  string
		webhook *v1alpha1.Webhook
		want    call.Endpoint
		fails   string
	}{
		{"no webhook", nil, call.Endpoint{}, "no webhook"},
		{"nothing said", &v1alpha1.Webhook{}, call.Endpoint{}, "neither"},
		{"path alone", &v1alpha1.Webhook{Path: ptr("/x")}, call.Endpoint{}, "neither"},
		{"service alone", &v1alpha1.Webhook{Service: service(nil, nil)}, call.Endpoint{}, "webhook.path"},
		{"url", &v1alpha1.Webhook{URL: ptr("https://h/x?q=1")}, call.Endpoint{URL: "https://h/x?q=1", Timeout: 10 * time.Second}, ""},
		{"url wins", &v1alpha1.Webhook{URL: ptr("http://h/x"), Service: service(nil, nil), Path: ptr("y")}, call.Endpoint{URL: "http://h/x", Timeout: 10 * time.Second}, ""},
		{"service", &v1alpha1.Webhook{Service: service(nil, nil), Path: ptr("/sync")}, call.Endpoint{URL: "http://hooks.demo:80/sync", Timeout: 10 * time.Second}, ""},
		{"service in full", &v1alpha1.Webhook{Service: service(ptr(int32(8443)), ptr("https")), Path: ptr("sync")}, call.Endpoint{URL: "https://hooks.demo:8443/sync", Timeout: 10 * time.Second}, ""},
		{"timeout", &v1alpha1.Webhook{URL: ptr("http://h"), Timeout: &metav1.Duration{Duration: time.Minute}}, call.Endpoint{URL: "http://h", Timeout: time.Minute}, ""},
		{"timeout of 0", &v1alpha1.Webhook{URL: ptr("http://h"), Timeout: &metav1.Duration{}}, call.Endpoint{URL: "http://h", Timeout: 10 * time.Second}, ""},
		{"negative timeout", &v1alpha1.Webhook{URL: ptr("http://h"), Timeout: &metav1.Duration{Duration: -1}}, call.Endpoint{URL: "http://h", Timeout: 10 * time.Second}, ""},
		{"another scheme", &v1alpha1.Webhook{URL: ptr("ftp://u:secret@h/x")}, call.Endpoint{}, `"ftp://h/x"`},
		{"no host", &v1alpha1.Webhook{URL: ptr("http:///x")}, call.Endpoint{}, "host"},
		{"not an address", &v1alpha1.Webhook{URL: ptr("http://u:secret@h:port")}, call.Endpoint{}, "not a valid address"},
	}
	for _, c := range cases {
		got, err := call.Resolve(c.webhook)
		switch {
		case c.fails == "" && (err != nil || got != c.want):
			t.Errorf("%s: %+v, %v", c.reason, got, err)
		case c.fails != "" && (err == nil || !strings.Contains(err.Error(), c.fails) || strings.Contains(err.Error(), "secret")):
			t.Errorf("%s: error is %v", c.reason, err)
		}
	}
}

func newCaller(t *testing.T, pool *call.Pool, address string, timeout time.Duration) *call.Caller {
	t.Helper()
	identity := call.Identity{Hook: "sync", ControllerKind: "CompositeController", ControllerName: "things"}
	caller, err := pool.Caller(identity, &v1alpha1.Webhook{URL: &address, Timeout: &metav1.Duration{Duration: timeout}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(caller.Close)
	return caller
}

func serve(t *testing.T, handler http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	return server
}

func TestCall(t *testing.T) {
	now := time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)
	status := func(code int, body string, headers ...string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			for i := 0; i < len(headers); i += 2 {
				w.Header().Set(headers[i], headers[i+1])
			}
			w.WriteHeader(code)
			_, _ = io.WriteString(w, body)
		}
	}
	busy := func(header string) http.HandlerFunc {
		return status(http.StatusTooManyRequests, "", "Retry-After", header)
	}
	cases := []struct {
		reason  string
		handler http.HandlerFunc
		// want is the error with its fields; nil means that the answer is ok.
		want error
	}{
		{"an answer", status(200, "ok"), nil},
		{"another good status", status(201, "made"), &call.StatusError{Code: 201, Excerpt: "made"}},
		{"an error status", status(500, "  boom\n\tat line 1 "), &call.StatusError{Code: 500, Excerpt: "boom at line 1"}},
		{"no content", status(204, ""), &call.StatusError{Code: 204}},
		{"304 that nobody asked for", status(304, "", "ETag", `"1"`), &call.StatusError{Code: 304}},
		{"412 that nobody asked for", status(412, "old", "ETag", `"1"`), &call.StatusError{Code: 412, Excerpt: "old"}},
		{"busy, seconds", busy("7"), &call.BusyError{After: 7 * time.Second}},
		{"busy, a date", busy("Wed, 02 Jan 2030 03:04:15 GMT"), &call.BusyError{After: 10 * time.Second}},
		{"busy, a date that is over", busy("Wed, 02 Jan 2030 03:04:00 GMT"), &call.BusyError{}},
		{"busy, nothing said", busy(""), &call.BusyError{}},
		{"busy, zero", busy("0"), &call.BusyError{}},
		{"busy, negative", busy("-3"), &call.BusyError{}},
		{"busy, nonsense", busy("soon"), &call.BusyError{}},
		{"busy, for a day", busy("86400"), &call.BusyError{After: 24 * time.Hour}},
		{"busy, for ever", busy("99999999999"), &call.BusyError{}},
		{"busy, a negative number that would wrap around", busy("-9223372036854775808"), &call.BusyError{}},
		{"busy, more than any number", busy("99999999999999999999"), &call.BusyError{}},
		{"busy, until another century", busy("Wed, 02 Jan 2130 03:04:15 GMT"), &call.BusyError{}},
	}
	for _, c := range cases {
		t.Run(c.reason, func(t *testing.T) {
			server := serve(t, c.handler)
			pool := call.NewPool(prometheus.NewRegistry(), nil, clocktesting.NewFakeClock(now))
			answer, err := newCaller(t, pool, server.URL, time.Minute).Call(t.Context(), "", []byte("{}"))
			if c.want == nil {
				if err != nil || string(answer) != "ok" {
					t.Fatalf("%q, %v", answer, err)
				}
				return
			}
			if fmt.Sprintf("%T %+v", err, err) != fmt.Sprintf("%T %+v", c.want, c.want) {
				t.Errorf("%T %v, not %T %v", err, err, c.want, c.want)
			}
		})
	}
}

func TestCallSendsThis(t *testing.T) {
	got := make(chan *http.Request, 1)
	body := make(chan string, 1)
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		read, _ := io.ReadAll(r.Body)
		got <- r
		body <- string(read)
	})
	pool := call.NewPool(prometheus.NewRegistry(), nil, clock.RealClock{})
	if _, err := newCaller(t, pool, server.URL+"/sync?a=b", time.Minute).Call(t.Context(), "", []byte(`{"a":1}`)); err != nil {
		t.Fatal(err)
	}
	request := <-got
	if request.Method != http.MethodPost || request.URL.String() != "/sync?a=b" || request.Header.Get("Content-Type") != "application/json" {
		t.Errorf("%s %s with %v", request.Method, request.URL, request.Header)
	}
	if sent := <-body; sent != `{"a":1}` {
		t.Errorf("body is %s", sent)
	}
}

func TestCallThatFails(t *testing.T) {
	pool := call.NewPool(prometheus.NewRegistry(), nil, clock.RealClock{})
	t.Run("slow to answer", func(t *testing.T) {
		server := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		_, err := newCaller(t, pool, server.URL, 30*time.Millisecond).Call(t.Context(), "", nil)
		var timeout *call.TimeoutError
		if !errors.As(err, &timeout) || timeout.Timeout != 30*time.Millisecond {
			t.Errorf("%T %v", err, err)
		}
	})
	t.Run("slow in the middle", func(t *testing.T) {
		server := serve(t, func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, `{"children":[`)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		})
		_, err := newCaller(t, pool, server.URL, 100*time.Millisecond).Call(t.Context(), "", nil)
		var timeout *call.TimeoutError
		if !errors.As(err, &timeout) {
			t.Errorf("%T %v", err, err)
		}
	})
	t.Run("truncated", func(t *testing.T) {
		server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			_, _ = io.WriteString(w, "short")
		})
		_, err := newCaller(t, pool, server.URL, time.Minute).Call(t.Context(), "", nil)
		var truncated *call.TruncatedError
		if !errors.As(err, &truncated) || truncated.Read != 5 {
			t.Errorf("%T %v", err, err)
		}
	})
	for _, announced := range []bool{true, false} {
		t.Run(fmt.Sprintf("too large, announced %v", announced), func(t *testing.T) {
			server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
				if announced {
					w.Header().Set("Content-Length", fmt.Sprint(call.ResponseLimit+1))
				}
				block := make([]byte, 1<<20)
				for range call.ResponseLimit>>20 + 1 {
					if _, err := w.Write(block); err != nil {
						return
					}
				}
			})
			_, err := newCaller(t, pool, server.URL, time.Minute).Call(t.Context(), "", nil)
			var tooLarge *call.TooLargeError
			if !errors.As(err, &tooLarge) {
				t.Errorf("%T %v", err, err)
			}
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		server := httptest.NewServer(nil)
		server.Close()
		address := strings.Replace(server.URL, "http://", "http://user:secret@", 1)
		_, err := newCaller(t, pool, address, time.Minute).Call(t.Context(), "", nil)
		var network *call.NetworkError
		if !errors.As(err, &network) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%T %v", err, err)
		}
	})
	t.Run("stopped", func(t *testing.T) {
		server := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		if _, err := newCaller(t, pool, server.URL, time.Minute).Call(ctx, "", nil); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%T %v", err, err)
		}
	})
}

func TestExcerptHidesSecrets(t *testing.T) {
	cases := []struct{ body, secret string }{
		{`{"password": "hunter2", "message": "m"}`, "hunter2"},
		{`db_password=hunter2; next`, "hunter2"},
		{`Authorization: Bearer abcdefgh12345`, "abcdefgh12345"},
		{`token eyJhbGciOi.eyJzdWIi.c2lnbmF0dXJl end`, "eyJzdWIi"},
		{"-----BEGIN PRIVATE KEY-----\nMIIE\n-----END PRIVATE KEY-----", "MIIE"},
		{"-----BEGIN PRIVATE KEY-----\nMIIE that is cut", "MIIE"},
		{`'apiKey': 'k-123'`, "k-123"},
	}
	for _, c := range cases {
		server := serve(t, func(w http.ResponseWriter, _ *http.Request) { http.Error(w, c.body, http.StatusInternalServerError) })
		pool := call.NewPool(prometheus.NewRegistry(), nil, clock.RealClock{})
		_, err := newCaller(t, pool, server.URL, time.Minute).Call(t.Context(), "", nil)
		if err == nil || strings.Contains(err.Error(), c.secret) || !strings.Contains(err.Error(), "[redacted]") {
			t.Errorf("%q gives %v", c.body, err)
		}
	}
	server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		http.Error(w, strings.Repeat("ü", 5000), http.StatusInternalServerError)
	})
	pool := call.NewPool(prometheus.NewRegistry(), nil, clock.RealClock{})
	_, err := newCaller(t, pool, server.URL, time.Minute).Call(t.Context(), "", nil)
	if len(err.Error()) > 300 || !strings.HasSuffix(err.Error(), "ü …") {
		t.Errorf("long body gives %q", err)
	}
}

func TestMetricsComeAndGo(t *testing.T) {
	server := serve(t, func(http.ResponseWriter, *http.Request) {})
	registry := prometheus.NewRegistry()
	pool := call.NewPool(registry, nil, clock.RealClock{})
	address := strings.Replace(server.URL, "http://", "http://user:secret@", 1) + "/x?token=1"
	caller := func(kind string) *call.Caller {
		made, err := pool.Caller(call.Identity{Hook: "sync", ControllerKind: kind, ControllerName: "a"}, &v1alpha1.Webhook{URL: &address}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	old, replacement, twin := caller("CompositeController"), caller("CompositeController"), caller("DecoratorController")
	for _, one := range []*call.Caller{old, replacement, twin} {
		if _, err := one.Call(t.Context(), "", nil); err != nil {
			t.Fatal(err)
		}
	}
	series := func(kind string, n int) string {
		return fmt.Sprintf("metacontroller_sync_requests_total{code=\"200\",controller_name=\"a\",controller_type=%q,method=\"post\",url=\"%s/x\"} %d\n", kind, server.URL, n)
	}
	const header = "# HELP metacontroller_sync_requests_total Calls of the hook that got an answer.\n# TYPE metacontroller_sync_requests_total counter\n"
	check := func(want string) {
		t.Helper()
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "metacontroller_sync_requests_total"); err != nil {
			t.Error(err)
		}
	}
	check(header + series("CompositeController", 2) + series("DecoratorController", 1))
	old.Close()
	old.Close()
	check(header + series("CompositeController", 2) + series("DecoratorController", 1))
	replacement.Close()
	check(header + series("DecoratorController", 1))
	twin.Close()
	if families, err := registry.Gather(); err != nil || len(families) != 0 {
		t.Errorf("%v are left, %v", families, err)
	}
}

// TestSilentConnections has a server that moved: nobody is at the other end of the
// connections that are kept alive. A call that was in vain drops all of them.
func TestSilentConnections(t *testing.T) {
	const connections = 4
	var silent atomic.Bool
	var waiting sync.WaitGroup
	waiting.Add(connections)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if silent.Load() && r.Context().Value(oldConnection{}) == true {
			<-r.Context().Done()
			return
		}
		if !silent.Load() {
			// All of them at once, so that each has a connection.
			waiting.Done()
			waiting.Wait()
		}
	}))
	server.Config.ConnContext = func(ctx context.Context, _ net.Conn) context.Context {
		return context.WithValue(ctx, oldConnection{}, !silent.Load())
	}
	server.Start()
	t.Cleanup(server.Close)
	pool := call.NewPool(prometheus.NewRegistry(), nil, clock.RealClock{})
	caller := newCaller(t, pool, server.URL, time.Second)
	var calls sync.WaitGroup
	for range connections {
		calls.Go(func() {
			if _, err := caller.Call(t.Context(), "", nil); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	silent.Store(true)
	_, err := caller.Call(t.Context(), "", nil)
	var late *call.TimeoutError
	if !errors.As(err, &late) {
		t.Errorf("%T %v", err, err)
	}
	if _, err := caller.Call(t.Context(), "", nil); err != nil {
		t.Errorf("after one call in vain: %v", err)
	}
}

// oldConnection is the key of whether a connection is from before the move.
type oldConnection struct{}

// No deadline of a call ends a read after an upgrade, so nothing is read.
func TestUpgradeThatNobodyAskedFor(t *testing.T) {
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Connection", "Upgrade")
		w.Header().Set("Upgrade", "x")
		w.WriteHeader(http.StatusSwitchingProtocols)
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		_, _ = io.Copy(io.Discard, conn)
	})
	pool := call.NewPool(prometheus.NewRegistry(), nil, clock.RealClock{})
	_, err := newCaller(t, pool, server.URL, time.Second).Call(t.Context(), "", nil)
	var status *call.StatusError
	if !errors.As(err, &status) || status.Code != http.StatusSwitchingProtocols {
		t.Errorf("%T %v", err, err)
	}
}

// Answers of all sizes around those at which the reading changes arrive whole.
func TestSizesOfAnswers(t *testing.T) {
	pool := call.NewPool(prometheus.NewRegistry(), nil, clock.RealClock{})
	for _, announced := range []bool{true, false} {
		var body []byte
		server := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			if announced {
				w.Header().Set("Content-Length", fmt.Sprint(len(body)))
			}
			for rest := body; len(rest) > 0; {
				n := min(len(rest), 100_000)
				_, _ = w.Write(rest[:n])
				rest = rest[n:]
			}
		})
		caller := newCaller(t, pool, server.URL, time.Minute)
		for _, size := range []int{1, 4 << 10, 4<<10 + 1, 1<<20 - 1, 1 << 20, 1<<20 + 1, 5 << 20, call.ResponseLimit - 1, call.ResponseLimit, call.ResponseLimit + 1} {
			body = bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
			answer, err := caller.Call(t.Context(), "", nil)
			if fits := size <= call.ResponseLimit; fits != (err == nil) || fits && !bytes.Equal(answer, body) {
				t.Errorf("announced %v: %d of %d bytes, %v", announced, len(answer), size, err)
			}
		}
	}
}

// A server may close a kept-alive connection just when the next call goes out by
// it. That is nobody's fault, and nobody hears of it.
func TestConnectionThatWasClosedMeanwhile(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var calls atomic.Int32
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				in := bufio.NewReader(conn)
				for first := true; ; first = false {
					request, err := http.ReadRequest(in)
					if err != nil {
						return
					}
					if _, sent := request.Header["Idempotency-Key"]; sent {
						t.Error("the header is sent")
					}
					body, err := io.ReadAll(request.Body)
					if err != nil || !first {
						return // without an answer
					}
					calls.Add(1)
					_, _ = fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
				}
			}()
		}
	}()
	pool := call.NewPool(prometheus.NewRegistry(), nil, clock.RealClock{})
	caller := newCaller(t, pool, "http://"+listener.Addr().String(), time.Minute)
	for i := range 3 {
		body := fmt.Sprint("call ", i)
		if answer, err := caller.Call(t.Context(), "", []byte(body)); err != nil || string(answer) != body {
			t.Errorf("%s: %q, %v", body, answer, err)
		}
	}
	if got := calls.Load(); got != 3 {
		t.Errorf("%d calls were answered", got)
	}
}
