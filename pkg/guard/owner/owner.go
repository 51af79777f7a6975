// Package owner follows controller owner references upwards in the cluster:
//
//	Pod's reference ─> ReplicaSet (live, uid compared) ─> Deployment (the same)
//
// Anyone can write an owner reference, so that only what exists under its uid
// counts. Nothing that decides calls this: it reads, and may take a moment.
package owner

import (
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilcache "k8s.io/apimachinery/pkg/util/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/guard/audit"
)

const (
	// longest is how many owners a chain has at most: a Job of a CronJob, a
	// ReplicaSet of a Deployment, and one to spare.
	longest = 3
	// remembered and lifetime bound the cache of chains.
	remembered = 1024
	lifetime   = time.Minute
	// patience bounds one read; pause is how long nothing is read after one took
	// longer.
	patience = 500 * time.Millisecond
	pause    = 10 * time.Second
)

// kinds are those that are followed, by the plural names of their resources:
// Kubernetes' own that make Pods, or make what makes them.
var kinds = map[string]schema.GroupVersionKind{
	"statefulsets":           {Group: "apps", Version: "v1", Kind: "StatefulSet"},
	"deployments":            {Group: "apps", Version: "v1", Kind: "Deployment"},
	"replicasets":            {Group: "apps", Version: "v1", Kind: "ReplicaSet"},
	"daemonsets":             {Group: "apps", Version: "v1", Kind: "DaemonSet"},
	"jobs":                   {Group: "batch", Version: "v1", Kind: "Job"},
	"cronjobs":               {Group: "batch", Version: "v1", Kind: "CronJob"},
	"replicationcontrollers": {Version: "v1", Kind: "ReplicationController"},
}

// KindOf is the kind of a resource that is followed.
func KindOf(resource string) (schema.GroupVersionKind, bool) {
	kind, ok := kinds[resource]
	return kind, ok
}

// Chains finds chains of owners. It is safe for concurrent use.
type Chains struct {
	live  client.Reader
	cache *utilcache.LRUExpireCache

	// mutex guards paused. It is not held while anything is read.
	mutex  sync.Mutex
	paused time.Time
}

// New makes a Chains that reads from the API server, not from a cache.
func New(live client.Reader) *Chains {
	return &Chains{live: live, cache: utilcache.NewLRUExpireCache(remembered)}
}

type key struct {
	namespace string
	owner     audit.Owner
}

// Of returns an owner and the owners above it, as far as they exist. It is empty
// if the first one does not, cannot be read, or is of a kind that is not followed.
func (c *Chains) Of(namespace string, first audit.Owner) []audit.Owner {
	k := key{namespace, first}
	if known, ok := c.cache.Get(k); ok {
		return known.([]audit.Owner)
	}
	var chain []audit.Owner
	for next := &first; next != nil && len(chain) < longest; {
		object := c.read(namespace, *next)
		if object == nil {
			break
		}
		chain = append(chain, *next)
		reference := metav1.GetControllerOfNoCopy(object)
		if reference == nil {
			break
		}
		next = &audit.Owner{APIVersion: reference.APIVersion, Kind: reference.Kind, Name: reference.Name, UID: reference.UID}
	}
	c.cache.Add(k, chain, lifetime)
	return chain
}

// read reads the metadata of an owner; nil if there is none under that uid.
func (c *Chains) read(namespace string, o audit.Owner) *metav1.PartialObjectMetadata {
	kind, ok := followed(o)
	if !ok || c.pausing() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(kind)
	err := c.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: o.Name}, object)
	if err != nil {
		if !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			c.rest()
		}
		return nil
	}
	if object.UID != o.UID {
		return nil
	}
	return object
}

func followed(o audit.Owner) (schema.GroupVersionKind, bool) {
	for _, kind := range kinds {
		if apiVersion, name := kind.ToAPIVersionAndKind(); apiVersion == o.APIVersion && name == o.Kind {
			return kind, true
		}
	}
	return schema.GroupVersionKind{}, false
}

func (c *Chains) pausing() bool {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	return time.Now().Before(c.paused)
}

// rest keeps an API server that does not answer from holding up those that wait
// for chains.
func (c *Chains) rest() {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.paused = time.Now().Add(pause)
}
