package object

import (
	"math"
	"math/big"
	"strconv"

	stdjson "encoding/json"
)

// serverMetadata are the fields of metadata that the API server writes and that
// say nothing about what is desired.
var serverMetadata = []string{
	"selfLink", "uid", "resourceVersion", "generation", "creationTimestamp",
	"deletionTimestamp", "deletionGracePeriodSeconds", "managedFields",
}

// WithoutNoise is content without what a desired state does not decide: status,
// the fields of metadata that the API server writes, and the last-applied
// annotation. The argument is not changed; the result shares with it.
func WithoutNoise(content map[string]any) map[string]any {
	out := make(map[string]any, len(content))
	for key, value := range content {
		if key != "status" {
			out[key] = value
		}
	}
	metadata, ok := content["metadata"].(map[string]any)
	if !ok {
		return out
	}
	kept := make(map[string]any, len(metadata))
	for key, value := range metadata {
		kept[key] = value
	}
	for _, key := range serverMetadata {
		delete(kept, key)
	}
	if annotations, ok := kept["annotations"].(map[string]any); ok {
		if _, ok := annotations[LastAppliedAnnotation]; ok {
			others := make(map[string]any, len(annotations))
			for key, value := range annotations {
				if key != LastAppliedAnnotation {
					others[key] = value
				}
			}
			kept["annotations"] = others
			if len(others) == 0 {
				delete(kept, "annotations")
			}
		}
	}
	out["metadata"] = kept
	return out
}

// Equivalent says whether two objects say the same but for what WithoutNoise
// leaves out.
func Equivalent(a, b *Object) bool {
	return a.SameAs(b) || Equal(WithoutNoise(a.Content()), WithoutNoise(b.Content()))
}

// Equal says whether two decoded JSON values mean the same: numbers are compared
// by value, however they are written, and a null in an object is as good as no
// field at all.
func Equal(a, b any) bool {
	switch a := a.(type) {
	case map[string]any:
		b, ok := b.(map[string]any)
		return ok && equalMaps(a, b)
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !Equal(a[i], b[i]) {
				return false
			}
		}
		return true
	case int64, float64, stdjson.Number:
		return equalNumbers(a, b)
	case string:
		b, ok := b.(string)
		return ok && a == b
	case bool:
		b, ok := b.(bool)
		return ok && a == b
	default:
		return a == nil && b == nil
	}
}

func equalMaps(a, b map[string]any) bool {
	both := 0 // non-null fields of a, all of which are in b
	for key, value := range a {
		if value == nil {
			continue
		}
		other, ok := b[key]
		if !ok || other == nil || !Equal(value, other) {
			return false
		}
		both++
	}
	for _, value := range b {
		if value != nil {
			both--
		}
	}
	return both == 0
}

func equalNumbers(a, b any) bool {
	switch a := a.(type) {
	case int64:
		if b, ok := b.(int64); ok {
			return a == b
		}
	case float64:
		if b, ok := b.(float64); ok {
			return a == b
		}
	case stdjson.Number:
		if b, ok := b.(stdjson.Number); ok && a == b {
			return true
		}
	}
	x, okX := exact(a)
	y, okY := exact(b)
	return okX && okY && x.Cmp(y) == 0 || rounded(a, b)
}

// rounded says whether one of two numbers is what the API server makes of the
// other. It keeps what is no int64 as a float64, so that it gives back
// 18446744073709552000 for 18446744073709551615.
func rounded(a, b any) bool {
	return keeps(a, b) || keeps(b, a)
}

// keeps says whether kept is the shortest text of the float64 next to a number
// beyond int64.
func keeps(written, kept any) bool {
	text, ok := written.(stdjson.Number)
	if !ok {
		return false
	}
	f, err := strconv.ParseFloat(string(text), 64)
	if err != nil || math.Abs(f) < 1<<63 {
		return false
	}
	shortest, okX := exact(f)
	other, okY := exact(kept)
	return okX && okY && shortest.Cmp(other) == 0
}

// maxExact is how many characters a number may have to be read exactly, which
// takes a time that grows with their square.
const maxExact = 1000

// exact is a number with as much precision as anybody writes into an object.
func exact(value any) (*big.Float, bool) {
	const precision = 512
	f := new(big.Float).SetPrec(precision)
	switch value := value.(type) {
	case int64:
		return f.SetInt64(value), true
	case float64:
		// By its shortest text, as it would be written: 0.1 is then the same as
		// the text "0.1".
		text, err := appendValue(nil, value)
		if err != nil {
			return nil, false
		}
		return exact(stdjson.Number(text))
	case stdjson.Number:
		if len(value) > maxExact {
			rounded, err := strconv.ParseFloat(string(value), 64)
			return f.SetFloat64(rounded), err == nil
		}
		f, _, err := f.Parse(string(value), 10)
		return f, err == nil
	default:
		return nil, false
	}
}
