package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// FieldManager is the name under which the API server records our writes.
const FieldManager = "metacontroller"

// requestTimeout is for one request.
const requestTimeout = 30 * time.Second

// NewClient makes the client that Writer and the informers use: it sends and
// returns JSON bytes.
func NewClient(config *rest.Config) (rest.Interface, error) {
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	config.ContentType, config.AcceptContentTypes = "application/json", "application/json"
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("cannot make a client for %q: %w", config.Host, err)
	}
	return client, nil
}

// Writer writes objects. It may be used by several goroutines at once.
type Writer struct {
	client rest.Interface
	fence  Fence
}

// Fence says until when this process may write, or why it may not.
type Fence func() (time.Time, error)

// guard is the context of one write. The write ends when the fence says so, or
// after requestTimeout; not when ctx does: a write that is under way when the
// program stops is waited for, since what became of it would be unknown
// otherwise.
func (f Fence) guard(ctx context.Context) (context.Context, context.CancelFunc, error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	until, err := f()
	if err != nil {
		return nil, nil, err
	}
	ctx, stop := context.WithTimeout(context.WithoutCancel(ctx), requestTimeout)
	ctx, stopEarlier := context.WithDeadline(ctx, until)
	return ctx, func() { stopEarlier(); stop() }, nil
}

// NewWriter makes a Writer that asks fence before each write. A fence that
// returns an error stops the write.
func NewWriter(client rest.Interface, fence Fence) *Writer {
	return &Writer{client: client, fence: fence}
}

// Create makes an object and returns it as the API server has it.
func (w *Writer) Create(ctx context.Context, kind object.Kind, o *object.Object) (*object.Object, error) {
	return w.write(ctx, w.client.Post().AbsPath(Path(kind, o.Namespace(), "")).Param("fieldManager", FieldManager), o.AppendJSON(nil))
}

// Update replaces an object that has not changed since it was read: a body with
// a resourceVersion and a uid is refused by the API server with a conflict if
// they are not the current ones.
func (w *Writer) Update(ctx context.Context, kind object.Kind, o *object.Object) (*object.Object, error) {
	return w.write(ctx, w.client.Put().AbsPath(Path(kind, o.Namespace(), o.Name())).Param("fieldManager", FieldManager), o.AppendJSON(nil))
}

// UpdateStatus replaces the status of an object, by the subresource, under the
// same conditions as Update.
func (w *Writer) UpdateStatus(ctx context.Context, kind object.Kind, o *object.Object) (*object.Object, error) {
	return w.write(ctx, w.client.Put().AbsPath(Path(kind, o.Namespace(), o.Name())+"/status").Param("fieldManager", FieldManager), o.AppendJSON(nil))
}

// SetFinalizers replaces the finalizers of an object that has not changed since
// it was read. It returns the object as the API server has it; after the last
// finalizer of an object that is being deleted that is its last state.
func (w *Writer) SetFinalizers(ctx context.Context, kind object.Kind, o *object.Object, finalizers []string) (*object.Object, error) {
	if finalizers == nil {
		finalizers = []string{}
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": o.UID(), "resourceVersion": o.ResourceVersion(), "finalizers": finalizers,
	}})
	if err != nil {
		return nil, fmt.Errorf("cannot encode finalizers of %q: %w", o, err)
	}
	return w.write(ctx, w.client.Patch(types.MergePatchType).AbsPath(Path(kind, o.Namespace(), o.Name())).Param("fieldManager", FieldManager), patch)
}

// Delete deletes the object with this name if it still has this uid. What it
// owns is deleted after it, in the background.
func (w *Writer) Delete(ctx context.Context, kind object.Kind, key object.Key, uid types.UID) error {
	ctx, cancel, err := w.fence.guard(ctx)
	if err != nil {
		return err
	}
	defer cancel()
	background := metav1.DeletePropagationBackground
	options, err := json.Marshal(&metav1.DeleteOptions{
		TypeMeta:          metav1.TypeMeta{Kind: "DeleteOptions", APIVersion: "v1"},
		Preconditions:     metav1.NewUIDPreconditions(string(uid)),
		PropagationPolicy: &background,
	})
	if err != nil {
		return fmt.Errorf("cannot encode delete options: %w", err)
	}
	return w.client.Delete().AbsPath(Path(kind, key.Namespace, key.Name)).
		SetHeader("Content-Type", "application/json").Body(options).Do(ctx).Error()
}

// Get reads an object from the API server, past every cache.
func (w *Writer) Get(ctx context.Context, kind object.Kind, namespace, name string) (*object.Object, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	return parse(w.client.Get().AbsPath(Path(kind, namespace, name)).Do(ctx))
}

func (w *Writer) write(ctx context.Context, request *rest.Request, body []byte) (*object.Object, error) {
	ctx, cancel, err := w.fence.guard(ctx)
	if err != nil {
		return nil, err
	}
	defer cancel()
	if body != nil {
		request = request.Body(body)
	}
	return parse(request.Do(ctx))
}

func parse(result rest.Result) (*object.Object, error) {
	body, err := raw(result)
	if err != nil {
		return nil, err
	}
	return object.FromJSON(body)
}

// raw is the body of a result. Result.Raw has an error of its own for an answer
// that is none; only Result.Error has the words of the API server.
func raw(result rest.Result) ([]byte, error) {
	if err := result.Error(); err != nil {
		return nil, err
	}
	return result.Raw()
}
