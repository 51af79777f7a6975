package object

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// List is one page of a list of objects.
type List struct {
	// ResourceVersion is what a watch continues from.
	ResourceVersion string
	// Continue is the token of the next page; empty on the last one.
	Continue string
	Items    []*Object
}

// ListFromJSON makes the objects of a list, as the API server sends it. Items of
// built-in kinds come without apiVersion and kind; they get them from the list. A
// custom kind may call its list anything (listKind of its CRD), and its items say
// what they are.
func (r Reader) ListFromJSON(data []byte) (*List, error) {
	p := parsers.Get().(*parser)
	defer p.release()
	p.reset(data)
	var apiVersion, kind, resourceVersion, next span
	var items []span
	isList := false
	err := p.members("", func(name []byte) error {
		switch string(name) {
		case "apiVersion":
			return p.text("apiVersion", &apiVersion)
		case "kind":
			return p.text("kind", &kind)
		case "metadata":
			return p.members("metadata", func(name []byte) error {
				switch string(name) {
				case "resourceVersion":
					return p.text("metadata.resourceVersion", &resourceVersion)
				case "continue":
					return p.text("metadata.continue", &next)
				default:
					return p.in.SkipValue()
				}
			})
		case "items":
			isList = true
			return p.elements("items", func(int) error {
				var item span
				err := p.value(&item)
				items = append(items, item)
				return err
			})
		default:
			return p.in.SkipValue()
		}
	})
	if err == nil {
		if _, end := p.in.ReadToken(); !errors.Is(end, io.EOF) {
			err = errors.New("something follows the list")
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read a list: %w", err)
	}
	text := func(s span) string { return string(unquoted(s.of(data))) }
	if !isList {
		return nil, fmt.Errorf("cannot read a list: there are no items in this %q", text(kind))
	}
	itemKind, named := strings.CutSuffix(text(kind), "List")
	// The members that an item of a built-in kind lacks.
	typed := []byte(`{"apiVersion":`)
	typed = append(typed, apiVersion.of(data)...)
	typed = append(typed, `,"kind":`...)
	typed, err = jsontext.AppendQuote(typed, itemKind)
	if err != nil {
		return nil, fmt.Errorf("cannot read a list: %w", err)
	}

	list := &List{ResourceVersion: text(resourceVersion), Continue: text(next), Items: make([]*Object, 0, len(items))}
	buffer := []byte{}
	for i, item := range items {
		raw := item.of(data)
		if !hasType(raw) {
			if !named {
				return nil, fmt.Errorf("cannot read a list: its kind is %q, and an item does not say what it is", text(kind))
			}
			// An item is an object, or parse says that it is not.
			if rest := bytes.TrimLeft(raw[1:], " \t\r\n"); raw[0] == '{' && len(rest) > 0 && rest[0] != '}' {
				buffer = append(buffer[:0], typed...)
				buffer = append(buffer, ',')
				buffer = append(buffer, rest...)
				raw = buffer
			}
		}
		o, err := parse(raw, strip, r.FieldManager)
		var field *FieldError
		if errors.As(err, &field) {
			err = field.Under(element("items", i))
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read a list: %w", err)
		}
		list.Items = append(list.Items, o)
	}
	return list, nil
}

// hasType says whether an item has an apiVersion of its own.
func hasType(raw []byte) (has bool) {
	reading(raw, func(in *jsontext.Decoder) {
		if in.PeekKind() != '{' {
			return
		}
		if _, err := in.ReadToken(); err != nil {
			return
		}
		for in.PeekKind() == '"' {
			name, err := in.ReadValue()
			if has = err == nil && string(unquoted(name)) == "apiVersion"; has || err != nil || in.SkipValue() != nil {
				return
			}
		}
	})
	return has
}
