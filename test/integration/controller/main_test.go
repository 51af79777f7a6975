// Package controller_test runs the controller program against a real control
// plane, under the service account and the rights of config/rbac.
package controller_test

import (
	"flag"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/metacontroller-solo/solo/test/kit"
)

// parallel is how many tests run at once: they wait more than they compute.
const parallel = "6"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", parallel); err != nil {
		panic(err)
	}
	ctrl.SetLogger(logr.Discard())
	policy, err := filepath.Abs("testdata/audit-policy.yaml")
	if err != nil {
		panic(err)
	}
	kit.Main(m, kit.Options{AuditPolicyFile: policy})
}
