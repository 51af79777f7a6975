// Package faults_test runs the controller through what clusters do to it, under
// load, and holds what is there afterwards against a model.
//
//	seed ──> workload (pure: operations, and the model of what must be there)
//	            │ done through both API servers, again and again until it is
//	            v
//	etcd <── API server 0 ─────────┐
//	  └─ Link (lags) ─ API server 1 ┴─ APIProxy (cuts, 410, 429) ── keeper ──> controller
//	                                                                │ starts it again
//	audit logs ──> who wrote what under which hold of the lease     └ kill -9, SIGSTOP
//
// FAULT_SEED repeats a run's operations and faults. FAULT_KILLS, which is more
// than the default in the long form (make test-faults), is the number of kills;
// FAULT_LONG=1 makes outages and rounds long; FAULT_PARENTS is about how many
// parents there are. FAULT_ONLY is the name of the only fault that happens, such as
// "mixed", which FAULT_MIXED rounds are made of.
package faults_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/metacontroller-solo/solo/test/kit"
)

// slowLink is between API server 1 and etcd.
var slowLink *kit.Link

func TestMain(m *testing.M) {
	policy, err := filepath.Abs(filepath.Join("testdata", "audit-policy.yaml"))
	if err == nil {
		slowLink, err = kit.NewLink()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	kit.Main(m, kit.Options{
		APIServers: 2,
		EtcdLinks:  map[int]*kit.Link{1: slowLink},
		// They start once the kinds are there: the garbage collector looks for new
		// kinds every 30 s only.
		WithoutControllers: true,
		AuditPolicyFile:    policy,
	})
}
