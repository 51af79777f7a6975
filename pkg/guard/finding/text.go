package finding

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// Clean makes a text from anywhere safe for a terminal and for one line: control
// characters, line breaks, and marks that reorder or hide text are escaped.
func Clean(text string) string {
	var b strings.Builder
	for _, r := range text {
		if strconv.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		quoted := strconv.QuoteRuneToASCII(r)
		b.WriteString(quoted[1 : len(quoted)-1])
	}
	return b.String()
}

// Colours, as terminals take them.
const (
	red    = "\x1b[31m"
	yellow = "\x1b[33m"
	green  = "\x1b[32m"
	bold   = "\x1b[1m"
	plain  = "\x1b[0m"
)

var colors = map[Level]string{Violation: red, Warning: yellow, Passed: green, Skipped: yellow}

// Paint is a text in the colour of a level, if colours can be shown.
func (s Style) Paint(level Level, text string) string {
	if !s.Color {
		return text
	}
	return colors[level] + text + plain
}

// Bold is a text that stands out, if that can be shown.
func (s Style) Bold(text string) string {
	if !s.Color {
		return text
	}
	return bold + text + plain
}

// writeText prints one finding a paragraph, in the form that editors jump to,
// and the summary at the end.
func writeText(w io.Writer, r *Report, style Style) error {
	out := bufio.NewWriter(w)
	for _, f := range r.Findings {
		if f.Level == Passed && !style.Verbose {
			continue
		}
		first, more, _ := strings.Cut(f.Message, "\n")
		parts := []string{style.Paint(f.Level, string(f.Level))}
		if f.File != "" {
			parts[0] = Clean(f.File) + ":" + strconv.Itoa(f.Line) + ": " + parts[0]
		}
		if f.Object != nil {
			parts = append(parts, style.Bold(Clean(f.Object.String())))
		}
		if f.Rule != "" && !strings.HasPrefix(first, f.Rule+": ") {
			parts = append(parts, f.Rule)
		}
		if first != "" {
			parts = append(parts, Clean(first))
		}
		_, _ = fmt.Fprintln(out, strings.Join(parts, ": "))
		for line := range strings.SplitSeq(more, "\n") {
			if line != "" {
				_, _ = fmt.Fprintln(out, "    "+Clean(line))
			}
		}
	}
	if more := r.unlisted(); more > 0 {
		_, _ = fmt.Fprintf(out, "and %d more\n", more)
	}
	_, _ = fmt.Fprintln(out, r.summary(style))
	return out.Flush()
}

func (r *Report) summary(style Style) string {
	var looked, found []string
	for _, c := range r.Looked {
		looked = append(looked, plural(c.Value, c.Name))
	}
	for _, level := range []Level{Violation, Warning} {
		text := plural(r.Count(level), string(level))
		if r.Count(level) > 0 {
			text = style.Paint(level, text)
		}
		found = append(found, text)
	}
	if n := r.Count(Skipped); n > 0 {
		found = append(found, style.Paint(Skipped, fmt.Sprintf("%d skipped", n)))
	}
	if n := len(r.Faults); n > 0 {
		found = append(found, style.Paint(Violation, plural(n, "error")))
	}
	if len(looked) == 0 {
		return strings.Join(found, ", ")
	}
	return strings.Join(looked, ", ") + ": " + strings.Join(found, ", ")
}

func plural(n int, name string) string {
	if n == 1 {
		return "1 " + name
	}
	return strconv.Itoa(n) + " " + name + "s"
}
