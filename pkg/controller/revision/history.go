package revision

import (
	"crypto/sha1" //nolint:gosec // Part of the name of a ControllerRevision, which protects nothing.
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/adopt"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Labels of ControllerRevisions: the group and the plural name of the parent's
// kind.
const (
	LabelAPIGroup = "metacontroller.k8s.io/apiGroup"
	LabelResource = "metacontroller.k8s.io/resource"
)

const (
	fieldPatch = "parentPatch"
	// coreGroup stands in names for the group that has none.
	coreGroup = "core"
	// maxName is the longest name of an object.
	maxName = validation.DNS1123SubdomainMaxLength
)

// Source is where the revisions of a controller's parents are, and what they are
// made of.
type Source struct {
	// Kind is that of ControllerRevisions.
	Kind object.Kind
	// Namespace has the revisions of cluster-scoped parents.
	Namespace string
	Paths     Paths
	// Parent is the kind of the parents.
	Parent object.Kind
	// Children are the declared kinds of children.
	Children []ChildKind
	// Generated says that children are selected by a label with the parent's uid.
	Generated bool
}

// ChildKind is a declared kind of children.
type ChildKind struct {
	object.Kind
	// Rolls says that its children move one by one. Others have no revision of
	// their own: they follow the latest.
	Rolls bool
}

// Revision is one remembered state of a parent.
type Revision struct {
	Name string
	// Stored is the ControllerRevision; nil if it is not there yet.
	Stored *object.Object
	// Patch is the part of the parent that makes the revision.
	Patch map[string]any
	// Claims are the children that have this revision.
	Claims Claims
	// others are what other controllers of the parent claim.
	others names
}

// History is the revisions of one parent.
type History struct {
	source *Source
	parent *object.Object
	// namespace is where a new revision is stored.
	namespace string
	// Latest is that of the parent as it is.
	Latest Revision
	// Old are the other ones whose children are still there, the newest first.
	Old []Revision
	// void are stored revisions that say nothing.
	void []*object.Object
}

// name is "<plural>.<group>-<hash of the parent's uid and the patch>".
func (s *Source) name(parent types.UID, patch map[string]any) (string, error) {
	// Not object.Encode: the hash is one of the text that encoding/json makes,
	// so that revisions which others have stored keep their names.
	text, err := json.Marshal(patch)
	if err != nil {
		return "", fmt.Errorf("cannot encode the revision of a parent: %w", err)
	}
	hash := sha1.New() //nolint:gosec // See above.
	_, _ = hash.Write([]byte(parent))
	_, _ = hash.Write(text)
	suffix := "-" + hex.EncodeToString(hash.Sum(nil))
	group := s.Parent.Group
	if group == "" {
		group = coreGroup
	}
	prefix := s.Parent.Resource + "." + group
	if room := maxName - len(suffix); len(prefix) > room {
		// What is cut in two must not end with what no part of a name ends with.
		prefix = strings.TrimRight(prefix[:room], ".-")
	}
	return prefix + suffix, nil
}

// Read makes the history of a parent of the ControllerRevisions that it owns, and
// of one that has the name of its latest, which lookup finds. That one is taken if
// nobody controls it: its name has the parent's uid in it. The error says that
// somebody else does.
func (s *Source) Read(parent *object.Object, owned []*object.Object, lookup func(namespace, name string) *object.Object) (*History, error) {
	patch := s.Paths.Of(parent.Content())
	name, err := s.name(parent.UID(), patch)
	if err != nil {
		return nil, err
	}
	h := &History{source: s, parent: parent, namespace: parent.Namespace(), Latest: Revision{Name: name, Patch: patch}}
	if h.namespace == "" {
		h.namespace = s.Namespace
	}
	if named := lookup(h.namespace, name); named != nil && !object.ControlledBy(named, parent.UID()) {
		if ref := object.ControllerOf(named); ref != nil {
			return nil, fmt.Errorf("ControllerRevision %q belongs to %s %q, and has the name of a revision of this parent: delete it",
				named.Key().Path(), ref.Kind, ref.Name)
		}
		h.Latest.Stored = named
	}
	found := make([]Revision, 0, len(owned))
	for _, stored := range owned {
		if !object.ControlledBy(stored, parent.UID()) || parent.Namespace() != "" && parent.Namespace() != stored.Namespace() {
			// An owner reference across namespaces is void.
			continue
		}
		one := Revision{Name: stored.Name(), Stored: stored}
		one.Patch, _ = stored.Content()[fieldPatch].(map[string]any)
		switch {
		case one.Name == name && h.Latest.Stored == nil:
			h.Latest.Stored = stored
		case one.Patch == nil:
			h.void = append(h.void, stored)
		default:
			found = append(found, one)
		}
	}
	slices.SortFunc(found, newestFirst)
	for _, one := range found {
		if h.Latest.Stored == nil && object.Equal(s.Paths.Of(one.Patch), patch) {
			// The same revision by another name: whoever stored it wrote the
			// JSON, or chose the fields, in another way.
			h.Latest.Name, h.Latest.Stored = one.Name, one.Stored
			continue
		}
		h.Old = append(h.Old, one)
	}
	taken := Claims{}
	for _, one := range h.all() {
		s.claims(one, parent.Namespace(), taken)
	}
	return h, nil
}

// newestFirst is the order in which revisions win a child that several claim,
// which only somebody else's hand brings about.
func newestFirst(a, b Revision) int {
	if c := strings.Compare(CreatedAt(b.Stored), CreatedAt(a.Stored)); c != 0 {
		return c
	}
	return strings.Compare(a.Name, b.Name)
}

// all are the revisions, the latest first.
func (h *History) all() []*Revision {
	all := make([]*Revision, 0, 1+len(h.Old))
	all = append(all, &h.Latest)
	for i := range h.Old {
		all = append(all, &h.Old[i])
	}
	return all
}

// claims reads what a stored revision claims and none of the others has taken.
func (s *Source) claims(r *Revision, parentNamespace string, taken Claims) {
	r.Claims, r.others = Claims{}, names{}
	if r.Stored == nil {
		return
	}
	for of, list := range readNames(r.Stored.Content()[fieldChildren]) {
		i := slices.IndexFunc(s.Children, func(k ChildKind) bool { return k.GroupKind() == of })
		switch {
		case i < 0:
			r.others[of] = list
		case s.Children[i].Rolls:
			for _, name := range list {
				if key, ok := keyOf(s.Children[i].Kind, name, parentNamespace); ok && !taken.Has(key) {
					taken.add(key)
					r.Claims.add(key)
				}
			}
		}
	}
}

// State is the parent as it was in a revision. Fields that make no revision are
// as they are now.
func (h *History) State(r *Revision) (*object.Object, error) {
	if r == &h.Latest {
		return h.parent, nil
	}
	return h.source.Paths.Apply(h.parent, r.Patch)
}

// Since is when the latest revision was stored, in the form that timestamps have;
// empty if it is not.
func (h *History) Since() string {
	if h.Latest.Stored == nil {
		return ""
	}
	return CreatedAt(h.Latest.Stored)
}

// CreatedAt is the creation timestamp of an object as it is written there.
func CreatedAt(o *object.Object) string {
	text, _ := get(o.Content(), Path{"metadata", "creationTimestamp"}).(string)
	return text
}

// Write is one thing to do to a ControllerRevision: exactly one of its fields is
// set.
type Write struct {
	Create, Update, Delete *object.Object
}

// Writes are what makes the stored revisions say what was decided, in the order
// in which they must be carried out. There are none if they do.
func (h *History) Writes(d Decision) ([]Write, error) {
	var writes []Write
	for _, void := range h.void {
		if !void.Terminating() {
			writes = append(writes, Write{Delete: void})
		}
	}
	for i := range h.Old {
		old := &h.Old[i]
		claimed := h.names(old, d.Old[i])
		switch {
		case len(claimed) == 0 && old.Stored.Terminating():
		case len(claimed) == 0:
			writes = append(writes, Write{Delete: old.Stored})
		case !claimed.equal(readNames(old.Stored.Content()[fieldChildren])):
			content := old.Stored.Content()
			content[fieldChildren] = claimed.content()
			updated, err := object.FromContent(content)
			if err != nil {
				return nil, fmt.Errorf("cannot encode ControllerRevision %q: %w", old.Name, err)
			}
			writes = append(writes, Write{Update: updated})
		}
	}
	latest, err := h.writeLatest(d.Latest)
	if err != nil {
		return nil, fmt.Errorf("cannot encode ControllerRevision %q: %w", h.Latest.Name, err)
	}
	if latest != (Write{}) {
		writes = append(writes, latest)
	}
	return writes, nil
}

// names is what a revision is to claim.
func (h *History) names(r *Revision, claims Claims) names {
	out := make(names, len(r.others))
	maps.Copy(out, r.others)
	for key := range claims {
		out[key.GroupKind()] = append(out[key.GroupKind()], nameOf(key, h.parent.Namespace()))
	}
	out.sort()
	return out
}

func (h *History) writeLatest(claims Claims) (Write, error) {
	stored, claimed := h.Latest.Stored, h.names(&h.Latest, claims)
	wanted := h.labels()
	if stored == nil {
		labels := make(map[string]any, len(wanted))
		for key, value := range wanted {
			labels[key] = value
		}
		created, err := object.FromContent(map[string]any{
			"apiVersion": v1alpha1.GroupVersion.String(), "kind": v1alpha1.ControllerRevisionKind,
			"metadata":    map[string]any{"namespace": h.namespace, "name": h.Latest.Name, "labels": labels},
			fieldPatch:    h.Latest.Patch,
			fieldChildren: claimed.content(),
		})
		if err == nil {
			created, err = adopt.Adopted(h.parent, created)
		}
		return Write{Create: created}, err
	}
	content := stored.Content()
	patch, _ := content[fieldPatch].(map[string]any)
	same := patch != nil && object.Equal(h.source.Paths.Of(patch), h.Latest.Patch)
	if same && contains(stored.Labels(), wanted) && object.ControlledBy(stored, h.parent.UID()) && claimed.equal(readNames(content[fieldChildren])) {
		return Write{}, nil
	}
	if !same {
		content[fieldPatch] = h.Latest.Patch
	}
	content[fieldChildren] = claimed.content()
	for key, value := range wanted {
		set(content, Path{"metadata", "labels", key}, value)
	}
	updated, err := object.FromContent(content)
	if err == nil && !object.ControlledBy(stored, h.parent.UID()) {
		updated, err = adopt.Adopted(h.parent, updated)
	}
	return Write{Update: updated}, err
}

// labels are those of the latest revision: they find the revisions of a kind, and
// of a parent. What the API server would refuse is left out; nothing here depends
// on it.
func (h *History) labels() map[string]string {
	labels := map[string]string{}
	if h.source.Generated {
		labels[object.ControllerUIDLabel] = string(h.parent.UID())
	} else {
		template, _ := get(h.parent.Content(), Path{"spec", "template", "metadata", "labels"}).(map[string]any)
		for key, value := range template {
			if text, ok := value.(string); ok && len(validation.IsQualifiedName(key)) == 0 {
				labels[key] = text
			}
		}
	}
	labels[LabelAPIGroup], labels[LabelResource] = h.source.Parent.Group, h.source.Parent.Resource
	maps.DeleteFunc(labels, func(_, value string) bool { return len(validation.IsValidLabelValue(value)) > 0 })
	return labels
}

func contains(all, some map[string]string) bool {
	for key, value := range some {
		if has, ok := all[key]; !ok || has != value {
			return false
		}
	}
	return true
}
