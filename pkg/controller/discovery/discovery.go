// Package discovery answers what a plural resource name of a group and version
// is: its kind, its scope, and whether it has a status subresource.
//
//	API server ── Refresh ──> table ── Lookup ──> object.Kind
//	     └── CRDs, APIServices change ──> Refresh ──> Changed
//
// The table is read as a whole, by a client of its own so that nothing else
// waits behind it. A group that cannot be read keeps what was known of it, and
// hides no other.
package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/utils/clock"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// statusSubresource is what follows the name of a resource in the list of an API
// server's resources if it has a status of its own.
const statusSubresource = "/status"

// minRefresh is the shortest time between two reads that a look-up may cause.
const minRefresh = time.Second

// Resource is what is known of one resource.
type Resource struct {
	object.Kind
	// HasStatus says that there is a status subresource.
	HasStatus bool
}

// NotFoundError says that the API server does not serve a resource.
type NotFoundError struct {
	APIVersion string
	Resource   string
}

func (e *NotFoundError) Error() string {
	return fmt.Sprintf("the API server does not serve resource %q in %q; is its CRD installed, with this version served?", e.Resource, e.APIVersion)
}

// UnavailableError says that the API server cannot tell now what it serves of a
// group and version: the server behind it does not answer.
type UnavailableError struct {
	APIVersion string
	Err        error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("cannot read the resources of %q: %v", e.APIVersion, e.Err)
}

func (e *UnavailableError) Unwrap() error { return e.Err }

// Resources is the table.
type Resources struct {
	client discovery.AggregatedDiscoveryInterfaceWithContext
	clock  clock.PassiveClock

	// reading lets one goroutine read at a time.
	reading chan struct{}

	mu sync.RWMutex
	// table by group, version and plural name. Guarded by mu.
	table map[schema.GroupVersion]map[string]Resource
	// failed are the group versions that could not be read last time. Guarded
	// by mu.
	failed map[schema.GroupVersion]error
	// readAt is when the table was read. Guarded by mu.
	readAt time.Time
}

// New makes an empty table.
func New(client discovery.AggregatedDiscoveryInterfaceWithContext, clock clock.PassiveClock) *Resources {
	return &Resources{client: client, clock: clock, reading: make(chan struct{}, 1)}
}

// Lookup finds the resource with this plural name. What is not in the table may
// have appeared since it was read, so it is read again before the answer is a
// *NotFoundError, if that was not done a moment ago. For a resource of a group
// that could not be read it is an *UnavailableError.
func (r *Resources) Lookup(ctx context.Context, apiVersion, resource string) (Resource, error) {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return Resource{}, fmt.Errorf("apiVersion %q is not group/version: %w", apiVersion, err)
	}
	if found, ok := r.get(gv, resource); ok {
		return found, nil
	}
	r.mu.RLock()
	stale := r.clock.Since(r.readAt) >= minRefresh
	r.mu.RUnlock()
	if stale {
		if _, err := r.Refresh(ctx); err != nil {
			return Resource{}, err
		}
		if found, ok := r.get(gv, resource); ok {
			return found, nil
		}
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	if err := r.failed[gv]; err != nil {
		return Resource{}, &UnavailableError{APIVersion: apiVersion, Err: err}
	}
	return Resource{}, &NotFoundError{APIVersion: apiVersion, Resource: resource}
}

func (r *Resources) get(gv schema.GroupVersion, resource string) (Resource, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	found, ok := r.table[gv][resource]
	return found, ok
}

// Refresh reads the table again and reports whether anything in it changed.
func (r *Resources) Refresh(ctx context.Context) (bool, error) {
	select {
	case r.reading <- struct{}{}:
		defer func() { <-r.reading }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	lists, failed, err := r.read(ctx)
	if err != nil {
		return false, err
	}
	table := make(map[schema.GroupVersion]map[string]Resource, len(lists))
	for gv, list := range lists {
		table[gv] = resourcesOf(gv, list)
	}

	r.mu.Lock()
	defer r.mu.Unlock()
	for gv := range failed {
		if known, ok := r.table[gv]; ok && table[gv] == nil {
			table[gv] = known
		}
	}
	changed := !maps.EqualFunc(r.table, table, maps.Equal[map[string]Resource, map[string]Resource])
	r.table, r.failed, r.readAt = table, failed, r.clock.Now()
	return changed, nil
}

func (r *Resources) read(ctx context.Context) (map[schema.GroupVersion]*metav1.APIResourceList, map[schema.GroupVersion]error, error) {
	groups, lists, failed, err := r.client.GroupsAndMaybeResourcesWithContext(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot read what the API server serves: %w", err)
	}
	if failed == nil {
		failed = map[schema.GroupVersion]error{}
	}
	if lists != nil {
		return lists, failed, nil
	}
	// An API server before 1.30 answers with the groups alone.
	lists = map[schema.GroupVersion]*metav1.APIResourceList{}
	for _, group := range groups.Groups {
		for _, version := range group.Versions {
			gv, err := schema.ParseGroupVersion(version.GroupVersion)
			if err != nil {
				continue
			}
			list, err := r.client.ServerResourcesForGroupVersionWithContext(ctx, version.GroupVersion)
			if err != nil {
				failed[gv] = err
				continue
			}
			lists[gv] = list
		}
	}
	return lists, failed, ctx.Err()
}

// resourcesOf reads the list of one group and version. Subresources are entries
// of that list beside the resources that they belong to.
func resourcesOf(gv schema.GroupVersion, list *metav1.APIResourceList) map[string]Resource {
	withStatus := map[string]bool{}
	for i := range list.APIResources {
		if name, ok := strings.CutSuffix(list.APIResources[i].Name, statusSubresource); ok {
			withStatus[name] = true
		}
	}
	out := map[string]Resource{}
	for i := range list.APIResources {
		entry := &list.APIResources[i]
		if strings.Contains(entry.Name, "/") || !slices.Contains(entry.Verbs, "watch") {
			continue
		}
		out[entry.Name] = Resource{
			Kind:      object.Kind{GroupVersionKind: gv.WithKind(entry.Kind), Resource: entry.Name, Namespaced: entry.Namespaced},
			HasStatus: withStatus[entry.Name],
		}
	}
	return out
}

// settle is when a poke is followed by refreshes, each after the one before.
var settle = [...]time.Duration{200 * time.Millisecond, 800 * time.Millisecond, 2 * time.Second, 5 * time.Second}

// Follow refreshes the table every interval and each time poke is sent to, and
// calls changed after each refresh that found something new. It returns when ctx
// ends.
//
// A poke is followed by more refreshes at growing distance: what the API server
// serves trails the object that made it serve that. Pokes that follow each other
// closely put none of them off: while they last, it is refreshed at the second of
// these distances.
func (r *Resources) Follow(ctx context.Context, timers clock.WithTicker, interval time.Duration, poke <-chan struct{}, changed func(), failed func(error)) {
	next := len(settle)
	refreshed := timers.Now()
	due := refreshed.Add(interval)
	for {
		timer := timers.NewTimer(due.Sub(timers.Now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-poke:
			timer.Stop()
			soon := timers.Now().Add(settle[0])
			if again := refreshed.Add(settle[1]); soon.Before(again) {
				soon = again
			}
			if soon.Before(due) {
				due = soon
			}
			next = 1
			continue
		case <-timer.C():
		}
		found, err := r.Refresh(ctx)
		refreshed = timers.Now()
		due = refreshed.Add(interval)
		if next < len(settle) {
			due = refreshed.Add(min(interval, settle[next]))
			next++
		}
		switch {
		case errors.Is(err, context.Canceled):
		case err != nil:
			failed(err)
		case found:
			changed()
		}
	}
}
