// Package process runs host processes that cannot outlive the program that started them.
//
// A Keeper starts each process in a process group of its own and ends the whole group when its first process
// ends, as a container's other processes end with its process 1. Three guards keep processes from leaking:
// Close ends what still runs; on Linux a process gets SIGKILL when the thread that started it dies, so that
// thread is the Keeper's own; and a small watchdog shell, which sees the end of its standard input when the
// program dies in whatever way, kills the groups that are left, grandchildren included.
//
// A process that leaves its group by setsid is beyond all three.
package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"time"
)

const (
	// drainTime is how long the output of an ended group is waited for. All writers are gone by then, so it only
	// matters for a process that left the group and took the pipe with it.
	drainTime = time.Second
	// pollFirst and pollMost are the pauses between two looks at a killed group: the kernel tells nobody when a
	// process that is not a child of the caller ends.
	pollFirst = time.Millisecond
	pollMost  = 50 * time.Millisecond
)

// watchdogScript keeps the list of living groups in step with its input and kills them when the input ends.
const watchdogScript = `trap '' HUP INT TERM
ids=' '
while read -r op id; do
  case $op in
  +) ids="$ids$id " ;;
  -) ids="${ids%% $id *} ${ids#* $id }" ;;
  esac
done
for id in $ids; do kill -s KILL -- "-$id" 2>/dev/null; done
exit 0`

// ErrClosed is returned by Start after Close.
var ErrClosed = errors.New("the keeper of processes is closed")

// Spec says what to run.
type Spec struct {
	// Path is the program, Args its arguments without the program's name, Env its whole environment.
	Path string
	Args []string
	Env  []string
	// Dir is the working directory.
	Dir string
	// Stdin may be nil, which is an empty input. It is an open file so that nobody need copy.
	Stdin *os.File
	// Stdout and Stderr take the output; they are called from one goroutine each and may be nil.
	Stdout, Stderr io.Writer
}

// Exit is how a process ended.
type Exit struct {
	// Code is the exit code, or 128 plus the signal's number.
	Code int
	// Signal is the signal that ended the process, 0 if none did.
	Signal syscall.Signal
}

// Keeper starts processes and ends them.
type Keeper struct {
	starts   chan func()
	watchdog *exec.Cmd
	thread   sync.WaitGroup
	// alive counts the groups, those under way included; it grows under mu only and not after closed.
	alive sync.WaitGroup

	// mu guards pipe, groups and closed; a write of a few bytes to the pipe is made under it to keep the lines in order.
	mu     sync.Mutex
	pipe   *os.File
	groups map[*Group]struct{}
	closed bool
}

// NewKeeper starts a Keeper and its watchdog.
func NewKeeper() (*Keeper, error) {
	input, pipe, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make a pipe for the watchdog: %w", err)
	}
	defer func() { _ = input.Close() }()
	watchdog := exec.Command("/bin/sh", "-c", watchdogScript)
	watchdog.Stdin = input
	watchdog.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := watchdog.Start(); err != nil {
		_ = pipe.Close()
		return nil, fmt.Errorf("cannot start the watchdog of processes: %w", err)
	}
	k := &Keeper{starts: make(chan func()), watchdog: watchdog, pipe: pipe, groups: map[*Group]struct{}{}}
	k.thread.Go(func() {
		// The thread dies with this goroutine, because it is never unlocked; by then Close has seen all groups end.
		runtime.LockOSThread()
		for start := range k.starts {
			start()
		}
	})
	return k, nil
}

// Group is a started process and those that it started.
type Group struct {
	pid  int
	done chan struct{}
	exit Exit
}

// PID is the number of the first process and of the group.
func (g *Group) PID() int { return g.pid }

// Done is closed when no process of the group is left and its output is read.
func (g *Group) Done() <-chan struct{} { return g.done }

// Exit is valid once Done is closed.
func (g *Group) Exit() Exit { return g.exit }

// Signal sends to the first process, as a container runtime does. It is no error when that has ended.
func (g *Group) Signal(signal syscall.Signal) error {
	return ignoreGone(syscall.Kill(g.pid, signal))
}

// Kill sends SIGKILL to the whole group.
func (g *Group) Kill() error {
	return ignoreGone(syscall.Kill(-g.pid, syscall.SIGKILL))
}

// Start starts a process. The error names the program.
func (k *Keeper) Start(spec Spec) (*Group, error) {
	cmd := exec.Command(spec.Path, spec.Args...)
	cmd.Env = spec.Env
	if cmd.Env == nil {
		cmd.Env = []string{}
	}
	cmd.Dir = spec.Dir
	if spec.Stdin != nil {
		cmd.Stdin = spec.Stdin
	}
	cmd.SysProcAttr = attributes()
	var outputs outputs
	defer outputs.closeWriters()
	if err := outputs.attach(&cmd.Stdout, spec.Stdout); err != nil {
		return nil, err
	}
	if err := outputs.attach(&cmd.Stderr, spec.Stderr); err != nil {
		outputs.closeReaders()
		return nil, err
	}
	group := &Group{done: make(chan struct{})}
	if err := k.start(cmd, group); err != nil {
		outputs.closeReaders()
		return nil, fmt.Errorf("cannot start program %q: %w", spec.Path, err)
	}
	drained := outputs.drain()
	go func() {
		group.exit = exitOf(cmd.Wait())
		group.end()
		select {
		case <-drained:
		case <-time.After(drainTime):
			outputs.closeReaders()
			<-drained
		}
		k.forget(group)
		close(group.done)
		k.alive.Done()
	}()
	return group, nil
}

// start forks on the Keeper's own thread and tells the watchdog.
func (k *Keeper) start(cmd *exec.Cmd, group *Group) error {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return ErrClosed
	}
	k.alive.Add(1)
	k.mu.Unlock()
	result := make(chan error, 1)
	k.starts <- func() { result <- cmd.Start() }
	if err := <-result; err != nil {
		k.alive.Done()
		return err
	}
	group.pid = cmd.Process.Pid
	k.mu.Lock()
	k.groups[group] = struct{}{}
	k.tell("+", group.pid)
	closed := k.closed
	k.mu.Unlock()
	if closed {
		_ = group.Kill()
	}
	return nil
}

func (k *Keeper) forget(group *Group) {
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.groups, group)
	k.tell("-", group.pid)
}

// tell writes one line to the watchdog. A dead watchdog is one guard of three less, no reason to stop.
func (k *Keeper) tell(op string, pid int) {
	_, _ = k.pipe.WriteString(op + " " + strconv.Itoa(pid) + "\n")
}

// Close kills every group that still lives and returns when none is left. Callers that want a graceful end do that before.
func (k *Keeper) Close() {
	k.mu.Lock()
	if k.closed {
		k.mu.Unlock()
		return
	}
	k.closed = true
	groups := make([]*Group, 0, len(k.groups))
	for group := range k.groups {
		groups = append(groups, group)
	}
	k.mu.Unlock()
	for _, group := range groups {
		_ = group.Kill()
	}
	// A start that was under way sees closed and kills its own group; the thread is there until it is counted down.
	k.alive.Wait()
	close(k.starts)
	k.thread.Wait()
	_ = k.pipe.Close()
	_ = k.watchdog.Wait()
}

// end kills what the first process left behind and waits until it is gone.
func (g *Group) end() {
	pause := pollFirst
	for {
		err := syscall.Kill(-g.pid, syscall.SIGKILL)
		// Darwin answers EPERM for a group of which only zombies are left.
		if errors.Is(err, syscall.ESRCH) || errors.Is(err, syscall.EPERM) && runtime.GOOS == "darwin" {
			return
		}
		// Orphans that ended but that nobody collects stay as zombies; they run no code and hold nothing.
		if onlyZombies(g.pid) {
			return
		}
		time.Sleep(pause)
		pause = min(2*pause, pollMost)
	}
}

func exitOf(err error) Exit {
	var failed *exec.ExitError
	if !errors.As(err, &failed) {
		if err != nil {
			return Exit{Code: 255}
		}
		return Exit{}
	}
	if status, ok := failed.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return Exit{Code: 128 + int(status.Signal()), Signal: status.Signal()}
	}
	return Exit{Code: failed.ExitCode()}
}

func ignoreGone(err error) error {
	if errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}

// outputs are the pipes between a process and the writers that take its output.
type outputs struct {
	readers, writers []*os.File
	to               []io.Writer
}

func (o *outputs) attach(field *io.Writer, to io.Writer) error {
	if to == nil {
		return nil
	}
	reader, writer, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot make a pipe for the output of a process: %w", err)
	}
	*field = writer
	o.readers, o.writers, o.to = append(o.readers, reader), append(o.writers, writer), append(o.to, to)
	return nil
}

// drain copies all output and closes the returned channel at its end.
func (o *outputs) drain() <-chan struct{} {
	done := make(chan struct{})
	var copies sync.WaitGroup
	for i, reader := range o.readers {
		copies.Go(func() {
			// A writer that fails must not block the process: the rest is read and dropped.
			if _, err := io.Copy(o.to[i], reader); err != nil {
				_, _ = io.Copy(io.Discard, reader)
			}
			_ = reader.Close()
		})
	}
	go func() {
		copies.Wait()
		close(done)
	}()
	return done
}

func (o *outputs) closeWriters() { closeAll(o.writers) }
func (o *outputs) closeReaders() { closeAll(o.readers) }

func closeAll(files []*os.File) {
	for _, file := range files {
		_ = file.Close()
	}
}
