package revision

// The condition of a parent that says where its rollout is.
const (
	ConditionUpdated = "Updated"

	ReasonWaiting     = "RolloutWaiting"
	ReasonProgressing = "RolloutProgressing"
	ReasonOnLatest    = "OnLatestRevision"
)

const fieldConditions = "conditions"

// Condition puts the condition of a decision among those of a status that a hook
// returned, in the place of one of its type, and reports whether there was room
// for it: conditions that are no list are left alone.
//
// Current is what the parent's status has for conditions. The time of the last
// transition comes from there, so that it stays the same as long as the status
// does. Where there is no such condition yet, the time is since: one that a
// schema prunes must not differ at each pass. Now is for a transition that is
// seen.
func Condition(status map[string]any, current any, d Decision, since, now string) bool {
	condition := map[string]any{"type": ConditionUpdated, "status": "False", "message": d.Message}
	switch d.Progress {
	case OnLatest:
		condition["status"], condition["reason"] = "True", ReasonOnLatest
	case Progressing:
		condition["reason"] = ReasonProgressing
	default:
		condition["reason"] = ReasonWaiting
	}
	var list []any
	if status[fieldConditions] != nil {
		var ok bool
		if list, ok = status[fieldConditions].([]any); !ok {
			return false
		}
	}
	var at any = since
	if known := find(current, ConditionUpdated); known != nil {
		if at = now; known["status"] == condition["status"] {
			at = known["lastTransitionTime"]
		}
	}
	if text, ok := at.(string); ok && text != "" {
		condition["lastTransitionTime"] = text
	}

	merged := make([]any, 0, len(list)+1)
	placed := false
	for _, one := range list {
		if fields, ok := one.(map[string]any); !ok || fields["type"] != ConditionUpdated {
			merged = append(merged, one)
		} else if !placed {
			merged = append(merged, condition)
			placed = true
		}
	}
	if !placed {
		merged = append(merged, condition)
	}
	status[fieldConditions] = merged
	return true
}
