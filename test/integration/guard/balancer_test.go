package guard_test

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// balancer stands for the Service in front of the guards: it hands out
// connections in turn to the targets that answer.
type balancer struct {
	listener net.Listener
	next     atomic.Uint64

	// mutex guards the fields below.
	mutex   sync.Mutex
	targets []string
	open    map[net.Conn]struct{}
}

func newBalancer(t testing.TB) *balancer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{listener: listener, open: map[net.Conn]struct{}{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go b.forward(conn)
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
		b.reset()
	})
	return b
}

func (b *balancer) address() string { return b.listener.Addr().String() }

// point sets the targets and cuts what is open, as a changed Service does not:
// the API servers then connect again, to all of them in turn.
func (b *balancer) point(targets ...string) {
	b.mutex.Lock()
	b.targets = targets
	b.mutex.Unlock()
	b.reset()
}

// reset cuts all connections.
func (b *balancer) reset() {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	for conn := range b.open {
		_ = conn.Close()
	}
}

func (b *balancer) forward(client net.Conn) {
	defer client.Close()
	b.mutex.Lock()
	targets := b.targets
	b.mutex.Unlock()
	var server net.Conn
	for range targets {
		target := targets[b.next.Add(1)%uint64(len(targets))]
		conn, err := net.Dial("tcp", target)
		if err == nil {
			server = conn
			break
		}
	}
	if server == nil {
		return
	}
	defer server.Close()
	b.mutex.Lock()
	b.open[client], b.open[server] = struct{}{}, struct{}{}
	b.mutex.Unlock()
	defer func() {
		b.mutex.Lock()
		defer b.mutex.Unlock()
		delete(b.open, client)
		delete(b.open, server)
	}()
	go func() {
		_, _ = io.Copy(server, client)
		_ = server.Close()
		_ = client.Close()
	}()
	_, _ = io.Copy(client, server)
}
