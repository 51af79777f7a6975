package cluster

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"

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

// Recorder records events.
type Recorder struct {
	broadcaster record.EventBroadcaster
	recorder    record.EventRecorder
}

// NewRecorder starts to record. Shutdown ends it.
func NewRecorder(ctx context.Context, client typedcorev1.EventsGetter, limits EventLimits) *Recorder {
	broadcaster := record.NewBroadcaster(record.WithContext(ctx), record.WithCorrelatorOptions(record.CorrelatorOptions{
		QPS: limits.QPS, BurstSize: limits.Burst,
	}))
	broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.Events("")})
	return &Recorder{
		broadcaster: broadcaster,
		recorder:    broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: EventComponent}),
	}
}

// Normal records that something went as it should.
func (r *Recorder) Normal(about *object.Object, reason, message string) {
	r.recorder.Event(about, corev1.EventTypeNormal, reason, cut(message))
}

// Warning records that something went wrong.
func (r *Recorder) Warning(about *object.Object, reason, message string) {
	r.recorder.Event(about, corev1.EventTypeWarning, reason, cut(message))
}

// Shutdown stops recording. Events that were not sent by then are lost.
func (r *Recorder) Shutdown() { r.broadcaster.Shutdown() }

func cut(message string) string {
	if len(message) <= maxEventMessage {
		return message
	}
	const more = " …"
	return string([]rune(message[:maxEventMessage-len(more)-3])) + more
}
