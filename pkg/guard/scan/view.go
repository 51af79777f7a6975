package scan

import (
	"context"
	"maps"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
	"github.com/metacontroller-solo/solo/pkg/logging"
)

// Cluster is what a Scanner reads from: the API server itself, no cache.
type Cluster interface {
	client.Reader
	RESTMapper() meta.RESTMapper
	Watch(ctx context.Context, list client.ObjectList, options ...client.ListOption) (watch.Interface, error)
}

// view is what is kept of some sources.
type view struct{ sources []*watched }

// watched is one source and what is kept of it.
type watched struct {
	source

	mutex sync.Mutex // guards all below
	kept  map[client.ObjectKey]any
	// synced says that everything was looked at once, or cannot be.
	synced bool
	// unread is why it cannot be read; empty if it can.
	unread string
}

func newView(sources []source) *view {
	v := &view{}
	for _, s := range sources {
		v.sources = append(v.sources, &watched{source: s})
	}
	return v
}

// follow keeps the view up to date until ctx ends. changed is called after each
// change of what is kept; it must not block.
func (v *view) follow(ctx context.Context, cluster Cluster, changed func()) {
	var group sync.WaitGroup
	for _, w := range v.sources {
		group.Go(func() { w.follow(ctx, cluster, changed) })
	}
	group.Wait()
}

// once looks at everything once.
func (v *view) once(ctx context.Context, reader client.Reader) error {
	for _, w := range v.sources {
		kept, _, err := w.source.kept(ctx, reader)
		unread, ok := unreadable(err)
		if err != nil && !ok {
			return err
		}
		w.set(kept, unread)
	}
	return nil
}

// unreadable says why a source cannot be read, where trying again at once would
// not help. A kind that is not served has no objects: that is no reason.
func unreadable(err error) (why string, ok bool) {
	switch {
	case err == nil:
		return "", true
	case meta.IsNoMatchError(err), apierrors.IsNotFound(err):
		return "", true
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return err.Error(), true
	}
	return "", false
}

// read returns a copy of what is kept of a source.
func (w *watched) read() (kept map[client.ObjectKey]any, synced bool, unread string) {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	return maps.Clone(w.kept), w.synced, w.unread
}

// set replaces what is kept and says whether that changed anything.
func (w *watched) set(kept map[client.ObjectKey]any, unread string) bool {
	w.mutex.Lock()
	defer w.mutex.Unlock()
	changed := !w.synced || w.unread != unread || !reflect.DeepEqual(w.kept, kept)
	w.kept, w.synced, w.unread = kept, true, unread
	return changed
}

// apply takes one event and says whether that changed anything.
func (w *watched) apply(event watch.EventType, object client.Object) bool {
	fact, ok := w.keep(object)
	key := client.ObjectKeyFromObject(object)
	w.mutex.Lock()
	defer w.mutex.Unlock()
	before, had := w.kept[key]
	if !ok || event == watch.Deleted {
		delete(w.kept, key)
		return had
	}
	w.kept[key] = fact
	return !had || !reflect.DeepEqual(before, fact)
}

// Times between two tries of a source.
const (
	retryMin = time.Second
	retryMax = 10 * time.Second
	// watchMin and watchMax bound how long one watch lasts, so that one that died
	// unnoticed is begun again.
	watchMin = 5 * time.Minute
	watchMax = 10 * time.Minute
)

// follow lists a source and watches it from there; it lists again when the watch
// cannot go on.
func (w *watched) follow(ctx context.Context, cluster Cluster, changed func()) {
	logger := log.FromContext(ctx).WithValues(logging.KeyResource, w.what)
	wait := retryMin
	for ctx.Err() == nil {
		kept, version, err := w.source.kept(ctx, cluster)
		unread, settled := unreadable(err)
		if settled && w.set(kept, unread) {
			changed()
		}
		if err != nil {
			if ctx.Err() == nil && !meta.IsNoMatchError(err) {
				logger.Info("Cannot read what is to be scanned; trying again", logging.KeyReason, err.Error())
			}
			pause(ctx, wait)
			wait = min(2*wait, retryMax)
			continue
		}
		wait = retryMin
		w.watch(ctx, cluster, version, changed)
		pause(ctx, retryMin)
	}
}

// watch takes events from a version on, until the source must be listed again.
func (w *watched) watch(ctx context.Context, cluster Cluster, version string, changed func()) {
	for ctx.Err() == nil {
		list, err := w.list()
		if err != nil {
			return
		}
		lasts := int64((watchMin + rand.N(watchMax-watchMin)).Seconds()) //nolint:gosec // Only spreads the load.
		options := &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: version, AllowWatchBookmarks: true, TimeoutSeconds: &lasts}}
		for _, option := range w.options {
			option.ApplyToList(options)
		}
		events, err := cluster.Watch(ctx, list, options)
		switch {
		case err == nil:
		case isStatus(err):
			// The API server has answered: only a list tells what to do.
			return
		default:
			pause(ctx, retryMin)
			continue
		}
		more := false
		version, more = w.take(ctx, events, version, changed)
		events.Stop()
		if !more {
			return
		}
		pause(ctx, retryMin)
	}
}

func isStatus(err error) bool { return apierrors.ReasonForError(err) != metav1.StatusReasonUnknown }

// take takes the events of one watch. It returns the version to go on from, and
// whether that is possible.
func (w *watched) take(ctx context.Context, events watch.Interface, version string, changed func()) (string, bool) {
	for {
		select {
		case <-ctx.Done():
			return version, false
		case event, open := <-events.ResultChan():
			if !open {
				return version, true
			}
			object, ok := event.Object.(client.Object)
			if event.Type == watch.Error || !ok {
				return version, false
			}
			version = object.GetResourceVersion()
			if event.Type != watch.Bookmark && w.apply(event.Type, object) {
				changed()
			}
		}
	}
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// seen is what a view knows at one moment.
type seen struct {
	pods      []inspect.Pod
	workloads []inspect.Workload
	// admission are the installed objects of the guard, by their sources' objects.
	admission map[inspect.Object]map[string]any
	unread    []inspect.Unread
	// synced says whether everything was looked at.
	synced bool
}

// with adds what another view knows.
func (s seen) with(other seen) seen {
	other.admission = s.admission
	other.unread = append(s.unread, other.unread...)
	return other
}

func (v *view) seen() seen {
	s := seen{admission: map[inspect.Object]map[string]any{}, synced: true}
	for _, w := range v.sources {
		kept, synced, unread := w.read()
		s.synced = s.synced && synced
		if unread != "" {
			s.unread = append(s.unread, inspect.Unread{What: w.what, Why: unread})
		}
		if w.admission != nil {
			for _, fact := range kept {
				s.admission[*w.admission] = fact.(map[string]any)
			}
			continue
		}
		for _, fact := range kept {
			switch fact := fact.(type) {
			case inspect.Pod:
				s.pods = append(s.pods, fact)
			case inspect.Workload:
				s.workloads = append(s.workloads, fact)
			}
		}
	}
	return s
}
