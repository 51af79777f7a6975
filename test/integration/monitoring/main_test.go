package monitoring_test

import (
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"github.com/metacontroller-solo/solo/test/kit"
)

func TestMain(m *testing.M) {
	// What the nodes of the local cluster say is not about the test.
	klog.SetLogger(logr.Discard())
	kit.Main(m, kit.Options{})
}
