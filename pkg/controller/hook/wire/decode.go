package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/go-json-experiment/json/jsontext"
	kjson "sigs.k8s.io/json"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// MaxResync is the longest time that resyncAfterSeconds can ask for; more means
// this much.
const MaxResync = 365 * 24 * time.Hour

// minResync keeps a tiny resyncAfterSeconds from becoming none at all.
const minResync = time.Millisecond

// Fields of the answers, beside those whose names depend on the flavor.
const (
	fieldStatus      = "status"
	fieldResync      = "resyncAfterSeconds"
	fieldFinalized   = "finalized"
	fieldLabels      = "labels"
	fieldAnnotations = "annotations"
)

// FieldRelated is the field of a customize hook's answer that holds the rules.
const FieldRelated = "relatedResources"

// DecodeResponse reads the answer to r, a sync or finalize request. The notes
// are what a strict codec would have refused. The error is a *object.FieldError
// where a field is wrong.
//
// An answer must have its list of children (attachments), be it empty or null:
// what has none is more likely an error document than the wish to delete them
// all. There are two exceptions, where the field decides nothing: the controller
// declares no kinds of children, or the answer to a finalize request says that
// it is finalized; children are left as they are then.
func (c Codec) DecodeResponse(r *hook.Request, data []byte) (*hook.Response, []Note, error) {
	_, children := fieldsOf(r.Flavor)
	if children == "" || r.Call != hook.Sync && r.Call != hook.Finalize {
		return nil, nil, fmt.Errorf("cannot decode the answer to a %s request of controller flavor %d", r.Call, r.Flavor)
	}
	out := &hook.Response{}
	known := 0
	notes, err := c.decode(data, func(name string, raw jsontext.Value) (bool, error) {
		decorator := r.Flavor == hook.Decorator
		var err error
		switch {
		case name == children:
			out.ChildrenPresence, out.Children, err = decodeChildren(name, raw)
		case name == fieldStatus:
			out.Status, err = decodeStatus(raw)
		case name == fieldResync:
			out.ResyncAfter, err = decodeResync(raw)
		case name == fieldFinalized:
			out.Finalized, err = decodeBool(name, raw)
		case name == fieldLabels && decorator:
			out.Labels, err = decodeChanges(name, raw)
		case name == fieldAnnotations && decorator:
			out.Annotations, err = decodeChanges(name, raw)
		default:
			return false, nil
		}
		known++
		return true, err
	})
	if err != nil {
		return nil, notes, err
	}
	if out.ChildrenPresence == hook.Absent {
		none := len(r.Children.Groups()) == 0 && (known > 0 || r.Flavor == hook.Decorator && len(notes) == 0)
		if !none && !(r.Finalizing() && out.Finalized) {
			return nil, notes, missing(children)
		}
	}
	return out, notes, nil
}

// DecodeCustomize reads the answer to a customize request. It must have its list
// of rules, be it empty or null. The notes are what a strict codec would have
// refused.
func (c Codec) DecodeCustomize(data []byte) (*hook.CustomizeResponse, []Note, error) {
	out := &hook.CustomizeResponse{}
	var found bool
	var inner notes
	names := 0
	notes, err := c.decode(data, func(name string, raw jsontext.Value) (bool, error) {
		if name != FieldRelated {
			return false, nil
		}
		found = true
		return true, elements(name, raw, func(path string, raw jsontext.Value) error {
			rule, unknown, err := decodeRule(path, raw)
			if err != nil {
				return err
			}
			names += len(rule.Names)
			if len(out.Rules) == MaxRules || names > MaxNames {
				return &object.FieldError{Path: name, Problem: fmt.Sprintf("has more than %d rules, or more than %d names in them", MaxRules, MaxNames)}
			}
			for _, note := range unknown {
				inner.add(note)
			}
			out.Rules = append(out.Rules, rule)
			return nil
		})
	})
	if err != nil {
		return nil, notes, err
	}
	if !found {
		return nil, notes, missing(FieldRelated)
	}
	if c.Strict && len(inner.list) > 0 {
		return nil, nil, inner.refused()
	}
	return out, append(notes, inner.told()...), nil
}

func missing(field string) error {
	return &object.FieldError{
		Path:    field,
		Problem: "is missing in the answer; nothing was changed (an empty list is how to ask for none)",
	}
}

func decodeChildren(name string, raw jsontext.Value) (hook.Presence, []hook.Child, error) {
	if raw.Kind() == 'n' {
		return hook.Null, nil, nil
	}
	var children []hook.Child
	err := elements(name, raw, func(path string, raw jsontext.Value) error {
		if len(children) == MaxChildren {
			return &object.FieldError{Path: name, Problem: fmt.Sprintf("has more than %d elements; divide them among several parents", MaxChildren)}
		}
		if err := checkValue(path, raw); err != nil {
			return err
		}
		o, err := object.FromJSON(raw)
		var field *object.FieldError
		if errors.As(err, &field) {
			return field.Under(path)
		}
		if err != nil {
			return &object.FieldError{Path: path, Problem: "is wrong: " + err.Error()}
		}
		children = append(children, hook.Child{Object: o, Path: path})
		return nil
	})
	return hook.Given, children, err
}

func decodeStatus(raw jsontext.Value) (hook.Status, error) {
	if err := checkValue(fieldStatus, raw); err != nil {
		return hook.Status{}, err
	}
	switch raw.Kind() {
	case 'n':
		return hook.Status{Presence: hook.Null}, nil
	case '{':
		return hook.Status{Presence: hook.Given, JSON: bytes.Clone(raw)}, nil
	default:
		return hook.Status{}, &object.FieldError{Path: fieldStatus, Problem: "must be an object, not " + kindName(raw.Kind())}
	}
}

// decodeResync reads a number of seconds. What is not positive asks for nothing.
func decodeResync(raw jsontext.Value) (time.Duration, error) {
	if raw.Kind() == 'n' {
		return 0, nil
	}
	if raw.Kind() != '0' {
		return 0, &object.FieldError{Path: fieldResync, Problem: "must be a number of seconds, not " + kindName(raw.Kind())}
	}
	// A number beyond float64 comes back as an infinity, which is what it is here.
	seconds, _ := strconv.ParseFloat(string(raw), 64)
	switch {
	case math.IsNaN(seconds) || seconds <= 0:
		return 0, nil
	case seconds >= MaxResync.Seconds():
		return MaxResync, nil
	default:
		return max(minResync, time.Duration(seconds*float64(time.Second))), nil
	}
}

func decodeBool(name string, raw jsontext.Value) (bool, error) {
	switch raw.Kind() {
	case 'n', 'f':
		return false, nil
	case 't':
		return true, nil
	default:
		return false, &object.FieldError{Path: name, Problem: "must be true or false, not " + kindName(raw.Kind())}
	}
}

// decodeChanges reads labels or annotations to set, or to delete where null.
func decodeChanges(name string, raw jsontext.Value) (map[string]*string, error) {
	if raw.Kind() == 'n' {
		return nil, nil
	}
	if raw.Kind() != '{' {
		return nil, &object.FieldError{Path: name, Problem: "must be an object, not " + kindName(raw.Kind())}
	}
	if err := checkValue(name, raw); err != nil {
		return nil, err
	}
	value, err := object.Decode(raw)
	if err != nil {
		return nil, err
	}
	fields, _ := value.(map[string]any)
	out := make(map[string]*string, len(fields))
	for key, value := range fields {
		switch value := value.(type) {
		case nil:
			out[key] = nil
		case string:
			out[key] = &value
		default:
			return nil, &object.FieldError{Path: name + "[" + cut(key) + "]", Problem: "must be a string or null"}
		}
	}
	return out, nil
}

func decodeRule(path string, raw jsontext.Value) (v1alpha1.RelatedResourceRule, []Note, error) {
	var rule v1alpha1.RelatedResourceRule
	if err := checkValue(path, raw); err != nil {
		return rule, nil, err
	}
	unknown, err := kjson.UnmarshalStrict(raw, &rule)
	if err != nil {
		return rule, nil, ruleProblem(path, err)
	}
	switch {
	case rule.APIVersion == "":
		return rule, nil, &object.FieldError{Path: path + ".apiVersion", Problem: "is missing"}
	case rule.Resource == "":
		return rule, nil, &object.FieldError{Path: path + ".resource", Problem: "is missing"}
	}
	var notes []Note
	for _, err := range unknown {
		notes = append(notes, Note{Path: path, Problem: "is wrong: " + err.Error()})
	}
	return rule, notes, nil
}

// ruleProblem says what is wrong with a rule in words of JSON, not of Go.
func ruleProblem(path string, err error) error {
	var mismatch *json.UnmarshalTypeError
	if !errors.As(err, &mismatch) {
		return &object.FieldError{Path: path, Problem: "is no rule"}
	}
	fields := slices.DeleteFunc(strings.Split(mismatch.Field, "."), func(field string) bool {
		// A struct that is embedded in Go is no field of the rule.
		return field == "" || unicode.IsUpper(rune(field[0]))
	})
	at := strings.Join(append([]string{path}, fields...), ".")
	return &object.FieldError{Path: at, Problem: "must be " + typeName(mismatch.Type) + ", not " + valueName(mismatch.Value)}
}

func typeName(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Slice:
		return "a list"
	case reflect.Bool:
		return "true or false"
	case reflect.Map, reflect.Struct:
		return "an object"
	default:
		return "a number"
	}
}

// valueName is what a user calls what encoding/json found.
func valueName(found string) string {
	switch found, _, _ := strings.Cut(found, " "); found {
	case "array":
		return "a list"
	case "object":
		return "an object"
	case "bool":
		return "true or false"
	default:
		return "a " + found
	}
}
