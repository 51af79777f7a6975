package merge

import (
	"slices"

	stdjson "encoding/json"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// mergeKeys are the fields by which the elements of a list can be told apart, in
// the order of preference. The order is part of the contract: a list of ports is
// told apart by port, not by name.
var mergeKeys = []string{"containerPort", "port", "mountPath", "name", "uid", "ip", "path"}

// A port may be open for more than one protocol; one that names none is TCP.
const (
	protocolField   = "protocol"
	defaultProtocol = "TCP"
)

// identity tells an element of a list apart from the others of it.
type identity struct {
	key string
	// protocol is set for ports.
	protocol string
	// nth counts elements that are the same otherwise.
	nth int
}

// identify finds out how to tell the elements of some lists apart: by the first
// merge key that every element of every list has. It returns the identities of
// the elements of each list, or false if there is no such key. Of several keys
// one is preferred under which no list has two elements that look the same;
// without one, the first of those elements is one thing in all lists, the
// second another, and so on.
func identify(lists ...[]any) ([][]identity, bool) {
	var fallback [][]identity
	for _, key := range mergeKeys {
		ids, common, unique := identifyBy(key, lists)
		switch {
		case !common:
		case unique:
			return ids, true
		case fallback == nil:
			fallback = ids
		}
	}
	return fallback, fallback != nil
}

func identifyBy(key string, lists [][]any) (ids [][]identity, common, unique bool) {
	unique = true
	ids = make([][]identity, len(lists))
	for i, list := range lists {
		seen := make(map[identity]int, len(list))
		for _, element := range list {
			fields, ok := element.(map[string]any)
			if !ok {
				return nil, false, false
			}
			text, ok := scalar(fields[key])
			if !ok {
				return nil, false, false
			}
			id := identity{key: text}
			if key == "port" || key == "containerPort" {
				id.protocol, _ = fields[protocolField].(string)
				if id.protocol == "" {
					id.protocol = defaultProtocol
				}
			}
			n := seen[id]
			seen[id]++
			if n > 0 {
				unique = false
			}
			id.nth = n
			ids[i] = append(ids[i], id)
			common = true
		}
	}
	return ids, common, unique
}

// scalar is the text of a value that can identify an element: 80 is not "80".
func scalar(value any) (string, bool) {
	switch value := value.(type) {
	case string:
		return `"` + value, true
	case bool, int64, float64, stdjson.Number:
		text, err := object.Encode(value)
		return string(text), err == nil
	default:
		return "", false
	}
}

// isFinalizers says whether a list is the object's own finalizers: a set, of
// which everybody owns the elements that he put there.
func isFinalizers(at place) bool { return at.root && at.key == "finalizers" }

// isOwners says whether a list is the object's own owner references, which are
// told apart by UID alone: two owners may have one name.
func isOwners(at place) bool { return at.root && at.key == "ownerReferences" }

func identifyAt(at place, lists ...[]any) ([][]identity, bool) {
	switch {
	case isOwners(at):
		ids, common, _ := identifyBy("uid", lists)
		return ids, common
	case isFinalizers(at):
		return identifyTexts(lists)
	default:
		return identify(lists...)
	}
}

func identifyTexts(lists [][]any) ([][]identity, bool) {
	ids := make([][]identity, len(lists))
	for i, list := range lists {
		for _, element := range list {
			text, ok := element.(string)
			if !ok {
				return nil, false
			}
			ids[i] = append(ids[i], identity{key: text})
		}
	}
	return ids, true
}

// mergeable says whether lists are merged element by element.
func mergeable(at place, observed, last, desired []any) bool {
	_, ok := identifyAt(at, observed, last, desired)
	return ok
}

// mergeList returns observed itself, and false, where nothing changes. Elements
// stay in the order in which they were observed; new ones follow in the desired
// order.
func mergeList(at place, observed, last, desired []any) ([]any, bool) {
	ids, ok := identifyAt(at, observed, last, desired)
	if !ok {
		return replaceList(at, observed, last, desired)
	}
	was := byIdentity(ids[1], last)
	want := byIdentity(ids[2], desired)
	out, changed := make([]any, 0, len(observed)), false
	have := make(map[identity]bool, len(observed))
	for i, id := range ids[0] {
		have[id] = true
		wanted, isWanted := want[id]
		before, applied := was[id]
		switch {
		case isWanted:
			// The elements of a list are fields of nothing; what is in them is.
			merged, differs := mergeValue(place{parent: at.key}, observed[i], before, wanted)
			changed = changed || differs
			out = append(out, merged)
		case applied:
			changed = true
		default:
			out = append(out, observed[i])
		}
	}
	for i, id := range ids[2] {
		if !have[id] {
			have[id] = true
			changed = true
			out = append(out, desired[i])
		}
	}
	if !changed {
		return observed, false
	}
	return out, true
}

func byIdentity(ids []identity, list []any) map[identity]any {
	out := make(map[identity]any, len(list))
	for i, id := range ids {
		out[id] = list[i]
	}
	return out
}

// replaceList is for a list whose elements cannot be told apart: it becomes the
// desired one as a whole, unless it is that already but for what others, such as
// the defaults of the API server, added inside its elements.
func replaceList(at place, observed, last, desired []any) ([]any, bool) {
	if len(observed) != len(desired) && !extended(at, observed, last, desired) {
		return desired, true
	}
	for i := range desired {
		var was any
		if i < len(last) {
			was = last[i]
		}
		if desired[i] == nil && observed[i] == nil {
			continue
		}
		if _, differs := mergeValue(place{parent: at.key}, observed[i], was, desired[i]); differs {
			return slices.Clone(desired), true
		}
	}
	return observed, false
}

// tolerationsField is a list to which the API server itself appends when a Pod
// is created, and of which nothing may be taken away after that.
const tolerationsField = "tolerations"

// extended says whether a list may be longer than the one that was applied, and
// is desired still: one that the API server appends to or fills in, or a list of
// objects that was applied empty, to be filled in by somebody else.
func extended(at place, observed, last, desired []any) bool {
	if last == nil || len(observed) < len(desired) || !object.Equal(last, desired) {
		return false
	}
	if at.key == tolerationsField || filledIn(at, last, desired) {
		return true
	}
	return len(desired) == 0 && !slices.ContainsFunc(observed, func(element any) bool {
		_, isObject := element.(map[string]any)
		return !isObject
	})
}
