package wire

import (
	"errors"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// EncodeRequest is the body of the request. The keys of the outer maps are the
// kinds as declared, Kind.version or Kind.group/version; those of the inner maps
// are the names of the objects:
//
//   - v1: the name, or namespace/name if the parent is cluster-scoped and the
//     object is not; a namespaced parent sees nothing outside its namespace.
//   - v2: namespace/name, or the name of a cluster-scoped object.
func (c Codec) EncodeRequest(r *hook.Request) ([]byte, error) {
	if r.Parent == nil || r.Controller == nil {
		return nil, errors.New("cannot encode a request without controller and parent")
	}
	to := make([]byte, 0, c.size(r))
	to = append(to, `{"controller":`...)
	to = r.Controller.AppendJSON(to)
	if r.Call == hook.Customize {
		to = append(to, `,"parent":`...)
		to = r.Parent.AppendJSON(to)
		return append(to, '}'), nil
	}
	parent, children := fieldsOf(r.Flavor)
	if parent == "" {
		return nil, fmt.Errorf("cannot encode a request of controller flavor %d", r.Flavor)
	}
	to = append(to, `,"`+parent+`":`...)
	to = r.Parent.AppendJSON(to)
	to = append(to, `,"`+children+`":`...)
	to = c.appendSet(to, r.Parent, r.Children)
	to = append(to, `,"related":`...)
	to = c.appendSet(to, r.Parent, r.Related)
	if r.Finalizing() {
		return append(to, `,"finalizing":true}`...), nil
	}
	return append(to, `,"finalizing":false}`...), nil
}

// fieldsOf are the names of the fields of the parent and of its children.
func fieldsOf(flavor hook.Flavor) (parent, children string) {
	switch flavor {
	case hook.Composite:
		return "parent", "children"
	case hook.Decorator:
		return "object", "attachments"
	default:
		return "", ""
	}
}

// OuterKey is the key of a kind in the maps of a request.
func OuterKey(kind object.Kind) string {
	return kind.GroupVersionKind.Kind + "." + kind.APIVersion()
}

func (c Codec) appendSet(to []byte, parent *object.Object, set *object.Set) []byte {
	to = append(to, '{')
	for i, group := range set.Groups() {
		if i > 0 {
			to = append(to, ',')
		}
		to = appendQuoted(to, OuterKey(group.Kind))
		to = append(to, `:{`...)
		first := true
		for _, o := range group.Objects {
			if !c.visible(parent, o) {
				continue
			}
			if !first {
				to = append(to, ',')
			}
			first = false
			to = c.appendInnerKey(to, parent, o)
			to = append(to, ':')
			to = o.AppendJSON(to)
		}
		to = append(to, '}')
	}
	return append(to, '}')
}

// visible says whether the hook of this parent is shown this object.
func (c Codec) visible(parent, o *object.Object) bool {
	return c.Version == v1alpha1.HookVersionV2 || parent.Namespace() == "" || parent.Namespace() == o.Namespace()
}

func (c Codec) appendInnerKey(to []byte, parent, o *object.Object) []byte {
	withNamespace := o.Namespace() != "" && (c.Version == v1alpha1.HookVersionV2 || parent.Namespace() == "")
	if !withNamespace {
		return appendQuoted(to, o.Name())
	}
	return appendQuoted(to, o.Namespace()+"/"+o.Name())
}

// appendQuoted writes text that came out of JSON or out of a spec; where it is
// not UTF-8 after all, the replacement character stands for it.
func appendQuoted(to []byte, text string) []byte {
	to, _ = jsontext.AppendQuote(to, text)
	return to
}

// size is about how long the request gets.
func (c Codec) size(r *hook.Request) int {
	n := 256 + len(r.Controller.Bytes()) + len(r.Parent.Bytes())
	for _, set := range []*object.Set{r.Children, r.Related} {
		for o := range set.All() {
			n += len(o.Bytes()) + len(o.Namespace()) + len(o.Name()) + 8
		}
	}
	return n
}
