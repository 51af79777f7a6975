package syncer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/metacontroller-solo/solo/pkg/controller/apply"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/hook/wire"
	"github.com/metacontroller-solo/solo/pkg/controller/plan"
	"github.com/metacontroller-solo/solo/pkg/logging"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// parallelWrites is how many children of one parent are written at once.
const parallelWrites = 8

// Syncer syncs the parents of one controller.
type Syncer struct {
	Deps
	memories memories
	pruning  pruning
	// declared is the newest object that declares the controller.
	declared atomic.Pointer[object.Object]
	// elders are the controllers that parents are left to.
	elders atomic.Pointer[[]engine.Rival]
}

// New makes a Syncer.
func New(deps Deps) *Syncer {
	s := &Syncer{Deps: deps, memories: memories{of: map[object.Key]*memory{}}}
	s.declared.Store(deps.Declared)
	return s
}

// Follow takes over from the Syncer that it replaces what the caches have not
// shown yet of its writes. It is called before the first Sync, and after the last
// one of the other.
func (s *Syncer) Follow(replaced engine.Syncer) {
	before, ok := replaced.(*Syncer)
	if !ok {
		return
	}
	s.memories.follow(&before.memories, s.Caches.InsteadOf(before.Caches))
}

// Redeclare gives the object that declares the controller to later passes.
func (s *Syncer) Redeclare(declared *object.Object) { s.declared.Store(declared) }

// GiveWay leaves parents to other controllers, from the next pass on.
func (s *Syncer) GiveWay(elders []engine.Rival) { s.elders.Store(&elders) }

// Close gives back the hooks.
func (s *Syncer) Close() { s.Hooks.Close() }

// Sync makes one pass for the parent with this key.
func (s *Syncer) Sync(ctx context.Context, key object.Key) (outcome engine.Outcome) {
	rule := s.Definition.Parent(key.GroupKind())
	cache := s.Caches.Parents[key.GroupKind()]
	if rule == nil || cache == nil {
		return engine.Outcome{Verdict: engine.Gone}
	}
	parent := cache.Get(key.Namespace, key.Name)
	if parent == nil {
		s.forget(key)
		return engine.Outcome{Verdict: engine.Gone}
	}
	pass := &Pass{Syncer: s, Declared: s.declared.Load(), Rule: rule, Parent: parent, memory: s.memories.recall(parent)}
	if gone := pass.memory.predecessor; gone != "" {
		s.Hooks.forget(gone)
		pass.memory.predecessor = ""
	}
	defer func() {
		if recovered := recover(); recovered != nil {
			pass.fail(s.recovered(recovered, key))
			outcome = pass.outcome(ctx)
		}
	}()
	if write := pass.memory.behind(); write != nil {
		return s.behind(write)
	}
	pass.run(ctx)
	return pass.outcome(ctx)
}

// recovered is the error of a panic, which is in the log with its stack.
func (s *Syncer) recovered(cause any, parent object.Key) error {
	s.Log.Error(fmt.Errorf("panic: %v", cause), "Recovered from a panic in a sync",
		logging.KeyParent, parent.String(), "stack", string(debug.Stack()))
	return fmt.Errorf("the sync broke off by a fault of the program: %v", cause)
}

// forget frees what is remembered of a parent that is gone, or not ours.
func (s *Syncer) forget(parent object.Key) {
	if gone := s.memories.forget(parent); gone != "" {
		s.Hooks.forget(gone)
	}
	s.Caches.Related.Forget(parent)
}

func (s *Syncer) behind(write *pending) engine.Outcome {
	if waited := s.Clock.Since(write.at); waited > patience {
		return engine.Outcome{Verdict: engine.Failed, Err: fmt.Errorf(
			"cannot sync: the watch has not shown for %s what was written; is the API server reachable?", waited.Round(1e9))}
	}
	return engine.Outcome{Verdict: engine.Behind}
}

// run is the order of the steps.
func (p *Pass) run(ctx context.Context) {
	p.Mode = modeOf(&p.Definition, p.Rule, p.Parent)
	if p.Mode == ModeIgnore {
		p.forget(p.Parent.Key())
		return
	}
	if (p.Mode == ModeSync || p.Mode == ModeFinalize) && p.givesWay() {
		p.Caches.Related.Forget(p.Parent.Key())
		return
	}
	if !p.settleFinalizer(ctx) || p.Mode == ModeRelease || p.Mode == ModeIdle {
		return
	}
	managed := managesChildren(p.Mode, p.Parent)
	var err error
	if p.Selector, err = p.Policy.Observe(p); err != nil {
		p.fail(err)
		return
	}
	if !p.claim(ctx, managed) || !p.relate(ctx) {
		return
	}
	if p.Response, err = p.Policy.Ask(ctx, p); err != nil {
		p.fail(err)
		return
	}
	p.after = p.Response.ResyncAfter
	if err := p.Policy.Before(ctx, p); err != nil {
		p.fail(err)
		return
	}
	p.Complete = true
	if managed && p.Response.ChildrenPresence != hook.Absent {
		var planned bool
		if p.Complete, planned = p.writeChildren(ctx); !planned {
			// The answer as a whole is wrong; its status is not to be trusted.
			return
		}
	}
	if err := p.Policy.After(ctx, p); err != nil {
		p.fail(err)
		return
	}
	if p.Releases() {
		p.removeFinalizer(ctx)
	}
}

// Releases says, once the children were written, whether the finalizer goes off
// at the end of the pass.
func (p *Pass) Releases() bool {
	return p.Mode == ModeFinalize && p.Response.Finalized && p.Complete
}

// givesWay says whether another controller acts for this parent, and tells that
// once for each of them: two that make children of one kind for one parent would
// delete what the other makes.
func (p *Pass) givesWay() bool {
	elders := p.elders.Load()
	if elders == nil {
		p.memory.elders = nil
		return false
	}
	var claim []string
	for i := range *elders {
		elder := &(*elders)[i]
		if !elder.Claims(p.Parent) {
			continue
		}
		claim = append(claim, elder.Name)
		if slices.Contains(p.memory.elders, elder.Name) {
			continue
		}
		p.Events.Warning(p.Parent, engine.ReasonSyncError, fmt.Sprintf(
			"%s %q leaves this parent to %s %q, which is older and makes %s for it too: each would delete what the other makes; give one of them another labelSelector",
			p.Definition.Kind, p.Definition.Name, p.Definition.Kind, elder.Name, strings.Join(elder.Kinds, ", ")))
	}
	p.memory.elders = claim
	return len(claim) > 0
}

// settleFinalizer puts the finalizer on, or takes off one that no hook needs. It
// reports whether the pass goes on.
func (p *Pass) settleFinalizer(ctx context.Context) bool {
	name, finalizers := p.Definition.Finalizer, p.Parent.Finalizers()
	switch has, wanted := engine.HasFinalizer(p.Parent, name), p.Definition.Hooks.Finalize != nil; {
	case p.Mode == ModeRelease || has && !wanted:
		return p.removeFinalizer(ctx)
	case wanted && p.Mode != ModeFinalize && !p.Parent.HasFinalizer(name):
		return p.writeParent("add the finalizer to", func() (*object.Object, error) {
			return p.Writer.SetFinalizers(ctx, p.Rule.Kind, p.Parent, engine.WithFinalizer(finalizers, name))
		})
	}
	return true
}

func (p *Pass) removeFinalizer(ctx context.Context) bool {
	name := p.Definition.Finalizer
	if !engine.HasFinalizer(p.Parent, name) {
		return true
	}
	return p.writeParent("remove the finalizer from", func() (*object.Object, error) {
		return p.Writer.SetFinalizers(ctx, p.Rule.Kind, p.Parent, engine.WithoutFinalizer(p.Parent.Finalizers(), name))
	})
}

// writeParent writes the parent and reports whether the pass goes on.
func (p *Pass) writeParent(what string, write func() (*object.Object, error)) bool {
	written, err := write()
	if err != nil {
		p.fail(fmt.Errorf("cannot %s %q: %w", what, p.Parent, err))
		return false
	}
	p.wroteParent(written)
	return true
}

// Ask calls the hook of the pass for a state of the parent. Revision tells
// several states of one parent apart that are asked about in one pass; it is
// empty for the parent as it is. Ask may be called by several goroutines at once.
func (p *Pass) Ask(ctx context.Context, parent *object.Object, revision string) (response *hook.Response, err error) {
	which, asked := p.asked()
	defer func() {
		// Of a goroutine of its own nobody else would recover.
		if recovered := recover(); recovered != nil {
			response, err = nil, p.recovered(recovered, parent.Key())
		}
		if err != nil {
			err = &hookError{which: which, err: err}
		}
	}()
	request := &hook.Request{
		Flavor: p.Flavor, Call: which, Controller: p.Declared, Parent: parent, Children: p.Children, Related: p.Related,
	}
	body, err := asked.Codec.EncodeRequest(request)
	if err != nil {
		return nil, fmt.Errorf("cannot encode request to the %s hook: %w", which, err)
	}
	about := string(parent.UID()) + "/" + revision
	answer, err := asked.Caller.Call(ctx, about, body)
	if err != nil {
		return nil, fmt.Errorf("%s hook at %s %w", which, asked.Caller.URL(), err)
	}
	defer hold(answer)()
	response, notes, err := asked.Codec.DecodeResponse(request, answer)
	p.logUnknown(which, notes)
	if err != nil {
		return nil, p.Unusable(err)
	}
	asked.Caller.Accept(about)
	return response, nil
}

// asked is the hook of the pass.
func (p *Pass) asked() (hook.Call, *Hook) {
	if p.Mode == ModeFinalize {
		return hook.Finalize, p.Hooks.Finalize
	}
	return hook.Sync, p.Hooks.Sync
}

// Unusable is the error of an answer that is wrong, and says whose it is.
func (p *Pass) Unusable(err error) error {
	which, asked := p.asked()
	return unusable(which, asked, err)
}

func unusable(which hook.Call, asked *Hook, err error) error {
	return &hookError{which, fmt.Errorf("%s hook at %s gave an answer that cannot be used: %w", which, asked.Caller.URL(), err)}
}

// logUnknown tells of fields that an answer has and nobody knows.
func (p *Pass) logUnknown(which hook.Call, notes []wire.Note) {
	for _, note := range notes {
		p.Log.V(4).Info("Field in the answer of a hook is not known", logging.KeyController, p.Definition.QueueName(),
			logging.KeyHook, which.String(), logging.KeyParent, p.Parent.Key().String(), logging.KeyPath, note.Path, "problem", note.Problem)
	}
}

// writeChildren brings the children to what the hook wants. It reports whether
// all of them were written, and whether there was a plan at all.
func (p *Pass) writeChildren(ctx context.Context) (complete, planned bool) {
	made, err := plan.Make(p.PlanInput())
	if err != nil {
		p.fail(p.Unusable(err))
		return false, false
	}
	result := apply.RunWhile(ctx, p.Writer, made, parallelWrites, p.stillWanted())
	for _, done := range result.Done {
		cache := p.Caches.Children[done.Key.GroupKind()]
		switch {
		case done.Written != nil:
			p.wrote(cache, done.Written)
		case !done.Kept:
			p.deleted(cache, done.Key, done.Observed)
		}
	}
	p.memory.settled = result.Settled(made)
	for _, problem := range made.Problems() {
		p.problem(problem)
	}
	for _, failed := range result.Failed {
		// What settles itself is not among them, so it is not asked for again.
		p.fail(errors.New(failed.Err.Error()))
	}
	switch {
	case errors.Is(result.Interrupted, apply.ErrNotWanted):
		// What is wanted now is for the next pass.
		p.again = true
		return false, false
	case result.Interrupted != nil:
		p.fail(fmt.Errorf("cannot finish the children: %w", result.Interrupted))
	}
	p.again = p.again || result.Retry
	return len(result.Failed) == 0 && result.Interrupted == nil && !result.Retry, true
}

// problem notes a child that is not made.
func (p *Pass) problem(step plan.Step) {
	switch {
	case step.Reason == plan.Foreign && step.Observed != nil && object.LeftBehind(step.Observed, p.Parent) && p.memory.waits(p.Clock.Now()):
		// The garbage collector is at it; the deletion is an event of this parent.
		p.again = true
	case step.Reason == plan.Undeclared && len(p.Definition.Missing) > 0:
		p.fail(fmt.Errorf("%s (the API server does not serve these that are declared: %s)", step.Message, strings.Join(p.Definition.Missing, ", ")))
	default:
		which, _ := p.asked()
		p.fail(&hookError{which, errors.New(step.Message)})
	}
}

// PlanInput is what the plan of this pass is made of, as far as it is known.
func (p *Pass) PlanInput() plan.Input {
	in := plan.Input{
		Parent:     p.Parent,
		ServerSide: p.Writer.ServerSideApply(),
		Kinds:      p.Definition.PlanKinds(),
		Observed:   p.Children,
		Selector:   p.Selector,
		Lookup:     p.lookup,
		Settled:    p.memory.settled,
	}
	if p.Response != nil {
		in.Desired = p.Response.Children
	}
	p.Policy.Shape(p, &in)
	return in
}

// lookup finds an object of a child kind, whoever owns it.
func (p *Pass) lookup(key object.Key) *object.Object {
	if cache := p.Caches.Children[key.GroupKind()]; cache != nil {
		return cache.Get(key.Namespace, key.Name)
	}
	return nil
}

// wrote remembers a write until the cache shows it.
func (p *Pass) wrote(cache engine.Cache, written *object.Object) {
	if cache != nil {
		p.memory.pending = append(p.memory.pending, pending{cache: cache, at: p.Clock.Now(), version: written.ResourceVersion()})
	}
}

func (p *Pass) deleted(cache engine.Cache, key object.Key, observed *object.Object) {
	if cache != nil && observed != nil {
		p.memory.pending = append(p.memory.pending, pending{cache: cache, at: p.Clock.Now(), key: key, uid: observed.UID()})
	}
}
