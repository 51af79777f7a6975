package apply_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// server is a model of what the API server does to an object: it guards writes
// by UID and resourceVersion, counts resourceVersions only when something
// changes, fills in defaults and leaves out what is empty. It is a rule to test
// other rules with; whether the real one agrees is for the integration tests.
type server struct {
	mu      sync.Mutex
	objects map[object.Key]map[string]any // guarded by mu
	version int                           // guarded by mu
	writes  int                           // guarded by mu
}

func newServer() *server { return &server{objects: map[object.Key]map[string]any{}} }

func resource(kind object.Kind) schema.GroupResource {
	return kind.GroupVersionResource().GroupResource()
}

func (s *server) Create(_ context.Context, kind object.Kind, o *object.Object) (*object.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	key := o.Key()
	if _, ok := s.objects[key]; ok {
		return nil, apierrors.NewAlreadyExists(resource(kind), key.Name)
	}
	content := stored(o.Content())
	metadata := content["metadata"].(map[string]any)
	s.version++
	metadata["uid"] = fmt.Sprintf("uid-%d", s.version)
	metadata["creationTimestamp"] = "2026-01-01T00:00:00Z"
	metadata["resourceVersion"] = strconv.Itoa(s.version)
	s.objects[key] = content
	return object.FromContent(content)
}

func (s *server) Update(_ context.Context, kind object.Kind, o *object.Object) (*object.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	key := o.Key()
	old, ok := s.objects[key]
	if !ok {
		return nil, apierrors.NewNotFound(resource(kind), key.Name)
	}
	before := old["metadata"].(map[string]any)
	if string(o.UID()) != before["uid"] || o.ResourceVersion() != before["resourceVersion"] {
		return nil, apierrors.NewConflict(resource(kind), key.Name, fmt.Errorf("it changed"))
	}
	content := stored(o.Content())
	if !object.Equal(content, old) {
		s.version++
		content["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(s.version)
		s.objects[key] = content
	}
	return object.FromContent(s.objects[key])
}

// Preview is Update on a copy.
func (s *server) Preview(ctx context.Context, kind object.Kind, o *object.Object, apply bool) (*object.Object, error) {
	if apply {
		return s.Apply(ctx, kind, o)
	}
	s.mu.Lock()
	dry := newServer()
	dry.version = s.version
	if content, ok := s.objects[o.Key()]; ok {
		dry.objects[o.Key()] = content
	}
	s.mu.Unlock()
	return dry.Update(ctx, kind, o)
}

// Apply is not modelled here: package owned is tested with the API server's own
// library.
func (s *server) Apply(context.Context, object.Kind, *object.Object) (*object.Object, error) {
	return nil, errors.New("this server does not apply")
}

func (s *server) HandOver(context.Context, object.Kind, *object.Object) (*object.Object, error) {
	return nil, errors.New("this server does not apply")
}

func (s *server) Delete(_ context.Context, kind object.Kind, key object.Key, uid types.UID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.writes++
	old, ok := s.objects[key]
	if !ok {
		return apierrors.NewNotFound(resource(kind), key.Name)
	}
	if old["metadata"].(map[string]any)["uid"] != string(uid) {
		return apierrors.NewConflict(resource(kind), key.Name, fmt.Errorf("another UID"))
	}
	delete(s.objects, key)
	return nil
}

// all are the objects of the server.
func (s *server) all() []*object.Object {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []*object.Object
	for _, content := range s.objects {
		o, err := object.FromContent(content)
		if err != nil {
			panic(err)
		}
		out = append(out, o)
	}
	return out
}

// edit changes an object as somebody else would.
func (s *server) edit(key object.Key, change func(content map[string]any)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	content := s.objects[key]
	change(content)
	s.version++
	content["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(s.version)
}

// stored is content as the server keeps it.
func stored(content map[string]any) map[string]any {
	metadata := content["metadata"]
	out, _ := tidy(content).(map[string]any)
	out["metadata"], _ = prune(metadata).(map[string]any)
	spec, _ := out["spec"].(map[string]any)
	if spec == nil {
		spec = map[string]any{}
		out["spec"] = spec
	}
	if _, ok := spec["policy"]; !ok {
		spec["policy"] = "Default"
	}
	return out
}

// tidy leaves out empty fields and fills in defaults of elements of lists.
func tidy(value any) any {
	switch value := value.(type) {
	case map[string]any:
		out := map[string]any{}
		for key, field := range value {
			if field = tidy(field); field == nil || field == "" || field == false {
				continue
			}
			if list, ok := field.([]any); ok && len(list) == 0 {
				continue
			}
			out[key] = field
		}
		return out
	case []any:
		out := []any{}
		for _, element := range value {
			element = tidy(element)
			if fields, ok := element.(map[string]any); ok {
				if _, ok := fields["default"]; !ok {
					fields["default"] = int64(1)
				}
			}
			out = append(out, element)
		}
		return out
	default:
		return value
	}
}

// prune leaves out nulls and empty objects.
func prune(value any) any {
	fields, ok := value.(map[string]any)
	if !ok {
		return value
	}
	out := map[string]any{}
	for key, field := range fields {
		if field = prune(field); field == nil {
			continue
		}
		if inner, ok := field.(map[string]any); ok && len(inner) == 0 {
			continue
		}
		out[key] = field
	}
	return out
}
