package cluster

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/metacontroller-solo/solo/pkg/object"
)

func about(t *testing.T, name string) *object.Object {
	t.Helper()
	o, err := object.FromJSON(fmt.Appendf(nil, `{"apiVersion":"demo/v1","kind":"Thing","metadata":{"namespace":"ns","name":%q,"uid":%q}}`, name, name))
	if err != nil {
		t.Fatal(err)
	}
	return o
}

// Thousands of events at once are all sent; of one object no more than the limit,
// and alike ones are one.
func TestRecorder(t *testing.T) {
	clients, sent, patched := fake.NewClientset(), map[string]*corev1.Event{}, map[string]int{}
	// The recorder sends from one goroutine.
	clients.PrependReactor("create", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		event := action.(clienttesting.CreateAction).GetObject().(*corev1.Event)
		sent[event.InvolvedObject.Name] = event
		return true, event, nil
	})
	clients.PrependReactor("patch", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
		name, _, _ := strings.Cut(action.(clienttesting.PatchAction).GetName(), ".")
		patched[name]++
		return true, sent[name], nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	recorder := NewRecorder(ctx, clients.CoreV1(), EventLimits{QPS: 1e-6, Burst: 5}, func() (time.Time, error) { return time.Now().Add(time.Hour), nil })
	const parents = 3000
	for i := range parents {
		recorder.Warning(about(t, fmt.Sprintf("p%d", i)), "SyncError", "boom")
	}
	loud, long := about(t, "loud"), about(t, strings.Repeat("l", 253))
	for range 20 {
		recorder.Warning(loud, "SyncError", "boom")
	}
	recorder.Normal(long, "Started", strings.Repeat("x", 5000))
	// The end of the program's context is not the end of the events.
	cancel()
	flush, stop := context.WithTimeout(context.Background(), time.Minute)
	defer stop()
	recorder.Shutdown(flush)
	recorder.Warning(loud, "SyncError", "too late")

	if len(sent) != parents+2 {
		t.Errorf("%d events for %d objects", len(sent), parents+2)
	}
	if patched["loud"] != 4 || len(patched) != 1 {
		t.Errorf("repeated are %v", patched)
	}
	event := sent[long.Name()]
	if event == nil || len(event.Message) > maxEventMessage || event.Type != corev1.EventTypeNormal || len(event.Name) > 253 {
		t.Errorf("the long one is %+v", event)
	}
}

// Without the lease nothing is sent, and the end does not wait for it.
func TestRecorderBehindTheFence(t *testing.T) {
	clients := fake.NewClientset()
	recorder := NewRecorder(t.Context(), clients.CoreV1(), EventLimits{QPS: 1, Burst: 5}, func() (time.Time, error) { return time.Time{}, errors.New("no lease") })
	recorder.Warning(about(t, "a"), "SyncError", "boom")
	recorder.Shutdown(t.Context())
	if len(clients.Actions()) != 0 {
		t.Errorf("it did %v", clients.Actions())
	}
}
