package object

import (
	"bytes"
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
	return parse(data, true, r.FieldManager)
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
	return unquote(string(p.data[s.start:s.end]))
}

// Digest is a SHA-256 of what an object says but for its noise: status and the
// fields of metadata that the API server writes do not count, and what was
// applied to it (Applied) does. Two states of one object with the same Digest are
// the same to whoever compares it with a desired state. The same content in
// another order of keys has another Digest: it costs a comparison, and nothing
// else.
func (o *Object) Digest() [sha256.Size]byte {
	sum := sha256.New()
	in := jsontext.NewDecoder(bytes.NewBufferString(o.body), jsontext.AllowDuplicateNames(true))
	digestMembers(sum, in, func(name string) bool { return name == "status" }, func(name string) bool { return name == "metadata" })
	sum.Write([]byte{0})
	_, _ = io.WriteString(sum, o.applied)
	return [sha256.Size]byte(sum.Sum(nil))
}

// digestMembers adds the members of an object that are not skipped; those of a
// member that is to be opened are skipped as noise of metadata is. The parser has
// been here: reading cannot fail.
func digestMembers(sum io.Writer, in *jsontext.Decoder, skip, open func(name string) bool) {
	if in.PeekKind() != '{' {
		raw, _ := in.ReadValue()
		_, _ = sum.Write(raw)
		return
	}
	_, _ = in.ReadToken()
	for in.PeekKind() == '"' {
		token, err := in.ReadToken()
		if err != nil {
			return
		}
		name := token.String()
		switch {
		case skip(name):
			if in.SkipValue() != nil {
				return
			}
		case open(name):
			_, _ = io.WriteString(sum, name+"{")
			digestMembers(sum, in, isServerMetadata, func(string) bool { return false })
			_, _ = io.WriteString(sum, "}")
		default:
			_, _ = io.WriteString(sum, name+"=")
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

func isServerMetadata(name string) bool { return slices.Contains(serverMetadata, name) }
