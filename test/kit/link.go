package kit

import (
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

// Link stands on the way of TCP connections from one program to another, and can
// make what comes back late or cut it:
//
//	client ──> Link ──> target
//	       <── delay ──
//
// Its methods can be called from several goroutines.
type Link struct {
	listener net.Listener

	mu     sync.Mutex // guards all below
	target string
	delay  time.Duration
	open   map[net.Conn]struct{}
	closed bool
}

// linkQueue bounds what is on its way back in one connection, in pieces of up to
// linkPiece bytes.
const (
	linkQueue = 4096
	linkPiece = 32 << 10
)

// NewLink listens on a loopback port of its own. It leads nowhere until To says
// where.
func NewLink() (*Link, error) {
	listener, err := net.Listen("tcp", net.JoinHostPort(loopback, "0"))
	if err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	l := &Link{listener: listener, open: map[net.Conn]struct{}{}}
	go l.accept()
	return l, nil
}

// Address is where the Link listens.
func (l *Link) Address() string { return l.listener.Addr().String() }

// To makes new connections go to an address ("host:port").
func (l *Link) To(target string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.target = target
}

// Delay makes what the target sends arrive that much later, from now on. What is
// under way keeps its time; the order of bytes stays.
func (l *Link) Delay(delay time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.delay = delay
}

// Cut resets all connections; new ones are accepted.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for conn := range l.open {
		reset(conn)
	}
}

// Close ends the Link and all of its connections.
func (l *Link) Close() {
	_ = l.listener.Close()
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.Cut()
}

// reset closes a connection so that its other end gets an error, not an end.
func reset(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

func (l *Link) accept() {
	for {
		client, err := l.listener.Accept()
		if err != nil {
			return
		}
		go l.forward(client)
	}
}

func (l *Link) forward(client net.Conn) {
	l.mu.Lock()
	target := l.target
	l.mu.Unlock()
	server, err := net.DialTimeout("tcp", target, 5*time.Second)
	if err != nil {
		reset(client)
		return
	}
	l.mu.Lock()
	closed := l.closed
	l.open[client], l.open[server] = struct{}{}, struct{}{}
	l.mu.Unlock()
	if closed {
		l.Cut()
	}
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
	})
	both.Go(func() {
		l.late(client, server)
		_ = client.Close()
	})
	both.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, client)
	delete(l.open, server)
}

// late copies with the delay that holds when a piece comes in.
func (l *Link) late(to, from net.Conn) {
	type piece struct {
		bytes []byte
		due   time.Time
	}
	way := make(chan piece, linkQueue)
	go func() {
		defer close(way)
		for {
			buf := make([]byte, linkPiece)
			n, err := from.Read(buf)
			if n > 0 {
				l.mu.Lock()
				due := time.Now().Add(l.delay)
				l.mu.Unlock()
				way <- piece{buf[:n], due}
			}
			if err != nil {
				return
			}
		}
	}()
	failed := false
	for next := range way {
		if failed {
			continue // the reader must not wait for ever
		}
		time.Sleep(time.Until(next.due))
		if _, err := to.Write(next.bytes); err != nil {
			failed = true
			_ = from.Close()
		}
	}
}
