// Package workload says what the benchmark is about: parents, what their hooks
// answer, and what is written because of it. The hook server, the raw writer and
// the driver agree through it.
//
//	Plan ─> Parent(i), Related ─> driver
//	Parent as a hook sees it ─> Children, Answer, Rules ─> hook server, raw writer
package workload

import (
	"fmt"
	"strconv"
	"strings"
)

// The kind of the parents, by test/bench/manifests/things.yaml.
const (
	Group      = "bench.example.com"
	APIVersion = Group + "/v1"
	Kind       = "Thing"
	Resource   = "things"
)

const (
	// RunLabel is on everything of a run, with the run's name.
	RunLabel = Group + "/run"
	// GroupLabel is on related objects that are selected by labels.
	GroupLabel = Group + "/group"
	// MarkAnnotation is what a decorator puts on its object: the newest mark.
	MarkAnnotation = Group + "/mark"
	// RoundAnnotation is on related objects: how often one was changed.
	RoundAnnotation = Group + "/round"
)

// ChildKey is the key of the children's kind in a hook's request; RelatedKey that
// of related objects.
const (
	ChildKey   = "ConfigMap.v1"
	RelatedKey = "Secret.v1"
)

// Mode is what kind of controller is measured.
type Mode string

const (
	// Composite has parents with children and a status that counts them.
	Composite Mode = "composite"
	// Decorator has objects with attachments and an annotation.
	Decorator Mode = "decorator"
	// Customize is Composite with related objects that the children depend on.
	Customize Mode = "customize"
)

// Modes are all of them.
var Modes = []Mode{Composite, Decorator, Customize}

// sharers is how many parents select one and the same related object by its label.
const sharers = 4

// Plan is the size of a run.
type Plan struct {
	Mode       Mode
	Run        string
	Parents    int
	Children   int // of each parent
	Namespaces int
	Payload    int // bytes in each child
	Related    int // objects altogether, in mode Customize
}

// Meta is the metadata that the benchmark looks at.
type Meta struct {
	Name            string            `json:"name"`
	Namespace       string            `json:"namespace,omitempty"`
	UID             string            `json:"uid,omitempty"`
	ResourceVersion string            `json:"resourceVersion,omitempty"`
	Generation      int64             `json:"generation,omitempty"`
	Labels          map[string]string `json:"labels,omitempty"`
	Annotations     map[string]string `json:"annotations,omitempty"`
	OwnerReferences []OwnerReference  `json:"ownerReferences,omitempty"`
}

// OwnerReference is one in metadata.
type OwnerReference struct {
	APIVersion         string `json:"apiVersion"`
	Kind               string `json:"kind"`
	Name               string `json:"name"`
	UID                string `json:"uid"`
	Controller         bool   `json:"controller"`
	BlockOwnerDeletion bool   `json:"blockOwnerDeletion"`
}

// Parent is a parent, or an object that is decorated.
type Parent struct {
	APIVersion string  `json:"apiVersion"`
	Kind       string  `json:"kind"`
	Metadata   Meta    `json:"metadata"`
	Spec       Spec    `json:"spec"`
	Status     *Status `json:"status,omitempty"`
}

// Spec holds all that the hook goes by, so that the hook server has no settings.
type Spec struct {
	// Round is counted up to change a parent.
	Round    int `json:"round"`
	Children int `json:"children"`
	Payload  int `json:"payload"`
	// Group and Names select related objects.
	Group string   `json:"group,omitempty"`
	Names []string `json:"names,omitempty"`
}

// Status is that of a composite's parent.
type Status struct {
	// Seen is how many children the hook was shown.
	Seen               int   `json:"seen"`
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
}

// Child is a ConfigMap.
type Child struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Metadata   Meta      `json:"metadata"`
	Data       ChildData `json:"data"`
}

// ChildData is what is in a child.
type ChildData struct {
	// Mark says which state of the parent, and of what is related to it, the child
	// was made from.
	Mark    string `json:"mark"`
	Payload string `json:"payload"`
}

// RelatedObject is a Secret.
type RelatedObject struct {
	APIVersion string            `json:"apiVersion"`
	Kind       string            `json:"kind"`
	Metadata   Meta              `json:"metadata"`
	StringData map[string]string `json:"stringData,omitempty"`
}

// Namespace is the n-th namespace of a run.
func (p Plan) Namespace(n int) string { return fmt.Sprintf("%s-%d", p.Run, n) }

// Place is the namespace and the name of the i-th parent.
func (p Plan) Place(i int) (namespace, name string) {
	return p.Namespace(i % p.Namespaces), fmt.Sprintf("parent-%d", i)
}

// Parent is the i-th parent as it is created.
func (p Plan) Parent(i int) Parent {
	namespace, name := p.Place(i)
	parent := Parent{
		APIVersion: APIVersion, Kind: Kind,
		Metadata: Meta{Name: name, Namespace: namespace, Labels: map[string]string{RunLabel: p.Run}},
		Spec:     Spec{Round: 1, Children: p.Children, Payload: p.Payload},
	}
	if p.Mode == Customize {
		parent.Spec.Group = groupName(p.groupOf(i))
		named, _ := p.perParent()
		for n := range named {
			parent.Spec.Names = append(parent.Spec.Names, namedName(i, n))
		}
	}
	return parent
}

// perParent is how many related objects there are for a parent: half of them
// selected by their names and by nobody else, half by a label, by all of its group.
func (p Plan) perParent() (named, grouped int) {
	each := p.Related / p.Parents
	return each / 2, each - each/2
}

// groupOf is the number of a parent's group in its namespace.
func (p Plan) groupOf(i int) int { return i / p.Namespaces / sharers }

// Group are the parents that select by label what parent i does, i among them.
func (p Plan) Group(i int) []int {
	var members []int
	first := p.groupOf(i)*sharers*p.Namespaces + i%p.Namespaces
	for n := range sharers {
		if member := first + n*p.Namespaces; member < p.Parents {
			members = append(members, member)
		}
	}
	return members
}

func groupName(group int) string        { return fmt.Sprintf("group-%d", group) }
func namedName(parent, n int) string    { return fmt.Sprintf("named-%d-%d", parent, n) }
func groupedName(parent, n int) string  { return fmt.Sprintf("grouped-%d-%d", parent, n) }
func (p Plan) relatedPayload() string   { return filler(64) }
func relatedMark(round, sum int) string { return strconv.Itoa(round) + "." + strconv.Itoa(sum) }

// RelatedObjects are the objects that exist for the i-th parent's sake.
func (p Plan) RelatedObjects(i int) []RelatedObject {
	namespace, _ := p.Place(i)
	named, grouped := p.perParent()
	object := func(name string, labels map[string]string) RelatedObject {
		labels[RunLabel] = p.Run
		return RelatedObject{
			APIVersion: "v1", Kind: "Secret",
			Metadata:   Meta{Name: name, Namespace: namespace, Labels: labels},
			StringData: map[string]string{"payload": p.relatedPayload()},
		}
	}
	var all []RelatedObject
	for n := range named {
		all = append(all, object(namedName(i, n), map[string]string{}))
	}
	for n := range grouped {
		all = append(all, object(groupedName(i, n), map[string]string{GroupLabel: groupName(p.groupOf(i))}))
	}
	return all
}

// Mark is what the children of a parent are to be marked with; sum is that of the
// rounds of its related objects.
func (p Plan) Mark(round, sum int) string {
	if p.Mode == Customize {
		return relatedMark(round, sum)
	}
	return strconv.Itoa(round)
}

// ChildName is the name of the nth child of a parent. It tells the parent's name.
func ChildName(parent string, n int) string { return parent + "-" + strconv.Itoa(n) }

// ParentOf is the name of the parent of a child with this name.
func ParentOf(child string) string { return child[:max(0, strings.LastIndexByte(child, '-'))] }

// Children are a parent's children as a hook returns them.
func Children(parent Parent, mark string) []Child {
	children := make([]Child, parent.Spec.Children)
	for n := range children {
		children[n] = Child{
			APIVersion: "v1", Kind: "ConfigMap",
			Metadata: Meta{
				Name:   ChildName(parent.Metadata.Name, n),
				Labels: map[string]string{RunLabel: parent.Metadata.Labels[RunLabel]},
			},
			Data: ChildData{Mark: mark, Payload: filler(parent.Spec.Payload)},
		}
	}
	return children
}

const fillerText = "the quick brown fox jumps over the lazy dog; "

// filler is a text of n bytes.
func filler(n int) string {
	return strings.Repeat(fillerText, n/len(fillerText)+1)[:n]
}

// Check says what is wrong with a plan.
func (p Plan) Check() error {
	switch {
	case p.Parents < 1 || p.Children < 1 || p.Namespaces < 1 || p.Payload < 1:
		return fmt.Errorf("there must be a parent, a child, a namespace and a byte at least, not %d, %d, %d and %d",
			p.Parents, p.Children, p.Namespaces, p.Payload)
	case p.Mode == Customize && p.Related < 2*p.Parents:
		return fmt.Errorf("there must be two related objects for each of %d parents, not %d altogether", p.Parents, p.Related)
	default:
		return nil
	}
}
