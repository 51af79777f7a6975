package tally

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const me = "system:serviceaccount:a:b"

func line(stage, verb, resource, user string, code int) string {
	ref := ""
	if resource != "" {
		name, sub, _ := strings.Cut(resource, "/")
		ref = fmt.Sprintf(`"objectRef":{"resource":%q,"subresource":%q},`, name, sub)
	}
	return fmt.Sprintf(`{"stage":%q,"verb":%q,%s"user":{"username":%q},"responseStatus":{"code":%d}}`, stage, verb, ref, user, code)
}

func TestNextCountsEachRequestOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	log := Log{Path: path, User: me}
	if found, err := log.Next(); err != nil || len(found.Requests) != 0 {
		t.Fatalf("a log that is not there yet: %v, %v", found, err)
	}
	all := strings.Join([]string{
		line("ResponseStarted", "watch", "things", me, 200),
		line("ResponseComplete", "watch", "things", me, 200),
		line("ResponseComplete", "list", "things", me, 200),
		line("ResponseComplete", "update", "things/status", me, 409),
		line("ResponseComplete", "update", "things/status", me, 200),
		line("ResponseComplete", "get", "", me, 200),
		line("ResponseComplete", "update", "leases", me, 200),
		line("ResponseComplete", "create", "configmaps", "somebody else", 201),
	}, "\n") + "\n"
	half := line("ResponseComplete", "create", "configmaps", me, 201)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(all + half[:20])
	found, err := log.Next()
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]int{"watch things": 1, "list things": 1, "update things/status": 2, "get " + Discovery: 1, "update leases": 1}
	if got := found.Requests.Names(); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := found.Failed.Names(); !maps.Equal(got, map[string]int{"update things/status": 1}) {
		t.Errorf("failed: %v", got)
	}
	if got := found.Requests; got.Of("get") != 0 || got.Writes() != 2 || got.Overhead() != 2 || got.Work() != 4 {
		t.Errorf("%d gets, %d writes, %d of overhead, %d of work", got.Of("get"), got.Writes(), got.Overhead(), got.Work())
	}

	write(all + half + "\n")
	if found, err = log.Next(); err != nil || !maps.Equal(found.Requests.Names(), map[string]int{"create configmaps": 1}) {
		t.Errorf("the rest of a line that was half written: %v, %v", found.Requests, err)
	}
}

func TestNextRefusesWhatIsNoLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(path, []byte("what\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := (&Log{Path: path, User: me}).Next(); err == nil {
		t.Error("no error")
	}
}

func TestMetricsAgreeWithTheLog(t *testing.T) {
	counts, err := FromMetrics([]byte(`# TYPE rest_client_requests_total counter
rest_client_requests_total{code="200",host="127.0.0.1:1",method="GET"} 4
rest_client_requests_total{code="404",host="127.0.0.1:1",method="GET"} 1
rest_client_requests_total{code="200",host="127.0.0.1:1",method="PUT"} 2e+03
rest_client_request_size_bytes{verb="GET"} 7
`))
	if err != nil || !maps.Equal(counts, map[string]int{"GET": 5, "PUT": 2000}) {
		t.Fatalf("%v, %v", counts, err)
	}
	before := Counts{{"list", "things"}: 4, {"watch", "things"}: 1, {"update", "things"}: 1999}.Methods()
	after := Counts{{"list", "things"}: 4, {"watch", "things"}: 1, {"update", "things"}: 2001}.Methods()
	if err := Between(before, counts, after); err != nil {
		t.Error(err)
	}
	for _, wrong := range []map[string]int{{"GET": 4, "PUT": 2000}, {"GET": 5}, {"GET": 5, "PUT": 2000, "POST": 1}} {
		if Between(before, wrong, after) == nil {
			t.Errorf("%v is between %v and %v", wrong, before, after)
		}
	}
	for _, text := range []string{"rest_client_requests_total{method=\"GET\"} many\n", "rest_client_requests_total{code=\"200\"} 1\n"} {
		if _, err := FromMetrics([]byte(text)); err == nil {
			t.Errorf("no error of %q", text)
		}
	}
}
