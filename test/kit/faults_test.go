package kit_test

import (
	"context"
	"errors"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationapply "k8s.io/client-go/applyconfigurations/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/test/kit"
)

func TestClientFaults(t *testing.T) {
	cp := kit.Shared(t)
	namespace := kit.Namespace(t, cp.AdminConfig(0))
	direct, err := client.NewWithWatch(cp.AdminConfig(0), client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	faults := kit.NewFaults(direct)
	c := faults.Client()
	broken := errors.New("broken")
	ctx := t.Context()
	object := func(name string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	}

	t.Run("fail", func(t *testing.T) {
		faults.Fail(kit.Call{Verb: kit.VerbCreate, Kind: "ConfigMap", Name: "a"}, 1, broken)
		if err := c.Create(ctx, object("b")); err != nil {
			t.Errorf("another name: %v", err)
		}
		if err := c.Create(ctx, object("a")); !errors.Is(err, broken) {
			t.Errorf("first time: %v", err)
		}
		if err := c.Create(ctx, object("a")); err != nil {
			t.Errorf("it reached the server the first time, or fails twice: %v", err)
		}
	})
	t.Run("lose", func(t *testing.T) {
		faults.Lose(kit.Call{Verb: kit.VerbDelete}, 1, broken)
		if err := c.Delete(ctx, object("a")); !errors.Is(err, broken) {
			t.Errorf("delete: %v", err)
		}
		if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "a"}, object("")); !apierrors.IsNotFound(err) {
			t.Errorf("it did not reach the server: %v", err)
		}
	})
	t.Run("before", func(t *testing.T) {
		faults.Before(kit.Call{Verb: kit.VerbUpdate}, 1, func(ctx context.Context) error {
			theirs := object("b")
			theirs.Data = map[string]string{"k": "theirs"}
			return direct.Update(ctx, theirs)
		})
		ours := object("")
		if err := c.Get(ctx, client.ObjectKey{Namespace: namespace, Name: "b"}, ours); err != nil {
			t.Fatal(err)
		}
		if err := c.Update(ctx, ours); !apierrors.IsConflict(err) {
			t.Errorf("the race was won: %v", err)
		}
	})
	t.Run("subresource", func(t *testing.T) {
		faults.Fail(kit.Call{Verb: kit.VerbUpdate, Subresource: "status"}, kit.Always, broken)
		if err := c.Status().Update(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); !errors.Is(err, broken) {
			t.Errorf("status: %v", err)
		}
		faults.Mend()
		if got := faults.Calls(kit.Call{Kind: "Namespace", Subresource: "status"}); len(got) != 1 || got[0].Name != namespace {
			t.Errorf("calls %v", got)
		}
	})
	t.Run("apply", func(t *testing.T) {
		faults.Fail(kit.Call{Verb: kit.VerbPatch, Kind: "Lease", Namespace: namespace, Name: "l"}, 1, broken)
		lease := coordinationapply.Lease("l", namespace)
		if err := c.Apply(ctx, lease, client.FieldOwner("test")); !errors.Is(err, broken) {
			t.Errorf("first time: %v", err)
		}
		if err := c.Apply(ctx, lease, client.FieldOwner("test")); err != nil {
			t.Errorf("second time: %v", err)
		}
	})
	t.Run("list and watch", func(t *testing.T) {
		faults.Fail(kit.Call{Kind: "LeaseList", Namespace: namespace}, 2, broken)
		if err := c.List(ctx, &coordinationv1.LeaseList{}, client.InNamespace(namespace)); !errors.Is(err, broken) {
			t.Errorf("list: %v", err)
		}
		if _, err := c.Watch(ctx, &coordinationv1.LeaseList{}, client.InNamespace(namespace)); !errors.Is(err, broken) {
			t.Errorf("watch: %v", err)
		}
		if err := c.List(ctx, &coordinationv1.LeaseList{}, client.InNamespace(namespace)); err != nil {
			t.Error(err)
		}
	})
}
