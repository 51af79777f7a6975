package object

import (
	"crypto/sha256"
	"io"
	"slices"

	"github.com/go-json-experiment/json/jsontext"
)

// Reader makes objects as FromJSON does, and keeps what one field manager
// applied: that is the API server's memory of what this program wanted last.
// Everything else in metadata.managedFields is left out, which is most of it.
type Reader struct {
	// FieldManager is whose fields of operation Apply are kept; empty keeps
	// nobody's.
	FieldManager string
}

// FromJSON is the function FromJSON for this reader.
func (r Reader) FromJSON(data []byte) (*Object, error) {
	return parse(data, strip, r.FieldManager)
}

// Take is FromJSON for data that nobody else uses: it becomes the body of the
// object.
func (r Reader) Take(data []byte) (*Object, error) {
	return parse(data, take, r.FieldManager)
}

// operationApply is the operation of fields that were written by server-side
// apply, in metadata.managedFields.
const operationApply = "Apply"

// managedFields reads the entries as far as they are asked for. What is not of
// the form that the API server writes belongs to nobody: hooks may send anything
// here.
func (p *parser) managedFields() error {
	if p.manager == "" || p.in.PeekKind() != '[' {
		return p.in.SkipValue()
	}
	p.applied = span{}
	return p.elements("", func(int) error {
		if p.in.PeekKind() != '{' {
			return p.in.SkipValue()
		}
		var manager, operation, subresource, fields span
		err := p.members("", func(name []byte) error {
			var to *span
			switch string(name) {
			case "manager":
				to = &manager
			case "operation":
				to = &operation
			case "subresource":
				to = &subresource
			case "fieldsV1":
				to = &fields
			default:
				return p.in.SkipValue()
			}
			return p.value(to)
		})
		if err == nil && p.quoted(manager) == p.manager && p.quoted(operation) == operationApply && p.quoted(subresource) == "" {
			p.applied = fields
		}
		return err
	})
}

// quoted is the text of a value, empty if it is no string.
func (p *parser) quoted(s span) string {
	if s.empty() || p.data[s.start] != '"' {
		return ""
	}
	return string(unquoted(s.of(p.data)))
}

// Digest is a SHA-256 of what an object says but for its noise: status and the
// fields of metadata that the API server writes do not count, and what was
// applied to it (Applied) does. Two states of one object with the same Digest are
// the same to whoever compares it with a desired state. The same content in
// another order of keys has another Digest: it costs a comparison, and nothing
// else.
func (o *Object) Digest() [sha256.Size]byte {
	sum := sha256.New()
	reading(o.body, func(in *jsontext.Decoder) { digestMembers(sum, in, "") })
	sum.Write([]byte{0})
	_, _ = io.WriteString(sum, o.applied)
	return [sha256.Size]byte(sum.Sum(nil))
}

// digestMembers adds the members of the object of which within is the name, empty
// for the whole one. The parser has been here: reading cannot fail.
func digestMembers(sum io.Writer, in *jsontext.Decoder, within string) {
	if in.PeekKind() != '{' {
		raw, _ := in.ReadValue()
		_, _ = sum.Write(raw)
		return
	}
	_, _ = in.ReadToken()
	for in.PeekKind() == '"' {
		name, err := in.ReadValue()
		if err != nil {
			return
		}
		text := unquoted(name)
		switch {
		case within == "" && string(text) == "status", within == "metadata" && isServerMetadata(text):
			if in.SkipValue() != nil {
				return
			}
		case within == "" && string(text) == "metadata":
			_, _ = io.WriteString(sum, "metadata{")
			digestMembers(sum, in, "metadata")
			_, _ = io.WriteString(sum, "}")
		default:
			_, _ = sum.Write(text)
			_, _ = sum.Write([]byte{'='})
			raw, err := in.ReadValue()
			if err != nil {
				return
			}
			_, _ = sum.Write(raw)
			_, _ = sum.Write([]byte{0})
		}
	}
	_, _ = in.ReadToken()
}

func isServerMetadata(name []byte) bool {
	return slices.ContainsFunc(serverMetadata, func(field string) bool { return field == string(name) })
}
