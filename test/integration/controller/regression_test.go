package controller_test

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
)

// collected is how long the garbage collector may take: it looks for new kinds of
// owners every 30 seconds.
const collected = 3 * soon

// TestChildrenInTheWay is about children that are there and cannot be had as the
// hook wants.
func TestChildrenInTheWay(t *testing.T) {
	f := newFixture(t)
	f.lifecycle()
	f.hooks.Handle("/sync", kit.JSON(func(r struct {
		Parent struct {
			Metadata metav1.ObjectMeta
			Spec     struct {
				Job   bool
				Count int
				Value string
			}
		}
		Children map[string]map[string]struct{ Metadata metav1.ObjectMeta }
	}) (object, error) {
		terminating := 0
		for _, child := range r.Children["ConfigMap.v1"] {
			if child.Metadata.DeletionTimestamp != nil {
				terminating++
			}
		}
		children := []object{}
		for i := range r.Parent.Spec.Count {
			children = append(children, object{
				"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": fmt.Sprintf("%s-%d", r.Parent.Metadata.Name, i)}, "data": object{"v": r.Parent.Spec.Value},
			})
		}
		if r.Parent.Spec.Job {
			children = append(children, object{
				"apiVersion": "batch/v1", "kind": "Job", "metadata": object{"name": r.Parent.Metadata.Name},
				"spec": object{"template": object{"spec": object{"restartPolicy": "Never", "containers": []object{{"name": "c", "image": "none.invalid/none"}}}}},
			})
		}
		return object{"status": object{"terminating": terminating, "value": r.Parent.Spec.Value}, "children": children}, nil
	}))
	f.composite(func(cc *v1alpha1.CompositeController) {
		job := *cc.Spec.ChildResources[0].DeepCopy()
		job.APIVersion, job.Resource = "batch/v1", "jobs"
		cc.Spec.ChildResources = append(cc.Spec.ChildResources, job)
	})
	f.start("--events-burst=1000")
	status := func(parent *unstructured.Unstructured, want map[string]any) {
		t.Helper()
		kit.Eventually(t, soon, func() error {
			got, _, _ := unstructured.NestedMap(f.live(parent).Object, "status")
			for field, value := range want {
				if got[field] != value {
					return fmt.Errorf("status is %v", got)
				}
			}
			return nil
		})
	}

	t.Run("deletion that a finalizer blocks", func(t *testing.T) {
		f := f.in(t)
		parent := f.thing("b", object{"count": 2, "value": "x"})
		f.waitChildren("b-", map[string]string{"b-0": "x", "b-1": "x"})
		blocked := f.configMap("b-0")
		f.patch(blocked, `{"metadata":{"finalizers":["example.com/wait"]}}`)
		f.delete(blocked)
		status(parent, map[string]any{"terminating": int64(1)})
		f.patch(parent, `{"spec":{"value":"y"}}`)
		status(parent, map[string]any{"terminating": int64(1), "value": "y"})
		f.waitChildren("b-", map[string]string{"b-0": "x", "b-1": "y"})
		f.patch(blocked, `{"metadata":{"finalizers":null}}`)
		f.waitChildren("b-", map[string]string{"b-0": "y", "b-1": "y"})
		status(parent, map[string]any{"terminating": int64(0)})
		for _, event := range f.eventsOf(parent) {
			t.Errorf("there is an event: %s", event.Message)
		}
	})
	t.Run("dependents of a Job", func(t *testing.T) {
		f := f.in(t)
		parent := f.thing("j", object{"job": true})
		pods := func() (names []string) {
			var list corev1.PodList
			if err := f.client.List(t.Context(), &list, client.InNamespace(f.ns)); err != nil {
				t.Fatal(err)
			}
			for _, pod := range list.Items {
				names = append(names, pod.Name)
			}
			return names
		}
		kit.Eventually(t, soon, func() error {
			if len(pods()) == 0 {
				return errors.New("the Job has no Pod")
			}
			return nil
		})
		f.patch(parent, `{"spec":{"job":false}}`)
		kit.Eventually(t, collected, func() error {
			var jobs batchv1.JobList
			if err := f.client.List(t.Context(), &jobs, client.InNamespace(f.ns)); err != nil {
				return err
			}
			if left := pods(); len(left) > 0 || len(jobs.Items) > 0 {
				return fmt.Errorf("%d Jobs and Pods %q are left", len(jobs.Items), left)
			}
			return nil
		})
	})
	t.Run("children of a parent that was recreated", func(t *testing.T) {
		f := f.in(t)
		old := f.thing("r", object{"count": 2, "value": "old"})
		f.waitChildren("r-", map[string]string{"r-0": "old", "r-1": "old"})
		before := f.configMap("r-0")
		f.delete(old)
		f.waitGone(old)
		parent := f.thing("r", object{"count": 2, "value": "new"})
		kit.Eventually(t, collected, func() error {
			if got := f.children("r-"); !maps.Equal(got, map[string]string{"r-0": "new", "r-1": "new"}) {
				return fmt.Errorf("children are %v", got)
			}
			return nil
		})
		if after := f.configMap("r-0"); after.UID == before.UID || !metav1.IsControlledBy(after, parent) {
			t.Errorf("the child is %v", after.ObjectMeta)
		}
		for _, event := range f.eventsOf(parent) {
			t.Errorf("there is an event: %s", event.Message)
		}
	})
	t.Run("made by hand", func(t *testing.T) {
		f := f.in(t)
		mine := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "h-0"}, Data: map[string]string{"v": "mine"}}
		if err := f.client.Create(t.Context(), mine); err != nil {
			t.Fatal(err)
		}
		parent := f.thing("h", object{"count": 2, "value": "x"})
		f.event(parent, "SyncError", f.ns+"/h-0", "exists")
		f.waitChildren("h-", map[string]string{"h-0": "mine", "h-1": "x"})
	})
}

// TestStatusAndSchema is about parents whose schema does not know all of the
// status, and cluster-scoped ones.
func TestStatusAndSchema(t *testing.T) {
	f := newFixture(t)
	f.lifecycle()
	pruning := thingsOf("pruners", "Pruner")
	pruning.schema = `{type: object, properties: {spec: {type: object, x-kubernetes-preserve-unknown-fields: true}, status: {type: object, properties: {seen: {type: integer}}}}}`
	f.serve(pruning)
	rangers := thingsOf("rangers", "Ranger")
	rangers.scope = "Cluster"
	f.serve(rangers)
	f.hooks.Handle("/sync", kit.JSON(func(r request) (object, error) {
		return object{"status": object{"seen": len(r.Children["ConfigMap.v1"]), "unknown": "x"}, "children": desired(r)}, nil
	}))
	f.hooks.Handle("/rangers", kit.JSON(func(r request) (object, error) {
		children := desired(r)
		for _, child := range children {
			child["metadata"].(object)["namespace"] = f.ns
			if r.Parent.Spec.Value == "lost" {
				child["metadata"].(object)["namespace"] = f.ns + "-none"
			}
		}
		if _, ok := r.Children["ConfigMap.v1"]; !ok {
			return nil, errors.New("no children in the request")
		}
		for key := range r.Children["ConfigMap.v1"] {
			if !strings.HasPrefix(key, f.ns+"/") {
				return nil, fmt.Errorf("the key of a child is %q", key)
			}
		}
		return object{"status": object{"seen": len(r.Children["ConfigMap.v1"])}, "children": children}, nil
	}))
	f.composite(func(cc *v1alpha1.CompositeController) {
		cc.Spec.ParentResource.APIVersion, cc.Spec.ParentResource.Resource = lifecycleAPI, "pruners"
	})
	f.composite(func(cc *v1alpha1.CompositeController) {
		cc.Name += "-r"
		cc.Spec.ParentResource.APIVersion, cc.Spec.ParentResource.Resource = lifecycleAPI, "rangers"
		cc.Spec.Hooks.Sync = f.hook("/rangers")
	})
	p := f.start()
	statusWrites := func(name string) (n int) {
		for _, one := range f.writes() {
			if one.ObjectRef.Subresource == "status" && one.ObjectRef.Name == name {
				n++
			}
		}
		return n
	}
	seen := func(parent *unstructured.Unstructured, want int64) {
		t.Helper()
		kit.Eventually(t, soon, func() error {
			if got, _, _ := unstructured.NestedInt64(f.live(parent).Object, "status", "seen"); got != want {
				return fmt.Errorf("status is %v", f.live(parent).Object["status"])
			}
			return nil
		})
	}

	parent := f.create("Pruner", f.ns, "p", object{"count": 2, "value": "x"})
	seen(parent, 2)
	// A change of what has nothing to do with the status writes none.
	before := statusWrites("p")
	for i := range 3 {
		f.hooks.Forget()
		f.patch(parent, fmt.Sprintf(`{"metadata":{"annotations":{"n":"%d"}},"spec":{"value":"y%d"}}`, i, i))
		f.waitChildren("p-", map[string]string{"p-0": fmt.Sprintf("y%d", i), "p-1": fmt.Sprintf("y%d", i)})
		f.hooks.WaitRequests(soon, "/sync", 1)
	}
	// The status follows the children; a later pass is over before this one.
	f.patch(parent, `{"spec":{"count":1}}`)
	seen(parent, 1)
	if after := statusWrites("p"); after != before+1 {
		t.Errorf("%d writes of the status for one change of it", after-before)
	}

	ranger := f.create("Ranger", "", f.ns+"-r", object{"count": 2, "value": "x"})
	seen(ranger, 2)
	f.waitChildren(ranger.GetName(), map[string]string{ranger.GetName() + "-0": "x", ranger.GetName() + "-1": "x"})
	f.delete(f.configMap(ranger.GetName() + "-0"))
	f.waitChildren(ranger.GetName(), map[string]string{ranger.GetName() + "-0": "x", ranger.GetName() + "-1": "x"})
	f.patch(ranger, `{"spec":{"count":1}}`)
	f.waitChildren(ranger.GetName(), map[string]string{ranger.GetName() + "-0": "x"})
	// Nothing would settle that by itself.
	lost := f.create("Ranger", "", f.ns+"-l", object{"count": 1, "value": "lost"})
	f.event(lost, "SyncError", f.ns+"-none", "not found")
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// TestSlowHook lets a hook not answer: others go on, and so does the stop.
func TestSlowHook(t *testing.T) {
	f := newFixture(t)
	good := defaultHook()
	f.hooks.Handle("/sync", func(w http.ResponseWriter, r *http.Request, asked kit.HookRequest) {
		var one request
		if err := asked.Decode(&one); err == nil && strings.HasPrefix(one.Parent.Metadata.Name, "stuck") {
			kit.Stalled()(w, r, asked)
			return
		}
		good(w, r, asked)
	})
	f.composite(func(cc *v1alpha1.CompositeController) {
		// Longer than the test program has to end in.
		cc.Spec.Hooks.Sync.Webhook.Timeout = &metav1.Duration{Duration: collected}
	})
	p := f.start()
	for i := range 3 {
		f.thing(fmt.Sprintf("stuck%d", i), object{"count": 1})
	}
	f.hooks.WaitRequests(soon, "/sync", 3)
	f.thing("a", object{"count": 1, "value": "x"})
	f.waitChildren("a-", map[string]string{"a-0": "x"})
	if code := p.Stop(); code != 0 {
		t.Errorf("exit code %d after SIGTERM", code)
	}
}

// TestLargeAnswers is about sizes that are unusual and fine.
func TestLargeAnswers(t *testing.T) {
	f := newFixture(t)
	good := defaultHook()
	f.hooks.Handle("/sync", func(w http.ResponseWriter, r *http.Request, asked kit.HookRequest) {
		var one request
		if err := asked.Decode(&one); err != nil || one.Parent.Metadata.Name != "many" {
			good(w, r, asked)
			return
		}
		// One child, then thousands that cannot be had.
		children := desired(one)
		for i := range 5000 {
			children = append(children, object{"apiVersion": "v1", "kind": "Secret", "metadata": object{"name": fmt.Sprintf("s-%d", i)}})
		}
		kit.JSON(func(request) (object, error) { return object{"status": object{"seen": 1}, "children": children}, nil })(w, r, asked)
	})
	f.composite(nil)
	p := f.start()
	big := f.thing("big", object{"count": 1, "value": "x", "filler": strings.Repeat("f", 1400<<10)})
	f.waitStatus(big, 1)
	f.waitChildren("big-", map[string]string{"big-0": "x"})

	many := f.thing("many", object{"count": 1, "value": "x"})
	f.waitChildren("many-", map[string]string{"many-0": "x"})
	event := f.event(many, "SyncError", "Secret")
	if len(event.Message) > 1024 {
		t.Errorf("the event has %d bytes", len(event.Message))
	}
	line := p.WaitLine(soon, "and 499")
	if len(line) > 16<<10 {
		t.Errorf("the line of the log has %d bytes", len(line))
	}
}

// TestManyChildren makes as many children as a parent may well have, and more.
func TestManyChildren(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", defaultHook())
	f.composite(nil)
	f.start()
	parent := f.thing("a", object{"count": 1000, "value": "x"})
	kit.Eventually(t, collected, func() error {
		if got := len(f.children("a-")); got != 1000 {
			return fmt.Errorf("%d children", got)
		}
		return nil
	})
	f.waitStatus(parent, 1000)
}

// TestWordsForTheHooksAuthor is about what is told of an answer that is wrong:
// once, where, and in the log with what to look for.
func TestWordsForTheHooksAuthor(t *testing.T) {
	f := newFixture(t)
	var bad atomic.Bool
	bad.Store(true)
	good := defaultHook()
	f.hooks.Handle("/sync", func(w http.ResponseWriter, r *http.Request, asked kit.HookRequest) {
		if bad.Load() {
			kit.Status(http.StatusOK, `{"children":[{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a-0","labels":{"n":1}}}]}`)(w, r, asked)
			return
		}
		good(w, r, asked)
	})
	strict := v1alpha1.ResponseUnmarshallModeStrict
	cc := f.composite(func(cc *v1alpha1.CompositeController) { cc.Spec.Hooks.Sync.Webhook.ResponseUnmarshallMode = &strict })
	p := f.start()
	parent := f.thing("a", object{"count": 1, "value": "x"})
	f.event(parent, "SyncError", cc.Name, "sync hook at "+f.hooks.URL("/sync"), "children[0].metadata.labels[n] must be a string")
	line := p.WaitLine(soon, "Reconciler error")
	for _, text := range []string{`"hook":"sync"`, `"path":"children[0].metadata.labels[n]"`, `"parent":`, f.ns, cc.Name} {
		if !strings.Contains(line, text) {
			t.Errorf("the line of the log does not have %s: %s", text, line)
		}
	}
	// It is tried again and again, and told once.
	f.hooks.WaitRequests(soon, "/sync", 8)
	if events := f.eventsOf(parent); len(events) != 1 || events[0].Count != 1 {
		t.Errorf("there are %d events, the first one %d times", len(events), events[0].Count)
	}

	// What a strict hook may not say is another event.
	for answer, says := range map[string]string{
		`{"children":[],"childern":[]}`: "childern is unknown",
		`{"children":[],"children":[]}`: "children is there twice",
	} {
		f.hooks.Handle("/sync", kit.Status(http.StatusOK, answer))
		f.event(parent, "SyncError", says)
	}
	f.hooks.Handle("/sync", good)
	f.waitChildren("a-", map[string]string{"a-0": "x"})
}

// TestChildKindOfABrokenGroup starts a controller with a kind of children whose
// server does not answer.
func TestChildKindOfABrokenGroup(t *testing.T) {
	f := newFixture(t)
	service := &unstructured.Unstructured{Object: object{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": object{"name": "v1.down.example.com"},
		"spec": object{
			"group": "down.example.com", "version": "v1", "groupPriorityMinimum": int64(1000), "versionPriority": int64(10),
			"service": object{"name": "nobody", "namespace": "default"}, "insecureSkipTLSVerify": true,
		},
	}}
	if err := f.client.Create(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	defer f.delete(service)
	f.hooks.Handle("/sync", defaultHook())
	cc := f.composite(func(cc *v1alpha1.CompositeController) {
		down := *cc.Spec.ChildResources[0].DeepCopy()
		down.APIVersion, down.Resource = "down.example.com/v1", "gadgets"
		cc.Spec.ChildResources = append(cc.Spec.ChildResources, down)
	})
	f.start()
	f.event(cc, "CreateError", "gadgets in down.example.com/v1")
	parent := f.thing("a", object{"count": 1, "value": "x"})
	f.waitChildren("a-", map[string]string{"a-0": "x"})
	f.waitStatus(parent, 1)
}

// TestBuiltInParent has parents without a generation and without a status, of the
// kind that their children are of too.
func TestBuiltInParent(t *testing.T) {
	f := newFixture(t)
	f.hooks.Handle("/sync", kit.JSON(func(r struct{ Parent corev1.ConfigMap }) (object, error) {
		return object{"status": object{"seen": 1}, "children": []object{{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": r.Parent.Name + "-child"}, "data": object{"v": r.Parent.Data["v"]},
		}}}, nil
	}))
	yes := true
	f.composite(func(cc *v1alpha1.CompositeController) {
		cc.Spec.ParentResource.APIVersion, cc.Spec.ParentResource.Resource = "v1", "configmaps"
		cc.Spec.ParentResource.IgnoreStatusChanges = &yes
	})
	f.start()
	parent := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "a", Labels: map[string]string{testLabel: f.ns}}, Data: map[string]string{"v": "x"}}
	if err := f.client.Create(t.Context(), parent); err != nil {
		t.Fatal(err)
	}
	f.waitChildren("a-", map[string]string{"a-child": "x"})
	f.patch(parent, `{"data":{"v":"y"}}`)
	f.waitChildren("a-", map[string]string{"a-child": "y"})
	f.patch(f.configMap("a-child"), `{"data":{"v":"drifted"}}`)
	f.waitChildren("a-", map[string]string{"a-child": "y"})
	for _, event := range f.eventsOf(&unstructured.Unstructured{Object: object{"metadata": object{"namespace": f.ns, "uid": string(parent.UID)}}}) {
		t.Errorf("there is an event: %s", event.Message)
	}
}
