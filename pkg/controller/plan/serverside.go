package plan

import (
	"math"
	"strconv"

	"github.com/metacontroller-solo/solo/pkg/controller/plan/owned"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// unborn is a resourceVersion that no object has. An apply that carries it makes
// an object where there is none, since a new object has no version to compare it
// with, and meets a conflict where there is one. Without it an apply would take
// over an object of that name that was made a moment ago.
var unborn = strconv.FormatInt(math.MaxInt64, 10)

// applied is a child as it is to be applied: all that this program wants of it,
// and nothing that only the API server writes. It is a new map as far as metadata.
func (m *maker) applied(child desired) map[string]any {
	content := owned.WithoutNulls(object.WithoutNoise(child.content()))
	own(content, object.ReferenceOf(m.in.Parent))
	return content
}

// applyNew is the step that makes a child by an apply.
func (m *maker) applyNew(child desired) (Step, error) {
	content := m.applied(child)
	content["metadata"].(map[string]any)["resourceVersion"] = unborn
	o, err := object.FromContent(content)
	if err != nil {
		return Step{}, m.failed(child, err)
	}
	return Step{
		Action: Create, Reason: Missing, Kind: child.kind, Key: child.key, Object: o, Apply: true, Desired: child.hash,
	}, nil
}

// changeByApply is change for server-side apply.
func (m *maker) changeByApply(kind Kind, child desired, observed *object.Object) (Step, bool, error) {
	_, annotated := observed.Annotation(object.LastAppliedAnnotation)
	switch {
	case annotated && recreates(kind.Method):
		// It was made by a create, and is as good as one that was applied. What
		// it was made of is in the annotation; when it is made again, it is
		// applied.
		return m.changeByUpdate(kind, child, observed)
	case annotated:
		return Step{Action: HandOver, Reason: Memory, Kind: kind.Kind, Key: child.key, Observed: observed}, true, nil
	}
	content := m.applied(child)
	reason := Differs
	switch owned.Compare(observed.Content(), content, observed.Applied()) {
	case owned.Same:
		m.settle(child.key, MarkOf(observed, child.hash))
		return Step{}, false, nil
	case owned.Unowned:
		reason = Memory
		if recreates(kind.Method) && observed.Applied() == "" {
			// It was never applied: an orphan that was adopted. To own it is no
			// reason to delete it.
			m.settle(child.key, MarkOf(observed, child.hash))
			return Step{}, false, nil
		}
	}
	metadata := content["metadata"].(map[string]any)
	metadata["uid"], metadata["resourceVersion"] = string(observed.UID()), observed.ResourceVersion()
	o, err := object.FromContent(content)
	if err != nil {
		return Step{}, false, m.failed(child, err)
	}
	step := Step{
		Action: Update, Reason: reason, Kind: child.kind, Key: child.key, Object: o, Observed: observed, Apply: true, Desired: child.hash,
	}
	if recreates(kind.Method) {
		step.Action, step.Unless, step.Object = Delete, o, nil
	}
	return step, true, nil
}
