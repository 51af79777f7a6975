package node_test

import (
	"net/netip"
	"testing"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"

	"github.com/metacontroller-solo/solo/test/kit"
	"github.com/metacontroller-solo/solo/test/node"
	"github.com/metacontroller-solo/solo/test/node/service"
)

// Stop leaves no goroutine behind, of a node that works and of one that is cut off. The test is not parallel: it runs before those that are.
func TestStopLeavesNothing(t *testing.T) {
	w := newWorld(t)
	before := goleak.IgnoreCurrent()
	proxy, err := service.Start(t.Context(), service.Options{Config: w.cp.AdminConfig(0), Range: netip.MustParsePrefix(kit.ServiceCIDR)})
	if err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]node.CutOffMode{"works": 0, "refuse": node.Refuse, "black-hole": node.BlackHole} {
		n, err := node.Start(t.Context(), w.options())
		if err != nil {
			t.Fatal(err)
		}
		w.pod(n, name, "", serving(18083))
		w.pod(n, name+"-waits", "exit 0", func(pod *corev1.Pod) { pod.Spec.Containers[0].Image = "example.com/unknown" })
		process := pid(w, w.until(name, "ready", ready))
		if mode != 0 {
			n.CutOff(mode)
		}
		n.Stop()
		if lives(process) {
			t.Errorf("%s: the process lives", name)
		}
		w.delete(name, force())
		w.delete(name+"-waits", force())
	}
	proxy.Stop()
	if err := goleak.Find(before); err != nil {
		t.Error(err)
	}
}
