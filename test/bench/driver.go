package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/metacontroller-solo/solo/test/bench/progress"
	"github.com/metacontroller-solo/solo/test/bench/workload"
)

// drivers is how many changes are made at once.
const drivers = 8

// driver does what users do: it creates and changes parents, deletes children,
// touches related objects. It says before each change what shall come of it.
type driver struct {
	api
	plan    workload.Plan
	tracker *progress.Tracker
	tell    func(workload.Job) error
	// parents are as the API server returned them last; sums are those of the rounds
	// of their related objects. A parent is in the hands of one goroutine.
	parents []workload.Parent
	sums    []int
}

func newDriver(lab *lab, plan workload.Plan, tracker *progress.Tracker, tell func(workload.Job) error) *driver {
	return &driver{
		api: lab.api, plan: plan, tracker: tracker, tell: tell,
		parents: make([]workload.Parent, plan.Parents), sums: make([]int, plan.Parents),
	}
}

// each calls do for every parent, several at once.
func (d *driver) each(ctx context.Context, do func(ctx context.Context, i int) error) error {
	all, ctx := errgroup.WithContext(ctx)
	all.SetLimit(drivers)
	for i := range d.plan.Parents {
		if ctx.Err() != nil {
			break // Wait has the reason
		}
		all.Go(func() error { return do(ctx, i) })
	}
	return all.Wait()
}

func (d *driver) key(i int) progress.Key {
	namespace, name := d.plan.Place(i)
	return progress.Key{Namespace: namespace, Name: name}
}

func (d *driver) mark(i int) string {
	return d.plan.Mark(d.parents[i].Spec.Round, d.sums[i])
}

// wrote takes in a parent as the API server has it now.
func (d *driver) wrote(i int, change workload.Change, parent workload.Parent) error {
	d.parents[i] = parent
	d.tracker.AtLeast(d.key(i), parent.Metadata.Generation, time.Now())
	return d.tell(d.plan.JobFor(change, parent, d.mark(i)))
}

// create makes a parent.
func (d *driver) create(ctx context.Context, i int) error {
	parent := d.plan.Parent(i)
	d.tracker.Want(d.key(i), d.plan.Mark(parent.Spec.Round, 0))
	if err := d.api.create(ctx, thingsPath(parent.Metadata.Namespace), parent, &parent); err != nil {
		return fmt.Errorf("cannot create a parent: %w", err)
	}
	return d.wrote(i, workload.Created, parent)
}

// change changes a parent so that all its children change.
func (d *driver) change(ctx context.Context, i int) error {
	parent := d.parents[i]
	round := parent.Spec.Round + 1
	d.tracker.Want(d.key(i), d.plan.Mark(round, d.sums[i]))
	path := thingsPath(parent.Metadata.Namespace) + "/" + parent.Metadata.Name
	var changed workload.Parent
	if err := d.patch(ctx, path, map[string]any{"spec": map[string]any{"round": round}}, &changed); err != nil {
		return fmt.Errorf("cannot change a parent: %w", err)
	}
	return d.wrote(i, workload.Changed, changed)
}

// orphan deletes the first child of a parent.
func (d *driver) orphan(ctx context.Context, i int) error {
	parent := d.parents[i]
	name := workload.ChildName(parent.Metadata.Name, 0)
	if !d.tracker.Condemn(d.key(i), name) {
		return fmt.Errorf("cannot delete child %q: it is not there", name)
	}
	if err := d.delete(ctx, configMapsPath(parent.Metadata.Namespace)+"/"+name); err != nil {
		return fmt.Errorf("cannot delete a child: %w", err)
	}
	// The version that is known here is not the newest.
	parent.Metadata.ResourceVersion = ""
	return d.tell(d.plan.JobFor(workload.Orphaned, parent, d.mark(i)))
}

// relate makes the related objects of a parent.
func (d *driver) relate(ctx context.Context, i int) error {
	for _, related := range d.plan.RelatedObjects(i) {
		if err := d.api.create(ctx, secretsPath(related.Metadata.Namespace), related, nil); err != nil {
			return fmt.Errorf("cannot create a related object: %w", err)
		}
	}
	return nil
}

// touch changes one related object, once in a run; selectors are the parents that
// it is related to.
func (d *driver) touch(ctx context.Context, related workload.RelatedObject, selectors []int) error {
	for _, i := range selectors {
		d.sums[i]++
		d.tracker.Want(d.key(i), d.mark(i))
	}
	change := map[string]any{"metadata": map[string]any{"annotations": map[string]string{workload.RoundAnnotation: "1"}}}
	if err := d.patch(ctx, secretsPath(related.Metadata.Namespace)+"/"+related.Metadata.Name, change, nil); err != nil {
		return fmt.Errorf("cannot touch a related object: %w", err)
	}
	for _, i := range selectors {
		if err := d.tell(d.plan.JobFor(workload.Touched, d.parents[i], d.mark(i))); err != nil {
			return err
		}
	}
	return nil
}

// follow shows the tracker what happens to the run's parents and children, until
// ctx ends.
func (d *driver) follow(ctx context.Context) error {
	selector := workload.RunLabel + "=" + d.plan.Run
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error {
		return d.watch(ctx, "/api/v1/configmaps", selector, func(kind string, o watched) error {
			name, now := o.Metadata.Name, time.Now()
			key := progress.Key{Namespace: o.Metadata.Namespace, Name: workload.ParentOf(name)}
			if kind == "DELETED" {
				d.tracker.ChildGone(key, name, now)
			} else {
				d.tracker.ChildSeen(key, name, o.Metadata.UID, o.Data.Mark, now)
			}
			return nil
		})
	})
	both.Go(func() error {
		return d.watch(ctx, "/apis/"+workload.APIVersion+"/"+workload.Resource, selector, func(_ string, o watched) error {
			status, err := statusOf(o.Status)
			if err != nil {
				return fmt.Errorf("cannot read the status of %q: %w", o.Metadata.Name, err)
			}
			key := progress.Key{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
			d.tracker.ParentSeen(key, progress.ParentState{
				Generation: o.Metadata.Generation, ObservedGeneration: status.ObservedGeneration,
				Seen: status.Seen, Mark: o.Metadata.Annotations[workload.MarkAnnotation],
			}, time.Now())
			return nil
		})
	})
	return both.Wait()
}
