package controller_test

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/kit/vitals"
)

const (
	leakGroup = "leak.example.com"
	leakAPI   = leakGroup + "/v1"
	// leakLabel is on a parent, with the name of its controller.
	leakLabel = leakGroup + "/of"
	leakToken = "leak-token"

	// envStarts is how many controllers TestLeaks starts and stops.
	envStarts = "LEAK_STARTS"
	// defaultStarts is what a run of all tests has time for.
	defaultStarts = 60
	// heapBase and heapPerStart are how much more of the heap may be in use after
	// that many starts. What remains is the memory of events sent, which is bounded
	// by a number of objects (client-go's event correlator, 4096).
	heapBase     = 2 << 20
	heapPerStart = 6 << 10
	// seriesMore are series that may be new: codes of answers of the API server.
	seriesMore = 10
)

// leak is one way in which a controller lives and ends.
type leak struct {
	reason string
	// declare makes the object that declares the controller.
	declare func(l *leaks, name string) client.Object
	// change, if there is one, replaces the controller.
	change func(l *leaks, declared client.Object)
	// calls is how often its hook is called at least before it ends; 0 is for one
	// that has no hook that could be.
	calls int
	// hook answers instead of the usual one.
	hook kit.Hook
	// event, if there is one, is the reason of an event about it.
	event string
}

// leaks is a test's corner of the control plane with controllers that come and go.
type leaks struct {
	*fixture
	program vitals.Program
	// starts counts controllers that were created or replaced.
	starts int
}

var leakCases = []leak{
	{reason: "with children", calls: 1, declare: leakComposite(nil)},
	{reason: "replaced", calls: 1, declare: leakComposite(nil), change: leakMove},
	{reason: "replaced by one that cannot work", calls: 1, declare: leakComposite(nil), change: func(_ *leaks, declared client.Object) {
		declared.(*v1alpha1.CompositeController).Spec.Hooks.Sync.Webhook.URL = nil
	}},
	{reason: "invalid", event: "CreateError", declare: leakComposite(func(_ *leaks, cc *v1alpha1.CompositeController) {
		cc.Spec.Hooks.Sync.Webhook.URL = nil
	})},
	{reason: "without a kind of parents", event: "CreateError", declare: leakComposite(func(_ *leaks, cc *v1alpha1.CompositeController) {
		cc.Spec.ParentResource.Resource = "absents"
	})},
	{reason: "without a kind of children", calls: 1, hook: leakEmpty(), declare: leakComposite(func(_ *leaks, cc *v1alpha1.CompositeController) {
		cc.Spec.ChildResources[0].Resource = "absents"
	})},
	{reason: "with related objects", calls: 1, declare: leakComposite(leakCustomize)},
	{reason: "with related objects that it must not see", declare: leakComposite(func(l *leaks, cc *v1alpha1.CompositeController) {
		cc.Spec.Hooks.Customize = hookAt(l.hooks.URL("/customize-seals"))
	})},
	{reason: "with a finalize hook", calls: 1, declare: leakComposite(func(l *leaks, cc *v1alpha1.CompositeController) {
		cc.Spec.Hooks.Finalize = cc.Spec.Hooks.Sync
	}), change: leakMove},
	{reason: "that rolls", calls: 1, declare: leakComposite(func(_ *leaks, cc *v1alpha1.CompositeController) {
		cc.Spec.ChildResources[0].UpdateStrategy.Method = v1alpha1.ChildUpdateRollingInPlace
	})},
	{reason: "whose hook fails", calls: 2, hook: kit.Status(http.StatusInternalServerError, "no"), declare: leakComposite(nil)},
	{reason: "whose hook is busy", calls: 1, hook: kit.Status(http.StatusTooManyRequests, "", "Retry-After: 3600"), declare: leakComposite(nil)},
	{reason: "whose hook does not answer", calls: 1, hook: kit.Stalled(), declare: leakComposite(nil)},
	{reason: "whose hook is not there", declare: leakComposite(func(_ *leaks, cc *v1alpha1.CompositeController) {
		// Port 1 is nobody's.
		*cc.Spec.Hooks.Sync.Webhook.URL = "http://127.0.0.1:1/sync"
	})},
	{reason: "with ETags", calls: 1, hook: leakTagged(), declare: leakComposite(func(_ *leaks, cc *v1alpha1.CompositeController) {
		yes := true
		cc.Spec.Hooks.Sync.Webhook.Etag = &v1alpha1.WebhookEtagConfig{Enabled: &yes}
	})},
	{reason: "with a token", calls: 1, declare: leakComposite(func(l *leaks, cc *v1alpha1.CompositeController) {
		cc.Spec.Hooks.Sync.Webhook.Authorization = &v1alpha1.Authorization{
			SecretRef: v1alpha1.SecretKeyReference{Namespace: l.ns, Name: leakToken, Key: "token"},
		}
	})},
	{reason: "with attachments", calls: 1, declare: leakDecorator(nil)},
	{reason: "with attachments, replaced", calls: 1, declare: leakDecorator(nil), change: leakMove},
	{reason: "with attachments and related objects", calls: 1, declare: leakDecorator(func(l *leaks, dc *v1alpha1.DecoratorController) {
		dc.Spec.Hooks.Customize = hookAt(l.hooks.URL("/customize"))
		dc.Spec.Hooks.Finalize = dc.Spec.Hooks.Sync
	})},
	{reason: "a decorator that is invalid", event: "CreateError", declare: leakDecorator(func(_ *leaks, dc *v1alpha1.DecoratorController) {
		dc.Spec.Hooks.Sync.Webhook.URL = nil
	})},
}

func leakSelector(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{leakLabel: name}}
}

func leakComposite(change func(*leaks, *v1alpha1.CompositeController)) func(*leaks, string) client.Object {
	return func(l *leaks, name string) client.Object {
		yes := true
		cc := &v1alpha1.CompositeController{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.CompositeControllerKind},
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{testLabel: l.ns}},
		}
		cc.Spec.GenerateSelector = &yes
		cc.Spec.ParentResource.APIVersion, cc.Spec.ParentResource.Resource = leakAPI, "tanks"
		cc.Spec.ParentResource.LabelSelector = leakSelector(name)
		child := v1alpha1.CompositeControllerChildResourceRule{
			UpdateStrategy: &v1alpha1.CompositeControllerChildUpdateStrategy{Method: v1alpha1.ChildUpdateInPlace},
		}
		child.APIVersion, child.Resource = leakAPI, "drops"
		cc.Spec.ChildResources = []v1alpha1.CompositeControllerChildResourceRule{child}
		cc.Spec.Hooks = &v1alpha1.CompositeControllerHooks{Sync: hookAt(l.hooks.URL("/sync/" + name))}
		if change != nil {
			change(l, cc)
		}
		return cc
	}
}

func leakDecorator(change func(*leaks, *v1alpha1.DecoratorController)) func(*leaks, string) client.Object {
	return func(l *leaks, name string) client.Object {
		dc := &v1alpha1.DecoratorController{
			TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.DecoratorControllerKind},
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{testLabel: l.ns}},
		}
		target := v1alpha1.DecoratorControllerResourceRule{LabelSelector: leakSelector(name)}
		target.APIVersion, target.Resource = leakAPI, "tanks"
		dc.Spec.Resources = []v1alpha1.DecoratorControllerResourceRule{target}
		dc.Spec.Attachments = []v1alpha1.DecoratorControllerAttachmentRule{attaches(leakAPI, "drops", v1alpha1.ChildUpdateInPlace)}
		dc.Spec.Hooks = &v1alpha1.DecoratorControllerHooks{Sync: hookAt(l.hooks.URL("/sync/" + name))}
		if change != nil {
			change(l, dc)
		}
		return dc
	}
}

func leakCustomize(l *leaks, cc *v1alpha1.CompositeController) {
	cc.Spec.Hooks.Customize = hookAt(l.hooks.URL("/customize"))
}

// leakMove gives the hook another address.
func leakMove(l *leaks, declared client.Object) {
	moved := hookAt(l.hooks.URL("/moved/" + declared.GetName()))
	switch declared := declared.(type) {
	case *v1alpha1.CompositeController:
		declared.Spec.Hooks.Sync = moved
	case *v1alpha1.DecoratorController:
		declared.Spec.Hooks.Sync = moved
	}
}

// leakRequest is what the hooks read; the parent is called object by decorators.
type leakRequest struct {
	Parent, Object struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	Finalizing bool `json:"finalizing"`
}

// leakHook makes one child for each parent.
func leakHook() kit.Hook {
	return kit.JSON(func(r leakRequest) (object, error) {
		name := r.Parent.Metadata.Name
		if name == "" {
			name = r.Object.Metadata.Name
		}
		drop := []object{{"apiVersion": leakAPI, "kind": "Drop", "metadata": object{"name": name + "-drop"}, "spec": object{"of": name}}}
		if r.Finalizing {
			drop = []object{}
		}
		return object{"status": object{"ok": true}, "children": drop, "attachments": drop, "finalized": true}, nil
	})
}

func leakEmpty() kit.Hook {
	return kit.JSON(func(leakRequest) (object, error) {
		return object{"status": object{"ok": true}, "children": []object{}}, nil
	})
}

func leakTagged() kit.Hook {
	usual := leakHook()
	return func(w http.ResponseWriter, r *http.Request, request kit.HookRequest) {
		w.Header().Set("ETag", `"`+r.URL.Path+`"`)
		usual(w, r, request)
	}
}

func leakRules(resource string) kit.Hook {
	return kit.JSON(func(leakRequest) (object, error) {
		return object{"relatedResources": []object{{"apiVersion": leakAPI, "resource": resource, "names": []string{"one", "two"}}}}, nil
	})
}

// Controllers that come and go leave nothing: no goroutine, no watch, no series of
// a metric, no connection, and no memory that grows with their number.
// LEAK_STARTS=1000 makes it a thousand.
func TestLeaks(t *testing.T) {
	starts := defaultStarts
	if text := os.Getenv(envStarts); text != "" {
		var err error
		if starts, err = strconv.Atoi(text); err != nil {
			t.Fatalf("%s: %v", envStarts, err)
		}
	}
	l := &leaks{fixture: newFixture(t)}
	if _, err := kit.ApplyFile(t.Context(), l.cp.AdminConfig(0), filepath.Join("testdata", "leak.yaml")); err != nil {
		t.Fatal(err)
	}
	l.applyTemplate("call.yaml", "NAMESPACE", l.ns, "SECRET", leakToken, "ACCOUNT", l.account.Name, "HOME", l.account.Namespace)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: l.ns, Name: leakToken}, StringData: map[string]string{"token": "t"}}
	if err := l.client.Create(t.Context(), secret); err != nil {
		t.Fatal(err)
	}
	l.hooks.Handle("/customize", leakRules("puddles"))
	l.hooks.Handle("/customize-seals", leakRules("seals"))
	for _, into := range []*string{&l.program.Metrics, &l.program.Profiles} {
		port, err := kit.FreePort()
		if err != nil {
			t.Fatal(err)
		}
		*into = "127.0.0.1:" + strconv.Itoa(port)
	}
	p := l.start("--metrics-address="+l.program.Metrics, "--pprof-address="+l.program.Profiles)

	// The first time makes what is made once: connections, code that was not used.
	l.wave(true)
	l.quiet()
	copies := l.copies()
	if copies == 0 {
		t.Fatal("the goroutines of no copy are found")
	}
	before, stacks, series := l.sample()
	l.profile("before")

	began := time.Now()
	l.starts = 0
	for l.starts < starts {
		l.wave(false)
	}
	l.quiet()
	took := time.Since(began).Round(time.Second / 10)
	// What comes after the last stop, such as the end of an event that is being
	// sent, may take its moment.
	kit.Eventually(t, soon, func() error {
		now, err := l.program.Stacks(t.Context())
		if err != nil {
			return err
		}
		if vitals.Total(now) > vitals.Total(stacks) {
			return fmt.Errorf("%d goroutines, and %d before:\n%s", vitals.Total(now), vitals.Total(stacks), strings.Join(vitals.More(stacks, now), "\n"))
		}
		return nil
	})
	if now := l.copies(); now != copies {
		t.Errorf("%d copies of kinds, and %d before", now, copies)
	}
	kit.Eventually(t, soon, func() error {
		now, err := l.program.Read(t.Context())
		if err != nil || now.Files <= before.Files {
			return err
		}
		return fmt.Errorf("%v files and connections, and %v before", now.Files, before.Files)
	})
	after, now, seriesNow := l.sample()
	l.profile("after")
	t.Logf("%d starts and stops in %s; goroutines %d -> %d, heap in use %.1f -> %.1f MiB, RSS %.1f -> %.1f MiB, files %v -> %v, series %d -> %d, CPU %.1f s",
		l.starts, took, vitals.Total(stacks), vitals.Total(now), mebi(before.Live), mebi(after.Live), mebi(before.RSS), mebi(after.RSS),
		before.Files, after.Files, len(series), len(seriesNow), after.CPU-before.CPU)
	if grown := after.Live - before.Live; grown > float64(heapBase+l.starts*heapPerStart) {
		t.Errorf("the heap in use has grown by %.1f MiB in %d starts", mebi(grown), l.starts)
	}
	more := slices.DeleteFunc(seriesNow, func(one string) bool {
		_, known := slices.BinarySearch(series, one)
		return known
	})
	if len(more) > seriesMore || slices.ContainsFunc(more, func(one string) bool { return strings.Contains(one, l.ns) }) {
		t.Errorf("%d series are new:\n%s", len(more), strings.Join(more, "\n"))
	}
	// The garbage collector of Kubernetes watches every kind, once.
	kit.Eventually(t, soon, func() error {
		for resource, open := range l.watches() {
			if open > 1 {
				return fmt.Errorf("the API server has %d watches of %s open", open, resource)
			}
		}
		return nil
	})
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

func mebi(bytes float64) float64 { return bytes / (1 << 20) }

// wave lets one controller of each kind come and go. The first one is looked at
// more closely.
func (l *leaks) wave(first bool) {
	l.t.Helper()
	l.hooks.Forget()
	type life struct {
		leak
		declared client.Object
		parent   *unstructured.Unstructured
	}
	var lives []life
	for i, one := range leakCases {
		name := fmt.Sprintf("%s-%d", l.ns, l.starts)
		hook := one.hook
		if hook == nil {
			hook = leakHook()
		}
		l.hooks.Handle("/sync/"+name, hook)
		l.hooks.Handle("/moved/"+name, hook)
		now := life{leak: one, declared: one.declare(l, name), parent: l.tank(name)}
		objects := []client.Object{now.declared, now.parent}
		if i%2 == 0 {
			slices.Reverse(objects)
		}
		for _, o := range objects {
			kind := o.GetObjectKind().GroupVersionKind()
			if err := l.client.Create(l.t.Context(), o); err != nil {
				l.t.Fatalf("%s: %v", one.reason, err)
			}
			// The client has emptied it.
			o.GetObjectKind().SetGroupVersionKind(kind)
		}
		l.starts++
		lives = append(lives, now)
	}
	for _, one := range lives {
		if one.calls > 0 {
			l.hooks.WaitRequests(soon, "/sync/"+one.declared.GetName(), one.calls)
		}
		if one.event != "" && first {
			l.event(one.declared, one.event)
		}
		if one.change == nil {
			continue
		}
		base := one.declared.DeepCopyObject().(client.Object)
		one.change(l, one.declared)
		if err := l.client.Patch(l.t.Context(), one.declared, client.MergeFrom(base)); err != nil {
			l.t.Fatalf("%s: %v", one.reason, err)
		}
		l.starts++
	}
	for i, one := range lives {
		if first && one.change != nil && one.reason != "replaced by one that cannot work" {
			l.hooks.WaitRequests(soon, "/moved/"+one.declared.GetName(), 1)
		}
		objects := []client.Object{one.parent, one.declared}
		if i%4 < 2 {
			slices.Reverse(objects)
		}
		for _, o := range objects {
			l.delete(o)
		}
	}
}

func (l *leaks) tank(name string) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: object{"apiVersion": leakAPI, "kind": "Tank"}}
	u.SetNamespace(l.ns)
	u.SetName(name)
	u.SetLabels(map[string]string{leakLabel: name})
	return u
}

// quiet waits until the controllers are stopped and their parents are gone.
func (l *leaks) quiet() {
	l.t.Helper()
	kit.Eventually(l.t, 3*soon, func() error {
		for _, kind := range []string{"TankList", "DropList"} {
			list := &unstructured.UnstructuredList{Object: object{"apiVersion": leakAPI, "kind": kind}}
			if err := l.client.List(l.t.Context(), list, client.InNamespace(l.ns)); err != nil {
				return err
			}
			if len(list.Items) > 0 {
				return fmt.Errorf("%d objects of %s are left, such as %v", len(list.Items), kind, list.Items[0].Object["metadata"])
			}
		}
		families, err := l.program.Families(l.t.Context())
		if err != nil {
			return err
		}
		for _, one := range vitals.Series(families) {
			if strings.Contains(one, l.ns) {
				return fmt.Errorf("a controller runs: %s", one)
			}
		}
		return nil
	})
}

// copies are the copies of kinds that the process keeps.
func (l *leaks) copies() int {
	l.t.Helper()
	stacks, err := l.program.Stacks(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	count := 0
	for stack, times := range stacks {
		if strings.Contains(stack, "watch.(*Set).start.func") {
			count += times
		}
	}
	return count
}

// sample is what the process holds after its garbage is gone: also its goroutines,
// and its series.
func (l *leaks) sample() (vitals.Sample, map[string]int, []string) {
	l.t.Helper()
	ctx := l.t.Context()
	err := l.program.Collect(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	sample, err := l.program.Read(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	stacks, err := l.program.Stacks(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	families, err := l.program.Families(ctx)
	if err != nil {
		l.t.Fatal(err)
	}
	return sample, stacks, vitals.Series(families)
}

// profile writes the profile of the heap, which -artifacts keeps.
func (l *leaks) profile(name string) {
	l.t.Helper()
	profile, err := l.program.HeapProfile(l.t.Context())
	if err == nil {
		err = os.WriteFile(filepath.Join(l.t.ArtifactDir(), name+".pprof"), profile, 0o600)
	}
	if err != nil {
		l.t.Fatal(err)
	}
}

// watches are how many watches of the kinds of this test the API server has open.
func (l *leaks) watches() map[string]int {
	l.t.Helper()
	client, err := rest.HTTPClientFor(l.cp.AdminConfig(0))
	if err != nil {
		l.t.Fatal(err)
	}
	response, err := client.Get(l.cp.URL(0) + "/metrics")
	if err != nil {
		l.t.Fatal(err)
	}
	defer response.Body.Close()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		l.t.Fatal(err)
	}
	open := map[string]int{}
	for _, metric := range families["apiserver_longrunning_requests"].GetMetric() {
		labels := map[string]string{}
		for _, label := range metric.GetLabel() {
			labels[label.GetName()] = label.GetValue()
		}
		if labels["group"] == leakGroup && labels["verb"] == "WATCH" {
			open[labels["resource"]] += int(metric.GetGauge().GetValue())
		}
	}
	return open
}
