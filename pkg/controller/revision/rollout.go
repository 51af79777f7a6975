package revision

import (
	"fmt"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// State is what a child is, compared with what the latest revision wants.
type State int

const (
	// UnknownState is no valid value.
	UnknownState State = iota
	// Absent: there is no such child.
	Absent
	// Same: it is as the latest revision wants it.
	Same
	// Different: it is not.
	Different
	// Leaving: it is being deleted.
	Leaving
)

// Child is a child of a rolling kind that the latest revision wants.
type Child struct {
	Key   object.Key
	State State
	// Unready says why the child that is there is not ready, see Unready.
	Unready string
	// Drifted says that it is not as the old revision that claims it wants it
	// either: a pass that was to move it broke off, or somebody changed it.
	Drifted bool
}

// Answer is what the hook wants of the children of one old revision.
type Answer struct {
	// Known is false if the hook gave no answer that can be used. Its children
	// stay as they are.
	Known bool
	// Wants are the children that the revision wants.
	Wants map[object.Key]bool
}

// Which revision a child follows, if it is not an index of History.Old.
const (
	// FollowLatest: the child is to be as the latest revision wants it.
	FollowLatest = -1
	// FollowNone: it is neither made nor changed.
	FollowNone = -2
)

// Progress is where a rollout is.
type Progress int

const (
	// UnknownProgress is no valid value.
	UnknownProgress Progress = iota
	// OnLatest: every child follows the latest revision.
	OnLatest
	// Progressing: a child moves in this pass.
	Progressing
	// Waiting: children are to move, and something has to happen before.
	Waiting
)

// Decision is what a rollout does in one pass.
type Decision struct {
	// Follows says which revision each of the children follows: an index of
	// History.Old, or one of the constants above.
	Follows map[object.Key]int
	// Latest and Old are what the revisions are to claim.
	Latest Claims
	Old    []Claims
	// Moved is the child whose turn it is; nil if nobody moves.
	Moved    *object.Key
	Progress Progress
	// Message says where the rollout is, for the parent's status.
	Message string
}

// Decide makes the decision for the children that the latest revision wants, in
// the order of its answer; answers belong to History.Old.
//
// The latest revision decides which children there are: what it does not want is
// nobody's concern any more, and a name that no revision claims and that does not
// exist is made in its state. A child that exists moves to it
//
//   - for nothing, if it is as it should be already;
//   - otherwise in turn, one in a pass, and only if all that follow the latest
//     are there, as desired and ready. The turn goes in order, but one that is
//     missing, not ready or about to change anyway goes before the others: a
//     revision that breaks its children so breaks one of them, however often it
//     is replaced by the next bad one.
//
// Until then it follows the old revision that claims it; that makes it again in
// the old state if it is missing. If the old revision does not want it, or its
// answer is unknown, or nobody claims it, it is left as it is.
func Decide(h *History, children []Child, answers []Answer) Decision {
	d := Decision{Follows: make(map[object.Key]int, len(children)), Latest: Claims{}, Old: make([]Claims, len(h.Old))}
	for i := range d.Old {
		d.Old[i] = Claims{}
	}
	holder := h.holders()
	var (
		next    *Child
		blocked string
	)
	for i := range children {
		child := &children[i]
		old, claimed := holder[child.Key]
		free := child.State == Same || child.State == Absent && (!claimed || answers[old].Known && !answers[old].Wants[child.Key])
		if h.Latest.Claims.Has(child.Key) || free {
			d.Follows[child.Key] = FollowLatest
			d.Latest.add(child.Key)
			if why := child.unsettled(); why != "" && blocked == "" {
				blocked = fmt.Sprintf("%s %q, which is on the latest revision, %s", child.Key.Kind, child.Key.Path(), why)
			}
			continue
		}
		d.Follows[child.Key] = FollowNone
		if claimed {
			d.Old[old].add(child.Key)
			if answers[old].Known && answers[old].Wants[child.Key] {
				d.Follows[child.Key] = old
			}
		}
		if next == nil || next.ready() && !child.ready() {
			next = child
		}
	}
	there := fmt.Sprintf("%d of %d children are on the latest revision %s", len(d.Latest), len(children), h.Latest.Name)
	switch {
	case next == nil:
		d.Progress, d.Message = OnLatest, "All children are on the latest revision "+h.Latest.Name+"."
	case blocked != "":
		d.Progress, d.Message = Waiting, there+"; waiting: "+blocked+"."
	default:
		for i := range d.Old {
			delete(d.Old[i], next.Key)
		}
		d.Latest.add(next.Key)
		d.Follows[next.Key] = FollowLatest
		d.Moved = &next.Key
		d.Progress, d.Message = Progressing, fmt.Sprintf("%s; %s %q moves to it.", there, next.Key.Kind, next.Key.Path())
	}
	return d
}

// holders are the indexes of the old revisions that claim children.
func (h *History) holders() map[object.Key]int {
	out := map[object.Key]int{}
	for i := range h.Old {
		for key := range h.Old[i].Claims {
			out[key] = i
		}
	}
	return out
}

// Unmoved says whether one of the children is not claimed by the latest revision:
// only then it matters how they are.
func (h *History) Unmoved(keys []object.Key) bool {
	for _, key := range keys {
		if !h.Latest.Claims.Has(key) {
			return true
		}
	}
	return false
}

// unsettled says why a child that follows the latest revision keeps others from
// moving; empty if it does not.
func (c *Child) unsettled() string {
	switch c.State {
	case Absent:
		return "does not exist yet"
	case Leaving:
		return "is being deleted"
	case Same:
		return c.Unready
	default:
		return "is not as desired yet"
	}
}

// ready says whether the child does its work, in whatever state it is, and would
// go on to.
func (c *Child) ready() bool {
	return c.State != Absent && c.State != Leaving && c.Unready == "" && !c.Drifted
}
