package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
)

// fakeAPI is an API server as far as the program needs one: it is the transport of
// a client, and has the objects in memory. Each watch begins with a list
// (sendInitialEvents).
type fakeAPI struct {
	discovery.AggregatedDiscoveryInterfaceWithContext

	mu      sync.Mutex // guards all below
	objects map[place]map[string]any
	version int
	watches map[*fakeWatch]struct{}
}

// place is where an object is.
type place struct{ group, version, resource, namespace, name string }

type fakeWatch struct {
	of     place
	events chan []byte
}

func newFakeAPI() *fakeAPI {
	return &fakeAPI{objects: map[place]map[string]any{}, watches: map[*fakeWatch]struct{}{}}
}

// served are the kinds that it has, by resource.
var served = map[string]metav1.APIResource{
	"tanks":   {Name: "tanks", Kind: "Tank", Namespaced: true, Group: "leak.example.com", Version: "v1"},
	"drops":   {Name: "drops", Kind: "Drop", Namespaced: true, Group: "leak.example.com", Version: "v1"},
	"puddles": {Name: "puddles", Kind: "Puddle", Namespaced: true, Group: "leak.example.com", Version: "v1"},
	v1alpha1.CompositeControllerResource: {
		Name: v1alpha1.CompositeControllerResource, Kind: v1alpha1.CompositeControllerKind, Group: v1alpha1.GroupVersion.Group, Version: "v1alpha1",
	},
	v1alpha1.DecoratorControllerResource: {
		Name: v1alpha1.DecoratorControllerResource, Kind: v1alpha1.DecoratorControllerKind, Group: v1alpha1.GroupVersion.Group, Version: "v1alpha1",
	},
	v1alpha1.ControllerRevisionResource: {
		Name: v1alpha1.ControllerRevisionResource, Kind: v1alpha1.ControllerRevisionKind, Namespaced: true, Group: v1alpha1.GroupVersion.Group, Version: "v1alpha1",
	},
}

// GroupsAndMaybeResourcesWithContext is discovery.
func (f *fakeAPI) GroupsAndMaybeResourcesWithContext(context.Context) (*metav1.APIGroupList, map[schema.GroupVersion]*metav1.APIResourceList, map[schema.GroupVersion]error, error) {
	lists := map[schema.GroupVersion]*metav1.APIResourceList{}
	for _, one := range served {
		gv := schema.GroupVersion{Group: one.Group, Version: one.Version}
		if lists[gv] == nil {
			lists[gv] = &metav1.APIResourceList{}
		}
		one.Verbs = metav1.Verbs{"list", "watch", "get", "create", "update", "patch", "delete"}
		status := one
		status.Name += "/status"
		lists[gv].APIResources = append(lists[gv].APIResources, one, status)
	}
	return &metav1.APIGroupList{}, lists, nil, nil
}

// openWatches is the number of watches.
func (f *fakeAPI) openWatches() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.watches)
}

// count is the number of objects of a resource.
func (f *fakeAPI) count(resource string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	count := 0
	for at := range f.objects {
		if at.resource == resource {
			count++
		}
	}
	return count
}

// placeOf reads a path.
func placeOf(path string) (at place, subresource string) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	if parts[0] == "api" {
		at.version, parts = parts[1], parts[2:]
	} else {
		at.group, at.version, parts = parts[1], parts[2], parts[3:]
	}
	if parts[0] == "namespaces" && len(parts) > 2 {
		at.namespace, parts = parts[1], parts[2:]
	}
	parts = append(parts, "", "", "")
	at.resource, at.name, subresource = parts[0], parts[1], parts[2]
	return at, subresource
}

// RoundTrip answers a request.
func (f *fakeAPI) RoundTrip(request *http.Request) (*http.Response, error) {
	if err := request.Context().Err(); err != nil {
		return nil, err
	}
	at, subresource := placeOf(request.URL.Path)
	if selected, has := strings.CutPrefix(request.URL.Query().Get("fieldSelector"), "metadata.name="); has {
		at.name = selected
	}
	if request.URL.Query().Get("watch") == "true" {
		return f.watch(request, at), nil
	}
	var body []byte
	if request.Body != nil {
		var err error
		if body, err = io.ReadAll(request.Body); err != nil {
			return nil, err
		}
	}
	f.mu.Lock()
	code, answer := f.serve(request, at, subresource, body)
	f.mu.Unlock()
	encoded, err := json.Marshal(answer)
	return response(request, code, io.NopCloser(bytes.NewReader(encoded))), err
}

func response(request *http.Request, code int, body io.ReadCloser) *http.Response {
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"Content-Type": {"application/json"}}, Body: body, Request: request, ContentLength: -1,
	}
}

func failure(code int, reason metav1.StatusReason) (int, any) {
	return code, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: string(reason),
	}
}

// serve carries out what is no watch. The caller holds mu.
func (f *fakeAPI) serve(request *http.Request, at place, subresource string, body []byte) (int, any) {
	if at.resource == "events" {
		return http.StatusCreated, json.RawMessage(body)
	}
	known := f.objects[at]
	switch {
	case request.Method == http.MethodPost:
		var o map[string]any
		if err := json.Unmarshal(body, &o); err != nil {
			return failure(http.StatusBadRequest, metav1.StatusReasonBadRequest)
		}
		at.name, _ = meta(o)["name"].(string)
		if f.objects[at] != nil {
			return failure(http.StatusConflict, metav1.StatusReasonAlreadyExists)
		}
		return http.StatusCreated, f.put(at, o)
	case request.Method == http.MethodGet && at.name == "":
		items := []any{}
		for other, o := range f.objects {
			if inside(other, at) {
				items = append(items, o)
			}
		}
		return http.StatusOK, map[string]any{"kind": "List", "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": f.now()}, "items": items}
	case known == nil:
		return failure(http.StatusNotFound, metav1.StatusReasonNotFound)
	case request.Method == http.MethodDelete:
		if finalizers, _ := meta(known)["finalizers"].([]any); len(finalizers) > 0 {
			gone := clone(known)
			meta(gone)["deletionTimestamp"] = "2030-01-01T00:00:00Z"
			return http.StatusOK, f.put(at, gone)
		}
		f.remove(at)
		return http.StatusOK, metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusSuccess}
	case request.Method == http.MethodPut || request.Method == http.MethodPatch:
		if request.Method == http.MethodPatch {
			before, err := json.Marshal(known)
			if err == nil {
				body, err = jsonpatch.MergePatch(before, body)
			}
			if err != nil {
				return failure(http.StatusBadRequest, metav1.StatusReasonBadRequest)
			}
		}
		var o map[string]any
		if err := json.Unmarshal(body, &o); err != nil {
			return failure(http.StatusBadRequest, metav1.StatusReasonBadRequest)
		}
		if meta(o)["uid"] != meta(known)["uid"] || meta(o)["resourceVersion"] != meta(known)["resourceVersion"] {
			return failure(http.StatusConflict, metav1.StatusReasonConflict)
		}
		if subresource == "status" {
			changed := clone(known)
			changed["status"] = o["status"]
			o = changed
		}
		if finalizers, _ := meta(o)["finalizers"].([]any); meta(known)["deletionTimestamp"] != nil && len(finalizers) == 0 {
			f.remove(at)
			return http.StatusOK, o
		}
		return http.StatusOK, f.put(at, o)
	default:
		return http.StatusOK, known
	}
}

func meta(o map[string]any) map[string]any {
	metadata, _ := o["metadata"].(map[string]any)
	return metadata
}

// clone is deep enough for what is changed here.
func clone(o map[string]any) map[string]any {
	out := maps.Clone(o)
	out["metadata"] = maps.Clone(meta(o))
	return out
}

func (f *fakeAPI) now() string { return strconv.Itoa(f.version + 1) }

// put stores an object, if it differs, and tells the watches. The caller holds mu.
func (f *fakeAPI) put(at place, o map[string]any) map[string]any {
	known := f.objects[at]
	o = clone(o)
	event := "MODIFIED"
	if known == nil {
		event = "ADDED"
		meta(o)["uid"] = "uid-" + strconv.Itoa(f.version+2)
		meta(o)["creationTimestamp"] = "2030-01-01T00:00:00Z"
	} else if meta(o)["resourceVersion"] = meta(known)["resourceVersion"]; reflect.DeepEqual(known, o) {
		return known
	}
	f.version++
	meta(o)["resourceVersion"] = f.now()
	f.objects[at] = o
	f.tell(at, event, o)
	return o
}

func (f *fakeAPI) remove(at place) {
	gone := clone(f.objects[at])
	delete(f.objects, at)
	f.version++
	meta(gone)["resourceVersion"] = f.now()
	f.tell(at, "DELETED", gone)
}

func inside(one, of place) bool {
	return one.group == of.group && one.version == of.version && one.resource == of.resource &&
		(of.namespace == "" || of.namespace == one.namespace) && (of.name == "" || of.name == one.name)
}

func eventOf(event string, o map[string]any) []byte {
	encoded, _ := json.Marshal(map[string]any{"type": event, "object": o}) // it came from JSON
	return append(encoded, '\n')
}

func (f *fakeAPI) tell(at place, event string, o map[string]any) {
	for one := range f.watches {
		if inside(at, one.of) {
			one.events <- eventOf(event, o)
		}
	}
}

// watch opens a stream. It ends with its request, or when its body is closed.
func (f *fakeAPI) watch(request *http.Request, of place) *http.Response {
	reader, writer := io.Pipe()
	ctx, cancel := context.WithCancel(request.Context())
	one := &fakeWatch{of: of, events: make(chan []byte, 100000)}
	f.mu.Lock()
	for at, o := range f.objects {
		if inside(at, of) {
			one.events <- eventOf("ADDED", o)
		}
	}
	kind := served[of.resource].Kind
	if kind == "" {
		kind = "Anything"
	}
	one.events <- eventOf("BOOKMARK", map[string]any{
		"kind": kind, "apiVersion": strings.TrimPrefix(of.group+"/"+of.version, "/"),
		"metadata": map[string]any{"resourceVersion": f.now(), "annotations": map[string]any{metav1.InitialEventsAnnotationKey: "true"}},
	})
	f.watches[one] = struct{}{}
	f.mu.Unlock()
	go func() {
		defer func() {
			cancel()
			f.mu.Lock()
			defer f.mu.Unlock()
			delete(f.watches, one)
		}()
		for {
			select {
			case <-ctx.Done():
				_ = writer.CloseWithError(ctx.Err())
				return
			case event := <-one.events:
				if _, err := writer.Write(event); err != nil {
					return
				}
			}
		}
	}()
	return response(request, http.StatusOK, &stream{reader, cancel})
}

type stream struct {
	*io.PipeReader
	cancel func()
}

// Close ends the watch.
func (s *stream) Close() error {
	s.cancel()
	return s.PipeReader.Close()
}

// do makes a request as a user would.
func (f *fakeAPI) do(method string, o map[string]any) error {
	kind, _ := o["kind"].(string)
	for _, one := range served {
		if one.Kind != kind {
			continue
		}
		at := place{group: one.Group, version: one.Version, resource: one.Name}
		at.namespace, _ = meta(o)["namespace"].(string)
		at.name, _ = meta(o)["name"].(string)
		body, err := json.Marshal(o)
		if err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		request := &http.Request{Method: method}
		if method == http.MethodPatch {
			// What the program says of the object that it changes, a user leaves out.
			if known := f.objects[at]; known != nil {
				body, err = jsonpatch.MergePatch(body, fmt.Appendf(nil, `{"metadata":{"uid":%q,"resourceVersion":%q}}`, meta(known)["uid"], meta(known)["resourceVersion"]))
			}
			if err != nil {
				return err
			}
		}
		if code, answer := f.serve(request, at, "", body); code >= 300 {
			return fmt.Errorf("cannot %s %v: %v", method, at, answer)
		}
		return nil
	}
	return fmt.Errorf("kind %q is not served", kind)
}
