package composite

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/declare"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/controller/revision"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Builder makes controllers of CompositeControllers.
type Builder struct{ declare.Tools }

// Build makes the controller that a CompositeController declares. The error says
// what is wrong with it, or what is not there.
func (b *Builder) Build(ctx context.Context, declared *object.Object) (*engine.Controller, error) {
	var composite v1alpha1.CompositeController
	if err := json.Unmarshal(declared.Bytes(), &composite); err != nil {
		return nil, fmt.Errorf("cannot read the CompositeController: %w", err)
	}
	definition, err := b.define(ctx, composite.Name, &composite.Spec)
	if err != nil {
		return nil, err
	}
	policy := policy{generated: definition.GenerateSelector}
	controller, err := b.Controller(definition, declared, hook.Composite, policy)
	if err != nil {
		return nil, err
	}
	controller.Selector = policy.selectorOrNone
	return controller, nil
}

// define makes the plain data, with the resources that the spec names.
func (b *Builder) define(ctx context.Context, name string, spec *v1alpha1.CompositeControllerSpec) (engine.Definition, error) {
	definition := engine.Definition{
		Kind:         v1alpha1.CompositeControllerKind,
		Name:         name,
		Finalizer:    declare.Finalizer(v1alpha1.CompositeControllerKind, name),
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
		var strategy v1alpha1.CompositeControllerChildUpdateStrategy
		if child.UpdateStrategy != nil {
			strategy = *child.UpdateStrategy
		}
		there := len(definition.Children)
		if err := b.Child(ctx, &definition, fmt.Sprintf("spec.childResources[%d]", i), child.ResourceRule, strategy.Method); err != nil {
			return definition, err
		}
		if len(definition.Children) > there && rolls(strategy.Method) {
			definition.Children[there].Checks = strategy.StatusChecks.Conditions
		}
	}
	definition.Revisions, err = b.revisions(ctx, &definition, rule.RevisionHistory)
	return definition, err
}

// revisions says what the revisions of the parents are, nil if no kind of
// children rolls, or there is no sync hook, so that nothing does.
func (b *Builder) revisions(ctx context.Context, definition *engine.Definition, history *v1alpha1.CompositeControllerRevisionHistory) (*revision.Source, error) {
	if definition.Hooks.Sync == nil || !slices.ContainsFunc(definition.Children, func(child engine.Child) bool { return rolls(child.Method) }) {
		return nil, nil
	}
	var declared []string
	if history != nil {
		declared = history.FieldPaths
	}
	paths, err := revision.ParsePaths(declared)
	if err != nil {
		return nil, declare.Invalid("spec.parentResource.revisionHistory.fieldPaths%w", err)
	}
	stored, _, err := b.Lookup(ctx, v1alpha1.GroupVersion.String(), v1alpha1.ControllerRevisionResource)
	if err != nil {
		return nil, fmt.Errorf("spec.childResources: a rolling update method needs ControllerRevisions; install their CustomResourceDefinition: %w", err)
	}
	source := &revision.Source{
		Kind: stored.Kind, Namespace: b.Namespace, Paths: paths,
		Parent: definition.Parents[0].Kind, Generated: definition.GenerateSelector,
	}
	for _, child := range definition.Children {
		source.Children = append(source.Children, revision.ChildKind{Kind: child.Kind, Rolls: rolls(child.Method)})
	}
	return source, nil
}

func rolls(method v1alpha1.ChildUpdateMethod) bool {
	return method == v1alpha1.ChildUpdateRollingRecreate || method == v1alpha1.ChildUpdateRollingInPlace
}
