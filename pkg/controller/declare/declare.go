// Package declare is what the two kinds of objects that declare controllers have
// in common on their way to an engine.Definition:
//
//	CompositeController ─ composite ─┐
//	                                 ├─> declare: resources, hooks, periods ─> engine.Controller
//	DecoratorController ─ decorator ─┘
package declare

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/clock"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/hook/wire"
	"github.com/metacontroller-solo/solo/pkg/controller/syncer"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Resource is what discovery knows of a resource.
type Resource struct {
	object.Kind
	// HasStatus says that it has a status subresource.
	HasStatus bool
	// Custom says that a CustomResourceDefinition made it.
	Custom bool
}

// UnavailableError is an error of Tools.Lookup that says that the server behind a
// group does not answer now.
type UnavailableError struct{ Err error }

func (e *UnavailableError) Error() string { return e.Err.Error() }

func (e *UnavailableError) Unwrap() error { return e.Err }

// Tools are what controllers are made with.
type Tools struct {
	// Lookup finds a resource by its plural name. Absent is true if the API
	// server is known not to serve it; another error may pass.
	Lookup func(ctx context.Context, apiVersion, resource string) (found Resource, absent bool, err error)
	// StatusField says whether status is a field of a custom resource that has no
	// status subresource: one that the API server would keep.
	StatusField func(ctx context.Context, kind object.Kind) (bool, error)
	// Caller makes what calls a hook.
	Caller func(Webhook) (syncer.Caller, error)
	Writer syncer.Writer
	Events engine.Recorder
	Clock  clock.PassiveClock
	Log    logr.Logger
	// Namespace is that of the program itself: what belongs to a cluster-scoped
	// parent and has to be in a namespace is in this one.
	Namespace string
	// ResyncPeriod of controllers that do not say; 0 means none.
	ResyncPeriod time.Duration
}

// Webhook is one hook of one controller, to be called.
type Webhook struct {
	// Kind and Name of the object that declares the controller.
	Kind, Name string
	Which      hook.Call
	Webhook    *v1alpha1.Webhook
	// Endpoints are the controller's endpointConfigs.
	Endpoints []v1alpha1.EndpointConfig
}

// Parent is the kind of parents that a rule at path names.
func (t *Tools) Parent(ctx context.Context, path string, rule v1alpha1.ResourceRule) (Resource, error) {
	resource, absent, err := t.Lookup(ctx, rule.APIVersion, rule.Resource)
	switch {
	case absent:
		return Resource{}, &engine.AbsentError{Err: fmt.Errorf("%s: %w", path, err)}
	case err != nil:
		return Resource{}, fmt.Errorf("%s: %w", path, err)
	default:
		return resource, nil
	}
}

// Child adds the kind of children that a rule at path names to a definition, in
// its turn: one that the API server does not serve, or not now, is among the
// missing.
func (t *Tools) Child(ctx context.Context, definition *engine.Definition, path string, rule v1alpha1.ResourceRule, method v1alpha1.ChildUpdateMethod) error {
	resource, absent, err := t.Lookup(ctx, rule.APIVersion, rule.Resource)
	var unavailable *UnavailableError
	if absent || errors.As(err, &unavailable) {
		definition.Missing = append(definition.Missing, Describe(rule))
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for _, earlier := range definition.Children {
		if earlier.GroupKind() == resource.GroupKind() {
			return Invalid("%s: %q of group %q is declared twice", path, rule.Resource, resource.Group)
		}
	}
	if method == "" {
		method = v1alpha1.ChildUpdateOnDelete
	}
	child := engine.Child{Kind: resource.Kind, Method: method}
	definition.Children = append(definition.Children, child)
	return nil
}

// Describe names a resource in a message.
func Describe(rule v1alpha1.ResourceRule) string { return rule.Resource + " in " + rule.APIVersion }

// Absent says that an error of Parent is that the API server does not serve it.
func Absent(err error) bool {
	var absent *engine.AbsentError
	return errors.As(err, &absent)
}

// Selector is the selector that a spec has at path; absent means everything.
func Selector(path string, declared *metav1.LabelSelector) (labels.Selector, error) {
	if declared == nil {
		return labels.Everything(), nil
	}
	selector, err := metav1.LabelSelectorAsSelector(declared)
	if err != nil {
		return nil, Invalid("%s: %w", path, err)
	}
	return selector, nil
}

// Period is how often a parent is synced though nothing happens, for a controller
// whose spec says this many seconds.
func (t *Tools) Period(seconds *int32) time.Duration {
	if seconds != nil {
		period := time.Duration(*seconds) * time.Second
		if t.ResyncPeriod == 0 || period < t.ResyncPeriod {
			return period
		}
	}
	return t.ResyncPeriod
}

// maxFinalizerName is how long what follows the domain of a finalizer may be: see
// k8s.io/apimachinery/pkg/util/validation.IsQualifiedName.
const maxFinalizerName = 63

// CheckHooks finds out whether the hooks of a definition can be called, while a
// controller that runs still does.
func (t *Tools) CheckHooks(definition *engine.Definition) error {
	if definition.Hooks.Sync == nil && definition.Hooks.Finalize == nil {
		return Invalid("spec.hooks has neither sync nor finalize, so there is nothing to do")
	}
	if definition.Hooks.Finalize != nil && len(validation.IsQualifiedName(definition.Finalizer)) > 0 {
		// No parent could be synced: each needs the finalizer first.
		longest := maxFinalizerName - (len(definition.Finalizer) - len(engine.FinalizerDomain) - len(definition.Name))
		return Invalid("metadata.name has %d characters, and with spec.hooks.finalize it may have %d: it is part of the finalizer %q; give the controller a shorter name",
			len(definition.Name), longest, definition.Finalizer)
	}
	hooks, err := t.Hooks(definition)
	if err != nil {
		return &engine.InvalidError{Err: err}
	}
	hooks.Close()
	return nil
}

// Hooks makes the hooks of a definition ready to be called. They must be closed.
func (t *Tools) Hooks(definition *engine.Definition) (syncer.Hooks, error) {
	var hooks syncer.Hooks
	for _, one := range []struct {
		which    hook.Call
		declared *v1alpha1.Hook
		into     **syncer.Hook
	}{
		{hook.Sync, definition.Hooks.Sync, &hooks.Sync},
		{hook.Finalize, definition.Hooks.Finalize, &hooks.Finalize},
		{hook.Customize, definition.Hooks.Customize, &hooks.Customize},
	} {
		if one.declared == nil {
			continue
		}
		caller, err := t.Caller(Webhook{
			Kind: definition.Kind, Name: definition.Name, Which: one.which,
			Webhook: one.declared.Webhook, Endpoints: definition.Endpoints,
		})
		if err != nil {
			hooks.Close()
			return syncer.Hooks{}, fmt.Errorf("spec.hooks.%s %w", one.which, err)
		}
		*one.into = &syncer.Hook{Codec: wire.NewCodec(one.declared), Caller: caller}
	}
	return hooks, nil
}

// Controller makes the controller of a definition, if its hooks can be called.
func (t *Tools) Controller(definition engine.Definition, declared *object.Object, flavor hook.Flavor, policy syncer.Policy) (*engine.Controller, error) {
	if err := t.CheckHooks(&definition); err != nil {
		return nil, err
	}
	return &engine.Controller{
		Definition: definition,
		Start: func(caches engine.Caches) (engine.Syncer, error) {
			hooks, err := t.Hooks(&definition)
			if err != nil {
				return nil, err
			}
			return syncer.New(syncer.Deps{
				Definition: definition,
				Declared:   declared,
				Flavor:     flavor,
				Policy:     policy,
				Caches:     caches,
				Hooks:      hooks,
				Writer:     t.Writer,
				Events:     t.Events,
				Clock:      t.Clock,
				Log:        t.Log,
			}), nil
		},
	}, nil
}

// Invalid is an error that only another spec mends.
func Invalid(format string, arguments ...any) error {
	return &engine.InvalidError{Err: fmt.Errorf(format, arguments...)}
}
