package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
)

const (
	// pushRetry is the pause after a failed write. It does not grow: after a cut the API is to learn soon.
	pushRetry = 500 * time.Millisecond
	// callLimit bounds one request.
	callLimit = 10 * time.Second
)

// push writes the status whenever it changes, and removes the object of a Pod that is being deleted once its last process is gone. It
// returns when the API has no such Pod any more or at the end of ctx.
func (p *Pod) push(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.dirty:
		}
		for {
			over, err := p.pushOnce(ctx)
			if over {
				p.removeFiles()
				return
			}
			if err == nil {
				break
			}
			p.log.V(1).Info("Cannot write the status of a Pod yet", "error", err.Error())
			timer := p.config.Clock.NewTimer(pushRetry)
			select {
			case <-ctx.Done():
				timer.Stop()
				return
			case <-timer.C():
			}
		}
	}
}

// pushOnce is true when nothing is left to do for the Pod, ever.
func (p *Pod) pushOnce(ctx context.Context) (bool, error) {
	// Looked at before the status is computed: a status made after the end is the last one.
	gone := isClosed(p.gone)
	p.mu.Lock()
	if gone && p.ending {
		p.terminated = true
	}
	removed, cached := p.removed, p.pod
	status := p.status(cached.Status)
	p.mu.Unlock()
	if removed {
		return gone, nil
	}
	deleting := cached.DeletionTimestamp != nil && gone
	if !deleting && equality.Semantic.DeepEqual(cached.Status, status) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	pods := p.config.Client.CoreV1().Pods(p.key.Namespace)
	live, err := pods.Get(ctx, p.key.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && live.UID != p.uid:
		return p.lost(gone), nil
	case err != nil:
		return false, fmt.Errorf("cannot get pod %q: %w", p.key, err)
	}
	p.mu.Lock()
	status = p.status(live.Status)
	p.mu.Unlock()
	patch, err := statusPatch(p.uid, live.Status, status)
	if err != nil {
		return false, err
	}
	if patch != nil {
		_, err := pods.Patch(ctx, p.key.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		switch {
		case apierrors.IsNotFound(err), apierrors.IsConflict(err):
			// Removed, or another Pod by now; the next look tells.
			return false, fmt.Errorf("cannot patch status of pod %q: %w", p.key, err)
		case err != nil:
			return false, fmt.Errorf("cannot patch status of pod %q: %w", p.key, err)
		}
	}
	if live.DeletionTimestamp == nil || !gone {
		return false, nil
	}
	options := metav1.NewDeleteOptions(0)
	options.Preconditions = metav1.NewUIDPreconditions(string(p.uid))
	if err := pods.Delete(ctx, p.key.Name, *options); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return false, fmt.Errorf("cannot remove pod %q: %w", p.key, err)
	}
	// A finalizer may hold the object; it is this node's no more in either case.
	return true, nil
}

// lost takes in that the API has no such Pod: what still runs must end.
func (p *Pod) lost(gone bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.removed = true
	p.end(gracePeriod(p.pod))
	return gone
}

// statusPatch is nil if nothing changed. It holds the uid, so that a namesake is never patched.
func statusPatch(uid types.UID, old, updated corev1.PodStatus) ([]byte, error) {
	before, err := json.Marshal(corev1.Pod{Status: old})
	if err != nil {
		return nil, fmt.Errorf("cannot encode pod status: %w", err)
	}
	after, err := json.Marshal(corev1.Pod{Status: updated})
	if err != nil {
		return nil, fmt.Errorf("cannot encode pod status: %w", err)
	}
	if bytes.Equal(before, after) {
		return nil, nil
	}
	after, err = json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Status: updated})
	if err != nil {
		return nil, fmt.Errorf("cannot encode pod status: %w", err)
	}
	patch, err := strategicpatch.CreateTwoWayMergePatch(before, after, corev1.Pod{})
	if err != nil {
		return nil, fmt.Errorf("cannot make patch of pod status: %w", err)
	}
	return patch, nil
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
