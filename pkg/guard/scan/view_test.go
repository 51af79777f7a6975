package scan

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
)

// crowd is an API server with Pods, whose lists come in pages and whose calls
// fail as the test wants. The real one is in the integration suites.
type crowd struct {
	client.Reader
	mapper meta.RESTMapper

	mutex sync.Mutex // guards all below
	pods  []corev1.Pod
	// errors are what the next lists answer.
	errors []error
	limits []int64
	lists  int
	// watches are those that are open, by their number.
	watches  []*watch.FakeWatcher
	versions []string
	opened   chan struct{}
}

func newCrowd(n int) *crowd {
	c := &crowd{opened: make(chan struct{}, 100)}
	for i := range n {
		c.pods = append(c.pods, aPod(fmt.Sprintf("p%d", i), "nginx"))
	}
	return c
}

func aPod(name, image string) corev1.Pod {
	return corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, ResourceVersion: "7"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "m", Image: image}}}}
}

const anInstance = "ghcr.io/metacontroller/metacontroller:v4"

func (c *crowd) RESTMapper() meta.RESTMapper { return c.mapper }

func (c *crowd) List(_ context.Context, list client.ObjectList, options ...client.ListOption) error {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	asked := client.ListOptions{}
	for _, o := range options {
		o.ApplyToList(&asked)
	}
	c.limits = append(c.limits, asked.Limit)
	if len(c.errors) > 0 {
		err := c.errors[0]
		c.errors = c.errors[1:]
		if err != nil {
			return err
		}
	}
	from := 0
	if asked.Continue != "" {
		from, _ = strconv.Atoi(asked.Continue)
	} else {
		c.lists++
	}
	to := min(len(c.pods), from+int(asked.Limit))
	into := list.(*corev1.PodList)
	if len(into.Items) > 0 {
		return errors.New("a list is used twice: it keeps what was decoded into it")
	}
	into.Items, into.ResourceVersion = slices.Clone(c.pods[from:to]), "5"
	if to < len(c.pods) {
		into.Continue = strconv.Itoa(to)
	}
	return nil
}

func (c *crowd) Watch(_ context.Context, _ client.ObjectList, options ...client.ListOption) (watch.Interface, error) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	asked := client.ListOptions{}
	for _, o := range options {
		o.ApplyToList(&asked)
	}
	if asked.Raw == nil || asked.Raw.ResourceVersion == "" {
		return nil, errors.New("a watch without a version sends everything again")
	}
	c.versions = append(c.versions, asked.Raw.ResourceVersion)
	w := watch.NewFake()
	c.watches = append(c.watches, w)
	c.opened <- struct{}{}
	return w, nil
}

// watching waits for the next watch.
func (c *crowd) watching(t *testing.T) *watch.FakeWatcher {
	t.Helper()
	select {
	case <-c.opened:
	case <-time.After(30 * time.Second):
		t.Fatal("no watch was opened")
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return c.watches[len(c.watches)-1]
}

func podSource(t *testing.T) source {
	t.Helper()
	signature, err := identify.Compile(guardv1alpha1.DefaultMatch())
	if err != nil {
		t.Fatal(err)
	}
	return pods(signature, nil)
}

// followed is a view of Pods that is followed until the test ends.
type followed struct {
	t *testing.T
	*view
	changes chan struct{}
}

func follow(t *testing.T, c *crowd) *followed {
	f := &followed{t: t, view: newView([]source{podSource(t)}), changes: make(chan struct{}, 1000)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		f.follow(ctx, c, func() { f.changes <- struct{}{} })
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return f
}

// expect waits for a change, and for what is seen then.
func (f *followed) expect(names ...string) {
	f.t.Helper()
	select {
	case <-f.changes:
	case <-time.After(30 * time.Second):
		f.t.Fatalf("no change comes; %+v", f.seen())
	}
	var got []string
	for _, pod := range f.seen().pods {
		got = append(got, pod.Name)
	}
	slices.Sort(got)
	if !slices.Equal(got, names) {
		f.t.Fatalf("seen are %v, want %v", got, names)
	}
}

func gone() error { return apierrors.NewResourceExpired("too old") }

func TestViewKeepsInstancesOnly(t *testing.T) {
	c := newCrowd(3*PageSize + 1)
	c.pods[PageSize+3] = aPod("instance", anInstance)
	f := follow(t, c)
	f.expect("instance")
	if !f.seen().synced || len(c.limits) != 4 || slices.Max(c.limits) != PageSize || slices.Min(c.limits) != PageSize {
		t.Fatalf("pages of %v", c.limits)
	}
	w := c.watching(t)
	send := func(act func(*watch.FakeWatcher, *corev1.Pod), name, image string) {
		pod := aPod(name, image)
		act(w, &pod)
	}
	added := func(w *watch.FakeWatcher, p *corev1.Pod) { w.Add(p) }
	modified := func(w *watch.FakeWatcher, p *corev1.Pod) { w.Modify(p) }
	deleted := func(w *watch.FakeWatcher, p *corev1.Pod) { w.Delete(p) }
	send(added, "stranger", "nginx") // Changes nothing.
	send(modified, "instance", anInstance)
	send(added, "second", anInstance)
	f.expect("instance", "second")
	send(modified, "p1", anInstance)
	f.expect("instance", "p1", "second")
	send(modified, "p1", "nginx")
	f.expect("instance", "second")
	send(deleted, "second", anInstance)
	f.expect("instance")
	ended := aPod("instance", anInstance)
	ended.Status.Phase = corev1.PodSucceeded
	w.Modify(&ended)
	f.expect()
	if len(f.changes) > 0 {
		t.Error("more changes than there were")
	}
}

// A watch that ends is begun again where it was; one that is too old needs a list.
func TestViewGoesOn(t *testing.T) {
	c := newCrowd(1)
	c.pods[0] = aPod("one", anInstance)
	f := follow(t, c)
	f.expect("one")
	w := c.watching(t)
	later := aPod("two", anInstance)
	later.ResourceVersion = "41"
	w.Add(&later)
	f.expect("one", "two")
	w.Stop()
	w = c.watching(t)
	if c.lists != 1 || c.versions[1] != "41" {
		t.Fatalf("%d lists, versions %v", c.lists, c.versions)
	}
	c.mutex.Lock()
	c.pods = []corev1.Pod{aPod("three", anInstance)}
	c.mutex.Unlock()
	w.Error(&metav1.Status{Status: metav1.StatusFailure, Code: 410, Reason: metav1.StatusReasonExpired})
	f.expect("three")
	c.watching(t)
}

func TestViewWithFaults(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", errors.New("no"))
	t.Run("a list that expires between its pages begins again", func(t *testing.T) {
		c := newCrowd(2 * PageSize)
		c.pods[0] = aPod("one", anInstance)
		c.errors = []error{nil, gone()}
		f := follow(t, c)
		f.expect("one")
	})
	t.Run("what may not be read is said, and tried again", func(t *testing.T) {
		c := newCrowd(1)
		c.pods[0] = aPod("one", anInstance)
		c.errors = []error{forbidden}
		f := follow(t, c)
		f.expect()
		if unread := f.seen().unread; len(unread) != 1 || unread[0].What != "pods" || !f.seen().synced {
			t.Fatalf("unread is %+v", unread)
		}
		f.expect("one")
		if len(f.seen().unread) != 0 {
			t.Fatal("still unread")
		}
	})
	t.Run("an API server that is away is not an empty one", func(t *testing.T) {
		c := newCrowd(1)
		c.pods[0] = aPod("one", anInstance)
		c.errors = []error{errors.New("connection refused")}
		f := follow(t, c)
		f.expect("one")
	})
	t.Run("a kind that is not served has no objects", func(t *testing.T) {
		if why, ok := unreadable(&meta.NoKindMatchError{}); why != "" || !ok {
			t.Error(why, ok)
		}
	})
	t.Run("once", func(t *testing.T) {
		c := newCrowd(1)
		c.errors = []error{errors.New("connection refused")}
		if err := newView([]source{podSource(t)}).once(t.Context(), c); err == nil {
			t.Error("what is away is taken for empty")
		}
	})
}

func TestUntilNext(t *testing.T) {
	now := time.Unix(1000, 0)
	soon := now.Add(3 * time.Second)
	past := now.Add(-time.Second)
	for name, test := range map[string]struct {
		facts inspect.Facts
		want  time.Duration
	}{
		"nothing":    {inspect.Facts{Now: now}, Interval},
		"a Pod ends": {inspect.Facts{Now: now, Pods: []inspect.Pod{{Ends: &soon}, {Ends: &past}}}, 3*time.Second + time.Millisecond},
		"an exception ends": {inspect.Facts{Now: now, Policy: &guardv1alpha1.SingletonPolicy{Spec: guardv1alpha1.SingletonPolicySpec{
			Exceptions: []guardv1alpha1.Exception{{Expires: metav1.NewTime(now.Add(time.Second))}},
		}}}, time.Second + time.Millisecond},
	} {
		if got := untilNext(test.facts); got != test.want {
			t.Errorf("%s: %s, want %s", name, got, test.want)
		}
	}
}

// I08: the report has one result for each finding, and is the same for the same
// findings.
func TestReportOf(t *testing.T) {
	policy := &guardv1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: "ours", UID: "u"}}
	passes := reportOf(policy, nil)
	if results := passes.Object["results"].([]any); len(results) != 1 || results[0].(map[string]any)["result"] != resultPass {
		t.Errorf("got %+v", passes.Object)
	}
	findings := inspect.Status([]inspect.Finding{
		{ID: inspect.InstanceNotPinned, Severity: inspect.High, Object: inspect.Object{Kind: "Pod", Name: "p"}, Message: "m", Fix: "f"},
		{ID: inspect.SharedAccount, Severity: inspect.Medium, Object: inspect.Object{Kind: "Pod", Name: "q"}, Message: "m", Fix: "f"},
	}, nil, time.Unix(1000, 0))
	fails := reportOf(policy, findings)
	if fails.GetName() != "singletonpolicy-ours" || len(fails.Object["results"].([]any)) != 2 {
		t.Errorf("got %+v", fails.Object)
	}
	summary := fails.Object["summary"].(map[string]any)
	if summary[resultFail] != int64(1) || summary[resultWarn] != int64(1) || summary[resultPass] != int64(0) {
		t.Errorf("summary is %+v", summary)
	}
}
