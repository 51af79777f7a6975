package cluster

import (
	"context"
	"strings"
	"sync"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/record"
	"k8s.io/client-go/tools/record/util"

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

// maxQueuedEvents bounds the events that wait to be sent. A start with a fault that
// concerns every parent makes thousands at once.
const maxQueuedEvents = 10000

// Recorder records events. They are sent from one goroutine, alike ones
// gathered, those over the limit left out, and at Shutdown what is left is sent.
type Recorder struct {
	correlator *record.EventCorrelator
	client     typedcorev1.EventsGetter
	fence      Fence
	log        logr.Logger

	mu sync.Mutex
	// queue is what is to be sent, oldest first. Guarded by mu.
	queue []*corev1.Event
	// closed says that nothing is added any more. Guarded by mu.
	closed bool
	// wake has a value when queue or closed changed.
	wake chan struct{}
	// stop ends the sending with what is left in the queue.
	stop context.CancelFunc
	done chan struct{}
}

// NewRecorder starts to record. Events are sent while fence returns no error.
// Shutdown ends it.
func NewRecorder(ctx context.Context, client typedcorev1.EventsGetter, limits EventLimits, fence Fence) *Recorder {
	r := &Recorder{
		correlator: record.NewEventCorrelatorWithOptions(record.CorrelatorOptions{QPS: limits.QPS, BurstSize: limits.Burst}),
		client:     client,
		fence:      fence,
		log:        logr.FromContextOrDiscard(ctx),
		wake:       make(chan struct{}, 1),
		done:       make(chan struct{}),
	}
	// Shutdown ends it, not the end of ctx: the last events are still to come then.
	ctx, r.stop = context.WithCancel(context.WithoutCancel(ctx))
	go r.run(ctx)
	return r
}

// run sends events until Shutdown.
func (r *Recorder) run(ctx context.Context) {
	defer close(r.done)
	for {
		r.mu.Lock()
		batch, closed := r.queue, r.closed
		r.queue = nil
		r.mu.Unlock()
		for _, event := range batch {
			if ctx.Err() != nil {
				return
			}
			r.send(ctx, event)
		}
		if closed && len(batch) == 0 {
			return
		}
		if len(batch) > 0 {
			continue
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
			return
		}
	}
}

// send hands one event on. An event that cannot be sent is lost: what it is
// about will happen again if it matters.
func (r *Recorder) send(ctx context.Context, event *corev1.Event) {
	result, err := r.correlator.EventCorrelate(event.DeepCopy())
	if err != nil || result.Skip {
		return
	}
	ctx, cancel, err := r.fence.guard(ctx)
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

func (r *Recorder) record(about *object.Object, kind, reason, message string) {
	now := metav1.Now()
	namespace := about.Namespace()
	if namespace == "" {
		namespace = metav1.NamespaceDefault
	}
	event := &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: util.GenerateEventName(about.Name(), now.UnixNano())},
		InvolvedObject: corev1.ObjectReference{
			APIVersion: about.APIVersion(), Kind: about.Kind(), Namespace: about.Namespace(), Name: about.Name(),
			UID: about.UID(), ResourceVersion: about.ResourceVersion(),
		},
		Reason: reason, Message: cut(message), Type: kind,
		FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: EventComponent}, ReportingController: EventComponent,
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed || len(r.queue) >= maxQueuedEvents {
		return
	}
	r.queue = append(r.queue, event)
	r.signal()
}

func (r *Recorder) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
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
	r.closed = true
	r.signal()
	r.mu.Unlock()
	select {
	case <-r.done:
	case <-ctx.Done():
	}
	r.stop()
}

// cut makes a message as short as the API server wants it.
func cut(message string) string {
	if len(message) <= maxEventMessage {
		return message
	}
	const more = " …"
	return strings.ToValidUTF8(message[:maxEventMessage-len(more)], "") + more
}
