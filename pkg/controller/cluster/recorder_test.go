package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// A burst of more events than client-go's broadcaster has room for is sent whole.
// A server that does nothing else takes them; what a real one makes of events is
// tested with the program.
func TestABurstOfEventsIsSentWhole(t *testing.T) {
	var sent atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var event corev1.Event
		if err := json.NewDecoder(r.Body).Decode(&event); err != nil {
			t.Error(err)
		}
		sent.Add(1)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(&event)
	}))
	defer server.Close()
	events, err := typedcorev1.NewForConfig(&rest.Config{Host: server.URL, QPS: -1, ContentConfig: rest.ContentConfig{ContentType: "application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	recorder := NewRecorder(t.Context(), events, EventLimits{QPS: 1, Burst: 5}, func() (time.Time, error) { return time.Now().Add(time.Hour), nil })
	const parents = 3000
	for i := range parents {
		name := fmt.Sprintf("p%d", i)
		about, err := object.FromJSON(fmt.Appendf(nil, `{"apiVersion":"demo/v1","kind":"Thing","metadata":{"namespace":"ns","name":%q,"uid":%q}}`, name, name))
		if err != nil {
			t.Fatal(err)
		}
		recorder.Warning(about, "SyncError", "boom")
	}
	flush, stop := context.WithTimeout(t.Context(), 5*time.Minute)
	defer stop()
	recorder.Shutdown(flush)
	if n := sent.Load(); n != parents {
		t.Errorf("%d events of %d were sent", n, parents)
	}
}
