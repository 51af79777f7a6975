// Package report is what the benchmark says at the end.
//
//	phases of the controller, of the raw writer, of the public build ─> Run
//	Run ─> ratios ─> Table, JSON
package report

import (
	"time"

	"github.com/metacontroller-solo/solo/test/bench/tally"
	"github.com/metacontroller-solo/solo/test/bench/workload"
)

// Report is everything, as it is written as JSON.
type Report struct {
	Machine Machine `json:"machine"`
	Runs    []Run   `json:"runs"`
}

// Machine are the facts that figures depend on.
type Machine struct {
	OS           string `json:"os"`
	Architecture string `json:"architecture"`
	CPUs         int    `json:"cpus"`
	// Go is the version that the programs are built with.
	Go         string `json:"go"`
	Kubernetes string `json:"kubernetes"`
	Controller string `json:"controller"`
}

// Size is what a run is about.
type Size struct {
	Mode         workload.Mode `json:"mode"`
	Parents      int           `json:"parents"`
	Children     int           `json:"childrenOfEach"`
	Related      int           `json:"relatedObjects,omitempty"`
	Namespaces   int           `json:"namespaces"`
	PayloadBytes int           `json:"payloadBytes"`
	Workers      int           `json:"workers"`
	// Profiled says that profiles were taken, which costs CPU.
	Profiled bool `json:"profiled,omitempty"`
	// ControllerArgs are arguments beyond the usual ones.
	ControllerArgs []string `json:"controllerArgs,omitempty"`
}

// Run is one size.
type Run struct {
	Size
	Controller []Phase `json:"controller"`
	RawWriter  []Phase `json:"rawWriter,omitempty"`
	// Public are the figures of the public build for this size, if they are known.
	Public []Phase  `json:"public,omitempty"`
	Ratios []Ratios `json:"ratios,omitempty"`
}

// Phase is what was measured in one phase. What is not known is zero.
type Phase struct {
	Name        string  `json:"name"`
	WallSeconds float64 `json:"wallSeconds"`
	CPUSeconds  float64 `json:"cpuSeconds"`
	PeakRSSMiB  float64 `json:"peakRSSMiB"`

	SyncCalls      int `json:"syncCalls"`
	CustomizeCalls int `json:"customizeCalls"`

	// Requests about objects, by verb; Overhead are those about leases, events and
	// what the API server serves.
	Get      int `json:"get"`
	List     int `json:"list"`
	Watch    int `json:"watch"`
	Create   int `json:"create"`
	Update   int `json:"update"`
	Patch    int `json:"patch"`
	Delete   int `json:"delete"`
	Writes   int `json:"writes"`
	Overhead int `json:"overhead"`

	// Requests are all by verb and resource; Failed are those of them that were
	// answered with an error.
	Requests map[string]int `json:"requests,omitempty"`
	Failed   map[string]int `json:"failed,omitempty"`

	Latency *Latency `json:"latency,omitempty"`
}

// Latency is how long single changes took, in milliseconds.
type Latency struct {
	Samples int     `json:"samples"`
	P50     float64 `json:"p50ms"`
	P90     float64 `json:"p90ms"`
	P99     float64 `json:"p99ms"`
	Max     float64 `json:"maxms"`
}

// LatencyOf sums up latencies; nil without any.
func LatencyOf(all []time.Duration) *Latency {
	if len(all) == 0 {
		return nil
	}
	sorted := sortedDurations(all)
	at := func(p float64) float64 { return float64(percentile(sorted, p)) / float64(time.Millisecond) }
	return &Latency{Samples: len(sorted), P50: at(50), P90: at(90), P99: at(99), Max: at(100)}
}

// Count puts the requests of a phase into it.
func (p *Phase) Count(found tally.Tally) {
	requests := found.Requests
	p.Get, p.List, p.Watch = requests.Of("get"), requests.Of("list"), requests.Of("watch")
	p.Create, p.Update, p.Patch = requests.Of("create"), requests.Of("update"), requests.Of("patch")
	p.Delete = requests.Of("delete", "deletecollection")
	p.Writes, p.Overhead = requests.Writes(), requests.Overhead()
	p.Requests, p.Failed = requests.Names(), found.Failed.Names()
}

// Ratios compare one phase of the controller. What cannot be compared is zero.
type Ratios struct {
	Phase         string  `json:"phase"`
	WallToRaw     float64 `json:"wallToRawWriter,omitempty"`
	CPUToRaw      float64 `json:"cpuToRawWriter,omitempty"`
	LatencyToRaw  float64 `json:"medianLatencyToRawWriter,omitempty"`
	CPUToPublic   float64 `json:"cpuToPublic,omitempty"`
	RSSToPublic   float64 `json:"rssToPublic,omitempty"`
	CallsToPublic float64 `json:"syncCallsToPublic,omitempty"`
	// WritesToPublic is 0 also where there are no writes.
	WritesToPublic float64 `json:"writesToPublic,omitempty"`
}

// NewRun puts together what is known of one size.
func NewRun(size Size, controller, rawWriter []Phase) Run {
	run := Run{Size: size, Controller: controller, RawWriter: rawWriter, Public: publicFigures(size)}
	for i := range controller {
		if ratios := run.compare(&controller[i]); ratios != (Ratios{Phase: ratios.Phase}) {
			run.Ratios = append(run.Ratios, ratios)
		}
	}
	return run
}

func (r *Run) compare(own *Phase) Ratios {
	out := Ratios{Phase: own.Name}
	if raw := find(r.RawWriter, own.Name); raw != nil {
		out.WallToRaw, out.CPUToRaw = ratio(own.WallSeconds, raw.WallSeconds), ratio(own.CPUSeconds, raw.CPUSeconds)
		if own.Latency != nil && raw.Latency != nil {
			out.LatencyToRaw = ratio(own.Latency.P50, raw.Latency.P50)
		}
	}
	if public := find(r.Public, own.Name); public != nil {
		out.CPUToPublic, out.RSSToPublic = ratio(own.CPUSeconds, public.CPUSeconds), ratio(own.PeakRSSMiB, public.PeakRSSMiB)
		out.CallsToPublic = ratio(float64(own.SyncCalls), float64(public.SyncCalls))
		out.WritesToPublic = ratio(float64(own.Writes), float64(public.Writes))
	}
	return out
}

func find(phases []Phase, name string) *Phase {
	for i := range phases {
		if phases[i].Name == name {
			return &phases[i]
		}
	}
	return nil
}

func ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
