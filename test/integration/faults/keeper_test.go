package faults_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/metacontroller-solo/solo/pkg/singleton"
	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/kit/process"
)

// restartPause is between the end of a controller and its next start.
const restartPause = 100 * time.Millisecond

// term is one run of the controller program. Each has credentials of its own, by
// which the audit logs tell it from others.
type term struct {
	keeper     *keeper
	credential string
	proc       *process.Process
	output     string
}

// said reports whether the run wrote a text.
func (r *term) said(text string) bool {
	content, err := os.ReadFile(r.output)
	return err == nil && strings.Contains(string(content), text)
}

// linesWith are the lines about something that all runs wrote, oldest first.
func (k *keeper) linesWith(text string) []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	about := regexp.MustCompile(`\b` + regexp.QuoteMeta(text) + `\b`)
	var out []string
	for _, run := range k.terms {
		content, err := os.ReadFile(run.output)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(content)) {
			if about.MatchString(line) {
				out = append(out, strings.TrimSpace(line))
			}
		}
	}
	return out
}

// keeper keeps one controller running, as a kubelet does.
type keeper struct {
	t         testing.TB
	pod       string
	lease     string
	arguments []string
	program   string
	proxy     *kit.APIProxy
	// credentials hands out client configurations, each with a token of its own.
	credentials func() *rest.Config
	leases      func() []kubernetes.Interface

	mu      sync.Mutex // guards all below
	current *term
	terms   []*term
	// waits leaves the lease of a run that was killed to expire; otherwise, as the
	// process is known to be gone, it is deleted.
	waits bool
	// robber holds the lease in no process; it is deleted for the next run.
	robber  string
	stopped bool
	done    chan struct{}
}

func (k *keeper) start() {
	k.mu.Lock()
	k.stopped, k.done = false, make(chan struct{})
	k.mu.Unlock()
	k.launch()
	go k.run()
}

func (k *keeper) launch() {
	config := k.proxy.Through(k.credentials())
	dir, err := os.MkdirTemp(k.t.TempDir(), "run-")
	if err != nil {
		k.t.Error(err)
		return
	}
	path := filepath.Join(dir, "kubeconfig")
	if err := kit.WriteKubeconfig(path, config); err != nil {
		k.t.Error(err)
		return
	}
	output, err := os.Create(filepath.Join(dir, "output"))
	if err != nil {
		k.t.Error(err)
		return
	}
	proc, err := process.Start(process.Spec{
		Name: k.pod,
		Path: k.program,
		Args: append([]string{
			"--kubeconfig=" + path,
			"--metrics-address=0", "--health-probe-bind-address=0",
			"--singleton-lease-name=" + k.lease,
			"--zap-log-level=1", "--discovery-interval=5s",
		}, k.arguments...),
		Env: []string{
			"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"),
			singleton.EnvPodName + "=" + k.pod, singleton.EnvPodUID + "=" + k.pod, singleton.EnvPodNamespace + "=" + kit.ControllerNamespace,
		},
		Stdout: output,
	})
	if err != nil {
		k.t.Error(err)
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.current = &term{keeper: k, credential: tokenID(config.BearerToken), proc: proc, output: output.Name()}
	k.terms = append(k.terms, k.current)
}

// run starts the controller again whenever it ends.
func (k *keeper) run() {
	defer close(k.done)
	for {
		<-k.now().proc.Done()
		k.mu.Lock()
		stopped, waits := k.stopped, k.waits
		k.mu.Unlock()
		if stopped {
			return
		}
		if !waits {
			k.dropLease()
		}
		time.Sleep(restartPause)
		k.mu.Lock()
		stopped = k.stopped
		k.mu.Unlock()
		if stopped {
			return
		}
		k.launch()
	}
}

// dropLease deletes the lease if it is still that of this Pod, of which no process
// runs.
func (k *keeper) dropLease() {
	deadline := time.Now().Add(patience)
	for attempt := 0; time.Now().Before(deadline); attempt++ {
		clients := k.leases()
		leases := clients[attempt%len(clients)].CoordinationV1().Leases(singleton.DefaultNamespace)
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		held, err := leases.Get(ctx, k.lease, metav1.GetOptions{})
		if err == nil && !k.holds(held) {
			cancel()
			return
		}
		if err == nil {
			err = leases.Delete(ctx, k.lease, metav1.DeleteOptions{Preconditions: metav1.NewRVDeletionPrecondition(held.ResourceVersion).Preconditions})
		}
		cancel()
		if err == nil || apierrors.IsNotFound(err) {
			return
		}
		time.Sleep(restartPause)
	}
	k.t.Errorf("cannot delete the lease of %s", k.pod)
}

func (k *keeper) holds(held *coordinationv1.Lease) bool {
	k.mu.Lock()
	robber := k.robber
	k.mu.Unlock()
	holder := singleton.HolderOf(held).Identity
	return holder == singleton.Identity{Pod: k.pod, UID: k.pod}.String() || robber != "" && holder == robber
}

func (k *keeper) rob(robber string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.robber = robber
}

func (k *keeper) now() *term {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.current
}

func (k *keeper) setWaits(waits bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waits = waits
}

// runs is how many times the controller was started.
func (k *keeper) runs() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.terms)
}

// kill ends the current run with SIGKILL; another follows.
func (k *keeper) kill() { k.now().proc.Kill() }

// signal sends the current run a signal.
func (k *keeper) signal(sig syscall.Signal) {
	if err := k.now().proc.Signal(sig); err != nil {
		k.t.Error(err)
	}
}

// stop ends the controller for good.
func (k *keeper) stop() {
	k.mu.Lock()
	if k.stopped || k.done == nil {
		k.mu.Unlock()
		return
	}
	k.stopped = true
	k.mu.Unlock()
	k.now().proc.Stop()
	<-k.done
	// A run that was started at the same moment.
	k.now().proc.Stop()
}

// waitHolding waits until the current run holds the lease.
func (k *keeper) waitHolding() error {
	return eventually(func() error {
		if now := k.now(); !now.said("Holding the singleton lease") {
			return fmt.Errorf("%s does not hold the lease", k.pod)
		}
		return nil
	})
}

// waitWaiting waits until the current run waits for the lease that another holds.
func (k *keeper) waitWaiting() error {
	return eventually(func() error {
		if now := k.now(); !now.said("Waiting for the singleton lease") {
			return fmt.Errorf("%s does not wait for the lease", k.pod)
		}
		return nil
	})
}

// eventually calls check until it returns nil, and returns its error if it does
// not. Unlike kit.Eventually it can be called in any goroutine.
func eventually(check func() error) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		if err := check(); err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// tokenID is the id under which the audit log knows a token.
func tokenID(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		ID string `json:"jti"`
	}
	if err = errors.Join(err, json.Unmarshal(payload, &claims)); err != nil {
		return ""
	}
	return "JTI=" + claims.ID
}
