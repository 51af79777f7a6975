package decide

import (
	"fmt"

	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
)

// suspect turns an Allow into a warning where a container that the attempt
// brings has flags that only an instance has, under an image and a name that
// the policy does not list. It never refuses: flags are no proof, and the fence
// refuses what such a container writes. With ActionAudit only the audit log
// says it.
func suspect(d Decision, a attempt.Attempt, p Policy) Decision {
	if d.Verdict != VerdictAllow || !suspicious(a) || exceptionFor(a, p) != nil {
		return d
	}
	container := a.New.Suspects[0]
	verdict := VerdictWarn
	if p.Action == ActionAudit {
		verdict = VerdictAudit
	}
	why := fmt.Sprintf("container %s (%s) has them, and neither its image nor its command is listed", container.Name, container.Image)
	return Decision{
		Verdict: verdict, Matching: true, Rule: RuleSuspectedInstance, Holder: d.Holder,
		Message: refusal{
			line: fmt.Sprintf("this %s has flags of %s", a.Workload, container.Program) + clauseOf(d.Holder),
			why:  why,
			next: "if it is one, list its image in spec.match.images of the policy, and run only the holder; if not, list it in spec.match.excludeImages",
		}.message(RuleSuspectedInstance, p, d.Holder),
	}
}

// suspicious says whether the attempt brings a suspect, or changes the Pod
// template of one.
func suspicious(a attempt.Attempt) bool {
	if len(a.New.Suspects) == 0 || a.Scale() {
		return false
	}
	return a.Operation == attempt.Create || a.Operation == attempt.Update && a.PodSpecChanged
}
