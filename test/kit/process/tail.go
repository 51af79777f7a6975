package process

import (
	"bytes"
	"slices"
	"sync"
)

const (
	tailLines    = 15
	tailLineSize = 1 << 10
)

// tail keeps the last lines of an output.
type tail struct {
	mu       sync.Mutex // guards complete and partial
	complete []string   // oldest first, at most tailLines
	partial  []byte     // the line that has no end yet, at most tailLineSize bytes of it
}

func (t *tail) write(b []byte) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for len(b) > 0 {
		line, rest, whole := bytes.Cut(b, []byte("\n"))
		if room := tailLineSize - len(t.partial); room > 0 {
			t.partial = append(t.partial, line[:min(room, len(line))]...)
		}
		if whole {
			t.push()
		}
		b = rest
	}
}

func (t *tail) push() {
	if len(t.complete) == tailLines {
		t.complete = slices.Delete(t.complete, 0, 1)
	}
	t.complete = append(t.complete, string(t.partial))
	t.partial = t.partial[:0]
}

func (t *tail) lines() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := slices.Clone(t.complete)
	if len(t.partial) > 0 {
		lines = append(lines, string(t.partial))
	}
	return lines
}
