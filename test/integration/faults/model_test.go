package faults_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// kindOf says how the children of a kind of parents are looked after.
type kindOf struct {
	plural, kind string
	// recreates: a child is deleted and made again for a difference.
	recreates bool
	// finalizer that a parent has while it lives; empty for none.
	finalizer string
	// parts: each parent also has a child of a custom kind.
	parts bool
	// adopts: an orphan with the parent's label is taken back.
	adopts bool
	// rolls: children are changed one by one, and there is a revision.
	rolls bool
	// decorated: the parent is decorated, and its attachments also depend on a
	// related object.
	decorated bool
	weight    int
}

var kinds = []kindOf{
	{plural: "inplaces", kind: "Inplace", finalizer: "metacontroller.io/compositecontroller-inplaces", adopts: true, weight: 5},
	{plural: "recreators", kind: "Recreator", recreates: true, parts: true, adopts: true, weight: 3},
	{plural: "rollers", kind: "Roller", rolls: true, adopts: true, weight: 3},
	{plural: "applieds", kind: "Applied", finalizer: "metacontroller.io/compositecontroller-applieds", adopts: true, weight: 4},
	{plural: "targets", kind: "Target", finalizer: "metacontroller.io/decoratorcontroller-targets", decorated: true, weight: 4},
}

func kindNamed(plural string) kindOf {
	return kinds[slices.IndexFunc(kinds, func(k kindOf) bool { return k.plural == plural })]
}

// parentKey is a parent's place.
type parentKey struct{ plural, name string }

// childKey is a child's place.
type childKey struct{ resource, name string }

// parent is what a parent's spec says.
type parent struct {
	count  int
	value  string
	source int
	// pinned parents are not deleted before the round ends: a child without owner
	// is taken back by a sync, not by a finalizer.
	pinned bool
}

// model is what must be there in the end, and what may happen on the way. It
// knows no cluster.
type model struct {
	parents map[parentKey]parent
	sources []string
	// deletions is how often the controller may have deleted a child, at most.
	deletions map[childKey]int
	// foreign are objects that nobody may touch, where a child should be.
	foreign map[childKey]bool
	// resting kinds get no operations.
	resting map[string]bool
	// partDefault is a default in the schema of parts; empty for none.
	partDefault string
	next        int
}

const sourceCount = 4

func newModel() *model {
	m := &model{parents: map[parentKey]parent{}, deletions: map[childKey]int{}, foreign: map[childKey]bool{}, resting: map[string]bool{}}
	for i := range sourceCount {
		m.sources = append(m.sources, fmt.Sprintf("s%d", i))
	}
	return m
}

// blocked is the name of parents that find somebody else's object where their
// first child should be.
const blocked = "blocked"

func childName(key parentKey, index int) string {
	return fmt.Sprintf("%s-%s-%d", strings.ToLower(kindNamed(key.plural).kind), key.name, index)
}

func partName(key parentKey) string { return key.name + "-part" }

// childrenOf are the children that a parent of this spec has.
func childrenOf(key parentKey, p parent) []childKey {
	var out []childKey
	for i := range p.count {
		out = append(out, childKey{"configmaps", childName(key, i)})
	}
	if kindNamed(key.plural).parts {
		out = append(out, childKey{"parts", partName(key)})
	}
	return out
}

// verb is what an operation does.
type verb string

const (
	opCreate  verb = "create"
	opValue   verb = "value"
	opCount   verb = "count"
	opDelete  verb = "delete"
	opAgain   verb = "delete-and-create"
	opUnchild verb = "delete-child"
	opTamper  verb = "tamper"
	opOrphan  verb = "orphan"
	opSource  verb = "source"
)

// operation is one thing that users do.
type operation struct {
	verb   verb
	key    parentKey
	spec   parent
	child  childKey
	source int
	text   string
}

func (o operation) String() string {
	return fmt.Sprintf("%s %s/%s %s/%s count=%d source=%d %s", o.verb, o.key.plural, o.key.name, o.child.resource, o.child.name, o.spec.count, o.source, o.text)
}

// generate makes the next operation and notes what it means. The same random
// numbers make the same operations.
func (m *model) generate(random *rand.Rand, size int) operation {
	m.next++
	text := fmt.Sprintf("v%d", m.next)
	if random.IntN(40) == 0 {
		m.sources[random.IntN(sourceCount)] = text
		// Which one is found by its value.
		return operation{verb: opSource, source: slices.Index(m.sources, text), text: text}
	}
	candidates := m.candidates()
	if len(candidates) == 0 || len(candidates) < size && random.IntN(2) == 0 {
		return m.create(random, text)
	}
	key := candidates[random.IntN(len(candidates))]
	p, kind := m.parents[key], kindNamed(key.plural)
	op := operation{key: key, text: text}
	switch choice := random.IntN(20); {
	case choice < 7:
		op.verb, p.value = opValue, text
		if kind.recreates {
			m.mayDelete(recreated(childrenOf(key, p)...)...)
		}
	case choice < 10:
		before := childrenOf(key, p)
		op.verb, p.count = opCount, 1+random.IntN(4)
		after := childrenOf(key, p)
		m.mayDelete(slices.DeleteFunc(before, func(c childKey) bool { return slices.Contains(after, c) })...)
	case choice < 13 && !p.pinned:
		m.mayDelete(childrenOf(key, p)...)
		if random.IntN(3) == 0 {
			op.verb, p.value = opAgain, text
			break
		}
		op.verb = opDelete
		delete(m.parents, key)
		return op
	case choice < 16:
		op.verb, op.child = opUnchild, m.anyChild(random, key, p)
	case choice < 19 || !kind.adopts:
		op.verb, op.child = opTamper, m.anyChild(random, key, p)
		if kind.recreates {
			m.mayDelete(recreated(op.child)...)
		}
	default:
		op.verb, op.child, p.pinned = opOrphan, m.anyChild(random, key, p), true
	}
	m.parents[key], op.spec = p, p
	return op
}

func (m *model) create(random *rand.Rand, text string) operation {
	var total int
	for _, kind := range kinds {
		if !m.resting[kind.plural] {
			total += kind.weight
		}
	}
	pick, chosen := random.IntN(total), ""
	for _, kind := range kinds {
		if m.resting[kind.plural] {
			continue
		}
		if pick -= kind.weight; pick < 0 {
			chosen = kind.plural
			break
		}
	}
	key := parentKey{chosen, fmt.Sprintf("p%d", m.next)}
	p := parent{count: 1 + random.IntN(3), value: text, source: random.IntN(sourceCount)}
	m.parents[key] = p
	return operation{verb: opCreate, key: key, spec: p, text: text}
}

// candidates are the parents that operations are about, in an order that does not
// change.
func (m *model) candidates() []parentKey {
	return slices.SortedFunc(func(yield func(parentKey) bool) {
		for key := range m.parents {
			if key.name != blocked && !m.resting[key.plural] && !yield(key) {
				return
			}
		}
	}, func(a, b parentKey) int { return strings.Compare(a.plural+"/"+a.name, b.plural+"/"+b.name) })
}

func (m *model) anyChild(random *rand.Rand, key parentKey, p parent) childKey {
	children := childrenOf(key, p)
	return children[random.IntN(len(children))]
}

// recreated are those that are not updated in place: parts are.
func recreated(children ...childKey) []childKey {
	return slices.DeleteFunc(children, func(c childKey) bool { return c.resource == "parts" })
}

func (m *model) mayDelete(children ...childKey) {
	for _, child := range children {
		m.deletions[child]++
	}
}

// settle ends a round: what was to be taken back has been.
func (m *model) settle() {
	for key, p := range m.parents {
		p.pinned = false
		m.parents[key] = p
	}
}

// remove forgets all parents of a kind, which its users did not delete one by
// one.
func (m *model) remove(plural string) {
	for key, p := range m.parents {
		if key.plural == plural && key.name != blocked {
			m.mayDelete(childrenOf(key, p)...)
			delete(m.parents, key)
		}
	}
}

// child is what a child must look like.
type child struct {
	owner parentKey
	data  map[string]string
}

// children are all children that must be there.
func (m *model) children() map[childKey]child {
	out := map[childKey]child{}
	for key, p := range m.parents {
		for _, one := range childrenOf(key, p) {
			if m.foreign[one] {
				continue
			}
			data := map[string]string{"value": p.value}
			if kindNamed(key.plural).decorated {
				data["source"] = m.sources[p.source]
			}
			if one.resource == "parts" && m.partDefault != "" {
				data["extra"] = m.partDefault
			}
			out[one] = child{owner: key, data: data}
		}
	}
	return out
}

// The same seed makes the same operations and the same model.
func TestSeedRepeats(t *testing.T) {
	run := func(seed uint64) (string, *model) {
		random, m := rand.New(rand.NewPCG(seed, 0)), newModel()
		var all strings.Builder
		for i := range 500 {
			if i == 250 {
				m.resting["inplaces"] = true
				m.remove("inplaces")
			}
			fmt.Fprintln(&all, m.generate(random, 40))
		}
		return all.String(), m
	}
	for seed := range uint64(20) {
		first, one := run(seed)
		second, other := run(seed)
		if first != second || !maps.Equal(one.parents, other.parents) || !maps.Equal(one.deletions, other.deletions) {
			t.Fatalf("seed %d does not repeat", seed)
		}
		for key := range one.parents {
			if key.plural == "inplaces" {
				t.Errorf("seed %d: %v got an operation though its kind rests", seed, key)
			}
		}
		for child := range one.children() {
			if one.children()[child].data["value"] == "" {
				t.Errorf("seed %d: %v has no value", seed, child)
			}
		}
	}
}
