// Package migrate has the oracle of the end-to-end test of docs/migrate.md: who
// wrote when, by the API server's audit log.
package migrate

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

// podUID is where a token that is bound to a Pod says of which.
const podUID = "authentication.kubernetes.io/pod-uid"

// Interval is from the first accepted write of one Pod to the last.
type Interval struct {
	User, Pod   string
	First, Last time.Time
	Writes      int
}

// String is for people.
func (i Interval) String() string {
	return fmt.Sprintf("%s of Pod %s, %d writes from %s to %s", i.User, i.Pod, i.Writes, i.First.Format(time.StampMilli), i.Last.Format(time.StampMilli))
}

// Intervals reads an audit log and returns when each Pod wrote after a moment, in
// the order of the first writes. A last line that is not complete yet is left out.
func Intervals(log io.Reader, since time.Time) ([]Interval, error) {
	by := map[string]*Interval{}
	lines := bufio.NewReader(log)
	for {
		line, err := lines.ReadString('\n')
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		var event struct {
			User struct {
				Username string
				Extra    map[string][]string
			}
			ResponseStatus struct{ Code int }
			// RequestReceivedTimestamp is when the write came, StageTimestamp when it was
			// answered.
			RequestReceivedTimestamp, StageTimestamp time.Time
		}
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			return nil, fmt.Errorf("audit line %q: %w", line, err)
		}
		if event.ResponseStatus.Code/100 != 2 || event.RequestReceivedTimestamp.Before(since) {
			continue
		}
		pod := strings.Join(event.User.Extra[podUID], " ")
		i := by[event.User.Username+" "+pod]
		if i == nil {
			i = &Interval{User: event.User.Username, Pod: pod, First: event.RequestReceivedTimestamp}
			by[event.User.Username+" "+pod] = i
		}
		i.Writes++
		if event.RequestReceivedTimestamp.Before(i.First) {
			i.First = event.RequestReceivedTimestamp
		}
		if event.StageTimestamp.After(i.Last) {
			i.Last = event.StageTimestamp
		}
	}
	all := make([]Interval, 0, len(by))
	for _, i := range by {
		all = append(all, *i)
	}
	slices.SortFunc(all, func(a, b Interval) int { return cmp.Or(a.First.Compare(b.First), cmp.Compare(a.Pod, b.Pod)) })
	return all, nil
}

// Overlap is the first two intervals, in the order of Intervals, of which one began
// before the other had ended.
func Overlap(all []Interval) (a, b Interval, found bool) {
	var latest Interval
	for _, i := range all {
		if !latest.Last.IsZero() && !i.First.After(latest.Last) {
			return latest, i, true
		}
		if i.Last.After(latest.Last) {
			latest = i
		}
	}
	return a, b, false
}
