package kit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	hookBodyLimit  = 64 << 20
	hookHeaderTime = 10 * time.Second
	jsonType       = "application/json"
)

// HookRequest is a request that a hook server got.
type HookRequest struct {
	Method string
	Path   string
	Header http.Header
	Body   json.RawMessage
	// At is when the body was read.
	At time.Time
}

// Decode decodes the request's body.
func (r HookRequest) Decode(into any) error {
	if err := json.Unmarshal(r.Body, into); err != nil {
		return fmt.Errorf("cannot decode the body of a request to %q: %w", r.Path, err)
	}
	return nil
}

// Hook answers a request. It may be called by several requests at once.
type Hook func(w http.ResponseWriter, r *http.Request, request HookRequest)

// HookServer is an HTTP server of hooks for tests, on loopback. It records what it
// is asked. Its methods can be called from several goroutines.
type HookServer struct {
	t       testing.TB
	address string

	mu       sync.Mutex // guards all below
	hooks    map[string]Hook
	requests []HookRequest
	changed  chan struct{} // closed by the next request
	server   *http.Server  // nil while down
	served   chan struct{} // closed when server has ended
}

// NewHookServer starts a hook server that ends with the test. A path without hook
// answers 404.
func NewHookServer(t testing.TB) *HookServer {
	t.Helper()
	s := &HookServer{t: t, hooks: map[string]Hook{}, changed: make(chan struct{})}
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	s.address = address(port)
	s.Up()
	t.Cleanup(s.Down)
	return s
}

// URL is the address of a path, which begins with a slash.
func (s *HookServer) URL(path string) string { return "http://" + s.address + path }

// Handle makes a hook answer a path, from the next request on.
func (s *HookServer) Handle(path string, hook Hook) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hooks[path] = hook
}

// Down stops the server: connections are refused, open ones are cut.
func (s *HookServer) Down() {
	s.mu.Lock()
	server, served := s.server, s.served
	s.server = nil
	s.mu.Unlock()
	if server == nil {
		return
	}
	_ = server.Close() // of the listener; there is nothing to do about it
	<-served
}

// Up starts the server again, on the same address.
func (s *HookServer) Up() {
	s.t.Helper()
	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		s.t.Fatalf("cannot start the hook server: %v", err)
	}
	server := &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ReadHeaderTimeout: hookHeaderTime,
		ErrorLog:          log.New(io.Discard, "", 0), // faults are wanted here
	}
	served := make(chan struct{})
	s.mu.Lock()
	s.server, s.served = server, served
	s.mu.Unlock()
	go func() {
		defer close(served)
		_ = server.Serve(listener) // ends by Down
	}()
}

func (s *HookServer) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, hookBodyLimit))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	request := HookRequest{Method: r.Method, Path: r.URL.Path, Header: r.Header.Clone(), Body: body, At: time.Now()}
	s.mu.Lock()
	s.requests = append(s.requests, request)
	close(s.changed)
	s.changed = make(chan struct{})
	hook := s.hooks[r.URL.Path]
	s.mu.Unlock()
	if hook == nil {
		http.NotFound(w, r)
		return
	}
	hook(w, r, request)
}

// Requests returns the requests to a path so far, oldest first.
func (s *HookServer) Requests(path string) []HookRequest {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.requestsLocked(path)
}

func (s *HookServer) requestsLocked(path string) []HookRequest {
	return slices.DeleteFunc(slices.Clone(s.requests), func(r HookRequest) bool { return r.Path != path })
}

// Forget removes all requests from the record.
func (s *HookServer) Forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests = nil
}

// WaitRequests waits until there were at least n requests to a path, and returns
// them all. The test fails after timeout.
func (s *HookServer) WaitRequests(timeout time.Duration, path string, n int) []HookRequest {
	s.t.Helper()
	limit := time.NewTimer(timeout)
	defer limit.Stop()
	for {
		s.mu.Lock()
		requests, changed := s.requestsLocked(path), s.changed
		s.mu.Unlock()
		if len(requests) >= n {
			return requests
		}
		select {
		case <-changed:
		case <-limit.C:
			s.t.Fatalf("%s got %d requests within %s, not %d", path, len(requests), timeout, n)
		}
	}
}

// JSON is a hook from a function of the decoded request to the response. A request
// that does not decode is answered 400, an error 500.
func JSON[In, Out any](f func(In) (Out, error)) Hook {
	return func(w http.ResponseWriter, _ *http.Request, request HookRequest) {
		var in In
		if err := request.Decode(&in); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		out, err := f(in)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		body, err := json.Marshal(out)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		answer(w, http.StatusOK, jsonType, body)
	}
}

func answer(w http.ResponseWriter, code int, contentType string, body []byte) {
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(code)
	_, _ = w.Write(body) // whoever asked may be gone
}

// Status is a hook that answers with a code, a body and headers ("Key: value").
func Status(code int, body string, headers ...string) Hook {
	return func(w http.ResponseWriter, _ *http.Request, _ HookRequest) {
		for _, header := range headers {
			key, value, _ := strings.Cut(header, ":")
			w.Header().Add(key, strings.TrimSpace(value))
		}
		answer(w, code, "text/plain", []byte(body))
	}
}

// HTML is a hook that answers 200 with a page, like a proxy that wants a login.
func HTML() Hook {
	return func(w http.ResponseWriter, _ *http.Request, _ HookRequest) {
		answer(w, http.StatusOK, "text/html; charset=utf-8", []byte("<!DOCTYPE html><html><body><h1>Sign in</h1></body></html>"))
	}
}

// Malformed is a hook that answers 200 with JSON that ends in the middle, whole by
// its Content-Length.
func Malformed() Hook {
	return func(w http.ResponseWriter, _ *http.Request, _ HookRequest) {
		answer(w, http.StatusOK, jsonType, []byte(`{"status":{"replicas":`))
	}
}

// Truncated is a hook whose answer breaks off before its announced length.
func Truncated() Hook {
	return func(w http.ResponseWriter, _ *http.Request, _ HookRequest) {
		w.Header().Set("Content-Length", "4096")
		answer(w, http.StatusOK, jsonType, []byte(`{"status":{"replicas":`))
		_ = http.NewResponseController(w).Flush() // what was written is to arrive
		panic(http.ErrAbortHandler)
	}
}

// Huge is a hook that answers with valid JSON of at least size bytes, in chunks.
func Huge(size int64) Hook {
	return func(w http.ResponseWriter, _ *http.Request, _ HookRequest) {
		w.Header().Set("Content-Type", jsonType)
		chunk := bytes.Repeat([]byte("x"), 64<<10)
		if _, err := io.WriteString(w, `{"status":{"filler":"`); err != nil {
			return
		}
		for sent := int64(0); sent < size; sent += int64(len(chunk)) {
			if _, err := w.Write(chunk); err != nil {
				return // the client has had enough
			}
		}
		_, _ = io.WriteString(w, `"}}`)
	}
}

// Slow is a hook that waits before it answers as then does. It gives up when the
// client does.
func Slow(wait time.Duration, then Hook) Hook {
	return func(w http.ResponseWriter, r *http.Request, request HookRequest) {
		timer := time.NewTimer(wait)
		defer timer.Stop()
		select {
		case <-timer.C:
			then(w, r, request)
		case <-r.Context().Done():
		}
	}
}

// Stalled is a hook that never answers: it waits until the client gives up.
func Stalled() Hook {
	return func(_ http.ResponseWriter, r *http.Request, _ HookRequest) { <-r.Context().Done() }
}

// Held is a hook that waits until release is closed, or the client gives up,
// before it answers as then does.
func Held(release <-chan struct{}, then Hook) Hook {
	return func(w http.ResponseWriter, r *http.Request, request HookRequest) {
		select {
		case <-release:
			then(w, r, request)
		case <-r.Context().Done():
		}
	}
}

// Closed is a hook that closes the connection instead of an answer.
func Closed() Hook {
	return func(http.ResponseWriter, *http.Request, HookRequest) { panic(http.ErrAbortHandler) }
}

// Sequence is a hook that answers its n-th request as the n-th of hooks does, and
// all after them as the last does.
func Sequence(first Hook, rest ...Hook) Hook {
	var mu sync.Mutex // guards left
	left := append([]Hook{first}, rest...)
	return func(w http.ResponseWriter, r *http.Request, request HookRequest) {
		mu.Lock()
		hook := left[0]
		if len(left) > 1 {
			left = left[1:]
		}
		mu.Unlock()
		hook(w, r, request)
	}
}
