package decide

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

var (
	policy  = Policy{Name: "metacontroller", Stored: true}
	free    = Holder{State: StateFree}
	bound   = Holder{State: StateBound, Identity: Identity{"prod", "mc"}, UID: "u1", Epoch: 1}
	leaving = Holder{State: StateReleasing, Identity: bound.Identity, UID: "u1", Epoch: 1}
	unknown = Holder{Why: "the API server does not answer"}
)

func runs(n int, replicas int64) attempt.Shape {
	shape := attempt.Shape{Present: true, Replicas: attempt.Replicas{Count: replicas}}
	for range n {
		shape.Containers = append(shape.Containers, identify.Container{Name: "main"})
	}
	return shape
}

func create(workload attempt.Workload, namespace, name, uid string, edits ...func(*attempt.Attempt)) attempt.Attempt {
	a := attempt.Attempt{
		Operation: attempt.Create, Workload: workload, Namespace: namespace, Name: name,
		ObjectUID: types.UID(uid), New: runs(1, 1), User: attempt.User{Name: "alice"},
	}
	for _, edit := range edits {
		edit(&a)
	}
	return a
}

func change(before, after attempt.Shape, podSpec bool) func(*attempt.Attempt) {
	return func(a *attempt.Attempt) {
		a.Operation, a.Old, a.New, a.PodSpecChanged = attempt.Update, before, after, podSpec
	}
}

func ownPod(edits ...func(*attempt.Attempt)) attempt.Attempt {
	return create(attempt.WorkloadPod, "prod", "mc-0", "p", append([]func(*attempt.Attempt){func(a *attempt.Attempt) {
		a.User.Name = UserStatefulSetController
		a.Owner = &attempt.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mc", UID: "u1"}
	}}, edits...)...)
}

var (
	elected   = Policy{Name: "metacontroller", Stored: true, Mode: guardv1alpha1.ModeLeaderElected}
	sharded   = Policy{Name: "metacontroller", Stored: true, Mode: guardv1alpha1.ModeSharded}
	confirmed = Holder{State: StateBound, Identity: bound.Identity, UID: "u1", Epoch: 1, Elected: true}
	electing  = attempt.Flags{Readable: true, LeaderElection: true}
	shards    = Holder{State: StateFree, Shards: []Holder{
		{State: StateBound, Identity: Identity{"prod", "a"}, UID: "ua", Selector: "team=a"},
		{State: StateBound, Identity: Identity{"prod", "b"}, UID: "ub", Selector: "team=b"},
	}}
)

func selecting(selector string) attempt.Flags {
	return attempt.Flags{Readable: true, Selector: selector}
}

func flagged(shape attempt.Shape, flags attempt.Flags) attempt.Shape {
	shape.Flags = flags
	return shape
}

func startingAt(shape attempt.Shape, start int64) attempt.Shape {
	shape.OrdinalsStart = start
	return shape
}

func graceless(shape attempt.Shape) attempt.Shape {
	shape.NoGrace = true
	return shape
}

func scaleOf(shape attempt.Shape, to int64) func(*attempt.Attempt) {
	return func(a *attempt.Attempt) {
		a.Subresource = attempt.SubresourceScale
		raised := shape
		raised.Replicas.Count = to
		change(shape, raised, false)(a)
	}
}

func autoscaling(namespace, kind, name string, most int64, edits ...func(*attempt.Attempt)) attempt.Attempt {
	return create(attempt.WorkloadAutoscaler, namespace, "scaler", "h", append([]func(*attempt.Attempt){func(a *attempt.Attempt) {
		a.New = attempt.Shape{Present: true, Replicas: attempt.Replicas{Count: most}, Target: &attempt.Target{Group: "apps", Kind: kind, Name: name}}
	}}, edits...)...)
}

func forced(name string, state attempt.NodeState, edits ...func(*attempt.Attempt)) attempt.Attempt {
	return create(attempt.WorkloadPod, "prod", name, "p", append([]func(*attempt.Attempt){func(a *attempt.Attempt) {
		a.Operation, a.Old, a.New = attempt.Delete, a.New, attempt.Shape{}
		a.Resource.Resource = "pods"
		a.Removal = attempt.Removal{Forced: true, Node: "n1", NodeState: state}
		a.Owner = &attempt.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mc", UID: "u1"}
	}}, edits...)...)
}

func shardOf(namespace, name, selector string, edits ...func(*attempt.Attempt)) attempt.Attempt {
	return create(attempt.WorkloadStatefulSet, namespace, name, "u9", append([]func(*attempt.Attempt){func(a *attempt.Attempt) {
		a.New.Flags = selecting(selector)
	}}, edits...)...)
}

func shardPod(name, owner, uid, selector string) attempt.Attempt {
	return create(attempt.WorkloadPod, "prod", name, "p", func(a *attempt.Attempt) {
		a.New.Flags = selecting(selector)
		a.User.Name = UserStatefulSetController
		a.Owner = &attempt.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Name: owner, UID: types.UID(uid)}
	})
}

// TestEveryRuleSpeaks breaks each rule, for holders with short and with the
// longest names, and holds the answers to the shape of messages.
func TestEveryRuleSpeaks(t *testing.T) {
	const sts = attempt.WorkloadStatefulSet
	breaks := func(namespace, name string) map[Rule]struct {
		a attempt.Attempt
		p Policy
	} {
		type broken = struct {
			a attempt.Attempt
			p Policy
		}
		holder := func(edits ...func(*attempt.Attempt)) attempt.Attempt {
			return create(sts, namespace, name, "u1", edits...)
		}
		force := forced(name+"-0", attempt.NodePresent)
		force.Namespace = namespace
		return map[Rule]broken{
			RuleSecondWorkload: {create(sts, "dev", "x", "u2"), policy},
			RuleWorkloadKind:   {create(attempt.WorkloadDeployment, "dev", "x", "u2"), sharded},
			RuleScaleAboveOne:  {holder(change(runs(1, 1), runs(1, 2), false)), policy},
			RuleAutoscaler:     {autoscaling(namespace, "StatefulSet", name, 3), policy},
			RulePodNotPinned:   {create(attempt.WorkloadPod, "dev", "x", "u2"), policy},
			RuleTwoInOnePod:    {holder(change(runs(1, 1), runs(2, 1), true)), policy},
			RuleBecameInstance: {create(attempt.WorkloadPod, "dev", "x", "u2", change(runs(0, 1), runs(1, 1), true)), policy},
			RuleOrdinals:       {holder(change(runs(1, 1), startingAt(runs(1, 1), 1), false)), policy},
			RuleZeroGrace:      {holder(change(runs(1, 1), graceless(runs(1, 1)), true)), policy},
			RuleForceDelete:    {force, policy},
			RuleLeaderElection: {holder(change(flagged(runs(1, 2), electing), runs(1, 2), true)), elected},
			RuleShardOverlap:   {shardOf("dev", "x", "team=a"), sharded},
		}
	}
	for _, name := range []Identity{{"prod", "mc"}, {strings.Repeat("n", 63), strings.Repeat("m", 253)}} {
		broken := breaks(name.Namespace, name.Name)
		for _, rule := range Rules() {
			h := bound
			h.Identity = name
			h.Shards = []Holder{{State: StateBound, Identity: name, UID: "u1", Selector: "team in (a,b)"}}
			for _, action := range []Action{ActionDeny, ActionWarn, ActionAudit} {
				one, ok := broken[rule]
				if !ok {
					t.Fatalf("nothing breaks %s", rule)
				}
				one.p.Action = action
				got := Decide(one.a, one.p, h)
				if got.Rule != rule || got.Verdict != action.verdict() {
					t.Fatalf("%s: got %s by %q: %s", rule, got.Verdict, got.Rule, got.Message)
				}
				checkMessage(t, got)
			}
		}
	}
}

func TestNotice(t *testing.T) {
	if got := Decide(forced("mc-0", attempt.NodeOutOfServiceReady), policy, bound); got.Notice == "" || utf8.RuneCountInString(got.Notice) > MaxLine {
		t.Errorf("a ready node is vouched for, and the notice is %q", got.Notice)
	}
	if got := Decide(forced("mc-0", attempt.NodeOutOfService), policy, bound); got.Notice != "" {
		t.Errorf("says %q", got.Notice)
	}
}

func TestDecide(t *testing.T) {
	const sts = attempt.WorkloadStatefulSet
	dry := func(a *attempt.Attempt) { a.DryRun = true }
	with := func(shape attempt.Shape) func(*attempt.Attempt) { return func(a *attempt.Attempt) { a.New = shape } }
	scale := func(from, to int64) func(*attempt.Attempt) {
		return func(a *attempt.Attempt) {
			a.Subresource = attempt.SubresourceScale
			change(runs(1, from), runs(1, to), false)(a)
		}
	}
	subresource := func(name string) func(*attempt.Attempt) { return func(a *attempt.Attempt) { a.Subresource = name } }
	operation := func(o attempt.Operation) func(*attempt.Attempt) { return func(a *attempt.Attempt) { a.Operation = o } }
	designated := policy
	designated.Designated = &Identity{"prod", "mc"}
	moved := policy
	moved.Designated = &Identity{"new", "mc"}
	absent := DefaultPolicy("metacontroller")
	excepting := policy
	excepting.Excepted = []Exception{{Identity: Identity{"dev", "try"}}}

	exceptingHolder := policy
	exceptingHolder.Excepted = []Exception{{Identity: Identity{"prod", "mc"}}}
	named := func(name string) func(*attempt.Attempt) { return func(a *attempt.Attempt) { a.Name = name } }
	wasThere := func(most int64) func(*attempt.Attempt) {
		return func(a *attempt.Attempt) {
			a.Operation, a.Old = attempt.Update, a.New
			a.Old.Replicas.Count = most
		}
	}

	tests := map[string]struct {
		a    attempt.Attempt
		p    Policy
		h    Holder
		want Verdict
		rule Rule
	}{
		"unrelated":                         {create(attempt.WorkloadDeployment, "dev", "web", "x", with(runs(0, 3))), policy, bound, VerdictAllow, RuleNone},
		"unrelated, holder unknown":         {create(attempt.WorkloadDeployment, "dev", "web", "x", with(runs(0, 3))), policy, unknown, VerdictAllow, RuleNone},
		"first StatefulSet":                 {create(sts, "prod", "mc", "u1"), policy, free, VerdictClaim, RuleNone},
		"first StatefulSet, zero replicas":  {create(sts, "prod", "mc", "u1", with(runs(1, 0))), policy, free, VerdictClaim, RuleNone},
		"first StatefulSet, dry run":        {create(sts, "prod", "mc", "u1", dry), policy, free, VerdictAllow, RuleNone},
		"first StatefulSet, two replicas":   {create(sts, "prod", "mc", "u1", with(runs(1, 2))), policy, free, VerdictDeny, RuleScaleAboveOne},
		"first StatefulSet, no policy":      {create(sts, "prod", "mc", "u1"), absent, free, VerdictUnreadable, RuleNone},
		"first StatefulSet, holder unknown": {create(sts, "prod", "mc", "u1"), policy, unknown, VerdictUnreadable, RuleNone},
		"first Deployment":                  {create(attempt.WorkloadDeployment, "prod", "mc", "u1"), policy, free, VerdictDeny, RuleWorkloadKind},
		"first Deployment, no policy":       {create(attempt.WorkloadDeployment, "prod", "mc", "u1"), absent, free, VerdictDeny, RuleWorkloadKind},
		"first DaemonSet":                   {create(attempt.WorkloadDaemonSet, "prod", "mc", "u1"), policy, free, VerdictDeny, RuleWorkloadKind},
		"first bare Pod":                    {create(attempt.WorkloadPod, "prod", "mc", "u1"), policy, free, VerdictDeny, RulePodNotPinned},
		"first custom workload":             {create(attempt.WorkloadCustom, "prod", "mc", "u1"), policy, free, VerdictDeny, RuleWorkloadKind},
		"two in one template":               {create(sts, "prod", "mc", "u1", with(runs(2, 1))), policy, free, VerdictDeny, RuleTwoInOnePod},

		"second StatefulSet":           {create(sts, "dev", "mc", "u2"), policy, bound, VerdictDeny, RuleSecondWorkload},
		"second StatefulSet, dry run":  {create(sts, "dev", "mc", "u2", dry), policy, bound, VerdictDeny, RuleSecondWorkload},
		"second at zero":               {create(sts, "prod", "other", "u2", with(runs(1, 0))), policy, bound, VerdictDeny, RuleSecondWorkload},
		"second at three":              {create(sts, "prod", "other", "u2", with(runs(1, 3))), policy, bound, VerdictDeny, RuleSecondWorkload},
		"second Deployment":            {create(attempt.WorkloadDeployment, "dev", "mc", "u2"), policy, bound, VerdictDeny, RuleSecondWorkload},
		"Deployment named like holder": {create(attempt.WorkloadDeployment, "prod", "mc", "u2"), policy, bound, VerdictDeny, RuleSecondWorkload},
		"second during release":        {create(sts, "dev", "mc", "u2"), policy, leaving, VerdictDeny, RuleSecondWorkload},
		"second, holder unknown":       {create(sts, "dev", "mc", "u2"), policy, unknown, VerdictUnreadable, RuleNone},

		"holder again, same request":       {create(sts, "prod", "mc", "u1"), policy, bound, VerdictAllow, RuleNone},
		"holder made again":                {create(sts, "prod", "mc", "u2"), policy, bound, VerdictClaim, RuleNone},
		"holder made again during release": {create(sts, "prod", "mc", "u2"), policy, leaving, VerdictClaim, RuleNone},
		"holder made again at two":         {create(sts, "prod", "mc", "u2", with(runs(1, 2))), policy, bound, VerdictDeny, RuleScaleAboveOne},
		"holder made again, dry run":       {create(sts, "prod", "mc", "u2", dry), policy, bound, VerdictAllow, RuleNone},

		"designated":                       {create(sts, "prod", "mc", "u1"), designated, free, VerdictClaim, RuleNone},
		"not designated":                   {create(sts, "dev", "mc", "u1"), designated, free, VerdictDeny, RuleSecondWorkload},
		"holder no longer designated":      {create(sts, "prod", "mc", "u1", change(runs(1, 1), runs(1, 1), true)), moved, bound, VerdictAllow, RuleNone},
		"holder made again, another named": {create(sts, "prod", "mc", "u2"), moved, bound, VerdictDeny, RuleSecondWorkload},

		"image of the holder":            {create(sts, "prod", "mc", "u1", change(runs(1, 1), runs(1, 1), true)), policy, bound, VerdictAllow, RuleNone},
		"holder turned harmless":         {create(sts, "prod", "mc", "u1", change(runs(1, 1), runs(0, 1), true)), policy, bound, VerdictAllow, RuleNone},
		"holder turned back":             {create(sts, "prod", "mc", "u1", change(runs(0, 1), runs(1, 1), true)), policy, bound, VerdictAllow, RuleNone},
		"holder to two":                  {create(sts, "prod", "mc", "u1", change(runs(1, 1), runs(1, 2), false)), policy, bound, VerdictDeny, RuleScaleAboveOne},
		"holder from three to two":       {create(sts, "prod", "mc", "u1", change(runs(1, 3), runs(1, 2), false)), policy, bound, VerdictAllow, RuleNone},
		"image of a holder at three":     {create(sts, "prod", "mc", "u1", change(runs(1, 3), runs(1, 3), true)), policy, bound, VerdictAllow, RuleNone},
		"holder to two in its template":  {create(sts, "prod", "mc", "u1", change(runs(1, 1), runs(2, 1), true)), policy, bound, VerdictDeny, RuleTwoInOnePod},
		"scale holder to two":            {create(sts, "prod", "mc", "u1", scale(1, 2)), policy, bound, VerdictDeny, RuleScaleAboveOne},
		"scale holder to one":            {create(sts, "prod", "mc", "u1", scale(0, 1)), policy, bound, VerdictAllow, RuleNone},
		"scale holder down":              {create(sts, "prod", "mc", "u1", scale(1, 0)), policy, bound, VerdictAllow, RuleNone},
		"scale holder, holder unknown":   {create(sts, "prod", "mc", "u1", scale(1, 2)), policy, unknown, VerdictUnreadable, RuleNone},
		"annotate a violator":            {create(attempt.WorkloadDeployment, "dev", "mc", "x", change(runs(1, 2), runs(1, 2), false)), policy, bound, VerdictAllow, RuleNone},
		"lower a violator":               {create(attempt.WorkloadDeployment, "dev", "mc", "x", change(runs(1, 2), runs(1, 1), false)), policy, bound, VerdictAllow, RuleNone},
		"image of a violator":            {create(attempt.WorkloadDeployment, "dev", "mc", "x", change(runs(1, 1), runs(1, 1), true)), policy, bound, VerdictDeny, RuleSecondWorkload},
		"scale a violator from zero":     {create(attempt.WorkloadDeployment, "dev", "mc", "x", scale(0, 1)), policy, bound, VerdictDeny, RuleSecondWorkload},
		"scale a violator above one":     {create(attempt.WorkloadReplicaSet, "dev", "mc", "x", scale(1, 2)), policy, bound, VerdictDeny, RuleScaleAboveOne},
		"scale an unclaimed StatefulSet": {create(sts, "dev", "mc", "x", scale(0, 1)), policy, free, VerdictClaim, RuleNone},
		"harmless template, image set":   {create(attempt.WorkloadDeployment, "dev", "web", "x", change(runs(0, 1), runs(1, 1), true)), policy, bound, VerdictDeny, RuleBecameInstance},
		"harmless Pod, image set":        {create(attempt.WorkloadPod, "dev", "web", "x", change(runs(0, 1), runs(1, 1), true)), policy, bound, VerdictDeny, RuleBecameInstance},
		"ephemeral container":            {create(attempt.WorkloadPod, "dev", "web", "x", change(runs(0, 1), runs(1, 1), true), subresource("ephemeralcontainers")), policy, bound, VerdictDeny, RuleBecameInstance},
		"ephemeral container in the pin": {ownPod(change(runs(1, 1), runs(2, 1), true), subresource("ephemeralcontainers")), policy, bound, VerdictDeny, RuleTwoInOnePod},
		"image of the pinned Pod":        {ownPod(change(runs(1, 1), runs(1, 1), true)), policy, bound, VerdictAllow, RuleNone},
		"resize":                         {create(attempt.WorkloadPod, "dev", "x", "x", change(runs(1, 1), runs(1, 1), true), subresource("resize")), policy, bound, VerdictAllow, RuleNone},
		"status":                         {create(sts, "dev", "mc", "x", change(runs(1, 1), runs(1, 1), true), subresource("status")), policy, bound, VerdictAllow, RuleNone},
		"status, holder unknown":         {create(sts, "dev", "mc", "x", change(runs(1, 1), runs(1, 1), true), subresource("status")), policy, unknown, VerdictAllow, RuleNone},
		"eviction":                       {create(attempt.WorkloadPod, "prod", "mc-0", "x", subresource("eviction")), policy, unknown, VerdictAllow, RuleNone},
		"delete":                         {create(sts, "dev", "mc", "x", operation(attempt.Delete)), policy, unknown, VerdictAllow, RuleNone},

		"own Pod":                          {ownPod(), policy, bound, VerdictAllow, RuleNone},
		"own Pod, one controller identity": {ownPod(func(a *attempt.Attempt) { a.User.Name = UserControllerManager }), policy, bound, VerdictAllow, RuleNone},
		"own Pod, holder unknown":          {ownPod(), policy, unknown, VerdictUnreadable, RuleNone},
		"own Pod while releasing":          {ownPod(), policy, leaving, VerdictDeny, RulePodNotPinned},
		"own Pod by somebody else":         {ownPod(func(a *attempt.Attempt) { a.User.Name = "mallory" }), policy, bound, VerdictDeny, RulePodNotPinned},
		"own Pod of an older uid":          {ownPod(func(a *attempt.Attempt) { a.Owner.UID = "u0" }), policy, bound, VerdictDeny, RulePodNotPinned},
		"own Pod without an owner":         {ownPod(func(a *attempt.Attempt) { a.Owner = nil }), policy, bound, VerdictDeny, RulePodNotPinned},
		"second ordinal":                   {ownPod(func(a *attempt.Attempt) { a.Name = "mc-1" }), policy, bound, VerdictDeny, RulePodNotPinned},
		"right name, wrong namespace":      {ownPod(func(a *attempt.Attempt) { a.Namespace = "dev" }), policy, bound, VerdictDeny, RulePodNotPinned},

		"autoscaler of the holder":        {autoscaling("prod", "StatefulSet", "mc", 5), policy, bound, VerdictDeny, RuleAutoscaler},
		"autoscaler to one":               {autoscaling("prod", "StatefulSet", "mc", 1), policy, bound, VerdictAllow, RuleNone},
		"autoscaler elsewhere":            {autoscaling("dev", "StatefulSet", "mc", 5), policy, bound, VerdictAllow, RuleNone},
		"autoscaler of another kind":      {autoscaling("prod", "Deployment", "mc", 5), policy, bound, VerdictAllow, RuleNone},
		"autoscaler, holder unknown":      {autoscaling("prod", "StatefulSet", "mc", 5), policy, unknown, VerdictAllow, RuleNone},
		"autoscaler that was there":       {autoscaling("prod", "StatefulSet", "mc", 5, wasThere(5)), policy, bound, VerdictAllow, RuleNone},
		"autoscaler raised":               {autoscaling("prod", "StatefulSet", "mc", 5, wasThere(1)), policy, bound, VerdictDeny, RuleAutoscaler},
		"autoscaler, replicas may be":     {autoscaling("prod", "StatefulSet", "mc", 5), elected, bound, VerdictAllow, RuleNone},
		"first with ordinals":             {create(sts, "prod", "mc", "u1", with(startingAt(runs(1, 1), 1))), policy, free, VerdictDeny, RuleOrdinals},
		"ordinals of the holder":          {create(sts, "prod", "mc", "u1", change(runs(1, 1), startingAt(runs(1, 1), 1), false)), policy, bound, VerdictDeny, RuleOrdinals},
		"ordinals back while it runs":     {create(sts, "prod", "mc", "u1", change(startingAt(runs(1, 1), 1), runs(1, 1), false)), policy, bound, VerdictDeny, RuleOrdinals},
		"ordinals back at none":           {create(sts, "prod", "mc", "u1", change(startingAt(runs(1, 0), 1), runs(1, 0), false)), policy, bound, VerdictAllow, RuleNone},
		"first without grace":             {create(sts, "prod", "mc", "u1", with(graceless(runs(1, 1)))), policy, free, VerdictDeny, RuleZeroGrace},
		"grace of the holder":             {create(sts, "prod", "mc", "u1", change(runs(1, 1), graceless(runs(1, 1)), true)), policy, bound, VerdictDeny, RuleZeroGrace},
		"image of a holder without grace": {create(sts, "prod", "mc", "u1", change(graceless(runs(1, 1)), graceless(runs(1, 1)), true)), policy, bound, VerdictAllow, RuleNone},

		"force, node present":          {forced("mc-0", attempt.NodePresent), policy, bound, VerdictDeny, RuleForceDelete},
		"force, node unknown":          {forced("mc-0", attempt.NodeUnknown), policy, bound, VerdictDeny, RuleForceDelete},
		"force while releasing":        {forced("mc-0", attempt.NodePresent), policy, leaving, VerdictDeny, RuleForceDelete},
		"force, node gone":             {forced("mc-0", attempt.NodeGone), policy, bound, VerdictAllow, RuleNone},
		"force, node shut down":        {forced("mc-0", attempt.NodeOutOfService), policy, bound, VerdictAllow, RuleNone},
		"force, tainted":               {forced("mc-0", attempt.NodeOutOfServiceReady), policy, bound, VerdictAllow, RuleNone},
		"force, ended":                 {forced("mc-0", attempt.NodePresent, func(a *attempt.Attempt) { a.Removal.Ended = true }), policy, bound, VerdictAllow, RuleNone},
		"force, never scheduled":       {forced("mc-0", attempt.NodeUnknown, func(a *attempt.Attempt) { a.Removal.Node = "" }), policy, bound, VerdictAllow, RuleNone},
		"force by its node":            {forced("mc-0", attempt.NodePresent, func(a *attempt.Attempt) { a.User.Name = "system:node:n1" }), policy, bound, VerdictAllow, RuleNone},
		"force by another node":        {forced("mc-0", attempt.NodePresent, func(a *attempt.Attempt) { a.User.Name = "system:node:n2" }), policy, bound, VerdictDeny, RuleForceDelete},
		"force of a violator":          {forced("other-0", attempt.NodePresent), policy, bound, VerdictAllow, RuleNone},
		"force, nobody holds":          {forced("mc-0", attempt.NodePresent), policy, free, VerdictAllow, RuleNone},
		"force, holder unknown":        {forced("mc-0", attempt.NodePresent), policy, unknown, VerdictAllow, RuleNone},
		"force of a replica":           {forced("mc-1", attempt.NodePresent), elected, bound, VerdictDeny, RuleForceDelete},
		"force of one more, in Strict": {forced("mc-1", attempt.NodePresent), policy, bound, VerdictAllow, RuleNone},
		"delete with grace":            {forced("mc-0", attempt.NodePresent, func(a *attempt.Attempt) { a.Removal.Forced = false }), policy, bound, VerdictAllow, RuleNone},

		"elected, two at once":                 {create(sts, "prod", "mc", "u1", with(flagged(runs(1, 2), electing))), elected, free, VerdictClaim, RuleNone},
		"elected, without the flag":            {create(sts, "prod", "mc", "u1", with(flagged(runs(1, 2), attempt.Flags{Readable: true}))), elected, free, VerdictDeny, RuleLeaderElection},
		"elected, flags unreadable":            {create(sts, "prod", "mc", "u1"), elected, free, VerdictDeny, RuleLeaderElection},
		"elected, other namespace":             {create(sts, "prod", "mc", "u1", with(flagged(runs(1, 1), attempt.Flags{Readable: true, LeaderElection: true, LeaseNamespace: "dev"}))), elected, free, VerdictDeny, RuleLeaderElection},
		"elected, other name":                  {create(sts, "prod", "mc", "u1", with(flagged(runs(1, 1), attempt.Flags{Readable: true, LeaderElection: true, LeaseName: "x"}))), elected, free, VerdictDeny, RuleLeaderElection},
		"elected, other lock":                  {create(sts, "prod", "mc", "u1", with(flagged(runs(1, 1), attempt.Flags{Readable: true, LeaderElection: true, OtherLock: true}))), elected, free, VerdictDeny, RuleLeaderElection},
		"elected, defaults written out":        {create(sts, "prod", "mc", "u1", with(flagged(runs(1, 3), attempt.Flags{Readable: true, LeaderElection: true, LeaseNamespace: "prod", LeaseName: "metacontroller"}))), elected, free, VerdictClaim, RuleNone},
		"elected, second workload":             {create(sts, "dev", "mc", "u2", with(flagged(runs(1, 2), electing))), elected, bound, VerdictDeny, RuleSecondWorkload},
		"elected, Deployment":                  {create(attempt.WorkloadDeployment, "prod", "mc", "u2", with(flagged(runs(1, 2), electing))), elected, free, VerdictDeny, RuleWorkloadKind},
		"elected, scaled":                      {create(sts, "prod", "mc", "u1", scaleOf(flagged(runs(1, 1), electing), 3)), elected, bound, VerdictAllow, RuleNone},
		"elected, scaled without the flag":     {create(sts, "prod", "mc", "u1", scaleOf(flagged(runs(1, 1), attempt.Flags{Readable: true}), 3)), elected, bound, VerdictDeny, RuleLeaderElection},
		"elected, flag removed":                {create(sts, "prod", "mc", "u1", change(flagged(runs(1, 2), electing), flagged(runs(1, 2), attempt.Flags{Readable: true}), true)), elected, bound, VerdictDeny, RuleLeaderElection},
		"elected, flag and replicas at once":   {create(sts, "prod", "mc", "u1", change(flagged(runs(1, 1), attempt.Flags{Readable: true}), flagged(runs(1, 2), electing), true)), elected, bound, VerdictDeny, RuleLeaderElection},
		"elected, flag alone":                  {create(sts, "prod", "mc", "u1", change(flagged(runs(1, 1), attempt.Flags{Readable: true}), flagged(runs(1, 1), electing), true)), elected, bound, VerdictAllow, RuleNone},
		"elected, image":                       {create(sts, "prod", "mc", "u1", change(flagged(runs(1, 3), electing), flagged(runs(1, 3), electing), true)), elected, bound, VerdictAllow, RuleNone},
		"elected, first Pod":                   {ownPod(with(flagged(runs(1, 1), electing))), elected, bound, VerdictAllow, RuleNone},
		"elected, first Pod without the flag":  {ownPod(), elected, bound, VerdictDeny, RuleLeaderElection},
		"elected, second Pod too early":        {ownPod(with(flagged(runs(1, 1), electing)), named("mc-1")), elected, bound, VerdictDeny, RulePodNotPinned},
		"elected, second Pod":                  {ownPod(with(flagged(runs(1, 1), electing)), named("mc-1")), elected, confirmed, VerdictAllow, RuleNone},
		"elected, second Pod of an old one":    {ownPod(named("mc-1")), elected, confirmed, VerdictDeny, RuleLeaderElection},
		"elected, odd ordinal":                 {ownPod(with(flagged(runs(1, 1), electing)), named("mc-01")), elected, confirmed, VerdictDeny, RulePodNotPinned},
		"elected, second Pod by somebody else": {ownPod(with(flagged(runs(1, 1), electing)), named("mc-1"), func(a *attempt.Attempt) { a.User.Name = "mallory" }), elected, confirmed, VerdictDeny, RulePodNotPinned},
		"strict, leader election ends":         {create(sts, "prod", "mc", "u1", change(flagged(runs(1, 2), electing), flagged(runs(1, 2), attempt.Flags{Readable: true}), true)), policy, bound, VerdictDeny, RuleLeaderElection},

		"sharded, first":                     {shardOf("prod", "a", "team=a"), sharded, free, VerdictClaim, RuleNone},
		"sharded, disjoint":                  {shardOf("prod", "c", "team=c"), sharded, shards, VerdictClaim, RuleNone},
		"sharded, overlapping":               {shardOf("prod", "c", "team in (a,c)"), sharded, shards, VerdictDeny, RuleShardOverlap},
		"sharded, other key":                 {shardOf("prod", "c", "zone=x"), sharded, shards, VerdictDeny, RuleShardOverlap},
		"sharded, missing":                   {shardOf("prod", "c", ""), sharded, shards, VerdictDeny, RuleShardOverlap},
		"sharded, missing, first":            {shardOf("prod", "c", ""), sharded, free, VerdictDeny, RuleShardOverlap},
		"sharded, no selector":               {shardOf("prod", "c", "a=b=c"), sharded, shards, VerdictDeny, RuleShardOverlap},
		"sharded, unreadable":                {create(sts, "prod", "c", "u9"), sharded, shards, VerdictDeny, RuleShardOverlap},
		"sharded, two replicas":              {shardOf("prod", "c", "team=c", func(a *attempt.Attempt) { a.New.Replicas.Count = 2 }), sharded, shards, VerdictDeny, RuleScaleAboveOne},
		"sharded, made again":                {shardOf("prod", "a", "team=a"), sharded, shards, VerdictClaim, RuleNone},
		"sharded, made again with another":   {shardOf("prod", "a", "team=x"), sharded, shards, VerdictDeny, RuleShardOverlap},
		"sharded, Deployment":                {create(attempt.WorkloadDeployment, "prod", "c", "u9"), sharded, shards, VerdictDeny, RuleWorkloadKind},
		"sharded, image":                     {shardOf("prod", "a", "team=a", change(flagged(runs(1, 1), selecting("team=a")), flagged(runs(1, 1), selecting("team=a")), true)), sharded, shards, VerdictAllow, RuleNone},
		"sharded, selector changed":          {shardOf("prod", "a", "team=a", change(flagged(runs(1, 1), selecting("team=a")), flagged(runs(1, 1), selecting("team=c")), true)), sharded, shards, VerdictDeny, RuleShardOverlap},
		"sharded, Pod of the second":         {shardPod("b-0", "b", "ub", "team=b"), sharded, shards, VerdictAllow, RuleNone},
		"sharded, Pod with another selector": {shardPod("b-0", "b", "ub", "team=a"), sharded, shards, VerdictDeny, RuleShardOverlap},
		"sharded, Pod of another uid":        {shardPod("b-0", "b", "ua", "team=b"), sharded, shards, VerdictDeny, RulePodNotPinned},
		"sharded, Pod of nobody":             {shardPod("c-0", "c", "uc", "team=c"), sharded, shards, VerdictDeny, RulePodNotPinned},

		"force under an exception":       {forced("mc-0", attempt.NodePresent), exceptingHolder, bound, VerdictAllow, RuleNone},
		"excepted":                       {create(attempt.WorkloadDeployment, "dev", "try", "x"), excepting, bound, VerdictAllow, RuleNone},
		"excepted, holder unknown":       {create(attempt.WorkloadDeployment, "dev", "try", "x"), excepting, unknown, VerdictAllow, RuleNone},
		"excepted, another namespace":    {create(attempt.WorkloadDeployment, "prod", "try", "x"), excepting, bound, VerdictDeny, RuleSecondWorkload},
		"Pod of the excepted":            {exceptedPod("ReplicaSet", "try-5d8f", controllerAccounts+"replicaset-controller"), excepting, bound, VerdictAllow, RuleNone},
		"Pod that claims to be of it":    {exceptedPod("ReplicaSet", "try-5d8f", "mallory"), excepting, bound, VerdictDeny, RulePodNotPinned},
		"StatefulSet that looks like it": {exceptedPod("StatefulSet", "try-5d8f", UserStatefulSetController), excepting, bound, VerdictDeny, RulePodNotPinned},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := Decide(test.a, test.p, test.h)
			if got.Verdict != test.want || got.Rule != test.rule {
				t.Fatalf("got %s by %q, want %s by %q: %s", got.Verdict, got.Rule, test.want, test.rule, got.Message)
			}
			checkMessage(t, got)
		})
	}
}

func exceptedPod(ownerKind, ownerName, user string) attempt.Attempt {
	return create(attempt.WorkloadPod, "dev", ownerName+"-x", "x", func(a *attempt.Attempt) {
		a.Owner = &attempt.Owner{Kind: ownerKind, Name: ownerName, UID: "o"}
		a.User.Name = user
	})
}

type fataler interface{ Fatalf(string, ...any) }

// checkMessage holds every decision to the shape of messages.
func checkMessage(t fataler, d Decision) {
	if d.Verdict == VerdictAllow || d.Verdict == VerdictClaim {
		if d.Message != "" {
			t.Fatalf("%s says %q", d.Verdict, d.Message)
		}
		return
	}
	line := FirstLine(d.Message)
	if utf8.RuneCountInString(line) > MaxLine || strings.Contains(d.Message, "%!") || strings.Contains(d.Message, "%s") {
		t.Fatalf("bad message %q", d.Message)
	}
	if d.Rule != RuleNone && !strings.HasPrefix(line, string(d.Rule)+": ") {
		t.Fatalf("%q does not name the rule %s", line, d.Rule)
	}
	if !strings.Contains(d.Message, "\nNext: ") {
		t.Fatalf("no next step in %q", d.Message)
	}
	if d.Holder.Held() {
		if !strings.Contains(d.Message, d.Holder.Identity.String()) {
			t.Fatalf("%q does not name the holder %s", d.Message, d.Holder.Identity)
		}
		if len(d.Holder.Identity.String()) <= 30 && !strings.Contains(line, d.Holder.Identity.String()) {
			t.Fatalf("%q does not name the holder %s", line, d.Holder.Identity)
		}
	}
}

func TestActions(t *testing.T) {
	second := create(attempt.WorkloadStatefulSet, "dev", "mc", "u2")
	for action, want := range map[Action]Verdict{ActionDeny: VerdictDeny, ActionWarn: VerdictWarn, ActionAudit: VerdictAudit} {
		p := policy
		p.Action = action
		if got := Decide(second, p, bound); got.Verdict != want || got.Rule != RuleSecondWorkload {
			t.Errorf("%v: got %s", action, got.Verdict)
		}
		got := Decide(second, p, unknown)
		if wanted := map[Action]Verdict{ActionDeny: VerdictUnreadable}[action]; wanted != VerdictUnknown && got.Verdict != wanted {
			t.Errorf("%v, unknown holder: got %s", action, got.Verdict)
		}
		if got := Decide(create(attempt.WorkloadStatefulSet, "prod", "mc", "u1"), p, free); got.Verdict != VerdictClaim {
			t.Errorf("%v, free: got %s, want a claim whatever the action", action, got.Verdict)
		}
	}
}

func TestVerdictAllowed(t *testing.T) {
	for verdict := VerdictUnknown; verdict <= VerdictExists; verdict++ {
		want := verdict == VerdictAllow || verdict == VerdictWarn || verdict == VerdictAudit
		if verdict.Allowed() != want {
			t.Errorf("%s: allowed is %v", verdict, !want)
		}
	}
}

func TestSettle(t *testing.T) {
	a := create(attempt.WorkloadStatefulSet, "prod", "mc", "u1")
	a.Resource.Group, a.Resource.Resource = "apps", "statefulsets"
	tests := map[string]struct {
		claim Claim
		want  Verdict
	}{
		"zero value": {Claim{}, VerdictUnreadable},
		"failed":     {Claim{Result: ClaimFailed, Why: "timeout"}, VerdictUnreadable},
		"granted":    {Claim{Result: ClaimGranted, Holder: bound}, VerdictAllow},
		"exists":     {Claim{Result: ClaimExists}, VerdictExists},
		"crowded":    {Claim{Result: ClaimCrowded, Others: []Occupant{{Kind: "StatefulSet", Identity: Identity{"a", "b"}}, {Kind: "Pod", Identity: Identity{"c", "d"}, Of: "Job/e"}}}, VerdictDeny},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := Settle(a, policy, free, test.claim)
			if got.Verdict != test.want || !got.Matching {
				t.Fatalf("got %+v", got)
			}
			if got.Verdict != VerdictExists {
				checkMessage(t, got)
			}
		})
	}
}

func TestPolicyOf(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	stored := &guardv1alpha1.SingletonPolicy{Spec: guardv1alpha1.SingletonPolicySpec{
		ValidationActions: []guardv1alpha1.ValidationAction{guardv1alpha1.ActionAudit, guardv1alpha1.ActionWarn},
		Exceptions: []guardv1alpha1.Exception{
			{Namespace: "a", Name: "old", Expires: metav1.NewTime(now)},
			{Namespace: "a", Name: "new", Expires: metav1.NewTime(now.Add(time.Second))},
		},
	}}
	got := PolicyOf(stored, now)
	if got.Action != ActionWarn || len(got.Excepted) != 1 || got.Excepted[0].Name != "new" || !got.Stored {
		t.Fatalf("got %+v", got)
	}
	stored.Spec.ValidationActions = nil
	if PolicyOf(stored, now).Action != ActionDeny {
		t.Fatal("no action is not Deny")
	}
	phase := guardv1alpha1.SingletonPolicyStatus{Holder: &guardv1alpha1.Holder{Phase: "Odd"}}
	if HolderOf(phase).State != StateUnknown {
		t.Fatal("an unknown phase is not an unknown holder")
	}
}

// TestInvariants draws attempts, policies and holders and holds every decision
// to what must always be true.
func TestInvariants(t *testing.T) {
	name := rapid.StringMatching(`[a-z]([a-z0-9-]{0,250}[a-z0-9])?`)
	short := rapid.SampledFrom([]string{"mc", "other"})
	identities := rapid.Custom(func(t *rapid.T) Identity {
		if rapid.Bool().Draw(t, "long") {
			return Identity{name.Draw(t, "namespace"), name.Draw(t, "name")}
		}
		return Identity{short.Draw(t, "namespace"), short.Draw(t, "name")}
	})
	shapes := rapid.Custom(func(t *rapid.T) attempt.Shape {
		shape := runs(rapid.IntRange(0, 3).Draw(t, "containers"), int64(rapid.IntRange(0, 3).Draw(t, "replicas")))
		shape.Replicas.Unbounded = rapid.Bool().Draw(t, "unbounded")
		return shape
	})
	rapid.Check(t, func(t *rapid.T) {
		id := identities.Draw(t, "object")
		a := attempt.Attempt{
			Operation:   rapid.SampledFrom([]attempt.Operation{attempt.Create, attempt.Update, attempt.Delete, attempt.Connect, "?"}).Draw(t, "operation"),
			Subresource: rapid.SampledFrom([]string{"", "", "", "scale", "status", "ephemeralcontainers", "resize", "eviction"}).Draw(t, "subresource"),
			Workload:    attempt.Workload(rapid.IntRange(int(attempt.WorkloadNone), int(attempt.WorkloadAutoscaler)).Draw(t, "workload")),
			Namespace:   id.Namespace, Name: id.Name,
			ObjectUID:      types.UID(rapid.SampledFrom([]string{"u1", "u2", ""}).Draw(t, "uid")),
			New:            shapes.Draw(t, "new"),
			PodSpecChanged: rapid.Bool().Draw(t, "changed"),
			DryRun:         rapid.Bool().Draw(t, "dry"),
			User:           attempt.User{Name: rapid.SampledFrom([]string{"alice", UserStatefulSetController, UserControllerManager}).Draw(t, "user")},
		}
		if a.Operation == attempt.Update || a.Operation == attempt.Delete {
			a.Old = shapes.Draw(t, "old")
		}
		if a.Workload == attempt.WorkloadAutoscaler {
			// It runs nothing itself.
			a.New.Containers, a.Old.Containers = nil, nil
			a.New.Target = &attempt.Target{Group: "apps", Kind: "StatefulSet", Name: short.Draw(t, "target")}
		}
		if a.Operation == attempt.Delete && a.Workload == attempt.WorkloadPod {
			a.Removal = attempt.Removal{
				Forced: rapid.Bool().Draw(t, "forced"), Ended: rapid.Bool().Draw(t, "ended"), Node: rapid.SampledFrom([]string{"", "n1"}).Draw(t, "node"),
				NodeState: attempt.NodeState(rapid.IntRange(int(attempt.NodeUnknown), int(attempt.NodeOutOfServiceReady)).Draw(t, "node state")),
			}
		}
		if rapid.Bool().Draw(t, "owned") {
			a.Owner = &attempt.Owner{Kind: "StatefulSet", Name: short.Draw(t, "owner"), UID: types.UID(rapid.SampledFrom([]string{"u1", "u2"}).Draw(t, "owner uid"))}
		}
		p := Policy{Name: "p", Stored: rapid.Bool().Draw(t, "stored"), Action: Action(rapid.IntRange(0, 2).Draw(t, "action"))}
		if rapid.Bool().Draw(t, "designates") {
			designated := identities.Draw(t, "designated")
			p.Designated = &designated
		}
		h := Holder{State: State(rapid.IntRange(int(StateUnknown), int(StateReleasing)).Draw(t, "state"))}
		if !p.Stored && h.Held() {
			h.State = StateFree // The holder is written in the policy.
		}
		if h.Held() {
			h.Identity, h.UID = identities.Draw(t, "holder"), "u1"
		}

		d := Decide(a, p, h)
		switch d.Verdict {
		case VerdictUnknown, VerdictExists:
			t.Fatalf("verdict is %s", d.Verdict)
		case VerdictClaim:
			if a.Workload != attempt.WorkloadStatefulSet || a.DryRun || !p.Stored || a.New.Replicas.MoreThan(1) && a.Raises() {
				t.Fatalf("claims for what cannot hold the slot")
			}
			if h.State == StateUnknown || h.Held() && id != h.Identity {
				t.Fatalf("claims what another may hold")
			}
		}
		checkMessage(t, d)
		if p.Action != ActionDeny && p.Stored && !d.Verdict.Allowed() && d.Verdict != VerdictClaim {
			t.Fatalf("refused though the policy does not deny: %s", d.Message)
		}
		judges := a.Operation == attempt.Create || a.Operation == attempt.Update || a.Removal.Forced
		if !judges && d.Verdict != VerdictAllow {
			t.Fatalf("judged a %s", a.Operation)
		}
		// The sentence itself: a new workload that runs an instance goes through
		// only as the holder, or as the Pod that its StatefulSet's controller makes.
		if p.Action == ActionDeny && a.Operation == attempt.Create && a.Subresource == "" && a.New.Instance() && d.Verdict == VerdictAllow && !a.DryRun {
			switch {
			case !h.Held() || h.State == StateReleasing:
				t.Fatalf("allowed without a holder")
			case a.Workload == attempt.WorkloadStatefulSet && id == h.Identity && string(a.ObjectUID) == h.UID:
			case a.Workload == attempt.WorkloadPod && byStatefulSetController(a) && a.Name == h.Identity.Name+"-0" && string(a.Owner.UID) == h.UID:
			default:
				t.Fatalf("allowed beside the holder")
			}
		}
	})
}
