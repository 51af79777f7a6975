package pin

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

// TestLeaderElectionInCEL holds the API server's policies to what the guard
// itself says of an instance's flags. The policies may refuse more, for flags
// that are there twice in two ways of writing; they never let more in.
func TestLeaderElectionInCEL(t *testing.T) {
	elects := newVariableEvaluator(t, podVariables(), "variables.elects")
	signature, err := identify.Compile(v1alpha1.DefaultMatch())
	if err != nil {
		t.Fatal(err)
	}
	argument := rapid.SampledFrom([]string{
		"--leader-election", "--leader-election", "-leader-election", "--leader-election=true", "--leader-election=false", "--leader-election=1",
		"--leader-election-id=metacontroller", "--leader-election-id=mc", "-leader-election-id=mc", "--leader-election-id=$(ID)",
		"--leader-election-namespace=mc", "--leader-election-namespace=leases", "--leader-election-resource-lock=leases", "--leader-election-resource-lock=endpoints",
		"--workers=5", "--zap-devel", "--zap-log-level", "serve", "--", "", "-x=y", "---a=b", "--a=\n", "$(ARGS)",
	})
	command := rapid.SampledFrom([][]string{nil, nil, nil, {"metacontroller"}, {"/usr/bin/metacontroller"}, {"sh", "-c"}, {"/bin/tini"}, {"metacontroller", "--leader-election"}})
	agreed := map[bool]int{}
	rapid.Check(t, func(t *rapid.T) {
		policy := policyWith(v1alpha1.DefaultMatch())
		policy.Spec.Mode = v1alpha1.ModeLeaderElected
		switch rapid.IntRange(0, 2).Draw(t, "lease") {
		case 1:
			policy.Spec.Lease = &v1alpha1.LeaseReference{Name: "mc"}
		case 2:
			policy.Spec.Lease = &v1alpha1.LeaseReference{Namespace: "leases"}
		}
		spec := corev1.PodSpec{Containers: []corev1.Container{
			{Name: "hook", Image: "nginx", Args: []string{"serve"}},
			{Name: "main", Image: image, Command: command.Draw(t, "command"), Args: rapid.SliceOfN(argument, 0, 4).Draw(t, "args")},
		}}
		pod := &corev1.Pod{Spec: spec}
		pod.Namespace, pod.Name = "mc", "p"
		value, _, err := elects.evaluate(t, createPod(pod), policy)
		if err != nil {
			t.Fatalf("cannot evaluate: %v", err)
		}
		want := decide.Elects(decide.PolicyOf(policy, v1alpha1.Exception{}.Expires.Time), "mc", attempt.FlagsOf(&spec, signature))
		got := value.Value().(bool)
		if got != want {
			t.Fatalf("CEL says %v, Go %v of %q %q with lease %+v", got, want, spec.Containers[1].Command, spec.Containers[1].Args, policy.Spec.Lease)
		}
		agreed[got]++
	})
	if agreed[true] == 0 || agreed[false] == 0 {
		t.Errorf("only one answer was compared: %v", agreed)
	}
}
