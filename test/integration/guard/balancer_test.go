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
	// open holds the API servers' connections; each channel closes with its own.
	open map[*net.TCPConn]chan struct{}
}

func newBalancer(t testing.TB) *balancer {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{listener: listener, load: map[string]int{}, open: map[*net.TCPConn]chan struct{}{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go b.forward(conn.(*net.TCPConn))
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		<-done
		b.cut()
	})
	return b
}

func (b *balancer) address() string { return b.listener.Addr().String() }

// point sets the targets and ends what is open: the API servers then connect
// again.
func (b *balancer) point(targets ...string) {
	b.mutex.Lock()
	b.targets = targets
	b.mutex.Unlock()
	b.reset()
}

// add sends new connections to one more target.
func (b *balancer) add(target string) {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	b.targets = append(b.targets, target)
}

// reset asks the API servers to connect again, and returns when they have let
// go of every connection, so that none of them writes into a dead one.
func (b *balancer) reset() {
	b.mutex.Lock()
	var closed []chan struct{}
	for client, done := range b.open {
		_ = client.CloseWrite()
		closed = append(closed, done)
	}
	b.mutex.Unlock()
	for _, done := range closed {
		<-done
	}
}

// cut closes all connections at once.
func (b *balancer) cut() {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	for client := range b.open {
		_ = client.Close()
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

// forward passes bytes on until the API server closes its side, or the guard
// does and the API server follows.
func (b *balancer) forward(client *net.TCPConn) {
	defer client.Close()
	var server *net.TCPConn
	for _, target := range b.order() {
		b.count(target, 1)
		defer b.count(target, -1)
		conn, err := net.Dial("tcp", target)
		if err == nil {
			server = conn.(*net.TCPConn)
			break
		}
	}
	if server == nil {
		return
	}
	defer server.Close()
	done := make(chan struct{})
	defer close(done)
	b.mutex.Lock()
	b.open[client] = done
	b.mutex.Unlock()
	defer func() {
		b.mutex.Lock()
		defer b.mutex.Unlock()
		delete(b.open, client)
	}()
	go func() {
		_, _ = io.Copy(client, server)
		_ = client.CloseWrite()
	}()
	_, _ = io.Copy(server, client)
}
