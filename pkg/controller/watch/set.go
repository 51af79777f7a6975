package watch

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/metacontroller-solo/solo/pkg/logging"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Set is the local copies of one process.
type Set struct {
	client rest.Interface
	log    logr.Logger

	mu sync.Mutex
	// informers that are running. Guarded by mu.
	informers map[key]*informer
}

type key struct {
	kind object.Kind
	Options
}

// Options limit a copy.
type Options struct {
	// LabelSelector, in text form, leaves out objects without certain labels.
	LabelSelector string
	// MetadataOnly leaves out everything but metadata.
	MetadataOnly bool
	// Namespace and Name leave out all objects but one, or with an empty Name all
	// those of other namespaces. Who may list and watch the one object, by
	// resourceNames in a Role, may have this copy.
	Namespace, Name string
}

type informer struct {
	set    *Set
	key    key
	kind   object.Kind
	shared cache.SharedIndexInformer
	stop   context.CancelFunc
	done   chan struct{}
	// users is how many Caches hold it. Guarded by set.mu.
	users int

	// selecting makes indexSelect, once.
	selecting func() error
	// failed is closed at the first failure.
	failed chan struct{}

	mu sync.Mutex
	// failure is the last error of the list or watch. Guarded by mu.
	failure error
}

// NewSet makes an empty set. The client sends and returns JSON.
func NewSet(client rest.Interface, log logr.Logger) *Set {
	return &Set{client: client, log: log, informers: map[key]*informer{}}
}

// Acquire returns the copy of a kind, which starts to fill if it is the first
// use. The Cache must be released.
func (s *Set) Acquire(kind object.Kind, options Options) *Cache {
	key := key{kind: kind, Options: options}
	s.mu.Lock()
	defer s.mu.Unlock()
	running := s.informers[key]
	if running == nil {
		running = s.start(key)
		s.informers[key] = running
	}
	running.users++
	return &Cache{informer: running}
}

func (s *Set) start(key key) *informer {
	ctx, stop := context.WithCancel(context.Background())
	started := &informer{set: s, key: key, kind: key.kind, stop: stop, done: make(chan struct{}), failed: make(chan struct{})}
	description := key.kind.GroupVersionResource().String()
	started.shared = cache.NewSharedIndexInformerWithOptions(
		&source{client: s.client, kind: key.kind, options: key.Options}, nil,
		cache.SharedIndexInformerOptions{Indexers: indexers, ObjectDescription: description})
	log := s.log.WithValues(logging.KeyResource, description)
	started.selecting = sync.OnceValue(func() error { return started.shared.AddIndexers(selectIndexer) })
	if key.Name != "" {
		log = log.WithValues(logging.KeyNamespace, key.Namespace, logging.KeyName, key.Name)
	}
	// An informer that was not started takes both.
	_ = started.shared.SetWatchErrorHandlerWithContext(func(_ context.Context, _ *cache.Reflector, err error) {
		if errors.Is(err, io.EOF) || apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			return
		}
		if repeated := started.setError(err); !repeated {
			log.Info("Cannot watch, trying again", "error", err.Error())
		}
	})
	go func() {
		defer close(started.done)
		started.shared.RunWithContext(logr.NewContext(ctx, log))
	}()
	return started
}

// canSelect reports whether there is indexSelect, and makes it at the first call.
// Without it, which is so in a copy that has ended, every object is looked at.
func (i *informer) canSelect() bool { return i.selecting() == nil }

// setError reports whether the error is the same as the last one.
func (i *informer) setError(err error) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.failure == nil {
		close(i.failed)
	}
	repeated := i.failure != nil && i.failure.Error() == err.Error()
	i.failure = err
	return repeated
}

func (i *informer) lastError() error {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.failure
}

func (s *Set) release(held *informer) {
	s.mu.Lock()
	held.users--
	last := held.users == 0
	if last {
		delete(s.informers, held.key)
	}
	s.mu.Unlock()
	if last {
		held.stop()
		<-held.done
	}
}
