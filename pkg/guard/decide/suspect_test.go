package decide

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

func TestSuspect(t *testing.T) {
	suspects := []identify.Container{{Name: "main", Image: "private/mc", By: identify.ByFlags, Program: "metacontroller"}}
	alone := attempt.Shape{Present: true, Suspects: suspects, Replicas: attempt.Replicas{Count: 1}}
	beside := runs(1, 1)
	beside.Suspects = suspects
	with := func(shape attempt.Shape) func(*attempt.Attempt) { return func(a *attempt.Attempt) { a.New = shape } }
	const deploy, sts = attempt.WorkloadDeployment, attempt.WorkloadStatefulSet
	scaled := func(a *attempt.Attempt) { a.Subresource = attempt.SubresourceScale }
	warns, audits, excepting := policy, policy, policy
	warns.Action, audits.Action = ActionWarn, ActionAudit
	excepting.Excepted = []Exception{{Identity: Identity{"dev", "try"}}}
	long := bound
	long.Identity = Identity{strings.Repeat("n", 63), strings.Repeat("m", 253)}
	for why, test := range map[string]struct {
		a    attempt.Attempt
		p    Policy
		h    Holder
		want Verdict
	}{
		"created":                           {create(deploy, "dev", "x", "u", with(alone)), policy, bound, VerdictWarn},
		"created while the slot is free":    {create(sts, "dev", "x", "u", with(alone)), policy, free, VerdictWarn},
		"created while nobody knows":        {create(deploy, "dev", "x", "u", with(alone)), policy, unknown, VerdictWarn},
		"created under a long holder":       {create(deploy, "dev", "x", "u", with(alone)), policy, long, VerdictWarn},
		"created under a policy that warns": {create(deploy, "dev", "x", "u", with(alone)), warns, bound, VerdictWarn},
		"created under one that audits":     {create(deploy, "dev", "x", "u", with(alone)), audits, bound, VerdictAudit},
		"created, excepted":                 {create(deploy, "dev", "try", "u", with(alone)), excepting, bound, VerdictAllow},
		"its template changes":              {create(deploy, "dev", "x", "u", change(alone, alone, true)), policy, bound, VerdictWarn},
		"nothing of it changes":             {create(deploy, "dev", "x", "u", change(alone, alone, false)), policy, bound, VerdictAllow},
		"it turns harmless":                 {create(deploy, "dev", "x", "u", change(alone, runs(0, 1), true)), policy, bound, VerdictAllow},
		"it is scaled":                      {create(deploy, "dev", "x", "u", change(alone, alone, false), scaled), policy, bound, VerdictAllow},
		"beside the holder's instance":      {create(sts, "prod", "mc", "u1", with(beside)), policy, bound, VerdictWarn},
		"beside another instance":           {create(sts, "dev", "mc", "u2", with(beside)), policy, bound, VerdictDeny},
	} {
		t.Run(why, func(t *testing.T) {
			got := Decide(test.a, test.p, test.h)
			if got.Verdict != test.want {
				t.Fatalf("got %s, want %s: %+v", got.Verdict, test.want, got)
			}
			suspected := test.want == VerdictWarn || test.want == VerdictAudit
			if suspected != (got.Rule == RuleSuspectedInstance) {
				t.Fatalf("got rule %q", got.Rule)
			}
			if first := FirstLine(got.Message); suspected && (!strings.HasPrefix(first, "suspected-instance: ") || utf8.RuneCountInString(first) > MaxLine) {
				t.Fatalf("says %q", first)
			}
		})
	}
}
