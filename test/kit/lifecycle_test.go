package kit_test

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/kit/process"
)

const (
	// roleEnv makes the test program play another role than running tests.
	roleEnv    = "KIT_TEST_ROLE"
	parentRole = "parent" // starts a control plane in the folder of dirEnv
	dirEnv     = "KIT_TEST_DIR"
	upLine     = "control plane is up"
)

func role(name string) bool {
	if name != parentRole {
		return false
	}
	cp, err := kit.Start(context.Background(), kit.Options{Dir: os.Getenv(dirEnv), Log: os.Stderr})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(upLine)
	fmt.Println(<-cp.Failed())
	return true
}

// start starts a control plane that the test may break.
func start(t *testing.T, options kit.Options) *kit.ControlPlane {
	t.Helper()
	options.Log = t.Output()
	cp, err := kit.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cp.Stop)
	return cp
}

// unused checks that no program of a control plane in dir lives: each of them
// holds the folder's lock.
func unused(t *testing.T, dir string, wait time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	lock, err := process.Acquire(ctx, filepath.Join(dir, "lock"))
	if err != nil {
		t.Errorf("programs were left running: %v", err)
		return
	}
	lock.Release()
}

func TestPersistent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	options := kit.Options{Dir: dir, Persistent: true, WithoutControllers: true, Log: t.Output()}
	cp := start(t, options)
	core := clients(t, cp.AdminConfig(0)).CoreV1()
	if _, err := core.Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := core.ServiceAccounts("kept").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "app"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := os.ReadFile(cp.Kubeconfig(0))
	if err != nil {
		t.Fatal(err)
	}
	token, err := cp.TokenConfig(t.Context(), "kept", "app")
	if err != nil {
		t.Fatal(err)
	}

	if _, err := kit.Start(t.Context(), options); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("locked by process %d", os.Getpid())) || strings.Contains(err.Error(), "\n") {
		t.Errorf("a second run in the folder: %v", err)
	}

	cp.Stop()
	unused(t, dir, 0)
	start(t, options)

	config, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := clients(t, config).CoreV1().Namespaces().Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
		t.Errorf("by the old kubeconfig: %v", err)
	}
	if _, err := clients(t, token).Discovery().ServerVersion(); err != nil {
		t.Errorf("by the old token: %v", err)
	}
}

func TestBusyPort(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	busy := listener.Addr().(*net.TCPAddr).Port

	t.Run("demanded", func(t *testing.T) {
		dir := t.TempDir()
		_, err := kit.Start(t.Context(), kit.Options{Dir: dir, APIServerPort: busy})
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("127.0.0.1:%d: bind: address already in use", busy)) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v", err)
		}
		unused(t, dir, 0)
	})
	t.Run("kept", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "ports.json"), fmt.Appendf(nil, `{"kube-apiserver-0": %d}`, busy), 0o600); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		cp, err := kit.Start(t.Context(), kit.Options{Dir: dir, Persistent: true, WithoutControllers: true, Log: &log})
		if err != nil {
			t.Fatal(err)
		}
		defer cp.Stop()
		if !strings.Contains(log.String(), fmt.Sprintf("port %d of kube-apiserver-0 is busy", busy)) {
			t.Errorf("log says %q", log.String())
		}
	})
}

// A program that does not come up is told with its last words, and takes the
// others with it.
func TestProgramDoesNotStart(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name    string
		options kit.Options
		want    []string
	}{
		{"etcd", kit.Options{EtcdArgs: []string{"--data-dir=/dev/null/data"}}, []string{"etcd ended with exit code 1", "/dev/null/data"}},
		{"kube-apiserver", kit.Options{APIServers: 2, APIServerArgs: []string{"--no-such-flag"}}, []string{"kube-apiserver-", "ended with exit code 1", "unknown flag: --no-such-flag"}},
		{"kube-scheduler", kit.Options{SchedulerArgs: []string{"--no-such-flag"}}, []string{"kube-scheduler ended with exit code 1", "unknown flag: --no-such-flag"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tc.options.Dir = t.TempDir()
			_, err := kit.Start(t.Context(), tc.options)
			for _, want := range tc.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("%v\ndoes not say %q", err, want)
				}
			}
			unused(t, tc.options.Dir, 0)
		})
	}
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		dir := t.TempDir()
		if _, err := kit.Start(ctx, kit.Options{Dir: dir}); err == nil || !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
			t.Errorf("got %v", err)
		}
		unused(t, dir, 0)
	})
}

func TestFaults(t *testing.T) {
	t.Parallel()
	cp := start(t, kit.Options{APIServers: 2})
	works := func(server int) error {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		_, err := clients(t, cp.AdminConfig(server)).CoreV1().ConfigMaps("default").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"}}, metav1.CreateOptions{})
		return err
	}

	cp.KillAPIServer(1)
	if works(1) == nil || works(0) != nil {
		t.Error("one API server of two was to be down")
	}
	if err := cp.RestartAPIServer(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := works(1); err != nil {
		t.Errorf("after its restart: %v", err)
	}

	cp.StopEtcd()
	if works(0) == nil {
		t.Error("a write succeeded without etcd")
	}
	if err := cp.StartEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, patience, func() error { return works(0) })

	cp.StopControllers()
	if err := cp.StartControllers(t.Context()); err != nil {
		t.Error(err)
	}
	select {
	case err := <-cp.Failed():
		t.Errorf("what was wanted counts as failure: %v", err)
	default:
	}
}

// A program that dies is told, and a temporary folder goes with what is left.
func TestFailedTellsOfADeadProgram(t *testing.T) {
	t.Parallel()
	cp := start(t, kit.Options{WithoutControllers: true})
	if err := syscall.Kill(cp.Pid("etcd"), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-cp.Failed():
		if !strings.Contains(err.Error(), "etcd ended with signal 9") {
			t.Errorf("got %v", err)
		}
	case <-time.After(patience):
		t.Error("nothing was told")
	}
	if _, err := os.Stat(cp.Dir()); err != nil {
		t.Error(err)
	}
	cp.Stop()
	if _, err := os.Stat(cp.Dir()); !os.IsNotExist(err) {
		t.Errorf("%s: %v", cp.Dir(), err)
	}
}
