package syncer

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/metacontroller-solo/solo/pkg/object"
)

func TestWants(t *testing.T) {
	state := func(uid string, generation int, more string) *object.Object {
		o, err := object.FromJSON(fmt.Appendf(nil, `{"apiVersion":"demo/v1","kind":"Thing","metadata":{"name":"a","uid":%q,"generation":%d%s}}`, uid, generation, more))
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	const going = `,"deletionTimestamp":"2030-01-01T00:00:00Z"`
	before := state("u", 2, "")
	for _, c := range []struct {
		reason      string
		before, now *object.Object
		since       time.Duration
		want        bool
	}{
		{"nothing happened", before, before, time.Hour, true},
		{"gone", before, nil, 0, false},
		{"another one of the name", before, state("v", 2, ""), 0, false},
		{"it goes", before, state("u", 2, going), 0, false},
		{"it is being finalized", state("u", 2, going), state("u", 2, going), time.Hour, true},
		{"it says something else", before, state("u", 3, ""), wantedAtLeast, false},
		{"it says something else, but only just", before, state("u", 3, ""), wantedAtLeast - 1, true},
		{"the cache is behind", before, state("u", 1, ""), time.Hour, true},
	} {
		if got := wants(c.before, c.now, c.since); got != c.want {
			t.Errorf("%s: %v", c.reason, got)
		}
	}
}

// What is told of problems does not grow with what a hook wrote.
func TestWhatIsToldIsBounded(t *testing.T) {
	var problems []error
	for range 100_000 {
		problems = append(problems, errors.New("first\nsecond "+strings.Repeat("é", 5000)))
	}
	problems = append([]error{&object.FieldError{Path: strings.Repeat("x", 1<<20), Problem: "is long"}}, problems...)
	failure := failureOf(problems)
	text := failure.Error()
	if len(text) > 3*problemLimit || strings.Contains(text, "\n") || !strings.HasSuffix(text, "and 100000 more") || len(failure.Path) > 2*problemLimit {
		t.Errorf("%d bytes: %.300s", len(text), text)
	}
}
