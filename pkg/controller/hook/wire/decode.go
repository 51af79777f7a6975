package wire

import (
	"errors"

	"github.com/metacontroller-solo/solo/pkg/controller/hook"
)

// DecodeResponse reads the answer to r, a sync or finalize request.
func (c Codec) DecodeResponse(r *hook.Request, data []byte) (*hook.Response, []Note, error) {
	return nil, nil, errors.New("not yet")
}

// DecodeCustomize reads the answer to a customize request.
func (c Codec) DecodeCustomize(data []byte) (*hook.CustomizeResponse, []Note, error) {
	return nil, nil, errors.New("not yet")
}
