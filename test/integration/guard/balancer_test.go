package guard_test

import (
	"io"
	"net"
	"slices"
	"sync"
	"testing"
)

// balancer stands for the Service in front of the guards: it gives each new
// connection to the target that has the fewest and answers, in turn where they
// have the same. An API server keeps one connection for all that it asks.
type balancer struct {
	listener net.Listener

	// mutex guards the fields below.
	mutex   sync.Mutex
	turn    int
	targets []string
	load    map[string]int
	open    map[net.Conn]struct{}
}

func newBalancer(t testing.TB) *balancer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{listener: listener, load: map[string]int{}, open: map[net.Conn]struct{}{}}
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

// order is the targets, the one to try first at the front.
func (b *balancer) order() []string {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if len(b.targets) == 0 {
		return nil
	}
	b.turn++
	turned := append(slices.Clone(b.targets[b.turn%len(b.targets):]), b.targets[:b.turn%len(b.targets)]...)
	slices.SortStableFunc(turned, func(x, y string) int { return b.load[x] - b.load[y] })
	return turned
}

func (b *balancer) count(target string, change int) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.load[target] += change
}

func (b *balancer) forward(client net.Conn) {
	defer client.Close()
	var server net.Conn
	for _, target := range b.order() {
		b.count(target, 1)
		defer b.count(target, -1)
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
