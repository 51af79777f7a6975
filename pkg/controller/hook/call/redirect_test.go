package call_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/metacontroller-solo/solo/pkg/controller/hook/call"
)

func TestRedirects(t *testing.T) {
	type seen struct{ method, path, body, authorization, referer string }
	var mu sync.Mutex
	var got []seen // guarded by mu
	record := func(r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		mu.Lock()
		defer mu.Unlock()
		got = append(got, seen{r.Method, r.URL.Path, string(body), r.Header.Get("Authorization"), r.Header.Get("Referer")})
	}
	var home string
	other := serve(t, func(w http.ResponseWriter, r *http.Request) {
		record(r)
		if r.URL.Path == "/back" {
			http.Redirect(w, r, home+"/end", http.StatusTemporaryRedirect)
		}
	})
	server := serve(t, func(w http.ResponseWriter, r *http.Request) {
		record(r)
		switch r.URL.Path {
		case "/307":
			http.Redirect(w, r, "/end", http.StatusTemporaryRedirect)
		case "/308":
			http.Redirect(w, r, "/307", http.StatusPermanentRedirect)
		case "/302":
			http.Redirect(w, r, "/end", http.StatusFound)
		case "/other":
			http.Redirect(w, r, other.URL+"/end", http.StatusTemporaryRedirect)
		case "/other-and-back":
			http.Redirect(w, r, other.URL+"/back", http.StatusTemporaryRedirect)
		case "/loop":
			http.Redirect(w, r, "/loop", http.StatusTemporaryRedirect)
		}
	})
	home = server.URL
	sources := &cluster{}
	sources.put(call.KindSecret, "auth", map[string]string{"token": "hush-hush"})
	cases := []struct {
		path string
		// last is the last request.
		last seen
		n    int
	}{
		{"/307", seen{"POST", "/end", `{"a":1}`, "Bearer hush-hush", server.URL + "/307?t=hush"}, 2},
		{"/308", seen{"POST", "/end", `{"a":1}`, "Bearer hush-hush", server.URL + "/307"}, 3},
		{"/302", seen{"GET", "/end", "", "Bearer hush-hush", server.URL + "/302?t=hush"}, 2},
		{"/other", seen{"POST", "/end", `{"a":1}`, "", ""}, 2},
		{"/other-and-back", seen{"POST", "/end", `{"a":1}`, "", ""}, 3},
	}
	pool := newPool(sources)
	for _, c := range cases {
		got = nil
		_, err := connected(t, pool, server.URL+c.path+"?t=hush", bearer()).Call(t.Context(), "", []byte(`{"a":1}`))
		if err != nil || len(got) != c.n || got[len(got)-1] != c.last {
			t.Errorf("%s: %+v, %v", c.path, got, err)
		}
		for _, one := range got[1:] {
			if strings.HasPrefix(one.path, "/back") && (one.authorization != "" || one.referer != "") {
				t.Errorf("%s: another host got %+v", c.path, one)
			}
		}
	}
	_, err := connected(t, pool, server.URL+"/loop?t=hush", bearer()).Call(t.Context(), "", nil)
	var network *call.NetworkError
	if !errors.As(err, &network) || !strings.Contains(err.Error(), "redirected too often") || strings.Contains(err.Error(), "hush") {
		t.Errorf("a loop: %v", err)
	}
}
