package audit

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func openFile(t *testing.T, path string, rotation Rotation) *Log {
	t.Helper()
	sink, err := Open(path, nil, rotation)
	if err != nil {
		t.Fatal(err)
	}
	log, err := New(sink, Options{Replica: "guard-0", Registry: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}

// TestRotation fills files until some are moved aside and some of those removed.
func TestRotation(t *testing.T) {
	path := filepath.Join(t.TempDir(), "guard.log")
	if err := os.WriteFile(path, nil, 0o666); err != nil { //nolint:gosec // What the log is to tighten.
		t.Fatal(err)
	}
	sink, err := Open(path, nil, Rotation{MaxSize: 1, MaxBackups: 2})
	if err != nil {
		t.Fatal(err)
	}
	line := []byte(`{"a":"` + strings.Repeat("x", 1000) + "\"}\n")
	const lines = 6000 // 6 MiB
	for range lines {
		if n, err := sink.Write(line); err != nil || n != len(line) {
			t.Fatalf("%d, %v", n, err)
		}
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	// Old files are removed in the background.
	deadline := time.Now().Add(10 * time.Second)
	for {
		entries, err := os.ReadDir(filepath.Dir(path))
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) == 3 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("files are %v, want one and two that were moved aside", entries)
		}
		time.Sleep(10 * time.Millisecond)
	}
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		content := read(t, filepath.Join(filepath.Dir(path), entry.Name()))
		if info.Mode().Perm()&^fileMode != 0 || info.Size() > 1<<20 || strings.Count(content, string(line))*len(line) != len(content) {
			t.Errorf("%s is %s, %d bytes", entry.Name(), info.Mode(), info.Size())
		}
	}
}

// TestFollow moves, removes and cuts off the file while it is written to.
func TestFollow(t *testing.T) {
	path := filepath.Join(t.TempDir(), "guard.log")
	sink, err := Open(path, nil, Rotation{MaxSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sink.Close() }()
	write := func(text string) {
		t.Helper()
		if _, err := sink.Write([]byte(text + "\n")); err != nil {
			t.Fatal(err)
		}
	}
	write("1")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm()&^fileMode != 0 {
		t.Fatalf("%v, %v", info, err)
	}
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	write("2")
	write("3")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	write("4")
	write("5")
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	write("6")
	if got, moved := read(t, path), read(t, path+".1"); got != "6\n" || moved != "1\n" {
		t.Fatalf("the file has %q, the one that was moved %q", got, moved)
	}
}

// TestFullDisk writes to a file whose disk has no room for a line, but for its
// beginning: what is there afterwards is whole lines.
func TestFullDisk(t *testing.T) {
	path := filepath.Join(t.TempDir(), "guard.log")
	sink, err := Open(path, nil, Rotation{MaxSize: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sink.Close() }()
	if _, err := sink.Write([]byte("{\"n\":1}\n")); err != nil {
		t.Fatal(err)
	}
	full := limitFileSize(t, 12)
	n, err := sink.Write([]byte("{\"n\":2}\n"))
	full()
	if err == nil || n != 0 {
		t.Fatalf("%d bytes fit: %v", n, err)
	}
	if got := read(t, path); got != "{\"n\":1}\n" {
		t.Fatalf("the file has %q", got)
	}
	if _, err := sink.Write([]byte("{\"n\":3}\n")); err != nil {
		t.Fatal(err)
	}
	if got := read(t, path); got != "{\"n\":1}\n{\"n\":3}\n" {
		t.Fatalf("the file has %q", got)
	}
}

// limitFileSize has the kernel refuse what goes beyond some size of a file, as a
// full disk does, until what it returns is called. Go ignores the signal.
func limitFileSize(t *testing.T, size uint64) func() {
	t.Helper()
	before := syscall.Rlimit{}
	if err := syscall.Getrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
		t.Fatal(err)
	}
	limit := before
	limit.Cur = size
	if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &limit); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := syscall.Setrlimit(syscall.RLIMIT_FSIZE, &before); err != nil {
			t.Fatal(err)
		}
	}
}

// halting takes a few bytes of each line until it is mended.
type halting struct {
	bytes.Buffer
	takes int
}

func (h *halting) Write(p []byte) (int, error) {
	if h.takes < 0 {
		return h.Buffer.Write(p)
	}
	n := min(h.takes, len(p))
	h.Buffer.Write(p[:n])
	return n, errors.New("no space left on device")
}

// TestTorn keeps whole lines apart from the beginnings of others on a sink that
// takes nothing back.
func TestTorn(t *testing.T) {
	to := &halting{takes: -1}
	w := &whole{to: to}
	for _, takes := range []int{-1, 3, 1, 0, -1, -1} {
		to.takes = takes
		_, _ = w.Write([]byte("{\"a\":1}\n"))
	}
	lines := strings.Split(strings.TrimSpace(to.String()), "\n")
	good := 0
	for _, line := range lines {
		if line == `{"a":1}` {
			good++
		}
	}
	if good != 3 {
		t.Fatalf("%d whole lines in %q", good, to.String())
	}
}

// TestNamedPipe writes to a pipe before it has a reader, with one, and after.
func TestNamedPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	log := openFile(t, path, Rotation{})
	log.Record(entry("before"))
	reader, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	buffer := make([]byte, 64<<10)
	n, err := reader.Read(buffer)
	if err != nil || len(linesOf(t, string(buffer[:n]))) != 1 {
		t.Fatalf("read %q, %v", buffer[:n], err)
	}
	if err := reader.Close(); err != nil {
		t.Fatal(err)
	}
	log.Record(entry("lost"))
	for deadline := time.Now().Add(10 * time.Second); testutil.ToFloat64(log.counters.dropped) != 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("a line that went to nobody is not counted")
		}
	}
	if reader, err = os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reader.Close() }()
	log.Record(entry("after"))
	closeLog(t, log)
	n, err = reader.Read(buffer)
	if err != nil || len(linesOf(t, string(buffer[:n]))) != 1 {
		t.Fatalf("read %q, %v", buffer[:n], err)
	}
}

// TestReport loses lines: it is said once, with their number and why.
func TestReport(t *testing.T) {
	told := make(chan error, 10)
	log := open(t, broken{}, func(o *Options) {
		o.RepeatInterval = 100 * time.Millisecond
		o.Report = func(err error) { told <- err }
	})
	for i := range 3 {
		log.Record(asked(fmt.Sprint(i), fmt.Sprint(i)))
	}
	err := <-told
	if !strings.Contains(err.Error(), "audit lines are lost") || !strings.Contains(err.Error(), "no space left") {
		t.Fatalf("told %v", err)
	}
	log.Record(asked("last", "last"))
	closeLog(t, log)
	// Not again within the minute, but at the end.
	if len(told) != 1 || !strings.Contains((<-told).Error(), "audit lines are lost") {
		t.Fatal("what is lost at the end is not told")
	}
}

// TestPermissions has a folder that is not the guard's: it says so at the start.
func TestPermissions(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root may write everywhere")
	}
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o500); err != nil { //nolint:gosec // A folder needs x.
		t.Fatal(err)
	}
	if _, err := Open(filepath.Join(dir, "log"), nil, Rotation{MaxSize: 1}); !errors.Is(err, fs.ErrPermission) {
		t.Fatalf("got %v", err)
	}
}
