// Package rbac_test holds the rights of the two programs to what they do with them,
// both ways: nothing that they ask is refused, and no right is there that they do
// not use. The API server's audit log tells what they asked.
//
//	program ─ scenario ─> API server ─> audit log ─ calls ─┐
//	(Cluster)RoleBindings of its account ─ rights ─────────┴─> compare
//
// Two things about the API server make it ask for all that any API server does: it
// streams no lists, as older ones do not, and it has OwnerReferencesPermissionEnforcement.
package rbac_test

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
	kit.Main(m, kit.Options{AuditPolicyFile: policy, APIServerArgs: []string{
		"--feature-gates=WatchList=false", "--enable-admission-plugins=NodeRestriction,OwnerReferencesPermissionEnforcement",
	}})
}
