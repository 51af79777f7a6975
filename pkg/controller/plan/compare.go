package plan

import (
	"slices"

	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Admitted are the children of an answer that the parent may have, before it is
// decided what is done to them.
type Admitted struct {
	maker maker
	// Children are in the order of the answer. What would be a Skip step is not
	// among them, but for foreign ones.
	Children []Candidate
}

// Candidate is one child that the parent may have.
type Candidate struct {
	hook.Child
	// Index is its place among Input.Desired.
	Index int
	Key   object.Key
	// Kind is the declared kind.
	Kind Kind
	// Observed is the child as it is; nil if there is none.
	Observed *object.Object
	// Foreign says that an object of that name is somebody else's.
	Foreign bool

	desired desired
}

// Admit sorts out the children as Make does. The error is one of the whole
// answer.
func Admit(in Input) (*Admitted, error) {
	a := &Admitted{maker: newMaker(in)}
	wanted, err := a.maker.admit()
	if err != nil {
		return nil, err
	}
	for group, children := range wanted {
		for _, child := range children {
			c := Candidate{
				Child: in.Desired[child.index], Index: child.index, Key: child.key, Kind: a.maker.methods[group],
				Observed: in.Observed.Get(child.key), desired: child,
			}
			if c.Observed == nil && in.Lookup != nil {
				c.Observed = in.Lookup(child.key)
			}
			if c.Observed != nil && (!a.maker.own(c.Observed) || in.Observed.Get(child.key) == nil && !c.Observed.Terminating()) {
				c.Observed, c.Foreign = nil, true
			}
			a.Children = append(a.Children, c)
		}
	}
	slices.SortFunc(a.Children, func(x, y Candidate) int { return x.Index - y.Index })
	return a, nil
}

// Differs says whether a child that is there is not as the answer wants it, so
// that Make would change it.
func (a *Admitted) Differs(c Candidate) (bool, error) {
	if c.Observed == nil {
		return false, nil
	}
	step, changes, err := a.maker.change(c.Kind, c.desired, c.Observed)
	return changes && step.Reason == Differs, err
}
