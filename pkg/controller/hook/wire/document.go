package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/metacontroller-solo/solo/pkg/object"
)

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
