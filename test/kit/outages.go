package kit

import (
	"context"
	"fmt"
	"syscall"
)

// KillAPIServer ends an API server with SIGKILL.
func (cp *ControlPlane) KillAPIServer(server int) { cp.kill(apiServerName(server)) }

// RestartAPIServer starts an API server again, on its old port, and waits until
// it is ready; one that runs is stopped before.
func (cp *ControlPlane) RestartAPIServer(ctx context.Context, server int) error {
	return cp.restart(ctx, cp.apiServer(server))
}

// StopAPIServer asks an API server to end, and returns when it has.
func (cp *ControlPlane) StopAPIServer(server int) {
	if proc := cp.expectEnd(apiServerName(server)); proc != nil {
		proc.Stop()
	}
}

// PauseEtcd stops etcd where it is (SIGSTOP): connections stay open, and nothing
// is answered.
func (cp *ControlPlane) PauseEtcd() error { return cp.signal(etcdProgram, syscall.SIGSTOP) }

// ResumeEtcd ends PauseEtcd.
func (cp *ControlPlane) ResumeEtcd() error { return cp.signal(etcdProgram, syscall.SIGCONT) }

func (cp *ControlPlane) signal(name string, sig syscall.Signal) error {
	cp.mu.Lock()
	inst := cp.running[name]
	cp.mu.Unlock()
	if inst == nil {
		return fmt.Errorf("cannot signal %s: it was never started", name)
	}
	return inst.proc.Signal(sig)
}

// CompactEtcd makes etcd forget all but the newest state of each object.
func (cp *ControlPlane) CompactEtcd(ctx context.Context) error {
	client, at := httpClient(cp.pki.etcd, &cp.pki.etcdClient), httpsURL(cp.ports[etcdProgram])
	var now struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	if err := postJSON(ctx, client, at+"/v3/kv/range", map[string]any{"key": "AA==", "limit": "1"}, &now); err != nil {
		return fmt.Errorf("cannot ask etcd for its revision: %w", err)
	}
	if err := postJSON(ctx, client, at+"/v3/kv/compaction", map[string]any{"revision": now.Header.Revision, "physical": true}, nil); err != nil {
		return fmt.Errorf("cannot compact etcd: %w", err)
	}
	return nil
}

// StopEtcd ends etcd with SIGKILL: the API servers stay up and fail.
func (cp *ControlPlane) StopEtcd() { cp.kill(etcdProgram) }

// StartEtcd starts etcd again, on its old port and data, and waits until it is
// ready.
func (cp *ControlPlane) StartEtcd(ctx context.Context) error { return cp.restart(ctx, cp.etcd()) }

// StopControllers ends kube-controller-manager and kube-scheduler.
func (cp *ControlPlane) StopControllers() {
	cp.kill(controllerManagerProgram)
	cp.kill(schedulerProgram)
}

// StartControllers starts kube-controller-manager and kube-scheduler again.
func (cp *ControlPlane) StartControllers(ctx context.Context) error {
	if err := cp.restart(ctx, cp.controllerManager()); err != nil {
		return err
	}
	return cp.restart(ctx, cp.scheduler())
}

func (cp *ControlPlane) kill(name string) {
	if proc := cp.expectEnd(name); proc != nil {
		proc.Kill()
	}
}

func (cp *ControlPlane) restart(ctx context.Context, c component) error {
	if proc := cp.expectEnd(c.name); proc != nil {
		proc.Stop()
	}
	return cp.startComponent(ctx, c)
}
