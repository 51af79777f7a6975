package merge

import (
	"maps"
	"time"

	stdjson "encoding/json"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// freeForm are objects whose fields are independent of one another: what others
// wrote into them stays even if desired has no such object any more. Any other
// object goes as a whole then, for what is left of a struct may be invalid
// without the fields that are gone.
var freeForm = map[string]bool{
	"metadata": true, "labels": true, "annotations": true, "data": true, "binaryData": true,
}

// place is where in an object a value stands, as far as a rule asks for it.
type place struct {
	// parent and key are the names of the two fields above the value.
	parent, key string
	// root says that the value is metadata of the object itself, or a field of it.
	root bool
}

func (p place) field(key string) place {
	return place{parent: p.key, key: key, root: p == place{} && key == "metadata" || p.root && p.key == "metadata" && p.parent == ""}
}

// mergeRoot merges whole objects.
func mergeRoot(observed, last, desired map[string]any) (map[string]any, bool) {
	return mergeObject(place{}, observed, last, desired)
}

// mergeObject returns observed itself, and false, where nothing changes. A null
// is as good as no field, wherever it stands: hooks that are written in Go send
// it for an empty list, and do not mean to take out what the server put there.
func mergeObject(at place, observed, last, desired map[string]any) (map[string]any, bool) {
	out, copied := observed, false
	write := func() map[string]any {
		if !copied {
			out, copied = maps.Clone(observed), true
			if out == nil {
				out = map[string]any{}
			}
		}
		return out
	}
	for key, was := range last {
		if want, ok := desired[key]; ok && want != nil {
			continue
		}
		now := observed[key]
		if now == nil || Empty(was) && !object.Equal(now, was) {
			// Nothing is there, or somebody filled in what was applied empty.
			continue
		}
		left, changed := remove(at.field(key), now, was)
		switch {
		case !changed:
		case left == nil:
			delete(write(), key)
		default:
			write()[key] = left
		}
	}
	for key, want := range desired {
		if want == nil {
			continue
		}
		now := observed[key]
		was, applied := last[key]
		if now == nil {
			if applied && Empty(want) && object.Equal(was, want) {
				// It was applied, and the server leaves empty fields out.
				continue
			}
			write()[key] = want
			continue
		}
		if merged, changed := mergeValue(at.field(key), now, was, want); changed {
			write()[key] = merged
		}
	}
	return out, copied
}

// mergeValue merges a value that is both observed and desired.
func mergeValue(at place, observed, last, desired any) (any, bool) {
	switch want := desired.(type) {
	case map[string]any:
		if now, ok := observed.(map[string]any); ok {
			was, _ := last.(map[string]any)
			return mergeObject(at, now, was, want)
		}
	case []any:
		if now, ok := observed.([]any); ok {
			was, _ := last.([]any)
			return mergeList(at, now, was, want)
		}
	default:
		if object.Equal(observed, desired) || samelyMeant(at, observed, last, desired) || filledIn(at, last, desired) {
			return observed, false
		}
	}
	return desired, true
}

// remove takes out of an observed value what was applied last, now that it is no
// longer desired. What is left of it is nil if the field is to go.
func remove(at place, observed, last any) (left any, changed bool) {
	switch now := observed.(type) {
	case map[string]any:
		was, ok := last.(map[string]any)
		if !ok || !freeForm[at.key] {
			return nil, true
		}
		rest, changed := mergeObject(at, now, was, nil)
		if len(rest) == 0 {
			return nil, changed
		}
		return rest, changed
	case []any:
		was, ok := last.([]any)
		if !ok || !mergeable(at, now, was, nil) {
			return nil, true
		}
		rest, changed := mergeList(at, now, was, nil)
		if len(rest) == 0 {
			return nil, changed
		}
		return rest, changed
	default:
		return nil, true
	}
}

// Alike says whether an observed value of a field is the desired one, in whatever
// form the API server writes it: two texts of one number, or, where it is known
// that quantities stand, of one quantity. Parent and key are the names of the two
// fields above the value.
func Alike(parent, key string, observed, desired any) bool {
	return object.Equal(observed, desired) || samelyMeant(place{parent: parent, key: key}, observed, nil, desired)
}

// Empty says whether the API server may leave a field out that has this value.
func Empty(value any) bool {
	switch value := value.(type) {
	case nil:
		return true
	case bool:
		return !value
	case string:
		return value == ""
	case int64:
		return value == 0
	case float64:
		return value == 0
	case stdjson.Number:
		return object.Equal(value, int64(0))
	case []any:
		return len(value) == 0
	case map[string]any:
		for _, field := range value {
			if !Empty(field) {
				return false
			}
		}
		return true
	default:
		return false
	}
}

// Objects whose fields are quantities, and fields that are one: the API server
// writes them in a form of its own.
var (
	quantityObjects = map[string]bool{
		"limits": true, "requests": true, "capacity": true, "hard": true, "overhead": true,
		"max": true, "min": true, "default": true, "defaultRequest": true, "maxLimitRequestRatio": true,
	}
	quantityFields = map[string]bool{"sizeLimit": true, "divisor": true, "averageValue": true}
)

// textObjects are objects whose fields are texts that the API server keeps to
// the letter, and textFields are such fields.
var (
	textObjects = map[string]bool{
		"labels": true, "annotations": true, "matchLabels": true, "nodeSelector": true, "data": true, "binaryData": true, "stringData": true,
	}
	textFields = map[string]bool{"value": true, "name": true, "image": true}
)

// filledInFields are numbers and lists of texts that the API server fills in where they
// are empty: empty means that it is to choose.
var filledInFields = map[string]bool{
	"nodePort": true, "healthCheckNodePort": true, "targetPort": true,
	"timeoutSeconds": true, "periodSeconds": true, "successThreshold": true, "failureThreshold": true,
	"clusterIPs": true, "ipFamilies": true, "policyTypes": true,
}

// filledIn says whether a value that is observed was applied empty, and is
// desired empty still, in a place where the API server, the scheduler or another
// controller fills in what is empty: a node, a port, a policy. To write it empty
// again would change nothing, or be refused.
func filledIn(at place, last, desired any) bool {
	if last == nil || !Empty(desired) || !object.Equal(last, desired) {
		return false
	}
	switch desired.(type) {
	case string:
		return !textObjects[at.parent] && !textFields[at.key]
	case bool:
		return false
	default:
		return filledInFields[at.key]
	}
}

// samelyMeant says whether two texts are one quantity (1000m and 1) or one time
// in two forms. Where it is not known that a quantity stands here, that is only
// believed if the desired form was applied before: what is observed is then how
// the API server writes it. Without this, a child would be written anew in each
// sync, or worse, deleted and made anew.
func samelyMeant(at place, observed, last, desired any) bool {
	known := quantityObjects[at.parent] || quantityFields[at.key]
	if !known && (textObjects[at.parent] || textFields[at.key] || last == nil || !object.Equal(last, desired)) {
		return false
	}
	return sameQuantity(observed, desired) || sameTime(observed, desired)
}

func sameQuantity(observed, desired any) bool {
	if _, ok := observed.(string); !ok {
		return false
	}
	x, okX := quantity(observed)
	y, okY := quantity(desired)
	return okX && okY && x.Cmp(y) == 0
}

func quantity(value any) (resource.Quantity, bool) {
	var text string
	switch value := value.(type) {
	case string:
		text = value
	case int64, float64:
		// A hook may write it as a number; the server reads it as a text.
		raw, err := object.Encode(value)
		if err != nil {
			return resource.Quantity{}, false
		}
		text = string(raw)
	default:
		return resource.Quantity{}, false
	}
	if len(text) > maxQuantity {
		return resource.Quantity{}, false
	}
	q, err := resource.ParseQuantity(text)
	return q, err == nil
}

// maxQuantity is longer than any quantity that somebody means as one.
const maxQuantity = 64

func sameTime(observed, desired any) bool {
	x, okX := observed.(string)
	y, okY := desired.(string)
	if !okX || !okY {
		return false
	}
	a, errA := time.Parse(time.RFC3339Nano, x)
	b, errB := time.Parse(time.RFC3339Nano, y)
	return errA == nil && errB == nil && a.Equal(b)
}
