package node_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/node"
)

// helperEnv makes the test binary the program of a container.
const helperEnv = "NODE_TEST_HELPER"

// patience is how long a test waits for what should come in a second or two; other programs share the machine.
const patience = 90 * time.Second

// Images of the tests' containers.
const (
	shell  = "example.com/shell:v1" // /bin/sh
	helper = "example.com/helper@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
)

func TestMain(m *testing.M) {
	if os.Getenv(helperEnv) != "" {
		if err := runHelper(os.Args[1:]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	// Node failures are seen within seconds, so that tests need not wait for minutes.
	kit.Main(m, kit.Options{ControllerManagerArgs: []string{"--node-monitor-period=1s", "--node-monitor-grace-period=8s"}})
}

// runHelper is what the helper image does.
func runHelper(args []string) error {
	switch args[0] {
	case "serve":
		return serve(args[1])
	case "whoami":
		name, err := whoAmI()
		fmt.Println(name)
		return err
	case "ask":
		// Asks the API server for ever, a line per answer.
		for {
			if _, err := whoAmI(); err != nil {
				fmt.Println("error")
			} else {
				fmt.Println("answer")
			}
			time.Sleep(100 * time.Millisecond)
		}
	}
	return fmt.Errorf("unknown helper %q", args)
}

func whoAmI() (string, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(clientcmd.NewDefaultClientConfigLoadingRules(), nil).ClientConfig()
	if err != nil {
		return "", err
	}
	config.Timeout = time.Second
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return "", err
	}
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(context.Background(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return review.Status.UserInfo.Username + " at " + config.Host, nil
}

// quietTime is how long a server that is to end has no request before it does: what sends requests to it
// learns of that later than it does itself.
const quietTime = 2 * time.Second

// serve answers with its Pod's name, and on /health with the last status that was set by /set?status=.
func serve(address string) error {
	status := atomic.Int64{}
	status.Store(200)
	if s, err := strconv.Atoi(os.Getenv("FIRST_STATUS")); err == nil {
		status.Store(int64(s))
	}
	mux := http.NewServeMux()
	asked := make(chan struct{}, 1)
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		select {
		case asked <- struct{}{}:
		default:
		}
		_, _ = io.WriteString(w, os.Getenv("HOSTNAME"))
	})
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(int(status.Load())) })
	mux.HandleFunc("/set", func(_ http.ResponseWriter, r *http.Request) {
		s, _ := strconv.Atoi(r.FormValue("status"))
		status.Store(int64(s))
	})
	server := &http.Server{Addr: address, Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	ended := make(chan error, 1)
	go func() {
		<-signals
		for quiet := false; !quiet; {
			select {
			case <-asked:
			case <-time.After(quietTime):
				quiet = true
			}
		}
		ended <- server.Shutdown(context.Background())
	}()
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		return err
	}
	return <-ended
}

// world is what a test has: a namespace of its own, an administrator and the nodes that it starts.
type world struct {
	*testing.T
	cp        *kit.ControlPlane
	client    kubernetes.Interface
	namespace string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	cp := kit.Shared(t)
	client, err := kubernetes.NewForConfig(cp.AdminConfig(0))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, cp: cp, client: client}
	namespace, err := client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.namespace = namespace.Name
	t.Cleanup(func() {
		_ = client.CoreV1().Namespaces().Delete(context.Background(), w.namespace, metav1.DeleteOptions{})
	})
	w.eventually(func() error {
		_, err := client.CoreV1().ServiceAccounts(w.namespace).Get(context.Background(), "default", metav1.GetOptions{})
		return err
	})
	return w
}

func (w *world) eventually(check func() error) {
	w.Helper()
	kit.Eventually(w, patience, check)
}

// block numbers the ranges of addresses of this process's nodes. It starts anywhere, because other processes may run tests too.
var block atomic.Uint32

func init() { block.Store(rand.Uint32N(20000)) }

// options are those of a new node.
func (w *world) options() node.Options {
	w.Helper()
	n := block.Add(1)
	base := netip.AddrFrom4([4]byte{127, byte(100 + n/256%100), byte(n), 0})
	address := base.Next()
	name := fmt.Sprintf("node-%d-%d", os.Getpid(), n)
	config, err := w.cp.NodeConfig(name)
	if err != nil {
		w.Fatal(err)
	}
	pair, err := w.cp.CA().IssueServer(address.String())
	if err != nil {
		w.Fatal(err)
	}
	serving, err := pair.TLS()
	if err != nil {
		w.Fatal(err)
	}
	return node.Options{
		Name: name, Config: config, Address: address, ServingCert: serving, ClientCAs: w.cp.CA().Pool(),
		PodRange: netip.PrefixFrom(base, 24), Dir: w.TempDir(), Heartbeat: time.Second, Refresh: 500 * time.Millisecond,
		BackOff: node.BackOff{First: 100 * time.Millisecond, Most: time.Second},
		Environ: map[string]string{helperEnv: "1"},
		Images: node.Images{
			"example.com/shell": {Path: "/bin/sh"},
			// A name without a registry is one of Docker Hub's, under whatever name it is asked for.
			"busybox":            {Path: "/bin/sh", Entrypoints: []string{"/usr/bin/in-image"}},
			"example.com/helper": {Path: os.Args[0]},
			"example.com/none":   {Path: "/no/such/program"},
		},
	}
}

func (w *world) start(options node.Options) *node.Node {
	w.Helper()
	n, err := node.Start(w.Context(), options)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() {
		n.Stop()
		_ = w.client.CoreV1().Nodes().Delete(context.Background(), n.Name(), metav1.DeleteOptions{})
	})
	return n
}

func (w *world) node() *node.Node {
	w.Helper()
	return w.start(w.options())
}

// pod is a Pod on n with one shell that runs the script; change may make it another.
func (w *world) pod(n *node.Node, name, script string, change ...func(*corev1.Pod)) *corev1.Pod {
	w.Helper()
	grace := int64(2)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: w.namespace, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{
			NodeName: n.Name(), TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "main", Image: shell, Args: []string{"-c", script}}},
		},
	}
	for _, c := range change {
		c(pod)
	}
	created, err := w.client.CoreV1().Pods(w.namespace).Create(w.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return created
}

func (w *world) get(name string) (*corev1.Pod, error) {
	return w.client.CoreV1().Pods(w.namespace).Get(context.Background(), name, metav1.GetOptions{})
}

// until waits for the Pod to be as wanted and returns it.
func (w *world) until(name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	w.Helper()
	var pod *corev1.Pod
	w.eventually(func() (err error) {
		pod, err = w.get(name)
		if err == nil && !ok(pod) {
			err = fmt.Errorf("pod %s is not %s: phase %s, %+v %+v", name, what, pod.Status.Phase, pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses)
		}
		return err
	})
	return pod
}

func phase(want corev1.PodPhase) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool { return pod.Status.Phase == want }
}

func has(kind corev1.PodConditionType, want corev1.ConditionStatus) func(*corev1.Pod) bool {
	return func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind && c.Status == want })
	}
}

var ready = has(corev1.PodReady, corev1.ConditionTrue)

func (w *world) untilGone(pod *corev1.Pod) {
	w.Helper()
	w.eventually(func() error {
		now, err := w.get(pod.Name)
		if apierrors.IsNotFound(err) || err == nil && now.UID != pod.UID {
			return nil
		}
		return fmt.Errorf("pod %s is still there: %v", pod.Name, err)
	})
}

func (w *world) delete(name string, options metav1.DeleteOptions) {
	w.Helper()
	if err := w.client.CoreV1().Pods(w.namespace).Delete(context.Background(), name, options); err != nil {
		w.Fatal(err)
	}
}

func force() metav1.DeleteOptions { return *metav1.NewDeleteOptions(0) }

func (w *world) logs(name string, options corev1.PodLogOptions) string {
	w.Helper()
	data, err := w.client.CoreV1().Pods(w.namespace).GetLogs(name, &options).DoRaw(context.Background())
	if err != nil {
		w.Fatalf("logs of %s: %v: %s", name, err, data)
	}
	return string(data)
}

// untilLog waits for a text in the log.
func (w *world) untilLog(name, text string) string {
	w.Helper()
	var data []byte
	w.eventually(func() (err error) {
		data, err = w.client.CoreV1().Pods(w.namespace).GetLogs(name, &corev1.PodLogOptions{}).DoRaw(context.Background())
		if err == nil && !strings.Contains(string(data), text) {
			err = fmt.Errorf("no %q in %q", text, data)
		}
		return err
	})
	return string(data)
}

// pid is the process of the Pod's first container.
func pid(w *world, pod *corev1.Pod) int {
	w.Helper()
	number, err := strconv.Atoi(strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "process://"))
	if err != nil {
		w.Fatal(err)
	}
	return number
}

// lives is false for zombies too.
func lives(pid int) bool {
	out, _ := exec.Command("ps", "-o", "stat=", "-p", strconv.Itoa(pid)).Output()
	state := strings.TrimSpace(string(out))
	return state != "" && !strings.HasPrefix(state, "Z")
}

func (w *world) untilDead(pid int) {
	w.Helper()
	w.eventually(func() error {
		if lives(pid) {
			return fmt.Errorf("process %d lives", pid)
		}
		return nil
	})
}

// event waits for an event about an object of that name.
func (w *world) event(name, reason, text string) {
	w.Helper()
	w.eventually(func() error {
		events, err := w.client.CoreV1().Events(w.namespace).List(context.Background(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + name})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			if event.Reason == reason && strings.Contains(event.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("no event %s with %q about %s", reason, text, name)
	})
}

// httpGet returns the body of an answer 200.
func httpGet(url string) (string, error) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: (&net.Dialer{}).DialContext}}
	response, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, 1<<20))
	if err != nil || response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("status %d: %s: %w", response.StatusCode, body, err)
	}
	return string(body), nil
}

// kubectl runs kubectl as the administrator.
func (w *world) kubectl(args ...string) (string, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(w.Context(), "kubectl", append([]string{"--kubeconfig", w.cp.Kubeconfig(0), "-n", w.namespace}, args...)...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%w: %s", err, errs.String())
	}
	return out.String(), nil
}
