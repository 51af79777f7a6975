package pin

import (
	"fmt"
	"strings"
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
	pinned := "variables.held && variables.holder.?phase.orValue('') != 'Releasing'" +
		" && request.namespace == variables.holder.namespace && variables.name == variables.holder.name + '-0'" +
		" && variables.owners.exists(o, o.kind == 'StatefulSet' && o.apiVersion == 'apps/v1' && o.uid == variables.holder.uid)" +
		fmt.Sprintf(" && (request.operation != 'CREATE' || variables.user in ['%s', '%s'])", StatefulSetController, ControllerManager)
	return append(vars,
		variable{"instances", instances("object.spec", variables())},
		// Read only for an update, which has an old object.
		variable{"before", instances("oldObject.spec", variables())},
		variable{"pinned", pinned},
		variable{"rule", pick("''",
			when{"size(variables.instances) == 0", "''"},
			when{"request.operation == 'UPDATE' && variables.instances.all(i, i in variables.before)", "''"},
			when{"variables.excepted", "''"},
			when{"variables.pinned && size(variables.instances) == 1", "''"},
			when{"size(variables.instances) > 1", "'two-in-one-pod'"},
			when{"request.operation == 'UPDATE' && size(variables.before) == 0", "'became-instance'"},
			when{"true", "'pod-not-pinned'"},
		)},
		message(
			when{"variables.rule == 'two-in-one-pod'", "string(size(variables.instances)) + ' containers would run ' + variables.what + '; leave one'"},
			when{"variables.rule == 'became-instance'", "this Pod would become ' + variables.what + ', and holder is ' + variables.who + '; leave it"},
			when{"!variables.held", "nobody holds the slot of ' + variables.what + '; run it as a StatefulSet with replicas: 1"},
			when{"variables.holder.?phase.orValue('') == 'Releasing'", "' + variables.who + ' gives up the slot of ' + variables.what + '; wait until it is free"},
			when{"true", "only ' + variables.who + '-0, made by its StatefulSet, runs ' + variables.what + '; use that one"},
		))
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
	return append(vars,
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
		variable{"rule", pick("''",
			when{"variables.scale", "variables.mine && variables.replicas > 1 && variables.raised ? 'scale-above-one' : ''"},
			when{"size(variables.instances) == 0", "''"},
			when{"!variables.raised && variables.podSpec == variables.podSpecBefore", "''"},
			when{"variables.excepted", "''"},
			when{"variables.statefulSet && (variables.mine || !has(variables.named.name))",
				"size(variables.instances) > 1 ? 'two-in-one-pod' : variables.replicas > 1 && variables.raised ? 'scale-above-one' : ''"},
			when{"request.operation == 'UPDATE' && size(variables.before) == 0", "'became-instance'"},
			when{"variables.held || variables.statefulSet", "'second-workload'"},
			when{"true", "'workload-kind'"},
		)},
		message(
			when{"variables.rule == 'scale-above-one'", "at most 1 replica of ' + variables.what + ' may run (holder: ' + variables.who + '); set replicas to 1"},
			when{"variables.rule == 'two-in-one-pod'", "string(size(variables.instances)) + ' containers would run ' + variables.what + '; leave one'"},
			when{"variables.rule == 'became-instance'", "this ' + request.kind.kind + ' would become ' + variables.what + ', and holder is ' + variables.who + '; leave it"},
			when{"variables.rule == 'second-workload'", "' + variables.who + ' runs ' + variables.what + ' and only one may; change that one instead"},
			when{"true", "a ' + request.kind.kind + ' cannot hold the slot of ' + variables.what + '; make it a StatefulSet with replicas: 1"},
		))
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
