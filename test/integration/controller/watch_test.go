package controller_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"

	"github.com/metacontroller-solo/solo/pkg/controller/cluster"
	resources "github.com/metacontroller-solo/solo/pkg/controller/discovery"
	"github.com/metacontroller-solo/solo/pkg/controller/watch"
	words "github.com/metacontroller-solo/solo/pkg/object"
	"github.com/metacontroller-solo/solo/test/kit"
)

var configMapKind = words.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Resource: "configmaps", Namespaced: true}

// TestCache follows one object from its making to its end in the local copy.
func TestCache(t *testing.T) {
	f := newFixture(t)
	client, err := cluster.NewClient(f.cp.AdminConfig(0))
	if err != nil {
		t.Fatal(err)
	}
	set := watch.NewSet(client, logr.Discard())
	cache := set.Acquire(configMapKind, watch.Options{})
	defer cache.Release()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := cache.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
	events := make(chan string, 100)
	handle := func(before, after *words.Object, _ bool) {
		state := after
		if state == nil {
			state = before
		}
		if state.Namespace() == f.ns && state.Name() == "a" {
			events <- fmt.Sprint(before != nil, after != nil)
		}
	}
	if err := cache.Handle(handle); err != nil {
		t.Fatal(err)
	}
	expect := func(want string) {
		t.Helper()
		select {
		case got := <-events:
			if got != want {
				t.Fatalf("event is %s, not %s", got, want)
			}
		case <-ctx.Done():
			t.Fatalf("no event %s", want)
		}
	}

	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "a"}}
	if err := f.client.Create(ctx, o); err != nil {
		t.Fatal(err)
	}
	expect("false true")
	if got := cache.Get(f.ns, "a"); got == nil || got.UID() != o.UID || !cache.Seen(o.ResourceVersion) {
		t.Fatalf("the copy has %v, seen is %v", got, cache.Seen(o.ResourceVersion))
	}
	f.patch(o, `{"data":{"a":"b"}}`)
	expect("true true")
	if !cache.Seen(o.ResourceVersion) {
		t.Error("the change is not seen")
	}
	f.delete(o)
	expect("true false")
	if got := cache.Get(f.ns, "a"); got != nil {
		t.Errorf("the copy has %v", got)
	}

	// A second user shares it and is told what is there.
	other := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "a"}}
	if err := f.client.Create(ctx, other); err != nil {
		t.Fatal(err)
	}
	expect("false true")
	second := set.Acquire(configMapKind, watch.Options{})
	if err := second.Handle(handle); err != nil {
		t.Fatal(err)
	}
	expect("false true")
	cache.Release()
	f.patch(other, `{"data":{"a":"b"}}`)
	expect("true true")
	second.Release()
}

func TestCacheOfMetadataAlone(t *testing.T) {
	f := newFixture(t)
	client, err := cluster.NewClient(f.cp.AdminConfig(0))
	if err != nil {
		t.Fatal(err)
	}
	o := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "a", Labels: map[string]string{"only": f.ns}}, Data: map[string]string{"big": "body"}}
	if err := f.client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	cache := watch.NewSet(client, logr.Discard()).Acquire(configMapKind, watch.Options{MetadataOnly: true, LabelSelector: "only=" + f.ns})
	defer cache.Release()
	ctx, cancel := context.WithTimeout(t.Context(), soon)
	defer cancel()
	if err := cache.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
	all := cache.List()
	if len(all) != 1 || all[0].UID() != o.UID || all[0].Content()["data"] != nil {
		t.Errorf("the copy has %v", all)
	}
}

func TestCacheSaysWhyItIsEmpty(t *testing.T) {
	f := newFixture(t)
	nobody, err := f.cp.UserConfig("nobody")
	if err != nil {
		t.Fatal(err)
	}
	client, err := cluster.NewClient(nobody)
	if err != nil {
		t.Fatal(err)
	}
	cache := watch.NewSet(client, logr.Discard()).Acquire(configMapKind, watch.Options{})
	defer cache.Release()
	kit.Eventually(t, soon, func() error {
		ctx, cancel := context.WithTimeout(t.Context(), 1)
		defer cancel()
		if err := cache.WaitForSync(ctx); err == nil || errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("the error is %v", err)
		}
		return nil
	})
}

func TestDiscoveryBesideABrokenGroup(t *testing.T) {
	f := newFixture(t)
	service := &unstructured.Unstructured{Object: object{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": object{"name": "v1.broken.example.com"},
		"spec": object{
			"group": "broken.example.com", "version": "v1", "groupPriorityMinimum": int64(1000), "versionPriority": int64(10),
			"service": object{"name": "nobody", "namespace": "default"}, "insecureSkipTLSVerify": true,
		},
	}}
	if err := f.client.Create(t.Context(), service); err != nil {
		t.Fatal(err)
	}
	defer f.delete(service)
	client, err := discovery.NewDiscoveryClientForConfig(f.cp.AdminConfig(0))
	if err != nil {
		t.Fatal(err)
	}
	table := resources.New(client, clock.RealClock{})
	// The group shows up in what is served after a moment.
	kit.Eventually(t, soon, func() error {
		if _, err := table.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err := table.Lookup(t.Context(), "broken.example.com/v1", "things")
		var absent *resources.NotFoundError
		if err == nil || errors.As(err, &absent) {
			return fmt.Errorf("the error of the broken group is %v", err)
		}
		return nil
	})
	cases := []struct {
		apiVersion, resource, kind string
		namespaced, status         bool
	}{
		{"v1", "configmaps", "ConfigMap", true, false},
		{"v1", "namespaces", "Namespace", false, true},
		{"apps/v1", "deployments", "Deployment", true, true},
		{thingAPI, "things", "Thing", true, true},
	}
	for _, c := range cases {
		got, err := table.Lookup(t.Context(), c.apiVersion, c.resource)
		if err != nil || got.GroupVersionKind.Kind != c.kind || got.Namespaced != c.namespaced || got.HasStatus != c.status {
			t.Errorf("%s of %s: %+v, %v", c.resource, c.apiVersion, got, err)
		}
	}
	for _, wrong := range []struct{ apiVersion, resource string }{{"v1", "configmap"}, {"v9", "pods"}, {thingAPI, "nothings"}} {
		var absent *resources.NotFoundError
		if _, err := table.Lookup(t.Context(), wrong.apiVersion, wrong.resource); !errors.As(err, &absent) {
			t.Errorf("%s of %s: %v", wrong.resource, wrong.apiVersion, err)
		}
	}
	if _, err := table.Lookup(t.Context(), "a/b/c", "x"); err == nil {
		t.Error("a/b/c is taken for an apiVersion")
	}

	// The controller runs beside it.
	f.hooks.Handle("/sync", defaultHook())
	f.composite(nil)
	f.start()
	f.thing("a", object{"count": 1, "value": "x"})
	f.waitChildren("a-", map[string]string{"a-0": "x"})
}
