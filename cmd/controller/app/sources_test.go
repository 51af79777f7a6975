package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"

	"github.com/metacontroller-solo/solo/pkg/controller/cluster"
	"github.com/metacontroller-solo/solo/pkg/controller/hook/call"
	"github.com/metacontroller-solo/solo/pkg/controller/watch"
)

// server serves watches of one Secret, as an API server does for a list that is
// streamed.
type server struct {
	mu sync.Mutex // guards all below
	// body of the Secret; empty if there is none.
	body string
	// refuses says that nobody may see it.
	refuses bool
	// asked are the requests, without what varies.
	asked []string
	// watching is how many watches are open.
	watching int
}

func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	s.mu.Lock()
	s.asked = append(s.asked, r.URL.Path+" "+query.Get("fieldSelector"))
	refuses, body := s.refuses, s.body
	if !refuses {
		s.watching++
	}
	s.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if refuses {
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprint(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"secrets is forbidden: no right","reason":"Forbidden","code":403}`)
		return
	}
	if body != "" {
		_, _ = fmt.Fprintf(w, `{"type":"ADDED","object":%s}`, body)
	}
	_, _ = fmt.Fprint(w, `{"type":"BOOKMARK","object":{"kind":"Secret","apiVersion":"v1","metadata":{"resourceVersion":"7","annotations":{"k8s.io/initial-events-end":"true"}}}}`)
	_ = http.NewResponseController(w).Flush()
	<-r.Context().Done()
	s.mu.Lock()
	s.watching--
	s.mu.Unlock()
}

func (s *server) seen() (asked []string, watching int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked, s.watching
}

func newSources(t *testing.T, s *server) sources {
	t.Helper()
	served := httptest.NewServer(s)
	t.Cleanup(served.Close)
	client, err := cluster.NewClient(&rest.Config{Host: served.URL})
	if err != nil {
		t.Fatal(err)
	}
	return sources{watch.NewSet(client, logr.Discard())}
}

var reference = call.Reference{Kind: call.KindSecret, Namespace: "ns", Name: "a"}

func TestSourcesShareOneWatchOfOneObject(t *testing.T) {
	s := &server{body: `{"kind":"Secret","apiVersion":"v1","metadata":{"namespace":"ns","name":"a","uid":"u","resourceVersion":"5"},"data":{"token":"aHVzaA=="}}`}
	all := newSources(t, s)
	first, second := all.Open(reference), all.Open(reference)
	for _, source := range []call.Source{first, second} {
		content, err := source.Read(t.Context())
		if err != nil || string(content.Data["token"]) != "hush" {
			t.Fatalf("%v, %v", content, err)
		}
		if again, err := source.Read(t.Context()); err != nil || again != content {
			t.Errorf("the same content is another: %v", err)
		}
	}
	asked, watching := s.seen()
	if len(asked) != 1 || asked[0] != "/api/v1/namespaces/ns/secrets metadata.name=a" || watching != 1 {
		t.Errorf("%d watches, asked were %q", watching, asked)
	}
	first.Close()
	if _, err := second.Read(t.Context()); err != nil {
		t.Error(err)
	}
	second.Close()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, watching := s.seen(); watching == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("the watch outlives its users")
		}
	}
}

func TestSourceThatIsNotThere(t *testing.T) {
	source := newSources(t, &server{}).Open(reference)
	defer source.Close()
	if _, err := source.Read(t.Context()); !errors.Is(err, call.ErrAbsent) {
		t.Errorf("%v", err)
	}
}

// Without the right there is an error at once, and not when the caller has had
// enough.
func TestSourceWithoutRight(t *testing.T) {
	source := newSources(t, &server{refuses: true}).Open(reference)
	defer source.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := source.Read(ctx); err == nil || !strings.Contains(err.Error(), "secrets is forbidden: no right") || ctx.Err() != nil {
		t.Errorf("%v", err)
	}
}

func TestDecodeSource(t *testing.T) {
	cases := []struct{ reason, kind, body, want string }{
		{"Secret", call.KindSecret, `{"data":{"a":"aHVzaA==","b":null}}`, `{"a":"aHVzaA==","b":null}`},
		{"empty Secret", call.KindSecret, `{}`, `null`},
		{"ConfigMap", call.KindConfigMap, `{"data":{"a":"hush"},"binaryData":{"b":"aHVzaA=="}}`, `{"a":"aHVzaA==","b":"aHVzaA=="}`},
		{"empty ConfigMap", call.KindConfigMap, `{"data":null}`, `{}`},
	}
	for _, c := range cases {
		content, err := decodeSource(c.kind, c.body)
		if err != nil {
			t.Errorf("%s: %v", c.reason, err)
			continue
		}
		if got, _ := json.Marshal(content.Data); string(got) != c.want {
			t.Errorf("%s: %s", c.reason, got)
		}
	}
	if _, err := decodeSource(call.KindSecret, `{"data":{"a":"hush!"}}`); err == nil || strings.Contains(err.Error(), "hush") {
		t.Errorf("what is not base64: %v", err)
	}
}
