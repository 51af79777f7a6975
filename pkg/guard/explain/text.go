package explain

import (
	"bufio"
	"fmt"
	"io"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/metacontroller-solo/solo/pkg/guard/finding"
)

// Write prints a view as text.
func Write(w io.Writer, v *View, style finding.Style, now time.Time) error {
	p := &printer{out: bufio.NewWriter(w), style: style, now: now}
	p.head(v)
	for _, slot := range v.Slots {
		p.slot(slot)
	}
	if len(v.Slots) == 0 {
		p.field("Shards", "none is held")
	}
	for _, e := range v.Exceptions {
		p.field("Exception", fmt.Sprintf("%s/%s until %s: %s", e.Namespace, e.Name, e.Expires.UTC().Format(time.RFC3339), e.Reason))
	}
	for _, c := range v.Conditions {
		p.field(c.Type, string(c.Status)+", "+c.Reason+": "+c.Message)
	}
	for _, i := range v.Violations {
		text := "Pod " + i.Namespace + "/" + i.Name
		if i.Owner != "" {
			text += " of " + i.Owner
		}
		if i.Node != "" {
			text += " on node " + i.Node
		}
		p.level(finding.Violation, "Violation", text)
	}
	if len(v.Judged) == 0 {
		p.rules(v)
	}
	for _, j := range v.Judged {
		p.judged(j)
	}
	for _, missing := range v.Missing {
		p.level(finding.Skipped, "Not known", missing)
	}
	return p.out.Flush()
}

type printer struct {
	out   *bufio.Writer
	style finding.Style
	now   time.Time
}

// width is that of the names of fields.
const width = 12

func (p *printer) field(name, text string) {
	_, _ = fmt.Fprintf(p.out, "%-*s %s\n", width, name+":", finding.Clean(text))
}

func (p *printer) level(level finding.Level, name, text string) {
	_, _ = fmt.Fprintf(p.out, "%s %s\n", p.style.Paint(level, fmt.Sprintf("%-*s", width, name+":")), finding.Clean(text))
}

func (p *printer) head(v *View) {
	text := fmt.Sprintf("%s, mode %s, %s", v.Policy, v.Mode, strings.Join(v.Actions, " and "))
	if !v.Stored {
		text += "; it does not exist, so nobody can claim the slot"
	}
	p.field("Policy", text)
	if v.Designated != "" {
		p.field("Designated", "only StatefulSet "+v.Designated+" may hold the slot")
	}
}

func (p *printer) slot(s Slot) {
	if s.Selector != "" {
		p.field("Shard", s.Selector)
	}
	if s.Holder == nil {
		p.field("Holder", "none, the slot is free: the first StatefulSet that is admitted gets it")
		return
	}
	h := s.Holder
	p.field("Holder", fmt.Sprintf("StatefulSet %s/%s, %s%s, uid %s, epoch %d", h.Namespace, h.Name, s.State, p.since(h.ClaimedAt), h.UID, h.Epoch))
	switch {
	case s.Active == nil:
		p.field("Active Pod", "none runs now")
	case s.Active.Pending:
		p.field("Active Pod", fmt.Sprintf("%s/%s, pending%s", h.Namespace, s.Active.Name, onNode(s.Active.Node)))
	default:
		started := ""
		if s.Started != nil {
			started = p.since(*s.Started)
		}
		p.field("Active Pod", fmt.Sprintf("%s/%s%s%s, uid %s", h.Namespace, s.Active.Name, onNode(s.Active.Node), started, s.Active.UID))
	}
}

func onNode(node string) string {
	if node == "" {
		return ""
	}
	return " on node " + node
}

// since is when something began, and how long ago.
func (p *printer) since(t metav1.Time) string {
	if t.IsZero() {
		return ""
	}
	return fmt.Sprintf(" since %s (%s)", t.UTC().Format(time.RFC3339), duration.HumanDuration(p.now.Sub(t.Time)))
}

func (p *printer) rules(v *View) {
	_, _ = fmt.Fprintln(p.out, "Refused:")
	longest := 0
	for _, r := range v.Rules {
		longest = max(longest, len(r.ID))
	}
	for _, r := range v.Rules {
		_, _ = fmt.Fprintf(p.out, "  %-*s  %s\n", longest, r.ID, r.Refuses)
	}
}

func (p *printer) judged(j Judged) {
	level, word := finding.Passed, "allowed"
	switch {
	case !j.Allowed:
		level, word = finding.Violation, "refused"
	case j.Rule != "":
		level, word = finding.Warning, "allowed, with a warning"
	}
	first, more, _ := strings.Cut(j.Message, "\n")
	if first == "" {
		first = "it breaks no rule"
		if len(j.Instances) == 0 {
			first = "it runs no instance"
		}
	}
	where := ""
	if j.File != "" {
		where = fmt.Sprintf("%s:%d: ", finding.Clean(j.File), j.Line)
	}
	_, _ = fmt.Fprintf(p.out, "%s%s, %s: %s: %s\n", where, p.style.Bold(finding.Clean(j.Object.String())), j.What, p.style.Paint(level, word), finding.Clean(first))
	for _, c := range j.Instances {
		_, _ = fmt.Fprintf(p.out, "    container %s, image %s: recognised by %s\n", finding.Clean(c.Name), finding.Clean(c.Image), strings.ToLower(c.By))
	}
	for line := range strings.SplitSeq(more, "\n") {
		if line != "" {
			_, _ = fmt.Fprintln(p.out, "    "+finding.Clean(line))
		}
	}
}
