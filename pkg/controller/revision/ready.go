package revision

import (
	"fmt"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Unready says why a child is not ready, to complete the sentence "the child
// ...", or is empty. The status of one that is being deleted says nothing. One
// that does not tell which generation its status is about is believed.
func Unready(child *object.Object, method v1alpha1.ChildUpdateMethod, checks []v1alpha1.StatusConditionCheck) string {
	if child.Terminating() {
		return "is being deleted"
	}
	inPlace := method == v1alpha1.ChildUpdateRollingInPlace && child.Generation() != 0
	if !inPlace && len(checks) == 0 {
		return ""
	}
	status, _ := child.Field("status").(map[string]any)
	if seen, ok := whole(status["observedGeneration"]); inPlace && ok && seen < child.Generation() {
		return fmt.Sprintf("has a status of generation %d, and is at %d", seen, child.Generation())
	}
	for _, check := range checks {
		if why := unmet(status["conditions"], check); why != "" {
			return why
		}
	}
	return ""
}

// unmet says why a check fails.
func unmet(conditions any, check v1alpha1.StatusConditionCheck) string {
	condition := find(conditions, check.Type)
	if condition == nil {
		return fmt.Sprintf("has no status condition %s", check.Type)
	}
	for _, wanted := range []struct {
		field string
		value *string
	}{{"status", check.Status}, {"reason", check.Reason}} {
		if wanted.value == nil {
			continue
		}
		if has, _ := condition[wanted.field].(string); has != *wanted.value {
			return fmt.Sprintf("has status condition %s with %s %q, not %q", check.Type, wanted.field, has, *wanted.value)
		}
	}
	return ""
}

// find is the first condition of a type in a list that may be anything.
func find(conditions any, name string) map[string]any {
	list, _ := conditions.([]any)
	for _, one := range list {
		if condition, ok := one.(map[string]any); ok && condition["type"] == name {
			return condition
		}
	}
	return nil
}

func whole(value any) (int64, bool) {
	switch value := value.(type) {
	case int64:
		return value, true
	case float64:
		return int64(value), value == float64(int64(value))
	default:
		return 0, false
	}
}
