package report

import "github.com/metacontroller-solo/solo/test/bench/workload"

// publicFigures are those of the public Metacontroller 4.17 on a machine of two
// cores, with the control plane beside it, its limits of requests raised, update
// method InPlace and a generated selector. GET there is what its metrics count as
// that: lists and watches are among them.
func publicFigures(size Size) []Phase {
	if size.Mode != workload.Composite || size.Parents != 3000 || size.Children != 3 || size.PayloadBytes != 512 {
		return nil
	}
	return []Phase{
		{Name: "create", CPUSeconds: 12.2, SyncCalls: 8803, Get: 8843, Writes: 15000, PeakRSSMiB: 276},
		{Name: "change", CPUSeconds: 12.0, SyncCalls: 5884, Get: 5951, Writes: 12000, PeakRSSMiB: 276},
		{Name: "heal", CPUSeconds: 13.3, SyncCalls: 8898, Get: 8958, Writes: 9000, PeakRSSMiB: 276},
		{Name: "restart", CPUSeconds: 4.3, SyncCalls: 3002, Get: 3007, Writes: 0, PeakRSSMiB: 265},
	}
}
