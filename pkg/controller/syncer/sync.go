package syncer

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/metacontroller-solo/solo/pkg/controller/apply"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
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
}

// New makes a Syncer.
func New(deps Deps) *Syncer {
	return &Syncer{Deps: deps, memories: memories{of: map[object.Key]*memory{}}}
}

// Close gives back the hooks.
func (s *Syncer) Close() { s.Hooks.Close() }

// Sync makes one pass for the parent with this key.
func (s *Syncer) Sync(ctx context.Context, key object.Key) (outcome engine.Outcome) {
	rule := s.Definition.Parent(key.GroupKind())
	cache := s.Caches.Parents[key.GroupKind()]
	if rule == nil || cache == nil {
		return engine.Outcome{Verdict: engine.Done}
	}
	parent := cache.Get(key.Namespace, key.Name)
	if parent == nil {
		s.forget(key)
		return engine.Outcome{Verdict: engine.Done}
	}
	pass := &Pass{Syncer: s, Rule: rule, Parent: parent, memory: s.memories.recall(parent)}
	defer func() {
		if recovered := recover(); recovered != nil {
			s.Log.Error(fmt.Errorf("panic: %v", recovered), "Recovered from a panic in a sync",
				logging.KeyParent, key.String(), "stack", string(debug.Stack()))
			pass.fail(fmt.Errorf("the sync broke off by a fault of the program: %v", recovered))
			outcome = pass.outcome(ctx)
		}
	}()
	if write := pass.memory.behind(); write != nil {
		return s.behind(write)
	}
	pass.run(ctx)
	return pass.outcome(ctx)
}

// forget frees what is remembered of a parent that is gone, or not ours.
func (s *Syncer) forget(parent object.Key) {
	s.memories.forget(parent)
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
	children := true
	if managed && p.Response.ChildrenPresence != hook.Absent {
		var planned bool
		if children, planned = p.writeChildren(ctx); !planned {
			// The answer as a whole is wrong; its status is not to be trusted.
			return
		}
	}
	if err := p.Policy.After(ctx, p); err != nil {
		p.fail(err)
		return
	}
	if p.Mode == ModeFinalize && p.Response.Finalized && children {
		p.removeFinalizer(ctx)
	}
}

// settleFinalizer puts the finalizer on, or takes off one that no hook needs. It
// reports whether the pass goes on.
func (p *Pass) settleFinalizer(ctx context.Context) bool {
	name := p.Definition.Finalizer
	switch has, wanted := p.Parent.HasFinalizer(name), p.Definition.Hooks.Finalize != nil; {
	case p.Mode == ModeRelease || has && !wanted:
		return p.removeFinalizer(ctx)
	case !has && wanted && p.Mode != ModeFinalize:
		return p.writeParent("add the finalizer to", func() (*object.Object, error) {
			return p.Writer.SetFinalizers(ctx, p.Rule.Kind, p.Parent, append(slices.Clone(p.Parent.Finalizers()), name))
		})
	}
	return true
}

func (p *Pass) removeFinalizer(ctx context.Context) bool {
	name := p.Definition.Finalizer
	if !p.Parent.HasFinalizer(name) {
		return true
	}
	return p.writeParent("remove the finalizer from", func() (*object.Object, error) {
		return p.Writer.SetFinalizers(ctx, p.Rule.Kind, p.Parent, slices.DeleteFunc(slices.Clone(p.Parent.Finalizers()), func(f string) bool { return f == name }))
	})
}

// writeParent writes the parent and reports whether the pass goes on.
func (p *Pass) writeParent(what string, write func() (*object.Object, error)) bool {
	written, err := write()
	if err != nil {
		p.fail(fmt.Errorf("cannot %s %q: %w", what, p.Parent, err))
		return false
	}
	p.wrote(p.Caches.Parents[written.Key().GroupKind()], written)
	p.Parent = written
	return true
}

// Ask calls the hook of the pass for a state of the parent. Revision tells
// several states of one parent apart that are asked about in one pass; it is
// empty for the parent as it is. Ask may be called by several goroutines at once.
func (p *Pass) Ask(ctx context.Context, parent *object.Object, revision string) (*hook.Response, error) {
	which, asked := hook.Sync, p.Hooks.Sync
	if p.Mode == ModeFinalize {
		which, asked = hook.Finalize, p.Hooks.Finalize
	}
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
	response, notes, err := asked.Codec.DecodeResponse(request, answer)
	for _, note := range notes {
		p.Log.V(4).Info("Field in the answer of a hook is not known", logging.KeyHook, which.String(),
			logging.KeyParent, parent.Key().String(), "field", note.Path, "problem", note.Problem)
	}
	if err != nil {
		return nil, fmt.Errorf("%s hook at %s gave an answer that cannot be used: %w", which, asked.Caller.URL(), err)
	}
	asked.Caller.Accept(about)
	return response, nil
}

// writeChildren brings the children to what the hook wants. It reports whether
// all of them were written, and whether there was a plan at all.
func (p *Pass) writeChildren(ctx context.Context) (complete, planned bool) {
	in := plan.Input{
		Parent:   p.Parent,
		Kinds:    p.Definition.PlanKinds(),
		Observed: p.Children,
		Desired:  p.Response.Children,
		Selector: p.Selector,
		Lookup:   p.lookup,
		Settled:  p.memory.settled,
	}
	p.Policy.Shape(p, &in)
	made, err := plan.Make(in)
	if err != nil {
		p.fail(err)
		return false, false
	}
	result := apply.Run(ctx, p.Writer, made, parallelWrites)
	for _, done := range result.Done {
		cache := p.Caches.Children[done.Key.GroupKind()]
		if done.Written != nil {
			p.wrote(cache, done.Written)
		} else {
			p.deleted(cache, done.Key, done.Observed)
		}
	}
	p.memory.settled = result.Settled(made)
	for _, problem := range made.Problems() {
		p.fail(errors.New(problem.Message))
	}
	if err := result.Err(); err != nil {
		p.fail(err)
	}
	p.again = p.again || result.Retry
	return len(result.Failed) == 0 && result.Interrupted == nil && !result.Retry, true
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
