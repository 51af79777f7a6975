package composite

import (
	"context"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/plan"
	"github.com/metacontroller-solo/solo/pkg/controller/syncer"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// observedGeneration is the field of every parent's status that says which
// generation of its spec the status is about.
const observedGeneration = "observedGeneration"

// policy is how a CompositeController differs from other kinds of controllers.
type policy struct {
	// generated says that children are selected by a label with the parent's uid.
	generated bool
}

// Observe returns the selector of the parent's children. A parent that is going
// away without one that can be used has all that it owns for children: it would
// stay for ever otherwise.
func (p policy) Observe(pass *syncer.Pass) (labels.Selector, error) {
	selector, err := p.selector(pass.Parent)
	if err != nil && pass.Mode == syncer.ModeFinalize {
		return nil, nil
	}
	return selector, err
}

// Ask asks the hook once, for the parent as it is; where children roll, once for
// each revision. While a parent goes away, nothing rolls.
func (p policy) Ask(ctx context.Context, pass *syncer.Pass) (*hook.Response, error) {
	if pass.Definition.Revisions == nil || pass.Mode != syncer.ModeSync {
		return pass.Ask(ctx, pass.Parent, "")
	}
	return askRevisions(ctx, pass)
}

// Shape puts the generated selector's label on every child, and holds those whose
// turn it is not.
func (p policy) Shape(pass *syncer.Pass, in *plan.Input) {
	if p.generated {
		in.Labels = generatedLabels(pass.Parent.UID())
	}
	if r, ok := pass.Kept.(*rollout); ok {
		in.Hold = r.holds
	}
}

// Before decides how a rollout goes on and remembers that; without one it has
// nothing to do: the status of a composite follows its children.
func (p policy) Before(ctx context.Context, pass *syncer.Pass) error {
	if r, ok := pass.Kept.(*rollout); ok && pass.Response.ChildrenPresence != hook.Absent {
		return r.advance(ctx, pass)
	}
	return nil
}

// After replaces the parent's status by what the hook returned, with a condition
// that says where a rollout is.
func (p policy) After(ctx context.Context, pass *syncer.Pass) error {
	status := map[string]any{}
	if pass.Response.Status.Presence == hook.Given {
		decoded, err := object.Decode(pass.Response.Status.JSON)
		if err != nil {
			return fmt.Errorf("cannot decode the status that the hook returned: %w", err)
		}
		var ok bool
		if status, ok = decoded.(map[string]any); !ok {
			return errors.New("the status that the hook returned is not an object")
		}
	}
	if r, ok := pass.Kept.(*rollout); ok {
		r.tell(pass, status)
	}
	status[observedGeneration] = pass.Parent.Generation()
	return pass.WriteStatus(ctx, status)
}

func generatedLabels(parent types.UID) map[string]string {
	return map[string]string{object.ControllerUIDLabel: string(parent)}
}

// selectorOrNone is the selector of a parent, nil if it has none that can be
// used.
func (p policy) selectorOrNone(parent *object.Object) labels.Selector {
	selector, err := p.selector(parent)
	if err != nil {
		return nil
	}
	return selector
}

// selector is the generated one, or the parent's spec.selector.
func (p policy) selector(parent *object.Object) (labels.Selector, error) {
	if p.generated {
		return labels.SelectorFromSet(generatedLabels(parent.UID())), nil
	}
	spec, _ := parent.Field("spec").(map[string]any)
	raw, ok := spec["selector"].(map[string]any)
	if !ok {
		return nil, errors.New("the parent has no spec.selector; give it one, or set generateSelector in the CompositeController")
	}
	var declared metav1.LabelSelector
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(raw, &declared); err != nil {
		return nil, fmt.Errorf("the parent's spec.selector is not a label selector: %w", err)
	}
	selector, err := metav1.LabelSelectorAsSelector(&declared)
	if err != nil {
		return nil, fmt.Errorf("the parent's spec.selector is not valid: %w", err)
	}
	if selector.Empty() {
		return nil, errors.New("the parent's spec.selector is empty, which would select every object; give it matchLabels or matchExpressions")
	}
	return selector, nil
}
