package call

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// line is a way to the hook with the credentials of one moment. It lives from
// the first call that finds them to the first one that finds others, and as long
// as a call uses it.
type line struct {
	// contents are what the credentials were made of, in the order of the
	// references.
	contents    []*Content
	credentials *credentials
	key         transportKey
	transport   *http.Transport
	client      *http.Client
}

// sourceWait is how long a call waits until the Secrets and ConfigMaps that it
// needs are known; that is before the hook's own timeout begins.
const sourceWait = 5 * time.Second

// errClosed is the error of a call after Close.
var errClosed = errors.New("cannot be called: it is closed")

// connect returns the line with the credentials as they are now. Done must be
// called after the call. The error is a *CredentialError, or ctx's own.
func (c *Caller) connect(ctx context.Context) (now *line, done func(), err error) {
	contents, err := c.read(ctx)
	if err != nil {
		return nil, nil, err
	}
	now, err = c.hold(contents, nil)
	if now == nil && err == nil {
		var fresh *credentials
		if fresh, err = c.connection.credentials(c.byReference(contents)); err != nil {
			c.hangUp()
			return nil, nil, err
		}
		now, err = c.hold(contents, fresh)
	}
	if err != nil {
		return nil, nil, err
	}
	return now, func() { c.pool.releaseTransport(now.key) }, nil
}

// hangUp ends the line, for its credentials are no longer there.
func (c *Caller) hangUp() {
	c.mu.Lock()
	old := c.line
	c.line = nil
	c.mu.Unlock()
	if old != nil {
		c.pool.releaseTransport(old.key)
	}
}

// read reads what the references refer to; nil stands for what is not there.
func (c *Caller) read(ctx context.Context) ([]*Content, error) {
	sources, err := c.open()
	if err != nil {
		return nil, err
	}
	wait, cancel := context.WithTimeout(ctx, sourceWait)
	defer cancel()
	contents := make([]*Content, len(sources))
	for i, source := range sources {
		content, err := source.Read(wait)
		problem := ""
		switch {
		case err == nil:
			contents[i] = content
		case errors.Is(err, ErrAbsent):
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case wait.Err() != nil && errors.Is(err, context.DeadlineExceeded):
			problem = fmt.Sprintf("is not known yet: the API server did not answer within %s", sourceWait)
		default:
			// The error of the API server is not wrapped: that it refused this says
			// nothing about the objects of the sync.
			problem = fmt.Sprintf("cannot be read, the controller needs the rights list and watch on it: %v", err)
		}
		if problem != "" {
			return nil, &CredentialError{Field: c.connection.fieldOf(c.references[i]), Reference: c.references[i], Problem: problem}
		}
	}
	return contents, nil
}

// open opens the sources at the first call: a Caller that is only made to find
// out whether the spec is right follows nothing.
func (c *Caller) open() ([]Source, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, errClosed
	}
	if c.sources == nil {
		for _, reference := range c.references {
			c.sources = append(c.sources, c.pool.sources.Open(reference))
		}
	}
	return c.sources, nil
}

func (c *Caller) byReference(contents []*Content) map[Reference]*Content {
	by := make(map[Reference]*Content, len(contents))
	for i, reference := range c.references {
		by[reference] = contents[i]
	}
	return by
}

// hold returns the line of these contents, held for one call. If that is not the
// one there is, it makes it of fresh, and without fresh returns nil.
func (c *Caller) hold(contents []*Content, fresh *credentials) (*line, error) {
	now, old, err := c.exchange(contents, fresh)
	if old != nil {
		// Connections of old credentials are of no use to anybody. A call that
		// still uses one closes it at its end.
		c.pool.releaseTransport(old.key)
	}
	return now, err
}

func (c *Caller) exchange(contents []*Content, fresh *credentials) (now, old *line, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, nil, errClosed
	}
	if c.line == nil || !slices.Equal(c.line.contents, contents) {
		if fresh == nil {
			return nil, nil, nil
		}
		next := &line{contents: contents, credentials: fresh, key: transportKey{host: c.host, credentials: fresh.identity}}
		next.transport = c.pool.acquireTransport(next.key, fresh)
		next.client = &http.Client{Transport: c.metrics.instrument(next.transport), CheckRedirect: checkRedirect}
		old, c.line = c.line, next
	}
	c.pool.acquireTransport(c.line.key, c.line.credentials)
	return c.line, old, nil
}
