package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"github.com/metacontroller-solo/solo/pkg/controller/plan/owned"
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
	// applier is the field manager of server-side apply; empty if that is not how
	// children are written.
	applier string
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

// Applying is a Writer of children by server-side apply, as this field manager.
func (w *Writer) Applying(manager string) *Writer {
	return &Writer{client: w.client, fence: w.fence, applier: manager}
}

// ServerSideApply says whether children are to be written by server-side apply.
func (w *Writer) ServerSideApply() bool { return w.applier != "" }

// Apply writes an object by server-side apply and takes every field in it from
// whoever owns it. The API server refuses it with a conflict if the object is
// there in another resourceVersion than o has, or if o has a UID and there is no
// object with it.
func (w *Writer) Apply(ctx context.Context, kind object.Kind, o *object.Object) (*object.Object, error) {
	if err := checkPath(o); err != nil {
		return nil, err
	}
	return w.write(ctx, w.applying(kind, o), o.Bytes())
}

// Preview is a dry run of Update, or of Apply.
func (w *Writer) Preview(ctx context.Context, kind object.Kind, o *object.Object, apply bool) (*object.Object, error) {
	request := w.updating(kind, o)
	if apply {
		request = w.applying(kind, o)
	}
	return w.write(ctx, request.Param("dryRun", metav1.DryRunAll), o.Bytes())
}

// HandOver makes the fields of an object that were written by updates, and
// remembered in the last-applied annotation, the applying field manager's, and
// takes the annotation off. Who owns what is not in the caches, so it is read;
// it happens once for an object, after the strategy was changed.
func (w *Writer) HandOver(ctx context.Context, kind object.Kind, observed *object.Object) (*object.Object, error) {
	at := Path(kind, observed.Namespace(), observed.Name())
	reading, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	live, err := Answer(w.client.Get().AbsPath(at).Do(reading))
	if err != nil {
		return nil, err
	}
	now, err := object.FromJSON(live)
	if err != nil {
		return nil, err
	}
	if now.UID() != observed.UID() || now.ResourceVersion() != observed.ResourceVersion() {
		return nil, apierrors.NewConflict(kind.GroupVersionResource().GroupResource(), observed.Name(), errors.New("it changed"))
	}
	patch, err := owned.Migration(live, w.applier, w.applier, FieldManager)
	if err != nil {
		return nil, fmt.Errorf("cannot hand over: %w", err)
	}
	return w.write(ctx, w.client.Patch(types.JSONPatchType).AbsPath(at).Param("fieldManager", FieldManager), patch)
}

// checkPath refuses an object whose names would lead its path to another one: a
// hook may have written "../secrets/x".
func checkPath(o *object.Object) error {
	for field, name := range map[string]string{"metadata.name": o.Name(), "metadata.namespace": o.Namespace()} {
		if wrong := content.IsPathSegmentName(name); len(wrong) > 0 {
			return apierrors.NewBadRequest(fmt.Sprintf("%s %q %s", field, name, wrong[0]))
		}
	}
	return nil
}

func (w *Writer) applying(kind object.Kind, o *object.Object) *rest.Request {
	return w.client.Patch(types.ApplyPatchType).AbsPath(Path(kind, o.Namespace(), o.Name())).
		Param("fieldManager", w.applier).Param("force", "true")
}

func (w *Writer) updating(kind object.Kind, o *object.Object) *rest.Request {
	return w.client.Put().AbsPath(Path(kind, o.Namespace(), o.Name())).Param("fieldManager", FieldManager)
}

// Create makes an object and returns it as the API server has it.
func (w *Writer) Create(ctx context.Context, kind object.Kind, o *object.Object) (*object.Object, error) {
	if err := checkPath(o); err != nil {
		return nil, err
	}
	return w.write(ctx, w.client.Post().AbsPath(Path(kind, o.Namespace(), "")).Param("fieldManager", FieldManager), o.Bytes())
}

// Update replaces an object that has not changed since it was read: a body with
// a resourceVersion and a uid is refused by the API server with a conflict if
// they are not the current ones.
func (w *Writer) Update(ctx context.Context, kind object.Kind, o *object.Object) (*object.Object, error) {
	return w.write(ctx, w.updating(kind, o), o.Bytes())
}

// UpdateStatus replaces the status of an object, by the subresource, under the
// same conditions as Update.
func (w *Writer) UpdateStatus(ctx context.Context, kind object.Kind, o *object.Object) (*object.Object, error) {
	return w.write(ctx, w.client.Put().AbsPath(Path(kind, o.Namespace(), o.Name())+"/status").Param("fieldManager", FieldManager), o.Bytes())
}

// SetFinalizers replaces the finalizers of an object that has not changed since
// it was read. It returns the object as the API server has it; after the last
// finalizer of an object that is being deleted that is its last state.
func (w *Writer) SetFinalizers(ctx context.Context, kind object.Kind, o *object.Object, finalizers []string) (*object.Object, error) {
	if finalizers == nil {
		finalizers = []string{}
	}
	return w.Patch(ctx, kind, o, map[string]any{"metadata": map[string]any{"finalizers": finalizers}})
}

// Patch merges a change, a JSON merge patch (RFC 7386) without what says which
// object it is, into an object that has not changed since it was read: it is
// refused by the API server with a conflict otherwise. It returns the object as
// the API server has it.
func (w *Writer) Patch(ctx context.Context, kind object.Kind, o *object.Object, change map[string]any) (*object.Object, error) {
	patch := maps.Clone(change)
	metadata, _ := change["metadata"].(map[string]any)
	metadata = maps.Clone(metadata)
	if metadata == nil {
		metadata = map[string]any{}
	}
	metadata["uid"], metadata["resourceVersion"] = string(o.UID()), o.ResourceVersion()
	patch["metadata"] = metadata
	body, err := object.Encode(patch)
	if err != nil {
		return nil, fmt.Errorf("cannot encode a change of %q: %w", o, err)
	}
	return w.write(ctx, w.client.Patch(types.MergePatchType).AbsPath(Path(kind, o.Namespace(), o.Name())).Param("fieldManager", FieldManager), body)
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
	return w.parse(w.client.Get().AbsPath(Path(kind, namespace, name)).Do(ctx))
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
	return w.parse(request.Do(ctx))
}

func (w *Writer) parse(result rest.Result) (*object.Object, error) {
	body, err := Answer(result)
	if err != nil {
		return nil, err
	}
	return object.Reader{FieldManager: w.applier}.Take(body)
}
