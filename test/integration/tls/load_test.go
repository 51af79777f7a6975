package tls_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// forwarder stands for the Service in front of the guards: each connection goes to
// the next target that answers.
type forwarder struct {
	listener net.Listener

	mutex   sync.Mutex // guards the fields below
	targets []string
	turn    int
	open    map[*net.TCPConn]*link
}

// link is a connection that is forwarded.
type link struct {
	// asked says that a call was made on it.
	asked bool
	// done is closed when the API server has let go.
	done chan struct{}
}

func newForwarder(t testing.TB) *forwarder {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	f := &forwarder{listener: listener, open: map[*net.TCPConn]*link{}}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go f.forward(conn.(*net.TCPConn))
		}
	}()
	t.Cleanup(func() { _ = listener.Close() })
	return f
}

func (f *forwarder) address() string { return f.listener.Addr().String() }

// to sends new connections to targets.
func (f *forwarder) to(targets ...string) {
	f.mutex.Lock()
	defer f.mutex.Unlock()
	f.targets = targets
}

// reset makes the API servers connect again; it returns when they have let go.
// Nothing may be under way. A connection that was opened in vain, beside another,
// stays unless all are to go: Go's client lets the next call fail by its end.
func (f *forwarder) reset(all bool) {
	f.mutex.Lock()
	var closed []chan struct{}
	for conn, link := range f.open {
		if all || link.asked {
			_ = conn.CloseWrite()
			closed = append(closed, link.done)
		}
	}
	f.mutex.Unlock()
	for _, done := range closed {
		<-done
	}
}

func (f *forwarder) connect() *net.TCPConn {
	f.mutex.Lock()
	targets := append([]string(nil), f.targets...)
	f.turn++
	turn := f.turn
	f.mutex.Unlock()
	for i := range targets {
		if conn, err := net.Dial("tcp", targets[(turn+i)%len(targets)]); err == nil {
			return conn.(*net.TCPConn)
		}
	}
	return nil
}

func (f *forwarder) forward(client *net.TCPConn) {
	defer func() { _ = client.Close() }()
	server := f.connect()
	if server == nil {
		return
	}
	defer func() { _ = server.Close() }()
	current := &link{done: make(chan struct{})}
	defer close(current.done)
	f.mutex.Lock()
	f.open[client] = current
	f.mutex.Unlock()
	defer func() {
		f.mutex.Lock()
		defer f.mutex.Unlock()
		delete(f.open, client)
	}()
	go func() {
		_, _ = io.Copy(client, server)
		_ = client.CloseWrite()
	}()
	for {
		size, err := record(server, client)
		if err != nil {
			return
		}
		if size >= callSize {
			f.mutex.Lock()
			current.asked = true
			f.mutex.Unlock()
		}
	}
}

const (
	// recordHeader is how long the header of a TLS record is: its kind, a version
	// and the length of what follows.
	recordHeader = 5
	// recordData is the kind of those that are encrypted.
	recordData = 23
	// callSize is less than an AdmissionReview has, and more than what a client
	// without a certificate sends before it.
	callSize = 500
)

// record copies one TLS record and returns the size of what is encrypted in it.
func record(to io.Writer, from io.Reader) (int, error) {
	header := make([]byte, recordHeader)
	if _, err := io.ReadFull(from, header); err != nil {
		return 0, err
	}
	size := int(binary.BigEndian.Uint16(header[3:]))
	if _, err := io.CopyN(to, io.MultiReader(bytes.NewReader(header), from), int64(recordHeader+size)); err != nil {
		return 0, err
	}
	if header[0] != recordData {
		return 0, nil
	}
	return size, nil
}

const (
	// rate is how many calls a second all API servers together make of the guard.
	rate = 100
	// callersPerServer share an API server's part of it.
	callersPerServer = 5
	// reconnectEvery is how often every API server must connect anew: a connection
	// that lasts would hide what is served meanwhile.
	reconnectEvery = 300 * time.Millisecond
)

// load asks the guard through every API server, again and again.
type load struct {
	s      *suite
	cancel context.CancelFunc
	all    sync.WaitGroup
	began  time.Time

	// gate keeps calls from being under way while connections are closed.
	gate        sync.RWMutex
	answers     atomic.Int64
	connections atomic.Int64

	mutex  sync.Mutex // guards failed
	failed []error
}

func (s *suite) load() *load {
	s.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{s: s, cancel: cancel, began: time.Now()}
	for _, admin := range s.admins {
		for range callersPerServer {
			l.all.Go(func() {
				ticker := time.NewTicker(time.Second * time.Duration(len(s.admins)*callersPerServer) / rate)
				defer ticker.Stop()
				for {
					select {
					case <-ctx.Done():
						return
					case <-ticker.C:
					}
					l.gate.RLock()
					err := ask(context.Background(), admin)
					l.gate.RUnlock()
					if err != nil {
						l.mutex.Lock()
						l.failed = append(l.failed, fmt.Errorf("after %s: %w", time.Since(l.began).Round(time.Millisecond), err))
						l.mutex.Unlock()
						continue
					}
					l.answers.Add(1)
				}
			})
		}
	}
	l.all.Go(func() {
		ticker := time.NewTicker(reconnectEvery)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				l.gate.Lock()
				s.forwarder.reset(false)
				l.gate.Unlock()
				l.connections.Add(int64(len(s.admins)))
			}
		}
	})
	s.Cleanup(cancel)
	return l
}

func (l *load) failures() []error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	return append([]error(nil), l.failed...)
}

// more waits until that many further calls were answered.
func (l *load) more(calls int64) {
	l.s.Helper()
	until := l.answers.Load() + calls
	l.s.eventually(func() error {
		if n := l.answers.Load(); n < until {
			return fmt.Errorf("%d of %d calls answered, and failed: %v", n, until, l.failures())
		}
		return nil
	})
}

// stop ends the load and returns the calls that failed.
func (l *load) stop(what string) []error {
	l.s.Helper()
	l.cancel()
	l.all.Wait()
	took := time.Since(l.began)
	failed := l.failures()
	answers := l.answers.Load()
	l.s.Logf("%s: %d calls answered and %d failed in %s (%.0f/s), over %d connections",
		what, answers, len(failed), took.Round(time.Millisecond), float64(answers)/took.Seconds(), l.connections.Load())
	if answers == 0 {
		l.s.Errorf("%s: no call was answered", what)
	}
	return failed
}

// unharmed ends the load: no call may have failed.
func (l *load) unharmed(what string) {
	l.s.Helper()
	for _, err := range l.stop(what) {
		l.s.Errorf("%s: a call failed %v", what, err)
	}
}
