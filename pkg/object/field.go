package object

import (
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Field decodes one field at the top of the object, as Content does, and nothing
// else of it. It is nil if there is none.
func (o *Object) Field(name string) any {
	at := o.field(name)
	if at.empty() {
		return nil
	}
	value, _ := Decode(at.of(o.body)) // the parser has been here
	return value
}

// WithField is the object with one field at its top set to a JSON value. It must
// be none of apiVersion, kind and metadata.
func (o *Object) WithField(name string, value []byte) (*Object, error) {
	at := o.field(name)
	body := make([]byte, 0, len(o.body)+len(name)+len(value)+4)
	if at.empty() {
		// There are other fields before it: an object has a name.
		end := len(o.body) - 1
		for o.body[end] != '}' {
			end--
		}
		body = append(body, o.body[:end]...)
		body = append(body, ',')
		body = append(strconv.AppendQuote(body, name), ':')
		body = append(append(body, value...), o.body[end:]...)
	} else {
		body = append(body, o.body[:at.start]...)
		body = append(append(body, value...), o.body[at.end:]...)
	}
	changed, err := parse(body, keep, "")
	if err != nil {
		return nil, err
	}
	changed.applied = o.applied
	return changed, nil
}

// field is where in the body the value of a field is: of the last one of the name.
func (o *Object) field(name string) (at span) {
	reading(o.body, func(in *jsontext.Decoder) {
		if _, err := in.ReadToken(); err != nil {
			return
		}
		for in.PeekKind() == '"' {
			key, err := in.ReadValue()
			if err != nil {
				return
			}
			found := string(unquoted(key)) == name
			value, err := in.ReadValue()
			if err != nil {
				return
			}
			if found {
				end := uint32(in.InputOffset())
				at = span{end - uint32(len(value)), end}
			}
		}
	})
	return at
}
