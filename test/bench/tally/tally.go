// Package tally counts what a program asked of the API server, by the API server's
// own audit log.
//
//	audit log ─ Log.Next ─> Counts, by verb and resource ─> what the table shows
//	the program's own metrics ─ FromMetrics ─> by HTTP method, for a cross-check
package tally

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Request is one sort of request.
type Request struct {
	// Verb is that of the API: get, list, watch, create, update, patch, delete,
	// deletecollection.
	Verb string
	// Resource is the plural name, with the subresource after a slash; or Discovery.
	Resource string
}

// Discovery stands for the resource of requests that are about none.
const Discovery = "(discovery)"

// String is the verb and the resource.
func (r Request) String() string { return r.Verb + " " + r.Resource }

// Counts are numbers of requests.
type Counts map[Request]int

// Add adds other counts.
func (c Counts) Add(other Counts) {
	for request, n := range other {
		c[request] += n
	}
}

// Of is the number of requests about objects with one of these verbs. What every
// program does about itself is not among them: leases, events, discovery.
func (c Counts) Of(verbs ...string) int {
	sum := 0
	for request, n := range c {
		if !request.overhead() && slices.Contains(verbs, request.Verb) {
			sum += n
		}
	}
	return sum
}

// Writes is the number of requests that Of knows and that change something.
func (c Counts) Writes() int { return c.Of("create", "update", "patch", "delete", "deletecollection") }

// Overhead is the number of requests that Of does not count.
func (c Counts) Overhead() int {
	sum := 0
	for request, n := range c {
		if request.overhead() {
			sum += n
		}
	}
	return sum
}

// Work is the number of requests about objects.
func (c Counts) Work() int {
	sum := -c.Overhead()
	for _, n := range c {
		sum += n
	}
	return sum
}

func (r Request) overhead() bool {
	return r.Resource == Discovery || r.Resource == "leases" || r.Resource == "events"
}

// Names are the counts by the requests' names, for JSON.
func (c Counts) Names() map[string]int {
	named := make(map[string]int, len(c))
	for request, n := range c {
		named[request.String()] = n
	}
	return named
}

// methods are the HTTP methods of the API's verbs.
var methods = map[string]string{
	"get": "GET", "list": "GET", "watch": "GET", "create": "POST", "update": "PUT",
	"patch": "PATCH", "delete": "DELETE", "deletecollection": "DELETE",
}

// Methods are the counts by HTTP method.
func (c Counts) Methods() map[string]int {
	byMethod := map[string]int{}
	for request, n := range c {
		byMethod[methods[request.Verb]] += n
	}
	return byMethod
}

// event is what is read of a line of an audit log (audit.k8s.io/v1, Event).
type event struct {
	Stage string `json:"stage"`
	Verb  string `json:"verb"`
	User  struct {
		Username string `json:"username"`
	} `json:"user"`
	ObjectRef *struct {
		Resource    string `json:"resource"`
		Subresource string `json:"subresource"`
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
}

// Tally are the requests of one user in a part of an audit log.
type Tally struct {
	// Requests are all of them; Failed are those among them that were answered with
	// an error.
	Requests, Failed Counts
}

// line counts one line. A request is counted when its response is complete, except
// a watch, which is when it begins.
func (t Tally) line(text []byte, user string) error {
	var e event
	if err := json.Unmarshal(text, &e); err != nil {
		return fmt.Errorf("cannot read a line of the audit log: %w", err)
	}
	begins := e.Verb == "watch"
	if e.User.Username != user || begins != (e.Stage == "ResponseStarted") {
		return nil
	}
	request := Request{Verb: e.Verb, Resource: Discovery}
	if ref := e.ObjectRef; ref != nil {
		request.Resource = ref.Resource
		if ref.Subresource != "" {
			request.Resource += "/" + ref.Subresource
		}
	}
	t.Requests[request]++
	if e.ResponseStatus.Code >= 400 {
		t.Failed[request]++
	}
	return nil
}

// Log reads one user's requests from an audit log that grows. A line of it is
// written before the client has the response.
type Log struct {
	Path, User string
	offset     int64
}

// Next counts what was added since the last call.
func (l *Log) Next() (Tally, error) {
	found := Tally{Requests: Counts{}, Failed: Counts{}}
	file, err := os.Open(l.Path)
	if errors.Is(err, os.ErrNotExist) {
		return found, nil // it begins with the first line
	}
	if err != nil {
		return found, fmt.Errorf("cannot open the audit log: %w", err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(l.offset, io.SeekStart); err != nil {
		return found, fmt.Errorf("cannot read the audit log: %w", err)
	}
	lines := bufio.NewReaderSize(file, 1<<20)
	for {
		text, err := lines.ReadSlice('\n')
		if errors.Is(err, io.EOF) {
			return found, nil // a line that is half written is for the next call
		}
		if err != nil {
			return found, fmt.Errorf("cannot read the audit log: %w", err)
		}
		l.offset += int64(len(text))
		if err := found.line(bytes.TrimSpace(text), l.User); err != nil {
			return found, err
		}
	}
}

// requestsMetric is client-go's count of requests.
const requestsMetric = "rest_client_requests_total{"

var methodLabel = regexp.MustCompile(`method="([A-Z]+)"`)

// FromMetrics sums up the requests that a program says it made, by HTTP method, in
// the text of its metrics.
func FromMetrics(text []byte) (map[string]int, error) {
	byMethod := map[string]int{}
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, requestsMetric) {
			continue
		}
		line = strings.TrimSpace(line)
		method := methodLabel.FindStringSubmatch(line)
		value, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil || method == nil {
			return nil, fmt.Errorf("cannot read the metric %q", line)
		}
		byMethod[method[1]] += int(value)
	}
	return byMethod, nil
}

// Between checks that a count by method lies between one that was taken before it
// and one that was taken after it.
func Between(before, count, after map[string]int) error {
	all := maps.Clone(count)
	maps.Copy(all, after)
	for _, method := range slices.Sorted(maps.Keys(all)) {
		if count[method] < before[method] || count[method] > after[method] {
			return fmt.Errorf("the program counts %d requests by %s, the API server's audit log has %d to %d",
				count[method], method, before[method], after[method])
		}
	}
	return nil
}
