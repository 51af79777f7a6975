// Package guard_test runs the guard's program against real API servers that
// call it over TLS.
//
//	clients ─> 2 kube-apiservers on one etcd ─> balancer ─> 2 guard processes
package guard_test

import (
	"os"
	"strconv"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/metacontroller-solo/solo/test/kit"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	kit.Main(m, kit.Options{
		APIServers: apiServers(), AuditPolicyFile: "testdata/audit-policy.yaml",
		APIServerArgs: []string{featureGates}, ControllerManagerArgs: []string{featureGates},
	})
}

// featureGates turns on what is off by default and has a case: C19, the update
// strategy Recreate of StatefulSets. It does nothing where nobody asks for it.
const featureGates = "--feature-gates=StatefulSetRecreateStrategy=true"

// envAPIServers sets the number of API servers on the one etcd: the cases hold
// for one and for two.
const envAPIServers = "GUARD_API_SERVERS"

// envLong is set by make test-guard: what takes long is done too.
const envLong = "GUARD_LONG"

func apiServers() int {
	if n, err := strconv.Atoi(os.Getenv(envAPIServers)); err == nil && n > 0 {
		return n
	}
	return 2
}
