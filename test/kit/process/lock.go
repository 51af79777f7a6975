package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Lock is an exclusive lock on a file between processes. The kernel releases it
// when the last process that holds its descriptor ends: pass File on in
// Spec.Files to have a program's life keep it held.
type Lock struct {
	file *os.File
}

// LockedError says that another process holds a lock.
type LockedError struct {
	// Path is the lock file.
	Path string
	// Pid is the process that took the lock, zero if it left no note of itself.
	// Where that process is gone, one of its children holds the lock.
	Pid int
}

// Error names the holder.
func (e *LockedError) Error() string {
	if e.Pid == 0 {
		return fmt.Sprintf("%s is locked by another process", e.Path)
	}
	if errors.Is(syscall.Kill(e.Pid, 0), syscall.ESRCH) {
		return fmt.Sprintf("%s is locked by programs that process %d started and left behind: end them first", e.Path, e.Pid)
	}
	return fmt.Sprintf("%s is locked by process %d", e.Path, e.Pid)
}

// Acquire takes the lock on a file, which it creates if need be, and waits for it
// until ctx ends; it tries at least once. It fails with a *LockedError when
// another process has it.
func Acquire(ctx context.Context, path string) (*Lock, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open lock file: %w", err)
	}
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			_ = file.Close()
			return nil, fmt.Errorf("cannot lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			pid := readPid(file)
			_ = file.Close()
			return nil, &LockedError{Path: path, Pid: pid}
		case <-time.After(pollInterval):
		}
	}
	note := strconv.Itoa(os.Getpid()) + "\n"
	if err := file.Truncate(0); err == nil {
		_, _ = file.WriteAt([]byte(note), 0) // only a note for the message of others
	}
	return &Lock{file: file}, nil
}

func readPid(file *os.File) int {
	note, err := io.ReadAll(io.NewSectionReader(file, 0, 32))
	if err != nil {
		return 0
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(note)))
	if err != nil {
		return 0
	}
	return pid
}

// File is the locked file.
func (l *Lock) File() *os.File { return l.file }

// Release gives the lock up, unless a child inherited it and still lives.
func (l *Lock) Release() {
	_ = l.file.Close()
}
