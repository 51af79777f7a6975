package fence_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
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

// writerEnv makes the test binary a writer.
const writerEnv = "FENCE_TEST_WRITER"

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
	}
}
