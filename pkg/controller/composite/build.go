package composite

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/hook/wire"
	"github.com/metacontroller-solo/solo/pkg/controller/plan"
	"github.com/metacontroller-solo/solo/pkg/controller/syncer"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// FinalizerPrefix is followed by the name of the CompositeController.
const FinalizerPrefix = "metacontroller.io/compositecontroller-"

// Resource is what discovery knows of a resource.
type Resource struct {
	object.Kind
	// HasStatus says that it has a status subresource.
	HasStatus bool
	// Custom says that a CustomResourceDefinition made it.
	Custom bool
}

// Builder makes controllers of CompositeControllers.
type Builder struct {
	// Lookup finds a resource by its plural name. Absent is true if the API
	// server is known not to serve it; another error may pass.
	Lookup func(ctx context.Context, apiVersion, resource string) (found Resource, absent bool, err error)
	// Caller makes what calls a hook.
	Caller func(controller string, which hook.Call, webhook *v1alpha1.Webhook) (syncer.Caller, error)
	Writer syncer.Writer
	Events engine.Recorder
	Clock  clock.PassiveClock
	Log    logr.Logger
	// ResyncPeriod of controllers that do not say; 0 means none.
	ResyncPeriod time.Duration
}

// Build makes the controller that a CompositeController declares. The error says
// what is wrong with it, or what is not there.
func (b *Builder) Build(ctx context.Context, declared *object.Object) (*engine.Controller, error) {
	var composite v1alpha1.CompositeController
	if err := json.Unmarshal([]byte(declared.Body()), &composite); err != nil {
		return nil, fmt.Errorf("cannot read the CompositeController: %w", err)
	}
	spec := &composite.Spec
	if err := check(spec); err != nil {
		return nil, err
	}
	definition, err := b.define(ctx, composite.Name, spec)
	if err != nil {
		return nil, err
	}
	for _, which := range []hook.Call{hook.Sync, hook.Finalize} {
		// A webhook that says nowhere to call is found now, while the controller
		// that runs still does.
		if declaredHook := hookOf(spec, which); declaredHook != nil {
			caller, err := b.Caller(composite.Name, which, declaredHook.Webhook)
			if err != nil {
				return nil, invalid("spec.hooks.%s %w", which, err)
			}
			caller.Close()
		}
	}
	policy := policy{generated: definition.GenerateSelector}
	return &engine.Controller{
		Definition: definition,
		Selector:   policy.selectorOrNone,
		Start: func(caches engine.Caches) (engine.Syncer, error) {
			deps := syncer.Deps{
				Definition: definition,
				Declared:   declared,
				Flavor:     hook.Composite,
				Policy:     policy,
				Caches:     caches,
				Writer:     b.Writer,
				Events:     b.Events,
				Clock:      b.Clock,
				Log:        b.Log,
			}
			var err error
			if deps.Sync, err = b.hook(composite.Name, hook.Sync, spec); err != nil {
				return nil, err
			}
			if deps.Finalize, err = b.hook(composite.Name, hook.Finalize, spec); err != nil {
				if deps.Sync != nil {
					deps.Sync.Caller.Close()
				}
				return nil, err
			}
			return syncer.New(deps), nil
		},
	}, nil
}

func (b *Builder) hook(controller string, which hook.Call, spec *v1alpha1.CompositeControllerSpec) (*syncer.Hook, error) {
	declared := hookOf(spec, which)
	if declared == nil {
		return nil, nil
	}
	caller, err := b.Caller(controller, which, declared.Webhook)
	if err != nil {
		return nil, fmt.Errorf("spec.hooks.%s %w", which, err)
	}
	return &syncer.Hook{Codec: wire.NewCodec(declared), Caller: caller}, nil
}

func hookOf(spec *v1alpha1.CompositeControllerSpec, which hook.Call) *v1alpha1.Hook {
	switch {
	case spec.Hooks == nil:
		return nil
	case which == hook.Sync:
		return spec.Hooks.Sync
	case which == hook.Finalize:
		return spec.Hooks.Finalize
	default:
		return nil
	}
}

// define makes the plain data, with the resources that the spec names.
func (b *Builder) define(ctx context.Context, name string, spec *v1alpha1.CompositeControllerSpec) (engine.Definition, error) {
	definition := engine.Definition{
		Kind:         v1alpha1.CompositeControllerKind,
		Name:         name,
		Finalizer:    FinalizerPrefix + name,
		ResyncPeriod: b.ResyncPeriod,
		Hooks:        engine.Hooks{Sync: hookOf(spec, hook.Sync), Finalize: hookOf(spec, hook.Finalize)},
	}
	if spec.GenerateSelector != nil {
		definition.GenerateSelector = *spec.GenerateSelector
	}
	if spec.ResyncPeriodSeconds != nil {
		period := time.Duration(*spec.ResyncPeriodSeconds) * time.Second
		if definition.ResyncPeriod == 0 || period < definition.ResyncPeriod {
			definition.ResyncPeriod = period
		}
	}

	rule := spec.ParentResource
	resource, absent, err := b.Lookup(ctx, rule.APIVersion, rule.Resource)
	if err != nil {
		err = fmt.Errorf("spec.parentResource: %w", err)
		if absent {
			return definition, &engine.AbsentError{Err: err}
		}
		return definition, err
	}
	if resource.Custom && !resource.HasStatus {
		return definition, fmt.Errorf("spec.parentResource: %q in %q has no status subresource; set subresources.status for this version in its CustomResourceDefinition", rule.Resource, rule.APIVersion)
	}
	parent := engine.Parent{Kind: resource.Kind, HasStatus: resource.HasStatus, Selector: labels.Everything()}
	if rule.LabelSelector != nil {
		if parent.Selector, err = metav1.LabelSelectorAsSelector(rule.LabelSelector); err != nil {
			return definition, invalid("spec.parentResource.labelSelector: %w", err)
		}
	}
	if rule.IgnoreStatusChanges != nil {
		parent.IgnoreStatusChanges = *rule.IgnoreStatusChanges
	}
	definition.Parents = []engine.Parent{parent}

	for i, child := range spec.ChildResources {
		resource, absent, err := b.Lookup(ctx, child.APIVersion, child.Resource)
		if absent {
			definition.Missing = append(definition.Missing, child.Resource+" in "+child.APIVersion)
			continue
		}
		if err != nil {
			return definition, fmt.Errorf("spec.childResources[%d]: %w", i, err)
		}
		for _, earlier := range definition.Children {
			if earlier.GroupKind() == resource.GroupKind() {
				return definition, invalid("spec.childResources[%d]: %q of group %q is declared twice", i, child.Resource, resource.Group)
			}
		}
		kind := plan.Kind{Kind: resource.Kind, Method: v1alpha1.ChildUpdateOnDelete}
		if child.UpdateStrategy != nil && child.UpdateStrategy.Method != "" {
			kind.Method = child.UpdateStrategy.Method
		}
		definition.Children = append(definition.Children, kind)
	}
	return definition, nil
}

// check refuses what a spec asks for and this version cannot do: to ignore it
// would be to do something else than was asked.
func check(spec *v1alpha1.CompositeControllerSpec) error {
	hooks := spec.Hooks
	if hooks == nil || hooks.Sync == nil && hooks.Finalize == nil {
		return invalid("spec.hooks has neither sync nor finalize, so there is nothing to do")
	}
	if hooks.Customize != nil {
		return unsupported("spec.hooks.customize")
	}
	if len(spec.EndpointConfigs) > 0 {
		return unsupported("spec.endpointConfigs")
	}
	for i, child := range spec.ChildResources {
		if child.UpdateStrategy == nil {
			continue
		}
		switch child.UpdateStrategy.Method {
		case "", v1alpha1.ChildUpdateOnDelete, v1alpha1.ChildUpdateRecreate, v1alpha1.ChildUpdateInPlace:
		default:
			return unsupported(fmt.Sprintf("spec.childResources[%d].updateStrategy.method %q", i, child.UpdateStrategy.Method))
		}
	}
	for _, which := range []hook.Call{hook.Sync, hook.Finalize} {
		if declared := hookOf(spec, which); declared != nil {
			if err := checkHook(fmt.Sprintf("spec.hooks.%s", which), declared); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkHook(path string, declared *v1alpha1.Hook) error {
	webhook := declared.Webhook
	if webhook == nil {
		return nil
	}
	path += ".webhook."
	switch {
	case webhook.Etag != nil && webhook.Etag.Enabled != nil && *webhook.Etag.Enabled:
		return unsupported(path + "etag")
	case webhook.CABundle != nil:
		return unsupported(path + "caBundle")
	case webhook.ClientTLS != nil:
		return unsupported(path + "clientTLS")
	case webhook.Authorization != nil:
		return unsupported(path + "authorization")
	case webhook.BasicAuth != nil:
		return unsupported(path + "basicAuth")
	}
	return nil
}

func unsupported(field string) error {
	return invalid("%s is not supported by this version; remove it, or use a version that supports it", field)
}

// invalid is an error that only another spec mends.
func invalid(format string, arguments ...any) error {
	return &engine.InvalidError{Err: fmt.Errorf(format, arguments...)}
}
