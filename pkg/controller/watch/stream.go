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
	result := s.request(options).Do(ctx)
	// Raw alone knows nothing of what the API server says about an error.
	if err := result.Error(); err != nil {
		return nil, err
	}
	raw, err := result.Raw()
	if err != nil {
		return nil, err
	}
	var decoded struct {
		metav1.ListMeta `json:"metadata"`
		Items           []json.RawMessage `json:"items"`
	}
	if err := json.Unmarshal(raw, &decoded); err != nil {
		return nil, fmt.Errorf("cannot decode list of %q: %w", s.kind.Resource, err)
	}
	out := &list{ListMeta: decoded.ListMeta, Items: make([]runtime.Object, 0, len(decoded.Items))}
	for _, item := range decoded.Items {
		parsed, err := object.FromJSON(typed(item, s.kind))
		if err != nil {
			return nil, fmt.Errorf("cannot decode one of %q: %w", s.kind.Resource, err)
		}
		out.Items = append(out.Items, parsed)
	}
	return out, nil
}

// typed adds apiVersion and kind to an item of a list, where built-in kinds have
// none.
func typed(item []byte, kind object.Kind) []byte {
	var header struct {
		Kind string `json:"kind"`
	}
	trimmed := bytes.TrimSpace(item)
	if json.Unmarshal(trimmed, &header) != nil || header.Kind != "" || len(trimmed) < 2 {
		return item
	}
	apiVersion, _ := json.Marshal(kind.APIVersion())
	name, _ := json.Marshal(kind.GroupVersionKind.Kind)
	out := fmt.Appendf(nil, `{"kind":%s,"apiVersion":%s`, name, apiVersion)
	if rest := bytes.TrimSpace(trimmed[1:]); rest[0] != '}' {
		out = append(out, ',')
	}
	return append(out, trimmed[1:]...)
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
	return watch.NewStreamWatcher(&decoder{body: body, in: jsontext.NewDecoder(body, jsontext.AllowDuplicateNames(true))},
		apierrors.NewClientErrorReporter(http.StatusInternalServerError, http.MethodGet, "ClientWatchDecoding")), nil
}

// decoder reads the events of a watch.
type decoder struct {
	body io.ReadCloser
	in   *jsontext.Decoder
}

// Close ends the watch.
func (d *decoder) Close() { _ = d.body.Close() }

// Decode waits for the next event.
func (d *decoder) Decode() (watch.EventType, runtime.Object, error) {
	raw, err := d.in.ReadValue()
	if err != nil {
		return "", nil, err
	}
	var (
		event watch.EventType
		body  jsontext.Value
	)
	in := jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true))
	if token, err := in.ReadToken(); err != nil || token.Kind() != '{' {
		return "", nil, fmt.Errorf("cannot decode watch event: not an object")
	}
	for in.PeekKind() == '"' {
		token, err := in.ReadToken()
		if err != nil {
			return "", nil, err
		}
		name := token.String()
		value, err := in.ReadValue()
		if err != nil {
			return "", nil, err
		}
		switch name {
		case "type":
			event = watch.EventType(bytes.Trim(value, `"`))
		case "object":
			body = bytes.Clone(value)
		}
	}
	decoded, err := decode(event, body)
	return event, decoded, err
}

func decode(event watch.EventType, body []byte) (runtime.Object, error) {
	switch event {
	case watch.Added, watch.Modified, watch.Deleted:
		return object.FromJSON(body)
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
