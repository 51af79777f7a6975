package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/related"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// copyOf is a Cache that a test fills.
type copyOf struct {
	kind object.Kind
	full chan struct{} // closed by fill

	mu       sync.Mutex // guards all below
	objects  map[object.Key]*object.Object
	handlers []func(before, after *object.Object, initial bool)
	version  int
	filling  bool
	failure  error
	released int
}

// WaitForSync waits for fill.
func (c *copyOf) WaitForSync(ctx context.Context) error {
	if full, _ := c.State(); full {
		return nil
	}
	select {
	case <-c.full:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *copyOf) fill() {
	c.mu.Lock()
	c.filling, c.failure = false, nil
	c.mu.Unlock()
	close(c.full)
}

func (c *copyOf) ByOwner(types.UID) []*object.Object               { return nil }
func (c *copyOf) Seen(string) bool                                 { return true }
func (c *copyOf) Orphans(string, labels.Selector) []*object.Object { return nil }

func (c *copyOf) State() (bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return !c.filling && c.failure == nil, c.failure
}

func (c *copyOf) Get(namespace, name string) *object.Object {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.objects[c.kind.Key(namespace, name)]
}

func (c *copyOf) List() []*object.Object { return c.Select("", labels.Everything()) }

func (c *copyOf) Named(name string) []*object.Object {
	return slices.DeleteFunc(c.List(), func(o *object.Object) bool { return o.Name() != name })
}

func (c *copyOf) Select(namespace string, selector labels.Selector) []*object.Object {
	c.mu.Lock()
	defer c.mu.Unlock()
	var found []*object.Object
	for _, o := range c.objects {
		if (namespace == "" || o.Namespace() == namespace) && selector.Matches(labels.Set(o.Labels())) {
			found = append(found, o)
		}
	}
	return found
}

func (c *copyOf) Handle(handler func(before, after *object.Object, initial bool)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.handlers = append(c.handlers, handler)
	return nil
}

func (c *copyOf) Release() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.released++
	c.handlers = nil
}

// put changes the copy, then tells the handlers, as an informer does. An empty
// label removes the object.
func (c *copyOf) put(t testing.TB, namespace, name, label string) {
	c.mu.Lock()
	c.version++
	key := c.kind.Key(namespace, name)
	before := c.objects[key]
	var after *object.Object
	if label == "" {
		delete(c.objects, key)
	} else {
		in := ""
		if namespace != "" {
			in = fmt.Sprintf(`"namespace":%q,`, namespace)
		}
		var err error
		after, err = object.FromJSON(fmt.Appendf(nil, `{"apiVersion":%q,"kind":%q,"metadata":{%s"name":%q,"uid":"u","resourceVersion":"%d","labels":{"is":%q}}}`,
			c.kind.APIVersion(), c.kind.GroupVersionKind.Kind, in, name, c.version, label))
		if err != nil {
			t.Error(err)
		}
		c.objects[key] = after
	}
	handlers := slices.Clone(c.handlers)
	c.mu.Unlock()
	for _, handler := range handlers {
		handler(before, after, false)
	}
}

// cluster is the kinds of a test.
type cluster struct {
	mu     sync.Mutex // guards all below
	kinds  map[string]object.Kind
	copies map[object.Kind]*copyOf
	opened int
}

func newCluster(kinds ...object.Kind) *cluster {
	c := &cluster{kinds: map[string]object.Kind{}, copies: map[object.Kind]*copyOf{}}
	for _, kind := range kinds {
		c.kinds[kind.Resource] = kind
		c.copies[kind] = &copyOf{kind: kind, full: make(chan struct{}), objects: map[object.Key]*object.Object{}}
	}
	return c
}

func (c *cluster) open(kind object.Kind) Cache {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opened++
	return c.copies[kind]
}

func (c *cluster) lookup(_ context.Context, _, resource string) (object.Kind, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	kind, ok := c.kinds[resource]
	if !ok {
		return object.Kind{}, true, errors.New("not served")
	}
	return kind, false, nil
}

func (c *cluster) serve(resource string, kind *object.Kind) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if kind == nil {
		delete(c.kinds, resource)
	} else {
		c.kinds[resource] = *kind
	}
}

func key(name string) object.Key {
	return object.Key{Group: thing.Group, Kind: "Thing", Namespace: "ns", Name: name}
}

func selectorOf(label string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{"is": label}}
}

// checked makes rules of v2 hooks about ConfigMaps with a label, or with one name.
func checked(t testing.TB, label string, names ...string) *related.Rules {
	t.Helper()
	var rule v1alpha1.RelatedResourceRule
	rule.APIVersion, rule.Resource, rule.Names = "v1", "configmaps", names
	if label != "" {
		rule.LabelSelector = selectorOf(label)
	}
	rules, err := related.Check([]v1alpha1.RelatedResourceRule{rule}, []object.Kind{config}, related.Viewer{Namespace: "ns", Version: v1alpha1.HookVersionV2})
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// following is Related with its worker.
type following struct {
	*Related
	stop func()

	mu    sync.Mutex // guards added
	added []object.Key
}

func follow(t *testing.T, c *cluster) *following {
	f := &following{Related: NewRelated(c.open, c.lookup, clock.RealClock{})}
	ctx, cancel := context.WithCancel(t.Context())
	var worker sync.WaitGroup
	worker.Go(func() {
		f.run(ctx, func(keys ...object.Key) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.added = append(f.added, keys...)
		})
	})
	f.stop = func() {
		cancel()
		worker.Wait()
		f.Close()
	}
	return f
}

// took are the names of the parents that were added since the last call, sorted.
func (f *following) took() []string {
	synctest.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	var names []string
	for _, key := range f.added {
		names = append(names, key.Name)
	}
	f.added = nil
	slices.Sort(names)
	return names
}

func (f *following) expect(t *testing.T, what string, want ...string) {
	t.Helper()
	if got := f.took(); !slices.Equal(got, want) {
		t.Errorf("%s: added are %q, not %q", what, got, want)
	}
}

func (f *following) set(t *testing.T, parent string, rules *related.Rules) {
	t.Helper()
	if err := f.Set(key(parent), rules); err != nil {
		t.Error(err)
	}
}

func TestRelatedEventsReachTheirParents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(config)
		f := follow(t, c)
		defer f.stop()
		f.set(t, "named", checked(t, "", "a"))
		f.set(t, "x", checked(t, "x"))
		f.set(t, "y", checked(t, "y"))
		maps := c.copies[config]
		maps.put(t, "ns", "a", "x")
		f.expect(t, "made", "named", "x")
		maps.put(t, "ns", "a", "y")
		f.expect(t, "relabelled", "named", "x", "y")
		maps.put(t, "ns", "a", "z")
		f.expect(t, "relabelled again", "named", "y")
		maps.put(t, "ns", "a", "")
		f.expect(t, "gone", "named")
		maps.put(t, "ns", "b", "z")
		f.expect(t, "of nobody")

		// What is new for a handler is no event, and what is the same is none.
		o := maps.Get("ns", "b")
		f.changed(nil, o, true)
		f.changed(o, o, false)
		f.expect(t, "nothing new")
		f.Forget(key("x"))
		maps.put(t, "ns", "b", "x")
		f.expect(t, "of a parent that is gone")
		// One copy for all.
		if c.opened != 1 {
			t.Errorf("%d copies were opened", c.opened)
		}
	})
}

// While the worker is busy, many changes of one object become one, and no state
// that it had is overlooked.
func TestRelatedEventsAreJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(config)
		related := NewRelated(c.open, c.lookup, clock.RealClock{})
		defer related.Close()
		for _, name := range []string{"x", "y", "z"} {
			if err := related.Set(key(name), checked(t, name)); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 300 {
			c.copies[config].put(t, "ns", "a", []string{"x", "y", "w"}[i%3])
		}
		if n := len(related.pending); n != 1 {
			t.Fatalf("%d changes are pending", n)
		}
		var added []string
		related.look(t.Context(), func(keys ...object.Key) {
			for _, key := range keys {
				added = append(added, key.Name)
			}
		})
		slices.Sort(added)
		if !slices.Equal(added, []string{"x", "y"}) || len(related.pending) != 0 {
			t.Errorf("added are %q, %d are left", added, len(related.pending))
		}
	})
}

func TestRelatedNamespaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(config, related.NamespaceKind)
		f := follow(t, c)
		defer f.stop()
		var rule v1alpha1.RelatedResourceRule
		rule.APIVersion, rule.Resource = "v1", "configmaps"
		rule.NamespaceSelector = selectorOf("x")
		rules, err := related.Check([]v1alpha1.RelatedResourceRule{rule}, []object.Kind{config}, related.Viewer{})
		if err != nil {
			t.Fatal(err)
		}
		f.set(t, "p", rules)
		namespaces, maps := c.copies[related.NamespaceKind], c.copies[config]
		namespaces.put(t, "", "ns", "y")
		maps.put(t, "ns", "a", "any")
		f.expect(t, "namespace does not match")
		namespaces.put(t, "", "ns", "x")
		f.expect(t, "namespace matches now", "p")
		if found, err := f.Related.Select(key("p"), rules); err != nil || found.Len() != 1 {
			t.Errorf("selected are %v, %v", found, err)
		}
		maps.put(t, "ns", "a", "other")
		f.expect(t, "object in it changes", "p")
		namespaces.put(t, "", "ns", "x")
		f.expect(t, "namespace changes in other ways")
		namespaces.put(t, "", "ns", "y")
		f.expect(t, "namespace matches no more", "p")
	})
}

func TestRelatedCopiesAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(config)
		f := follow(t, c)
		maps := c.copies[config]
		expect := func(what string, opened, released int) {
			t.Helper()
			synctest.Wait()
			if c.opened != opened || maps.released != released {
				t.Errorf("%s: opened %d times, released %d times", what, c.opened, maps.released)
			}
		}
		none, err := related.Check(nil, nil, related.Viewer{})
		if err != nil {
			t.Fatal(err)
		}
		expect("nobody asks", 0, 0)
		f.set(t, "p", checked(t, "x"))
		f.set(t, "q", checked(t, "y"))
		f.Forget(key("q"))
		time.Sleep(2 * relatedLinger)
		expect("one still asks", 1, 0)
		f.set(t, "p", none)
		time.Sleep(relatedLinger - time.Second)
		expect("for a moment nobody asks", 1, 0)
		f.set(t, "q", checked(t, "y"))
		time.Sleep(2 * relatedLinger)
		expect("asked for again in time", 1, 0)
		f.Forget(key("q"))
		time.Sleep(relatedLinger + time.Second)
		expect("nobody asks for long", 1, 1)
		f.set(t, "q", checked(t, "y"))
		expect("opened anew", 2, 1)
		f.stop()
		expect("stopped", 2, 2)
		if err := f.Set(key("p"), checked(t, "x")); err == nil {
			t.Error("a copy is opened after the end")
		}
	})
}

func TestRelatedCopiesThatCannotBeRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(config)
		f := follow(t, c)
		defer f.stop()
		rules := checked(t, "x")
		c.copies[config].filling = true
		f.set(t, "p", rules)
		if _, err := f.Related.Select(key("p"), rules); !errors.Is(err, ErrFilling) {
			t.Errorf("error of a copy that fills is %v", err)
		}
		c.copies[config].failure = errors.New("forbidden")
		var unreadable *CopyError
		if _, err := f.Related.Select(key("p"), rules); !errors.As(err, &unreadable) || errors.Is(err, ErrFilling) || unreadable.Kind != config {
			t.Errorf("error of a copy that fails is %v", err)
		}
		// The parent is synced as soon as it can be, and once.
		f.expect(t, "not full")
		c.copies[config].fill()
		f.expect(t, "full", "p")
		if _, err := f.Related.Select(key("p"), rules); err != nil {
			t.Error(err)
		}
		f.expect(t, "nothing more")
	})
}

func TestRelatedKindsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(config)
		f := follow(t, c)
		defer f.stop()
		c.serve("configmaps", nil)
		if _, err := f.Kind(t.Context(), key("p"), "v1", "configmaps"); err == nil {
			t.Fatal("a kind is found that is not served")
		}
		f.expect(t, "nothing changed")
		c.serve("configmaps", &config)
		f.Recheck()
		f.expect(t, "the kind came", "p")
		f.Recheck()
		f.expect(t, "nobody waits")
		f.set(t, "p", checked(t, "x"))
		f.Recheck()
		f.expect(t, "the kind is as it was")

		elsewhere := config
		elsewhere.Namespaced = false
		c.serve("configmaps", &elsewhere)
		f.Recheck()
		f.expect(t, "the kind has another scope", "p")
		if c.copies[config].released != 1 {
			t.Error("the copy of the old one is kept")
		}
		if _, err := f.Related.Select(key("p"), checked(t, "x")); !errors.Is(err, ErrFilling) {
			t.Errorf("error of a copy that was given up is %v", err)
		}
		var none *Related
		none.Recheck()
		none.Forget(key("p"))
		none.Close()
	})
}

// Whatever happens at once, the last pass of each parent has seen the last state.
func TestRelatedLosesNoEvent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(config)
		queue := make(chan object.Key, 10000)
		r := NewRelated(c.open, c.lookup, clock.RealClock{})
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		all.Go(func() {
			r.run(ctx, func(keys ...object.Key) {
				for _, key := range keys {
					queue <- key
				}
			})
		})
		const parents, objects = 8, 4
		var mu sync.Mutex
		wants, saw := map[object.Key]int{}, map[object.Key]string{}
		pass := func(parent object.Key) {
			// One pass of a parent at a time, as with the queue.
			mu.Lock()
			defer mu.Unlock()
			rules := checked(t, "", strconv.Itoa(wants[parent]))
			if err := r.Set(parent, rules); err != nil {
				t.Error(err)
			}
			found, err := r.Select(parent, rules)
			if err != nil {
				t.Error(err)
			}
			seen := ""
			for o := range found.All() {
				seen += o.Name() + "@" + o.ResourceVersion()
			}
			saw[parent] = seen
		}
		all.Go(func() {
			for {
				select {
				case parent := <-queue:
					pass(parent)
				case <-ctx.Done():
					return
				}
			}
		})
		var changes sync.WaitGroup
		for i := range objects {
			changes.Go(func() {
				for j := range 200 {
					c.copies[config].put(t, "ns", strconv.Itoa(i), []string{"x", "y", ""}[j%3])
				}
			})
		}
		for i := range parents {
			changes.Go(func() {
				for j := range 50 {
					mu.Lock()
					wants[key(strconv.Itoa(i))] = (i + j) % objects
					mu.Unlock()
					queue <- key(strconv.Itoa(i))
				}
			})
		}
		changes.Wait()
		synctest.Wait()
		for parent, name := range wants {
			want := ""
			if o := c.copies[config].Get("ns", strconv.Itoa(name)); o != nil {
				want = o.Name() + "@" + o.ResourceVersion()
			}
			if saw[parent] != want {
				t.Errorf("%s saw %q last, not %q", parent, saw[parent], want)
			}
		}
		cancel()
		all.Wait()
		r.Close()
	})
}
