// Package vitals reads from outside what a running program of this project costs
// and holds: its own /metrics and /debug/pprof say it.
//
//	program ── /metrics ───────> Metrics ─> Sample, Series
//	        └─ /debug/pprof ───> Collect (garbage), Stacks
package vitals

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

const (
	// requestTimeout bounds one question. A program that is busy answers late.
	requestTimeout = 30 * time.Second
	// sizeLimit bounds an answer.
	sizeLimit = 64 << 20
)

// Program is a program to read from.
type Program struct {
	// Metrics and Profiles are the addresses, host:port, of /metrics and of
	// /debug/pprof.
	Metrics, Profiles string
}

// Sample is what a program holds at one time.
type Sample struct {
	At time.Time `json:"at"`
	// RSS is the memory of the process, in bytes.
	RSS float64 `json:"rss"`
	// Live is the heap that the last garbage collection found in use, and Heap the
	// heap as it is, both in bytes.
	Live float64 `json:"live"`
	Heap float64 `json:"heap"`
	// Goroutines, Files (open descriptors) and Series (of metrics) are numbers.
	Goroutines float64 `json:"goroutines"`
	Files      float64 `json:"files"`
	Series     int     `json:"series"`
	// CPU is what the process has used since its start, in seconds.
	CPU float64 `json:"cpu"`
}

// Names of the metrics that a Sample is made of; client_golang's.
const (
	metricRSS        = "process_resident_memory_bytes"
	metricLive       = "go_gc_heap_live_bytes"
	metricHeap       = "go_memstats_heap_alloc_bytes"
	metricGoroutines = "go_goroutines"
	metricFiles      = "process_open_fds"
	metricCPU        = "process_cpu_seconds_total"
)

// Read takes a sample.
func (p Program) Read(ctx context.Context) (Sample, error) {
	families, err := p.Families(ctx)
	if err != nil {
		return Sample{}, err
	}
	sample := Sample{At: time.Now(), Series: len(Series(families))}
	for name, into := range map[string]*float64{
		metricRSS: &sample.RSS, metricLive: &sample.Live, metricHeap: &sample.Heap,
		metricGoroutines: &sample.Goroutines, metricFiles: &sample.Files, metricCPU: &sample.CPU,
	} {
		family := families[name]
		if len(family.GetMetric()) != 1 {
			return Sample{}, fmt.Errorf("cannot find metric %q at %s", name, p.Metrics)
		}
		*into = value(family.Metric[0])
	}
	return sample, nil
}

// value of a gauge or a counter.
func value(metric *dto.Metric) float64 {
	switch {
	case metric.Gauge != nil:
		return metric.Gauge.GetValue()
	case metric.Counter != nil:
		return metric.Counter.GetValue()
	default:
		return metric.GetUntyped().GetValue()
	}
}

// Families are the metrics by name.
func (p Program) Families(ctx context.Context) (map[string]*dto.MetricFamily, error) {
	body, err := get(ctx, "http://"+p.Metrics+"/metrics")
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("cannot read the metrics of %s: %w", p.Metrics, err)
	}
	return families, nil
}

// Series names every series: the name of the metric and its labels.
func Series(families map[string]*dto.MetricFamily) []string {
	var all []string
	for name, family := range families {
		for _, metric := range family.GetMetric() {
			labels := make([]string, 0, len(metric.GetLabel()))
			for _, label := range metric.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", label.GetName(), label.GetValue()))
			}
			slices.Sort(labels)
			all = append(all, name+"{"+strings.Join(labels, ",")+"}")
		}
	}
	slices.Sort(all)
	return all
}

// Collect has the program collect its garbage.
func (p Program) Collect(ctx context.Context) error {
	// What a finalizer or a pool still held is garbage the second time.
	for range 2 {
		if _, err := get(ctx, "http://"+p.Profiles+"/debug/pprof/heap?gc=1"); err != nil {
			return err
		}
	}
	return nil
}

// HeapProfile is what is in use of the heap, for go tool pprof.
func (p Program) HeapProfile(ctx context.Context) ([]byte, error) {
	body, err := get(ctx, "http://"+p.Profiles+"/debug/pprof/heap?gc=1")
	return []byte(body), err
}

// Stacks counts the goroutines by what they do: their stack as a text, innermost
// function first.
func (p Program) Stacks(ctx context.Context) (map[string]int, error) {
	body, err := get(ctx, "http://"+p.Profiles+"/debug/pprof/goroutine?debug=1")
	if err != nil {
		return nil, err
	}
	stacks := map[string]int{}
	count := 0
	var stack []string
	flush := func() {
		if count > 0 {
			stacks[strings.Join(stack, " < ")] += count
		}
		count, stack = 0, nil
	}
	lines := bufio.NewScanner(strings.NewReader(body))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if number, _, found := strings.Cut(line, " @ "); found {
			flush()
			if count, err = strconv.Atoi(number); err != nil {
				return nil, fmt.Errorf("cannot read the goroutines of %s: line %q", p.Profiles, line)
			}
			continue
		}
		// #	0x46d52c	k8s.io/client-go/tools/cache.(*Reflector).Run+0x1c	/path/reflector.go:1
		if fields := strings.Split(line, "\t"); strings.HasPrefix(line, "#\t") && len(fields) > 2 {
			function, _, _ := strings.Cut(fields[2], "+0x")
			stack = append(stack, function)
		}
	}
	flush()
	return stacks, lines.Err()
}

// More describes the stacks of which there are more after than before.
func More(before, after map[string]int) []string {
	var more []string
	for _, stack := range slices.Sorted(maps.Keys(after)) {
		if after[stack] > before[stack] {
			more = append(more, fmt.Sprintf("%d more: %s", after[stack]-before[stack], stack))
		}
	}
	return more
}

// Total is the number of goroutines.
func Total(stacks map[string]int) int {
	total := 0
	for _, count := range stacks {
		total += count
	}
	return total
}

// client keeps no connection: the program would count it.
var client = &http.Client{Timeout: requestTimeout, Transport: &http.Transport{DisableKeepAlives: true}}

func get(ctx context.Context, url string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", fmt.Errorf("cannot ask %s: %w", url, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return "", fmt.Errorf("cannot ask %s: %w", url, err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, sizeLimit))
	if err != nil {
		return "", fmt.Errorf("cannot read the answer of %s: %w", url, err)
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("cannot ask %s: status %d", url, response.StatusCode)
	}
	return string(body), nil
}
