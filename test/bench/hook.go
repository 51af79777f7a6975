package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/metacontroller-solo/solo/test/bench/workload"
	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/kit/process"
)

const (
	// maxHookRequest bounds what the hook server reads of one request, in bytes.
	maxHookRequest = 16 << 20

	compositePath = "/composite"
	decoratorPath = "/decorator"
	customizePath = "/customize"
	statsPath     = "/stats"
	markPath      = "/mark"
)

// hookStats are what a hook server counted.
type hookStats struct {
	// Sync and Customize are calls of these hooks that were answered, Running those
	// that are not yet.
	Sync      int `json:"sync"`
	Customize int `json:"customize"`
	Running   int `json:"running"`
	// Parents is how many parents were synced since the mark, NewAt when the last
	// of them was for the first time.
	Parents int       `json:"parents"`
	NewAt   time.Time `json:"newAt"`
}

// hookServer answers the hooks of all modes. It runs in a process of its own, so
// that what it costs is not taken for the controller's.
type hookServer struct {
	mu      sync.Mutex // guards all below
	stats   hookStats
	parents map[string]bool
}

// serveHooks serves hooks on an address until ctx ends.
func serveHooks(ctx context.Context, address string) error {
	s := &hookServer{parents: map[string]bool{}}
	mux := http.NewServeMux()
	mux.Handle("POST "+compositePath, s.hook(workload.AnswerComposite, &s.stats.Sync))
	mux.Handle("POST "+decoratorPath, s.hook(workload.AnswerDecorator, &s.stats.Sync))
	mux.Handle("POST "+customizePath, s.hook(workload.AnswerCustomize, &s.stats.Customize))
	mux.HandleFunc("GET "+statsPath, s.tell)
	mux.HandleFunc("POST "+markPath, s.mark)
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: requestTimeout}
	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	select {
	case err := <-failed:
		return fmt.Errorf("cannot serve hooks on %q: %w", address, err)
	case <-ctx.Done():
		return server.Close()
	}
}

// hook is a handler that answers with what answer makes, and counts in counter,
// which mu guards.
func (s *hookServer) hook(answer func(workload.Request) any, counter *int) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.count(func() { s.stats.Running++ })
		defer s.count(func() { s.stats.Running-- })
		var request workload.Request
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxHookRequest))
		if err == nil {
			err = json.Unmarshal(body, &request)
		}
		parent := request.Parent
		if r.URL.Path == decoratorPath {
			parent = request.Object
		}
		if err == nil && parent == nil {
			err = errors.New("there is no parent in the request")
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		encoded, err := json.Marshal(answer(request))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		s.count(func() {
			*counter++
			if uid := parent.Metadata.UID; r.URL.Path != customizePath && !s.parents[uid] {
				s.parents[uid] = true
				s.stats.Parents, s.stats.NewAt = len(s.parents), time.Now()
			}
		})
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(encoded) // whoever asked may be gone
	}
}

func (s *hookServer) count(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

func (s *hookServer) tell(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	stats := s.stats
	s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(stats)
}

func (s *hookServer) mark(http.ResponseWriter, *http.Request) {
	s.count(func() {
		clear(s.parents)
		s.stats.Parents, s.stats.NewAt = 0, time.Time{}
	})
}

// hookProcess is a hook server in a process of its own.
type hookProcess struct {
	proc    *process.Process
	address string
}

// startHook starts this program as a hook server and waits until it answers.
func startHook(ctx context.Context) (*hookProcess, error) {
	address, err := freeAddress()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find this program: %w", err)
	}
	h := &hookProcess{address: address}
	h.proc, err = process.Start(process.Spec{Name: "hook server", Path: self, Args: []string{hookCommand, "--address", address}, Env: environment()})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err = h.proc.Until(ctx, func(ctx context.Context) error {
		_, err := h.stats(ctx)
		return err
	})
	if err != nil {
		h.proc.Kill()
		return nil, err
	}
	return h, nil
}

// url is the address of a hook.
func (h *hookProcess) url(path string) string { return "http://" + h.address + path }

// stats asks for the counts.
func (h *hookProcess) stats(ctx context.Context) (hookStats, error) {
	var stats hookStats
	body, err := fetch(ctx, http.MethodGet, h.url(statsPath))
	if err == nil {
		err = json.Unmarshal(body, &stats)
	}
	if err != nil {
		return stats, fmt.Errorf("cannot ask the hook server what it counted: %w", err)
	}
	return stats, nil
}

// mark begins the count of parents anew.
func (h *hookProcess) mark(ctx context.Context) error {
	_, err := fetch(ctx, http.MethodPost, h.url(markPath))
	return err
}

// maxFetch bounds what is read of an answer of the programs that are measured.
const maxFetch = 256 << 20

// fetch reads a page of a program that runs here.
func fetch(ctx context.Context, method, url string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, url, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot ask %q: %w", url, err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return nil, err // it has the address
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, maxFetch))
	if err != nil {
		return nil, fmt.Errorf("cannot read the answer of %q: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%q answered %s: %.200s", url, response.Status, body)
	}
	return body, nil
}

// freeAddress is one on loopback that nothing listens on.
func freeAddress() (string, error) {
	port, err := kit.FreePort()
	return fmt.Sprintf("127.0.0.1:%d", port), err
}
