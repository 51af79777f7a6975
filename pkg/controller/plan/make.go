package plan

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/plan/merge"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Make makes the plan. The error is one of the whole answer, such as a child
// whose labels do not match the selector: then nothing is to be written. What is
// wrong with a single child is a Skip step, and the others go on.
func Make(in Input) (Plan, error) {
	m := newMaker(in)
	wanted, err := m.admit()
	if err != nil {
		return Plan{}, err
	}
	m.deleteUndesired(wanted)
	for _, kind := range m.kinds() {
		if err := m.writeKind(kind, wanted[kind.GroupKind()]); err != nil {
			return Plan{}, err
		}
	}
	m.settled.Sort()
	steps := slices.Concat(m.deletes, m.writes, m.skips)
	return Plan{Steps: steps, Settled: m.settled, Waiting: m.waiting}, nil
}

func newMaker(in Input) maker {
	m := maker{in: in, methods: make(map[schema.GroupKind]Kind, len(in.Kinds))}
	for _, kind := range in.Kinds {
		if _, ok := m.methods[kind.GroupKind()]; !ok {
			m.methods[kind.GroupKind()] = kind
		}
	}
	return m
}

// maker holds a plan in the making.
type maker struct {
	in      Input
	methods map[schema.GroupKind]Kind

	deletes, writes, skips []Step
	settled                Settled
	waiting                bool
}

// kinds are the declared kinds in the order in which they are handled.
func (m *maker) kinds() []Kind {
	kinds := make([]Kind, 0, len(m.methods))
	for _, kind := range m.methods {
		kinds = append(kinds, kind)
	}
	slices.SortFunc(kinds, func(a, b Kind) int {
		return object.CompareKinds(a.GroupVersionKind, b.GroupVersionKind)
	})
	return kinds
}

func (m *maker) settle(key object.Key, mark Mark) {
	m.settled = append(m.settled, SettledChild{Key: key, Mark: mark})
}

// own says whether an observed object is the parent's. Observed should hold no
// others; nothing is deleted or changed on somebody's word.
func (m *maker) own(o *object.Object) bool {
	return object.ControlledBy(o, m.in.Parent.UID())
}

// deleteUndesired deletes the parent's children that the hook does not want.
func (m *maker) deleteUndesired(wanted map[schema.GroupKind][]desired) {
	keep := map[object.Key]bool{}
	for _, children := range wanted {
		for _, child := range children {
			keep[child.key] = true
		}
	}
	for _, kind := range m.kinds() {
		group, _ := m.in.Observed.Group(kind.GroupKind())
		for _, o := range group.Objects {
			if key := o.Key(); !keep[key] && !o.Terminating() && m.own(o) {
				m.deletes = append(m.deletes, Step{
					Action: Delete, Reason: Undesired, Kind: kind.Kind, Key: key, Observed: o,
				})
			}
		}
	}
}

// writeKind creates and changes the children of one kind, in the hook's order.
func (m *maker) writeKind(kind Kind, children []desired) error {
	var steps []Step
	for _, child := range children {
		if m.in.Hold != nil && m.in.Hold(child.key) {
			m.waiting = true
			continue
		}
		observed := m.in.Observed.Get(child.key)
		if observed == nil || !m.own(observed) {
			step, possible, err := m.create(child, observed)
			if err != nil {
				return err
			}
			if possible {
				steps = append(steps, step)
			}
			continue
		}
		step, differs, err := m.change(kind, child, observed)
		if err != nil {
			return err
		}
		if differs {
			steps = append(steps, step)
		}
	}
	for _, step := range steps {
		switch step.Action {
		case Delete:
			m.deletes = append(m.deletes, step)
		case Skip:
			m.skips = append(m.skips, step)
		default:
			m.writes = append(m.writes, step)
		}
	}
	return nil
}

// create makes a child that is not among the parent's own, unless there is an
// object of that name: then it is somebody else's, and stays as it is. It reports
// false for one of the parent's own that is on its way out, and only needs time.
func (m *maker) create(child desired, foreign *object.Object) (Step, bool, error) {
	if foreign == nil && m.in.Lookup != nil {
		foreign = m.in.Lookup(child.key)
	}
	if foreign != nil {
		return Step{
			Action: Skip, Reason: Foreign, Kind: child.kind, Key: child.key, Observed: foreign,
			Message: m.foreignMessage(child, foreign),
		}, !m.own(foreign) || !foreign.Terminating(), nil
	}
	if m.in.ServerSide {
		step, err := m.applyNew(child)
		return step, true, err
	}
	content, err := merge.First(child.content())
	if err != nil {
		return Step{}, false, m.failed(child, err)
	}
	own(content, object.ReferenceOf(m.in.Parent))
	o, err := object.FromContent(content)
	if err != nil {
		return Step{}, false, m.failed(child, err)
	}
	return Step{
		Action: Create, Reason: Missing, Kind: child.kind, Key: child.key, Object: o, Desired: child.hash,
	}, true, nil
}

// change brings a child to its desired state as its kind's strategy says. It
// reports false where there is nothing to do.
func (m *maker) change(kind Kind, child desired, observed *object.Object) (Step, bool, error) {
	if observed.Terminating() || !changes(kind.Method) {
		return Step{}, false, nil
	}
	if mark, ok := m.in.Settled.Mark(child.key); ok && mark.holds(observed, child.hash) {
		m.settle(child.key, mark)
		return Step{}, false, nil
	}
	if m.in.ServerSide {
		return m.changeByApply(kind, child, observed)
	}
	return m.changeByUpdate(kind, child, observed)
}

// changeByUpdate is change for the three-way merge.
func (m *maker) changeByUpdate(kind Kind, child desired, observed *object.Object) (Step, bool, error) {
	merged, err := merge.Merge(observed.Content(), child.content())
	if err != nil {
		return Step{}, false, m.failed(child, err)
	}
	step := Step{
		Action: Update, Reason: Differs, Kind: kind.Kind, Key: child.key, Observed: observed, Desired: child.hash,
	}
	switch {
	case merged.Outcome == merge.Same, merged.Outcome == merge.Forget && recreates(kind.Method):
		// To forget is no reason to delete a child: when it is made again for
		// another reason, its annotation is new too.
		m.settle(child.key, MarkOf(observed, child.hash))
		return Step{}, false, nil
	case recreates(kind.Method) && !merged.Applied:
		step.Action, step.Desired = Delete, [32]byte{}
		return step, true, nil
	case merged.Outcome == merge.Forget:
		step.Reason = Memory
	}
	if step.Object, err = object.FromContent(merged.Content); err != nil {
		return Step{}, false, m.failed(child, err)
	}
	if !m.own(step.Object) {
		// An annotation of old remembers our owner reference as the hook's.
		own(merged.Content, object.ReferenceOf(m.in.Parent))
		if step.Object, err = object.FromContent(merged.Content); err != nil {
			return Step{}, false, m.failed(child, err)
		}
	}
	if recreates(kind.Method) {
		// Just this was applied before, so what differs is drift, or what the API
		// server made of it, and would again. It knows.
		step.Action, step.Unless, step.Object = Delete, step.Object, nil
	}
	return step, true, nil
}

func (m *maker) failed(child desired, err error) error {
	return fmt.Errorf("cannot plan %s, %s %q: %w", child.path, child.kind.GroupVersionKind.Kind, child.key.Path(), err)
}

func changes(method v1alpha1.ChildUpdateMethod) bool {
	return method != "" && method != v1alpha1.ChildUpdateOnDelete
}

func recreates(method v1alpha1.ChildUpdateMethod) bool {
	return method == v1alpha1.ChildUpdateRecreate || method == v1alpha1.ChildUpdateRollingRecreate
}
