package workload

import (
	"encoding/json"
	"fmt"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// Job is what the raw writer writes because of one change of one parent. It is as
// much as a controller that wastes nothing writes.
type Job struct {
	Mode   Mode   `json:"mode"`
	Parent Parent `json:"parent"`
	// Mark is that of the children.
	Mark string `json:"mark"`
	// Annotate is whether the mark goes on the parent.
	Annotate bool `json:"annotate,omitempty"`
	// Create and Replace are numbers of children.
	Create  []int `json:"create,omitempty"`
	Replace []int `json:"replace,omitempty"`
	// Seen are the counts of children that are written as status, one after another.
	Seen []int `json:"seen,omitempty"`
}

// Change is what happened to a parent.
type Change int

const (
	// Created says that the parent is new.
	Created Change = iota
	// Changed says that its spec changed.
	Changed
	// Orphaned says that its first child was deleted.
	Orphaned
	// Touched says that a related object changed.
	Touched
)

// JobFor is what is to be written for a change. Of the status of a composite that
// is: the children that the hook saw when it was asked first, and, if that was not
// all of them, the children that it saw once they were there.
func (p Plan) JobFor(change Change, parent Parent, mark string) Job {
	job := Job{Mode: p.Mode, Parent: parent, Mark: mark}
	all := make([]int, p.Children)
	for n := range all {
		all[n] = n
	}
	switch change {
	case Created:
		job.Create, job.Seen = all, []int{0, p.Children}
	case Changed:
		job.Replace, job.Seen = all, []int{p.Children}
	case Orphaned:
		job.Create, job.Seen = []int{0}, []int{p.Children - 1, p.Children}
	case Touched:
		job.Replace = all
	}
	if p.Mode == Decorator {
		job.Annotate = change != Orphaned
		job.Seen = nil
	}
	return job
}

// Written is a child as a controller writes it: as the hook returned it, with an
// owner reference, a label or annotation by which it is found again, and a memory
// of what was applied.
func (j Job) Written(n int) (Child, error) {
	child := Children(j.Parent, j.Mark)[n]
	applied, err := json.Marshal(child)
	if err != nil {
		return child, fmt.Errorf("cannot encode a child: %w", err)
	}
	meta := &child.Metadata
	meta.Namespace = j.Parent.Metadata.Namespace
	meta.Annotations = map[string]string{object.LastAppliedAnnotation: string(applied)}
	if j.Mode == Decorator {
		meta.Annotations[object.DecoratorAnnotation] = j.Parent.Metadata.Labels[RunLabel]
	} else {
		meta.Labels[object.ControllerUIDLabel] = j.Parent.Metadata.UID
	}
	meta.OwnerReferences = []OwnerReference{{
		APIVersion: APIVersion, Kind: Kind, Name: j.Parent.Metadata.Name, UID: j.Parent.Metadata.UID,
		Controller: true, BlockOwnerDeletion: true,
	}}
	return child, nil
}
