package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/metacontroller-solo/solo/test/bench/workload"
)

// writesOfParent is how many children of one parent the raw writer writes at once:
// as many as the controller.
const writesOfParent = 8

// rawReady is the line that the raw writer prints when it waits for jobs.
const rawReady = "ready"

// rawWriter is the floor: it makes the writes that a controller makes, and nothing
// else. It watches nothing, asks nobody and compares nothing; the driver tells it
// what to write.
//
//	driver ─ jobs, a JSON document each ─> pipe ─> workers ─> API server
type rawWriter struct {
	api

	mu sync.Mutex
	// versions are the resource versions of the parents that it wrote. Guarded by mu.
	versions map[string]string
}

// writeRaw writes what the jobs say until their end.
func writeRaw(ctx context.Context, kubeconfig string, workers int, jobs io.Reader) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("cannot read kubeconfig %q: %w", kubeconfig, err)
	}
	w := &rawWriter{versions: map[string]string{}}
	if w.api, err = newAPI(config); err != nil {
		return err
	}
	fmt.Println(rawReady)
	pool, ctx := errgroup.WithContext(ctx)
	next := make(chan workload.Job)
	pool.Go(func() error {
		defer close(next)
		return readJobs(ctx, jobs, next)
	})
	for range workers {
		pool.Go(func() error {
			for job := range next {
				if err := w.do(ctx, job); err != nil {
					return fmt.Errorf("cannot write for %q: %w", job.Parent.Metadata.Name, err)
				}
			}
			return nil
		})
	}
	return pool.Wait()
}

// readJobs hands the jobs on. The pipe is always read, so that the driver never
// waits for the workers, as it never waits for a controller.
func readJobs(ctx context.Context, from io.Reader, to chan<- workload.Job) error {
	decoder := json.NewDecoder(from)
	read := make(chan workload.Job)
	failed := make(chan error, 1)
	go func() {
		defer close(read)
		for {
			var job workload.Job
			if err := decoder.Decode(&job); err != nil {
				if !errors.Is(err, io.EOF) {
					failed <- fmt.Errorf("cannot read a job: %w", err)
				}
				return
			}
			select {
			case read <- job:
			case <-ctx.Done():
				return
			}
		}
	}()
	var queue []workload.Job
	for read != nil || len(queue) > 0 {
		var first workload.Job
		out := to
		if len(queue) == 0 {
			out = nil
		} else {
			first = queue[0]
		}
		select {
		case job, more := <-read:
			if !more {
				read = nil
				continue
			}
			queue = append(queue, job)
		case out <- first:
			queue = queue[1:]
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

// do makes the writes of one job in the order in which a controller makes them.
func (w *rawWriter) do(ctx context.Context, job workload.Job) error {
	meta := job.Parent.Metadata
	at := thingsPath(meta.Namespace) + "/" + meta.Name
	if job.Annotate {
		change := map[string]any{"metadata": map[string]any{"annotations": map[string]string{workload.MarkAnnotation: job.Mark}}}
		if err := w.patch(ctx, at, change, nil); err != nil {
			return err
		}
	}
	children, childCtx := errgroup.WithContext(ctx)
	children.SetLimit(writesOfParent)
	for _, n := range job.Create {
		children.Go(func() error { return w.child(childCtx, job, n, true) })
	}
	for _, n := range job.Replace {
		children.Go(func() error { return w.child(childCtx, job, n, false) })
	}
	if err := children.Wait(); err != nil {
		return err
	}
	return w.statuses(ctx, at, job)
}

func (w *rawWriter) child(ctx context.Context, job workload.Job, n int, create bool) error {
	child, err := job.Written(n)
	if err != nil {
		return err
	}
	path := configMapsPath(child.Metadata.Namespace)
	if create {
		return w.create(ctx, path, child, nil)
	}
	return w.update(ctx, path+"/"+child.Metadata.Name, child, nil)
}

// statuses writes the statuses of a parent that is as the job has it, or, if that
// has no version, as this program wrote it last.
func (w *rawWriter) statuses(ctx context.Context, at string, job workload.Job) error {
	parent := job.Parent
	meta := &parent.Metadata
	if meta.ResourceVersion == "" {
		w.mu.Lock()
		meta.ResourceVersion = w.versions[meta.UID]
		w.mu.Unlock()
	}
	for _, seen := range job.Seen {
		parent.Status = &workload.Status{Seen: seen, ObservedGeneration: meta.Generation}
		var written struct {
			Metadata workload.Meta `json:"metadata"`
		}
		if err := w.update(ctx, at+"/status", parent, &written); err != nil {
			return err
		}
		meta.ResourceVersion = written.Metadata.ResourceVersion
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.versions[meta.UID] = meta.ResourceVersion
	return nil
}

// jobsPipe is where a raw writer that was started as a process finds its jobs.
func jobsPipe() *os.File { return os.NewFile(3, "jobs") }
