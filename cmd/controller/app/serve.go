package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits of the program's own endpoints.
const (
	headerTimeout = 10 * time.Second
	closeTimeout  = 2 * time.Second
)

// endpoint is one address to listen on.
type endpoint struct {
	flag, address string
	handler       http.Handler
}

// endpoints are what the program serves.
func endpoints(config *Config, gatherer prometheus.Gatherer) []endpoint {
	health := http.NewServeMux()
	ok := func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok")) }
	health.HandleFunc("/healthz", ok)
	health.HandleFunc("/readyz", ok)

	metrics := http.NewServeMux()
	metrics.Handle("/metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))

	profiles := http.NewServeMux()
	profiles.HandleFunc("/debug/pprof/", pprof.Index)
	profiles.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	profiles.HandleFunc("/debug/pprof/profile", pprof.Profile)
	profiles.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	profiles.HandleFunc("/debug/pprof/trace", pprof.Trace)

	return []endpoint{
		{flagHealthAddress, config.HealthAddress, health},
		{flagMetricsAddress, config.MetricsAddress, metrics},
		{flagPprofAddress, config.PprofAddress, profiles},
	}
}

// serve listens on all endpoints, or on none. Stop ends them.
func serve(all []endpoint) (stop func(), err error) {
	var (
		servers   []*http.Server
		listeners []net.Listener
	)
	for _, one := range all {
		if one.address == addressOff || one.address == "" {
			continue
		}
		listener, err := net.Listen("tcp", one.address)
		if err != nil {
			for _, earlier := range listeners {
				_ = earlier.Close()
			}
			return nil, fmt.Errorf("cannot listen on %q: %w; give another address with --%s, or 0 to do without", one.address, err, one.flag)
		}
		listeners = append(listeners, listener)
		servers = append(servers, &http.Server{Handler: one.handler, ReadHeaderTimeout: headerTimeout})
	}
	var running sync.WaitGroup
	for i, server := range servers {
		running.Go(func() { _ = server.Serve(listeners[i]) })
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		for _, server := range servers {
			if err := server.Shutdown(ctx); errors.Is(err, context.DeadlineExceeded) {
				_ = server.Close()
			}
		}
		running.Wait()
	}, nil
}
