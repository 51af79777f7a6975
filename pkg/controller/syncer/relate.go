package syncer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/related"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// customizeAge is how long an answer of the customize hook is used at most: the
// hook itself may be another one by then.
const customizeAge = 20 * time.Minute

// customized is the answer of the customize hook about one state of a parent. The
// hook is shown nothing but that state and the object that declares the
// controller. So the answer holds until one of them changes in any way, be it by
// the status that a pass wrote. An answer that was of no use is not remembered.
type customized struct {
	// declared is the object that declares the controller, which the hook was
	// shown too.
	declared *object.Object
	// resourceVersion is the state. What is remembered is of one uid.
	resourceVersion string
	at              time.Time
	answer          []v1alpha1.RelatedResourceRule
	// kinds are what the answer's rules named when rules were made of it.
	kinds []object.Kind
	rules *related.Rules
}

// relate finds the related objects that the hook is to be shown. It reports
// whether the pass goes on.
func (p *Pass) relate(ctx context.Context) bool {
	p.Related = object.NewSet(nil)
	if p.Hooks.Customize == nil {
		return true
	}
	rules, err := p.customize(ctx)
	if err == nil {
		p.Related, err = p.selectRelated(rules)
	}
	switch {
	case err == nil:
		p.Hooks.Customize.Caller.Accept(p.aboutCustomize())
	case errors.Is(err, engine.ErrFilling):
		p.again = true
	default:
		p.memory.customized = nil
		p.fail(err)
	}
	return err == nil
}

// selectRelated reads the objects that the rules select.
func (p *Pass) selectRelated(rules *related.Rules) (*object.Set, error) {
	// First known to those who follow changes, then read: see engine.Related.
	if err := p.Caches.Related.Set(p.Parent.Key(), rules); err != nil {
		return nil, err
	}
	found, err := p.Caches.Related.Select(p.Parent.Key(), rules)
	var unreadable *engine.CopyError
	if errors.As(err, &unreadable) && !errors.Is(err, engine.ErrFilling) {
		return nil, p.badRules(&object.FieldError{
			Path:    rules.Users(unreadable.Kind)[0],
			Problem: fmt.Sprintf("asks for objects that cannot be had: %v; may the controller list and watch them?", err),
		})
	}
	if err != nil {
		return nil, err
	}
	return p.withOwnWrites(found), nil
}

// customize returns the parent's rules. It calls the hook if its last answer was
// about another state of the parent.
func (p *Pass) customize(ctx context.Context) (*related.Rules, error) {
	known := p.memory.customized
	if known == nil || known.declared != p.Declared || known.resourceVersion != p.Parent.ResourceVersion() || p.Clock.Since(known.at) > customizeAge {
		answer, err := p.askCustomize(ctx)
		if err != nil {
			return nil, err
		}
		known = &customized{declared: p.Declared, resourceVersion: p.Parent.ResourceVersion(), at: p.Clock.Now(), answer: answer}
		p.memory.customized = known
	}
	kinds, err := p.lookUp(ctx, known.answer)
	if err != nil {
		return nil, p.badRules(err)
	}
	if known.rules == nil || !slices.Equal(known.kinds, kinds) {
		// A kind that was made again may have another scope.
		known.rules, err = related.Check(known.answer, kinds, p.viewer())
		if err != nil {
			return nil, p.badRules(err)
		}
		known.kinds = kinds
	}
	return known.rules, nil
}

// aboutCustomize is what the customize hook is asked about.
func (p *Pass) aboutCustomize() string { return string(p.Parent.UID()) }

// askCustomize calls the hook.
func (p *Pass) askCustomize(ctx context.Context) ([]v1alpha1.RelatedResourceRule, error) {
	asked := p.Hooks.Customize
	body, err := asked.Codec.EncodeRequest(&hook.Request{
		Flavor: p.Flavor, Call: hook.Customize, Controller: p.Declared, Parent: p.Parent,
	})
	if err != nil {
		return nil, &hookError{hook.Customize, fmt.Errorf("cannot encode request to the %s hook: %w", hook.Customize, err)}
	}
	answer, err := asked.Caller.Call(ctx, p.aboutCustomize(), body)
	if err != nil {
		return nil, &hookError{hook.Customize, fmt.Errorf("%s hook at %s %w", hook.Customize, asked.Caller.URL(), err)}
	}
	defer hold(answer)()
	response, notes, err := asked.Codec.DecodeCustomize(answer)
	p.logUnknown(hook.Customize, notes)
	if err != nil {
		return nil, p.badRules(err)
	}
	return response.Rules, nil
}

func (p *Pass) badRules(err error) error {
	return unusable(hook.Customize, p.Hooks.Customize, err)
}

// lookUp finds the kinds that the rules name. It costs no call of the API server
// unless one is not known.
func (p *Pass) lookUp(ctx context.Context, rules []v1alpha1.RelatedResourceRule) ([]object.Kind, error) {
	kinds := make([]object.Kind, 0, len(rules))
	var problems []error
	for i := range rules {
		kind, err := p.Caches.Related.Kind(ctx, p.Parent.Key(), rules[i].APIVersion, rules[i].Resource)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", related.PathOf(i), err))
		}
		if len(problems) == toldProblems {
			// Each may have been a call of the API server.
			break
		}
		kinds = append(kinds, kind)
	}
	return kinds, errors.Join(problems...)
}

// viewer is what the rules of the parent may ask for. Which objects a request
// shows follows from the version of the hook that it goes to; where all of them
// are v1, no other object needs to be looked for.
func (p *Pass) viewer() related.Viewer {
	confined := true
	for _, shown := range []*Hook{p.Hooks.Sync, p.Hooks.Finalize} {
		if shown != nil && shown.Codec.Version == v1alpha1.HookVersionV2 {
			confined = false
		}
	}
	return related.Viewer{Namespace: p.Parent.Namespace(), Version: p.Hooks.Customize.Codec.Version, Confined: confined}
}

// withOwnWrites puts what this pass knows in the place of what the copies have:
// the parent, which may have got its finalizer just now, and children, some of
// which it may have taken. One request shows one object in one state.
func (p *Pass) withOwnWrites(found *object.Set) *object.Set {
	var groups []object.Group
	for i, group := range found.Groups() {
		for j, o := range group.Objects {
			known := p.Children.Get(o.Key())
			if o.Key() == p.Parent.Key() {
				known = p.Parent
			}
			if known == nil || known == o || known.APIVersion() != o.APIVersion() || known.UID() != o.UID() {
				continue
			}
			if groups == nil {
				groups = slices.Clone(found.Groups())
			}
			if &groups[i].Objects[0] == &group.Objects[0] {
				groups[i].Objects = slices.Clone(group.Objects)
			}
			groups[i].Objects[j] = known
		}
	}
	if groups == nil {
		return found
	}
	return object.SetOf(groups...)
}
