package javascript

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/dop251/goja"
)

const (
	// maxBody bounds the body of a request, in bytes.
	maxBody = 64 << 20
	// readLimit bounds the time that a request may take to come in.
	readLimit = 30 * time.Second
	// keepAlive is how long node keeps an idle connection unless the program
	// sets keepAliveTimeout.
	keepAlive = 5 * time.Second
)

// http is the module of that name: createServer.
func (p *program) http() *goja.Object {
	return p.object(map[string]any{
		"createServer": func(call goja.FunctionCall) goja.Value {
			return (&server{p: p, handler: p.function(call, 0)}).object()
		},
	})
}

// server is what createServer returns. It belongs to the program's goroutine.
type server struct {
	p       *program
	handler goja.Callable
	self    *goja.Object
	http    *http.Server
	address net.Addr
	onError goja.Callable
}

func (s *server) object() *goja.Object {
	s.self = s.p.object(map[string]any{
		"keepAliveTimeout": keepAlive.Milliseconds(),
		"listen":           s.listen,
		"close":            s.close,
		"on": func(call goja.FunctionCall) goja.Value {
			if event := call.Argument(0).String(); event != "error" {
				s.p.throw(fmt.Errorf("a server has no event %q here", event))
			}
			s.onError = s.p.function(call, 1)
			return s.self
		},
		"address": func() any {
			tcp, ok := s.address.(*net.TCPAddr)
			if !ok {
				return nil
			}
			return map[string]any{"address": tcp.IP.String(), "port": tcp.Port}
		},
	})
	return s.self
}

// listen takes a port, a host or undefined, and a function or undefined.
func (s *server) listen(call goja.FunctionCall) goja.Value {
	p := s.p
	host, ready := "", goja.Callable(nil)
	for _, argument := range call.Arguments[min(1, len(call.Arguments)):] {
		if f, ok := goja.AssertFunction(argument); ok {
			ready = f
		} else if !goja.IsUndefined(argument) {
			host = argument.String()
		}
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, strconv.FormatInt(call.Argument(0).ToInteger(), 10)))
	if err != nil {
		if s.onError == nil {
			p.throw(err)
		}
		p.call(s.onError, p.vm.NewGoError(err))
		return s.self
	}
	s.address = listener.Addr()
	running := &http.Server{
		Handler:           http.HandlerFunc(s.serve),
		ReadHeaderTimeout: readLimit,
		ReadTimeout:       readLimit,
		IdleTimeout:       time.Duration(s.self.Get("keepAliveTimeout").ToInteger()) * time.Millisecond,
	}
	s.http = running
	p.pending++
	p.stops = append(p.stops, func() { _ = running.Close() })
	go func() { _ = running.Serve(listener) }()
	if ready != nil {
		// As in node it is called later, when the caller is through.
		go p.post(func() { p.call(ready) })
	}
	return s.self
}

// close lets the requests under way end, and calls its function then.
func (s *server) close(call goja.FunctionCall) goja.Value {
	if s.http == nil {
		s.p.throw(errors.New("the server does not listen"))
	}
	closed, _ := goja.AssertFunction(call.Argument(0))
	running := s.http
	s.http = nil
	go func() {
		// It ends with the program at the latest: its stops close the connections.
		_ = running.Shutdown(context.Background())
		s.p.post(func() {
			s.p.pending--
			if closed != nil {
				s.p.call(closed)
			}
		})
	}()
	return s.self
}

// serve is called in a goroutine of the request's own. It reads the body, hands
// the rest to the program and waits for the answer.
func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusRequestEntityTooLarge)
		return
	}
	answer := &response{p: s.p, code: http.StatusOK, headers: http.Header{}, ended: make(chan struct{})}
	if !s.p.post(func() { s.handle(r, string(body), answer) }) {
		panic(http.ErrAbortHandler)
	}
	select {
	case <-answer.ended:
	case <-r.Context().Done():
		return
	case <-s.p.done:
		panic(http.ErrAbortHandler)
	}
	if answer.aborted {
		panic(http.ErrAbortHandler)
	}
	for name, values := range answer.headers {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.code)
	_, _ = io.WriteString(w, answer.body.String())
}

// handle calls the server's function, and then those that wait for the body.
func (s *server) handle(r *http.Request, body string, answer *response) {
	p := s.p
	var onData, onEnd []goja.Callable
	encoding := ""
	headers := map[string]any{"host": r.Host}
	for name, values := range r.Header {
		headers[strings.ToLower(name)] = strings.Join(values, ", ")
	}
	request := p.object(map[string]any{
		"method":  r.Method,
		"url":     r.URL.RequestURI(),
		"headers": p.object(headers),
	})
	for name, function := range map[string]any{
		"setEncoding": func(name string) *goja.Object { encoding = name; return request },
		"resume":      func() *goja.Object { return request },
		"destroy":     func() { answer.aborted = true; answer.finish() },
		"on": func(call goja.FunctionCall) goja.Value {
			switch event := call.Argument(0).String(); event {
			case "data":
				onData = append(onData, p.function(call, 1))
			case "end":
				onEnd = append(onEnd, p.function(call, 1))
			case "error", "close":
			default:
				p.throw(fmt.Errorf("a request has no event %q here", event))
			}
			return request
		},
	} {
		_ = request.Set(name, function)
	}
	p.call(s.handler, request, answer.object())
	if len(onData) > 0 && encoding != "utf8" {
		p.try(func() error { return errors.New(`a request's body is text only: call setEncoding("utf8")`) })
	}
	for _, f := range onData {
		if body != "" {
			p.call(f, body)
		}
	}
	for _, f := range onEnd {
		p.call(f)
	}
}

// response is what the program writes. It belongs to the program's goroutine
// until ended is closed, and to the request's after that.
type response struct {
	p       *program
	code    int
	headers http.Header
	body    strings.Builder
	aborted bool
	ended   chan struct{}
	over    bool
}

func (r *response) finish() {
	if !r.over {
		r.over = true
		close(r.ended)
	}
}

func (r *response) object() *goja.Object {
	self := r.p.vm.NewObject()
	write := func(chunk goja.Value) {
		if !r.over && !goja.IsUndefined(chunk) {
			r.body.WriteString(chunk.String())
		}
	}
	for name, function := range map[string]any{
		"setHeader": func(name, value string) *goja.Object {
			if !r.over {
				r.headers.Set(name, value)
			}
			return self
		},
		"writeHead": func(call goja.FunctionCall) goja.Value {
			if r.over {
				return self
			}
			r.code = int(call.Argument(0).ToInteger())
			if headers, ok := call.Argument(1).(*goja.Object); ok {
				for _, name := range headers.Keys() {
					r.headers.Set(name, headers.Get(name).String())
				}
			}
			return self
		},
		"write": func(call goja.FunctionCall) goja.Value {
			write(call.Argument(0))
			return r.p.vm.ToValue(true)
		},
		"end": func(call goja.FunctionCall) goja.Value {
			write(call.Argument(0))
			r.finish()
			return self
		},
	} {
		_ = self.Set(name, function)
	}
	return self
}
