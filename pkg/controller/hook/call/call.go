package call

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// ResponseLimit is how many bytes of an answer are read. An API server takes
// objects of 1.5 MiB at most, and a request to it of 3 MiB; an answer with more
// than this can hardly be meant.
const ResponseLimit int64 = 32 << 20

// excerptRead is how much of the body of an error status is looked at.
const excerptRead = 4 << 10

// errTimeout is the cause of a context that ended by the hook's own timeout.
var errTimeout = errors.New("timeout of the hook")

// Caller calls one hook.
type Caller struct {
	endpoint Endpoint
	client   *http.Client
	now      func() time.Time
	drop     func()
	release  func()
}

// Call posts body, which is JSON, and returns the body of the answer. About says
// what is asked about. An error
// is a *StatusError, *BusyError, *TimeoutError, *TooLargeError, *TruncatedError
// or *NetworkError, or ctx's own.
func (c *Caller) Call(ctx context.Context, about string, body []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.endpoint.Timeout, errTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint.URL, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("cannot make request to %q: %w", Redact(c.endpoint.URL), err)
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Accept", "application/json")

	response, err := c.client.Do(request)
	if err != nil {
		return nil, c.failure(ctx, err, func(err error) error { return &NetworkError{Err: err} })
	}
	defer response.Body.Close()

	switch response.StatusCode {
	case http.StatusOK:
	case http.StatusTooManyRequests:
		drain(response.Body)
		return nil, &BusyError{After: retryAfter(response.Header.Get("Retry-After"), c.now())}
	default:
		start, _ := io.ReadAll(io.LimitReader(response.Body, excerptRead))
		drain(response.Body)
		return nil, &StatusError{Code: response.StatusCode, Excerpt: excerpt(start)}
	}

	answer, err := read(response)
	if err != nil {
		return nil, c.failure(ctx, err, func(err error) error { return &TruncatedError{Read: int64(len(answer)), Err: err} })
	}
	return answer, nil
}

// failure says why a call failed: because of a deadline or a stop, which show up
// as an error of whatever was under way, or for the reason that otherwise makes.
func (c *Caller) failure(ctx context.Context, err error, otherwise func(error) error) error {
	var tooLarge *TooLargeError
	if errors.As(err, &tooLarge) {
		return err
	}
	if ctx.Err() != nil {
		if errors.Is(context.Cause(ctx), errTimeout) {
			return &TimeoutError{Timeout: c.endpoint.Timeout}
		}
		return context.Cause(ctx)
	}
	// A connection that failed says something about the others to that host.
	c.drop()
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		// Its text repeats the address, which may have a password in it.
		err = wrapped.Err
	}
	return otherwise(err)
}

// read returns the body, or what there was of it and an error.
func read(response *http.Response) ([]byte, error) {
	if response.ContentLength > ResponseLimit {
		return nil, &TooLargeError{Limit: ResponseLimit}
	}
	var body bytes.Buffer
	if response.ContentLength > 0 {
		body.Grow(int(response.ContentLength) + bytes.MinRead)
	}
	_, err := body.ReadFrom(io.LimitReader(response.Body, ResponseLimit+1))
	if int64(body.Len()) > ResponseLimit {
		return nil, &TooLargeError{Limit: ResponseLimit}
	}
	return body.Bytes(), err
}

// drain reads a little of what is left, so that the connection can be used
// again.
func drain(body io.Reader) {
	_, _ = io.CopyN(io.Discard, body, 64<<10)
}

// URL returns the address without what may be secret in it.
func (c *Caller) URL() string { return Redact(c.endpoint.URL) }

// Close gives back the transport and the metrics. Call must not be used after
// it.
func (c *Caller) Close() { c.release() }
