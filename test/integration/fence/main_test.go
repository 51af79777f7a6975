// Package fence_test shows what the fence does in two real API servers, with no
// guard running: the slot's holder is written by hand.
//
//	Pods' tokens ─> 2 kube-apiservers on one etcd ─> audit logs ─> who wrote when
//	                 │ fence policies                 (oracle: one writer at a time)
//	StatefulSet ─> 2 nodes that can be cut off ─> a writer that never stops
//
// FENCE_RUNS is how often the partition is repeated, FENCE_LAG how many changes
// of the writer the lag is measured over, FENCE_BENCH how many writes are timed:
// make test-fence sets them.
package fence_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/metacontroller-solo/solo/test/kit"
)

func TestMain(m *testing.M) {
	if os.Getenv(writerEnv) != "" {
		if err := runWriter(); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	policy, err := filepath.Abs(filepath.Join("testdata", "audit-policy.yaml"))
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	kit.Main(m, kit.Options{
		APIServers:      2,
		AuditPolicyFile: policy,
		// Node failures are seen within seconds.
		ControllerManagerArgs: []string{"--node-monitor-period=1s", "--node-monitor-grace-period=8s"},
	})
}

// number is that of an environment variable, or the short form's.
func number(t testing.TB, name string, otherwise int) int {
	t.Helper()
	given := os.Getenv(name)
	if given == "" {
		return otherwise
	}
	n, err := strconv.Atoi(given)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q, not a number of 1 or more", name, given)
	}
	return n
}
