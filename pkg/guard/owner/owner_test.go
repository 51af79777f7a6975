package owner

import (
	"context"
	"errors"
	"slices"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/guard/audit"
)

// shelf is a reader of metadata by kind and name; the integration suite reads from
// a real API server.
type shelf struct {
	client.Reader
	objects map[string]metav1.ObjectMeta
	err     error
	reads   []string
}

func (s *shelf) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	name := object.GetObjectKind().GroupVersionKind().Kind + "/" + key.Name
	s.reads = append(s.reads, name)
	if s.err != nil {
		return s.err
	}
	found, ok := s.objects[name]
	if !ok {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	object.(*metav1.PartialObjectMetadata).ObjectMeta = found
	return nil
}

func ref(apiVersion, kind, name, uid string) audit.Owner {
	return audit.Owner{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID(uid)}
}

func ownedBy(uid string, o audit.Owner) metav1.ObjectMeta {
	return metav1.ObjectMeta{UID: types.UID(uid), OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "ConfigMap", Name: "not the controller", UID: "x"},
		{APIVersion: o.APIVersion, Kind: o.Kind, Name: o.Name, UID: o.UID, Controller: ptr.To(true)},
	}}
}

func TestChains(t *testing.T) {
	set, job := ref("apps/v1", "ReplicaSet", "web-1", "rs"), ref("batch/v1", "Job", "tick-1", "job")
	web, tick := ref("apps/v1", "Deployment", "web", "d"), ref("batch/v1", "CronJob", "tick", "cj")
	rollout := ref("argoproj.io/v1alpha1", "Rollout", "web", "ro")
	objects := map[string]metav1.ObjectMeta{
		"ReplicaSet/web-1": ownedBy("rs", web), "Deployment/web": {UID: "d"},
		"Job/tick-1": ownedBy("job", tick), "CronJob/tick": {UID: "cj"},
		"ReplicaSet/custom": ownedBy("custom", rollout),
		"ReplicaSet/stale":  ownedBy("stale", ref("apps/v1", "Deployment", "web", "another")),
		"ReplicaSet/self":   ownedBy("self", ref("apps/v1", "ReplicaSet", "self", "self")),
	}
	custom, stale, self := ref("apps/v1", "ReplicaSet", "custom", "custom"), ref("apps/v1", "ReplicaSet", "stale", "stale"), ref("apps/v1", "ReplicaSet", "self", "self")
	tests := map[string]struct {
		first audit.Owner
		want  []audit.Owner
		reads int
	}{
		"a ReplicaSet's Deployment":     {set, []audit.Owner{set, web}, 2},
		"a Job's CronJob":               {job, []audit.Owner{job, tick}, 2},
		"the top":                       {web, []audit.Owner{web}, 1},
		"another uid":                   {ref("apps/v1", "ReplicaSet", "web-1", "forged"), nil, 1},
		"not there":                     {ref("apps/v1", "StatefulSet", "gone", "x"), nil, 1},
		"a custom kind is not read":     {rollout, nil, 0},
		"nor in the middle":             {custom, []audit.Owner{custom}, 1},
		"another version":               {ref("apps/v2", "ReplicaSet", "web-1", "rs"), nil, 0},
		"an owner that was made anew":   {stale, []audit.Owner{stale}, 2},
		"one that owns itself has ends": {self, []audit.Owner{self, self, self}, 3},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			reader := &shelf{objects: objects}
			chains := New(reader)
			for range 2 {
				if got := chains.Of("n", test.first); !slices.Equal(got, test.want) {
					t.Fatalf("got %+v, want %+v", got, test.want)
				}
			}
			if len(reader.reads) != test.reads {
				t.Fatalf("read %v, want %d: the second time from memory", reader.reads, test.reads)
			}
		})
	}
}

// TestPause has an API server that fails: it is not asked again at once.
func TestPause(t *testing.T) {
	reader := &shelf{err: errors.New("connection refused")}
	chains := New(reader)
	for _, uid := range []string{"a", "b", "c"} {
		if got := chains.Of("n", ref("apps/v1", "Deployment", "web", uid)); got != nil {
			t.Fatalf("got %+v", got)
		}
	}
	if len(reader.reads) != 1 {
		t.Fatalf("read %v", reader.reads)
	}
	reader = &shelf{err: apierrors.NewForbidden(schema.GroupResource{}, "web", errors.New("no"))}
	chains = New(reader)
	for _, uid := range []string{"a", "b"} {
		chains.Of("n", ref("apps/v1", "Deployment", "web", uid))
	}
	if len(reader.reads) != 2 {
		t.Fatalf("read %v: what is forbidden says nothing about the next", reader.reads)
	}
}
