package main

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/metacontroller-solo/solo/test/kit/vitals"
)

const (
	mebi = 1 << 20
	// warmUp is the part of the run that does not count: caches fill.
	warmUp = 0.25
	// moreAllowed is by how many the lines through goroutines and through open
	// files may rise.
	moreAllowed = 10
)

// report is what came of a run.
type report struct {
	options
	samples []vitals.Sample

	Seed     uint64  `json:"seed"`
	Duration string  `json:"duration"`
	Parents  int     `json:"parents"`
	Changes  int64   `json:"changes"`
	Missed   int64   `json:"missed"`
	Calls    int64   `json:"hookCalls"`
	Faults   int64   `json:"hookFaults"`
	Guests   int     `json:"controllersThatCameAndWent"`
	Failures int     `json:"changesThatFailed"`
	CPU      float64 `json:"cpuSeconds"`
	// Lines are from the end of the warm-up to the end.
	RSS        line            `json:"rssMiB"`
	Live       line            `json:"liveHeapMiB"`
	Goroutines line            `json:"goroutines"`
	Files      line            `json:"openFiles"`
	Samples    []vitals.Sample `json:"samples"`
}

// line is a straight line through points, by least squares.
type line struct {
	// From and To are its values at the first and the last point.
	From float64 `json:"from"`
	To   float64 `json:"to"`
	// PerHour is its slope.
	PerHour float64 `json:"perHour"`
	// Bound is by how much it may rise; 0 sets none.
	Bound float64 `json:"bound,omitempty"`
}

func (l line) rise() float64 { return l.To - l.From }

func (l line) within() bool { return l.Bound == 0 || l.rise() <= l.Bound }

// fit is the line through points, whose x are in hours.
func fit(xs, ys []float64) line {
	if len(xs) == 0 {
		return line{}
	}
	n := float64(len(xs))
	var meanX, meanY float64
	for i := range xs {
		meanX += xs[i] / n
		meanY += ys[i] / n
	}
	var covariance, variance float64
	for i := range xs {
		covariance += (xs[i] - meanX) * (ys[i] - meanY)
		variance += (xs[i] - meanX) * (xs[i] - meanX)
	}
	slope := 0.
	if variance > 0 {
		slope = covariance / variance
	}
	at := func(x float64) float64 { return meanY + slope*(x-meanX) }
	return line{From: at(xs[0]), To: at(xs[len(xs)-1]), PerHour: slope}
}

func (r *report) add(sample vitals.Sample) { r.samples = append(r.samples, sample) }

// count notes what was done, and draws the lines.
func (r *report) count(d *driver, h *hooks) {
	r.Seed, r.Duration, r.Parents, r.Guests = r.seed, r.duration.String(), r.parents, d.guests
	r.Changes, r.Missed, r.Failures = d.made.Load(), d.missed.Load(), d.failures.count
	r.Calls, r.Faults = h.calls.Load(), h.faults.Load()
	r.Samples = r.samples
	if d.failures.first != nil {
		say("%d changes failed, the first with: %v", d.failures.count, d.failures.first)
	}
	if len(r.samples) == 0 {
		return
	}
	r.CPU = r.samples[len(r.samples)-1].CPU - r.samples[0].CPU
	counted := r.counted()
	through := func(value func(vitals.Sample) float64, bound float64) line {
		var xs, ys []float64
		for _, sample := range counted {
			xs = append(xs, sample.At.Sub(r.samples[0].At).Hours())
			ys = append(ys, value(sample))
		}
		drawn := fit(xs, ys)
		drawn.Bound = bound
		return drawn
	}
	r.RSS = through(func(s vitals.Sample) float64 { return s.RSS / mebi }, r.rise)
	r.Live = through(func(s vitals.Sample) float64 { return s.Live / mebi }, 0)
	r.Goroutines = through(func(s vitals.Sample) float64 { return s.Goroutines }, moreAllowed)
	r.Files = through(func(s vitals.Sample) float64 { return s.Files }, moreAllowed)
}

// counted are the samples after the warm-up.
func (r *report) counted() []vitals.Sample {
	for i, sample := range r.samples {
		if sample.At.Sub(r.samples[0].At) >= time.Duration(warmUp*float64(r.duration)) {
			return r.samples[i:]
		}
	}
	return nil
}

// verdict is nil if nothing grows.
func (r *report) verdict() error {
	say("%d changes (%d came too early or too late), %d hook calls, %d of them failed, %d controllers came and went, %.0f s of CPU",
		r.Changes, r.Missed, r.Calls, r.Faults, r.Guests, r.CPU)
	var problems []error
	for _, one := range []struct {
		name string
		line
	}{{"RSS in MiB", r.RSS}, {"live heap in MiB", r.Live}, {"goroutines", r.Goroutines}, {"open files", r.Files}} {
		say("%s: from %.1f to %.1f, %+.1f an hour", one.name, one.From, one.To, one.PerHour)
		if !one.within() {
			problems = append(problems, fmt.Errorf("%s rise by %.1f after the warm-up, and may by %.1f", one.name, one.rise(), one.Bound))
		}
	}
	if len(r.counted()) < 3 {
		problems = append(problems, errors.New("there are too few samples to tell"))
	}
	if r.Changes < int64(r.changes)/2 {
		problems = append(problems, fmt.Errorf("only %d of %d changes were made in the time", r.Changes, r.changes))
	}
	if r.Failures > 0 {
		problems = append(problems, fmt.Errorf("%d changes failed", r.Failures))
	}
	return errors.Join(problems...)
}

// write writes the files.
func (r *report) write(dir string) error {
	content, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return fmt.Errorf("cannot encode the report: %w", err)
	}
	table, err := os.Create(filepath.Join(dir, "soak.csv"))
	if err != nil {
		return fmt.Errorf("cannot write the report: %w", err)
	}
	rows := csv.NewWriter(table)
	number := func(value float64) string { return strconv.FormatFloat(value, 'f', -1, 64) }
	_ = rows.Write([]string{"seconds", "rss_bytes", "live_bytes", "heap_bytes", "goroutines", "files", "series", "cpu_seconds"})
	for _, s := range r.samples {
		_ = rows.Write([]string{
			number(s.At.Sub(r.samples[0].At).Seconds()), number(s.RSS), number(s.Live), number(s.Heap),
			number(s.Goroutines), number(s.Files), strconv.Itoa(s.Series), number(s.CPU),
		})
	}
	rows.Flush()
	drawing, drawn := r.svg()
	if err := errors.Join(
		rows.Error(), table.Close(), drawn,
		os.WriteFile(filepath.Join(dir, "soak.json"), append(content, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "soak.svg"), drawing, 0o644),
	); err != nil {
		return fmt.Errorf("cannot write the report: %w", err)
	}
	say("wrote %s", filepath.Join(dir, "soak.svg"))
	return nil
}
