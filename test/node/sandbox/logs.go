package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"

	"github.com/metacontroller-solo/solo/test/node/logfile"
)

// ErrNoSuchContainer and ErrNoLog are answered to requests about what is not there.
var (
	ErrNoSuchContainer = errors.New("the pod has no such container")
	ErrNoLog           = errors.New("the container has no such log")
)

// CopyLog writes the log of a container's present or previous run to w.
func (p *Pod) CopyLog(ctx context.Context, name string, previous bool, w io.Writer, options logfile.Options) error {
	p.mu.Lock()
	var log *logfile.Log
	var run int32
	found := false
	for _, c := range p.containers {
		if c.name == name {
			found, run, log = true, c.record.RestartCount, c.log
			if previous {
				log = c.previous
			}
		}
	}
	p.mu.Unlock()
	if !found {
		return fmt.Errorf("%w: %q", ErrNoSuchContainer, name)
	}
	if log != nil {
		return log.Copy(ctx, w, options)
	}
	if previous {
		run--
	}
	return copyOld(ctx, p.config.Dir, p.uid, name, run, w, options)
}

// CopyOldLog writes the log of a Pod that has ended before the node's start.
func CopyOldLog(ctx context.Context, dir string, pod *corev1.Pod, name string, previous bool, w io.Writer, options logfile.Options) error {
	for _, list := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, status := range list {
			if status.Name != name {
				continue
			}
			run := status.RestartCount
			if previous {
				run--
			}
			return copyOld(ctx, dir, pod.UID, name, run, w, options)
		}
	}
	return fmt.Errorf("%w: %q", ErrNoSuchContainer, name)
}

func copyOld[UID ~string](ctx context.Context, dir string, uid UID, name string, run int32, w io.Writer, options logfile.Options) error {
	err := logfile.CopyFile(ctx, filepath.Join(dir, string(uid), "containers", name, fmt.Sprintf("%d.log", run)), w, options)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: container %q is waiting to start or has not run before", ErrNoLog, name)
	}
	return err
}
