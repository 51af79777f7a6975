package call_test

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/hook/call"
)

// tagged is a hook with ETags.
type tagged struct {
	mu sync.Mutex // guards all below
	// code, etag and body of the next answer.
	code       int
	etag, body string
	// asked is If-None-Match of the last request.
	asked string
}

func (h *tagged) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked = r.Header.Get("If-None-Match")
	if h.etag != "" {
		w.Header().Set("ETag", h.etag)
	}
	w.WriteHeader(h.code)
	if h.code != http.StatusNotModified {
		_, _ = io.WriteString(w, h.body)
	}
}

// answer sets the next answer, makes the call and returns what the hook was asked.
func (h *tagged) answer(t *testing.T, caller *call.Caller, about string, code int, etag, body string) (asked, got string, err error) {
	t.Helper()
	h.mu.Lock()
	h.code, h.etag, h.body = code, etag, body
	h.mu.Unlock()
	answer, err := caller.Call(t.Context(), about, nil)
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.asked, string(answer), err
}

func TestETag(t *testing.T) {
	now := clocktesting.NewFakeClock(time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC))
	pool := call.NewPool(prometheus.NewRegistry(), nil, now)
	newCaller := func(etag *v1alpha1.WebhookEtagConfig) (*tagged, *call.Caller) {
		hook := &tagged{}
		server := serve(t, hook.ServeHTTP)
		caller, err := pool.Caller(syncHook, &v1alpha1.Webhook{URL: &server.URL, Etag: etag}, nil)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(caller.Close)
		return hook, caller
	}
	on := &v1alpha1.WebhookEtagConfig{Enabled: ptr(true), CacheTimeoutSeconds: ptr(int32(60))}
	check := func(what, asked, got string, err error, wantAsked, wantGot string, code int) {
		t.Helper()
		if asked != wantAsked || got != wantGot {
			t.Errorf("%s: If-None-Match %q, answer %q; not %q and %q", what, asked, got, wantAsked, wantGot)
		}
		var status *call.StatusError
		switch {
		case code == 0 && err != nil:
			t.Errorf("%s: %v", what, err)
		case code != 0 && (!errors.As(err, &status) || status.Code != code):
			t.Errorf("%s: error is %v", what, err)
		}
	}
	for _, reuse := range []int{http.StatusNotModified, http.StatusPreconditionFailed} {
		hook, caller := newCaller(on)
		const weak = `W/"one"`
		asked, got, err := hook.answer(t, caller, "a", 200, weak, "body of a")
		check("first", asked, got, err, "", "body of a", 0)
		asked, got, err = hook.answer(t, caller, "a", 200, weak, "body of a")
		check("not accepted", asked, got, err, "", "body of a", 0)
		caller.Accept("a")
		asked, got, err = hook.answer(t, caller, "b", reuse, weak, "an error")
		check("another object", asked, got, err, "", "", reuse)
		asked, got, err = hook.answer(t, caller, "a", reuse, "", "an error")
		check("reused", asked, got, err, weak, "body of a", 0)
		asked, got, err = hook.answer(t, caller, "a", reuse, "", "")
		check("reused and not accepted then", asked, got, err, "", "", reuse)

		asked, got, err = hook.answer(t, caller, "a", 200, `"two"`, "newer")
		caller.Accept("a")
		check("a newer one", asked, got, err, "", "newer", 0)
		asked, got, err = hook.answer(t, caller, "a", 500, `"error"`, "an error")
		check("an error status", asked, got, err, `"two"`, "", 500)
		asked, got, err = hook.answer(t, caller, "a", 200, `"three"`, "newest")
		caller.Accept("a")
		check("changed", asked, got, err, `"two"`, "newest", 0)
		asked, got, err = hook.answer(t, caller, "a", 200, "", "without")
		caller.Accept("a")
		check("no ETag any more", asked, got, err, `"three"`, "without", 0)
		asked, got, err = hook.answer(t, caller, "a", 200, `"four"`, "again")
		caller.Accept("a")
		check("nothing to ask for", asked, got, err, "", "again", 0)

		now.Step(59 * time.Second)
		asked, got, err = hook.answer(t, caller, "a", reuse, "", "")
		caller.Accept("a")
		check("in time", asked, got, err, `"four"`, "again", 0)
		now.Step(time.Second)
		asked, got, err = hook.answer(t, caller, "a", 200, `"four"`, "again")
		check("past its time", asked, got, err, "", "again", 0)
	}
	// What is remembered of a subject goes with it, and of no other.
	about, caller := newCaller(on)
	for _, one := range []string{"a", "a/one", "a/two", "ab", "b/a"} {
		_, _, _ = about.answer(t, caller, one, 200, `"etag"`, one)
		caller.Accept(one)
	}
	caller.Forget("a")
	caller.Forget("unknown")
	for one, want := range map[string]string{"a": "", "a/one": "", "a/two": "", "ab": `"etag"`, "b/a": `"etag"`} {
		asked, got, err := about.answer(t, caller, one, 200, "", one)
		check("after its subject was forgotten: "+one, asked, got, err, want, one, 0)
	}
	for reason, config := range map[string]*v1alpha1.WebhookEtagConfig{"absent": nil, "nothing said": {}, "off": {Enabled: ptr(false)}} {
		hook, caller := newCaller(config)
		_, _, _ = hook.answer(t, caller, "a", 200, `"one"`, "body")
		caller.Accept("a")
		asked, got, err := hook.answer(t, caller, "a", 304, "", "")
		check(reason, asked, got, err, "", "", 304)
	}
	// What the caller does with an answer does not change what is kept.
	hook, caller := newCaller(on)
	_, _, _ = hook.answer(t, caller, "a", 200, `"one"`, "body")
	for range 2 {
		caller.Accept("a")
		answer, err := caller.Call(t.Context(), "a", nil)
		if err != nil || string(answer) != "body" {
			t.Fatalf("%q, %v", answer, err)
		}
		clear(answer)
	}
	hook.mu.Lock()
	hook.code = 304
	hook.mu.Unlock()
	for range 2 {
		caller.Accept("a")
		answer, err := caller.Call(t.Context(), "a", nil)
		if err != nil || string(answer) != "body" {
			t.Fatalf("%q, %v", answer, err)
		}
		clear(answer)
	}
}
