package plan

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// desired is a child that the parent may have.
type desired struct {
	path string
	// index is the place in the answer.
	index int
	key   object.Key
	// kind is the declared kind, in the version that the hook wrote.
	kind   object.Kind
	object *object.Object
	hash   [32]byte

	labels, annotations map[string]string
	// parent is the UID of the parent.
	parent types.UID
}

// admit sorts out the children that the parent may have, by kind, in the hook's
// order. The others become Skip steps.
func (m *maker) admit() (map[schema.GroupKind][]desired, error) {
	seen := map[object.Key]string{}
	out := map[schema.GroupKind][]desired{}
	extra, err := object.Encode([]any{m.in.Parent.Namespace(), texts(m.in.Labels), texts(m.in.Annotations)})
	if err != nil {
		return nil, fmt.Errorf("cannot plan the children of %s %q: %w", m.in.Parent.Kind(), m.in.Parent.Key().Path(), err)
	}
	for i, child := range m.in.Desired {
		kind, declared := m.methods[child.Object.GroupVersionKind().GroupKind()]
		if !declared {
			m.skip(child, object.Kind{GroupVersionKind: child.Object.GroupVersionKind()}, child.Object.Key(), Undeclared,
				"its kind is not among the controller's declared child kinds: add it there")
			continue
		}
		namespace, reason, message := m.place(kind.Kind, child.Object)
		key := kind.Key(namespace, child.Object.Name())
		if reason != UnknownReason {
			m.skip(child, kind.Kind, key, reason, message)
			continue
		}
		if m.in.Selector != nil && !m.in.Selector.Matches(labelsOf(child.Object, m.in.Labels)) {
			return nil, &object.FieldError{
				Path: child.Path + ".metadata.labels",
				Problem: fmt.Sprintf("of %s %q do not match the selector %q of the parent",
					key.Kind, key.Path(), m.in.Selector.String()),
			}
		}
		if first, twice := seen[key]; twice {
			m.skip(child, kind.Kind, key, Duplicate, "it is the same child as "+first+", which counts")
			continue
		}
		seen[key] = child.Path
		written := kind.Kind
		written.Version = child.Object.GroupVersionKind().Version
		out[kind.GroupKind()] = append(out[kind.GroupKind()], desired{
			path: child.Path, index: i, key: key, kind: written, object: child.Object, hash: hash(child.Object, extra),
			labels: m.in.Labels, annotations: m.in.Annotations, parent: m.in.Parent.UID(),
		})
	}
	return out, nil
}

// place is the namespace of a child, or why there is none for it.
func (m *maker) place(kind object.Kind, child *object.Object) (namespace string, reason Reason, message string) {
	parent, own := m.in.Parent.Namespace(), child.Namespace()
	switch {
	case !kind.Namespaced && parent != "":
		return "", OutsideNamespace, fmt.Sprintf(
			"it is cluster-scoped, and the parent is in namespace %q: only a cluster-scoped parent can own it", parent)
	case !kind.Namespaced:
		return "", UnknownReason, ""
	case parent != "" && own != "" && own != parent:
		return own, OutsideNamespace, fmt.Sprintf(
			"it is in namespace %q, and the parent in %q: only a cluster-scoped parent can own it", own, parent)
	case own != "":
		return own, UnknownReason, ""
	case parent == "":
		return "", NoNamespace, "the parent is cluster-scoped, so it must say its metadata.namespace"
	default:
		return parent, UnknownReason, ""
	}
}

func (m *maker) skip(child hook.Child, kind object.Kind, key object.Key, reason Reason, why string) {
	m.skips = append(m.skips, Step{
		Action: Skip, Reason: reason, Kind: kind, Key: key,
		Message: fmt.Sprintf("%s: %s %q is not made: %s", child.Path, kind.GroupVersionKind.Kind, key.Path(), why),
	})
}

func (m *maker) foreignMessage(child desired, foreign *object.Object) string {
	whose, way := "has no controller", "choose another name, or delete it"
	if ref := object.ControllerOf(foreign); ref != nil {
		switch {
		case ref.UID == m.in.Parent.UID():
			whose = "belongs to this parent, but not as a child of this controller (another one made it, or its labels do not match the selector)"
		case object.LeftBehind(foreign, m.in.Parent):
			// The garbage collector of Kubernetes loses what belonged to the first if
			// it sees only the second after an outage.
			whose = fmt.Sprintf("was left by an earlier %s %q (uid %s), and the garbage collector has not taken it away", ref.Kind, ref.Name, ref.UID)
			way = "delete it, or start kube-controller-manager anew"
		default:
			whose = fmt.Sprintf("is controlled by %s %q", ref.Kind, ref.Name)
		}
	}
	return fmt.Sprintf("%s: %s %q exists and %s; it is left alone: %s", child.path, child.key.Kind, child.key.Path(), whose, way)
}

// hash is Mark.Desired: what the hook wrote, and what is put on it.
func hash(o *object.Object, extra []byte) [32]byte {
	sum := sha256.New()
	sum.Write(o.Bytes())
	sum.Write([]byte{0})
	sum.Write(extra)
	return [sha256.Size]byte(sum.Sum(nil))
}

// labelsOf are the labels that a child will have.
func labelsOf(o *object.Object, extra map[string]string) labels.Set {
	if len(extra) == 0 {
		return o.Labels()
	}
	out := make(labels.Set, len(o.Labels())+len(extra))
	maps.Copy(out, o.Labels())
	maps.Copy(out, extra)
	return out
}

// content is the whole desired object, with what is put on it.
func (d desired) content() map[string]any {
	content := d.object.Content()
	// An Object has a name, hence metadata.
	metadata := content["metadata"].(map[string]any)
	if d.key.Namespace == "" {
		delete(metadata, "namespace")
	} else {
		metadata["namespace"] = d.key.Namespace
	}
	unmark(metadata)
	put(metadata, "labels", d.labels)
	put(metadata, "annotations", d.annotations)
	d.disown(metadata)
	if d.kind.Group == "" && d.kind.GroupVersionKind.Kind == "Secret" {
		foldStringData(content)
	}
	return content
}

// unmark takes the mark of a decorator off a desired child, which came there with
// a copy of an attachment: whose child an object is, is not for the hook to say.
func unmark(metadata map[string]any) {
	if annotations, ok := metadata["annotations"].(map[string]any); ok {
		delete(annotations, object.DecoratorAnnotation)
	}
}

// foldStringData does to a Secret what the API server does: stringData can only
// be written, and is read as data. Without this a Secret would differ for ever.
// What is not of the right type stays, for the API server to refuse.
func foldStringData(content map[string]any) {
	texts, ok := content["stringData"].(map[string]any)
	if !ok {
		return
	}
	data, ok := content["data"].(map[string]any)
	if !ok && content["data"] != nil {
		return
	}
	folded := make(map[string]any, len(texts)+len(data))
	maps.Copy(folded, data)
	for key, value := range texts {
		text, ok := value.(string)
		if !ok && value != nil {
			return
		}
		folded[key] = base64.StdEncoding.EncodeToString([]byte(text))
	}
	delete(content, "stringData")
	content["data"] = folded
}

func put(metadata map[string]any, field string, extra map[string]string) {
	if len(extra) == 0 {
		return
	}
	fields, ok := metadata[field].(map[string]any)
	if !ok {
		fields = make(map[string]any, len(extra))
		metadata[field] = fields
	}
	for key, value := range extra {
		fields[key] = value
	}
}

func texts(from map[string]string) map[string]any {
	out := make(map[string]any, len(from))
	for key, value := range from {
		out[key] = value
	}
	return out
}

// disown takes out of a desired child who controls it: that is not for the hook
// to say. One that returns what it was shown names the parent, and must not be
// able to take the reference off later by returning something else.
func (d desired) disown(metadata map[string]any) {
	refs, ok := metadata["ownerReferences"].([]any)
	if !ok {
		return
	}
	kept := slices.DeleteFunc(slices.Clone(refs), func(ref any) bool {
		fields, ok := ref.(map[string]any)
		return ok && (fields["uid"] == string(d.parent) || fields["controller"] == true)
	})
	metadata["ownerReferences"] = kept
	if len(kept) == 0 {
		delete(metadata, "ownerReferences")
	}
}

// own makes parent the controller of a child.
func own(content map[string]any, parent object.Reference) {
	metadata := content["metadata"].(map[string]any)
	refs, _ := metadata["ownerReferences"].([]any)
	metadata["ownerReferences"] = append(slices.Clone(refs), map[string]any{
		"apiVersion":         parent.APIVersion,
		"kind":               parent.Kind,
		"name":               parent.Name,
		"uid":                string(parent.UID),
		"controller":         true,
		"blockOwnerDeletion": true,
	})
}
