// Program hook is the demo's hook server: it answers the sync hook of the
// Greeting controller with one ConfigMap for each name in the parent's
// spec.names, and with a status that counts them.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

// maxRequest bounds what is read of one request, in bytes.
const maxRequest = 1 << 20

type greeting struct {
	Metadata struct {
		Name string `json:"name"`
	} `json:"metadata"`
	Spec struct {
		Text  string   `json:"text"`
		Names []string `json:"names"`
	} `json:"spec"`
}

type request struct {
	Parent   greeting                              `json:"parent"`
	Children map[string]map[string]json.RawMessage `json:"children"`
}

type response struct {
	Status   map[string]any `json:"status"`
	Children []any          `json:"children"`
}

// answer is the whole controller: what should exist for this parent.
func answer(r request) response {
	children := make([]any, 0, len(r.Parent.Spec.Names))
	for _, name := range r.Parent.Spec.Names {
		children = append(children, map[string]any{
			"apiVersion": "v1",
			"kind":       "ConfigMap",
			"metadata":   map[string]any{"name": r.Parent.Metadata.Name + "-" + name},
			"data":       map[string]any{"greeting": r.Parent.Spec.Text + ", " + name + "!"},
		})
	}
	return response{
		Status: map[string]any{
			"wanted":   len(children),
			"observed": len(r.Children["ConfigMap.v1"]),
		},
		Children: children,
	}
}

func sync(w http.ResponseWriter, r *http.Request) {
	var in request
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxRequest)).Decode(&in); err != nil {
		http.Error(w, "cannot read the request: "+err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(answer(in)); err != nil {
		fmt.Fprintln(os.Stderr, "cannot write the answer:", err)
	}
}

func run(address string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	mux := http.NewServeMux()
	mux.HandleFunc("POST /sync", sync)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 5 * time.Second}

	failed := make(chan error, 1)
	go func() { failed <- server.ListenAndServe() }()
	fmt.Println("listening on", address)
	select {
	case err := <-failed:
		return fmt.Errorf("cannot listen on %q: %w", address, err)
	case <-ctx.Done():
	}
	drain, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if err := server.Shutdown(drain); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("cannot stop cleanly: %w", err)
	}
	return nil
}

func main() {
	address := flag.String("address", "127.0.0.1:8080", "where to listen")
	flag.Parse()
	if err := run(*address); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
