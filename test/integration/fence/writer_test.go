package fence_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/go-logr/logr/funcr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/singleton"
	"github.com/metacontroller-solo/solo/pkg/singleton/mark"
)

const (
	// writerEnv makes the test binary a writer.
	writerEnv = "FENCE_TEST_WRITER"
	// lostEnv makes it one that its node loses sight of, as a runtime that hangs
	// would: the node kills what it has started, and the writer goes on. The value is a
	// directory, where a file named after the Pod's uid keeps it alive.
	lostEnv = "FENCE_TEST_LOST"
	// ownerEnv is the process without which a lost writer ends, too.
	ownerEnv = "FENCE_TEST_OWNER"
)

const (
	beats = "fence-beats"
	beat  = "beat"
	// beatPause is between two writes.
	beatPause = 20 * time.Millisecond
)

// runWriter takes the Lease and marks itself as the controller does, and then does
// what the controller never would: it goes on writing whatever becomes of the
// Lease, and does not stop when it is told to. What holds it back is the fence.
func runWriter() error {
	signal.Ignore(syscall.SIGTERM)
	dir, owner := os.Getenv(lostEnv), os.Getenv(ownerEnv)
	if dir != "" && owner == "" {
		return startLost(dir)
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil).ClientConfig()
	if err != nil {
		return err
	}
	config.QPS, config.Timeout = -1, time.Second
	clients, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return err
	}
	log := funcr.New(func(prefix, args string) { fmt.Println(time.Now().Format(stamp), prefix, args) }, funcr.Options{})
	identity := singleton.IdentityFrom(os.Getenv, "host", "none")
	lease := singleton.New(singleton.Config{
		Client: clients.CoordinationV1(), Namespace: singleton.DefaultNamespace, Name: singleton.DefaultName,
		Identity: identity, Process: string(uuid.NewUUID()), Clock: clock.RealClock{}, Log: log,
		Mark: mark.Policy{Client: objects, Name: v1alpha1.DefaultPolicyName, Namespace: identity.Namespace},
	})
	begin := make(chan struct{})
	go func() {
		err := lease.Run(context.Background(), func(ctx context.Context) error {
			close(begin)
			<-ctx.Done()
			return nil
		})
		fmt.Println(time.Now().Format(stamp), "the lease ended:", err)
	}()
	<-begin
	fmt.Println(time.Now().Format(stamp), "writing")
	for i := 0; ; i++ {
		patch := fmt.Appendf(nil, `{"data":{"by":"%s","n":"%d"}}`, identity, i)
		_, err := clients.CoreV1().ConfigMaps(beats).Patch(context.Background(), beat, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil && i%200 == 0 {
			fmt.Println(time.Now().Format(stamp), err)
		}
		time.Sleep(beatPause)
		if dir != "" && !wanted(dir, owner) {
			return nil
		}
	}
}

// startLost starts a writer in a session of its own, and then stands for it until
// the node ends it.
func startLost(dir string) error {
	uid := os.Getenv(singleton.EnvPodUID)
	if err := os.WriteFile(filepath.Join(dir, uid), nil, 0o600); err != nil {
		return err
	}
	// The node reads the output of its own processes to the end.
	output, err := os.Create(filepath.Join(dir, uid+".log"))
	if err != nil {
		return err
	}
	program, err := os.Executable()
	if err != nil {
		return err
	}
	writer := exec.Command(program)
	writer.Env = append(os.Environ(), ownerEnv+"="+strconv.Itoa(os.Getppid()))
	writer.Stdout, writer.Stderr = output, output
	writer.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := writer.Start(); err != nil {
		return err
	}
	return writer.Wait()
}

// wanted says whether a lost writer goes on.
func wanted(dir, owner string) bool {
	if _, err := os.Stat(filepath.Join(dir, os.Getenv(singleton.EnvPodUID))); err != nil {
		return false
	}
	pid, err := strconv.Atoi(owner)
	return err == nil && syscall.Kill(pid, 0) == nil
}
