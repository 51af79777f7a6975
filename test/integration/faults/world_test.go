package faults_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/metacontroller-solo/solo/test/kit"
)

const (
	namespace    = "default"
	group        = "faults.example.com"
	groupVersion = group + "/v1"

	// patience is how long anything may take on a machine with much else to do. A
	// parent whose hook failed for long is tried again within a minute.
	patience = 3 * time.Minute
)

var (
	configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
	parts      = schema.GroupVersionResource{Group: group, Version: "v1", Resource: "parts"}
	revisions  = schema.GroupVersionResource{Group: "metacontroller.k8s.io", Version: "v1alpha1", Resource: "controllerrevisions"}
	// flowControl has no resource yet.
	flowControl = schema.GroupVersionResource{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"}
	crds        = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
)

func resourceOf(plural string) schema.GroupVersionResource {
	if plural == configMaps.Resource {
		return configMaps
	}
	return schema.GroupVersionResource{Group: group, Version: "v1", Resource: plural}
}

// scale is how much is done.
type scale struct {
	kills   int
	parents int
	// operations of one round.
	operations int
	// outage is how long what is broken stays so; hookOutage is that of hooks.
	outage, hookOutage time.Duration
	mixed              int
	// cuts is how often connections are cut in a round.
	cuts int
	long bool
	// only is the one fault that happens, empty for all.
	only string
}

func scaleFromEnvironment(t *testing.T) scale {
	t.Helper()
	out := scale{kills: 5, parents: 40, operations: 25, outage: 1500 * time.Millisecond, hookOutage: 1500 * time.Millisecond, mixed: 1, cuts: 2}
	if os.Getenv("FAULT_LONG") != "" {
		out = scale{kills: 50, parents: 300, operations: 120, outage: 30 * time.Second, hookOutage: 2 * time.Minute, mixed: 10, cuts: 6, long: true}
	}
	out.only = os.Getenv("FAULT_ONLY")
	for name, value := range map[string]*int{"FAULT_KILLS": &out.kills, "FAULT_PARENTS": &out.parents, "FAULT_MIXED": &out.mixed} {
		given := os.Getenv(name)
		if given == "" {
			continue
		}
		n, err := strconv.Atoi(given)
		if err != nil || n < 1 {
			t.Fatalf("%s is %q, not a number of 1 or more", name, given)
		}
		*value = n
	}
	out.operations = min(out.operations, 25+out.parents/3)
	return out
}

func seedFromEnvironment(t *testing.T) uint64 {
	t.Helper()
	given := os.Getenv("FAULT_SEED")
	if given == "" {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(given, 10, 64)
	if err != nil {
		t.Fatalf("FAULT_SEED is %q: %v", given, err)
	}
	return seed
}

// world is the cluster with all that runs in it.
type world struct {
	t      *testing.T
	cp     *kit.ControlPlane
	scale  scale
	seed   uint64
	random *rand.Rand // of operations
	chance *rand.Rand // of faults
	proxy  *kit.APIProxy
	hooks  *kit.HookServer
	moods  *moods
	model  *model
	audit  *auditor

	// clients are an administrator's, one at each API server.
	clients []dynamic.Interface
	plain   []kubernetes.Interface

	updating, applying *keeper
	// standby waits for the lease of updating.
	standby *keeper

	// collectors is how often the garbage collector was started anew.
	collectors int

	// untouched are objects nobody may write, with their resource versions.
	untouched map[string]string

	mu sync.Mutex // guards tokens
	// tokens are client configurations that no run has had.
	tokens []*rest.Config
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{
		t: t, cp: kit.Shared(t), scale: scaleFromEnvironment(t), seed: seedFromEnvironment(t),
		moods: &moods{}, model: newModel(), audit: &auditor{}, untouched: map[string]string{},
	}
	t.Logf("seed %d: FAULT_SEED=%d repeats it", w.seed, w.seed)
	w.random, w.chance = rand.New(rand.NewPCG(w.seed, 1)), rand.New(&lockedSource{source: rand.NewPCG(w.seed, 2)})
	for i := range w.cp.APIServers() {
		config := w.cp.AdminConfig(i)
		config.Timeout = 10 * time.Second
		w.clients = append(w.clients, dynamic.NewForConfigOrDie(config))
		w.plain = append(w.plain, kubernetes.NewForConfigOrDie(config))
	}
	w.install()
	w.proxy = kit.NewAPIProxy(t, w.cp)
	w.hooks = kit.NewHookServer(t)
	for path, hook := range hooksFor() {
		w.hooks.Handle(path, w.moods.over(hook))
	}
	w.applyTemplate("controllers.yaml", "HOOKS", w.hooks.URL(""))
	program := kit.Build(t, "./cmd/controller")
	keep := func(pod, lease string, arguments ...string) *keeper {
		k := &keeper{
			t: t, pod: pod, lease: lease, arguments: arguments, program: program, proxy: w.proxy,
			credentials: w.credentials, leases: func() []kubernetes.Interface { return w.plain },
		}
		t.Cleanup(func() {
			k.stop()
			if t.Failed() {
				w.showOutput(k)
			}
		})
		return k
	}
	w.updating = keep("updating", "faults-updating", "--target-label-selector=faults=updating")
	w.standby = keep("standby", "faults-updating", "--target-label-selector=faults=updating")
	w.applying = keep("applying", "faults-applying", "--target-label-selector=faults=applying", "--apply-strategy=server-side-apply")
	w.block()
	for i, value := range w.model.sources {
		w.must(w.put(context.Background(), configMaps, configMap(sourceName(i), object{"value": value})))
	}
	return w
}

// lockedSource is a source for several goroutines: faults that happen at once.
type lockedSource struct {
	mu     sync.Mutex // guards source
	source rand.Source
}

func (s *lockedSource) Uint64() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.source.Uint64()
}

// install makes the kinds and the rights, and starts what collects garbage.
func (w *world) install() {
	w.t.Helper()
	w.must(kit.InstallController(w.t.Context(), w.cp.AdminConfig(0)))
	_, err := kit.ApplyFile(w.t.Context(), w.cp.AdminConfig(0), filepath.Join("testdata", "kinds.yaml"))
	w.must(err)
	w.must(w.cp.StartControllers(w.t.Context()))
}

func (w *world) applyTemplate(file, before, after string) {
	w.t.Helper()
	content, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		w.t.Fatal(err)
	}
	if _, err := kit.ApplyYAML(w.t.Context(), w.cp.AdminConfig(0), bytes.ReplaceAll(content, []byte(before), []byte(after))); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// credentials is a client configuration of the controller's account with a token
// that no other has.
func (w *world) credentials() *rest.Config {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.tokens) == 0 {
		w.t.Error("there are no more tokens")
		return w.cp.AnonymousConfig(0)
	}
	out := w.tokens[0]
	w.tokens = w.tokens[1:]
	return out
}

// mint makes tokens while the API servers are well, so that there are enough when
// they are not.
func (w *world) mint(enough int) {
	w.t.Helper()
	w.mu.Lock()
	missing := enough - len(w.tokens)
	w.mu.Unlock()
	for range missing {
		config, err := w.cp.TokenConfig(w.t.Context(), kit.ControllerNamespace, kit.ControllerAccount)
		w.must(err)
		w.mu.Lock()
		w.tokens = append(w.tokens, config)
		w.mu.Unlock()
	}
}

// block puts foreign objects where some children should be.
func (w *world) block() {
	w.t.Helper()
	for _, plural := range []string{"inplaces", "applieds", "targets"} {
		key := parentKey{plural, blocked}
		name := childName(key, 0)
		w.model.foreign[childKey{configMaps.Resource, name}] = true
		foreign := object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": name}, "data": object{"mine": "yes"}}
		made, err := w.clients[0].Resource(configMaps).Namespace(namespace).Create(w.t.Context(), &unstructured.Unstructured{Object: foreign}, metav1.CreateOptions{})
		w.must(err)
		w.untouched[name] = made.GetResourceVersion()
		p := parent{count: 2, value: "blocked"}
		w.model.parents[key] = p
		w.must(w.createParent(w.t.Context(), key, p, ""))
	}
}

// try does something at one API server after the other until it works, or fails
// in a way that repetition does not mend.
func (w *world) try(ctx context.Context, do func(dynamic.Interface) error) error {
	var last error
	for attempt := 0; ; attempt++ {
		err := do(w.clients[attempt%len(w.clients)])
		switch {
		case err == nil:
			return nil
		case apierrors.IsNotFound(err) || apierrors.IsAlreadyExists(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err):
			return err
		}
		last = err
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ctx.Err(), last)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// put creates an object that may be there.
func (w *world) put(ctx context.Context, at schema.GroupVersionResource, o object) error {
	err := w.try(ctx, func(c dynamic.Interface) error {
		_, err := c.Resource(at).Namespace(namespace).Create(ctx, &unstructured.Unstructured{Object: o}, metav1.CreateOptions{})
		return err
	})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

func specOf(p parent) object {
	return object{"count": int64(p.count), "value": p.value, "source": int64(p.source)}
}

// createParent creates a parent, once the one of its name with this uid is gone.
func (w *world) createParent(ctx context.Context, key parentKey, p parent, after types.UID) error {
	o := object{"apiVersion": groupVersion, "kind": kindNamed(key.plural).kind, "metadata": object{"name": key.name, "namespace": namespace}, "spec": specOf(p)}
	for {
		err := w.try(ctx, func(c dynamic.Interface) error {
			_, err := c.Resource(resourceOf(key.plural)).Namespace(namespace).Create(ctx, &unstructured.Unstructured{Object: o}, metav1.CreateOptions{})
			return err
		})
		if !apierrors.IsAlreadyExists(err) {
			return err
		}
		live, err := w.get(ctx, resourceOf(key.plural), key.name)
		switch {
		case err != nil && !apierrors.IsNotFound(err):
			return err
		case err == nil && live.GetUID() != after && live.GetDeletionTimestamp() == nil:
			return nil // an answer was lost
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%v of before does not go: %w", key, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (w *world) get(ctx context.Context, at schema.GroupVersionResource, name string) (out *unstructured.Unstructured, err error) {
	err = w.try(ctx, func(c dynamic.Interface) error {
		out, err = c.Resource(at).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		return err
	})
	return out, err
}

func (w *world) patch(ctx context.Context, at schema.GroupVersionResource, name string, change object) error {
	body, err := json.Marshal(change)
	if err != nil {
		return err
	}
	return w.try(ctx, func(c dynamic.Interface) error {
		_, err := c.Resource(at).Namespace(namespace).Patch(ctx, name, types.MergePatchType, body, metav1.PatchOptions{})
		return err
	})
}

func (w *world) delete(ctx context.Context, at schema.GroupVersionResource, name string) error {
	background := metav1.DeletePropagationBackground
	err := w.try(ctx, func(c dynamic.Interface) error {
		return c.Resource(at).Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{PropagationPolicy: &background})
	})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// do does one operation.
func (w *world) do(ctx context.Context, op operation) error {
	at := resourceOf(op.key.plural)
	switch op.verb {
	case opCreate:
		return w.createParent(ctx, op.key, op.spec, "")
	case opValue, opCount:
		return w.patch(ctx, at, op.key.name, object{"spec": specOf(op.spec)})
	case opDelete:
		return w.delete(ctx, at, op.key.name)
	case opAgain:
		live, err := w.get(ctx, at, op.key.name)
		if err != nil {
			return err
		}
		if err := w.delete(ctx, at, op.key.name); err != nil {
			return err
		}
		return w.createParent(ctx, op.key, op.spec, live.GetUID())
	case opUnchild:
		return w.delete(ctx, resourceOf(op.child.resource), op.child.name)
	case opTamper:
		change := object{"data": object{"value": "tampered-" + op.text}, "metadata": object{"labels": object{mark: nil}}}
		if op.child.resource == parts.Resource {
			change = object{"spec": object{"value": "tampered-" + op.text}}
		}
		return ignoreAbsent(w.patch(ctx, resourceOf(op.child.resource), op.child.name, change))
	case opOrphan:
		return ignoreAbsent(w.patch(ctx, resourceOf(op.child.resource), op.child.name, object{"metadata": object{"ownerReferences": nil}}))
	case opSource:
		return w.patch(ctx, configMaps, sourceName(op.source), object{"data": object{"value": op.text}})
	}
	return fmt.Errorf("there is no operation %q", op.verb)
}

func ignoreAbsent(err error) error {
	if apierrors.IsNotFound(err) {
		return nil // it is just being made again
	}
	return err
}

// work does operations, one after the other, over a time.
func (w *world) work(operations []operation, over time.Duration) error {
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	begun := time.Now()
	for i, op := range operations {
		due := begun.Add(over * time.Duration(i) / time.Duration(len(operations)))
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(due)):
		}
		if err := w.do(ctx, op); err != nil {
			return fmt.Errorf("cannot %s: %w", op, err)
		}
	}
	return nil
}

func (w *world) operations(n int) []operation {
	out := make([]operation, 0, n)
	for range n {
		out = append(out, w.model.generate(w.random, w.scale.parents))
	}
	return out
}

func (w *world) showOutput(k *keeper) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, run := range k.terms[max(0, len(k.terms)-2):] {
		content, err := os.ReadFile(run.output)
		if err != nil {
			continue
		}
		w.t.Logf("the end of what %s (%s) wrote:\n%s", k.pod, run.credential, content[max(0, len(content)-6000):])
	}
	var list *corev1.EventList
	list, err := w.plain[0].CoreV1().Events(namespace).List(context.Background(), metav1.ListOptions{Limit: 500})
	if err != nil {
		return
	}
	for _, event := range list.Items[max(0, len(list.Items)-15):] {
		w.t.Logf("event about %s %s: %s", event.InvolvedObject.Kind, event.InvolvedObject.Name, event.Message)
	}
}
