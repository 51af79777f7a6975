package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/local/cluster"
)

const (
	// waitLimit bounds the wait for one thing; a loaded machine needs its time.
	waitLimit = 3 * time.Minute
	lockWait  = 5 * time.Minute
	// steps bounds the commands of one section; the guard gives the slot back after
	// its own delay.
	steps = 6 * time.Minute
	// place is the namespace of both; other is that of a second one.
	place = "metacontroller"
	other = "old"
)

// envLong is set by make migrate-test: a move and back takes minutes.
const envLong = "MIGRATE_LONG"

// TestMigrate goes by docs/migrate.md: from the public Metacontroller's workload to
// ours and back, with the guard and without, and from two to one.
func TestMigrate(t *testing.T) {
	if os.Getenv(envLong) == "" {
		t.Skip("make migrate-test does this")
	}
	w := start(t)
	for _, step := range []struct {
		name string
		do   func(*world)
	}{
		{"StatefulSet", (*world).statefulSet},
		{"Deployment", (*world).deployment},
		{"Two", (*world).two},
	} {
		if !t.Run(step.name, func(t *testing.T) { step.do(w.at(t)) }) {
			return
		}
	}
}

// world is a cluster with the public one's manifests and a hook.
type world struct {
	*testing.T
	*cluster.Cluster
	clients kubernetes.Interface
	hooks   *kit.HookServer
	page    map[string]string
}

func (w *world) at(t *testing.T) *world {
	at := *w
	at.T = t
	return &at
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func start(t *testing.T) *world {
	t.Helper()
	policy, err := filepath.Abs(filepath.Join("testdata", "audit-policy.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	c, err := cluster.Start(t.Context(), cluster.Options{Place: cluster.Migrate, LockWait: lockWait, AuditPolicyFile: policy, Progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Stop)
	clients, err := kubernetes.NewForConfig(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, Cluster: c, clients: clients, hooks: kit.NewHookServer(t), page: map[string]string{}}
	page, err := os.ReadFile(filepath.Join(c.Root, "docs", "migrate.md"))
	w.must(err)
	for _, found := range regexp.MustCompile("(?ms)^```sh ([\\w-]+)\n(.*?)^```$").FindAllStringSubmatch(string(page), -1) {
		w.page[found[1]] = found[2]
	}
	if all := strings.Count(string(page), "```sh"); len(w.page) != all {
		t.Fatalf("%d of %d blocks have a name", len(w.page), all)
	}
	w.hooks.Handle("/sync", greet)
	w.must(c.ApplyFolder(t.Context(), "config/crd"))
	for _, file := range []string{"crd.yaml", "rbac.yaml"} {
		demo, err := os.ReadFile(filepath.Join(c.Root, "test", "local", "manifests", "hook", file))
		w.must(err)
		w.must(c.Apply(t.Context(), demo))
	}
	w.must(c.Apply(t.Context(), w.file("parents.yaml")))
	return w
}

// greet makes a ConfigMap for each name of a greeting.
func greet(out http.ResponseWriter, _ *http.Request, request kit.HookRequest) {
	var asked struct {
		Parent struct {
			Metadata struct{ Name, Namespace string }
			Spec     struct {
				Text  string
				Names []string
			}
		}
	}
	if err := request.Decode(&asked); err != nil {
		http.Error(out, err.Error(), http.StatusBadRequest)
		return
	}
	children := []any{}
	for _, name := range asked.Parent.Spec.Names {
		children = append(children, map[string]any{
			"apiVersion": "v1", "kind": "ConfigMap",
			"metadata": map[string]any{"name": asked.Parent.Metadata.Name + "-" + name},
			"data":     map[string]any{"text": asked.Parent.Spec.Text},
		})
	}
	_ = json.NewEncoder(out).Encode(map[string]any{"status": map[string]any{"wanted": len(children)}, "children": children})
}

// file is one of testdata, filled in by pairs of a word and its text.
func (w *world) file(name string, pairs ...string) []byte {
	w.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", name))
	w.must(err)
	return []byte(strings.NewReplacer(append(pairs, "HOOK", w.hooks.URL("/sync"))...).Replace(string(content)))
}

func (w *world) kubectl(args ...string) string {
	w.Helper()
	output, err := w.Kubectl.Run(w.Context(), args...)
	w.must(err)
	return output
}

// section runs the commands of a section of the page, in a folder that has
// public.yaml.
func (w *world) section(name, public string, env ...string) {
	w.Helper()
	script, ok := w.page[name]
	if !ok {
		w.Fatalf("docs/migrate.md has no block %q", name)
	}
	dir := w.TempDir()
	w.must(os.WriteFile(filepath.Join(dir, "public.yaml"), []byte(public), 0o600))
	// Pods of the local cluster share the host, so each listens on its own address.
	script = strings.NewReplacer(
		"-k config/controller", "-k "+filepath.Join(w.Root, "test/local/manifests/controller"),
		"-k config/", "-k "+w.Root+"/config/",
	).Replace(script)
	ctx, cancel := context.WithTimeout(w.Context(), steps)
	defer cancel()
	for {
		command := exec.CommandContext(ctx, "sh", "-eu", "-c", script)
		command.Dir = dir
		command.Env = append(append(os.Environ(), "KUBECONFIG="+w.Kubeconfig()), env...)
		command.WaitDelay = time.Second
		began := time.Now()
		output, err := command.CombinedOutput()
		w.Logf("%s took %s:\n%s", name, time.Since(began).Round(time.Second), output)
		// The page says that steps can be repeated.
		if err != nil && ctx.Err() == nil && unreached.Match(output) {
			continue
		}
		w.must(err)
		return
	}
}

// unreached is what kubectl says where an API server of a busy machine did not
// answer in time.
var unreached = regexp.MustCompile(`TLS handshake timeout|client connection lost|connection refused|i/o timeout`)

// public is the manifest of the public one as a kind in a namespace, with its rights.
func (w *world) public(kind, namespace string) string {
	w.Helper()
	return string(w.file("public.yaml", "NAMESPACE", namespace)) + "---\n" + string(w.file("workload.yaml", "KIND", kind, "NAMESPACE", namespace))
}

// pods are the uids of the instances in a namespace, with how often they restarted.
func (w *world) pods(namespace string) map[string]int32 {
	w.Helper()
	list, err := w.clients.CoreV1().Pods(namespace).List(w.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=metacontroller"})
	w.must(err)
	pods := map[string]int32{}
	for _, pod := range list.Items {
		restarts := int32(0)
		for _, status := range pod.Status.ContainerStatuses {
			restarts += status.RestartCount
		}
		pods[string(pod.UID)] = restarts
	}
	return pods
}

// children are the versions of a parent's children.
func (w *world) children(parent string) map[string]string {
	w.Helper()
	list, err := w.clients.CoreV1().ConfigMaps("default").List(w.Context(), metav1.ListOptions{})
	w.must(err)
	children := map[string]string{}
	for _, child := range list.Items {
		if strings.HasPrefix(child.Name, parent+"-") {
			children[child.Name] = string(child.UID) + " at version " + child.ResourceVersion
		}
	}
	return children
}

// text waits until a parent's children say a text.
func (w *world) text(parent, want string, number int) {
	w.Helper()
	kit.Eventually(w.T, waitLimit, func() error {
		list, err := w.clients.CoreV1().ConfigMaps("default").List(w.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		said := 0
		for _, child := range list.Items {
			if strings.HasPrefix(child.Name, parent+"-") && child.Data["text"] == want {
				said++
			}
		}
		if said != number {
			return fmt.Errorf("%d children of %s say %q, want %d", said, parent, want, number)
		}
		return nil
	})
}

// keepBusy changes a parent again and again until it is told to stop, so that whoever
// is active writes.
func (w *world) keepBusy() (stop func()) {
	ctx, cancel := context.WithCancel(w.Context())
	var running sync.WaitGroup
	running.Go(func() {
		for i := 1; ctx.Err() == nil; i++ {
			_, _ = w.Kubectl.Run(ctx, "patch", "greeting", "busy", "--type=merge", "-p", `{"spec":{"text":"`+strconv.Itoa(i)+`"}}`)
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// moved does a move while a parent keeps the active one busy, and holds it to this:
// writers came one after the other, and no child was touched whose parent did not
// change.
func (w *world) moved(move func()) {
	w.Helper()
	before := w.children("steady")
	since := time.Now()
	stop := w.keepBusy()
	defer stop()
	w.writers(since, 1)
	move()
	all := w.writers(since, 2)
	stop()
	if a, b, found := Overlap(all); found {
		w.Errorf("two wrote at once: %s, and %s", a, b)
	}
	for i, one := range all {
		if i > 0 {
			w.Logf("%s after the one before", one.First.Sub(all[i-1].Last).Round(time.Millisecond))
		}
		w.Log(one)
	}
	if after := w.children("steady"); len(before) != 3 || !equal(before, after) {
		w.Errorf("children were touched: before %v, after %v", before, after)
	}
}

func equal(a, b map[string]string) bool {
	return fmt.Sprint(a) == fmt.Sprint(b)
}

// writers waits until so many Pods have written since a moment.
func (w *world) writers(since time.Time, number int) []Interval {
	w.Helper()
	var all []Interval
	kit.Eventually(w.T, waitLimit, func() error {
		log, err := os.Open(w.AuditLog())
		if err != nil {
			return err
		}
		defer log.Close()
		if all, err = Intervals(log, since); err != nil {
			return err
		}
		if len(all) < number {
			return fmt.Errorf("%d Pods have written, want %d", len(all), number)
		}
		return nil
	})
	if len(all) > number {
		w.Errorf("%d Pods have written, want %d: %v", len(all), number, all)
	}
	return all
}

// works changes a parent back and forth, and sees the children follow.
func (w *world) works() {
	w.Helper()
	for _, text := range []string{"good bye", "hello"} {
		w.kubectl("patch", "greeting", "steady", "--type=merge", "-p", `{"spec":{"text":"`+text+`"}}`)
		w.text("steady", text, 3)
	}
}

// holder waits until the slot is held by a StatefulSet's Pod, and nothing is wrong.
func (w *world) holder(want string) {
	w.Helper()
	kit.Eventually(w.T, waitLimit, func() error {
		got, err := w.Kubectl.Run(w.Context(), "get", "singletonpolicy", "metacontroller", "-o", `jsonpath={.status.holder.display} {.status.holder.phase} {.status.conditions[?(@.type=="Compliant")].status}`)
		if err == nil && got != want+" Bound True" {
			err = fmt.Errorf("holder, phase and Compliant are %q", got)
		}
		return err
	})
}

// refusedThird asks for another one, which is refused.
func (w *world) refusedThird() {
	w.Helper()
	third := string(w.file("workload.yaml", "KIND", "StatefulSet", "NAMESPACE", "default"))
	if _, err := kit.ApplyYAML(w.Context(), w.Config(), []byte(third)); err == nil || !strings.Contains(err.Error(), "second-workload") {
		w.Fatalf("a third one is not refused: %v", err)
	}
}

// statefulSet is the way from the public chart's form, and back.
func (w *world) statefulSet() {
	public := w.public("StatefulSet", place)
	w.must(w.Apply(w.Context(), []byte(public)))
	w.must(w.Available(w.Context(), place, "statefulset/metacontroller"))
	w.works()

	before := w.pods(place)
	w.must(w.InstallGuard(w.Context()))
	w.section("adopted", public)
	w.holder("metacontroller/metacontroller")
	if after := w.pods(place); len(before) != 1 || fmt.Sprint(before) != fmt.Sprint(after) {
		w.Errorf("the guard's installation changed the Pod: before %v, after %v", before, after)
	}
	w.refusedThird()

	w.moved(func() {
		w.section("end-statefulset", public)
		w.section("start", public)
	})
	w.holder("metacontroller/metacontroller")
	w.works()

	w.moved(func() { w.section("back", public) })
	w.holder("metacontroller/metacontroller")
	w.works()
}

// deployment is the way from the old form, and back, which the guard would refuse.
func (w *world) deployment() {
	public := w.public("Deployment", place)
	w.section("back-to-a-deployment", public)
	w.must(w.Available(w.Context(), place, "deployment/metacontroller"))
	w.works()

	before := w.pods(place)
	w.must(w.InstallGuard(w.Context()))
	kit.Eventually(w.T, waitLimit, func() error { return w.finds("workload-not-holder", "Deployment metacontroller/metacontroller") })
	if after := w.pods(place); len(before) != 1 || fmt.Sprint(before) != fmt.Sprint(after) {
		w.Errorf("the guard's installation changed the Pod: before %v, after %v", before, after)
	}
	w.refusedThird()

	w.moved(func() {
		w.section("end-deployment", public)
		w.section("start", public)
	})
	w.holder("metacontroller/metacontroller")
	w.works()

	w.moved(func() { w.section("back-to-a-deployment", public) })
	w.works()
}

// finds checks that the status has a finding about an object.
func (w *world) finds(id, object string) error {
	got, err := w.Kubectl.Run(w.Context(), "get", "singletonpolicy", "metacontroller", "-o", `jsonpath={range .status.findings[*]}{.id}{" "}{.object.kind}{" "}{.object.namespace}/{.object.name}{"\n"}{end}`)
	if err == nil && !slices.Contains(strings.Split(got, "\n"), id+" "+object) {
		err = fmt.Errorf("%s of %s is not among the findings:\n%s", id, object, got)
	}
	return err
}

// two finds a StatefulSet and a Deployment at work.
func (w *world) two() {
	// Back from the Deployment of the subtest before: nothing refuses, two are made.
	w.must(w.Apply(w.Context(), []byte(w.public("Deployment", other))))
	w.kubectl("delete", "deployment", "metacontroller", "-n", place, "--cascade=foreground")
	w.must(w.Apply(w.Context(), []byte(w.public("StatefulSet", place))))
	w.must(w.Available(w.Context(), place, "statefulset/metacontroller"))
	w.must(w.Available(w.Context(), other, "deployment/metacontroller"))
	before := []map[string]int32{w.pods(place), w.pods(other)}

	w.must(w.InstallGuard(w.Context()))
	kit.Eventually(w.T, waitLimit, func() error {
		return errors.Join(w.finds("workload-not-holder", "Deployment old/metacontroller"), w.instances("Violation", other))
	})
	w.section("two", "")
	w.refusedThird()
	if after := []map[string]int32{w.pods(place), w.pods(other)}; len(before[0]) != 1 || len(before[1]) != 1 || fmt.Sprint(before) != fmt.Sprint(after) {
		w.Errorf("something was killed: before %v, after %v", before, after)
	}
	w.section("one", "", "NAMESPACE="+place, "NAME=metacontroller", "OTHER_NAMESPACE="+other)
	w.holder("metacontroller/metacontroller")
	if left := w.pods(other); len(left) != 0 {
		w.Errorf("the second one still runs: %v", left)
	}
	if after := w.pods(place); fmt.Sprint(before[0]) != fmt.Sprint(after) {
		w.Errorf("the first one was changed: before %v, after %v", before[0], after)
	}
	w.works()
}

// instances checks that an instance in a namespace has a verdict.
func (w *world) instances(verdict, namespace string) error {
	got, err := w.Kubectl.Run(w.Context(), "get", "singletonpolicy", "metacontroller", "-o", `jsonpath={range .status.instances[*]}{.verdict}{" "}{.namespace}{"\n"}{end}`)
	if err == nil && !slices.Contains(strings.Split(got, "\n"), verdict+" "+namespace) {
		err = fmt.Errorf("no instance in %s is a %s:\n%s", namespace, verdict, got)
	}
	return err
}
