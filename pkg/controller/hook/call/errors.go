package call

import (
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// StatusError is an answer with another code than 200.
type StatusError struct {
	Code int
	// Excerpt is the beginning of the body on one line, without what looks like
	// a secret. It may be empty.
	Excerpt string
}

func (e *StatusError) Error() string {
	text := fmt.Sprintf("answered with status %d", e.Code)
	if name := http.StatusText(e.Code); name != "" {
		text += " (" + name + ")"
	}
	if e.Code >= 200 && e.Code < 300 {
		text += ", and only 200 counts as success"
	}
	if e.Code == http.StatusNotModified || e.Code == http.StatusPreconditionFailed {
		text += ", but was not asked whether an earlier answer still holds (webhook.etag)"
	}
	if e.Excerpt != "" {
		text += ": " + e.Excerpt
	}
	return text
}

// TimeoutError is a call that took longer than the hook's timeout.
type TimeoutError struct{ Timeout time.Duration }

func (e *TimeoutError) Error() string {
	return fmt.Sprintf("did not answer within %s (webhook.timeout)", e.Timeout)
}

// TooLargeError is an answer whose body is larger than is read.
type TooLargeError struct{ Limit int64 }

func (e *TooLargeError) Error() string {
	return fmt.Sprintf("answered with a body of more than %d MiB, which is the limit", e.Limit>>20)
}

// TruncatedError is an answer that ended early.
type TruncatedError struct {
	Read int64
	Err  error
}

func (e *TruncatedError) Error() string {
	return fmt.Sprintf("broke its answer off after %d bytes: %v", e.Read, e.Err)
}

func (e *TruncatedError) Unwrap() error { return e.Err }

// NetworkError is a call that got no answer.
type NetworkError struct {
	Err error
	// text is what Err says, without what looks like a secret.
	text string
}

func (e *NetworkError) Error() string { return "cannot be reached: " + e.text }

func (e *NetworkError) Unwrap() error { return e.Err }

// BusyError is the answer 429: the hook asks to be called later.
type BusyError struct {
	// After is how long it asks to wait; zero if it did not say so in a way that
	// can be used.
	After time.Duration
}

func (e *BusyError) Error() string {
	if e.After == 0 {
		return "answered with status 429 (Too Many Requests)"
	}
	return fmt.Sprintf("answered with status 429 (Too Many Requests), to be called again in %s", e.After)
}

// RetryAfter is After.
func (e *BusyError) RetryAfter() time.Duration { return e.After }

// maxRetryAfter is the longest time that a hook can ask for. More can hardly be
// meant: a wrong date or unit must not put a parent to sleep for ever.
const maxRetryAfter = 24 * time.Hour

// retryAfter reads the header of that name: a number of seconds, or a date as in
// RFC 1123. Anything else, what is not in the future, and what is more than
// maxRetryAfter away, is zero.
func retryAfter(header string, now time.Time) time.Duration {
	header = strings.TrimSpace(header)
	var after time.Duration
	if seconds, err := strconv.ParseInt(header, 10, 64); err == nil {
		if seconds > int64(maxRetryAfter/time.Second) || seconds < 0 {
			return 0
		}
		after = time.Duration(seconds) * time.Second
	} else if date, err := http.ParseTime(header); err == nil {
		after = date.Sub(now)
	}
	if after < 0 || after > maxRetryAfter {
		return 0
	}
	return after
}

// How many bytes an error shows of a body, and of the text of a network error,
// which may name all the hosts of a certificate.
const (
	excerptLimit = 200
	networkLimit = 500
)

// leastSecret is how long a text must be to be called a secret: to cut a shorter
// one out of a sentence would show it.
const leastSecret = 4

// redacted stands where a secret was.
const redacted = "[redacted]"

var secrets = []*regexp.Regexp{
	regexp.MustCompile(`(?i)\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{6,}`),
	regexp.MustCompile(`\beyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]*(?:\.[A-Za-z0-9_-]*)?`),
	regexp.MustCompile(`(?i)["']?[a-z_-]*(?:password|passwd|secret|token|api[_-]?key|authorization|credential)s?["']?\s*[:=]\s*(?:"[^"]*"?|'[^']*'?|[^\s,;}]+)`),
	regexp.MustCompile(`(?s)-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|$)`),
}

// excerpt makes the beginning of a body fit for an error: the hidden texts and
// what looks like a secret removed, on one line, cut.
func excerpt(body []byte, hidden []string, limit int) string {
	text := strings.ToValidUTF8(string(body), "?")
	for _, secret := range hidden {
		if len(secret) >= leastSecret {
			text = strings.ReplaceAll(text, secret, redacted)
		}
	}
	for _, secret := range secrets {
		text = secret.ReplaceAllString(text, redacted)
	}
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || unicode.IsSpace(r) {
			return ' '
		}
		return r
	}, text)
	text = strings.Join(strings.Fields(text), " ")
	if len(text) <= limit {
		return text
	}
	end := limit
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + " …"
}
