// Package merge brings an observed object to a desired state without taking away
// what others wrote into it: a three-way merge of what was observed, what this
// program asked for last, and what is desired now.
//
//   - What is desired is set.
//   - What was applied last and is no longer desired is removed.
//   - Everything else stays: defaults of the API server, fields of others.
//
// What was applied last is kept as JSON in the annotation
// object.LastAppliedAnnotation. Lists of objects are merged element by element
// where their elements can be told apart, see list.go.
//
// The merge knows nothing about kinds, and it does not fight with the API
// server about how to write a value: what the server left out because it is
// empty, or wrote differently, counts as applied.
//
// The package is pure. No argument is changed; results share with them.
package merge

import (
	"github.com/metacontroller-solo/solo/pkg/object"
)

// Outcome says what there is to write.
type Outcome int

const (
	// Unknown is no valid value.
	Unknown Outcome = iota
	// Same: the observed object is as desired; there is nothing to write.
	Same
	// Forget: the object is as desired, but the annotation remembers a field
	// that is no longer desired, or there is none at all. Only the annotation is
	// to be written.
	Forget
	// Changed: the object is not as desired.
	Changed
)

// Result of a merge.
type Result struct {
	Outcome Outcome
	// Content is the object to write, with its new annotation, unless Outcome is
	// Same. It has the observed UID and resourceVersion.
	Content map[string]any
	// Applied says that just this desired state was applied last: what differs was
	// changed since, by the API server or by somebody else.
	Applied bool
}

// Merge merges desired into observed, whose annotation says what was applied
// last. Both are whole objects; status and the other fields of
// object.WithoutNoise are as observed, whatever desired says about them.
func Merge(observed, desired map[string]any) (Result, error) {
	want := object.WithoutNoise(desired)
	last, remembered := LastApplied(observed)
	// The annotation of somebody's copy must not reach into status and the like.
	last = object.WithoutNoise(last)
	// apiVersion, kind and name are those of the observed object: desired may
	// speak of it in another version.
	for _, identity := range []string{"apiVersion", "kind"} {
		want[identity] = observed[identity]
		delete(last, identity)
	}
	content, changed := mergeRoot(observed, last, want)
	switch {
	case changed:
	case !remembered || forgets(last, want):
	default:
		return Result{Outcome: Same}, nil
	}
	content, err := withLastApplied(content, object.WithoutNoise(desired))
	if err != nil {
		return Result{}, err
	}
	if changed {
		delete(want, "apiVersion")
		delete(want, "kind")
		return Result{Outcome: Changed, Content: content, Applied: remembered && object.Equal(last, want)}, nil
	}
	return Result{Outcome: Forget, Content: content}, nil
}

// First is desired as it is to be created: without what only the API server
// writes, and with its annotation.
func First(desired map[string]any) (map[string]any, error) {
	want := object.WithoutNoise(desired)
	content, err := withLastApplied(want, want)
	if err != nil {
		return nil, err
	}
	return content, nil
}

// LastApplied is what the annotation of an object remembers, and whether there
// is one that can be read. One that cannot remembers nothing; the next write
// mends it.
func LastApplied(observed map[string]any) (map[string]any, bool) {
	metadata, _ := observed["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	text, _ := annotations[object.LastAppliedAnnotation].(string)
	if text == "" {
		return nil, false
	}
	value, err := object.Decode([]byte(text))
	last, ok := value.(map[string]any)
	return last, err == nil && ok
}

// withLastApplied is content with an annotation that remembers desired.
func withLastApplied(content, desired map[string]any) (map[string]any, error) {
	text, err := object.Encode(desired)
	if err != nil {
		return nil, err
	}
	metadata, _ := content["metadata"].(map[string]any)
	annotations, _ := metadata["annotations"].(map[string]any)
	return with(content, "metadata",
		with(metadata, "annotations",
			with(annotations, object.LastAppliedAnnotation, string(text)))), nil
}

// with is a copy of fields with one of them set.
func with(fields map[string]any, key string, value any) map[string]any {
	out := make(map[string]any, len(fields)+1)
	for k, v := range fields {
		out[k] = v
	}
	out[key] = value
	return out
}

// forgets says whether last has a field, at any depth of objects, that desired
// has not: it would be removed from the object if somebody else wrote it. Values
// do not matter, and neither does what only desired has. A field that desired
// adds and that was there with that value already is not taken over: it was
// somebody else's, and stays when it is no longer desired.
func forgets(last, desired map[string]any) bool {
	for key, value := range last {
		if Empty(value) {
			continue // it is never taken from somebody else
		}
		now, ok := desired[key]
		if !ok || now == nil {
			return true
		}
		before, isObject := value.(map[string]any)
		after, _ := now.(map[string]any)
		if isObject && forgets(before, after) {
			return true
		}
		if list, isList := value.([]any); isList {
			after, _ := now.([]any)
			if forgetsElement(list, after) {
				return true
			}
		}
	}
	return false
}

// forgetsElement is forgets for lists: of elements that can be told apart, or,
// where they cannot, of the lists as a whole.
func forgetsElement(last, desired []any) bool {
	ids, ok := identify(last, desired)
	if !ok {
		// Such a list is replaced as a whole, so nothing of it is remembered by
		// element.
		return false
	}
	now := make(map[identity]map[string]any, len(desired))
	for i, id := range ids[1] {
		now[id], _ = desired[i].(map[string]any)
	}
	for i, id := range ids[0] {
		after, ok := now[id]
		if !ok {
			return true
		}
		before, _ := last[i].(map[string]any)
		if forgets(before, after) {
			return true
		}
	}
	return false
}
