package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// MaxDepth is how deep lists and objects of an answer may be nested. The API
// server takes more; no object of anybody's needs it.
const MaxDepth = 500

// MaxValue is how many bytes of JSON one child, one rule, the status, the labels
// and the annotations of an answer may have each. It is what an API server accepts
// as the body of a request, so nothing larger could be written. Decoded, a value
// takes many times the memory of its text.
const MaxValue = 3 << 20

// MaxChildren is how many children an answer may have. Each takes some kilobytes of
// memory until it is written.
const MaxChildren = 100_000

// MaxRules is how many rules an answer of a customize hook may have, and MaxNames
// how many names they may have together. They are kept for each parent, and each
// rule is a search.
const (
	MaxRules = 1000
	MaxNames = 10000
)

// maxNotes is how many unknown or duplicate fields of one answer are told.
const maxNotes = 20

// maxPath is how much of a path is shown: a field may have a name of megabytes.
const maxPath = 200

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

// checkValue refuses a value that no API server could keep: one that is too large,
// or that has a number beyond float64 in it. Of such a number some would make a text.
func checkValue(path string, raw jsontext.Value) error {
	if len(raw) > MaxValue {
		return &object.FieldError{Path: cut(path), Problem: fmt.Sprintf("has more than %d MiB, which no API server accepts", MaxValue>>20)}
	}
	if !mayOverflow(raw) {
		return nil
	}
	in := jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true))
	for {
		token, err := in.ReadToken()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if token.Kind() != '0' {
			continue
		}
		if text := token.String(); beyondFloats(text) {
			at := &object.FieldError{Path: pathOf(in.StackPointer()), Problem: "is " + cut(text) + ", and the API server keeps no number that is larger than a float64"}
			return at.Under(path)
		}
	}
}

func beyondFloats(number string) bool {
	_, err := strconv.ParseFloat(number, 64)
	return err != nil
}

// mayOverflow says whether a value has something in it that looks like a number
// beyond float64: one with an exponent of three digits, or with hundreds of digits.
func mayOverflow(raw []byte) bool {
	const most = 300 // digits of a whole number that surely fits
	quoted, digits, exponent := false, 0, false
	for i := 0; i < len(raw); i++ {
		switch c := raw[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted, digits, exponent = !quoted, 0, false
		case quoted:
		case c >= '0' && c <= '9':
			if digits++; digits > most || exponent && digits > 2 {
				return true
			}
		case c == 'e' || c == 'E':
			digits, exponent = 0, true
		case c == '+' || c == '-':
		default:
			digits, exponent = 0, false
		}
	}
	return false
}

// cut is the beginning of a path.
func cut(path string) string {
	if len(path) <= maxPath {
		return path
	}
	return strings.ToValidUTF8(path[:maxPath], "") + "…"
}

// notes are the unknown and duplicate fields of one answer.
type notes struct {
	list []Note
	// more is how many there are beside those.
	more int
}

func (n *notes) full() bool { return len(n.list) >= maxNotes }

func (n *notes) add(note Note) {
	if n.full() {
		n.more++
		return
	}
	note.Path = cut(note.Path)
	n.list = append(n.list, note)
}

// told are the notes, and one about those that there are beside them.
func (n *notes) told() []Note {
	if n.more == 0 {
		return n.list
	}
	return append(n.list, Note{Problem: fmt.Sprintf("and %d more fields are unknown or there twice", n.more)})
}

// refused is the error of a strict codec.
func (n *notes) refused() error {
	first := &object.FieldError{Path: n.list[0].Path, Problem: n.list[0].Problem}
	if more := len(n.list) - 1 + n.more; more > 0 {
		first.Problem += fmt.Sprintf(" (and %d more fields are unknown or there twice)", more)
	}
	return first
}

func missing(field string) error {
	return &object.FieldError{
		Path:    field,
		Problem: "is missing in the answer; nothing was changed (an empty list is how to ask for none)",
	}
}

// decode checks the document as a whole and hands each field of it to field,
// which says whether it knows the name. The value is valid, and valid only
// during the call.
func (c Codec) decode(data []byte, field func(name string, raw jsontext.Value) (bool, error)) ([]Note, error) {
	limit := c.MaxBytes
	if limit <= 0 {
		limit = DefaultMaxBytes
	}
	switch {
	case len(data) > limit:
		return nil, fmt.Errorf("the answer has more than %d bytes", limit)
	case len(bytes.TrimSpace(data)) == 0:
		return nil, errors.New("the answer is empty")
	case tooDeep(data, MaxDepth):
		return nil, fmt.Errorf("the answer is nested deeper than %d levels", MaxDepth)
	}
	var twice notes
	err := walk(data, nil)
	if errors.Is(err, jsontext.ErrDuplicateName) {
		if twice, err = duplicates(data); err == nil {
			if c.Strict {
				return nil, twice.refused()
			}
			if len(data) > MaxValue {
				// To sort them out, all of it has to be decoded at once.
				return nil, &object.FieldError{
					Path:    twice.list[0].Path,
					Problem: fmt.Sprintf("%s, which is only put up with in answers of up to %d MiB", twice.list[0].Problem, MaxValue>>20),
				}
			}
			// What follows keeps raw JSON; it must not mean one thing to us and
			// another to the API server.
			data, err = lastWins(data)
		}
	}
	if err != nil {
		return nil, problemOf(data, err)
	}
	var unknown notes
	err = walk(data, func(name string, raw jsontext.Value) error {
		ok, err := field(name, raw)
		if !ok && err == nil {
			unknown.add(Note{Path: name, Problem: "is unknown"})
		}
		return err
	})
	if err != nil {
		return nil, problemOf(data, err)
	}
	told := append(twice.told(), unknown.told()...)
	if c.Strict && len(unknown.list) > 0 {
		return nil, unknown.refused()
	}
	return told, nil
}

// walk goes over the fields of a document that must be one object.
func walk(data []byte, field func(name string, raw jsontext.Value) error) error {
	// Once all of it was checked, duplicates need not be looked for again.
	in := jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(field != nil))
	switch kind := in.PeekKind(); kind {
	case '{':
	case jsontext.KindInvalid:
		_, err := in.ReadToken()
		return err
	default:
		return &object.FieldError{Problem: "the answer must be an object, not " + kindName(kind)}
	}
	if field == nil {
		// Check the syntax of all of it.
		if _, err := in.ReadValue(); err != nil {
			return err
		}
	} else {
		if _, err := in.ReadToken(); err != nil {
			return err
		}
		for in.PeekKind() != '}' {
			name, err := in.ReadToken()
			if err != nil {
				return err
			}
			text := name.String()
			raw, err := in.ReadValue()
			if err != nil {
				return err
			}
			if err := field(text, raw); err != nil {
				return err
			}
		}
		if _, err := in.ReadToken(); err != nil {
			return err
		}
	}
	if _, err := in.ReadToken(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the answer, which must be one object")
	}
	return nil
}

// duplicates are all fields that occur more than once in an object of the
// document.
func duplicates(data []byte) (notes, error) {
	in := jsontext.NewDecoder(bytes.NewBuffer(data), jsontext.AllowDuplicateNames(true))
	var found notes
	var seen []map[string]bool // one for each open object or list
	for {
		token, err := in.ReadToken()
		if errors.Is(err, io.EOF) {
			return found, nil
		}
		if err != nil {
			return found, err
		}
		switch token.Kind() {
		case '{', '[':
			seen = append(seen, map[string]bool{})
		case '}', ']':
			seen = seen[:len(seen)-1]
		case '"':
			// After a name, the object has an odd number of names and values.
			if kind, n := in.StackIndex(in.StackDepth()); kind == '{' && n%2 == 1 {
				names, name := seen[len(seen)-1], token.String()
				switch {
				case !names[name]:
				case found.full():
					// The path alone may be long.
					found.more++
				default:
					found.add(Note{Path: pathOf(in.StackPointer()), Problem: "is there twice"})
				}
				names[name] = true
			}
		}
	}
}

// lastWins is the document with each key once.
func lastWins(data []byte) ([]byte, error) {
	value, err := object.Decode(data)
	if err != nil {
		return nil, err
	}
	return object.Encode(value)
}

// problemOf makes a FieldError with a path as users write it of an error of the
// JSON decoder about data.
func problemOf(data []byte, err error) error {
	var syntax *jsontext.SyntacticError
	switch {
	case errors.As(err, &syntax):
		path, problem := pathOf(syntax.JSONPointer), "is no valid JSON"
		if path == "" {
			problem = "the answer is no valid JSON"
		}
		if errors.Is(syntax.Err, io.ErrUnexpectedEOF) {
			return &object.FieldError{Path: path, Problem: fmt.Sprintf("%s: it ends too early, after %d bytes", problem, len(data))}
		}
		line, column := position(data, syntax.ByteOffset)
		return &object.FieldError{Path: path, Problem: fmt.Sprintf("%s: %v, at line %d, byte %d", problem, syntax.Err, line, column)}
	case errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, io.EOF):
		return errors.New("the answer is no valid JSON: it ends too early")
	default:
		return err
	}
}

// position is where in a text a byte is: its line, and which byte of that it is,
// both counted from 1.
func position(data []byte, offset int64) (line, column int) {
	before := data[:min(max(offset, 0), int64(len(data)))]
	return bytes.Count(before, []byte{'\n'}) + 1, len(before) - bytes.LastIndexByte(before, '\n')
}

// pathOf writes a JSON pointer as children[2].metadata.name.
func pathOf(pointer jsontext.Pointer) string {
	var b strings.Builder
	for token := range pointer.Tokens() {
		switch _, err := strconv.ParseUint(token, 10, 32); {
		case err == nil:
			b.WriteString("[" + token + "]")
		case strings.ContainsAny(token, "./"):
			b.WriteString("[" + token + "]")
		default:
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(token)
		}
		if b.Len() > maxPath {
			break
		}
	}
	return cut(b.String())
}

// kindName is what a user calls a JSON value.
func kindName(kind jsontext.Kind) string {
	switch kind {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "a string"
	case '0':
		return "a number"
	default:
		return kind.String() // null, true, false
	}
}

// tooDeep says whether lists and objects are nested deeper than limit.
func tooDeep(data []byte, limit int) bool {
	depth, quoted := 0, false
	for i := 0; i < len(data); i++ {
		switch c := data[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			if depth++; depth > limit {
				return true
			}
		case c == '}' || c == ']':
			depth--
		}
	}
	return false
}

// elements goes over a list; null is an empty one, and a null in it is an error.
func elements(path string, raw jsontext.Value, each func(path string, raw jsontext.Value) error) error {
	if raw.Kind() == 'n' {
		return nil
	}
	if raw.Kind() != '[' {
		return &object.FieldError{Path: path, Problem: "must be a list, not " + kindName(raw.Kind())}
	}
	in := jsontext.NewDecoder(bytes.NewBuffer(raw), jsontext.AllowDuplicateNames(true))
	if _, err := in.ReadToken(); err != nil {
		return err
	}
	for i := 0; in.PeekKind() != ']'; i++ {
		element, err := in.ReadValue()
		if err != nil {
			return err
		}
		at := path + "[" + strconv.Itoa(i) + "]"
		if element.Kind() != '{' {
			return &object.FieldError{Path: at, Problem: "must be an object, not " + kindName(element.Kind())}
		}
		if err := each(at, element); err != nil {
			return err
		}
	}
	return nil
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
