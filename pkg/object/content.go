package object

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"sync"

	stdjson "encoding/json"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// Decode reads one JSON document. Objects are map[string]any, lists []any; a
// number is an int64 if it is written whole and fits, a float64 if that loses
// nothing, and a json.Number otherwise. Of a key that occurs twice the last one
// counts. The result is of the types that apimachinery's DeepCopyJSON knows.
func Decode(data []byte) (any, error) {
	var (
		value any
		err   error
	)
	reading(data, func(in *jsontext.Decoder) {
		if value, err = decodeValue(in); err != nil {
			return
		}
		if _, end := in.ReadToken(); !errors.Is(end, io.EOF) {
			err = errors.New("something follows the document")
		}
	})
	if err != nil {
		return nil, fmt.Errorf("cannot read JSON: %w", err)
	}
	return value, nil
}

func decodeValue(in *jsontext.Decoder) (any, error) {
	token, err := in.ReadToken()
	if err != nil {
		return nil, err
	}
	switch token.Kind() {
	case 'n':
		return nil, nil
	case 't', 'f':
		return token.Bool(), nil
	case '"':
		return token.String(), nil
	case '0':
		return number(token.String()), nil
	case '{':
		out := map[string]any{}
		for in.PeekKind() != '}' {
			token, err := in.ReadToken()
			if err != nil {
				return nil, err
			}
			name := token.String()
			if out[name], err = decodeValue(in); err != nil {
				return nil, err
			}
		}
		_, err = in.ReadToken()
		return out, err
	default:
		out := []any{}
		for in.PeekKind() != ']' {
			value, err := decodeValue(in)
			if err != nil {
				return nil, err
			}
			out = append(out, value)
		}
		_, err = in.ReadToken()
		return out, err
	}
}

// number is the Go value of a JSON number.
func number(text string) any {
	if i, err := strconv.ParseInt(text, 10, 64); err == nil {
		return i
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || math.IsInf(f, 0) || math.Abs(f) >= 1<<53 {
		return stdjson.Number(text)
	}
	return f
}

// Encode writes decoded JSON with the keys of objects in sorted order and no
// white space: one value has one text.
func Encode(value any) ([]byte, error) {
	buffer := buffers.Get().(*[]byte)
	defer buffers.Put(buffer)
	data, err := appendValue((*buffer)[:0], value)
	if err != nil {
		return nil, fmt.Errorf("cannot write JSON: %w", err)
	}
	if cap(data) <= largestBuffer {
		*buffer = data
	}
	return bytes.Clone(data), nil
}

// buffers are what documents are written into before it is known how long they
// get.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// largestBuffer is what a buffer may have and be kept.
const largestBuffer = 64 << 10

func appendValue(to []byte, value any) ([]byte, error) {
	var err error
	switch value := value.(type) {
	case nil:
		return append(to, "null"...), nil
	case bool:
		return strconv.AppendBool(to, value), nil
	case string:
		return jsontext.AppendQuote(to, value)
	case int64:
		return strconv.AppendInt(to, value, 10), nil
	case stdjson.Number:
		raw := jsontext.Value(value)
		if raw.Kind() != '0' || !raw.IsValid() {
			return nil, fmt.Errorf("%q is no number", string(value))
		}
		return append(to, value...), nil
	case map[string]any:
		to = append(to, '{')
		var few [16]string // on the stack
		keys := few[:0]
		for key := range value {
			keys = append(keys, key)
		}
		slices.Sort(keys)
		for i, key := range keys {
			if i > 0 {
				to = append(to, ',')
			}
			if to, err = jsontext.AppendQuote(to, key); err != nil {
				return nil, err
			}
			to = append(to, ':')
			if to, err = appendValue(to, value[key]); err != nil {
				return nil, err
			}
		}
		return append(to, '}'), nil
	case []any:
		to = append(to, '[')
		for i, element := range value {
			if i > 0 {
				to = append(to, ',')
			}
			if to, err = appendValue(to, element); err != nil {
				return nil, err
			}
		}
		return append(to, ']'), nil
	default:
		// float64, and what Go code puts into a document: int, []string, structs.
		raw, err := json.Marshal(value, json.Deterministic(true))
		if err != nil {
			return nil, err
		}
		return append(to, raw...), nil
	}
}
