package faults_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/metacontroller-solo/solo/test/kit"
)

// shownDifferences is how many differences from the model a message has.
const shownDifferences = 8

// sayPeriod is how often a wait says what it waits for.
const sayPeriod = 15 * time.Second

// state is what is there.
type state struct {
	parents  map[parentKey]*unstructured.Unstructured
	children map[childKey]*unstructured.Unstructured
	// revisions by the uid of their parent.
	revisions map[types.UID][]*unstructured.Unstructured
}

func (w *world) observe(ctx context.Context) (*state, error) {
	out := &state{parents: map[parentKey]*unstructured.Unstructured{}, children: map[childKey]*unstructured.Unstructured{}, revisions: map[types.UID][]*unstructured.Unstructured{}}
	list := func(at schema.GroupVersionResource, each func(*unstructured.Unstructured)) error {
		var found *unstructured.UnstructuredList
		err := w.try(ctx, func(c dynamic.Interface) (err error) {
			found, err = c.Resource(at).Namespace(namespace).List(ctx, metav1.ListOptions{})
			return err
		})
		if err != nil {
			return fmt.Errorf("cannot list %s: %w", at.Resource, err)
		}
		for i := range found.Items {
			each(&found.Items[i])
		}
		return nil
	}
	for _, kind := range kinds {
		err := list(resourceOf(kind.plural), func(o *unstructured.Unstructured) { out.parents[parentKey{kind.plural, o.GetName()}] = o })
		if err != nil {
			return nil, err
		}
	}
	for _, at := range []schema.GroupVersionResource{configMaps, parts} {
		err := list(at, func(o *unstructured.Unstructured) { out.children[childKey{at.Resource, o.GetName()}] = o })
		if err != nil {
			return nil, err
		}
	}
	return out, list(revisions, func(o *unstructured.Unstructured) {
		if owner := metav1.GetControllerOf(o); owner != nil {
			out.revisions[owner.UID] = append(out.revisions[owner.UID], o)
		}
	})
}

// differences are what is not as the model says. It is pure.
func differences(m *model, s *state, untouched map[string]string) []string {
	var out []string
	differ := func(format string, arguments ...any) { out = append(out, fmt.Sprintf(format, arguments...)) }
	want := m.children()
	// own is how many children of a parent there are.
	own := map[parentKey]int{}
	for _, c := range want {
		own[c.owner]++
	}
	for key, p := range m.parents {
		o := s.parents[key]
		if o == nil {
			differ("%v is lost", key)
			continue
		}
		differ := func(format string, arguments ...any) { differ("%v "+format, append([]any{key}, arguments...)...) }
		kind := kindNamed(key.plural)
		if o.GetDeletionTimestamp() != nil {
			differ("is being deleted")
		}
		wanted := []string{}
		if kind.finalizer != "" {
			wanted = append(wanted, kind.finalizer)
		}
		if !slices.Equal(o.GetFinalizers(), wanted) {
			differ("has finalizers %v, not %v", o.GetFinalizers(), wanted)
		}
		spec, _, _ := unstructured.NestedMap(o.Object, "spec")
		if spec["value"] != p.value || spec["count"] != int64(p.count) {
			differ("has spec %v, not %v", spec, specOf(p))
		}
		if kind.decorated {
			if got := o.GetAnnotations()[decoration]; got != p.value {
				differ("is decorated with %q, not %q", got, p.value)
			}
			continue
		}
		if key.name == blocked {
			continue // its status is about an error
		}
		status, _, _ := unstructured.NestedMap(o.Object, "status")
		if status["value"] != p.value || status["seen"] != int64(own[key]) || status["observedGeneration"] != o.GetGeneration() {
			differ("has status %v at generation %d, not value %s of %d children", status, o.GetGeneration(), p.value, own[key])
		}
		if kind.rolls {
			if n := len(s.revisions[o.GetUID()]); n != 1 {
				differ("has %d revisions", n)
			}
			if !rolled(status) {
				differ("is not rolled out: %v", status["conditions"])
			}
		}
	}
	for key := range s.parents {
		if _, ok := m.parents[key]; !ok {
			differ("%v is still there, with finalizers %v", key, s.parents[key].GetFinalizers())
		}
	}
	for key, c := range want {
		o := s.children[key]
		if o == nil {
			differ("%v is lost", key)
			continue
		}
		field := "data"
		if key.resource == parts.Resource {
			field = "spec"
		}
		data, _, _ := unstructured.NestedStringMap(o.Object, field)
		if !maps.Equal(data, c.data) || o.GetLabels()[mark] != "yes" {
			differ("%v has %v and labels %v, not %v", key, data, o.GetLabels(), c.data)
		}
		owner, refs := s.parents[c.owner], o.GetOwnerReferences()
		if owner != nil && (len(refs) != 1 || refs[0].UID != owner.GetUID() || refs[0].Controller == nil || !*refs[0].Controller) {
			differ("%v has owners %v, not %v %s", key, refs, c.owner, owner.GetUID())
		}
		if o.GetDeletionTimestamp() != nil {
			differ("%v is being deleted", key)
		}
	}
	for key, o := range s.children {
		_, wanted := want[key]
		version, foreign := untouched[key.name]
		switch {
		case wanted || key.name == "kube-root-ca.crt":
		case foreign && key.resource == configMaps.Resource:
			if o.GetResourceVersion() != version {
				differ("%v is nobody's business, and was written", key)
			}
		case slices.ContainsFunc(allSources(), func(name string) bool { return name == key.name }):
		default:
			differ("%v is there, with owners %v, deleted at %v", key, o.GetOwnerReferences(), o.GetDeletionTimestamp())
		}
	}
	for name := range untouched {
		if s.children[childKey{configMaps.Resource, name}] == nil {
			differ("%s is nobody's business, and is gone", name)
		}
	}
	slices.Sort(out)
	return out
}

func allSources() []string {
	var out []string
	for i := range sourceCount {
		out = append(out, sourceName(i))
	}
	return out
}

func rolled(status map[string]any) bool {
	conditions, _ := status["conditions"].([]any)
	return slices.ContainsFunc(conditions, func(c any) bool {
		condition, _ := c.(map[string]any)
		return condition["type"] == "Updated" && condition["status"] == "True"
	})
}

// converge waits until everything is as the model says, and returns how long that
// took. Then it looks at what was written on the way there.
func (w *world) converge() time.Duration {
	w.t.Helper()
	begun := time.Now()
	said := begun
	leftovers := overdue{}
	for {
		ctx, cancel := context.WithTimeout(w.t.Context(), patience)
		now, err := w.observe(ctx)
		cancel()
		var left []string
		switch {
		case apierrors.IsNotFound(err):
			left = []string{err.Error()}
		case err != nil:
			w.t.Fatal(err)
		default:
			left = differences(w.model, now, w.untouched)
		}
		if len(left) == 0 {
			break
		}
		if now != nil && leftovers.note(time.Now(), now.garbage()) > collectorPatience {
			w.restartCollector()
			clear(leftovers)
		}
		if time.Since(begun) > patience {
			w.showEvidence(now, left)
			w.t.Fatalf("after %s there are %d differences from the model (seed %d), among them:\n%s", patience, len(left), w.seed, joinLines(left[:min(len(left), shownDifferences)]))
		}
		if time.Since(said) > sayPeriod {
			said = time.Now()
			w.t.Logf("still %d differences after %s, such as: %s", len(left), time.Since(begun).Round(time.Second), left[0])
		}
		time.Sleep(100 * time.Millisecond)
	}
	took := time.Since(begun)
	w.model.settle()
	w.checkWrites()
	w.hooks.Forget()
	return took
}

func joinLines(lines []string) string {
	var out string
	for _, line := range lines {
		out += "  " + line + "\n"
	}
	return out
}

// checkWrites looks for writes that were not to be.
func (w *world) checkWrites() {
	w.t.Helper()
	if _, err := w.audit.read(w.cp); err != nil {
		w.t.Fatal(err)
	}
	for child, n := range deletions(w.audit.records) {
		if most := w.model.deletions[child]; n > most {
			w.t.Errorf("the controller deleted %v %d times, for %d reasons (seed %d)", child, n, most, w.seed)
		}
	}
	for _, late := range w.late() {
		w.t.Errorf("%s (seed %d)", late, w.seed)
	}
	if w.t.Failed() {
		w.t.FailNow()
	}
}

// late are the writes of runs that had lost their lease.
func (w *world) late() []string {
	ofLease := map[string][]record{}
	leaseOf := map[string]string{}
	for _, k := range []*keeper{w.updating, w.standby, w.applying} {
		k.mu.Lock()
		for _, run := range k.terms {
			leaseOf[run.credential] = k.lease
		}
		k.mu.Unlock()
	}
	for _, one := range w.audit.records {
		lease := leaseOf[one.credential()]
		ofLease[lease] = append(ofLease[lease], one)
	}
	out := []string{}
	for lease, records := range ofLease {
		if lease == "" {
			out = append(out, fmt.Sprintf("nobody knows who wrote: %s", records[0]))
			continue
		}
		out = append(out, lateWrites(records)...)
	}
	return out
}

// waitQuiet waits until the controller writes nothing any more.
func (w *world) waitQuiet() {
	w.t.Helper()
	kit.Eventually(w.t, patience, func() error {
		if _, err := w.audit.read(w.cp); err != nil {
			return err
		}
		time.Sleep(time.Second)
		more, err := w.audit.read(w.cp)
		if err != nil {
			return err
		}
		more = slices.DeleteFunc(more, record.ofLease)
		if len(more) > 0 {
			return fmt.Errorf("it still writes: %s", more[0])
		}
		return nil
	})
}
