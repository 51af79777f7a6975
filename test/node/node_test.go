package node_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/metacontroller-solo/solo/test/node"
	"github.com/metacontroller-solo/solo/test/node/sandbox"
)

func TestRegisters(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	options := w.options()
	n := w.start(options)
	var object *corev1.Node
	w.eventually(func() (err error) {
		object, err = w.client.CoreV1().Nodes().Get(t.Context(), n.Name(), metav1.GetOptions{})
		if err == nil && (!nodeReady(object, corev1.ConditionTrue) || len(object.Spec.Taints) > 0) {
			err = fmt.Errorf("conditions %+v, taints %+v", object.Status.Conditions, object.Spec.Taints)
		}
		return err
	})
	if object.Labels[corev1.LabelHostname] != n.Name() || object.Labels[corev1.LabelOSStable] == "" || object.Labels[corev1.LabelArchStable] == "" {
		t.Errorf("labels %v", object.Labels)
	}
	if object.Status.Addresses[0].Address != options.Address.String() || object.Status.Capacity.Pods().Value() < 100 || object.Status.Capacity.Memory().IsZero() {
		t.Errorf("status %+v", object.Status)
	}
	renewed := func() (time.Time, error) {
		lease, err := w.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(t.Context(), n.Name(), metav1.GetOptions{})
		if err != nil {
			return time.Time{}, err
		}
		return lease.Spec.RenewTime.Time, nil
	}
	var first time.Time
	w.eventually(func() (err error) { first, err = renewed(); return err })
	w.eventually(func() error {
		next, err := renewed()
		if err == nil && !next.After(first) {
			err = fmt.Errorf("the lease is not renewed")
		}
		return err
	})
	// Whoever deletes the Node of a living node sees it again.
	if err := w.client.CoreV1().Nodes().Delete(t.Context(), n.Name(), metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.eventually(func() error {
		again, err := w.client.CoreV1().Nodes().Get(t.Context(), n.Name(), metav1.GetOptions{})
		if err == nil && again.UID == object.UID {
			err = fmt.Errorf("it is the old one")
		}
		return err
	})
}

func nodeReady(object *corev1.Node, want corev1.ConditionStatus) bool {
	return slices.ContainsFunc(object.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady && c.Status == want })
}

// The scheduler places Pods, on several nodes side by side.
func TestScheduled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, n := range []*node.Node{w.node(), w.node()} {
		w.pod(n, "pod-on-"+n.Name(), "exec sleep 600", func(pod *corev1.Pod) {
			pod.Spec.NodeName = ""
			pod.Spec.NodeSelector = map[string]string{corev1.LabelHostname: n.Name()}
		})
		pod := w.until("pod-on-"+n.Name(), "ready", ready)
		if pod.Spec.NodeName != n.Name() || pod.Status.PodIP == "" || pod.Status.HostIP == "" || pod.Status.StartTime == nil || pod.Status.ObservedGeneration != pod.Generation {
			t.Errorf("pod %+v", pod.Status)
		}
		for _, kind := range []corev1.PodConditionType{corev1.PodScheduled, corev1.PodReadyToStartContainers, corev1.PodInitialized, corev1.ContainersReady, corev1.PodReady} {
			if !has(kind, corev1.ConditionTrue)(pod) {
				t.Errorf("no condition %s", kind)
			}
		}
	}
}

// Bad options give one line that says what is wrong, and leave nothing running.
func TestStartFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for _, c := range []struct {
		name   string
		change func(*node.Options)
		want   string
	}{
		{"no name", func(o *node.Options) { o.Name = "" }, "no name"},
		{"no loopback", func(o *node.Options) { o.Address = netip.MustParseAddr("192.0.2.1") }, "not a loopback address"},
		{"no loopback range", func(o *node.Options) { o.PodRange = netip.MustParsePrefix("192.0.2.0/24") }, "not a loopback range"},
		{"range too small", func(o *node.Options) { o.PodRange = netip.MustParsePrefix("127.1.1.1/32") }, "too small"},
		{"bad image", func(o *node.Options) { o.Images = node.Images{"UPPER CASE": {}} }, `"UPPER CASE"`},
		{"no server", func(o *node.Options) {
			o.Config = rest.CopyConfig(o.Config)
			o.Config.Host = "https://127.0.0.1:1"
		}, "https://127.0.0.1:1"},
		{"another's certificate", func(o *node.Options) { o.Name = "someone-else" }, "forbidden"},
	} {
		options := w.options()
		c.change(&options)
		n, err := node.Start(t.Context(), options)
		if err == nil {
			n.Stop()
			t.Errorf("%s: the node starts", c.name)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %q, want %q", c.name, err, c.want)
		}
	}
}

// On systems with a single loopback address the error gives the command.
func TestUnusableAddress(t *testing.T) {
	err := sandbox.Usable(netip.MustParseAddr("192.0.2.1"))
	if err == nil || !strings.Contains(err.Error(), "192.0.2.1") || !strings.Contains(err.Error(), "run: sudo ") {
		t.Errorf("error %v", err)
	}
}

func TestEnvironmentAndVolumes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	ctx := context.Background()
	optional := true
	if _, err := w.client.CoreV1().Secrets(w.namespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"key": "secret-1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.client.CoreV1().ConfigMaps(w.namespace).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"FROM_CONFIG": "config-1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	ref := func(name string) corev1.LocalObjectReference { return corev1.LocalObjectReference{Name: name} }
	script := `echo "$@"; env | sort
		while :; do
			echo "now $(cat /etc/tls/key) $(cat /etc/all/config/FROM_CONFIG) $(cat /etc/all/labels)"
			echo x > /scratch/x; sleep 0.2
		done`
	w.pod(n, "p", script, func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{
			{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "s"}}},
			{Name: "scratch", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			{Name: "missing", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: ref("none"), Optional: &optional}}},
			{Name: "all", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
				{ConfigMap: &corev1.ConfigMapProjection{LocalObjectReference: ref("c"), Items: []corev1.KeyToPath{{Key: "FROM_CONFIG", Path: "config/FROM_CONFIG"}}}},
				{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}},
			}}}},
		}
		c := &pod.Spec.Containers[0]
		c.VolumeMounts = []corev1.VolumeMount{
			{Name: "secret", MountPath: "/etc/tls"}, {Name: "scratch", MountPath: "/scratch"}, {Name: "all", MountPath: "/etc/all"}, {Name: "missing", MountPath: "/missing"},
		}
		c.Args = append(c.Args, "name", "$(NAME)", "--dir=/etc/tls")
		field := func(path string) *corev1.EnvVarSource {
			return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
		}
		c.Env = []corev1.EnvVar{
			{Name: "NAME", ValueFrom: field("metadata.name")}, {Name: "POD_IP", ValueFrom: field("status.podIP")}, {Name: "HOST_IP", ValueFrom: field("status.hostIP")},
			{Name: "UID_OF", ValueFrom: field("metadata.uid")}, {Name: "APP", ValueFrom: field("metadata.labels['app']")}, {Name: "SA", ValueFrom: field("spec.serviceAccountName")},
			{Name: "SECRET", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref("s"), Key: "key"}}},
			{Name: "NONE", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref("none"), Key: "key", Optional: &optional}}},
			{Name: "URL", Value: "http://$(POD_IP):80/"}, {Name: "TLS", Value: "/etc/tls/key"},
		}
		c.EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref("c")}}}
	})
	pod := w.until("p", "ready", ready)
	log := w.untilLog("p", "now ")
	for _, want := range []string{
		"p --dir=/", "NAME=p\n", "POD_IP=" + pod.Status.PodIP + "\n", "HOST_IP=" + pod.Status.HostIP + "\n", "UID_OF=" + string(pod.UID) + "\n", "APP=p\n", "SA=default\n",
		"SECRET=secret-1\n", "URL=http://" + pod.Status.PodIP + ":80/\n", "FROM_CONFIG=config-1\n", "HOSTNAME=p\n", "KUBERNETES_SERVICE_HOST=127.0.0.1\n", "KUBERNETES_SERVICE_PORT=",
		"volumes/secret/key\n", "now secret-1 config-1 app=\"p\"\n",
	} {
		if !strings.Contains(log, want) {
			t.Errorf("no %q in %s", want, log)
		}
	}
	if strings.Contains(log, "NONE=") {
		t.Error("an optional variable without a source is set")
	}

	// A change of each source reaches the files.
	patch := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err := w.client.CoreV1().Secrets(w.namespace).Update(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"key": "secret-2"}}, metav1.UpdateOptions{})
	patch(err)
	w.untilLog("p", "now secret-2 config-1 app=\"p\"\n")
	_, err = w.client.CoreV1().ConfigMaps(w.namespace).Update(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"FROM_CONFIG": "config-2"}}, metav1.UpdateOptions{})
	patch(err)
	w.untilLog("p", "now secret-2 config-2 app=\"p\"\n")
	labelled, err := w.get("p")
	patch(err)
	labelled.Labels["more"] = "yes"
	_, err = w.client.CoreV1().Pods(w.namespace).Update(ctx, labelled, metav1.UpdateOptions{})
	patch(err)
	w.untilLog("p", "now secret-2 config-2 app=\"p\"\nmore=\"yes\"\n")
	if again := w.until("p", "ready", ready); again.Status.ContainerStatuses[0].RestartCount != 0 || again.Labels["more"] != "yes" {
		t.Errorf("pod %+v", again)
	}
}

// What cannot start yet says why, and starts once it can.
func TestWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	ref := corev1.LocalObjectReference{Name: "late"}
	waitsFor := func(reason, text string) func(*corev1.Pod) bool {
		return func(pod *corev1.Pod) bool {
			return pod.Status.Phase == corev1.PodPending && slices.ContainsFunc(pod.Status.ContainerStatuses, func(s corev1.ContainerStatus) bool {
				return s.State.Waiting != nil && s.State.Waiting.Reason == reason && strings.Contains(s.State.Waiting.Message, text)
			})
		}
	}
	w.pod(n, "env", "exec sleep 600", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref, Key: "key"}}}}
	})
	w.pod(n, "volume", "exec sleep 600", func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: "late"}}}}
	})
	w.pod(n, "image", "exec sleep 600", func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "example.com/unknown:v1" })
	w.pod(n, "unsupported", "exec sleep 600", func(pod *corev1.Pod) {
		pod.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	})
	w.until("env", "waiting", waitsFor("CreateContainerConfigError", `cannot find Secret "late"`))
	w.until("volume", "waiting", waitsFor("ContainerCreating", `secret "late" not found`))
	w.event("volume", "FailedMount", `secret "late" not found`)
	w.until("image", "waiting", waitsFor("ImagePullBackOff", `no local program for repository "example.com/unknown"`))
	w.event("image", "Failed", "example.com/unknown")
	w.until("unsupported", "waiting", waitsFor("ContainerCreating", `volume "v" is of a kind that is not supported`))
	w.event("unsupported", "FailedMount", `volume "v"`)
	if _, err := w.client.CoreV1().Secrets(w.namespace).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "late"}, StringData: map[string]string{"key": "x"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.until("env", "ready", ready)
	w.until("volume", "ready", ready)
	// A better image is taken at once.
	if _, err := w.kubectl("set", "image", "pod/image", "main="+shell); err != nil {
		t.Fatal(err)
	}
	w.until("image", "ready", ready)
	for _, name := range []string{"unsupported", "env"} {
		w.delete(name, metav1.DeleteOptions{})
	}
	for _, name := range []string{"unsupported", "env"} {
		w.untilGone(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
}

// A running container whose image changes is restarted; a program of the image can be named by its path in the image.
func TestImageChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	w.pod(n, "p", "echo first; exec sleep 600", func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Image = "docker.io/library/busybox:1"
		pod.Spec.Containers[0].Command = []string{"/usr/bin/in-image"}
	})
	before := pid(w, w.until("p", "ready", ready))
	if _, err := w.kubectl("set", "image", "pod/p", "main=busybox:2"); err != nil {
		t.Fatal(err)
	}
	pod := w.until("p", "restarted", func(pod *corev1.Pod) bool { return ready(pod) && pod.Status.ContainerStatuses[0].RestartCount == 1 })
	if pid(w, pod) == before || lives(before) {
		t.Error("the process is the old one, or the old one lives")
	}
}

// Pods reach the API server as their service account, through the node's link.
func TestKubeconfig(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	n := w.node()
	asHelper := func(args ...string) func(*corev1.Pod) {
		return func(pod *corev1.Pod) {
			pod.Spec.RestartPolicy = corev1.RestartPolicyNever
			pod.Spec.Containers[0].Image, pod.Spec.Containers[0].Args = helper, args
		}
	}
	w.pod(n, "p", "", asHelper("whoami"))
	w.until("p", "done", phase(corev1.PodSucceeded))
	if log := w.logs("p", corev1.PodLogOptions{}); !strings.HasPrefix(log, "system:serviceaccount:"+w.namespace+":default at https://127.0.0.1:") || strings.Contains(log, w.cp.URL(0)) {
		t.Errorf("the pod is %q", log)
	}
	no := false
	w.pod(n, "none", "", asHelper("whoami"), func(pod *corev1.Pod) { pod.Spec.AutomountServiceAccountToken = &no })
	w.until("none", "failed", phase(corev1.PodFailed))
	w.pod(n, "own", "", asHelper("whoami"), func(pod *corev1.Pod) {
		pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "KUBECONFIG", Value: "/none"}}
	})
	w.until("own", "failed", phase(corev1.PodFailed))
}
