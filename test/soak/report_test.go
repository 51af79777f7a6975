package main

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/metacontroller-solo/solo/test/kit/vitals"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-6 }

func TestFit(t *testing.T) {
	for _, c := range []struct {
		reason   string
		xs, ys   []float64
		from, to float64
		perHour  float64
	}{
		{"nothing", nil, nil, 0, 0, 0},
		{"one point", []float64{1}, []float64{5}, 5, 5, 0},
		{"flat", []float64{0, 1, 2}, []float64{3, 3, 3}, 3, 3, 0},
		{"a line", []float64{1, 2, 4}, []float64{3, 5, 9}, 3, 9, 2},
		{"noise around a flat line", []float64{0, 1, 2, 3}, []float64{1, 3, 3, 1}, 2, 2, 0},
		{"all at once", []float64{1, 1}, []float64{1, 3}, 2, 2, 0},
	} {
		if got := fit(c.xs, c.ys); !near(got.From, c.from) || !near(got.To, c.to) || !near(got.PerHour, c.perHour) {
			t.Errorf("%s: %+v", c.reason, got)
		}
	}
}

// run makes a report whose RSS begins at 20 MiB, jumps to 40 in the warm-up, and
// grows by so many MiB after it.
func reportOf(growth float64) *report {
	r := &report{options: options{duration: 400 * time.Second, changes: 10, parents: 5, rise: 6}}
	start := time.Unix(1900000000, 0)
	for i := range 81 {
		at := time.Duration(i*5) * time.Second
		rss := 20.
		if i > 10 {
			rss = 40
		}
		if i > 20 {
			rss += growth * float64(i-20) / 60
		}
		r.add(vitals.Sample{At: start.Add(at), RSS: rss * mebi, Live: 10 * mebi, Goroutines: 100, Files: 20, CPU: float64(i)})
	}
	d := newDriver(nil, r.options)
	d.made.Store(10)
	r.count(d, &hooks{})
	return r
}

func TestVerdict(t *testing.T) {
	for growth, fails := range map[float64]bool{-5: false, 0: false, 5: false, 7: true} {
		r := reportOf(growth)
		if err := r.verdict(); (err != nil) != fails || fails && !strings.Contains(err.Error(), "RSS") {
			t.Errorf("RSS grows by %v MiB: %v", growth, err)
		}
		if !near(r.RSS.rise(), growth) {
			t.Errorf("RSS grows by %v MiB: the line is %+v", growth, r.RSS)
		}
	}
	slow := reportOf(0)
	slow.Changes = 4
	if err := slow.verdict(); err == nil {
		t.Error("no error though there were not enough changes")
	}
	leaking := reportOf(0)
	leaking.Goroutines.To += 11
	if err := leaking.verdict(); err == nil || !strings.Contains(err.Error(), "goroutines") {
		t.Errorf("more goroutines: %v", err)
	}
}

func TestWrite(t *testing.T) {
	dir := t.TempDir()
	if err := reportOf(3).write(dir); err != nil {
		t.Fatal(err)
	}
	table, err := os.ReadFile(filepath.Join(dir, "soak.csv"))
	if err != nil || strings.Count(string(table), "\n") != 82 {
		t.Errorf("the table is %s, %v", table, err)
	}
	drawing, err := os.Open(filepath.Join(dir, "soak.svg"))
	if err != nil {
		t.Fatal(err)
	}
	defer drawing.Close()
	decoder, lines := xml.NewDecoder(drawing), 0
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if start, is := token.(xml.StartElement); is && start.Name.Local == "polyline" {
			lines++
			for _, attribute := range start.Attr {
				if strings.Contains(attribute.Value, "NaN") || strings.Contains(attribute.Value, "Inf") {
					t.Errorf("points are %s", attribute.Value)
				}
			}
		}
	}
	if lines != 7 {
		t.Errorf("%d curves", lines)
	}
}

func TestNiceStep(t *testing.T) {
	for least, want := range map[float64]float64{0: 1, 0.3: 0.5, 1: 1, 1.1: 2, 3: 5, 7: 10, 30: 50} {
		if got := niceStep(least); !near(got, want) {
			t.Errorf("%v: %v", least, got)
		}
	}
}
