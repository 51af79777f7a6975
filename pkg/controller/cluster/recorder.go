package cluster

import (
	"context"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/metacontroller-solo/solo/pkg/logging"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// EventComponent is the source of every event.
const EventComponent = "metacontroller"

// maxEventMessage is what the API server accepts as the message of an event.
const maxEventMessage = 1024

// EventLimits bound the events about one object.
type EventLimits struct {
	// QPS is how many a second are sent in the long run.
	QPS float32
	// Burst is how many are sent at once.
	Burst int
}

// Recorder records events. They are sent from one goroutine, alike ones
// gathered, those over the limit left out, and at Shutdown what is left is sent.
type Recorder struct {
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
	correlator  *record.EventCorrelator
	client      typedcorev1.EventsGetter
	fence       Fence
	log         logr.Logger

	mu sync.Mutex
	// waiting is how many events were recorded and not yet handled. Guarded by
	// mu.
	waiting int
	// idle is closed when waiting becomes 0; nil if nobody asked. Guarded by mu.
	idle chan struct{}
}

// NewRecorder starts to record. Events are sent while fence returns no error.
// Shutdown ends it.
func NewRecorder(ctx context.Context, client typedcorev1.EventsGetter, limits EventLimits, fence Fence) *Recorder {
	r := &Recorder{
		broadcaster: record.NewBroadcaster(record.WithContext(context.WithoutCancel(ctx))),
		correlator:  record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{QPS: limits.QPS, BurstSize: limits.Burst}),
		client:      client,
		fence:       fence,
		log:         logr.FromContextOrDiscard(ctx),
	}
	r.recorder = r.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: EventComponent})
	// The broadcaster ends its watchers at Shutdown; until then nothing stops it.
	r.broadcaster.StartEventWatcher(r.send)
	return r
}

// send hands one event on. An event that cannot be sent is lost: what it is
// about will happen again if it matters.
func (r *Recorder) send(event *corev1.Event) {
	defer r.handled()
	result, err := r.correlator.EventCorrelate(event.DeepCopy())
	if err != nil || result.Skip {
		return
	}
	ctx, cancel, err := r.fence.guard(context.Background())
	if err != nil {
		return
	}
	defer cancel()
	events := r.client.Events(result.Event.Namespace)
	var sent *corev1.Event
	if result.Event.Count > 1 {
		sent, err = events.PatchWithEventNamespaceWithContext(ctx, result.Event, result.Patch)
	}
	if result.Event.Count <= 1 || apierrors.IsNotFound(err) {
		result.Event.ResourceVersion = ""
		sent, err = events.Create(ctx, result.Event, metav1.CreateOptions{})
	}
	if err != nil {
		r.log.V(1).Info("Cannot send an event", logging.KeyReason, event.Reason, "error", err.Error())
		return
	}
	r.correlator.UpdateState(sent)
}

func (r *Recorder) handled() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting--
	if r.waiting <= 0 && r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}

func (r *Recorder) record(about *object.Object, kind, reason, message string) {
	r.mu.Lock()
	r.waiting++
	r.mu.Unlock()
	r.recorder.Event(about, kind, reason, cut(message))
}

// Normal records that something went as it should.
func (r *Recorder) Normal(about *object.Object, reason, message string) {
	r.record(about, corev1.EventTypeNormal, reason, message)
}

// Warning records that something went wrong.
func (r *Recorder) Warning(about *object.Object, reason, message string) {
	r.record(about, corev1.EventTypeWarning, reason, message)
}

// Shutdown waits until all events are sent, or ctx ends, and stops recording.
func (r *Recorder) Shutdown(ctx context.Context) {
	r.mu.Lock()
	var idle chan struct{}
	if r.waiting > 0 {
		idle = make(chan struct{})
		r.idle = idle
	}
	r.mu.Unlock()
	if idle != nil {
		select {
		case <-idle:
		case <-ctx.Done():
		}
	}
	r.broadcaster.Shutdown()
}

// cut makes a message as short as the API server wants it.
func cut(message string) string {
	if len(message) <= maxEventMessage {
		return message
	}
	const more = " …"
	return strings.ToValidUTF8(message[:maxEventMessage-len(more)], "") + more
}
