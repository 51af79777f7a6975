package object

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unique"

	"github.com/go-json-experiment/json/jsontext"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// FieldError says which field of a document is wrong, and how.
type FieldError struct {
	// Path from the root of the document, such as "metadata.labels[app]"; empty
	// for the root itself.
	Path string
	// Problem completes the sentence "<path> ...", such as "must be a string".
	Problem string
}

func (e *FieldError) Error() string {
	if e.Path == "" {
		return e.Problem
	}
	return e.Path + " " + e.Problem
}

// Under is the same error in a document that has this one at path.
func (e *FieldError) Under(path string) *FieldError {
	return &FieldError{Path: joinPath(path, e.Path), Problem: e.Problem}
}

func joinPath(parent, child string) string {
	if parent == "" || child == "" || strings.HasPrefix(child, "[") {
		return parent + child
	}
	return parent + "." + child
}

// span is a part of a body. Bodies are below 4 GiB: request limits see to it.
type span struct{ start, end uint32 }

func (s span) empty() bool           { return s.end == s.start }
func (s span) of(body []byte) []byte { return body[s.start:s.end] }
func (s span) shifted(cut span) span {
	if s.start >= cut.end {
		by := cut.end - cut.start
		return span{s.start - by, s.end - by}
	}
	return s
}

// FromJSON makes an Object of one JSON document, as the API server or a hook
// sends it: apiVersion, kind and metadata.name must be there. The data is copied
// and not kept. metadata.managedFields is left out. The error is a *FieldError
// where a field is wrong.
func FromJSON(data []byte) (*Object, error) {
	return parse(data, strip, "")
}

// treatment is what becomes of the data that is parsed.
type treatment int

const (
	// strip copies it, without metadata.managedFields.
	strip treatment = iota
	// keep makes it the body, as it is: nobody else has it.
	keep
	// take does both.
	take
)

// parse reads metadata and checks the syntax of everything else. Where a key
// occurs twice, the last one counts, as for encoding/json.
func parse(data []byte, how treatment, manager string) (*Object, error) {
	p := parsers.Get().(*parser)
	defer p.release()
	p.reset(data)
	p.manager = manager
	if err := p.document(); err != nil {
		var field *FieldError
		if errors.As(err, &field) {
			return nil, field
		}
		return nil, fmt.Errorf("cannot read an object: %w", err)
	}
	return p.object(how)
}

// parsers keeps what a parser needs anew for each object otherwise.
var parsers = sync.Pool{New: func() any { return &parser{in: new(decoder)} }}

// decoder reads JSON in which a key may occur twice.
type decoder struct {
	jsontext.Decoder
	from bytes.Buffer
}

func (d *decoder) reset(data []byte) {
	d.from = *bytes.NewBuffer(data)
	d.Reset(&d.from, jsontext.AllowDuplicateNames(true))
}

// decoders keeps what it takes to read JSON.
var decoders = sync.Pool{New: func() any { return new(decoder) }}

// reading calls read with a decoder of data.
func reading(data []byte, read func(in *jsontext.Decoder)) {
	in := decoders.Get().(*decoder)
	defer decoders.Put(in)
	in.reset(data)
	read(&in.Decoder)
	// What is kept must not keep anybody's data.
	in.reset(nil)
}

func (p *parser) reset(data []byte) {
	*p = parser{
		in: p.in, data: data,
		labels: p.labels[:0], finalizers: p.finalizers[:0], owners: p.owners[:0],
	}
	p.in.reset(data)
}

// release gives the parser back, which must not keep anybody's data.
func (p *parser) release() {
	p.reset(nil)
	parsers.Put(p)
}

type parser struct {
	data []byte
	in   *decoder
	// nameStart is where the name of the member being read starts.
	nameStart uint32

	apiVersion, kind                                span
	namespace, name, uid, resourceVersion, deletion span
	generation, annotations, decorator              span
	owners                                          []owner
	labels                                          []span // key, value, key, value
	finalizers                                      []span
	managed                                         span // with the comma that belongs to it
	// manager is whose applied fields are kept; empty keeps nobody's.
	manager string
	applied span
}

func (p *parser) document() error {
	err := p.members("", func(name []byte) error {
		switch string(name) {
		case "apiVersion":
			return p.text("apiVersion", &p.apiVersion)
		case "kind":
			return p.text("kind", &p.kind)
		case "metadata":
			return p.metadata()
		default:
			return p.in.SkipValue()
		}
	})
	if err != nil {
		return err
	}
	if _, err := p.in.ReadToken(); !errors.Is(err, io.EOF) {
		if err != nil {
			return err
		}
		return &FieldError{Problem: "must be one object, and something follows it"}
	}
	return nil
}

func (p *parser) metadata() error {
	if p.in.PeekKind() == 'n' {
		return p.in.SkipValue()
	}
	first := true
	before := uint32(0) // where the member before ended
	return p.members("metadata", func(name []byte) error {
		wasFirst, end := first, before
		first = false
		start := p.nameStart
		managed := string(name) == "managedFields" // the name is gone after the value is read
		err := p.metadataField(name)
		before = uint32(p.in.InputOffset())
		if managed && err == nil {
			p.managed = p.memberSpan(wasFirst, start, end, before)
		}
		return err
	})
}

// memberSpan is what to cut in order to lose a member: from the end of the one
// before it, or, for the first one, up to the start of the one after it.
func (p *parser) memberSpan(first bool, start, before, end uint32) span {
	if !first {
		return span{before, end}
	}
	rest := p.data[end:]
	trimmed := bytes.TrimLeft(rest, " \t\r\n")
	if len(trimmed) > 0 && trimmed[0] == ',' {
		end += uint32(len(rest) - len(trimmed) + 1)
	}
	return span{start, end}
}

func (p *parser) metadataField(name []byte) error {
	switch string(name) {
	case "namespace":
		return p.text("metadata.namespace", &p.namespace)
	case "name":
		return p.text("metadata.name", &p.name)
	case "uid":
		return p.text("metadata.uid", &p.uid)
	case "resourceVersion":
		return p.text("metadata.resourceVersion", &p.resourceVersion)
	case "deletionTimestamp":
		return p.text("metadata.deletionTimestamp", &p.deletion)
	case "generation":
		if kind := p.in.PeekKind(); kind != '0' && kind != 'n' {
			return p.wrong("metadata.generation", "must be a number")
		}
		return p.value(&p.generation)
	case "labels":
		p.labels = p.labels[:0]
		return p.textMap("metadata.labels", func(key, value span) { p.labels = append(p.labels, key, value) })
	case "annotations":
		start := p.in.InputOffset()
		p.decorator = span{}
		err := p.textMap("metadata.annotations", func(key, value span) {
			if string(unquoted(p.data[key.start:key.end])) == DecoratorAnnotation {
				p.decorator = value
			}
		})
		if err != nil {
			return err
		}
		p.annotations = p.trimmed(start)
		return nil
	case "finalizers":
		p.finalizers = p.finalizers[:0]
		return p.elements("metadata.finalizers", func(i int) error {
			var one span
			if err := p.text("", &one); err != nil {
				return under(element("metadata.finalizers", i), err)
			}
			p.finalizers = append(p.finalizers, one)
			return nil
		})
	case "ownerReferences":
		p.owners = p.owners[:0]
		return p.elements("metadata.ownerReferences", func(i int) error {
			var one owner
			if err := p.owner(&one); err != nil {
				return under(element("metadata.ownerReferences", i), err)
			}
			p.owners = append(p.owners, one)
			return nil
		})
	case "managedFields":
		return p.managedFields()
	default:
		return p.in.SkipValue()
	}
}

// owner is an owner reference before its texts are known.
type owner struct {
	apiVersion, kind, name, uid    span
	controller, blockOwnerDeletion *bool
}

func (p *parser) owner(to *owner) error {
	return p.members("", func(name []byte) error {
		switch string(name) {
		case "apiVersion":
			return p.text("apiVersion", &to.apiVersion)
		case "kind":
			return p.text("kind", &to.kind)
		case "name":
			return p.text("name", &to.name)
		case "uid":
			return p.text("uid", &to.uid)
		case "controller":
			return p.flag("controller", &to.controller)
		case "blockOwnerDeletion":
			return p.flag("blockOwnerDeletion", &to.blockOwnerDeletion)
		default:
			return p.in.SkipValue()
		}
	})
}

var yes, no = true, false

// flag reads true, false or null, which is as good as no field.
func (p *parser) flag(path string, to **bool) error {
	switch p.in.PeekKind() {
	case 't':
		*to = &yes
	case 'f':
		*to = &no
	case 'n':
		*to = nil
	default:
		return p.wrong(path, "must be true or false")
	}
	return p.in.SkipValue()
}

func element(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// under is an error of a value in the document that has it at path.
func under(path string, err error) error {
	var field *FieldError
	if errors.As(err, &field) {
		return field.Under(path)
	}
	return err
}

// members walks an object; each must read the member's value, after which name
// is no longer valid.
func (p *parser) members(path string, each func(name []byte) error) error {
	if p.in.PeekKind() != '{' {
		return p.wrong(path, "must be an object")
	}
	if _, err := p.in.ReadToken(); err != nil {
		return err
	}
	for p.in.PeekKind() != '}' {
		raw, err := p.in.ReadValue()
		if err != nil {
			return err
		}
		p.nameStart = uint32(p.in.InputOffset()) - uint32(len(raw))
		name := raw[1 : len(raw)-1]
		if bytes.IndexByte(name, '\\') >= 0 {
			name, _ = jsontext.AppendUnquote(nil, raw)
		}
		if err := each(name); err != nil {
			return err
		}
	}
	_, err := p.in.ReadToken()
	return err
}

func (p *parser) elements(path string, each func(i int) error) error {
	switch p.in.PeekKind() {
	case 'n':
		return p.in.SkipValue()
	case '[':
	default:
		return p.wrong(path, "must be a list")
	}
	if _, err := p.in.ReadToken(); err != nil {
		return err
	}
	for i := 0; p.in.PeekKind() != ']'; i++ {
		if err := each(i); err != nil {
			return err
		}
	}
	_, err := p.in.ReadToken()
	return err
}

// textMap walks an object whose values are all strings. null is an empty one.
func (p *parser) textMap(path string, each func(key, value span)) error {
	if p.in.PeekKind() == 'n' {
		return p.in.SkipValue()
	}
	if p.in.PeekKind() != '{' {
		return p.wrong(path, "must be an object")
	}
	if _, err := p.in.ReadToken(); err != nil {
		return err
	}
	for p.in.PeekKind() != '}' {
		var key, value span
		if err := p.value(&key); err != nil {
			return err
		}
		if p.in.PeekKind() != '"' {
			return p.wrong(path+"["+string(unquoted(key.of(p.data)))+"]", "must be a string")
		}
		if err := p.value(&value); err != nil {
			return err
		}
		each(key, value)
	}
	_, err := p.in.ReadToken()
	return err
}

// text reads a string; null is an empty one.
func (p *parser) text(path string, to *span) error {
	switch p.in.PeekKind() {
	case 'n':
		*to = span{}
		return p.in.SkipValue()
	case '"':
		return p.value(to)
	default:
		return p.wrong(path, "must be a string")
	}
}

func (p *parser) value(to *span) error {
	value, err := p.in.ReadValue()
	if err != nil {
		return err
	}
	end := uint32(p.in.InputOffset())
	*to = span{end - uint32(len(value)), end}
	return nil
}

// trimmed is the value that was read from start on, without what separates it
// from the name before it.
func (p *parser) trimmed(start int64) span {
	end := p.in.InputOffset()
	for start < end && strings.IndexByte(": \t\r\n", p.data[start]) >= 0 {
		start++
	}
	if p.data[start] != '{' {
		return span{}
	}
	return span{uint32(start), uint32(end)}
}

// wrong is a FieldError, unless there is no value at all at this place.
func (p *parser) wrong(path, problem string) error {
	if p.in.PeekKind() == jsontext.KindInvalid {
		_, err := p.in.ReadToken()
		if errors.Is(err, io.EOF) {
			return io.ErrUnexpectedEOF
		}
		return err
	}
	return &FieldError{Path: path, Problem: problem}
}

// object makes the Object of what was found.
func (p *parser) object(how treatment) (*Object, error) {
	// Nothing below keeps a part of the data, which would keep all of it. Texts that
	// most objects of a cache have alike are one.
	text := func(s span) string { return string(unquoted(s.of(p.data))) }
	shared := func(s span) string { return unique.Make(text(s)).Value() }

	o := &Object{
		apiVersion:      shared(p.apiVersion),
		kind:            shared(p.kind),
		namespace:       shared(p.namespace),
		name:            text(p.name),
		uid:             text(p.uid),
		resourceVersion: text(p.resourceVersion),
		applied:         string(p.applied.of(p.data)),
		deletion:        text(p.deletion),
		annotations:     p.annotations,
		body:            p.data,
	}
	if !p.decorator.empty() {
		mark := shared(p.decorator)
		o.decorator = &mark
	}
	switch {
	case o.apiVersion == "":
		return nil, &FieldError{Path: "apiVersion", Problem: "is missing"}
	case strings.Count(o.apiVersion, "/") > 1:
		return nil, &FieldError{Path: "apiVersion", Problem: "must be group/version"}
	case o.kind == "":
		return nil, &FieldError{Path: "kind", Problem: "is missing"}
	case o.name == "":
		return nil, &FieldError{Path: "metadata.name", Problem: "is missing"}
	}
	if len(p.labels) > 0 {
		o.labels = make(map[string]string, len(p.labels)/2)
		for i := 0; i < len(p.labels); i += 2 {
			o.labels[shared(p.labels[i])] = text(p.labels[i+1])
		}
	}
	for _, one := range p.finalizers {
		o.finalizers = append(o.finalizers, shared(one))
	}
	if !p.generation.empty() {
		// A generation that is no int64 is one that nothing can be compared with.
		o.generation, _ = strconv.ParseInt(text(p.generation), 10, 64)
	}
	for _, one := range p.owners {
		o.owners = append(o.owners, metav1.OwnerReference{
			APIVersion:         shared(one.apiVersion),
			Kind:               shared(one.kind),
			Name:               text(one.name),
			UID:                types.UID(text(one.uid)),
			Controller:         one.controller,
			BlockOwnerDeletion: one.blockOwnerDeletion,
		})
	}
	// The body comes last: to cut what is taken moves it.
	switch cut := p.managed; how {
	case strip:
		o.annotations = p.annotations.shifted(cut)
		o.body = make([]byte, 0, len(p.data)-int(cut.end-cut.start))
		o.body = append(append(o.body, p.data[:cut.start]...), p.data[cut.end:]...)
	case take:
		o.annotations = p.annotations.shifted(cut)
		o.body = slices.Delete(p.data, int(cut.start), int(cut.end))
	}
	return o, nil
}

// unquoted is the text of a JSON value that the parser has checked: what a string
// says, and anything else as it is written. It may be a part of the argument.
func unquoted(raw []byte) []byte {
	if len(raw) == 0 || raw[0] != '"' {
		return raw
	}
	if inner := raw[1 : len(raw)-1]; bytes.IndexByte(inner, '\\') < 0 {
		return inner
	}
	out, _ := jsontext.AppendUnquote(nil, raw)
	return out
}

// member is the text under a key of a JSON object of strings that the parser has
// checked.
func member(raw []byte, key string) (value string, found bool) {
	reading(raw, func(in *jsontext.Decoder) {
		if _, err := in.ReadToken(); err != nil {
			return
		}
		for in.PeekKind() == '"' {
			name, err := in.ReadValue()
			if err != nil {
				return
			}
			if string(unquoted(name)) != key {
				if in.SkipValue() != nil {
					return
				}
				continue
			}
			text, err := in.ReadValue()
			if err != nil {
				return
			}
			value, found = string(unquoted(text)), true
		}
	})
	return value, found
}
