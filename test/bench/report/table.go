package report

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

var header = []string{
	"phase", "", "wall s", "CPU s", "CPU ms/parent", "RSS MiB", "sync", "customize",
	"GET", "LIST", "WATCH", "POST", "PUT", "PATCH", "DELETE", "writes", "other",
}

// texts is how many columns hold words.
const texts = 2

// nothing stands where there is no figure.
const nothing = "-"

// WriteMachine writes the facts of the machine.
func WriteMachine(out io.Writer, m Machine) error {
	_, err := fmt.Fprintf(out, "%s/%s, %d CPUs, %s, Kubernetes %s, controller %s\n", m.OS, m.Architecture, m.CPUs, m.Go, m.Kubernetes, m.Controller)
	return err
}

// WriteTable writes a run as a table. Requests are those about objects; "other"
// are those about leases, events and discovery.
func WriteTable(out io.Writer, run Run) error {
	var text strings.Builder
	text.WriteString("\n" + run.title() + "\n")
	rows := [][]string{header}
	for i := range run.Controller {
		rows = append(rows, run.rows(&run.Controller[i])...)
	}
	writeRows(&text, rows)
	for _, line := range run.notes() {
		text.WriteString(line + "\n")
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func (r *Run) title() string {
	title := fmt.Sprintf("%s: %d parents x %d children of %d bytes in %d namespaces, %d workers",
		r.Mode, r.Parents, r.Children, r.PayloadBytes, r.Namespaces, r.Workers)
	if r.Related > 0 {
		title += fmt.Sprintf(", %d related objects", r.Related)
	}
	for _, argument := range r.ControllerArgs {
		title += ", " + argument
	}
	if r.Profiled {
		title += ", with profiles taken"
	}
	return title
}

// rows are those of one phase: the controller, what it is compared with, and how.
func (r *Run) rows(own *Phase) [][]string {
	rows := [][]string{r.row(own.Name, "controller", own)}
	raw, public := find(r.RawWriter, own.Name), find(r.Public, own.Name)
	if raw != nil {
		rows = append(rows, r.row("", "raw writer", raw))
	}
	if public != nil {
		rows = append(rows, r.publicRow(public))
	}
	ratios := r.compare(own)
	if raw != nil {
		rows = append(rows, r.ratioRow("/ raw writer", map[string]float64{"wall s": ratios.WallToRaw, "CPU s": ratios.CPUToRaw}))
	}
	if public != nil {
		rows = append(rows, r.ratioRow("/ public", map[string]float64{
			"CPU s": ratios.CPUToPublic, "RSS MiB": ratios.RSSToPublic, "sync": ratios.CallsToPublic, "writes": ratios.WritesToPublic,
		}))
	}
	return rows
}

func (r *Run) row(phase, who string, p *Phase) []string {
	row := []string{
		phase, who, seconds(p.WallSeconds), seconds(p.CPUSeconds), r.perParent(p.CPUSeconds), mebibytes(p.PeakRSSMiB),
	}
	for _, n := range []int{
		p.SyncCalls, p.CustomizeCalls, p.Get, p.List, p.Watch, p.Create, p.Update, p.Patch, p.Delete, p.Writes, p.Overhead,
	} {
		row = append(row, strconv.Itoa(n))
	}
	return row
}

// publicRow has what is known of the public build.
func (r *Run) publicRow(p *Phase) []string {
	return r.named("public 4.17", map[string]string{
		"CPU s": seconds(p.CPUSeconds), "CPU ms/parent": r.perParent(p.CPUSeconds), "RSS MiB": mebibytes(p.PeakRSSMiB),
		"sync": strconv.Itoa(p.SyncCalls), "GET": strconv.Itoa(p.Get), "writes": strconv.Itoa(p.Writes),
	})
}

func (r *Run) ratioRow(who string, ratios map[string]float64) []string {
	cells := map[string]string{}
	for column, value := range ratios {
		if value > 0 {
			cells[column] = strconv.FormatFloat(value, 'f', 2, 64)
		}
	}
	return r.named(who, cells)
}

// named is a row with cells in some columns.
func (r *Run) named(who string, cells map[string]string) []string {
	row := []string{"", who}
	for _, column := range header[texts:] {
		if cell, ok := cells[column]; ok {
			row = append(row, cell)
		} else {
			row = append(row, nothing)
		}
	}
	return row
}

func seconds(s float64) string {
	if s == 0 {
		return nothing
	}
	return strconv.FormatFloat(s, 'f', 2, 64)
}

func (r *Run) perParent(s float64) string {
	if s == 0 || r.Parents == 0 {
		return nothing
	}
	return strconv.FormatFloat(s*1000/float64(r.Parents), 'f', 2, 64)
}

func mebibytes(m float64) string {
	if m == 0 {
		return nothing
	}
	return strconv.FormatFloat(m, 'f', 0, 64)
}

// notes are what does not fit into the table.
func (r *Run) notes() []string {
	var notes []string
	for _, who := range []struct {
		name   string
		phases []Phase
	}{{"controller", r.Controller}, {"raw writer", r.RawWriter}} {
		for _, p := range who.phases {
			if l := p.Latency; l != nil {
				notes = append(notes, fmt.Sprintf("%s, %s: of %d changes one after another p50 %.1f ms, p90 %.1f ms, p99 %.1f ms, at most %.1f ms",
					p.Name, who.name, l.Samples, l.P50, l.P90, l.P99, l.Max))
			}
			if len(p.Failed) > 0 {
				notes = append(notes, fmt.Sprintf("%s, %s: answered with an error: %s", p.Name, who.name, list(p.Failed)))
			}
			if p.Get > 0 {
				gets := maps.Clone(p.Requests)
				maps.DeleteFunc(gets, func(name string, _ int) bool { return !strings.HasPrefix(name, "get ") })
				notes = append(notes, fmt.Sprintf("%s, %s: single objects read: %s", p.Name, who.name, list(gets)))
			}
		}
	}
	return notes
}

func list(counts map[string]int) string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		parts = append(parts, fmt.Sprintf("%d %s", counts[name], name))
	}
	return strings.Join(parts, ", ")
}

// writeRows aligns words to the left and figures to the right.
func writeRows(out *strings.Builder, rows [][]string) {
	widths := make([]int, len(header))
	for _, row := range rows {
		for column, cell := range row {
			widths[column] = max(widths[column], utf8.RuneCountInString(cell))
		}
	}
	for _, row := range rows {
		var line strings.Builder
		for column, cell := range row {
			width := widths[column]
			if column < texts {
				width = -width
			}
			fmt.Fprintf(&line, "%*s  ", width, cell)
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}
