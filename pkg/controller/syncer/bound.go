package syncer

import (
	"time"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// largeAnswer is from where on an answer counts as large. To decode it takes many
// times its size.
const largeAnswer = 1 << 20

// decoding has a value while a large answer is being decoded: one at a time in the
// whole process. That is work without waiting, so whoever has it is done soon.
var decoding = make(chan struct{}, 1)

// hold waits for the turn of an answer to be decoded; the function ends it.
func hold(answer []byte) (done func()) {
	if len(answer) < largeAnswer {
		return func() {}
	}
	decoding <- struct{}{}
	return func() { <-decoding }
}

// wantedAtLeast is how long the children are written though the parent says
// something else by now: one that changes all the time must get to the end of its
// plan too.
const wantedAtLeast = 10 * time.Second

// stillWanted is a question for the time in which the children are written: whether
// the parent is still what they are written for. A plan may have a hundred thousand
// steps.
func (p *Pass) stillWanted() func() bool {
	begun, cache := p.Clock.Now(), p.Caches.Parents[p.Rule.GroupKind()]
	return func() bool {
		return cache == nil || wants(p.Parent, cache.Get(p.Parent.Namespace(), p.Parent.Name()), p.Clock.Since(begun))
	}
}

// wants says whether a parent, as it is now, still wants what an earlier state of
// it did, for as long as it takes: not if it is gone, or another one, or about to
// go; and not for ever if it says something else.
func wants(before, now *object.Object, since time.Duration) bool {
	switch {
	case now == nil || now.UID() != before.UID() || now.Terminating() && !before.Terminating():
		return false
	default:
		return now.Generation() <= before.Generation() || since < wantedAtLeast
	}
}
