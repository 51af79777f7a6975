package decide

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	// MaxLine is the most characters that the first line of a message has:
	// Kubernetes shows no more of a warning.
	MaxLine = 120
	// maxDetail caps the lines after the first.
	maxDetail = 600
)

// refusal is what a rule has to say.
type refusal struct {
	// line is the first line, after the rule's id; %s stands for the holder.
	line string
	// why adds to the reason. Optional.
	why string
	// next is what the person can do.
	next string
}

// message composes the text: id, reason and holder in the first line, then
// more of the reason, then the next step.
func (r refusal) message(id Rule, p Policy, h Holder) string {
	lines := []string{r.first(id, h)}
	if r.why != "" {
		lines = append(lines, clip(strings.ToUpper(r.why[:1])+r.why[1:]+".", maxDetail))
	}
	if h.Held() {
		lines = append(lines, clip(fmt.Sprintf("Holder: %s (policy %s).", h.Identity, p.Name), maxDetail))
	}
	return strings.Join(append(lines, clip("Next: "+r.next+".", maxDetail)), "\n")
}

// first fits the first line: if the holder's name is so long that it does not,
// the middle of the name is left out. The whole name follows further down.
func (r refusal) first(id Rule, h Holder) string {
	prefix := ""
	if id != RuleNone {
		prefix = string(id) + ": "
	}
	compose := func(name string) string { return prefix + strings.Replace(r.line, "%s", name, 1) }
	name := h.Identity.String()
	line := compose(name)
	if over := utf8.RuneCountInString(line) - MaxLine; over > 0 && strings.Contains(r.line, "%s") {
		line = compose(shorten(name, utf8.RuneCountInString(name)-over))
	}
	return clip(line, MaxLine)
}

// shorten leaves out the middle of a name, so that size characters remain.
func shorten(name string, size int) string {
	runes := []rune(name)
	if len(runes) <= size {
		return name
	}
	keep := max(size-1, 2)
	head := keep / 2
	return string(runes[:head]) + "…" + string(runes[len(runes)-(keep-head):])
}

func clip(text string, size int) string {
	runes := []rune(text)
	if len(runes) <= size {
		return text
	}
	return string(runes[:size-1]) + "…"
}

// FirstLine is the part of a message that fits a warning.
func FirstLine(message string) string {
	line, _, _ := strings.Cut(message, "\n")
	return line
}
