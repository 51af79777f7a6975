package audit

import (
	"container/list"
	"time"
)

// maxSeries is how many series are counted at a time.
const maxSeries = 1024

// series counts decisions that only repeat an earlier one: the same user asks
// for the same again, and gets the same answer, as a GitOps controller does for
// hours.
//
//	first ──────────> a line
//	repeats ────────> counted ── interval is over ──> a line with the count
//	an interval without a repeat ──> forgotten: the next one is a first again
//
// What is allowed because no rule is broken is never counted: each such request
// has changed something. Not safe for concurrent use.
type series struct {
	interval time.Duration
	// byKey and order have the same *run. order is by deadline, for they all have
	// the same interval.
	byKey map[seriesKey]*list.Element
	order *list.List
}

// seriesKey is what makes a decision a repeat of another.
type seriesKey struct {
	user, operation, subresource     string
	group, resource, namespace, name string
	policy, rule, decision, message  string
	generation                       int64
	enforced, dryRun, excepted       bool
}

// run is a series that goes on.
type run struct {
	key seriesKey
	// id is the decision id of the first, which all of them have.
	id       string
	deadline time.Time
	// count is how many there were since the last line; first is the time of the
	// first of them, and last the record of the last.
	count int64
	first time.Time
	last  Record
}

func newSeries(interval time.Duration) *series {
	return &series{interval: interval, byKey: map[seriesKey]*list.Element{}, order: list.New()}
}

// keyOf says whether a record may be counted, and as what. Where the server
// chose the name it is another one each time.
func keyOf(r Record) (seriesKey, bool) {
	if r.Decision == DecisionAllow && r.Exception == nil {
		return seriesKey{}, false
	}
	name := r.Object.Name
	if r.Object.GenerateName != "" && r.Operation == OperationCreate {
		name = r.Object.GenerateName
	}
	return seriesKey{
		user: r.User.Name, operation: r.Operation, subresource: r.Subresource,
		group: r.Object.Group, resource: r.Object.Resource, namespace: r.Object.Namespace, name: name,
		policy: r.Policy, rule: r.Rule, decision: r.Decision, message: r.Message,
		generation: r.PolicyGeneration, enforced: r.Enforced, dryRun: r.DryRun, excepted: r.Exception != nil,
	}, true
}

// add takes a decision. It returns the id under which the decision is in the log
// and the lines that are due now.
func (s *series) add(r Record) (string, []Record) {
	key, counted := keyOf(r)
	if s.interval <= 0 || !counted {
		return r.DecisionID, []Record{r}
	}
	due := s.expire(r.Time)
	if element, found := s.byKey[key]; found {
		current := element.Value.(*run)
		if current.count == 0 {
			current.first = r.Time
		}
		current.count++
		current.last = r
		return current.id, due
	}
	if len(s.byKey) >= maxSeries {
		due = append(due, s.end(s.order.Front())...)
	}
	s.byKey[key] = s.order.PushBack(&run{key: key, id: r.DecisionID, deadline: r.Time.Add(s.interval)})
	return r.DecisionID, append(due, r)
}

// expire returns the lines of the intervals that are over.
func (s *series) expire(now time.Time) []Record {
	var due []Record
	for element := s.order.Front(); element != nil; element = s.order.Front() {
		current := element.Value.(*run)
		if now.Before(current.deadline) {
			break
		}
		if current.count == 0 {
			s.end(element)
			continue
		}
		due = append(due, current.line())
		current.deadline = now.Add(s.interval)
		s.order.MoveToBack(element)
	}
	return due
}

// flush ends all series and returns their last lines.
func (s *series) flush() []Record {
	var due []Record
	for element := s.order.Front(); element != nil; element = s.order.Front() {
		due = append(due, s.end(element)...)
	}
	return due
}

// end forgets a series and returns its last line, if it has one.
func (s *series) end(element *list.Element) []Record {
	current := element.Value.(*run)
	s.order.Remove(element)
	delete(s.byKey, current.key)
	if current.count == 0 {
		return nil
	}
	return []Record{current.line()}
}

// line is the record that stands for what was counted, and begins anew.
func (r *run) line() Record {
	line := r.last
	first := r.first
	line.DecisionID, line.Count, line.Repeated, line.FirstTime = r.id, r.count, true, &first
	r.count, r.first, r.last = 0, time.Time{}, Record{}
	return line
}
