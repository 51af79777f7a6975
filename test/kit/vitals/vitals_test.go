package vitals

import (
	"net/http"
	"net/http/httptest"
	"net/http/pprof"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

func waitFor(done <-chan struct{}) { <-done }

// This process is the program.
func TestProgram(t *testing.T) {
	registry := prometheus.NewRegistry()
	some := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "some"}, []string{"b", "a"})
	registry.MustRegister(some, collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsAll)))
	some.WithLabelValues("1", `"`)
	mux := http.NewServeMux()
	mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	server := httptest.NewServer(mux)
	defer server.Close()
	address := strings.TrimPrefix(server.URL, "http://")
	p := Program{Metrics: address, Profiles: address}

	if err := p.Collect(t.Context()); err != nil {
		t.Fatal(err)
	}
	sample, err := p.Read(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for what, got := range map[string]float64{
		"RSS": sample.RSS, "live heap": sample.Live, "heap": sample.Heap, "goroutines": sample.Goroutines,
		"files": sample.Files, "CPU": sample.CPU, "series": float64(sample.Series),
	} {
		if got <= 0 {
			t.Errorf("%s: %v", what, got)
		}
	}
	families, err := p.Families(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if series := Series(families); !slices.Contains(series, `some{a="\"",b="1"}`) {
		t.Errorf("the series are %q", series)
	}

	before, err := p.Stacks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	defer close(done)
	for range 3 {
		go waitFor(done)
	}
	after, err := p.Stacks(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	more := slices.DeleteFunc(More(before, after), func(text string) bool { return !strings.Contains(text, "vitals.waitFor") })
	if len(more) != 1 || !strings.HasPrefix(more[0], "3 more: ") {
		t.Errorf("there are more of %q", more)
	}
	if Total(after) < Total(before) {
		t.Errorf("%d goroutines after %d", Total(after), Total(before))
	}
	if _, err := (Program{Metrics: address + "/nothing?"}).Read(t.Context()); err == nil {
		t.Error("no error without metrics")
	}
}
