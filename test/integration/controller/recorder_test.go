package controller_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/controller/cluster"
	words "github.com/metacontroller-solo/solo/pkg/object"
)

// recorder records under the fence, with room for five events about one object.
func (f *fixture) recorder(ctx context.Context, fence cluster.Fence) *cluster.Recorder {
	f.t.Helper()
	events, err := typedcorev1.NewForConfig(f.cp.AdminConfig(0))
	if err != nil {
		f.t.Fatal(err)
	}
	return cluster.NewRecorder(ctx, events, cluster.EventLimits{QPS: 1e-6, Burst: 5}, fence)
}

// involved is an object for events to be about; it need not be there.
func (f *fixture) involved(name string) *words.Object {
	f.t.Helper()
	o, err := words.FromJSON(fmt.Appendf(nil, `{"apiVersion":%q,"kind":"Thing","metadata":{"namespace":%q,"name":%q,"uid":%q}}`, thingAPI, f.ns, name, name))
	if err != nil {
		f.t.Fatal(err)
	}
	return o
}

// recorded are the events of the test's namespace, by the name of their object.
func (f *fixture) recorded() map[string][]corev1.Event {
	f.t.Helper()
	var list corev1.EventList
	if err := f.client.List(f.t.Context(), &list, client.InNamespace(f.ns)); err != nil {
		f.t.Fatal(err)
	}
	found := map[string][]corev1.Event{}
	for _, event := range list.Items {
		found[event.InvolvedObject.Name] = append(found[event.InvolvedObject.Name], event)
	}
	return found
}

// Many events at once are all sent; of one object no more than the limit, and
// alike ones are one.
func TestRecorder(t *testing.T) {
	f := newFixture(t)
	ctx, cancel := context.WithCancel(t.Context())
	recorder := f.recorder(ctx, func() (time.Time, error) { return time.Now().Add(time.Hour), nil })
	const parents = 100
	for i := range parents {
		recorder.Warning(f.involved(fmt.Sprintf("p%d", i)), "SyncError", "boom")
	}
	loud, long := f.involved("loud"), f.involved(strings.Repeat("l", 253))
	for range 20 {
		recorder.Warning(loud, "SyncError", "boom")
	}
	recorder.Normal(long, "Started", strings.Repeat("x", 5000))
	// The end of the program's context is not the end of the events.
	cancel()
	flush, stop := context.WithTimeout(context.Background(), 5*time.Minute)
	defer stop()
	recorder.Shutdown(flush)
	recorder.Warning(loud, "SyncError", "too late")

	found := f.recorded()
	if len(found) != parents+2 {
		t.Errorf("%d events for %d objects", len(found), parents+2)
	}
	if events := found["loud"]; len(events) != 1 || events[0].Count != 5 {
		t.Errorf("repeated are %+v", events)
	}
	events := found[long.Name()]
	if len(events) != 1 || len(events[0].Message) > 1024 || events[0].Type != corev1.EventTypeNormal {
		t.Errorf("the long ones are %+v", events)
	}
}

// Without the lease nothing is sent, and the end does not wait for it.
func TestRecorderBehindTheFence(t *testing.T) {
	f := newFixture(t)
	recorder := f.recorder(t.Context(), func() (time.Time, error) { return time.Time{}, errors.New("no lease") })
	recorder.Warning(f.involved("a"), "SyncError", "boom")
	recorder.Shutdown(t.Context())
	if found := f.recorded(); len(found) != 0 {
		t.Errorf("there are events %v", found)
	}
}
