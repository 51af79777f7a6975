package controller_test

import (
	"bytes"
	"fmt"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
)

const (
	// peakAllowed is the memory, in MiB, that the controller may take at most while
	// all hostile answers come in at once.
	peakAllowed = 300
	// hostileTimeout is the timeout of the hostile hook.
	hostileTimeout = 3 * time.Second
	// atOnce is how many hostile answers are added at once.
	atOnce = 8
	// healed is how long it may take a parent that failed for a while to be well
	// again by itself: it is left alone for longer and longer.
	healed = 90 * time.Second
)

// hookLabel says which hook is asked about a thing.
const hookLabel = "hook"

// thingOf creates a parent for the controller with that hook.
func (f *fixture) thingOf(hook, name string) *unstructured.Unstructured {
	f.t.Helper()
	u := &unstructured.Unstructured{Object: object{"apiVersion": thingAPI, "kind": "Thing", "spec": object{"count": 1, "value": "x"}}}
	u.SetNamespace(f.ns)
	u.SetName(name)
	u.SetLabels(map[string]string{testLabel: f.ns, hookLabel: hook})
	if err := f.client.Create(f.t.Context(), u); err != nil {
		f.t.Fatal(err)
	}
	return u
}

// compositeOf declares a controller of the things of one hook.
func (f *fixture) compositeOf(hook, url string, change func(*v1alpha1.CompositeController)) *v1alpha1.CompositeController {
	f.t.Helper()
	return f.composite(func(cc *v1alpha1.CompositeController) {
		cc.Name += "-" + hook
		cc.Spec.ParentResource.LabelSelector.MatchLabels[hookLabel] = hook
		cc.Spec.Hooks.Sync.Webhook.URL = &url
		if change != nil {
			change(cc)
		}
	})
}

// told waits until a parent was told all the texts in one event, and returns the
// message. On a machine with much else to do, a first call may be too late, and the
// next one comes after a back-off.
func (f *fixture) told(parent *unstructured.Unstructured, texts ...string) string {
	f.t.Helper()
	found := ""
	kit.Eventually(f.t, afterBackoff, func() error {
		var seen []string
		for _, event := range f.eventsOf(parent) {
			if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(event.Message, text) }) {
				found = event.Message
				return nil
			}
			seen = append(seen, fmt.Sprintf("%.300s", event.Message))
		}
		return fmt.Errorf("no event with %q; there are %q", texts, seen)
	})
	return found
}

func timeout(d time.Duration) func(*v1alpha1.CompositeController) {
	return func(cc *v1alpha1.CompositeController) {
		cc.Spec.Hooks.Sync.Webhook.Timeout = &metav1.Duration{Duration: d}
	}
}

// change gives a parent another value and waits until its child has it.
func (f *fixture) change(parent *unstructured.Unstructured, value string) {
	f.t.Helper()
	f.patch(parent, fmt.Sprintf(`{"spec":{"value":%q}}`, value))
	f.waitChild(parent.GetName(), value)
}

// answers are all the kinds of hostile answers.
func answers(t *testing.T) []hostile {
	late := []string{"did not answer within 3s (webhook.timeout)"}
	large := []string{"16 MiB"}
	invalid := []string{"no valid JSON"}
	const (
		ok      = "HTTP/1.1 200 OK\r\n"
		chunked = ok + "Transfer-Encoding: chunked\r\n\r\n"
		child   = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x"}`
	)
	block := bytes.Repeat([]byte(" "), 64<<10)
	chunk := append(append([]byte("10000\r\n"), block...), "\r\n"...)
	closedPort, err := kit.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	nobody := silent(t)
	nested := func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }
	return []hostile{
		// Slow ones.
		{"slow-headers", repeated(ok+"X-Slow: ", "x", 20*time.Millisecond), late},
		{"slow-body", repeated(ok+"Content-Length: 1000000\r\n\r\n", " ", 20*time.Millisecond), late},
		{"slow-chunks", repeated(chunked, "1\r\n \r\n", 20*time.Millisecond), late},
		{"trickle", trickled, late},
		{"silent", held(""), late},
		{"silent-after-headers", held(ok + "Content-Length: 10\r\n\r\n"), late},
		{"silent-error", held("HTTP/1.1 500 Oh\r\nContent-Length: 10\r\n\r\n"), []string{"status 500"}},
		{"silent-upgrade", held("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: x\r\n\r\n"), []string{"status 101"}},
		{"silent-handshake", redirect(http.StatusTemporaryRedirect, "https://"+nobody+"/"), late},
		{"never-reads", redirect(http.StatusTemporaryRedirect, "http://"+nobody+"/"), late},
		{"slow-hints", repeated("", "HTTP/1.1 103 Early Hints\r\n\r\n", 20*time.Millisecond), late},

		// Large ones.
		{"gigabyte", streamed(ok+"Content-Length: 1073741824\r\n\r\n", block, 1<<30), large},
		{"gigabyte-in-chunks", streamed(chunked, chunk, 1<<30), large},
		{"gigabyte-to-the-end", streamed(ok+"Connection: close\r\n\r\n", block, 1<<30), large},
		{"gzip-bomb", bomb(), large},
		{"large-headers", text(ok, "X-Large: ", strings.Repeat("x", 1<<20), "\r\n\r\n"), []string{"cannot be reached", "headers"}},
		{"many-hints", repeated("", "HTTP/1.1 103 Early Hints\r\n\r\n", 0), []string{"cannot be reached"}},
		{"many-continues", repeated("", "HTTP/1.1 100 Continue\r\n\r\n", 0), []string{"cannot be reached"}},
		{"chunk-extensions", repeated(chunked, "1;"+strings.Repeat("x", 4000)+"\r\n \r\n", 0), []string{"broke its answer off"}},
		{"long-trailer", text(chunked, "2\r\n{}\r\n0\r\nX: ", strings.Repeat("x", 1<<20), "\r\n\r\n"), []string{"broke its answer off"}},
		{"large-child", body(`{"children":[`, child, `,"data":{"v":"`, strings.Repeat("x", 4<<20), `"}}]}`), []string{"children[0] has more than 3 MiB"}},
		{"large-status", body(`{"children":[],"status":{"a":[{}`, strings.Repeat(",{}", 5<<18), `]}}`), []string{"status has more than 3 MiB"}},
		{"long-name", body(`{"children":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"`, strings.Repeat("x", 1<<20), `"}}]}`), []string{"cannot create ConfigMap", "253"}},
		{"long-key", body(`{"children":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"x","labels":{"`, strings.Repeat("x", 1<<20), `":1}}}]}`), []string{"children[0].metadata.labels"}},
		{"many-undeclared", body(`{"children":`, many(10000, `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"s-%d"}}`), `}`), []string{"Secret", "more"}},
		{"many-duplicates", before(strings.Repeat(`"a":1,`, 5<<17)), []string{"a is there twice"}},
		{"many-unknown", before(fields(100000, `"field-%d":0`)), nil},

		// Wrong ones.
		{"deep-child", body(`{"children":[`, child, `,"data":`, nested(10000), `}]}`), []string{"deeper than 500"}},
		{"deep-status", body(`{"children":[],"status":`, nested(1000000), `}`), []string{"deeper than 500"}},
		{"deep-without-end", body(strings.Repeat("[", 1<<20)), []string{"deeper than 500"}},
		{"duplicates", altered(`"children":`, `"children":null,"children":`, `"data":{`, `"data":{"v":"wrong",`, `"seen":`, `"seen":-1,"seen":`), nil},
		{"invalid-utf8", altered(`"children"`, "\"\xff\":1,\"children\""), invalid},
		{"half-a-character", before(`"a":"\ud800",`), invalid},
		{"nan", before(`"status":{"n":NaN},`), invalid},
		{"infinity", before(`"status":{"n":-Infinity},`), invalid},
		{"number-beyond-floats", altered(`"seen":`, `"n":1e400,"seen":`), []string{"status.n is 1e400"}},
		{"long-number", altered(`"seen":`, `"n":0.`+strings.Repeat("3", 1<<20)+`,"seen":`), nil},
		{"resync-beyond-floats", before(`"resyncAfterSeconds":1e400,`), nil},
		{"finalized-is-a-number", before(`"finalized":1,`), []string{"finalized must be true or false"}},

		// Those that break off, or lie.
		{"length-too-short", text(ok, "Content-Length: 10\r\n\r\n", `{"children":[]}`), invalid},
		{"length-too-long", text(ok, "Content-Length: 1000\r\n\r\n", `{"children":[]}`), []string{"broke its answer off after 15 bytes"}},
		{"length-negative", text(ok, "Content-Length: -1\r\n\r\n", `{"children":[]}`), []string{"cannot be reached", "Content-Length"}},
		{"two-lengths", text(ok, "Content-Length: 15\r\nContent-Length: 16\r\n\r\n", `{"children":[]}`), []string{"cannot be reached", "Content-Length"}},
		{"no-gzip", text(ok, "Content-Encoding: gzip\r\nContent-Length: 15\r\n\r\n", `{"children":[]}`), []string{"broke its answer off", "gzip"}},
		{"bad-chunk", text(chunked, "zz\r\n{}\r\n0\r\n\r\n"), []string{"broke its answer off"}},
		{"more-than-an-answer", func(conn net.Conn, good []byte) bool {
			_, _ = conn.Write(append(whole(good), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"...))
			return false
		}, nil},
		{"reset-in-headers", reset(ok + "Content-"), []string{"cannot be reached"}},
		{"reset-in-body", reset(ok + "Content-Length: 1000\r\n\r\n{\"children\":"), []string{"reset by peer"}},
		{"not-http", text("SSH-2.0-OpenSSH_9.9\r\n\r\n"), []string{"cannot be reached", "malformed HTTP"}},

		// Those that send elsewhere, or away.
		{"redirect-loop", redirect(http.StatusTemporaryRedirect, "/sync"), []string{"redirected too often"}},
		{"redirect-loop-of-gets", redirect(http.StatusFound, "/loop"), []string{"redirected too often"}},
		{"redirect-to-a-file", redirect(http.StatusTemporaryRedirect, "file:///etc/passwd"), []string{"unsupported protocol scheme"}},
		{"redirect-to-nobody", redirect(http.StatusTemporaryRedirect, fmt.Sprintf("http://127.0.0.1:%d/", closedPort)), []string{"connection refused"}},
		{"redirect-nowhere", text("HTTP/1.1 307 Elsewhere\r\nContent-Length: 0\r\n\r\n"), []string{"status 307"}},
		{"redirect-to-nonsense", redirect(http.StatusTemporaryRedirect, "http://[::1"), []string{"Location"}},
		{"busy-negative", text("HTTP/1.1 429 Busy\r\nRetry-After: -1\r\nContent-Length: 0\r\n\r\n"), nil},
		{"busy-for-ever", text("HTTP/1.1 429 Busy\r\nRetry-After: 1000000000\r\nContent-Length: 0\r\n\r\n"), nil},
		{"busy-in-the-past", text("HTTP/1.1 429 Busy\r\nRetry-After: Wed, 21 Oct 2015 07:28:00 GMT\r\nContent-Length: 0\r\n\r\n"), nil},
		{"busy-and-silent", held("HTTP/1.1 429 Busy\r\nContent-Length: 10\r\n\r\n"), nil},
		{"unavailable-for-ever", text("HTTP/1.1 503 Down\r\nRetry-After: 1000000000\r\nContent-Length: 0\r\n\r\n"), []string{"status 503"}},
		{"unknown-status", text("HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n"), []string{"status 999"}},
	}
}

// hostile is one kind of hostile answer.
type hostile struct {
	name  string
	fault fault
	// says is what the event of the parent must have; nil if there is to be none.
	says []string
}

// TestHostileHooks lets a hook do for many parents at once all that a hook must not
// do. Other parents of the hook and another controller go on, the memory stays
// bounded, each parent is told what is wrong, and is well once the hook is.
func TestHostileHooks(t *testing.T) {
	f := newFixture(t)
	cases := answers(t)
	faults := map[string]fault{}
	for _, c := range cases {
		faults["h-"+c.name] = c.fault
	}
	var cured atomic.Bool
	hook := newRawServer(t, func(conn net.Conn, path string, body []byte) bool {
		if path == "/loop" {
			return redirect(http.StatusFound, "/loop")(conn, nil)
		}
		asked, good := askedAbout(t, body)
		if broken := faults[asked.Parent.Metadata.Name]; broken != nil && !cured.Load() {
			return broken(conn, good)
		}
		_, err := conn.Write(whole(good))
		return err == nil
	})
	cc := f.compositeOf("hostile", hook.url("/sync"), timeout(hostileTimeout))
	f.hooks.Handle("/sync", defaultHook())
	f.compositeOf("calm", f.hooks.URL("/sync"), nil)
	p := f.start()
	bystander, calm := f.thingOf("hostile", "bystander"), f.thingOf("calm", "calm")
	f.waitChild("bystander", "x")
	f.waitChild("calm", "x")

	parents := map[string]*unstructured.Unstructured{}
	want := map[string]string{}
	// A few more at a time: those that are there already fail on.
	for some := range slices.Chunk(cases, atOnce) {
		for _, c := range some {
			parents[c.name] = f.thingOf("hostile", "h-"+c.name)
			want["h-"+c.name+"-0"] = "x"
		}
		f.change(bystander, "beside-"+some[0].name)
		f.change(calm, "beside-"+some[0].name)
		for _, c := range some {
			if len(c.says) == 0 {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				f := *f
				f.t = t
				f.told(parents[c.name], append([]string{cc.Name}, c.says...)...)
			})
		}
	}
	f.change(bystander, "late")
	f.change(calm, "late")
	if peak := peakMemory(t, p.Pid()); peak > peakAllowed*raceFactor {
		t.Errorf("the controller took %d MiB", peak)
	} else {
		t.Logf("the controller took %d MiB at most", peak)
	}

	cured.Store(true)
	kit.Eventually(t, healed, func() error {
		got := f.children("h-")
		for name, value := range want {
			if got[name] != value {
				return fmt.Errorf("%s is %q; there are %v", name, got[name], got)
			}
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("there are %v", got)
		}
		return nil
	})
	for _, c := range cases {
		if len(c.says) == 0 {
			for _, event := range f.eventsOf(parents[c.name]) {
				t.Errorf("%s: there is an event: %.200s", c.name, event.Message)
			}
		}
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestStalledHooks has more parents whose hook never answers than there are
// workers, and no timeout that would help. Others of the same controller are synced
// all the same, and the hook sees no more calls at once than it should.
func TestStalledHooks(t *testing.T) {
	const workers, stalled = 2, 20
	f := newFixture(t)
	release := make(chan struct{})
	var now, most atomic.Int32
	good := defaultHook()
	f.hooks.Handle("/sync", func(w http.ResponseWriter, r *http.Request, asked kit.HookRequest) {
		n := now.Add(1)
		defer now.Add(-1)
		for before := most.Load(); n > before && !most.CompareAndSwap(before, n); before = most.Load() {
		}
		if bytes.Contains(asked.Body, []byte(`"name":"stalled-`)) {
			kit.Held(release, good)(w, r, asked)
			return
		}
		good(w, r, asked)
	})
	f.composite(timeout(10 * time.Minute))
	p := f.start(fmt.Sprintf("--workers=%d", workers))
	bystander := f.thing("bystander", object{"count": 1, "value": "x"})
	f.waitChild("bystander", "x")
	want := map[string]string{}
	for i := range stalled {
		name := fmt.Sprint("stalled-", i)
		f.thing(name, object{"count": 1, "value": "x"})
		want[name+"-0"] = "x"
		if i%4 == 0 {
			f.change(bystander, fmt.Sprint("value-", i))
		}
	}
	close(release)
	f.waitChildren("stalled-", want)
	f.change(bystander, "end")
	// The hook notices only a moment later that a call was broken off.
	if got := most.Load(); got > 3*workers {
		t.Errorf("the hook got %d calls at once from %d workers", got, workers)
	}
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestStopWithStalledHooks ends the controller while workers and what goes on
// beside them wait for hooks.
func TestStopWithStalledHooks(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", kit.Stalled())
	f.composite(timeout(10 * time.Minute))
	p := f.start("--workers=1")
	for i := range 4 {
		f.thing(fmt.Sprint("stalled-", i), object{"count": 1, "value": "x"})
	}
	f.hooks.WaitRequests(soon, "/sync", 2)
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestHostileCustomize is about the rules of related objects.
func TestHostileCustomize(t *testing.T) {
	rule := `{"apiVersion":"v1","resource":"configmaps"`
	cases := []hostile{
		{"deep", body(`{"relatedResources":[`, rule, `,"labelSelector":{"matchLabels":`, strings.Repeat(`{"a":`, 10000), "1", strings.Repeat("}", 10000), `}}]}`), []string{"deeper than 500"}},
		{"many-rules", body(`{"relatedResources":`, many(50000, rule+`,"names":["n-%d"]}`), `}`), []string{"more than 1000 rules"}},
		{"many-names", body(`{"relatedResources":[`, rule, `,"names":`, many(50000, `"n-%d"`), `}]}`), []string{"10000 names"}},
		{"many-unknown-kinds", body(`{"relatedResources":`, many(1000, `{"apiVersion":"v1","resource":"unknown%d"}`), `}`), []string{"relatedResources[0]", "unknown0"}},
		{"null-rule", body(`{"relatedResources":[null]}`), []string{"relatedResources[0] must be an object"}},
		{"numbers", body(`{"relatedResources":[`, rule, `,"names":[1e300]}]}`), []string{"relatedResources[0].names"}},
		{"duplicates", body(`{"relatedResources":5,"relatedResources":[`, rule, `,"names":["a"],"names":["b"]}]}`), nil},
		{"slow", repeated("HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", " ", 20*time.Millisecond), []string{"did not answer within 3s"}},
	}
	f := newFixture(t)
	faults := map[string]fault{}
	for _, c := range cases {
		faults["h-"+c.name] = c.fault
	}
	var cured atomic.Bool
	hook := newRawServer(t, func(conn net.Conn, path string, body []byte) bool {
		asked, good := askedAbout(t, body)
		if path == "/customize" {
			if broken := faults[asked.Parent.Metadata.Name]; broken != nil && !cured.Load() {
				return broken(conn, good)
			}
			good = []byte(`{"relatedResources":[]}`)
		}
		_, err := conn.Write(whole(good))
		return err == nil
	})
	f.composite(func(cc *v1alpha1.CompositeController) {
		sync, customize := hook.url("/sync"), hook.url("/customize")
		cc.Spec.Hooks.Sync.Webhook.URL = &sync
		cc.Spec.Hooks.Customize = &v1alpha1.Hook{Webhook: &v1alpha1.Webhook{URL: &customize, Timeout: &metav1.Duration{Duration: hostileTimeout}}}
	})
	p := f.start()
	want := map[string]string{}
	for _, c := range cases {
		parent := f.thing("h-"+c.name, object{"count": 1, "value": "x"})
		want["h-"+c.name+"-0"] = "x"
		if len(c.says) > 0 {
			message := f.told(parent, c.says...)
			if where := "customize hook at " + hook.url("/customize"); !strings.Contains(message, where) {
				t.Errorf("%s: the event does not have %q: %.300s", c.name, where, message)
			}
		}
	}
	cured.Store(true)
	kit.Eventually(t, healed, func() error {
		if got := f.children("h-"); !maps.Equal(got, want) {
			return fmt.Errorf("children are %v", got)
		}
		return nil
	})
	if peak := peakMemory(t, p.Pid()); peak > peakAllowed*raceFactor {
		t.Errorf("the controller took %d MiB", peak)
	}
}
