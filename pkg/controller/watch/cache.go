package watch

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// Names of the indexes.
const (
	indexUID    = "uid"
	indexOwner  = "owner"
	indexOrphan = "orphan"
)

// anyOrphan is the key under which indexOrphan has every object that nobody
// controls. No label is like it.
const anyOrphan = "*"

var indexers = cache.Indexers{
	indexUID: func(stored any) ([]string, error) {
		return []string{string(stored.(*object.Object).UID())}, nil
	},
	// indexOwner finds the children of a parent by the parent's uid.
	indexOwner: func(stored any) ([]string, error) {
		if owner := object.ControllerOf(stored.(*object.Object)); owner != nil {
			return []string{string(owner.UID)}, nil
		}
		return nil, nil
	},
	// indexOrphan finds objects that nobody controls by any one label.
	indexOrphan: func(stored any) ([]string, error) {
		orphan := stored.(*object.Object)
		if object.ControllerOf(orphan) != nil {
			return nil, nil
		}
		keys := make([]string, 0, len(orphan.Labels())+1)
		keys = append(keys, anyOrphan)
		for label, value := range orphan.Labels() {
			keys = append(keys, label+"="+value)
		}
		return keys, nil
	},
}

// Cache is one user's hold on the local copy of one kind.
type Cache struct {
	informer *informer
	release  sync.Once

	mu sync.Mutex
	// registrations are this user's handlers. Guarded by mu.
	registrations []cache.ResourceEventHandlerRegistration
}

// Kind of the objects.
func (c *Cache) Kind() object.Kind { return c.informer.kind }

// WaitForSync returns nil once the first list is complete. If ctx ends before,
// the error is the last one that the API server gave, or ctx's.
func (c *Cache) WaitForSync(ctx context.Context) error {
	select {
	case <-c.informer.shared.HasSyncedChecker().Done():
		return nil
	case <-ctx.Done():
		if err := c.informer.lastError(); err != nil {
			return err
		}
		return ctx.Err()
	}
}

// WaitForSyncOrFailure is WaitForSync, but it also returns as soon as the API
// server has refused the list or the watch, though that is tried again.
func (c *Cache) WaitForSyncOrFailure(ctx context.Context) error {
	synced := c.informer.shared.HasSyncedChecker().Done()
	select {
	case <-synced:
	case <-ctx.Done():
		return c.WaitForSync(ctx)
	case <-c.informer.failed:
		select {
		case <-synced:
		default:
			return c.informer.lastError()
		}
	}
	return nil
}

// Get returns an object, or nil if there is none.
func (c *Cache) Get(namespace, name string) *object.Object {
	key := name
	if namespace != "" {
		key = namespace + "/" + name
	}
	stored, exists, err := c.informer.shared.GetIndexer().GetByKey(key)
	if err != nil || !exists {
		return nil
	}
	return stored.(*object.Object)
}

// ByUID returns the object with this uid, or nil.
func (c *Cache) ByUID(uid types.UID) *object.Object {
	for _, found := range c.byIndex(indexUID, string(uid)) {
		return found
	}
	return nil
}

// ByOwner returns the objects whose controller has this uid.
func (c *Cache) ByOwner(uid types.UID) []*object.Object {
	return c.byIndex(indexOwner, string(uid))
}

// Orphans returns the objects that nobody controls, in one namespace or with an
// empty one in all of them, that selector matches. A selector that asks for the
// value of a label is answered by an index.
func (c *Cache) Orphans(namespace string, selector labels.Selector) []*object.Object {
	key := anyOrphan
	requirements, _ := selector.Requirements()
	for _, requirement := range requirements {
		operator := requirement.Operator()
		if operator != selection.Equals && operator != selection.DoubleEquals && operator != selection.In {
			continue
		}
		if values := requirement.ValuesUnsorted(); len(values) == 1 {
			key = requirement.Key() + "=" + values[0]
			break
		}
	}
	var found []*object.Object
	for _, orphan := range c.byIndex(indexOrphan, key) {
		if (namespace == "" || orphan.Namespace() == namespace) && selector.Matches(labels.Set(orphan.Labels())) {
			found = append(found, orphan)
		}
	}
	return found
}

// List returns all objects.
func (c *Cache) List() []*object.Object {
	stored := c.informer.shared.GetIndexer().List()
	objects := make([]*object.Object, 0, len(stored))
	for _, one := range stored {
		objects = append(objects, one.(*object.Object))
	}
	return objects
}

func (c *Cache) byIndex(index, key string) []*object.Object {
	stored, err := c.informer.shared.GetIndexer().ByIndex(index, key)
	if err != nil {
		return nil
	}
	objects := make([]*object.Object, 0, len(stored))
	for _, one := range stored {
		objects = append(objects, one.(*object.Object))
	}
	return objects
}

// Seen reports whether the copy is at least as new as a resource version that
// the API server gave for an object of this kind. Of one that it cannot compare
// it says that it was seen.
func (c *Cache) Seen(resourceVersion string) bool {
	latest := c.informer.shared.GetIndexer().LastStoreSyncResourceVersion()
	if latest == "" {
		return false
	}
	order, err := resourceversion.CompareResourceVersion(latest, resourceVersion)
	return err != nil || order >= 0
}

// Handle adds a handler, which is told of each change after the copy has it.
// Before is nil for a new object, after is nil for one that is gone; the last
// known state of that one is in before. Initial is true for what was there when
// the handler was added. It is called from one goroutine and must not block.
func (c *Cache) Handle(handler func(before, after *object.Object, initial bool)) error {
	registration, err := c.informer.shared.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(added any, initial bool) { handler(nil, stateOf(added), initial) },
		UpdateFunc: func(before, after any) {
			handler(stateOf(before), stateOf(after), false)
		},
		DeleteFunc: func(deleted any) {
			if before := stateOf(deleted); before != nil {
				handler(before, nil, false)
			}
		},
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.registrations = append(c.registrations, registration)
	return nil
}

// stateOf is the object in what an informer hands out: the object, or the stone
// over one whose deletion was not seen.
func stateOf(stored any) *object.Object {
	switch stored := stored.(type) {
	case *object.Object:
		return stored
	case cache.DeletedFinalStateUnknown:
		state, _ := stored.Obj.(*object.Object)
		return state
	}
	return nil
}

// Release removes this user's handlers, and ends the copy if nobody else uses it.
// No handler runs any more when it returns.
func (c *Cache) Release() {
	c.release.Do(func() {
		c.mu.Lock()
		registrations := c.registrations
		c.registrations = nil
		c.mu.Unlock()
		for _, registration := range registrations {
			_ = cache.ShutDownEventHandler(c.informer.shared, registration)
		}
		c.informer.set.release(c.informer)
	})
}
