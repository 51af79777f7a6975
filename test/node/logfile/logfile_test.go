package logfile

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// steps is a clock that goes on by a second at each look.
func steps() func() time.Time {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	return func() time.Time { at = at.Add(time.Second); return at }
}

func read(t interface{ Fatal(...any) }, l *Log, options Options) string {
	var out bytes.Buffer
	if err := l.Copy(context.Background(), &out, options); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestCopy(t *testing.T) {
	l, err := Create(filepath.Join(t.TempDir(), "log"), 1<<20, steps())
	if err != nil {
		t.Fatal(err)
	}
	stdout, stderr := l.Stream("stdout"), l.Stream("stderr")
	_, _ = io.WriteString(stdout, "one\ntw")
	_, _ = io.WriteString(stderr, "err\n")
	_, _ = io.WriteString(stdout, "o\nend")
	_ = stdout.Close()
	l.Close()
	two, none := 2, 0
	for _, c := range []struct {
		name    string
		options Options
		want    string
	}{
		{"all", Options{}, "one\nerr\ntwo\nend\n"},
		{"follow ends with the log", Options{Follow: true}, "one\nerr\ntwo\nend\n"},
		{"tail", Options{Tail: &two}, "two\nend\n"},
		{"tail 0", Options{Tail: &none}, ""},
		{"since", Options{Since: time.Date(2026, 1, 2, 3, 4, 8, 0, time.UTC)}, "two\nend\n"},
		{"timestamps", Options{Tail: &two, Timestamps: true}, "2026-01-02T03:04:08.000000000Z two\n2026-01-02T03:04:09.000000000Z end\n"},
		{"limit", Options{Limit: 5}, "one\ne"},
	} {
		if got := read(t, l, c.options); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

func TestBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	l, err := Create(path, 4096, steps())
	if err != nil {
		t.Fatal(err)
	}
	w := l.Stream("stdout")
	for i := range 1000 {
		if _, err := fmt.Fprintf(w, "line %d\n", i); err != nil {
			t.Fatal(err)
		}
	}
	var size int64
	for _, name := range []string{path, path + olderSuffix} {
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	if size > 4096 {
		t.Errorf("%d bytes kept", size)
	}
	got := strings.Fields(strings.ReplaceAll(read(t, l, Options{}), "line ", ""))
	for i, n := range got {
		if want := fmt.Sprint(1000 - len(got) + i); n != want {
			t.Fatalf("line %q in place of %q", n, want)
		}
	}
	if len(got) < 20 {
		t.Errorf("only %d lines kept", len(got))
	}
}

// A follower sees every line although the file turns under it, as long as it is not a whole file behind.
func TestFollowAcrossTurn(t *testing.T) {
	l, err := Create(filepath.Join(t.TempDir(), "log"), 2000, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	pr, pw := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- l.Copy(context.Background(), pw, Options{Follow: true})
		_ = pw.Close()
	}()
	w := l.Stream("stdout")
	line := make([]byte, 5)
	for i := range 500 {
		if _, err := fmt.Fprintf(w, "%04d\n", i); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(pr, line); err != nil {
			t.Fatal(err)
		}
		if want := fmt.Sprintf("%04d\n", i); string(line) != want {
			t.Fatalf("%q, want %q", line, want)
		}
	}
	l.Close()
	if rest, err := io.ReadAll(pr); err != nil || len(rest) > 0 {
		t.Errorf("after the end: %q, %v", rest, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestFollowEndsWithContext(t *testing.T) {
	l, err := Create(filepath.Join(t.TempDir(), "log"), 2000, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Copy(ctx, io.Discard, Options{Follow: true}) }()
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// However output is cut into writes, reading gives it back.
func TestWritesDoNotMatter(t *testing.T) {
	dir := t.TempDir()
	n := 0
	rapid.Check(t, func(t *rapid.T) {
		n++
		l, err := Create(filepath.Join(dir, fmt.Sprint(n)), 64<<20, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		w := l.Stream("stdout")
		var all bytes.Buffer
		for _, chunk := range rapid.SliceOf(rapid.OneOf(
			rapid.SliceOf(rapid.SampledFrom([]byte("ab \n"))),
			rapid.Map(rapid.IntRange(0, 3*maxLine), func(n int) []byte { return bytes.Repeat([]byte("x"), n) }),
		)).Draw(t, "chunks") {
			all.Write(chunk)
			if _, err := w.Write(chunk); err != nil {
				t.Fatal(err)
			}
		}
		_ = w.Close()
		want := all.String()
		if want != "" && !strings.HasSuffix(want, "\n") {
			want += "\n"
		}
		if got := read(t, l, Options{}); got != want {
			t.Fatalf("got %d bytes, want %d", len(got), len(want))
		}
	})
}
