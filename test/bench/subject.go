package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/metacontroller-solo/solo/test/bench/tally"
	"github.com/metacontroller-solo/solo/test/bench/workload"
	"github.com/metacontroller-solo/solo/test/kit/process"
)

const (
	// startLimit bounds the start of a process until it is of use.
	startLimit = time.Minute
	// stopGrace is what a process gets to end by itself.
	stopGrace = 20 * time.Second
)

// environment is what the processes get of this one's: what Go's runtime looks at,
// and no proxies or credentials.
func environment() []string {
	var env []string
	for _, key := range []string{"PATH", "HOME", "TMPDIR", "GOMAXPROCS", "GOGC", "GOMEMLIMIT", "GODEBUG"} {
		if value, ok := os.LookupEnv(key); ok {
			env = append(env, key+"="+value)
		}
	}
	return env
}

// subject is what is measured: the controller, or the raw writer in its place.
type subject interface {
	// start starts its process.
	start(ctx context.Context) (*process.Process, error)
	// tell says what a change of a parent makes it write.
	tell(job workload.Job) error
	// stop ends the process. The error is that it did not end well.
	stop(ctx context.Context) error
}

// controllerSubject is the controller. Nobody tells it anything.
type controllerSubject struct {
	program          string
	args             []string
	metrics, profile string // addresses
	proc             *process.Process
}

// newController prepares a controller that looks after one run.
func newController(s settings, c *corner, plan workload.Plan) *controllerSubject {
	return &controllerSubject{
		program: s.Controller,
		args: append([]string{
			"--kubeconfig=" + c.kubeconfig,
			"--health-probe-bind-address=0",
			"--workers=" + strconv.Itoa(s.Workers),
			"--target-label-selector=" + workload.RunLabel + "=" + plan.Run,
		}, s.ControllerArgs...),
	}
}

func (c *controllerSubject) start(context.Context) (_ *process.Process, err error) {
	// As late as can be: nothing keeps a free address free.
	if c.metrics, err = freeAddress(); err != nil {
		return nil, err
	}
	if c.profile, err = freeAddress(); err != nil {
		return nil, err
	}
	args := append([]string{"--metrics-address=" + c.metrics, "--pprof-address=" + c.profile}, c.args...)
	c.proc, err = process.Start(process.Spec{Name: "controller", Path: c.program, Args: args, Env: environment(), Grace: stopGrace})
	return c.proc, err
}

func (c *controllerSubject) tell(workload.Job) error { return nil }

func (c *controllerSubject) stop(context.Context) error { return stopped(c.proc) }

func stopped(proc *process.Process) error {
	if status := proc.Stop(); status.Code != 0 {
		return fmt.Errorf("it was asked to end: %w", proc.ExitError())
	}
	return nil
}

// requests is what the controller counted itself of its requests, by HTTP method.
func (c *controllerSubject) requests(ctx context.Context) (map[string]int, error) {
	text, err := fetch(ctx, http.MethodGet, "http://"+c.metrics+"/metrics")
	if err != nil {
		return nil, fmt.Errorf("cannot read the controller's metrics: %w", err)
	}
	return tally.FromMetrics(text)
}

// rawSubject is the raw writer, in a process of its own.
type rawSubject struct {
	workers    int
	kubeconfig string
	proc       *process.Process
	pipe       *os.File

	mu      sync.Mutex // makes a job one piece in the pipe
	encoder *json.Encoder
}

func newRaw(s settings, c *corner) *rawSubject {
	return &rawSubject{workers: s.Workers, kubeconfig: c.kubeconfig}
}

func (r *rawSubject) start(ctx context.Context) (*process.Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("cannot find this program: %w", err)
	}
	from, to, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("cannot make a pipe: %w", err)
	}
	defer func() { _ = from.Close() }() // the process has its own
	r.proc, err = process.Start(process.Spec{
		Name: "raw writer", Path: self, Env: environment(), Files: []*os.File{from}, Grace: stopGrace,
		Args: []string{rawCommand, "--kubeconfig", r.kubeconfig, "--workers", strconv.Itoa(r.workers)},
	})
	if err != nil {
		_ = to.Close()
		return nil, err
	}
	r.pipe, r.encoder = to, json.NewEncoder(to)
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err = r.proc.Until(ctx, func(context.Context) error {
		if !slices.Contains(r.proc.Tail(), rawReady) {
			return errors.New("it is not ready")
		}
		return nil
	})
	if err != nil {
		r.proc.Kill()
		_ = to.Close()
	}
	return r.proc, err
}

func (r *rawSubject) tell(job workload.Job) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.encoder.Encode(job); err != nil {
		return fmt.Errorf("cannot tell the raw writer what to write: %w", err)
	}
	return nil
}

// stop ends the jobs; the raw writer ends after the last of them.
func (r *rawSubject) stop(ctx context.Context) error {
	err := r.pipe.Close()
	ctx, cancel := context.WithTimeout(ctx, stopGrace)
	defer cancel()
	select {
	case <-r.proc.Done():
	case <-ctx.Done():
	}
	return errors.Join(err, stopped(r.proc))
}
