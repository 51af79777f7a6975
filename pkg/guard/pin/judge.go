package pin

import (
	"fmt"
	"strings"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
)

// variable is one named CEL expression of a policy.
type variable struct{ name, expression string }

// MaxMessage is the most characters of a refusal's message, as for a warning.
const MaxMessage = 120

// holderVariables read the slot from the policy in params.
//
// holder has the fields of status.holder, none while nobody holds the slot;
// named is who may have a workload: the holder or, while there is none, the
// StatefulSet that spec.holder names.
func holderVariables() []variable {
	return []variable{
		{"holder", "params.?status.?holder.orValue({})"},
		{"held", "has(variables.holder.uid)"},
		{"named", "variables.held ? variables.holder : params.?spec.?holder.orValue({})"},
		{"mode", fmt.Sprintf("params.?spec.?mode.orValue('%s')", v1alpha1.ModeStrict)},
		// All who have a slot: one, or in mode Sharded one for each shard.
		{"slots", fmt.Sprintf("variables.mode == '%s' ? params.?status.?slots.orValue([]) : variables.held ? [{'holder': variables.holder}] : []", v1alpha1.ModeSharded)},
		{"who", "has(variables.named.name) ? variables.named.?namespace.orValue('') + '/' + variables.named.name : 'nobody'"},
		{"what", "params.metadata.name"},
	}
}

// objectVariables are what both policies ask of the object.
//
// excepted: status.activeExceptions decides, for CEL here has no clock; the
// guard takes out what has expired. An exception names a workload, and with it
// the Pods, ReplicaSets and Jobs that a controller makes for it. That an object
// says so itself, by an owner reference, counts only if a controller of the
// cluster writes it.
func objectVariables() []variable {
	child := "o.kind in ['ReplicaSet', 'Job'] && o.name.startsWith(x.name + '-') && !o.name.substring(size(x.name) + 1).contains('-')"
	return []variable{
		{"name", "object.?metadata.?name.orValue('')"},
		{"user", "request.?userInfo.?username.orValue('')"},
		{"owners", "object.?metadata.?ownerReferences.orValue([]).filter(o, o.?controller.orValue(false))"},
		{"byController", fmt.Sprintf("request.operation != 'CREATE' || variables.user.startsWith('%s') || variables.user == '%s'", controllers, ControllerManager)},
		{"excepted", "params.?status.?activeExceptions.orValue([]).exists(x, x.namespace == request.namespace && " +
			"(x.name == variables.name || (variables.byController && variables.owners.exists(o, o.name == x.name || (" + child + ")))))"},
	}
}

// podVariables judge a Pod; the last two are the rule that it breaks, or "",
// and the message.
func podVariables() []variable {
	vars := append(matchVariables(), holderVariables()...)
	vars = append(vars, objectVariables()...)
	replica := fmt.Sprintf("(variables.mode == '%s' && h.?elected.orValue(false) && variables.name.startsWith(h.name + '-')"+
		" && variables.name.substring(size(h.name) + 1).matches('^(0|[1-9][0-9]*)$'))", v1alpha1.ModeLeaderElected)
	pin := "variables.slots.filter(s, [s.holder].exists(h, h.?phase.orValue('') != 'Releasing'" +
		" && request.namespace == h.namespace && (variables.name == h.name + '-0' || " + replica + ")" +
		" && variables.owners.exists(o, o.kind == 'StatefulSet' && o.apiVersion == 'apps/v1' && " + sameOwner + ")" +
		fmt.Sprintf(" && (request.operation != 'CREATE' || variables.user in ['%s', '%s'])))", StatefulSetController, ControllerManager)
	vars = append(vars,
		variable{"instances", instances("object.spec", variables())},
		// Read only for an update, which has an old object.
		variable{"before", instances("oldObject.spec", variables())},
		// The slot that has room for the Pod, as a list of one or none.
		variable{"pin", pin},
		variable{"pinned", "size(variables.pin) > 0"},
	)
	vars = append(vars, modeVariables("object.spec")...)
	return append(vars,
		variable{"rule", pick("''",
			when{"size(variables.instances) == 0", "''"},
			when{"request.operation == 'UPDATE' && variables.instances.all(i, i in variables.before)", "''"},
			when{"variables.excepted", "''"},
			when{"variables.pinned && size(variables.instances) == 1", modeRule("variables.shard")},
			when{"size(variables.instances) > 1", "'two-in-one-pod'"},
			when{"request.operation == 'UPDATE' && size(variables.before) == 0", "'became-instance'"},
			when{"true", "'pod-not-pinned'"},
		)},
		message(
			when{"variables.rule == 'two-in-one-pod'", "string(size(variables.instances)) + ' containers would run ' + variables.what + ' (holder: ' + variables.who + '); leave one'"},
			when{"variables.rule == 'became-instance'", "this Pod would become ' + variables.what + ', and holder is ' + variables.who + '; leave it"},
			when{"variables.rule == 'leader-election'", "each Pod must elect its leader on ' + variables.lease + '; write its flags into args"},
			when{"variables.rule == 'shard-overlap'", "each shard keeps its own --target-label-selector; write it into args as one argument"},
			when{"variables.mode == 'Sharded'", "only the Pod of a shard that is held, made by its StatefulSet, runs ' + variables.what + '; use that one"},
			when{"!variables.held", "nobody holds the slot of ' + variables.what + '; run it as a StatefulSet with replicas: 1"},
			when{"variables.holder.?phase.orValue('') == 'Releasing'", "' + variables.who + ' gives up the slot of ' + variables.what + '; wait until it is free"},
			when{"true", "only ' + variables.who + '-0, made by its StatefulSet, runs ' + variables.what + '; use that one"},
		))
}

// modeVariables read what the modes other than Strict demand of an instance's
// flags, as attempt.Flags and decide do in Go: the program is started directly,
// each argument is one flag, and one that is there twice says the same twice.
func modeVariables(podSpec string) []variable {
	norm := "(a.startsWith('--') ? a.substring(1) : a)"
	command, args := typedList("c", "command"), typedList("c", "args")
	started := "(" + containersOf(podSpec) + ").filter(c, (" + typedString("c", "name") + " + ' ' + " + typedString("c", "image") + ") in variables.instances)"
	direct := "(size(" + command + ") == 0 || size(" + command + ") == 1 && variables.names.exists(n, " + command + "[0] == n || " + command + "[0].endsWith('/' + n)))"
	flag := func(name string) string { return "-" + name + "=" }
	value := func(name, value, absent string) string {
		return fmt.Sprintf("f.exists(a, a == '%[1]s' + %[2]s) && f.all(a, !a.startsWith('%[1]s') || a == '%[1]s' + %[2]s) || %[3]s && !f.exists(a, a.startsWith('%[1]s'))",
			flag(name), value, absent)
	}
	on := "['-" + attempt.FlagLeaderElection + "', '" + flag(attempt.FlagLeaderElection) + "true']"
	elects := "f.exists(a, a in " + on + ") && f.all(a, !a.startsWith('" + flag(attempt.FlagLeaderElection) + "') || a in " + on + ")" +
		" && (" + value(attempt.FlagLeaderElectionNamespace, "variables.leaseNamespace", "variables.leaseNamespace == request.namespace") + ")" +
		" && (" + value(attempt.FlagLeaderElectionID, "variables.leaseName", "variables.leaseName == '"+decide.DefaultLease+"'") + ")" +
		" && (" + value(attempt.FlagLeaderElectionLock, "'leases'", "true") + ")"
	return []variable{
		{"leaseNamespace", "params.?spec.?lease.?namespace.orValue(request.namespace)"},
		{"leaseName", "params.?spec.?lease.?name.orValue('" + decide.DefaultLease + "')"},
		{"lease", "variables.leaseNamespace + '/' + variables.leaseName"},
		// The flags of each instance, with one dash; of one whose flags cannot be
		// read, none.
		{"flags", "variables.mode == 'Strict' ? [] : " + started + ".map(c, " + direct + " && " + args + ".all(a, a.matches(" + raw(attempt.FlagPattern) + ")) ? " +
			args + ".map(a, " + norm + ") : [])"},
		{"elects", "variables.flags.all(f, " + elects + ")"},
		{"shard", "variables.flags.all(f, [variables.pin.map(s, s.?selector.orValue(''))].exists(l, size(l) > 0 && l[0] != '' && (" +
			value(attempt.FlagTargetLabelSelector, "l[0]", "false") + ")))"},
	}
}

// modeRule is the rule of the mode that an instance breaks, or "".
func modeRule(shard string) string {
	return fmt.Sprintf("variables.mode == '%s' && !variables.elects ? 'leader-election' : variables.mode == '%s' && !%s ? 'shard-overlap' : ''",
		v1alpha1.ModeLeaderElected, v1alpha1.ModeSharded, shard)
}

// workloadVariables judge a template, or a scale of the holder.
func workloadVariables() []variable {
	vars := append(matchVariables(), holderVariables()...)
	vars = append(vars, objectVariables()...)
	podSpec := func(object string) string {
		return "request.resource.resource == 'cronjobs' ? " + object + ".?spec.?jobTemplate.?spec.?template.?spec.orValue({}) : " +
			object + ".?spec.?template.?spec.orValue({})"
	}
	// What has no number of replicas runs as it likes; its kind is refused.
	replicas := func(object string) string {
		return "request.resource.resource == 'jobs' ? " + object + ".?spec.?parallelism.orValue(1) : " + object + ".?spec.?replicas.orValue(1)"
	}
	vars = append(vars,
		variable{"scale", "request.?subResource.orValue('') == 'scale'"},
		variable{"statefulSet", "request.resource.resource == 'statefulsets'"},
		variable{"podSpec", podSpec("object")},
		variable{"podSpecBefore", podSpec("oldObject")},
		variable{"instances", instances("variables.podSpec", variables())},
		variable{"before", instances("variables.podSpecBefore", variables())},
		variable{"replicas", replicas("object")},
		variable{"raised", "request.operation == 'CREATE' || variables.replicas > (" + replicas("oldObject") + ")"},
		variable{"mine", "variables.statefulSet && has(variables.named.name) && request.namespace == variables.named.namespace" +
			" && (variables.scale ? request.name : variables.name) == variables.named.name"},
		// In mode Sharded: the slots of the StatefulSet, at most one.
		variable{"pin", "variables.slots.filter(s, variables.statefulSet && s.holder.namespace == request.namespace && s.holder.name == (variables.scale ? request.name : variables.name))"},
		variable{"sharded", fmt.Sprintf("variables.mode == '%s'", v1alpha1.ModeSharded)},
		variable{"replicated", fmt.Sprintf("variables.mode == '%s'", v1alpha1.ModeLeaderElected)},
		variable{"above", "variables.replicas > 1 && variables.raised && !(variables.replicated && variables.statefulSet)"},
		variable{"start", "object.?spec.?ordinals.?start.orValue(0)"},
		variable{"renumbered", "variables.statefulSet && variables.start != (request.operation == 'CREATE' ? 0 : oldObject.?spec.?ordinals.?start.orValue(0))" +
			" && !(variables.start == 0 && variables.replicas == 0)"},
		variable{"noGrace", "variables.podSpec.?terminationGracePeriodSeconds.orValue(30) == 0" +
			" && (request.operation == 'CREATE' || variables.podSpecBefore.?terminationGracePeriodSeconds.orValue(30) != 0)"},
	)
	vars = append(vars, modeVariables("variables.podSpec")...)
	// A template keeps its flags, or has the right ones.
	kept := "request.operation == 'UPDATE' && size(variables.before) == size(variables.instances) && variables.podSpec == variables.podSpecBefore && !variables.raised"
	last := pick("''",
		when{"size(variables.instances) > 1", "'two-in-one-pod'"},
		when{"variables.above", "'scale-above-one'"},
		when{"variables.renumbered", "'ordinals'"},
		when{"variables.noGrace", "'zero-grace'"},
		when{kept, "''"},
		when{"true", "(" + modeRule("variables.shard") + ")"},
	)
	return append(vars,
		variable{"rule", pick("''",
			when{"variables.scale", "(variables.mine || size(variables.pin) > 0) && variables.above ? 'scale-above-one' : ''"},
			when{"size(variables.instances) == 0", "''"},
			when{"!variables.raised && !variables.renumbered && variables.podSpec == variables.podSpecBefore", "''"},
			when{"variables.excepted", "''"},
			when{"variables.statefulSet && !variables.sharded && (variables.mine || !has(variables.named.name))", last},
			// Whether selectors overlap only the guard can tell: without it no shard
			// is added, and those that there are are kept as they are.
			when{"variables.statefulSet && size(variables.pin) > 0", last},
			when{"variables.sharded && variables.statefulSet", "'shard-overlap'"},
			when{"request.operation == 'UPDATE' && size(variables.before) == 0", "'became-instance'"},
			when{"variables.held || variables.statefulSet", "'second-workload'"},
			when{"true", "'workload-kind'"},
		)},
		message(
			when{"variables.rule == 'scale-above-one'", "at most 1 replica of ' + variables.what + ' may run (holder: ' + variables.who + '); set replicas to 1"},
			when{"variables.rule == 'two-in-one-pod'", "string(size(variables.instances)) + ' containers would run ' + variables.what + ' (holder: ' + variables.who + '); leave one'"},
			when{"variables.rule == 'became-instance'", "this ' + request.kind.kind + ' would become ' + variables.what + ', and holder is ' + variables.who + '; leave it"},
			when{"variables.rule == 'ordinals'", "spec.ordinals.start may not change, for only ordinal 0 is pinned (holder: ' + variables.who + '); leave it out"},
			when{"variables.rule == 'zero-grace'", "terminationGracePeriodSeconds may not be 0 (holder: ' + variables.who + '); leave it out"},
			when{"variables.rule == 'leader-election'", "each Pod must elect its leader on ' + variables.lease + '; write its flags into args"},
			when{"variables.rule == 'shard-overlap'", "a shard keeps its --target-label-selector, and the guard must be asked about a new one; try again"},
			when{"variables.rule == 'second-workload'", "' + variables.who + ' runs ' + variables.what + ' and only one may; change that one instead"},
			when{"true", "a ' + request.kind.kind + ' cannot hold the slot of ' + variables.what + '; make it a StatefulSet with replicas: 1"},
		))
}

// scaleVariables judge the scale of what has made a Pod that should not be
// there: status.instances says of each such Pod which controller it is of. A
// ReplicaSet is named after its Deployment, with one more element.
func scaleVariables() []variable {
	vars := append(holderVariables(), variable{"excepted",
		"params.?status.?activeExceptions.orValue([]).exists(x, x.namespace == request.namespace && x.name == request.name)"})
	made := "(request.resource.resource == 'deployments' ? i.owner.startsWith('ReplicaSet/' + request.name + '-')" +
		" && !i.owner.substring(size('ReplicaSet/' + request.name + '-')).contains('-')" +
		" : i.owner.lowerAscii() in [request.resource.resource + '/' + request.name].map(r, r.replace('s/', '/', 1)))"
	return append(vars,
		variable{"violator", fmt.Sprintf("params.?status.?instances.orValue([]).exists(i, i.verdict == '%s' && i.namespace == request.namespace && has(i.owner) && %s)",
			v1alpha1.InstanceViolation, made)},
		variable{"rule", "!variables.excepted && variables.violator ? 'scale-above-one' : ''"},
		message(when{"true", "' + request.name + ' runs ' + variables.what + ', of which only one may run (holder: ' + variables.who + '); leave it"}),
	)
}

// when is one branch of pick.
type when struct{ condition, value string }

// pick is the value of the first branch whose condition is true.
func pick(otherwise string, branches ...when) string {
	var b strings.Builder
	for _, w := range branches {
		if w.condition == "true" {
			return b.String() + w.value
		}
		fmt.Fprintf(&b, "%s ? (%s) :\n", w.condition, w.value)
	}
	return b.String() + otherwise
}

// message is the variable with the refusal's message: the rule's id, then
// what is wrong, who has the slot and what to do, clipped to MaxMessage. The
// texts are the inside of a CEL string.
func message(branches ...when) variable {
	for i := range branches {
		if !strings.HasPrefix(branches[i].value, "string(") {
			branches[i].value = "'" + branches[i].value + "'"
		}
	}
	text := pick("''", append([]when{{"variables.rule == ''", "''"}}, branches...)...)
	return variable{"message", fmt.Sprintf("[%s].map(t, '[' + variables.rule + '] ' + t).map(t, size(t) > %d ? t.substring(0, %d) + '...' : t)[0]",
		text, MaxMessage, MaxMessage-3)}
}
