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
