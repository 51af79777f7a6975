package watch

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/go-json-experiment/json/jsontext"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/metacontroller-solo/solo/pkg/controller/cluster"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// source lists and watches one kind, for client-go's reflector.
type source struct {
	client  rest.Interface
	kind    object.Kind
	options Options
}

// list is what the reflector reads items and the resource version from.
type list struct {
	metav1.TypeMeta
	metav1.ListMeta
	Items []runtime.Object
}

func (l *list) GetObjectKind() schema.ObjectKind { return &l.TypeMeta }
func (l *list) DeepCopyObject() runtime.Object   { return l }

func (s *source) reader() object.Reader { return object.Reader{FieldManager: s.options.FieldManager} }

func (s *source) request(options metav1.ListOptions) *rest.Request {
	options.LabelSelector = s.options.LabelSelector
	if s.options.Name != "" {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, s.options.Name).String()
	}
	request := s.client.Get().AbsPath(cluster.Path(s.kind, s.options.Namespace, "")).
		SpecificallyVersionedParams(&options, metav1.ParameterCodec, schema.GroupVersion{Version: "v1"})
	if s.options.MetadataOnly {
		what := "PartialObjectMetadataList"
		if options.Watch {
			what = "PartialObjectMetadata"
		}
		request.SetHeader("Accept", "application/json;as="+what+";g=meta.k8s.io;v=v1")
	}
	return request
}

// ListWithContext is used with API servers that cannot stream a list.
func (s *source) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	raw, err := cluster.Answer(s.request(options).Do(ctx))
	if err != nil {
		return nil, err
	}
	page, err := s.reader().ListFromJSON(raw)
	if err != nil {
		return nil, fmt.Errorf("cannot decode list of %q: %w", s.kind.Resource, err)
	}
	out := &list{ListMeta: metav1.ListMeta{ResourceVersion: page.ResourceVersion, Continue: page.Continue}, Items: make([]runtime.Object, 0, len(page.Items))}
	for _, item := range page.Items {
		out.Items = append(out.Items, item)
	}
	return out, nil
}

// List is ListWithContext for those who have no context.
func (s *source) List(options metav1.ListOptions) (runtime.Object, error) {
	return s.ListWithContext(context.Background(), options)
}

// Watch is WatchWithContext for those who have no context.
func (s *source) Watch(options metav1.ListOptions) (watch.Interface, error) {
	return s.WatchWithContext(context.Background(), options)
}

// WatchWithContext streams changes, and with a new API server the list before
// them.
func (s *source) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	options.Watch = true
	body, err := s.request(options).Stream(ctx)
	if err != nil {
		return nil, err
	}
	return watch.NewStreamWatcher(&decoder{body: body, reader: s.reader(), in: jsontext.NewDecoder(body, jsontext.AllowDuplicateNames(true))},
		apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding")), nil
}

// decoder reads the events of a watch.
type decoder struct {
	body   io.ReadCloser
	in     *jsontext.Decoder
	reader object.Reader
}

// Close ends the watch.
func (d *decoder) Close() { _ = d.body.Close() }

// Decode waits for the next event.
func (d *decoder) Decode() (watch.EventType, runtime.Object, error) {
	token, err := d.in.ReadToken()
	if err != nil {
		return "", nil, err
	}
	if token.Kind() != '{' {
		return "", nil, fmt.Errorf("cannot decode watch event: not an object")
	}
	var (
		event   watch.EventType
		decoded runtime.Object
		// early is the object of an event that says its type after it.
		early []byte
	)
	for d.in.PeekKind() == '"' {
		// The name is gone once the value is read.
		name, err := d.in.ReadValue()
		if err != nil {
			return "", nil, err
		}
		isType, isObject := string(name) == `"type"`, string(name) == `"object"`
		value, err := d.in.ReadValue()
		if err != nil {
			return "", nil, err
		}
		switch {
		case isType:
			event = watch.EventType(bytes.Trim(value, `"`))
		case isObject && event == "":
			early = bytes.Clone(value)
		case isObject:
			if decoded, err = d.decode(event, value); err != nil {
				return "", nil, err
			}
		}
	}
	if _, err := d.in.ReadToken(); err != nil {
		return "", nil, err
	}
	if decoded == nil {
		decoded, err = d.decode(event, early)
	}
	return event, decoded, err
}

func (d *decoder) decode(event watch.EventType, body []byte) (runtime.Object, error) {
	switch event {
	case watch.Added, watch.Modified, watch.Deleted:
		return d.reader.FromJSON(body)
	case watch.Bookmark:
		// It has a resource version and annotations, and no name.
		var mark metav1.PartialObjectMetadata
		if err := json.Unmarshal(body, &mark); err != nil {
			return nil, fmt.Errorf("cannot decode bookmark: %w", err)
		}
		return &mark, nil
	case watch.Error:
		var status metav1.Status
		if err := json.Unmarshal(body, &status); err != nil {
			return nil, fmt.Errorf("cannot decode error in watch: %w", err)
		}
		return &status, nil
	}
	return nil, fmt.Errorf("cannot decode watch event of type %q", event)
}
