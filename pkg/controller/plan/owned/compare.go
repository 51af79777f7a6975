package owned

import (
	"slices"
	"strings"

	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/metacontroller-solo/solo/pkg/controller/plan/merge"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Verdict is what Compare found.
type Verdict int

const (
	// Unknown is no valid value.
	Unknown Verdict = iota
	// Same: to apply the desired state would change nothing.
	Same
	// Unowned: every value is as desired, and to apply would only record that some
	// of them are ours.
	Unowned
	// Differs: a value is not as desired, a field is to be removed, or it cannot
	// be told.
	Differs
)

// identity are fields that say which object is meant. Nobody owns them, and they
// are not compared: desired may speak of the object in another version.
var identity = map[string]bool{"apiVersion": true, "kind": true}

// identityMetadata are those of metadata.
var identityMetadata = map[string]bool{
	"name": true, "namespace": true, "uid": true, "resourceVersion": true,
}

// Compare compares an observed object with the desired state, which is what would
// be applied: without nulls (see WithoutNulls) and without what only the API
// server writes. Fields are what we own of the observed object by an earlier
// apply, as FieldsV1; those that cannot be read are none.
func Compare(observed, desired map[string]any, fields string) Verdict {
	set, err := parse(fields)
	if err != nil {
		set = &fieldpath.Set{}
	}
	c := comparison{}
	c.object(place{root: true}, set, observed, desired)
	switch {
	case c.differs:
		return Differs
	case c.unowned:
		return Unowned
	default:
		return Same
	}
}

// place is where in an object a value stands.
type place struct {
	parent, key string
	// root is the object itself, metadata its metadata.
	root, metadata bool
}

func (p place) field(key string) place {
	return place{parent: p.key, key: key, metadata: p.root && key == "metadata"}
}

// identity says whether a field of the object here says which object is meant.
func (p place) identity(key string) bool {
	return p.root && identity[key] || p.metadata && identityMetadata[key]
}

type comparison struct{ unowned, differs bool }

// object compares the fields of an object, each of which has an owner of its own.
func (c *comparison) object(at place, set *fieldpath.Set, observed, desired map[string]any) {
	for _, path := range elements(set) {
		if path.FieldName == nil || desired[*path.FieldName] == nil && !at.identity(*path.FieldName) {
			c.differs = true
			return
		}
	}
	for key, want := range desired {
		if at.identity(key) {
			continue
		}
		if c.value(at.field(key), of(set, fieldpath.FieldNameElement(key)), observed[key], want); c.differs {
			return
		}
	}
}

// ownership is what is owned at one place.
type ownership struct {
	// self says that the value itself is owned: a scalar, an empty value, an
	// element of a list, or an object or a list that is owned as a whole.
	self bool
	// inner are the owned parts; nil if there are none.
	inner *fieldpath.Set
}

func of(set *fieldpath.Set, path fieldpath.PathElement) ownership {
	inner, ok := set.Children.Get(path)
	if !ok {
		inner = nil
	}
	return ownership{self: set.Members.Has(path), inner: inner}
}

func (c *comparison) value(at place, own ownership, observed, desired any) {
	switch want := desired.(type) {
	case map[string]any:
		if now, ok := observed.(map[string]any); ok || observed == nil {
			inner := own.inner
			if inner == nil && at.metadata {
				// It says who the object is, at least, and nobody owns that.
				inner = &fieldpath.Set{}
			}
			if inner != nil && len(want) > 0 {
				c.object(at, inner, now, want)
				return
			}
		}
	case []any:
		if now, ok := observed.([]any); ok || observed == nil {
			if own.inner != nil && len(want) > 0 {
				c.list(at, own.inner, now, want)
				return
			}
		}
	}
	switch {
	case own.inner != nil:
		// It was something with parts, and is to be something without.
		c.differs = true
	case own.self && observed == nil && merge.Empty(desired):
		// It was applied, and the API server leaves out what is empty.
	case own.self && granular[at.key] && isEmptyObject(desired) && isObject(observed):
		// It was applied empty, and what is in it is somebody else's.
	case noElements(desired) && (observed == nil || noElements(observed)):
		// Nobody can own an empty list of elements that have owners.
	case observed == nil || !contains(at, observed, desired):
		c.differs = true
	case !own.self:
		c.unowned = true
	}
}

// granular are objects whose fields have owners of their own wherever built-in
// kinds have them, so that to own an empty one is not to own what is in it: hooks
// that are written in Go send them, and the API server fills them in. Of another
// that is owned without parts it is not known whether it is owned as a whole.
var granular = map[string]bool{
	"metadata": true, "labels": true, "annotations": true, "data": true, "spec": true, "status": true,
	"strategy": true, "updateStrategy": true, "rollingUpdate": true, "resources": true, "securityContext": true,
}

func isObject(value any) bool {
	_, ok := value.(map[string]any)
	return ok
}

func isEmptyObject(value any) bool {
	fields, ok := value.(map[string]any)
	return ok && len(fields) == 0
}

// noElements says whether a value is a list without elements.
func noElements(value any) bool {
	list, ok := value.([]any)
	return ok && len(list) == 0
}

// list compares a list of which the elements have owners of their own.
func (c *comparison) list(at place, set *fieldpath.Set, observed, desired []any) {
	paths := elements(set)
	wanted, present := bind(paths, desired), bind(paths, observed)
	ours := make([]bool, len(desired))
	for i, path := range paths {
		if wanted[i] == none || present[i] == none {
			c.differs = true
			return
		}
		ours[wanted[i]] = true
		want, now, own := desired[wanted[i]], observed[present[i]], of(set, path)
		inner := place{parent: at.key}
		if fields, ok := want.(map[string]any); ok && path.Key != nil && own.inner != nil {
			seen, _ := now.(map[string]any)
			c.object(inner, own.inner, seen, fields)
		} else {
			c.value(inner, own, now, want)
		}
		if c.differs {
			return
		}
	}
	for i, want := range desired {
		if ours[i] {
			continue
		}
		// Somebody else's element may be just that.
		if !slices.ContainsFunc(observed, func(now any) bool { return contains(place{parent: at.key}, now, want) }) {
			c.differs = true
			return
		}
		c.unowned = true
	}
}

// contains says whether an observed value that is owned as a whole is the desired
// one, but for what the API server itself adds to it.
func contains(at place, observed, desired any) bool {
	switch want := desired.(type) {
	case map[string]any:
		now, ok := observed.(map[string]any)
		if !ok {
			return false
		}
		for key, value := range want {
			if now[key] == nil {
				if !merge.Empty(value) {
					return false
				}
			} else if !contains(at.field(key), now[key], value) {
				return false
			}
		}
		for key, value := range now {
			if want[key] == nil && !merge.Empty(value) && !defaulted(key, value) {
				return false
			}
		}
		return true
	case []any:
		now, ok := observed.([]any)
		if !ok || len(now) < len(want) {
			return false
		}
		for i, value := range want {
			if !contains(place{parent: at.key}, now[i], value) {
				return false
			}
		}
		for _, extra := range now[len(want):] {
			if !appended(at, extra) {
				return false
			}
		}
		return true
	case nil:
		return observed == nil
	default:
		return merge.Alike(at.parent, at.key, observed, desired)
	}
}

// defaults are the values that the API server fills into built-in kinds where a
// list or an object is owned as a whole.
var defaults = map[string][]any{
	"protocol":          {defaultProtocol},             // ports of a NetworkPolicy, an EndpointSlice
	"apiGroup":          {"rbac.authorization.k8s.io"}, // subjects of a RoleBinding
	"apiVersion":        {"v1"},                        // fieldRef; a claim template
	"kind":              {"PersistentVolumeClaim"},     // a claim template
	"volumeMode":        {"Filesystem"},                // a claim template
	"status":            {map[string]any{"phase": "Pending"}},
	"divisor":           {"0"},         // resourceFieldRef
	"expirationSeconds": {int64(3600)}, // serviceAccountToken
}

func defaulted(key string, value any) bool {
	return slices.ContainsFunc(defaults[key], func(known any) bool { return object.Equal(known, value) })
}

// Tolerations are owned as a list, to which the API server appends.
const (
	tolerationsField = "tolerations"
	nodeTaintPrefix  = "node.kubernetes.io/"
)

func appended(at place, extra any) bool {
	fields, _ := extra.(map[string]any)
	key, _ := fields["key"].(string)
	return at.key == tolerationsField && strings.HasPrefix(key, nodeTaintPrefix)
}

// WithoutNulls is a value in which no object has a field that is null: to apply a
// null is to own it, and a hook that sends one means that there is no such field.
// So it is with the empty protocol of a port: it is a part of the port's key, and
// the API server would take the port for another one than that with the default.
// The argument is not changed; the result shares with it.
func WithoutNulls(value map[string]any) map[string]any {
	out, _ := withoutNulls(value).(map[string]any)
	return out
}

func withoutNulls(value any) any {
	switch value := value.(type) {
	case map[string]any:
		out := make(map[string]any, len(value))
		for key, field := range value {
			if field != nil && (key != protocolField || field != "" || !isPort(value)) {
				out[key] = withoutNulls(field)
			}
		}
		return out
	case []any:
		out := make([]any, len(value))
		for i, element := range value {
			out[i] = withoutNulls(element)
		}
		return out
	default:
		return value
	}
}

func isPort(fields map[string]any) bool {
	return fields["port"] != nil || fields["containerPort"] != nil
}
