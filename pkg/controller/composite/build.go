package composite

import (
	"context"
	"encoding/json"
	"fmt"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/declare"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/syncer"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// FinalizerPrefix is followed by the name of the CompositeController.
const FinalizerPrefix = "metacontroller.io/compositecontroller-"

// Builder makes controllers of CompositeControllers.
type Builder struct{ declare.Tools }

// Build makes the controller that a CompositeController declares. The error says
// what is wrong with it, or what is not there.
func (b *Builder) Build(ctx context.Context, declared *object.Object) (*engine.Controller, error) {
	var composite v1alpha1.CompositeController
	if err := json.Unmarshal([]byte(declared.Body()), &composite); err != nil {
		return nil, fmt.Errorf("cannot read the CompositeController: %w", err)
	}
	if err := check(&composite.Spec); err != nil {
		return nil, err
	}
	definition, err := b.define(ctx, composite.Name, &composite.Spec)
	if err != nil {
		return nil, err
	}
	if err := b.CheckHooks(&definition); err != nil {
		return nil, err
	}
	policy := policy{generated: definition.GenerateSelector}
	return &engine.Controller{
		Definition: definition,
		Selector:   policy.selectorOrNone,
		Start: func(caches engine.Caches) (engine.Syncer, error) {
			hooks, err := b.Hooks(&definition)
			if err != nil {
				return nil, err
			}
			return syncer.New(syncer.Deps{
				Definition: definition,
				Declared:   declared,
				Flavor:     hook.Composite,
				Policy:     policy,
				Caches:     caches,
				Hooks:      hooks,
				Writer:     b.Writer,
				Events:     b.Events,
				Clock:      b.Clock,
				Log:        b.Log,
			}), nil
		},
	}, nil
}

// define makes the plain data, with the resources that the spec names.
func (b *Builder) define(ctx context.Context, name string, spec *v1alpha1.CompositeControllerSpec) (engine.Definition, error) {
	definition := engine.Definition{
		Kind:         v1alpha1.CompositeControllerKind,
		Name:         name,
		Finalizer:    FinalizerPrefix + name,
		ResyncPeriod: b.Period(spec.ResyncPeriodSeconds),
		Endpoints:    spec.EndpointConfigs,
	}
	if spec.Hooks != nil {
		definition.Hooks = engine.Hooks{Sync: spec.Hooks.Sync, Finalize: spec.Hooks.Finalize, Customize: spec.Hooks.Customize}
	}
	if spec.GenerateSelector != nil {
		definition.GenerateSelector = *spec.GenerateSelector
	}

	rule := spec.ParentResource
	resource, err := b.Parent(ctx, "spec.parentResource", rule.ResourceRule)
	if err != nil {
		return definition, err
	}
	if resource.Custom && !resource.HasStatus {
		return definition, fmt.Errorf("spec.parentResource: %q in %q has no status subresource; set subresources.status for this version in its CustomResourceDefinition", rule.Resource, rule.APIVersion)
	}
	parent := engine.Parent{Kind: resource.Kind, HasStatus: resource.HasStatus}
	if parent.Selector, err = declare.Selector("spec.parentResource.labelSelector", rule.LabelSelector); err != nil {
		return definition, err
	}
	if rule.IgnoreStatusChanges != nil {
		parent.IgnoreStatusChanges = *rule.IgnoreStatusChanges
	}
	definition.Parents = []engine.Parent{parent}

	for i, child := range spec.ChildResources {
		var method v1alpha1.ChildUpdateMethod
		if child.UpdateStrategy != nil {
			method = child.UpdateStrategy.Method
		}
		if err := b.Child(ctx, &definition, fmt.Sprintf("spec.childResources[%d]", i), child.ResourceRule, method); err != nil {
			return definition, err
		}
	}
	return definition, nil
}

// check refuses what this version cannot do.
func check(spec *v1alpha1.CompositeControllerSpec) error {
	for i, child := range spec.ChildResources {
		if child.UpdateStrategy == nil {
			continue
		}
		switch child.UpdateStrategy.Method {
		case "", v1alpha1.ChildUpdateOnDelete, v1alpha1.ChildUpdateRecreate, v1alpha1.ChildUpdateInPlace:
		default:
			return declare.Unsupported(fmt.Sprintf("spec.childResources[%d].updateStrategy.method %q", i, child.UpdateStrategy.Method))
		}
	}
	return nil
}
