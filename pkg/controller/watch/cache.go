package watch

import (
	"context"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/client-go/tools/cache"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// Names of the indexes.
const (
	indexOwner  = "owner"
	indexOrphan = "orphan"
	indexSelect = "select"
)

// anyOrphan is the key under which indexOrphan has every object that nobody
// controls. No label is like it.
const anyOrphan = "*"

var indexers = cache.Indexers{
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

// selectIndexer finds objects by name, by namespace, and by any one label, in all
// namespaces and in one. Not many kinds are asked for that, so it is made for a
// kind when it is needed first.
var selectIndexer = cache.Indexers{
	indexSelect: func(stored any) ([]string, error) {
		o := stored.(*object.Object)
		keys := make([]string, 0, 2+2*len(o.Labels()))
		keys = append(keys, nameKey(o.Name()))
		if o.Namespace() != "" {
			keys = append(keys, namespaceKey(o.Namespace()))
		}
		for label, value := range o.Labels() {
			keys = append(keys, labelKey("", label, value))
			if o.Namespace() != "" {
				keys = append(keys, labelKey(o.Namespace(), label, value))
			}
		}
		return keys, nil
	},
}

// Keys of indexSelect. No namespace or name has an equals sign in it.
func nameKey(name string) string           { return "name=" + name }
func namespaceKey(namespace string) string { return "namespace=" + namespace }
func labelKey(namespace, label, value string) string {
	return "label=" + namespace + "=" + label + "=" + value
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

// State says whether the first list is complete, and if it is not, the last error
// that the API server gave, if any.
func (c *Cache) State() (full bool, err error) {
	if c.informer.shared.HasSynced() {
		return true, nil
	}
	return false, c.informer.lastError()
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

// ByOwner returns the objects whose controller has this uid.
func (c *Cache) ByOwner(uid types.UID) []*object.Object {
	return c.byIndex(indexOwner, string(uid))
}

// Orphans returns the objects that nobody controls, in one namespace or with an
// empty one in all of them, that selector matches. A selector that asks for the
// value of a label is answered by an index.
func (c *Cache) Orphans(namespace string, selector labels.Selector) []*object.Object {
	key := anyOrphan
	if label, values := object.RequiredLabel(selector); len(values) == 1 {
		key = label + "=" + values[0]
	}
	var found []*object.Object
	for _, orphan := range c.byIndex(indexOrphan, key) {
		if (namespace == "" || orphan.Namespace() == namespace) && selector.Matches(labels.Set(orphan.Labels())) {
			found = append(found, orphan)
		}
	}
	return found
}

// Named returns the objects of this name in all namespaces.
func (c *Cache) Named(name string) []*object.Object {
	if c.informer.canSelect() {
		return c.byIndex(indexSelect, nameKey(name))
	}
	return slices.DeleteFunc(c.List(), func(o *object.Object) bool { return o.Name() != name })
}

// Select returns the objects, in one namespace or with an empty one in all of
// them, that selector matches. Only a selector that asks for the value of no
// label in all namespaces makes it look at every object.
func (c *Cache) Select(namespace string, selector labels.Selector) []*object.Object {
	var candidates []*object.Object
	label, values := object.RequiredLabel(selector)
	switch {
	case len(values) == 0 && namespace == "" || !c.informer.canSelect():
		candidates = c.List()
	case len(values) == 0:
		candidates = c.byIndex(indexSelect, namespaceKey(namespace))
	default:
		for _, value := range slices.Compact(slices.Sorted(slices.Values(values))) {
			candidates = append(candidates, c.byIndex(indexSelect, labelKey(namespace, label, value))...)
		}
	}
	return slices.DeleteFunc(candidates, func(o *object.Object) bool {
		return namespace != "" && o.Namespace() != namespace || !selector.Matches(labels.Set(o.Labels()))
	})
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
