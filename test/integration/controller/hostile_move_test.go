package controller_test

import (
	"bytes"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
)

// relay is the way to a server that can move: what was connected before stays so,
// and nobody is there any more, not even to break the connection off.
type relay struct {
	address string
	target  string

	mu sync.Mutex // guards all below
	// moved is closed when the server moves, and another one then.
	moved chan struct{}
	opens []net.Conn
}

func newRelay(t *testing.T, target string) *relay {
	t.Helper()
	r := &relay{target: target, moved: make(chan struct{})}
	r.address = listen(t, r.serve, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, conn := range r.opens {
			_ = conn.Close()
		}
	})
	return r
}

// move makes all present connections lead nowhere.
func (r *relay) move() {
	r.mu.Lock()
	defer r.mu.Unlock()
	close(r.moved)
	r.moved = make(chan struct{})
}

func (r *relay) serve(conn net.Conn) {
	behind, err := net.Dial("tcp", r.target)
	if err != nil {
		return
	}
	defer behind.Close()
	r.mu.Lock()
	r.opens = append(r.opens, conn, behind)
	moved := r.moved
	r.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { pass(conn, behind, moved) })
	both.Go(func() { pass(behind, conn, moved) })
	both.Wait()
}

// pass copies what comes from one side to the other, until nowhere is closed: from
// then on it is lost. The end of one side is the end of the other, unless that is
// nowhere.
func pass(to, from net.Conn, nowhere <-chan struct{}) {
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		select {
		case <-nowhere:
			if err == nil {
				continue
			}
			return
		default:
		}
		if err != nil {
			_ = to.Close()
			return
		}
		if _, err := to.Write(buffer[:n]); err != nil {
			return
		}
	}
}

// TestHookThatMoves has many kept-alive connections to a server that moves, and
// leaves nobody who would reset them. One call that was in vain is enough to drop
// them all.
func TestHookThatMoves(t *testing.T) {
	const connections = 8
	f := newFixture(t)
	good := defaultHook()
	release := make(chan struct{})
	f.hooks.Handle("/sync", kit.Held(release, good))
	way := newRelay(t, f.hooks.URL("")[len("http://"):])
	f.compositeOf("moving", "http://"+way.address+"/sync", timeout(hostileTimeout))
	f.start(fmt.Sprintf("--workers=%d", connections))
	var parents []*unstructured.Unstructured
	for i := range connections {
		parents = append(parents, f.thingOf("moving", fmt.Sprint("p-", i)))
	}
	// All of them are called at once, so that each has a connection.
	f.hooks.WaitRequests(soon, "/sync", connections)
	close(release)
	for i := range connections {
		f.waitChild(fmt.Sprint("p-", i), "x")
	}
	way.move()
	f.hooks.Forget()
	f.patch(parents[0], `{"spec":{"value":"moved"}}`)
	f.told(parents[0], "did not answer within 3s")
	f.waitChild("p-0", "moved")
	for i := range connections {
		f.change(parents[i], "after")
	}
}

// TestHTTP2Hook is about one connection that all calls share: a stalled or broken
// answer is that of one call, and a server that moves away from the connection
// without a word is found again.
func TestHTTP2Hook(t *testing.T) {
	f := newFixture(t)
	good := defaultHook()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 {
			t.Errorf("the call comes by %s", r.Proto)
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		asked, _ := askedAbout(t, body)
		switch spec := asked.Parent.Spec.Value; spec {
		case "silent":
			<-r.Context().Done()
		case "half-silent":
			_, _ = io.WriteString(w, `{"children":`)
			_ = http.NewResponseController(w).Flush()
			<-r.Context().Done()
		case "broken-off":
			_, _ = io.WriteString(w, `{"children":`)
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		case "large":
			block := bytes.Repeat([]byte(" "), 64<<10)
			for range 1 << 14 {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		default:
			good(w, r, kit.HookRequest{Body: body})
		}
	}))
	server.EnableHTTP2 = true
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	way := newRelay(t, server.Listener.Addr().String())
	bundle := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw}))
	f.compositeOf("http2", "https://"+way.address+"/sync", func(cc *v1alpha1.CompositeController) {
		cc.Spec.Hooks.Sync.Webhook.Timeout = &metav1.Duration{Duration: hostileTimeout}
		cc.Spec.Hooks.Sync.Webhook.CABundle = &v1alpha1.CABundle{Inline: &bundle}
	})
	f.start()
	bystander := f.thingOf("http2", "bystander")
	f.waitChild("bystander", "x")
	for value, says := range map[string]string{
		"silent": "did not answer within 3s", "half-silent": "did not answer within 3s",
		"broken-off": "broke its answer off", "large": "16 MiB",
	} {
		parent := f.thingOf("http2", value)
		f.patch(parent, fmt.Sprintf(`{"spec":{"value":%q}}`, value))
		f.told(parent, says)
		f.change(bystander, "during-"+value)
		f.change(parent, "well")
	}
	way.move()
	f.patch(bystander, `{"spec":{"value":"moved"}}`)
	f.told(bystander, "did not answer within 3s")
	kit.Eventually(t, healed, func() error {
		if got := f.children("bystander-")["bystander-0"]; got != "moved" {
			return fmt.Errorf("the child has %q", got)
		}
		return nil
	})
}
