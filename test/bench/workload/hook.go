package workload

import "strconv"

// Request is what the hook server reads of a request.
type Request struct {
	// Parent is the parent in requests of composites and of customize hooks,
	// Object that of decorators.
	Parent *Parent `json:"parent"`
	Object *Parent `json:"object"`
	// Children and Related are by kind and name.
	Children map[string]map[string]struct{} `json:"children"`
	Related  map[string]map[string]struct {
		Metadata Meta `json:"metadata"`
	} `json:"related"`
}

// CompositeAnswer is that of a composite's sync hook.
type CompositeAnswer struct {
	Status   Status  `json:"status"`
	Children []Child `json:"children"`
}

// AnswerComposite makes the children, and counts those that there are. The children
// depend on related objects if the parent has any.
func AnswerComposite(r Request) any {
	mark := strconv.Itoa(r.Parent.Spec.Round)
	if r.Parent.Spec.Group != "" {
		sum := 0
		for _, related := range r.Related[RelatedKey] {
			round, _ := strconv.Atoi(related.Metadata.Annotations[RoundAnnotation]) // absent: never changed
			sum += round
		}
		mark = relatedMark(r.Parent.Spec.Round, sum)
	}
	return CompositeAnswer{
		Status:   Status{Seen: len(r.Children[ChildKey])},
		Children: Children(*r.Parent, mark),
	}
}

// DecoratorAnswer is that of a decorator's sync hook.
type DecoratorAnswer struct {
	Annotations map[string]string `json:"annotations"`
	Attachments []Child           `json:"attachments"`
}

// AnswerDecorator makes the attachments, and an annotation.
func AnswerDecorator(r Request) any {
	mark := strconv.Itoa(r.Object.Spec.Round)
	return DecoratorAnswer{
		Annotations: map[string]string{MarkAnnotation: mark},
		Attachments: Children(*r.Object, mark),
	}
}

// Rule is a rule of a customize hook's answer.
type Rule struct {
	APIVersion    string         `json:"apiVersion"`
	Resource      string         `json:"resource"`
	Namespace     string         `json:"namespace"`
	LabelSelector *LabelSelector `json:"labelSelector,omitempty"`
	Names         []string       `json:"names,omitempty"`
}

// LabelSelector is that of a rule.
type LabelSelector struct {
	MatchLabels map[string]string `json:"matchLabels"`
}

// CustomizeAnswer is that of a customize hook.
type CustomizeAnswer struct {
	RelatedResources []Rule `json:"relatedResources"`
}

// AnswerCustomize selects a parent's related objects: some by a label, some by name.
func AnswerCustomize(r Request) any {
	rule := Rule{APIVersion: "v1", Resource: "secrets", Namespace: r.Parent.Metadata.Namespace}
	grouped, named := rule, rule
	grouped.LabelSelector = &LabelSelector{MatchLabels: map[string]string{
		GroupLabel: r.Parent.Spec.Group, RunLabel: r.Parent.Metadata.Labels[RunLabel],
	}}
	named.Names = r.Parent.Spec.Names
	return CustomizeAnswer{RelatedResources: []Rule{grouped, named}}
}
