package kit

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/metacontroller-solo/solo/test/kit/process"
)

const (
	loopback = "127.0.0.1"

	// ServiceCIDR is where Services get their cluster IPs: loopback addresses, so
	// that a proxy in user space can listen on them (on Linux, where all of
	// 127.0.0.0/8 is usable without set-up).
	ServiceCIDR = "127.96.0.0/16"

	// startLimit bounds the start of one program until it is ready.
	// A busy machine needs its time.
	startLimit = 3 * time.Minute
	// startTries is how often a start is begun again because someone else took a
	// port between its choice and its use.
	startTries = 3
	// lockWait gives the programs of a killed run the time to disappear.
	lockWait = 3 * time.Second
	// stopGrace is the time a program gets to end by itself.
	stopGrace = 10 * time.Second
)

// Options say what control plane to start. The zero value is a throwaway one with
// one API server.
type Options struct {
	// Dir holds data, certificates, logs and kubeconfigs; it is created if need be
	// and kept by Stop. When it is empty a temporary folder is used and removed.
	Dir string
	// Persistent keeps etcd's data, the ports and all keys in Dir from run to run,
	// so that kubeconfigs stay valid. Otherwise each start begins empty, and etcd
	// does not wait for the disk.
	Persistent bool
	// APIServers is the number of API servers on the one etcd; zero means one.
	APIServers int
	// APIServerPort, when not zero, is the port of API server 0; the others follow
	// it. It must be free. When zero, free ports are chosen (and kept, in a
	// persistent folder, unless they are busy).
	APIServerPort int
	// WithoutControllers leaves out kube-controller-manager and kube-scheduler:
	// namespaces then are never finalized, and get no default service account.
	WithoutControllers bool
	// EtcdLinks stand between API servers, by their number, and etcd; the control
	// plane tells them where etcd is. They must outlive it.
	EtcdLinks map[int]*Link
	// AuditPolicyFile is an audit policy (audit.k8s.io/v1); each API server then
	// writes its own log, see AuditLog.
	AuditPolicyFile string
	// EtcdArgs, APIServerArgs, ControllerManagerArgs and SchedulerArgs are added to
	// the programs' arguments, and win over those of the kit.
	EtcdArgs, APIServerArgs, ControllerManagerArgs, SchedulerArgs []string
	// Assets is the folder with the programs; empty means Assets().
	Assets string
	// Log receives a line about each thing worth knowing; nil discards.
	Log io.Writer
}

// ControlPlane is a running control plane. Its methods can be called from several
// goroutines.
type ControlPlane struct {
	options Options
	layout  layout
	remove  bool // the folder is temporary
	lock    *process.Lock
	pki     *pki
	ports   map[string]int // by listener; not changed after Start
	assets  string
	failed  chan error

	mu      sync.Mutex // guards running and stopped
	running map[string]*instance
	stopped bool
}

// instance is one run of a program of the control plane.
type instance struct {
	proc     *process.Process
	expected bool // guarded by ControlPlane.mu: its end is wanted
}

// Start starts a control plane and returns when it is ready for Pods. ctx bounds
// the start, not the control plane's life. An error means that nothing runs.
func Start(ctx context.Context, options Options) (*ControlPlane, error) {
	cp := &ControlPlane{options: options, failed: make(chan error, 1), running: map[string]*instance{}}
	if cp.options.APIServers == 0 {
		cp.options.APIServers = 1
	}
	if cp.options.Persistent && cp.options.Dir == "" {
		return nil, errors.New("cannot start a persistent control plane without a folder to keep it in")
	}
	var err error
	if cp.assets = cp.options.Assets; cp.assets == "" {
		if cp.assets, err = Assets(ctx, cp.options.Log); err != nil {
			return nil, err
		}
	}
	if err := cp.start(ctx); err != nil {
		cp.Stop()
		return nil, err
	}
	return cp, nil
}

func (cp *ControlPlane) start(ctx context.Context) error {
	if err := cp.prepare(ctx); err != nil {
		return err
	}
	for try := 1; ; try++ {
		if err := cp.choosePorts(); err != nil {
			return err
		}
		if err := cp.writeConfigs(); err != nil {
			return err
		}
		err := cp.startAll(ctx)
		if err == nil {
			return nil
		}
		if try == startTries || !strings.Contains(err.Error(), "address already in use") {
			return err
		}
		cp.say("a port was taken by another program meanwhile; starting again")
		cp.stopAll()
	}
}

// prepare makes the folder this control plane's own.
func (cp *ControlPlane) prepare(ctx context.Context) error {
	dir := cp.options.Dir
	if dir == "" {
		temp, err := os.MkdirTemp("", "controlplane-")
		if err != nil {
			return fmt.Errorf("cannot create the control plane's folder: %w", err)
		}
		dir, cp.remove = temp, true
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return fmt.Errorf("cannot use the control plane's folder: %w", err)
	}
	cp.layout = layout{dir: dir}
	if err := cp.layout.create(); err != nil {
		return err
	}
	wait, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	lock, err := process.Acquire(wait, cp.layout.lock())
	if err != nil {
		return fmt.Errorf("cannot use %s, another control plane runs there: %w", dir, err)
	}
	cp.lock = lock
	if !cp.options.Persistent {
		if err := os.RemoveAll(cp.layout.etcd()); err != nil {
			return fmt.Errorf("cannot remove old data: %w", err)
		}
	}
	cp.pki, err = loadPKI(cp.layout)
	return err
}

// listeners names everything that needs a port.
func (cp *ControlPlane) listeners() []string {
	names := []string{etcdProgram, etcdPeer}
	for i := range cp.options.APIServers {
		names = append(names, apiServerName(i))
	}
	return append(names, controllerManagerProgram, schedulerProgram)
}

func (cp *ControlPlane) choosePorts() error {
	kept := map[string]int{}
	if cp.options.Persistent {
		var err error
		if kept, err = cp.layout.readPorts(); err != nil {
			return err
		}
	}
	if first := cp.options.APIServerPort; first != 0 {
		for i := range cp.options.APIServers {
			if err := portFree(first + i); err != nil {
				return fmt.Errorf("cannot start %s: %w; end the program that listens there or choose another port", apiServerName(i), err)
			}
			kept[apiServerName(i)] = first + i
		}
	}
	taken := map[int]bool{}
	cp.ports = map[string]int{}
	for _, name := range cp.listeners() {
		port, known := kept[name]
		if known && (taken[port] || portFree(port) != nil) {
			cp.say("port %d of %s is busy: it gets another one, and kubeconfigs change", port, name)
			known = false
		}
		for !known || taken[port] {
			var err error
			if port, err = FreePort(); err != nil {
				return err
			}
			known = true
		}
		taken[port] = true
		cp.ports[name] = port
		kept[name] = port
	}
	// Ports of API servers that this run does not have stay reserved for the next.
	return cp.layout.writePorts(kept)
}

func (cp *ControlPlane) startAll(ctx context.Context) error {
	if err := cp.startComponent(ctx, cp.etcd()); err != nil {
		return err
	}
	servers, serversCtx := errgroup.WithContext(ctx)
	for i := range cp.options.APIServers {
		servers.Go(func() error { return cp.startComponent(serversCtx, cp.apiServer(i)) })
	}
	if err := servers.Wait(); err != nil {
		return err
	}
	if cp.options.WithoutControllers {
		return nil
	}
	controllers, controllersCtx := errgroup.WithContext(ctx)
	controllers.Go(func() error { return cp.startComponent(controllersCtx, cp.controllerManager()) })
	controllers.Go(func() error { return cp.startComponent(controllersCtx, cp.scheduler()) })
	return controllers.Wait()
}

// component is a program of the control plane with its arguments.
type component struct {
	name, program string
	args          []string
	ready         func(context.Context) error
}

// startComponent starts a program and waits until it is ready.
func (cp *ControlPlane) startComponent(ctx context.Context, c component) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	inst, err := cp.launch(c)
	if err != nil {
		return err
	}
	if err := inst.proc.Until(ctx, c.ready); err != nil {
		cp.expectEnd(c.name)
		inst.proc.Kill()
		if cp.remove {
			return fmt.Errorf("cannot start the control plane: %w", err)
		}
		return fmt.Errorf("cannot start the control plane: %w\n(its log: %s)", err, cp.layout.log(c.name))
	}
	return nil
}

func (cp *ControlPlane) launch(c component) (*instance, error) {
	log, err := os.OpenFile(cp.layout.log(c.name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the log of %s: %w", c.name, err)
	}
	proc, err := process.Start(process.Spec{
		Name:   c.name,
		Path:   cp.program(c.program),
		Args:   c.args,
		Env:    environment(),
		Dir:    cp.layout.dir,
		Stdout: log,
		Files:  []*os.File{cp.lock.File()}, // the folder is in use as long as any of them lives
		Grace:  stopGrace,
	})
	if err != nil {
		_ = log.Close()
		return nil, err
	}
	inst := &instance{proc: proc}
	cp.mu.Lock()
	late := cp.stopped
	cp.running[c.name] = inst
	cp.mu.Unlock()
	go func() {
		<-proc.Done()
		_ = log.Close()
		cp.mu.Lock()
		expected := inst.expected
		cp.mu.Unlock()
		if !expected {
			select {
			case cp.failed <- proc.ExitError():
			default: // the first one tells enough
			}
		}
	}()
	if late {
		cp.expectEnd(c.name)
		proc.Kill()
		return nil, fmt.Errorf("cannot start %s: the control plane was stopped", c.name)
	}
	return inst, nil
}

// environment keeps the caller's variables from the programs: etcd, for one,
// takes every flag from ETCD_*, and clients take proxies.
func environment() []string {
	var env []string
	for _, key := range []string{"PATH", "HOME", "TMPDIR", "TZ"} {
		if value, ok := os.LookupEnv(key); ok {
			env = append(env, key+"="+value)
		}
	}
	return env
}

// Failed receives an error when a program ends though nobody stopped it through
// this ControlPlane.
func (cp *ControlPlane) Failed() <-chan error { return cp.failed }

// Pid is the process id of a program ("etcd", "kube-apiserver-0",
// "kube-controller-manager", "kube-scheduler") that was started last, zero if it
// never was.
func (cp *ControlPlane) Pid(name string) int {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	if inst := cp.running[name]; inst != nil {
		return inst.proc.Pid()
	}
	return 0
}

// expectEnd notes that the end of a program is wanted and returns its run, nil
// when there is none.
func (cp *ControlPlane) expectEnd(name string) *process.Process {
	cp.mu.Lock()
	defer cp.mu.Unlock()
	inst := cp.running[name]
	if inst == nil {
		return nil
	}
	inst.expected = true
	return inst.proc
}

// Stop ends the control plane, clients before servers, and returns when all of it
// is gone. A temporary folder is removed.
func (cp *ControlPlane) Stop() {
	cp.mu.Lock()
	cp.stopped = true
	cp.mu.Unlock()
	cp.stopAll()
	if cp.lock != nil {
		cp.lock.Release()
	}
	if cp.remove {
		if err := os.RemoveAll(cp.layout.dir); err != nil {
			cp.say("cannot remove the control plane's folder: %v", err)
		}
	}
}

func (cp *ControlPlane) stopAll() {
	var servers []string
	for i := range cp.options.APIServers {
		servers = append(servers, apiServerName(i))
	}
	for _, names := range [][]string{{schedulerProgram, controllerManagerProgram}, servers, {etcdProgram}} {
		var stopping sync.WaitGroup
		for _, name := range names {
			proc := cp.expectEnd(name)
			if proc == nil {
				continue
			}
			grace := stopGrace
			if name == etcdProgram && !cp.options.Persistent {
				grace = 0 // it takes a second to save what nobody will read
			}
			stopping.Go(func() { proc.StopWithin(grace) })
		}
		stopping.Wait()
	}
}

func (cp *ControlPlane) say(format string, args ...any) {
	if cp.options.Log != nil {
		_, _ = fmt.Fprintf(cp.options.Log, format+"\n", args...)
	}
}
