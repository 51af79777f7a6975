// Package process starts host programs and answers for them until they are
// gone: the control plane of the tests and the programs under test run through
// it. Containers of the local cluster have a keeper of their own, test/node/process,
// which waits for whole process groups.
//
// A started program gets a process group of its own, so that an interrupt typed
// into the terminal reaches only the program that started it, which then stops
// its children in the order it wants. When a program exits, whatever is left in
// its group is killed. On Linux a program is also killed by the kernel when the
// process that started it dies, however it dies; elsewhere a SIGKILL of the
// starting process leaves its children behind.
//
//	Start -> Process -> Until (ready?) -> ... -> Stop (SIGTERM, then SIGKILL) -> Done
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// DefaultGrace is how long Stop waits between SIGTERM and SIGKILL when the
	// Spec names no other time.
	DefaultGrace = 10 * time.Second

	// outputDrain bounds the wait for output after a program's exit: a descendant
	// that left the process group can hold the pipe open for ever.
	outputDrain = 2 * time.Second

	// pollInterval is the time between two attempts of Until.
	pollInterval = 50 * time.Millisecond
)

// Spec says what to start and how.
type Spec struct {
	// Name is how the program is called in errors; by default its path.
	Name string
	// Path is the program's file; a name without a slash is looked up in PATH.
	Path string
	// Args are the arguments after the program's name.
	Args []string
	// Env is the whole environment ("KEY=value"); nil means that of this process.
	Env []string
	// Dir is the working directory; empty means that of this process.
	Dir string
	// Stdout and Stderr receive the program's output besides the tail that is
	// always kept. A nil Stderr goes where Stdout goes, in order. A Write happens
	// on a goroutine of the Process, never two at once for one of the two; a
	// writer that fails is not written to again, and does not stop the program.
	Stdout, Stderr io.Writer
	// Files are passed to the program as descriptors 3 and up. A program that
	// inherits a locked file keeps that lock held for as long as it lives.
	Files []*os.File
	// Grace is the time from SIGTERM to SIGKILL in Stop; zero means DefaultGrace.
	Grace time.Duration
}

// Status tells how a program ended.
type Status struct {
	// Code is the exit code, or 128 plus the signal's number when a signal ended
	// the program: what a container runtime reports.
	Code int
	// Signal is the signal that ended the program, or zero.
	Signal syscall.Signal
}

// String says the status in words, for messages.
func (s Status) String() string {
	if s.Signal != 0 {
		return fmt.Sprintf("signal %d (%s)", int(s.Signal), s.Signal)
	}
	return fmt.Sprintf("exit code %d", s.Code)
}

// ExitError says that a program ended when it was expected to run.
type ExitError struct {
	Name   string
	Status Status
	// Tail holds the last lines the program wrote.
	Tail []string
}

// Error tells how the program ended and what it said last.
func (e *ExitError) Error() string {
	return fmt.Sprintf("%s ended with %s%s", e.Name, e.Status, quoteTail(e.Tail))
}

func quoteTail(lines []string) string {
	if len(lines) == 0 {
		return ", and wrote nothing"
	}
	return "; its last lines:\n  | " + strings.Join(lines, "\n  | ")
}

// Process is a program that was started. Its methods can be called from several
// goroutines, and after the program's end.
type Process struct {
	spec    Spec
	cmd     *exec.Cmd
	tail    *tail
	started time.Time

	reaped atomic.Bool   // the program is gone: its group's number is no longer ours
	done   chan struct{} // closed after status was set
	status Status
	ended  time.Time
}

// Start starts the program. The caller must Stop it, or wait for Done.
//
// An error means that nothing runs.
func Start(spec Spec) (*Process, error) {
	if spec.Name == "" {
		spec.Name = spec.Path
	}
	if spec.Grace == 0 {
		spec.Grace = DefaultGrace
	}
	p := &Process{spec: spec, tail: &tail{}, done: make(chan struct{})}

	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Env = spec.Env
	cmd.Dir = spec.Dir
	cmd.ExtraFiles = spec.Files
	cmd.SysProcAttr = attributes()
	p.cmd = cmd

	out, err := p.connect()
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", spec.Name, err)
	}

	started := make(chan error, 1)
	go p.supervise(out, started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", spec.Name, err)
	}
	return p, nil
}

// output is the reading side of one pipe from the program.
type output struct {
	from, child *os.File
	to          io.Writer
}

// connect makes the pipes between the program and this process. Pipes of our own,
// not those of os/exec, because the group must be killed between the program's
// exit and the end of its output.
func (p *Process) connect() ([]output, error) {
	var outs []output
	pipe := func(to io.Writer) (*os.File, error) {
		from, child, err := os.Pipe()
		if err != nil {
			closeOutputs(outs)
			return nil, err
		}
		if to == nil {
			to = io.Discard
		}
		outs = append(outs, output{from: from, child: child, to: to})
		return child, nil
	}
	stdout, err := pipe(p.spec.Stdout)
	if err != nil {
		return nil, err
	}
	p.cmd.Stdout, p.cmd.Stderr = stdout, stdout
	if p.spec.Stderr != nil {
		stderr, err := pipe(p.spec.Stderr)
		if err != nil {
			return nil, err
		}
		p.cmd.Stderr = stderr
	}
	return outs, nil
}

func closeOutputs(outs []output) {
	for _, o := range outs {
		_ = o.from.Close()
		_ = o.child.Close()
	}
}

// supervise starts the program and waits for its end, on one thread: the kernel
// sends the parent-death signal when the thread that forked ends, not when the
// process does, and Go's runtime ends threads as it likes unless a goroutine is
// locked to them.
func (p *Process) supervise(outs []output, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	if err := p.cmd.Start(); err != nil {
		closeOutputs(outs)
		started <- err
		return
	}
	p.started = time.Now()
	var copying sync.WaitGroup
	for _, o := range outs {
		_ = o.child.Close()
		copying.Go(func() { p.copy(o) })
	}
	started <- nil

	_ = p.cmd.Wait() // how it ended is in ProcessState; nothing else can fail here
	p.reaped.Store(true)
	// The leader is gone; what it left in its group goes too. The group's number
	// cannot have been given to anyone else while members of it live, and when none
	// live there is hardly time for it to be.
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)

	drained := make(chan struct{})
	go func() {
		copying.Wait()
		close(drained)
	}()
	limit := time.NewTimer(outputDrain)
	defer limit.Stop()
	select {
	case <-drained:
	case <-limit.C:
		for _, o := range outs {
			_ = o.from.Close() // ends the copy
		}
		<-drained
	}

	p.ended = time.Now()
	p.status = statusOf(p.cmd.ProcessState)
	close(p.done)
}

func (p *Process) copy(o output) {
	defer func() { _ = o.from.Close() }()
	var failed bool
	buf := make([]byte, 32<<10)
	for {
		n, err := o.from.Read(buf)
		if n > 0 {
			p.tail.write(buf[:n])
			if !failed {
				_, werr := o.to.Write(buf[:n])
				failed = werr != nil
			}
		}
		if err != nil {
			return
		}
	}
}

func statusOf(state *os.ProcessState) Status {
	ws, ok := state.Sys().(syscall.WaitStatus)
	if ok && ws.Signaled() {
		return Status{Code: 128 + int(ws.Signal()), Signal: ws.Signal()}
	}
	return Status{Code: state.ExitCode()}
}

// Name is the program's name, for messages.
func (p *Process) Name() string { return p.spec.Name }

// Pid is the program's process id; it is also the id of its process group.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Started is when the program was started.
func (p *Process) Started() time.Time { return p.started }

// Done is closed when the program has ended and its output was read.
func (p *Process) Done() <-chan struct{} { return p.done }

// Status tells how the program ended; ok is false while it runs.
func (p *Process) Status() (status Status, ok bool) {
	select {
	case <-p.done:
		return p.status, true
	default:
		return Status{}, false
	}
}

// Ended is when the program ended; zero while it runs.
func (p *Process) Ended() time.Time {
	select {
	case <-p.done:
		return p.ended
	default:
		return time.Time{}
	}
}

// Tail returns the last lines of the program's output.
func (p *Process) Tail() []string { return p.tail.lines() }

// ExitError describes the end of the program; nil while it runs.
func (p *Process) ExitError() error {
	status, ok := p.Status()
	if !ok {
		return nil
	}
	return &ExitError{Name: p.spec.Name, Status: status, Tail: p.Tail()}
}

// Signal sends a signal to the program, not to its group. It does nothing when the
// program has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if err == nil || errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return fmt.Errorf("cannot send %s to %s: %w", sig, p.spec.Name, err)
}

// Kill ends the program and its group with SIGKILL and waits until it is gone.
func (p *Process) Kill() {
	p.killGroup()
	<-p.done
}

func (p *Process) killGroup() {
	if p.reaped.Load() { // supervise has seen to the group
		return
	}
	_ = p.cmd.Process.Kill()
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL)
}

// Stop asks the program to end (SIGTERM) and, after the Spec's grace, makes it
// (SIGKILL, to the whole group). It returns when the program is gone, and tells
// how it ended.
func (p *Process) Stop() Status { return p.StopWithin(p.spec.Grace) }

// StopWithin is Stop with another grace; zero or less kills at once.
func (p *Process) StopWithin(grace time.Duration) Status {
	if grace > 0 {
		_ = p.Signal(syscall.SIGTERM) // an error means it cannot be signalled: then SIGKILL decides
		timer := time.NewTimer(grace)
		defer timer.Stop()
		select {
		case <-p.done:
			return p.status
		case <-timer.C:
		}
	}
	p.Kill()
	return p.status
}

// Until calls ready again and again until it returns nil. It fails with an
// *ExitError when the program ends first, and with ready's last error and the
// program's last lines when ctx ends first. The program is left as it is.
func (p *Process) Until(ctx context.Context, ready func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		err := ready(ctx)
		if _, ended := p.Status(); ended {
			return p.ExitError()
		}
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return p.ExitError()
		case <-ctx.Done():
			return fmt.Errorf("%s did not get ready: %w (%w)%s", p.spec.Name, err, context.Cause(ctx), quoteTail(p.Tail()))
		case <-ticker.C:
		}
	}
}
