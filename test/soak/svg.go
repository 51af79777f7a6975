package main

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"text/template"
	"time"

	"github.com/metacontroller-solo/solo/test/kit/vitals"
)

// Sizes of the drawing.
const (
	plotWidth   = 720
	panelHeight = 150
	panelGap    = 40
	marginLeft  = 60
	marginTop   = 50
	ticks       = 4
)

type panel struct {
	Title  string
	Top    int
	Curves []curve
	// Marks are on the vertical axis.
	Marks []mark
}

type curve struct{ Points, Color, Dash string }

type mark struct {
	At   float64
	Text string
}

type drawing struct {
	Title                          string
	Width, Height, Left, Right     int
	WarmUp                         float64
	PanelHeight                    int
	Panels                         []panel
	Times                          []mark
	Bottom, TitleY, LegendY, TextX int
}

// The texts are numbers and fixed words: nothing in them has to be escaped.
var page = template.Must(template.New("svg").Parse(`<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{.Width}} {{.Height}}" font-family="sans-serif" font-size="11">
<rect width="{{.Width}}" height="{{.Height}}" fill="#fff"/>
<text x="{{.Left}}" y="{{.TitleY}}" font-size="14">{{.Title}}</text>
{{- range .Panels}}
<g transform="translate({{$.Left}},{{.Top}})">
<rect width="{{printf "%.1f" $.WarmUp}}" height="{{$.PanelHeight}}" fill="#eee"/>
<text y="-6" font-weight="bold">{{.Title}}</text>
{{- range .Marks}}
<line x2="{{$.Right}}" y1="{{printf "%.1f" .At}}" y2="{{printf "%.1f" .At}}" stroke="#ddd"/><text x="-6" y="{{printf "%.1f" .At}}" dy="4" text-anchor="end">{{.Text}}</text>
{{- end}}
{{- range .Curves}}
<polyline fill="none" stroke="{{.Color}}" stroke-width="1.5"{{with .Dash}} stroke-dasharray="{{.}}"{{end}} points="{{.Points}}"/>
{{- end}}
</g>
{{- end}}
<g transform="translate({{.Left}},{{.Bottom}})">
{{- range .Times}}
<text x="{{printf "%.1f" .At}}" text-anchor="middle">{{.Text}}</text>
{{- end}}
</g>
</svg>
`))

// Colours of the curves.
const (
	colorRSS  = "#1f5fa8"
	colorLive = "#2a8a4a"
	colorLine = "#c0392b"
)

// svg draws what was held over time. The grey part is the warm-up, the dashed line
// is the one that the verdict is about.
func (r *report) svg() ([]byte, error) {
	if len(r.samples) < 2 {
		return nil, fmt.Errorf("cannot draw %d samples", len(r.samples))
	}
	last := r.samples[len(r.samples)-1].At.Sub(r.samples[0].At)
	x := func(at time.Duration) float64 { return float64(at) / float64(last) * plotWidth }
	warm := time.Duration(warmUp * float64(r.duration))
	out := drawing{
		Title: fmt.Sprintf("%d changes in %s, %d parents, %d hook calls, %d controllers came and went",
			r.Changes, r.duration, r.parents, r.Calls, r.Guests),
		Width: marginLeft + plotWidth + 20, Left: marginLeft, Right: plotWidth, TitleY: 20,
		PanelHeight: panelHeight, WarmUp: min(x(warm), plotWidth),
	}
	draw := func(title string, fitted line, curves ...func(vitals.Sample) float64) {
		top := fitted.To
		for _, value := range curves {
			for _, sample := range r.samples {
				top = max(top, value(sample))
			}
		}
		step := niceStep(top / ticks)
		scale := step * math.Ceil(top/step)
		y := func(value float64) float64 { return panelHeight - value/scale*panelHeight }
		p := panel{Title: title, Top: marginTop + len(out.Panels)*(panelHeight+panelGap)}
		for value := 0.; value <= scale+step/2; value += step {
			p.Marks = append(p.Marks, mark{At: y(value), Text: fmt.Sprintf("%g", value)})
		}
		for i, value := range curves {
			var points strings.Builder
			for _, sample := range r.samples {
				fmt.Fprintf(&points, "%.1f,%.1f ", x(sample.At.Sub(r.samples[0].At)), y(value(sample)))
			}
			p.Curves = append(p.Curves, curve{Points: strings.TrimSpace(points.String()), Color: []string{colorRSS, colorLive}[i]})
		}
		if counted := r.counted(); len(counted) > 0 {
			p.Curves = append(p.Curves, curve{
				Points: fmt.Sprintf("%.1f,%.1f %.1f,%.1f", x(counted[0].At.Sub(r.samples[0].At)), y(fitted.From), x(last), y(fitted.To)),
				Color:  colorLine, Dash: "6 4",
			})
		}
		out.Panels = append(out.Panels, p)
	}
	draw("RSS (blue) and live heap (green), MiB", r.RSS,
		func(s vitals.Sample) float64 { return s.RSS / mebi }, func(s vitals.Sample) float64 { return s.Live / mebi })
	draw("Goroutines", r.Goroutines, func(s vitals.Sample) float64 { return s.Goroutines })
	draw("Open files and connections", r.Files, func(s vitals.Sample) float64 { return s.Files })
	out.Bottom = marginTop + len(out.Panels)*(panelHeight+panelGap) - panelGap + 16
	out.Height = out.Bottom + 14
	step := niceStep(last.Minutes() / 6)
	for at := 0.; at <= last.Minutes(); at += step {
		out.Times = append(out.Times, mark{At: x(time.Duration(at * float64(time.Minute))), Text: fmt.Sprintf("%g min", at)})
	}
	var drawn bytes.Buffer
	err := page.Execute(&drawn, out)
	return drawn.Bytes(), err
}

// niceStep is 1, 2 or 5 times a power of ten, not less than what is asked for.
func niceStep(least float64) float64 {
	if least <= 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(least)))
	for _, factor := range []float64{1, 2, 5} {
		if step := factor * power; step >= least {
			return step
		}
	}
	return 10 * power
}
