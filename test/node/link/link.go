// Package link is the wire between a node and the API server, as a TCP pass-through that can be cut.
//
//	kubelet client, Pods' clients ──> Link (loopback, port of its own) ──> API server
//
// Bytes pass untouched, so TLS stays end to end. Cut ends every connection in flight and treats new ones as
// a network partition would; Heal lets new ones through again. Nothing on either side is told.
package link

import (
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Mode says how a cut Link treats a new connection.
type Mode int

const (
	// Refuse resets each new connection at once, like a host whose port is closed.
	Refuse Mode = iota + 1
	// BlackHole accepts each new connection and never answers, like a network that drops packets: the caller
	// runs into its own time limit. Heal resets the connections held so, for they have lost bytes.
	BlackHole
)

// dialTimeout bounds the connection to the target, which is on the same machine.
const dialTimeout = 5 * time.Second

// Link passes TCP connections to one target. It is made by Listen and ended by Close.
type Link struct {
	listener net.Listener
	target   string
	running  sync.WaitGroup

	// mu guards cut, closed and conns.
	mu     sync.Mutex
	cut    Mode
	closed bool
	conns  map[net.Conn]struct{}
}

// Listen starts a Link that listens on address ("127.0.0.1:0" takes a free port) and passes to target.
func Listen(address, target string) (*Link, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("cannot listen for the link to %q: %w", target, err)
	}
	l := &Link{listener: listener, target: target, conns: map[net.Conn]struct{}{}}
	l.running.Go(l.accept)
	return l, nil
}

// Addr is the address that clients connect to.
func (l *Link) Addr() string { return l.listener.Addr().String() }

// Cut ends every connection and treats new ones by mode until Heal. Cutting a cut Link changes its mode.
func (l *Link) Cut(mode Mode) {
	l.mu.Lock()
	l.cut = mode
	l.mu.Unlock()
	l.reset()
}

// Heal lets new connections through again.
func (l *Link) Heal() {
	l.mu.Lock()
	l.cut = 0
	l.mu.Unlock()
	l.reset()
}

// IsCut reports whether the Link is cut.
func (l *Link) IsCut() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cut != 0
}

// Close stops listening, ends every connection and returns when the Link holds no goroutine any more.
func (l *Link) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	_ = l.listener.Close()
	l.reset()
	l.running.Wait()
}

// reset ends all connections that the Link holds; their goroutines see it and leave.
func (l *Link) reset() {
	l.mu.Lock()
	conns := make([]net.Conn, 0, len(l.conns))
	for conn := range l.conns {
		conns = append(conns, conn)
	}
	l.mu.Unlock()
	for _, conn := range conns {
		Abort(conn)
	}
}

func (l *Link) accept() {
	for {
		conn, err := l.listener.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return
			}
			// Out of file descriptors or a connection that was reset before it was accepted: the next may do.
			time.Sleep(10 * time.Millisecond)
			continue
		}
		l.running.Go(func() { l.serve(conn) })
	}
}

// serve lives as long as the connection.
func (l *Link) serve(client net.Conn) {
	defer Abort(client)
	mode, ok := l.hold(client)
	if !ok {
		return
	}
	defer l.release(client)
	if mode == BlackHole {
		// Reading without ever answering also notices the client's own leaving.
		_, _ = io.Copy(io.Discard, client)
		return
	}
	server, err := net.DialTimeout("tcp", l.target, dialTimeout)
	if err != nil {
		return
	}
	defer Abort(server)
	// A cut during the dial must not leave this connection alive: the mode is looked at again with the hold.
	if mode, ok := l.hold(server); !ok || mode != 0 {
		l.release(server)
		return
	}
	defer l.release(server)
	Join(client, server)
}

// hold registers conn for the next reset and returns the mode in force. It is false when new connections are refused.
func (l *Link) hold(conn net.Conn) (Mode, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.cut == Refuse {
		return l.cut, false
	}
	l.conns[conn] = struct{}{}
	return l.cut, true
}

func (l *Link) release(conn net.Conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.conns, conn)
}

// Join passes bytes between two connections until both directions have ended.
func Join(a, b net.Conn) {
	var up sync.WaitGroup
	up.Go(func() { pass(b, a) })
	pass(a, b)
	up.Wait()
}

// pass copies one direction and hands on the end of the stream, so that a half-closed connection still works. A
// broken direction ends both.
func pass(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil {
		Abort(to)
		Abort(from)
		return
	}
	if half, ok := to.(*net.TCPConn); ok {
		_ = half.CloseWrite()
	}
}

// Abort closes with a reset, so that the peer learns at once that its bytes are lost.
func Abort(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}
