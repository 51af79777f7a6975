package composite

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/plan"
	"github.com/metacontroller-solo/solo/pkg/controller/revision"
	"github.com/metacontroller-solo/solo/pkg/controller/syncer"
	"github.com/metacontroller-solo/solo/pkg/logging"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// parallelAsks is how many revisions of one parent the hook is asked about at
// once.
const parallelAsks = 8

// rollout is what a pass keeps of the revisions of its parent:
//
//	Ask ─ history, answers ─> Before ─ decision, ControllerRevisions ─> Shape, plan, apply ─> After ─ condition
type rollout struct {
	history *revision.History
	// old are the answers for history.Old; nil where there is none.
	old []*hook.Response
	// decision is made by advance.
	decision *revision.Decision
	// since is when the latest revision was stored.
	since string
}

// askRevisions asks the hook about each revision that children have. Only what
// it says of the latest is needed: an old revision that it has no answer for is
// told to the user, its children stay as they are, and the rollout goes on.
func askRevisions(ctx context.Context, pass *syncer.Pass) (*hook.Response, error) {
	source, cache := pass.Definition.Revisions, pass.Caches.Revisions
	history, err := source.Read(pass.Parent, cache.ByOwner(pass.Parent.UID()), cache.Get)
	if err != nil {
		return nil, err
	}
	r := &rollout{history: history, old: make([]*hook.Response, len(history.Old))}
	var (
		latest *hook.Response
		failed = make([]error, len(history.Old))
		group  errgroup.Group
	)
	group.SetLimit(parallelAsks)
	group.Go(func() error {
		var err error
		latest, err = askRevision(ctx, pass, history, &history.Latest)
		return err
	})
	for i := range history.Old {
		if len(history.Old[i].Claims) == 0 {
			continue
		}
		group.Go(func() error {
			r.old[i], failed[i] = askRevision(ctx, pass, history, &history.Old[i])
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for i, err := range failed {
		if err != nil {
			pass.Report(fmt.Errorf("children of the old revision %s stay as they are: %w", history.Old[i].Name, err))
		}
	}
	pass.Kept = r
	return mergeAnswers(latest, r.old), nil
}

// askRevision asks about one revision. Pass.Ask recovers from a panic.
func askRevision(ctx context.Context, pass *syncer.Pass, history *revision.History, one *revision.Revision) (*hook.Response, error) {
	state, err := history.State(one)
	if err != nil {
		return nil, err
	}
	return pass.Ask(ctx, state, one.Name)
}

// mergeAnswers is the answer for the latest revision, with what concerns all of
// them: the soonest resync that one wants, and finalized only if all say so.
func mergeAnswers(latest *hook.Response, old []*hook.Response) *hook.Response {
	merged := *latest
	for _, one := range old {
		if one == nil {
			continue
		}
		if one.ResyncAfter > 0 && (merged.ResyncAfter == 0 || one.ResyncAfter < merged.ResyncAfter) {
			merged.ResyncAfter = one.ResyncAfter
		}
		merged.Finalized = merged.Finalized && one.Finalized
	}
	return &merged
}

// advance decides how the rollout goes on, stores that, and makes the answer of
// the pass say it.
func (r *rollout) advance(ctx context.Context, pass *syncer.Pass) error {
	in := pass.PlanInput()
	admitted, err := plan.Admit(in)
	if err != nil {
		return pass.Unusable(err)
	}
	children, index, err := r.children(&pass.Definition, admitted)
	if err != nil {
		return err
	}
	answers, wanted, err := r.answers(pass, in, children)
	if err != nil {
		return err
	}
	decision := revision.Decide(r.history, children, answers)
	writes, err := r.history.Writes(decision)
	if err != nil {
		return err
	}
	if err := r.store(ctx, pass, writes); err != nil {
		return err
	}
	desired := append([]hook.Child(nil), pass.Response.Children...)
	for key, follows := range decision.Follows {
		if follows >= 0 {
			desired[index[key]] = wanted[follows][key]
		}
	}
	pass.Response.Children = desired
	r.decision = &decision
	if decision.Moved != nil {
		pass.Log.V(1).Info("A child moves to the latest revision", logging.KeyParent, pass.Parent.Key().String(),
			"child", decision.Moved.String(), "revision", r.history.Latest.Name)
	}
	return nil
}

// children are those of rolling kinds that the latest revision wants, and where
// in its answer they are. A name that is somebody else's object is no child: the
// plan tells of it, and the rollout does not wait for it.
func (r *rollout) children(definition *engine.Definition, admitted *plan.Admitted) ([]revision.Child, map[object.Key]int, error) {
	var (
		candidates []plan.Candidate
		keys       []object.Key
		index      = map[object.Key]int{}
	)
	for _, candidate := range admitted.Children {
		if rolls(candidate.Kind.Method) && !candidate.Foreign {
			candidates, keys = append(candidates, candidate), append(keys, candidate.Key)
			index[candidate.Key] = candidate.Index
		}
	}
	// How children are matters only if one has yet to move.
	compare := r.history.Unmoved(keys)
	children := make([]revision.Child, 0, len(candidates))
	for _, candidate := range candidates {
		child := revision.Child{Key: candidate.Key, State: revision.Same}
		switch {
		case candidate.Observed == nil:
			child.State = revision.Absent
		case candidate.Observed.Terminating():
			child.State = revision.Leaving
		case compare:
			differs, err := admitted.Differs(candidate)
			if err != nil {
				return nil, nil, err
			}
			if differs {
				child.State = revision.Different
			}
			declared := definition.Child(candidate.Key.GroupKind())
			child.Unready = revision.Unready(candidate.Observed, declared.Method, declared.Checks)
		}
		children = append(children, child)
	}
	return children, index, nil
}

// answers are what the old revisions want, and which of the children that they
// claim are not so. One that cannot be used is told to the user and counts for
// none.
func (r *rollout) answers(pass *syncer.Pass, in plan.Input, children []revision.Child) ([]revision.Answer, []map[object.Key]hook.Child, error) {
	place := make(map[object.Key]*revision.Child, len(children))
	for i := range children {
		place[children[i].Key] = &children[i]
	}
	answers := make([]revision.Answer, len(r.old))
	wanted := make([]map[object.Key]hook.Child, len(r.old))
	for i, response := range r.old {
		if response == nil || response.ChildrenPresence == hook.Absent {
			continue
		}
		in.Desired = response.Children
		admitted, err := plan.Admit(in)
		if err != nil {
			pass.Report(fmt.Errorf("children of the old revision %s stay as they are: %w", r.history.Old[i].Name, err))
			continue
		}
		answers[i] = revision.Answer{Known: true, Wants: map[object.Key]bool{}}
		wanted[i] = map[object.Key]hook.Child{}
		for _, candidate := range admitted.Children {
			answers[i].Wants[candidate.Key] = true
			wanted[i][candidate.Key] = candidate.Child
			child := place[candidate.Key]
			if child == nil || !r.history.Old[i].Claims.Has(candidate.Key) {
				continue
			}
			if child.Drifted, err = admitted.Differs(candidate); err != nil {
				return nil, nil, err
			}
		}
	}
	return answers, wanted, nil
}

// store carries out what the ControllerRevisions need, in its order. What changed
// since it was read ends the pass, before any child is touched.
func (r *rollout) store(ctx context.Context, pass *syncer.Pass, writes []revision.Write) error {
	r.since = r.history.Since()
	kind, cache := pass.Definition.Revisions.Kind, pass.Caches.Revisions
	for _, write := range writes {
		switch {
		case write.Delete != nil:
			if err := pass.Delete(ctx, cache, kind, write.Delete); err != nil {
				return fmt.Errorf("cannot delete ControllerRevision %q: %w", write.Delete.Key().Path(), err)
			}
		case write.Update != nil:
			if _, err := pass.Update(ctx, cache, kind, write.Update); err != nil {
				return fmt.Errorf("cannot update ControllerRevision %q: %w", write.Update.Key().Path(), err)
			}
		default:
			created, err := pass.Create(ctx, cache, kind, write.Create)
			if apierrors.IsNotFound(err) {
				// Not a change that an event will tell of.
				return fmt.Errorf("cannot create ControllerRevision %q; is there the namespace %q? %s",
					write.Create.Key().Path(), write.Create.Namespace(), err.Error())
			}
			if err != nil {
				return fmt.Errorf("cannot create ControllerRevision %q: %w", write.Create.Key().Path(), err)
			}
			r.since = revision.CreatedAt(created)
		}
	}
	return nil
}

// holds says whether a child waits, as it is, for its turn.
func (r *rollout) holds(key object.Key) bool {
	if r.decision == nil {
		return false
	}
	follows, rolling := r.decision.Follows[key]
	return rolling && follows == revision.FollowNone
}

// tell puts the condition of the rollout into a status.
func (r *rollout) tell(pass *syncer.Pass, status map[string]any) {
	if r.decision == nil {
		return
	}
	var current any
	if now, ok := pass.Parent.Field("status").(map[string]any); ok {
		current = now["conditions"]
	}
	if !revision.Condition(status, current, *r.decision, r.since, pass.Clock.Now().UTC().Format(time.RFC3339)) {
		pass.Log.V(1).Info("The hook's status has conditions that are no list, so there is no room for the one of the rollout",
			logging.KeyParent, pass.Parent.Key().String())
	}
}
