package main

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"
)

// Of every so many calls one fails in this way.
const (
	everyError     = 101
	everyBusy      = 211
	everyTruncated = 307
	everyCut       = 401
	everySlow      = 503
	slowness       = 300 * time.Millisecond
	childrenOfEach = 2
)

// hooks is the server of all hooks.
type hooks struct {
	url    string
	server *http.Server
	// mended ends the faults.
	mended atomic.Bool
	// calls and faults are numbers.
	calls, faults atomic.Int64
	// padding is in each child.
	padding string
}

func listen() (*hooks, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("cannot listen for hooks: %w", err)
	}
	h := &hooks{url: "http://" + listener.Addr().String(), padding: strings.Repeat("x", 400)}
	mux := http.NewServeMux()
	mux.HandleFunc("/customize", h.customize)
	mux.HandleFunc("/decorate", h.decorate)
	mux.HandleFunc("/sync", h.sync)
	h.server = &http.Server{Handler: h.faulty(mux), ReadHeaderTimeout: 10 * time.Second}
	go func() { _ = h.server.Serve(listener) }()
	return h, nil
}

func (h *hooks) close() { _ = h.server.Close() }

// mend lets no call fail any more.
func (h *hooks) mend() { h.mended.Store(true) }

// faulty fails now and then, in the ways in which hooks do.
func (h *hooks) faulty(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := h.calls.Add(1)
		if h.mended.Load() {
			next.ServeHTTP(w, r)
			return
		}
		switch {
		case n%everyError == 0:
			http.Error(w, fmt.Sprintf("fault %d", n), http.StatusInternalServerError)
		case n%everyBusy == 0:
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		case n%everyTruncated == 0:
			_, _ = w.Write([]byte(`{"children":[`))
		case n%everyCut == 0:
			h.faults.Add(1)
			panic(http.ErrAbortHandler)
		case n%everySlow == 0:
			time.Sleep(slowness)
			next.ServeHTTP(w, r)
		default:
			next.ServeHTTP(w, r)
			return
		}
		h.faults.Add(1)
	})
}

// parent is what a hook reads of an object in a request.
type parent struct {
	Metadata struct {
		Name   string            `json:"name"`
		Labels map[string]string `json:"labels"`
	} `json:"metadata"`
	Spec struct {
		Value string `json:"value"`
	} `json:"spec"`
}

type request struct {
	Controller parent `json:"controller"`
	Parent     parent `json:"parent"`
	Object     parent `json:"object"`
	Finalizing bool   `json:"finalizing"`
}

type object = map[string]any

func read(w http.ResponseWriter, r *http.Request) (request, bool) {
	var in request
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return in, false
	}
	return in, true
}

func answer(w http.ResponseWriter, out object) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(out) // whoever asked may be gone
}

func (h *hooks) configMap(name, value string) object {
	return object{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": name},
		"data": object{keyValue: value, "padding": h.padding},
	}
}

func (h *hooks) sync(w http.ResponseWriter, r *http.Request) {
	in, ok := read(w, r)
	if !ok {
		return
	}
	children := []object{}
	if !in.Finalizing {
		for i := range childrenOfEach {
			children = append(children, h.configMap(childName(in.Parent.Metadata.Name, i), in.Parent.Spec.Value))
		}
	}
	answer(w, object{"status": object{"value": in.Parent.Spec.Value}, "children": children, "finalized": true})
}

// decorate has an ETag, which is the value that its answer depends on.
func (h *hooks) decorate(w http.ResponseWriter, r *http.Request) {
	in, ok := read(w, r)
	if !ok {
		return
	}
	tag := fmt.Sprintf(`"%s-%t"`, in.Object.Spec.Value, in.Finalizing)
	w.Header().Set("ETag", tag)
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	attachments := []object{}
	if !in.Finalizing {
		attachments = append(attachments, h.configMap(decorationName(in.Object.Metadata.Name, in.Controller.Metadata.Name), in.Object.Spec.Value))
	}
	answer(w, object{"annotations": object{"decorated": "yes"}, "attachments": attachments, "finalized": true})
}

// customize gives each parent the puddle of its slot.
func (h *hooks) customize(w http.ResponseWriter, r *http.Request) {
	in, ok := read(w, r)
	if !ok {
		return
	}
	slot, _, _ := strings.Cut(in.Parent.Metadata.Name, "-")
	answer(w, object{"relatedResources": []object{{"apiVersion": soakAPI, "resource": "puddles", "names": []string{slot}}}})
}
