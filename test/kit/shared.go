package kit

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

const (
	// sharedStartLimit bounds the start of a shared control plane; its programs
	// may have to be built first.
	sharedStartLimit = 30 * time.Minute
	// eventuallyInterval is the time between two looks of Eventually.
	eventuallyInterval = 20 * time.Millisecond
)

// shared is the control plane of one test program.
var shared struct {
	mu      sync.Mutex // guards all below; held while the control plane starts, so that one does
	options *Options
	cp      *ControlPlane
	err     error
}

// Main runs the tests of a package that share one control plane, and exits; call
// it from TestMain. The control plane starts when the first test asks for it, and
// ends with the tests, also on an interrupt.
func Main(m *testing.M, options Options) {
	if options.Log == nil {
		options.Log = os.Stderr
	}
	// Quiet, unless the package chose a logger before.
	log.SetLogger(logr.Discard())

	shared.mu.Lock()
	shared.options = &options
	shared.mu.Unlock()

	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		sig := <-signals
		stopShared()
		programDirs.remove()
		fmt.Fprintf(os.Stderr, "tests stopped by %s\n", sig)
		os.Exit(1)
	}()

	code := m.Run()
	stopShared()
	programDirs.remove()
	os.Exit(code)
}

func stopShared() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.cp != nil {
		shared.cp.Stop()
		shared.cp = nil
	}
	shared.err = fmt.Errorf("cannot use the shared control plane: it was stopped")
}

// Shared is the control plane of this package's tests, which Main was told about.
// A test that breaks it must mend it.
func Shared(t testing.TB) *ControlPlane {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.options == nil {
		t.Fatal("kit.Shared needs a TestMain that calls kit.Main")
	}
	if shared.cp == nil && shared.err == nil {
		ctx, cancel := context.WithTimeout(context.Background(), sharedStartLimit)
		defer cancel()
		shared.cp, shared.err = Start(ctx, *shared.options)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.cp
}

// Eventually calls check until it returns nil, and fails the test with its last
// error after timeout.
func Eventually(t testing.TB, timeout time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %v", timeout, err)
		}
		time.Sleep(eventuallyInterval)
	}
}
