package decorator

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/declare"
	"github.com/metacontroller-solo/solo/pkg/controller/engine"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Builder makes controllers of DecoratorControllers.
type Builder struct{ declare.Tools }

// Build makes the controller that a DecoratorController declares. The error says
// what is wrong with it, or what is not there.
func (b *Builder) Build(ctx context.Context, declared *object.Object) (*engine.Controller, error) {
	var decorator v1alpha1.DecoratorController
	if err := json.Unmarshal(declared.Bytes(), &decorator); err != nil {
		return nil, fmt.Errorf("cannot read the DecoratorController: %w", err)
	}
	definition, err := b.define(ctx, decorator.Name, &decorator.Spec)
	if err != nil {
		return nil, err
	}
	return b.Controller(definition, declared, hook.Decorator, policy{})
}

// define makes the plain data, with the resources that the spec names.
func (b *Builder) define(ctx context.Context, name string, spec *v1alpha1.DecoratorControllerSpec) (engine.Definition, error) {
	definition := engine.Definition{
		Kind:         v1alpha1.DecoratorControllerKind,
		Name:         name,
		Finalizer:    declare.Finalizer(v1alpha1.DecoratorControllerKind, name),
		Mark:         name,
		ResyncPeriod: b.Period(spec.ResyncPeriodSeconds),
		Endpoints:    spec.EndpointConfigs,
	}
	if spec.Hooks != nil {
		definition.Hooks = engine.Hooks{Sync: spec.Hooks.Sync, Finalize: spec.Hooks.Finalize, Customize: spec.Hooks.Customize}
	}
	if err := b.parents(ctx, &definition, spec.Resources); err != nil {
		return definition, err
	}
	for i, attachment := range spec.Attachments {
		var method v1alpha1.ChildUpdateMethod
		if attachment.UpdateStrategy != nil {
			method = plain(attachment.UpdateStrategy.Method)
		}
		if err := b.Child(ctx, &definition, fmt.Sprintf("spec.attachments[%d]", i), attachment.ResourceRule, method); err != nil {
			return definition, err
		}
	}
	excludeAttachments(&definition)
	return definition, nil
}

// plain is the method as it acts here: attachments are not rolled.
func plain(method v1alpha1.ChildUpdateMethod) v1alpha1.ChildUpdateMethod {
	switch method {
	case v1alpha1.ChildUpdateRollingRecreate:
		return v1alpha1.ChildUpdateRecreate
	case v1alpha1.ChildUpdateRollingInPlace:
		return v1alpha1.ChildUpdateInPlace
	default:
		return method
	}
}

// parents adds the kinds that are decorated to a definition. One that the API
// server does not serve is among the missing, unless it serves none of them.
func (b *Builder) parents(ctx context.Context, definition *engine.Definition, declared []v1alpha1.DecoratorControllerResourceRule) error {
	if len(declared) == 0 {
		return declare.Invalid("spec.resources is empty, so there is nothing to decorate")
	}
	var absent error
	for i, one := range declared {
		path := fmt.Sprintf("spec.resources[%d]", i)
		rule, err := ruleOf(path, one)
		if err != nil {
			return err
		}
		resource, err := b.Parent(ctx, path, one.ResourceRule)
		if declare.Absent(err) {
			definition.Missing = append(definition.Missing, declare.Describe(one.ResourceRule))
			absent = err
			continue
		}
		if err != nil {
			return err
		}
		if known := definition.Parent(resource.GroupKind()); known != nil {
			if known.Version != resource.Version {
				return declare.Invalid("%s: %q is declared in %q and, before, in %q; declare it in one version, hooks are shown its objects in that one",
					path, one.Resource, one.APIVersion, known.APIVersion())
			}
			known.Or = append(known.Or, rule)
			continue
		}
		parent := engine.Parent{
			Kind: resource.Kind, HasStatus: resource.HasStatus,
			Selector: rule.Selector, Annotations: rule.Annotations, IgnoreStatusChanges: rule.IgnoreStatusChanges,
		}
		// Built-in kinds that have a status have the subresource.
		if resource.Custom && !resource.HasStatus {
			if parent.StatusField, err = b.StatusField(ctx, resource.Kind); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
		}
		definition.Parents = append(definition.Parents, parent)
	}
	if len(definition.Parents) == 0 {
		return absent
	}
	return nil
}

func ruleOf(path string, declared v1alpha1.DecoratorControllerResourceRule) (engine.Rule, error) {
	var (
		rule engine.Rule
		err  error
	)
	if rule.Selector, err = declare.Selector(path+".labelSelector", declared.LabelSelector); err != nil {
		return rule, err
	}
	if rule.Annotations, err = annotationSelector(path+".annotationSelector", declared.AnnotationSelector); err != nil {
		return rule, err
	}
	if declared.IgnoreStatusChanges != nil {
		rule.IgnoreStatusChanges = *declared.IgnoreStatusChanges
	}
	return rule, nil
}

// annotationSelector checks what a label selector would be refused for. Values
// may be anything, as those of annotations may; that is why it cannot become a
// label selector.
func annotationSelector(path string, declared *v1alpha1.AnnotationSelector) (*v1alpha1.AnnotationSelector, error) {
	if declared == nil || len(declared.MatchAnnotations) == 0 && len(declared.MatchExpressions) == 0 {
		return nil, nil
	}
	for key := range declared.MatchAnnotations {
		if wrong := validation.IsQualifiedName(strings.ToLower(key)); len(wrong) > 0 {
			return nil, declare.Invalid("%s.matchAnnotations[%s]: the key is no name of an annotation: %s", path, key, wrong[0])
		}
	}
	for i, expression := range declared.MatchExpressions {
		at := fmt.Sprintf("%s.matchExpressions[%d]", path, i)
		if wrong := validation.IsQualifiedName(strings.ToLower(expression.Key)); len(wrong) > 0 {
			return nil, declare.Invalid("%s.key: %q is no name of an annotation: %s", at, expression.Key, wrong[0])
		}
		switch expression.Operator {
		case metav1.LabelSelectorOpIn, metav1.LabelSelectorOpNotIn:
			if len(expression.Values) == 0 {
				return nil, declare.Invalid("%s.values is empty, and %s needs some", at, expression.Operator)
			}
		case metav1.LabelSelectorOpExists, metav1.LabelSelectorOpDoesNotExist:
			if len(expression.Values) > 0 {
				return nil, declare.Invalid("%s.values must be empty with %s", at, expression.Operator)
			}
		default:
			return nil, declare.Invalid("%s.operator must be In, NotIn, Exists or DoesNotExist, not %q", at, expression.Operator)
		}
	}
	return declared, nil
}

// excludeAttachments keeps a controller from decorating what it attached itself:
// with a kind that is decorated and attached there would be no end to it.
func excludeAttachments(definition *engine.Definition) {
	notOurs := metav1.LabelSelectorRequirement{
		Key: object.DecoratorAnnotation, Operator: metav1.LabelSelectorOpNotIn, Values: []string{definition.Mark},
	}
	exclude := func(selector *v1alpha1.AnnotationSelector) *v1alpha1.AnnotationSelector {
		if selector == nil {
			return &v1alpha1.AnnotationSelector{MatchExpressions: []metav1.LabelSelectorRequirement{notOurs}}
		}
		more := selector.DeepCopy()
		more.MatchExpressions = append(more.MatchExpressions, notOurs)
		return more
	}
	for i := range definition.Parents {
		parent := &definition.Parents[i]
		if !slices.ContainsFunc(definition.Children, func(child engine.Child) bool { return child.GroupKind() == parent.GroupKind() }) {
			continue
		}
		parent.Annotations = exclude(parent.Annotations)
		for j := range parent.Or {
			parent.Or[j].Annotations = exclude(parent.Or[j].Annotations)
		}
	}
}
