package faults_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/metacontroller-solo/solo/test/kit"
)

// record is a write of the controller in an audit log.
type record struct {
	Verb string `json:"verb"`
	User struct {
		Extra map[string][]string `json:"extra"`
	} `json:"user"`
	ObjectRef struct {
		Resource, Subresource, Namespace, Name string
	} `json:"objectRef"`
	ResponseStatus struct {
		Code int `json:"code"`
	} `json:"responseStatus"`
	RequestURI string    `json:"requestURI"`
	Received   time.Time `json:"requestReceivedTimestamp"`
	Completed  time.Time `json:"stageTimestamp"`
}

// credentialKey is where the API server notes which token a request came with.
const credentialKey = "authentication.kubernetes.io/credential-id"

func (r record) credential() string {
	if ids := r.User.Extra[credentialKey]; len(ids) > 0 {
		return ids[0]
	}
	return ""
}

func (r record) accepted() bool { return r.ResponseStatus.Code/100 == 2 }

func (r record) dryRun() bool { return strings.Contains(r.RequestURI, "dryRun=") }

func (r record) ofLease() bool { return r.ObjectRef.Resource == "leases" }

func (r record) String() string {
	return fmt.Sprintf("%s %s/%s%s %d, received %s, completed %s, by %s", r.Verb, r.ObjectRef.Resource, r.ObjectRef.Name, r.ObjectRef.Subresource,
		r.ResponseStatus.Code, r.Received.Format(stampLayout), r.Completed.Format(stampLayout), r.credential())
}

const stampLayout = "15:04:05.000000"

// auditor reads the audit logs of all API servers as they grow.
type auditor struct {
	offsets []int64
	records []record
}

// read returns what was added since the last call, and keeps all.
func (a *auditor) read(cp *kit.ControlPlane) ([]record, error) {
	if a.offsets == nil {
		a.offsets = make([]int64, cp.APIServers())
	}
	var added []record
	for server := range a.offsets {
		more, err := a.readOne(cp.AuditLog(server), &a.offsets[server])
		if err != nil {
			return nil, err
		}
		added = append(added, more...)
	}
	slices.SortStableFunc(added, func(a, b record) int { return a.Completed.Compare(b.Completed) })
	a.records = append(a.records, added...)
	return added, nil
}

func (a *auditor) readOne(path string, offset *int64) ([]record, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	if _, err := file.Seek(*offset, io.SeekStart); err != nil {
		return nil, err
	}
	var out []record
	lines := bufio.NewReaderSize(file, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			return out, nil // the rest of the line is still to come
		}
		*offset += int64(len(line))
		var one record
		// An API server that was killed left half a line.
		if json.Unmarshal(line, &one) == nil {
			out = append(out, one)
		}
	}
}

// lateWrites are writes of a run that an API server took after another run had
// got the lease. The records are of one lease's runs, in the order of their end.
func lateWrites(records []record) []string {
	type hold struct {
		credential string
		since      time.Time
	}
	var (
		holds []hold
		out   []string
	)
	for _, one := range records {
		if !one.ofLease() || !one.accepted() {
			continue
		}
		if len(holds) == 0 || holds[len(holds)-1].credential != one.credential() {
			if slices.ContainsFunc(holds, func(h hold) bool { return h.credential == one.credential() }) {
				// A run gives the lease back, or takes it again after it was deleted
				// under it; only the latter would be a second hold.
				out = append(out, fmt.Sprintf("the lease went back to a run that had lost it: %s", one))
			}
			holds = append(holds, hold{one.credential(), one.Completed})
		}
	}
	for _, one := range records {
		if one.ofLease() || !one.accepted() || one.dryRun() {
			continue
		}
		own := slices.IndexFunc(holds, func(h hold) bool { return h.credential == one.credential() })
		if own < 0 {
			out = append(out, fmt.Sprintf("a run that never held the lease wrote: %s", one))
			continue
		}
		if own+1 < len(holds) && one.Completed.After(holds[own+1].since) {
			out = append(out, fmt.Sprintf("a write after the next run got the lease at %s: %s", holds[own+1].since.Format(stampLayout), one))
		}
	}
	return out
}

// deletions is how often the controller deleted each child.
func deletions(records []record) map[childKey]int {
	out := map[childKey]int{}
	for _, one := range records {
		isChild := one.ObjectRef.Resource == configMaps.Resource || one.ObjectRef.Resource == parts.Resource
		if isChild && one.Verb == "delete" && one.accepted() && !one.dryRun() {
			out[childKey{one.ObjectRef.Resource, one.ObjectRef.Name}]++
		}
	}
	return out
}

func TestLateWrites(t *testing.T) {
	at := func(second int) time.Time { return time.Unix(int64(second), 0) }
	entry := func(second int, who, resource, verb string, code int) record {
		r := record{Verb: verb, Received: at(second), Completed: at(second)}
		r.User.Extra = map[string][]string{credentialKey: {who}}
		r.ObjectRef.Resource, r.ObjectRef.Name = resource, "x"
		r.ResponseStatus.Code = code
		return r
	}
	lease := func(second int, who string) record { return entry(second, who, "leases", "update", 200) }
	write := func(second int, who string, code int) record {
		return entry(second, who, "configmaps", "delete", code)
	}
	dry := write(9, "a", 200)
	dry.RequestURI = "/api/v1/namespaces/default/configmaps/x?dryRun=All"
	cases := []struct {
		reason  string
		records []record
		late    int
	}{
		{"one run", []record{lease(1, "a"), write(2, "a", 200), lease(3, "a"), write(4, "a", 200)}, 0},
		{"one after the other", []record{lease(1, "a"), write(2, "a", 200), lease(5, "b"), write(6, "b", 200)}, 0},
		{"a late write", []record{lease(1, "a"), lease(5, "b"), write(6, "a", 200)}, 1},
		{"a late write that was refused", []record{lease(1, "a"), lease(5, "b"), write(6, "a", 409)}, 0},
		{"a late dry run", []record{lease(1, "a"), lease(5, "b"), dry}, 0},
		{"a write without the lease", []record{lease(1, "a"), write(2, "c", 200)}, 1},
		{"a lease that comes back", []record{lease(1, "a"), lease(5, "b"), lease(6, "a")}, 1},
	}
	for _, c := range cases {
		if got := lateWrites(c.records); len(got) != c.late {
			t.Errorf("%s: %q", c.reason, got)
		}
	}
	if got := deletions([]record{write(1, "a", 200), write(2, "a", 404), dry}); got[childKey{"configmaps", "x"}] != 1 {
		t.Errorf("deletions: %v", got)
	}
}
