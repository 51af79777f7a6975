package call

import (
	"bytes"
	"container/list"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/utils/clock"

	"github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
)

// What absent fields of a WebhookEtagConfig mean, and how much is kept of one
// hook's answers at most.
const (
	// DefaultEtagTimeout is longer than the period after which parents are synced
	// though nothing happened; else an answer would never be reused then.
	DefaultEtagTimeout = time.Hour
	DefaultEtagCleanup = 10 * time.Minute

	answersLimit = 64 << 20
	// answerOverhead is about what one kept answer costs beside its texts.
	answerOverhead = 400
)

// answers keeps answers that have an ETag, for the time in which they may be
// reused. An answer is only asked to be confirmed by the hook once it was
// accepted: one that could not be used must not come back for ever.
type answers struct {
	timeout, cleanup time.Duration
	limit            int
	clock            clock.WithDelayedExecution

	mu sync.Mutex // guards all below
	// by the subject of what was asked about: see subjectOf. Of one there are few.
	// The elements are of recent.
	by map[string][]*list.Element
	// recent has the *answer that was used last in front.
	recent *list.List
	bytes  int
	// timer is nil while there is nothing to clean up.
	timer  clock.Timer
	closed bool
}

type answer struct {
	about, etag string
	body        []byte
	until       time.Time
	accepted    bool
}

func (a *answer) size() int { return len(a.about) + len(a.etag) + len(a.body) + answerOverhead }

// newAnswers returns nil if ETags are off.
func newAnswers(config *v1alpha1.WebhookEtagConfig, clock clock.WithDelayedExecution) *answers {
	if config == nil || config.Enabled == nil || !*config.Enabled {
		return nil
	}
	return &answers{
		timeout: secondsOr(config.CacheTimeoutSeconds, DefaultEtagTimeout),
		cleanup: secondsOr(config.CacheCleanupSeconds, DefaultEtagCleanup),
		limit:   answersLimit,
		clock:   clock,
		by:      map[string][]*list.Element{},
		recent:  list.New(),
	}
}

func secondsOr(seconds *int32, otherwise time.Duration) time.Duration {
	if seconds == nil || *seconds <= 0 {
		return otherwise
	}
	return time.Duration(*seconds) * time.Second
}

// find returns the ETag and the body of an answer that may be reused.
func (a *answers) find(about string) (etag string, body []byte, found bool) {
	if a == nil {
		return "", nil, false
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	element := a.lookLocked(about)
	if element == nil {
		return "", nil, false
	}
	kept := element.Value.(*answer)
	if !a.clock.Now().Before(kept.until) {
		a.removeLocked(element)
		return "", nil, false
	}
	if !kept.accepted {
		return "", nil, false
	}
	a.recent.MoveToFront(element)
	return kept.etag, kept.body, true
}

// put keeps the newest answer about something, not accepted as yet, or none if it
// has no ETag.
func (a *answers) put(about, etag string, body []byte) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if old := a.lookLocked(about); old != nil {
		a.removeLocked(old)
	}
	fresh := &answer{about: about, etag: etag, body: bytes.Clone(body), until: a.clock.Now().Add(a.timeout)}
	if etag == "" || a.closed || fresh.size() > a.limit {
		return
	}
	subject := subjectOf(about)
	a.by[subject] = append(a.by[subject], a.recent.PushFront(fresh))
	a.bytes += fresh.size()
	for a.bytes > a.limit {
		a.removeLocked(a.recent.Back())
	}
	a.scheduleLocked()
}

// mark notes whether the kept answer about something was accepted.
func (a *answers) mark(about string, accepted bool) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if element := a.lookLocked(about); element != nil {
		element.Value.(*answer).accepted = accepted
	}
}

// forget drops all answers about a subject.
func (a *answers) forget(subject string) {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, element := range slices.Clone(a.by[subject]) {
		a.removeLocked(element)
	}
	if len(a.by) == 0 && a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
}

// subjectOf is what is before the first slash: several things can be asked about
// one subject, such as a parent.
func subjectOf(about string) string {
	subject, _, _ := strings.Cut(about, "/")
	return subject
}

func (a *answers) lookLocked(about string) *list.Element {
	for _, element := range a.by[subjectOf(about)] {
		if element.Value.(*answer).about == about {
			return element
		}
	}
	return nil
}

func (a *answers) removeLocked(element *list.Element) {
	gone := a.recent.Remove(element).(*answer)
	a.bytes -= gone.size()
	subject := subjectOf(gone.about)
	left := slices.DeleteFunc(a.by[subject], func(other *list.Element) bool { return other == element })
	if len(left) == 0 {
		delete(a.by, subject)
		return
	}
	a.by[subject] = left
}

// scheduleLocked has sweep run once as long as there is anything to sweep: no
// goroutine waits.
func (a *answers) scheduleLocked() {
	if a.timer == nil && len(a.by) > 0 && !a.closed {
		// A clock may call back while it holds its own lock.
		a.timer = a.clock.AfterFunc(a.cleanup, func() { go a.sweep() })
	}
}

// sweep drops what is past its time.
func (a *answers) sweep() {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock.Now()
	for element := a.recent.Front(); element != nil; {
		next := element.Next()
		if !now.Before(element.Value.(*answer).until) {
			a.removeLocked(element)
		}
		element = next
	}
	a.timer = nil
	a.scheduleLocked()
}

// close drops everything, and keeps nothing from then on.
func (a *answers) close() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.timer != nil {
		a.timer.Stop()
		a.timer = nil
	}
	clear(a.by)
	a.recent.Init()
	a.bytes = 0
}
