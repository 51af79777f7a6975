// Package controller_test runs the controller program against a real control
// plane, under the service account and the rights of config/rbac.
package controller_test

import (
	"path/filepath"
	"testing"

	"github.com/go-logr/logr"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/metacontroller-solo/solo/test/kit"
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	policy, err := filepath.Abs("testdata/audit-policy.yaml")
	if err != nil {
		panic(err)
	}
	kit.Main(m, kit.Options{AuditPolicyFile: policy})
}
