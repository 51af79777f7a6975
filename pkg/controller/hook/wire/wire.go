// Package wire is the JSON of the hook protocol, versions v1 and v2:
//
//	hook.Request  ─ EncodeRequest ─> JSON
//	hook.Response <─ DecodeResponse ─ JSON
//
// A request is put together from the bodies of its objects, which are not
// decoded for it. A response comes from outside: every mistake in it is an error
// that names the field, and none of them is ever taken for "no children".
//
// The package is pure.
package wire

import (
	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
)

// Codec is one hook's version of the protocol and how strict it is.
type Codec struct {
	// Version is v1 unless it says v2.
	Version v1alpha1.HookVersion
	// Strict refuses unknown and duplicate fields; otherwise they are notes.
	Strict bool
	// MaxBytes is the largest answer that is looked at; 0 means DefaultMaxBytes.
	MaxBytes int
}

// DefaultMaxBytes is the largest answer that is looked at unless a Codec says
// otherwise.
const DefaultMaxBytes = 64 << 20

// Note is an unknown or duplicate field in an answer that was accepted anyway.
type Note struct {
	// Path of the field, such as "children[0].spec".
	Path string
	// Problem such as "is unknown" completes the sentence "<path> ...".
	Problem string
}

// NewCodec is the Codec of a hook as its spec says it: the version defaults to
// v1, the mode to loose for v1 and strict for v2.
func NewCodec(spec *v1alpha1.Hook) Codec {
	c := Codec{Version: v1alpha1.HookVersionV1}
	if spec == nil {
		return c
	}
	if spec.Version != nil && *spec.Version != "" {
		c.Version = *spec.Version
	}
	c.Strict = c.Version == v1alpha1.HookVersionV2
	if spec.Webhook != nil && spec.Webhook.ResponseUnmarshallMode != nil {
		switch *spec.Webhook.ResponseUnmarshallMode {
		case v1alpha1.ResponseUnmarshallModeStrict:
			c.Strict = true
		case v1alpha1.ResponseUnmarshallModeLoose:
			c.Strict = false
		}
	}
	return c
}
