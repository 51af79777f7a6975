package node

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	corev1informers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corev1listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
)

// watchRetry is the pause between two tries to reach the API server. It does not grow, as a reflector's own does, so that a node sees
// soon after a cut what happened meanwhile.
const watchRetry = 500 * time.Millisecond

// podInformer is the informer of the node's own Pods: the Node authorizer allows listing them by this field only.
//
// It makes up for two cases that VK's PodController overlooks, both of which follow a cut: a Pod that went away while nobody watched comes
// as a tombstone, and one that was replaced by a namesake comes as an update from one uid to another. Handlers added here see a deletion
// of the Pod, and for a namesake also its addition.
type podInformer struct {
	cache.SharedIndexInformer
}

var _ corev1informers.PodInformer = podInformer{}

func newPodInformer(client kubernetes.Interface, node string) podInformer {
	selector := fields.OneTermEqualSelector("spec.nodeName", node).String()
	return podInformer{cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.FieldSelector = selector
			return retry(ctx, func() (runtime.Object, error) { return client.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options) })
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.FieldSelector = selector
			return retry(ctx, func() (watch.Interface, error) { return client.CoreV1().Pods(metav1.NamespaceAll).Watch(ctx, options) })
		},
	}, &corev1.Pod{}, 0, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})}
}

// retry calls until it works or the API server itself answers with an error.
func retry[T any](ctx context.Context, call func() (T, error)) (T, error) {
	for {
		result, err := call()
		if err == nil || isAnswer(err) {
			return result, err
		}
		timer := time.NewTimer(watchRetry)
		select {
		case <-ctx.Done():
			timer.Stop()
			return result, ctx.Err()
		case <-timer.C:
		}
	}
}

// Informer implements corev1informers.PodInformer.
func (i podInformer) Informer() cache.SharedIndexInformer { return i }

// Lister implements corev1informers.PodInformer.
func (i podInformer) Lister() corev1listers.PodLister {
	return corev1listers.NewPodLister(i.GetIndexer())
}

// AddEventHandler adds a handler that sees every Pod come and go by its uid.
func (i podInformer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return i.SharedIndexInformer.AddEventHandler(byUID{handler})
}

// byUID is a handler for which an object is its uid, not its name.
type byUID struct{ cache.ResourceEventHandler }

// OnUpdate makes a deletion and an addition of a change of uid.
func (h byUID) OnUpdate(before, after any) {
	old, ok1 := before.(*corev1.Pod)
	pod, ok2 := after.(*corev1.Pod)
	if ok1 && ok2 && old.UID != pod.UID {
		h.ResourceEventHandler.OnDelete(old)
		h.ResourceEventHandler.OnAdd(pod, false)
		return
	}
	h.ResourceEventHandler.OnUpdate(before, after)
}

// OnDelete unpacks tombstones.
func (h byUID) OnDelete(object any) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	h.ResourceEventHandler.OnDelete(object)
}

// isAnswer tells an error that the API server gave from one of reaching it.
func isAnswer(err error) bool {
	var status apierrors.APIStatus
	return errors.As(err, &status)
}
