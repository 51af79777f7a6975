package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"go.uber.org/goleak"
	"k8s.io/apimachinery/pkg/labels"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/cluster"
	resources "github.com/metacontroller-solo/solo/pkg/controller/discovery"
)

const (
	// envLeakStarts is how many controllers are started and stopped.
	envLeakStarts     = "LEAK_STARTS"
	defaultLeakStarts = 120
	// leakPrefix begins the names of all controllers.
	leakPrefix = "leaking"
	// leakPatience is for what takes milliseconds on a machine with nothing to do.
	leakPatience = time.Minute
	// leakBytes is by how much the heap may grow for each start. It is the memory
	// of events sent, which is bounded by a number of objects.
	leakBytes = 8 << 10
	leakBase  = 2 << 20
)

type content = map[string]any

// hookOf is a hook at a path.
func hookOf(url string, more content) content {
	webhook := content{"url": url}
	for key, value := range more {
		webhook[key] = value
	}
	return content{"webhook": webhook}
}

// leakLives are how controllers live: each returns the spec, and one to replace it.
var leakLives = []struct {
	reason string
	kind   string
	specs  func(name, hooks string) []content
}{
	{"a composite", v1alpha1.CompositeControllerKind, func(name, hooks string) []content {
		return []content{compositeSpec(name, content{"sync": hookOf(hooks+"/sync", nil)})}
	}},
	{"a composite that is replaced", v1alpha1.CompositeControllerKind, func(name, hooks string) []content {
		return []content{
			compositeSpec(name, content{"sync": hookOf(hooks+"/sync", nil)}),
			compositeSpec(name, content{"sync": hookOf(hooks+"/sync?again", nil)}),
		}
	}},
	{"with all hooks and ETags", v1alpha1.CompositeControllerKind, func(name, hooks string) []content {
		return []content{compositeSpec(name, content{
			"sync": hookOf(hooks+"/sync", content{"etag": content{"enabled": true}}), "finalize": hookOf(hooks+"/sync", nil), "customize": hookOf(hooks+"/customize", nil),
		})}
	}},
	{"that rolls", v1alpha1.CompositeControllerKind, func(name, hooks string) []content {
		spec := compositeSpec(name, content{"sync": hookOf(hooks+"/sync", nil)})
		spec["childResources"].([]any)[0].(content)["updateStrategy"] = content{"method": "RollingInPlace"}
		return []content{spec}
	}},
	{"invalid, then not", v1alpha1.CompositeControllerKind, func(name, hooks string) []content {
		return []content{compositeSpec(name, content{"sync": hookOf("", nil)}), compositeSpec(name, content{"sync": hookOf(hooks+"/sync", nil)})}
	}},
	{"then invalid", v1alpha1.CompositeControllerKind, func(name, hooks string) []content {
		return []content{compositeSpec(name, content{"sync": hookOf(hooks+"/sync", nil)}), compositeSpec(name, content{"sync": hookOf("", nil)})}
	}},
	{"without parents' kind", v1alpha1.CompositeControllerKind, func(name, hooks string) []content {
		spec := compositeSpec(name, content{"sync": hookOf(hooks+"/sync", nil)})
		spec["parentResource"].(content)["resource"] = "absents"
		return []content{spec}
	}},
	{"whose hook fails", v1alpha1.CompositeControllerKind, func(name, hooks string) []content {
		return []content{compositeSpec(name, content{"sync": hookOf(hooks+"/fail", nil)})}
	}},
	{"whose hook does not answer", v1alpha1.CompositeControllerKind, func(name, hooks string) []content {
		return []content{compositeSpec(name, content{"sync": hookOf(hooks+"/stall", nil)})}
	}},
	{"with a token that is not there", v1alpha1.CompositeControllerKind, func(name, hooks string) []content {
		return []content{compositeSpec(name, content{"sync": hookOf(hooks+"/sync", content{
			"authorization": content{"secretRef": content{"namespace": "ns", "name": "absent", "key": "token"}},
		})})}
	}},
	{"a decorator", v1alpha1.DecoratorControllerKind, func(name, hooks string) []content {
		return []content{
			decoratorSpec(name, content{"sync": hookOf(hooks+"/sync", nil), "finalize": hookOf(hooks+"/sync", nil), "customize": hookOf(hooks+"/customize", nil)}),
			decoratorSpec(name, content{"sync": hookOf(hooks+"/sync?again", nil)}),
		}
	}},
	{"an invalid decorator", v1alpha1.DecoratorControllerKind, func(name, hooks string) []content {
		return []content{decoratorSpec(name, content{"sync": hookOf("", nil)})}
	}},
}

func selects(name string) content { return content{"matchLabels": content{"of": name}} }

func compositeSpec(name string, hooks content) content {
	return content{
		"generateSelector": true,
		"parentResource":   content{"apiVersion": "leak.example.com/v1", "resource": "tanks", "labelSelector": selects(name)},
		"childResources":   []any{content{"apiVersion": "leak.example.com/v1", "resource": "drops", "updateStrategy": content{"method": "InPlace"}}},
		"hooks":            hooks,
	}
}

func decoratorSpec(name string, hooks content) content {
	return content{
		"resources":   []any{content{"apiVersion": "leak.example.com/v1", "resource": "tanks", "labelSelector": selects(name)}},
		"attachments": []any{content{"apiVersion": "leak.example.com/v1", "resource": "drops", "updateStrategy": content{"method": "InPlace"}}},
		"hooks":       hooks,
	}
}

// leakHooks serves the hooks, and counts the parents that they were asked about.
type leakHooks struct {
	mu    sync.Mutex // guards asked
	asked map[string]int
}

func (h *leakHooks) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	type parent struct {
		Metadata struct{ Name string } `json:"metadata"`
	}
	var in struct {
		Parent, Object parent
		Finalizing     bool
	}
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	name := in.Parent.Metadata.Name + in.Object.Metadata.Name
	h.mu.Lock()
	h.asked[r.URL.RequestURI()+" "+name]++
	h.mu.Unlock()
	var out content
	switch r.URL.Path {
	case "/stall":
		<-r.Context().Done()
		return
	case "/fail":
		http.Error(w, "no", http.StatusInternalServerError)
		return
	case "/customize":
		out = content{"relatedResources": []content{{"apiVersion": "leak.example.com/v1", "resource": "puddles", "names": []string{"a"}}}}
	default:
		drops := []content{{"apiVersion": "leak.example.com/v1", "kind": "Drop", "metadata": content{"name": name}}}
		if in.Finalizing {
			drops = []content{}
		}
		out = content{"status": content{"ok": true}, "children": drops, "attachments": drops, "finalized": true}
	}
	w.Header().Set("ETag", `"`+name+`"`)
	_ = json.NewEncoder(w).Encode(out)
}

// eventually waits for a condition.
func eventually(t *testing.T, check func() error) {
	t.Helper()
	deadline := time.Now().Add(leakPatience)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
}

// Controllers that come and go leave no goroutine, no watch, no connection, no
// series of a metric, and no memory that grows with their number; and the program
// leaves none of these when it ends. LEAK_STARTS says how many of them.
func TestLeaks(t *testing.T) {
	starts := defaultLeakStarts
	if text := os.Getenv(envLeakStarts); text != "" {
		var err error
		if starts, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", envLeakStarts, err)
		}
	}
	atStart := goleak.IgnoreCurrent()
	api, hooks := newFakeAPI(), &leakHooks{asked: map[string]int{}}
	server := httptest.NewServer(hooks)
	defer server.Close()
	config := &rest.Config{Host: "http://fake", Transport: api, QPS: -1}
	objects, err := cluster.NewClient(config)
	if err != nil {
		t.Fatal(err)
	}
	events, err := typedcorev1.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	table := resources.New(api, clock.RealClock{})
	kinds, err := ownKinds(t.Context(), table)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	series := newCurrentSeries(ctrlmetrics.Registry)
	go func() {
		ended <- control(ctx, controlParts{
			config: &Config{Options: Options{Workers: 2, DiscoveryInterval: time.Hour, EventsQPS: defaultEventsQPS, EventsBurst: defaultEventsBurst}, Selector: labels.Everything(), Namespace: "own"},
			ways:   clients{objects: objects, events: events}, table: table, kinds: kinds, series: series,
			fence: func() (time.Time, error) { return time.Now().Add(time.Hour), nil }, log: logr.Discard(),
		})
	}()
	const idle = 4 // CRDs, APIServices, and the two kinds that declare controllers
	quiet := func() {
		t.Helper()
		eventually(t, func() error {
			if open, tanks := api.openWatches(), api.count("tanks"); open != idle || tanks != 0 {
				return fmt.Errorf("%d watches are open, %d parents are left", open, tanks)
			}
			return nil
		})
	}
	quiet()
	done := leakWave(t, api, hooks, server.URL, 0)
	quiet()
	before, running := leakHeap(), goleak.IgnoreCurrent()
	for done < starts {
		done += leakWave(t, api, hooks, server.URL, done)
	}
	quiet()
	if err := goleak.Find(running); err != nil {
		t.Errorf("after %d starts: %v", done, err)
	}
	after := leakHeap()
	t.Logf("%d starts: heap %.1f -> %.1f MiB", done, float64(before)/(1<<20), float64(after)/(1<<20))
	if after > before+uint64(leakBase+done*leakBytes) {
		t.Errorf("after %d starts the heap is %d bytes, and was %d", done, after, before)
	}
	if late := leakSeries(t, series); late > done/20 {
		t.Errorf("%d series of the depth of queues that are gone", late)
	}

	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if open := api.openWatches(); open > 0 {
		eventually(t, func() error {
			if api.openWatches() > 0 {
				return errors.New("there are watches of a program that has ended")
			}
			return nil
		})
	}
	server.Close()
	if err := goleak.Find(atStart); err != nil {
		t.Errorf("at the end: %v", err)
	}
}

// leakWave lets a controller of each sort come and go, and returns how many starts
// that were.
func leakWave(t *testing.T, api *fakeAPI, hooks *leakHooks, url string, number int) (starts int) {
	t.Helper()
	type life struct {
		name     string
		declared content
		parent   content
		specs    []content
	}
	must := func(reason string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", reason, err)
		}
	}
	var lives []life
	for i, one := range leakLives {
		name := fmt.Sprintf("%s-%d-%d", leakPrefix, number, i)
		now := life{name: name, specs: one.specs(name, url), parent: content{
			"apiVersion": "leak.example.com/v1", "kind": "Tank", "metadata": content{"namespace": "ns", "name": name, "labels": content{"of": name}},
		}}
		now.declared = content{"apiVersion": v1alpha1.GroupVersion.String(), "kind": one.kind, "metadata": content{"name": name}}
		must(one.reason, api.do(http.MethodPost, now.parent))
		lives = append(lives, now)
	}
	for i, one := range leakLives {
		now := lives[i]
		for n, spec := range now.specs {
			now.declared["spec"] = spec
			if n == 0 {
				must(one.reason, api.do(http.MethodPost, now.declared))
			} else {
				must(one.reason, api.do(http.MethodPatch, now.declared))
			}
			starts++
			sync, _ := spec["hooks"].(content)["sync"].(content)["webhook"].(content)
			address, _ := sync["url"].(string)
			if address == "" || sync["authorization"] != nil || strings.Contains(one.reason, "without") {
				continue
			}
			called := strings.TrimPrefix(address, url) + " " + now.name
			eventually(t, func() error {
				hooks.mu.Lock()
				defer hooks.mu.Unlock()
				if hooks.asked[called] == 0 {
					return fmt.Errorf("%s: the hook was not called: %s", one.reason, called)
				}
				return nil
			})
		}
	}
	for i, now := range lives {
		first, second := now.parent, now.declared
		if i%2 == 0 {
			first, second = second, first
		}
		must(now.name, api.do(http.MethodDelete, first))
		must(now.name, api.do(http.MethodDelete, second))
	}
	hooks.mu.Lock()
	clear(hooks.asked)
	hooks.mu.Unlock()
	api.forget("drops", v1alpha1.ControllerRevisionResource)
	return starts
}

// forget removes all objects of these resources, as the garbage collector would.
func (f *fakeAPI) forget(all ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for at := range f.objects {
		for _, resource := range all {
			if at.resource == resource {
				f.remove(at)
				break
			}
		}
	}
}

func leakHeap() uint64 {
	var stats runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

// leakSeries looks for series of controllers that are gone: at the registry, since
// what is shown leaves them out anyway. It returns how many there are of depths,
// which the last goroutine of a queue may make after its end (see retire).
func leakSeries(t *testing.T, series *currentSeries) (late int) {
	t.Helper()
	families, err := series.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		for _, metric := range family.Metric {
			for _, label := range metric.Label {
				if !strings.Contains(label.GetValue(), leakPrefix) {
					continue
				}
				if family.GetName() != "workqueue_depth" {
					t.Errorf("a series of a controller that is gone: %s %v", family.GetName(), metric.Label)
				}
				late++
				break
			}
		}
	}
	return late
}
