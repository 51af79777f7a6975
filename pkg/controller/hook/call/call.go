package call

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"sync"
)

// ResponseLimit is how many bytes of an answer are read. An API server takes
// objects of 1.5 MiB at most, and a request to it of 3 MiB; an answer with more
// than this can hardly be meant.
const ResponseLimit = 16 << 20

// excerptRead is how much of the body of an error status is looked at.
const excerptRead = 4 << 10

// How the memory for a body grows: it begins with what was announced, as far as
// that is not much, or with firstBlock, and doubles. An announcement alone must not
// cost much.
const (
	firstBlock   = 4 << 10
	largestFirst = 1 << 20
)

// largeAnswers is how many answers of one hook that are larger than largestFirst
// are read at once. The others wait, as part of their own time: what a hook can
// take of the memory must not grow with the number of workers.
const largeAnswers = 2

// Headers of a call.
const (
	headerAuthorization = "Authorization"
	headerETag          = "ETag"
	headerIfNoneMatch   = "If-None-Match"
	headerRetryAfter    = "Retry-After"
	headerReferer       = "Referer"
	headerContentType   = "Content-Type"
	headerAccept        = "Accept"
	headerIdempotency   = "Idempotency-Key"

	typeJSON = "application/json"
)

// errTimeout is the cause of a context that ended by the hook's own timeout.
var errTimeout = errors.New("timeout of the hook")

// Caller calls one hook.
type Caller struct {
	pool     *Pool
	endpoint Endpoint
	// host is the scheme, host and port of the address.
	host       string
	connection connection
	// references are where the credentials are.
	references []Reference
	// secrets are what is secret in the address.
	secrets    []string
	metrics    *hookMetrics
	metricsKey metricsKey
	// answers is nil if ETags are off.
	answers *answers
	// large has a value for each large answer that is being read.
	large chan struct{}

	mu sync.Mutex // guards all below; never held while something is read or sent
	// sources follow the references; nil before the first call.
	sources []Source
	// line is the newest one; nil before the first call.
	line   *line
	closed bool
}

// Call posts body, which is JSON, and returns the body of the answer. About names
// what is asked about: the hook is asked, by its last ETag for that, whether its
// last answer still holds, if that was accepted. Calls about the same must not
// overlap. An error is a *StatusError, *BusyError, *TimeoutError,
// *TooLargeError, *TruncatedError, *NetworkError or *CredentialError, or ctx's
// own.
func (c *Caller) Call(ctx context.Context, about string, body []byte) ([]byte, error) {
	line, done, err := c.connect(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	ctx, cancel := context.WithTimeoutCause(ctx, c.endpoint.Timeout, errTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.endpoint.URL, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("cannot make request to %q", Redact(c.endpoint.URL))
	}
	request.Header.Set(headerContentType, typeJSON)
	request.Header.Set(headerAccept, typeJSON)
	// Without a value it is not sent. It says that a call may be made again by the
	// client itself if a kept-alive connection turns out to be closed, which servers
	// do at any moment: hooks are asked the same again and again anyway.
	request.Header[headerIdempotency] = []string{}
	if line.credentials.authorization != "" {
		request.Header.Set(headerAuthorization, line.credentials.authorization)
	}
	etag, kept, conditional := c.answers.find(about)
	if conditional {
		request.Header.Set(headerIfNoneMatch, etag)
	}

	response, err := line.client.Do(request)
	if err != nil {
		return nil, c.failure(ctx, line, err, func(err error) error {
			return &NetworkError{Err: err, text: excerpt([]byte(err.Error()), c.hidden(line), networkLimit)}
		})
	}
	defer response.Body.Close()

	switch code := response.StatusCode; {
	case code == http.StatusOK:
	case conditional && (code == http.StatusNotModified || code == http.StatusPreconditionFailed):
		drain(response.Body)
		c.answers.mark(about, false)
		return bytes.Clone(kept), nil
	case code == http.StatusTooManyRequests:
		drain(response.Body)
		return nil, &BusyError{After: retryAfter(response.Header.Get(headerRetryAfter), c.pool.clock.Now())}
	case code == http.StatusSwitchingProtocols:
		// Nobody asked for it. The connection is the hook's now: no deadline of the
		// call would end a read.
		return nil, &StatusError{Code: code}
	default:
		start, _ := io.ReadAll(io.LimitReader(response.Body, excerptRead))
		drain(response.Body)
		return nil, &StatusError{Code: code, Excerpt: excerpt(start, c.hidden(line), excerptLimit)}
	}

	answer, err := c.readAnswer(ctx, response)
	if err != nil {
		return nil, c.failure(ctx, line, err, func(err error) error { return &TruncatedError{Read: int64(len(answer)), Err: err} })
	}
	c.answers.put(about, response.Header.Get(headerETag), answer)
	return answer, nil
}

// Accept says that the answer of the last Call about something could be used. An
// answer that was not accepted is never reused: the next call gets a whole one.
func (c *Caller) Accept(about string) { c.answers.mark(about, true) }

// Forget drops what is remembered of answers about a subject, which is gone: all
// those about it, and about it followed by a slash and more.
func (c *Caller) Forget(subject string) { c.answers.forget(subject) }

// hidden are the texts that an error must not show.
func (c *Caller) hidden(line *line) []string {
	return slices.Concat(line.credentials.secrets, c.secrets)
}

// failure says why a call failed: because of a deadline or a stop, which show up
// as an error of whatever was under way, or for the reason that otherwise makes.
func (c *Caller) failure(ctx context.Context, line *line, err error, otherwise func(error) error) error {
	var tooLarge *TooLargeError
	if errors.As(err, &tooLarge) {
		return err
	}
	if ctx.Err() != nil && !errors.Is(context.Cause(ctx), errTimeout) {
		return context.Cause(ctx)
	}
	// A connection that failed, or fell silent, says something about the others to
	// that host: it may have moved, and nobody is left to reset them.
	line.transport.CloseIdleConnections()
	if ctx.Err() != nil {
		return &TimeoutError{Timeout: c.endpoint.Timeout}
	}
	var wrapped *url.Error
	if errors.As(err, &wrapped) {
		// Its text repeats the address, which may have a password in it.
		err = wrapped.Err
	}
	return otherwise(err)
}

// readAnswer returns the body, or what there was of it and an error.
func (c *Caller) readAnswer(ctx context.Context, response *http.Response) ([]byte, error) {
	if response.ContentLength > ResponseLimit {
		return nil, &TooLargeError{Limit: ResponseLimit}
	}
	// One byte more than announced: the end is found without growing again.
	expected, first := response.ContentLength+1, int64(firstBlock)
	if response.ContentLength >= 0 {
		first = min(expected, largestFirst)
	}
	body, ended, err := readUpTo(response.Body, make([]byte, 0, first), largestFirst)
	if ended || err != nil {
		return body, err
	}
	select {
	case c.large <- struct{}{}:
		defer func() { <-c.large }()
	case <-ctx.Done():
		return body, ctx.Err()
	}
	if int64(cap(body)) < expected {
		// It was no empty announcement.
		body = grown(body, int(expected))
	}
	body, _, err = readUpTo(response.Body, body, ResponseLimit+1)
	if len(body) > ResponseLimit {
		return nil, &TooLargeError{Limit: ResponseLimit}
	}
	return body, err
}

// readUpTo reads on into body until it is full, that is has limit bytes, or the
// source has ended.
func readUpTo(from io.Reader, body []byte, limit int) (read []byte, ended bool, err error) {
	for len(body) < limit {
		if len(body) == cap(body) {
			body = grown(body, min(2*cap(body), limit))
		}
		n, err := from.Read(body[len(body):min(cap(body), limit)])
		body = body[:len(body)+n]
		switch {
		case errors.Is(err, io.EOF):
			return body, true, nil
		case err != nil:
			return body, false, err
		}
	}
	return body, false, nil
}

// grown is body with that capacity and no more, unlike append's.
func grown(body []byte, capacity int) []byte {
	return append(make([]byte, 0, capacity), body...)
}

// drain reads a little of what is left, so that the connection can be used
// again.
func drain(body io.Reader) {
	_, _ = io.CopyN(io.Discard, body, 64<<10)
}

// URL returns the address without what may be secret in it.
func (c *Caller) URL() string { return Redact(c.endpoint.URL) }

// Close gives back the transport, the metrics and what follows the credentials.
// Call must not be used after it.
func (c *Caller) Close() {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	c.closed = true
	line, sources := c.line, c.sources
	c.line, c.sources = nil, nil
	c.mu.Unlock()
	if line != nil {
		c.pool.releaseTransport(line.key)
	}
	for _, source := range sources {
		source.Close()
	}
	c.answers.close()
	c.pool.releaseMetrics(c.metricsKey)
}
