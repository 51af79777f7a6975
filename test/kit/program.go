package kit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/metacontroller-solo/solo/test/kit/process"
)

const (
	// programGrace is the time a program under test gets to end at cleanup.
	programGrace = 10 * time.Second
	// shownLines is how much of a program's output a failed test shows.
	shownLines = 60
)

var builds sync.Map // package path -> func() (string, error)

// Build builds a program of this project, given by its package seen from the root
// ("./cmd/controller"), once per test program, and returns its path. Under the
// race detector the program is built with it, too.
func Build(t testing.TB, pkg string) string {
	t.Helper()
	build, _ := builds.LoadOrStore(pkg, sync.OnceValues(func() (string, error) { return buildProgram(pkg) }))
	path, err := build.(func() (string, error))()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func buildProgram(pkg string) (string, error) {
	// A folder of this process, so that two runs cannot give each other programs
	// of different source.
	dir, err := os.MkdirTemp("", "program-")
	if err != nil {
		return "", fmt.Errorf("cannot build %s: %w", pkg, err)
	}
	programDirs.add(dir)
	path := filepath.Join(dir, filepath.Base(pkg))
	return path, BuildTo(context.Background(), pkg, path)
}

// BuildTo builds a program of this project into a file, whose path is absolute; see
// Build.
//
// "go run" keeps what it has linked in Go's build cache, as "go build" does not: a
// program whose source is the same is not linked anew for each suite. What it runs
// here is a copy of the program to its place.
func BuildTo(ctx context.Context, pkg, path string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	args := []string{"run", "-exec", "cp -f"}
	if raceDetector {
		args = append(args, "-race")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, pkg, path)...)
	cmd.Dir = root
	if output, err := cmd.CombinedOutput(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return goError("build "+pkg, err, string(output))
	}
	return nil
}

// dirs are folders to remove at the end.
type dirs struct {
	mu    sync.Mutex // guards paths
	paths []string
}

// programDirs hold what Build built; Main removes them.
var programDirs dirs

func (d *dirs) add(path string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.paths = append(d.paths, path)
}

func (d *dirs) remove() {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, path := range d.paths {
		_ = os.RemoveAll(path) // in the temporary folder: the system removes it else
	}
	d.paths = nil
}

// Program is a program under test.
type Program struct {
	t      testing.TB
	proc   *process.Process
	output *output
}

// Run starts a program with arguments and, besides PATH, HOME and TMPDIR, the
// given environment ("KEY=value"). When the test ends the program is asked to end
// (SIGTERM) and then made to; if the test failed its last output is shown.
func Run(t testing.TB, path string, args []string, env ...string) *Program {
	t.Helper()
	p := &Program{t: t, output: newOutput()}
	var err error
	p.proc, err = process.Start(process.Spec{
		Name:   filepath.Base(path),
		Path:   path,
		Args:   args,
		Env:    append(environment(), env...),
		Stdout: p.output,
		Grace:  programGrace,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.proc.Stop()
		if t.Failed() {
			t.Logf("%s ended with %s; the end of its output:\n%s", p.proc.Name(), p.status(), lastLines(p.Output(), shownLines))
		}
	})
	return p
}

func (p *Program) status() process.Status {
	status, _ := p.proc.Status()
	return status
}

// Pid is the program's process id.
func (p *Program) Pid() int { return p.proc.Pid() }

// Output is all that the program wrote so far, on both outputs.
func (p *Program) Output() string { return p.output.String() }

// WaitLine waits until a line of the output contains text, from the beginning of
// the output on, and returns that line. The test fails after timeout, or when the
// program ends without such a line.
func (p *Program) WaitLine(timeout time.Duration, text string) string {
	p.t.Helper()
	limit := time.NewTimer(timeout)
	defer limit.Stop()
	for {
		changed := p.output.changed()
		_, ended := p.proc.Status() // before the look: after it nothing is written
		if line, ok := p.output.find(text); ok {
			return line
		}
		if ended {
			p.t.Fatalf("no line with %q: %v", text, p.proc.ExitError())
		}
		select {
		case <-changed:
		case <-p.proc.Done():
		case <-limit.C:
			p.t.Fatalf("no line with %q within %s", text, timeout)
		}
	}
}

// Kill ends the program with SIGKILL and returns when it is gone.
func (p *Program) Kill() { p.proc.Kill() }

// Stop asks the program to end, makes it if need be, and returns its exit code.
func (p *Program) Stop() int { return p.proc.Stop().Code }

// Signal sends a signal, such as SIGSTOP to freeze the program or SIGTERM.
func (p *Program) Signal(sig syscall.Signal) {
	p.t.Helper()
	if err := p.proc.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
}

// Done is closed when the program has ended.
func (p *Program) Done() <-chan struct{} { return p.proc.Done() }

// ExitCode waits for the program's end and returns its exit code, 128 plus the
// number of the signal that ended it. The test fails after timeout.
func (p *Program) ExitCode(timeout time.Duration) int {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	err := p.proc.Until(ctx, func(context.Context) error { return errors.New("it still runs") })
	if _, ended := p.proc.Status(); !ended {
		p.t.Fatal(err)
	}
	return p.status().Code
}

// output collects what a program writes.
type output struct {
	mu   sync.Mutex // guards buf and next
	buf  bytes.Buffer
	next chan struct{} // closed by the next write
}

func newOutput() *output { return &output{next: make(chan struct{})} }

// Write implements io.Writer.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.next)
	o.next = make(chan struct{})
	return o.buf.Write(b)
}

// String is all that was written.
func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func (o *output) changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.next
}

// find returns the first whole line that contains text.
func (o *output) find(text string) (string, bool) {
	for line := range strings.Lines(o.String()) {
		if whole, ok := strings.CutSuffix(line, "\n"); ok && strings.Contains(whole, text) {
			return whole, true
		}
	}
	return "", false
}

func lastLines(s string, n int) string {
	lines := strings.SplitAfter(s, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "")
}

// TempDir makes a folder that lasts as long as the tests of a package; Main removes
// it. It is for what a control plane needs before any test runs.
func TempDir(pattern string) (string, error) {
	dir, err := os.MkdirTemp("", pattern)
	if err != nil {
		return "", fmt.Errorf("cannot create a folder: %w", err)
	}
	programDirs.add(dir)
	return dir, nil
}
