package process

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// asParent makes the test binary a parent that starts a process with a grandchild, prints their numbers and waits.
const asParent = "PROCESS_TEST_PARENT"

func TestMain(m *testing.M) {
	if os.Getenv(asParent) != "" {
		parent()
	}
	goleak.VerifyTestMain(m)
}

func parent() {
	k, err := NewKeeper()
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	if _, err := k.Start(Spec{Path: "/bin/sh", Args: []string{"-c", "sleep 600 & echo $$ $!; wait"}, Env: os.Environ(), Stdout: os.Stdout}); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	select {}
}

// buffer is a bytes.Buffer for two goroutines.
type buffer struct {
	mu sync.Mutex // guards b
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

// lives is false for zombies too.
func lives(pid int) bool {
	out, _ := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	state := strings.TrimSpace(string(out))
	return state != "" && !strings.HasPrefix(state, "Z")
}

func newKeeper(t *testing.T) *Keeper {
	t.Helper()
	k, err := NewKeeper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Close)
	return k
}

func sh(script string, out *buffer) Spec {
	return Spec{Path: "/bin/sh", Args: []string{"-c", script}, Env: os.Environ(), Dir: os.TempDir(), Stdout: out, Stderr: out}
}

func TestExit(t *testing.T) {
	k := newKeeper(t)
	for script, want := range map[string]Exit{
		"exit 0":        {},
		"exit 7":        {Code: 7},
		"kill -TERM $$": {Code: 143, Signal: syscall.SIGTERM},
		"kill -KILL $$": {Code: 137, Signal: syscall.SIGKILL},
	} {
		var out buffer
		g, err := k.Start(sh("echo out; echo err >&2; "+script, &out))
		if err != nil {
			t.Fatal(err)
		}
		<-g.Done()
		if g.Exit() != want {
			t.Errorf("%s: exit %+v, want %+v", script, g.Exit(), want)
		}
		if !strings.Contains(out.String(), "out\n") || !strings.Contains(out.String(), "err\n") {
			t.Errorf("%s: output %q is not whole", script, out.String())
		}
	}
}

func TestStartFails(t *testing.T) {
	k := newKeeper(t)
	if _, err := k.Start(Spec{Path: "/no/such/program"}); err == nil || !strings.Contains(err.Error(), "/no/such/program") {
		t.Errorf("error %v does not name the program", err)
	}
}

// The group ends with its first process, as a container does, and Done tells only when the last is gone.
func TestGroupEndsWithFirst(t *testing.T) {
	k := newKeeper(t)
	var out buffer
	g, err := k.Start(sh("trap '' TERM; (trap '' TERM; sleep 600) & echo $!; exit 3", &out))
	if err != nil {
		t.Fatal(err)
	}
	<-g.Done()
	child, err := strconv.Atoi(strings.TrimSpace(out.String()))
	if err != nil {
		t.Fatal(err)
	}
	if lives(child) {
		t.Error("the first process's child lives on")
	}
	if g.Exit().Code != 3 {
		t.Errorf("exit %+v", g.Exit())
	}
}

func TestCloseKills(t *testing.T) {
	k, err := NewKeeper()
	if err != nil {
		t.Fatal(err)
	}
	var groups []*Group
	for range 5 {
		g, err := k.Start(sh("trap '' TERM; sleep 600", &buffer{}))
		if err != nil {
			t.Fatal(err)
		}
		groups = append(groups, g)
	}
	k.Close()
	for _, g := range groups {
		<-g.Done()
		if g.Exit().Signal != syscall.SIGKILL {
			t.Errorf("exit %+v", g.Exit())
		}
	}
	if _, err := k.Start(sh("exit 0", &buffer{})); err == nil {
		t.Error("a closed keeper starts processes")
	}
}

// kill -9 of the program leaves neither child nor grandchild.
func TestParentKilled(t *testing.T) {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asParent+"=1")
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("%v: %q", err, line)
	}
	var child, grandchild int
	if _, err := fmt.Sscan(line, &child, &grandchild); err != nil {
		t.Fatalf("%v: %q", err, line)
	}
	if !lives(child) || !lives(grandchild) {
		t.Fatalf("%d and %d should live", child, grandchild)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	eventually(t, "child and grandchild end", func() bool { return !lives(child) && !lives(grandchild) })
}
