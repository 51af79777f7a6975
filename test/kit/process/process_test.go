package process_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/metacontroller-solo/solo/test/kit/process"
)

// roleEnv makes the test program play another role than running tests.
const roleEnv = "PROCESS_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleEnv) {
	case "":
		goleak.VerifyTestMain(m)
	case "parent": // starts a child that lives long, says its pid, and waits for its own end
		p, err := process.Start(process.Spec{Path: "sleep", Args: []string{"1000"}})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.Pid())
		<-p.Done()
	case "locker": // holds a lock together with a child
		lock, err := process.Acquire(context.Background(), os.Args[1])
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		p, err := process.Start(process.Spec{Path: "sleep", Args: []string{"1000"}, Files: []*os.File{lock.File()}})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println(p.Pid())
		<-p.Done()
	}
}

// shell starts a shell script that is killed at the test's end.
func shell(t *testing.T, script string, change ...func(*process.Spec)) *process.Process {
	t.Helper()
	spec := process.Spec{Name: "script", Path: "/bin/sh", Args: []string{"-c", script}}
	for _, c := range change {
		c(&spec)
	}
	p, err := process.Start(spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func await(t *testing.T, p *process.Process) process.Status {
	t.Helper()
	select {
	case <-p.Done():
	case <-time.After(20 * time.Second):
		t.Fatalf("%s still runs", p.Name())
	}
	status, _ := p.Status()
	return status
}

func TestStatus(t *testing.T) {
	for _, tc := range []struct {
		name, script string
		want         process.Status
	}{
		{"success", "exit 0", process.Status{}},
		{"failure", "exit 7", process.Status{Code: 7}},
		{"signal", "kill -9 $$", process.Status{Code: 137, Signal: syscall.SIGKILL}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := await(t, shell(t, tc.script)); got != tc.want {
				t.Errorf("status %+v, want %+v", got, tc.want)
			}
		})
	}
}

func TestStartFails(t *testing.T) {
	for _, tc := range []struct {
		name, path string
		want       error
	}{
		{"absent", filepath.Join(t.TempDir(), "absent"), os.ErrNotExist},
		{"directory", t.TempDir(), os.ErrPermission},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p, err := process.Start(process.Spec{Name: "it", Path: tc.path})
			if p != nil || !errors.Is(err, tc.want) || !strings.Contains(err.Error(), "cannot start it") {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}

func TestOutput(t *testing.T) {
	var both, out, errs bytes.Buffer
	await(t, shell(t, "echo a; echo b >&2; printf c", func(s *process.Spec) { s.Stdout = &both }))
	if got := both.String(); got != "a\nb\nc" {
		t.Errorf("joined output %q", got)
	}
	p := shell(t, "echo a; echo b >&2", func(s *process.Spec) { s.Stdout, s.Stderr = &out, &errs })
	await(t, p)
	if out.String() != "a\n" || errs.String() != "b\n" {
		t.Errorf("output %q and %q", out.String(), errs.String())
	}
	tail := p.Tail()
	slices.Sort(tail)
	if !slices.Equal(tail, []string{"a", "b"}) {
		t.Errorf("tail %q", tail)
	}
}

func TestTailIsBounded(t *testing.T) {
	p := shell(t, `i=0; while [ $i -lt 100 ]; do echo line $i; i=$((i+1)); done; head -c 100000 /dev/zero | tr '\0' x`)
	await(t, p)
	tail := p.Tail()
	if len(tail) > 20 || tail[len(tail)-2] != "line 99" || len(tail[len(tail)-1]) != 1024 {
		t.Errorf("tail has %d lines: %.300q", len(tail), tail)
	}
}

func TestStop(t *testing.T) {
	t.Run("asks", func(t *testing.T) {
		p := shell(t, `trap 'echo bye; exit 3' TERM; echo up; while :; do sleep 0.01; done`)
		untilSaid(t, p, "up")
		if got := p.Stop(); got.Code != 3 || !slices.Contains(p.Tail(), "bye") {
			t.Errorf("ended with %v, tail %q", got, p.Tail())
		}
		if got := p.Stop(); got.Code != 3 {
			t.Errorf("second stop says %v", got)
		}
	})
	t.Run("insists", func(t *testing.T) {
		p := shell(t, `trap '' TERM; echo up; while :; do sleep 0.01; done`, func(s *process.Spec) { s.Grace = 50 * time.Millisecond })
		untilSaid(t, p, "up")
		if got := p.Stop(); got.Signal != syscall.SIGKILL {
			t.Errorf("ended with %v", got)
		}
	})
}

func untilSaid(t *testing.T, p *process.Process, line string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	err := p.Until(ctx, func(context.Context) error {
		if !slices.Contains(p.Tail(), line) {
			return fmt.Errorf("did not say %q", line)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// What a program leaves behind in its group ends with it, and does not keep Done
// from closing though it holds the output open.
func TestGroupEndsWithItsLeader(t *testing.T) {
	p := shell(t, `sleep 1000 & echo $!`)
	await(t, p)
	pid, err := strconv.Atoi(p.Tail()[0])
	if err != nil {
		t.Fatal(err)
	}
	untilGone(t, pid)
}

func untilGone(t *testing.T, pid int) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for alive(pid) {
		if time.Now().After(deadline) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("process %d still lives", pid)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// alive tells whether a process runs; one that only waits to be reaped does not.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		_, noProc := os.Stat("/proc/self")
		return noProc != nil
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z")
}

func TestUntil(t *testing.T) {
	t.Run("ended", func(t *testing.T) {
		p := shell(t, "echo no such flag; exit 2")
		err := p.Until(t.Context(), func(context.Context) error { return errors.New("not yet") })
		var exit *process.ExitError
		if !errors.As(err, &exit) || exit.Status.Code != 2 || !strings.Contains(err.Error(), "no such flag") {
			t.Errorf("got %v", err)
		}
	})
	t.Run("late", func(t *testing.T) {
		p := shell(t, "exec sleep 1000")
		notYet := errors.New("not yet")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := p.Until(ctx, func(context.Context) error { return notYet }); !errors.Is(err, notYet) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		if _, ended := p.Status(); ended {
			t.Error("the program was ended")
		}
	})
}

func TestSignalAfterTheEnd(t *testing.T) {
	p := shell(t, "exit 0")
	await(t, p)
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
}

// role starts this test program in another role and returns the pid it prints.
func role(t *testing.T, name string, args ...string) (p *process.Process, childPid int) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out, in, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close(); _ = in.Close() }()
	p, err = process.Start(process.Spec{Path: self, Args: args, Env: append(os.Environ(), roleEnv+"="+name), Stdout: in})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	childPid, err = strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(line)
	}
	return p, childPid
}

func TestLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	now, cancel := context.WithCancel(t.Context())
	cancel()

	lock, err := process.Acquire(now, path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = process.Acquire(now, path)
	var locked *process.LockedError
	if !errors.As(err, &locked) || locked.Pid != os.Getpid() {
		t.Errorf("second lock: %v", err)
	}
	lock.Release()

	holder, child := role(t, "locker", path)
	_, err = process.Acquire(now, path)
	if !errors.As(err, &locked) || locked.Pid != holder.Pid() {
		t.Errorf("lock of another process: %v", err)
	}
	// The child is killed with it, or has to be ended first: either way the lock
	// tells the truth.
	holder.Kill()
	_ = syscall.Kill(child, syscall.SIGKILL)
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	lock, err = process.Acquire(soon, path)
	if err != nil {
		t.Fatal(err)
	}
	lock.Release()

	if _, err := process.Acquire(now, filepath.Join(t.TempDir(), "absent", "lock")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("lock in an absent folder: %v", err)
	}
}
