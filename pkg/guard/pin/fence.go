package pin

import (
	"fmt"
	"reflect"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/singleton"
)

// Where a token that is bound to a Pod says so.
const (
	extraPodName = "authentication.kubernetes.io/pod-name"
	extraPodUID  = "authentication.kubernetes.io/pod-uid"
)

const (
	// RuleFence is the rule of the fence, in messages and audit annotations.
	RuleFence = "fence"
	// WriterAnnotation is the key, after the policy's name and a slash, under which
	// the API server's audit log has the Pod that the fence did not accept:
	// <name>_<uid>, empty for a token of no Pod.
	WriterAnnotation = "writer"

	fieldWriter = "writer"
	varRule     = "rule"
	statusPart  = "status"

	leaseGroup    = "coordination.k8s.io"
	leaseResource = "leases"

	// requestUser is who writes.
	requestUser = "request.?userInfo.?username.orValue('')"
)

// Fence returns those of Objects that are the fence: its policies and bindings.
func Fence(o Options) []client.Object { return fence(o.withDefaults()) }

// fence keeps the writes of instances to one Pod, in three policies:
//
//   - fence judges every write of the service account, whatever it is about. It
//     matches all that is written in the cluster, so that it fails open where it
//     cannot be evaluated: while an API server that has just started does not
//     serve the SingletonPolicy yet, nobody's writes may stop.
//   - writer judges what the service account writes into the SingletonPolicy: a
//     Pod marks itself as the writer, and nothing else.
//   - lease keeps the singleton Lease from anybody but the holder's Pod.
//
// The last two are about one object each and fail closed.
func fence(o Options) []client.Object {
	everything := append([]admissionregistrationv1.OperationType{}, createUpdate...)
	everything = append(everything, admissionregistrationv1.Delete, admissionregistrationv1.Connect)
	ofPolicy := &admissionregistrationv1.ParamRef{Name: o.SingletonPolicy, ParameterNotFoundAction: ptr.To(admissionregistrationv1.AllowAction)}

	all := fencePolicy([]admissionregistrationv1.RuleWithOperations{rule(everything, "*", "*", "*/*")}, "params",
		append(fenceVariables("params"), fenceRule()...), byAccount("params"), "!("+isLease()+")", "!("+isPolicyStatus()+")")
	all.FailurePolicy = ptr.To(admissionregistrationv1.Ignore)

	writer := fencePolicy([]admissionregistrationv1.RuleWithOperations{
		rule(update, v1alpha1.GroupVersion.Group, "*", v1alpha1.SingletonPolicyResource+"/"+statusPart),
	}, "oldObject", append(fenceVariables("oldObject"), writerRule()...), byAccount("oldObject"))
	writer.ParamKind = nil

	// The deletion of a collection names nothing, so deletions are told by the old
	// object. Writes are told by the request: other Leases of this namespace, which
	// the control plane lives by, must not depend on what this policy reads.
	lease := fencePolicy([]admissionregistrationv1.RuleWithOperations{
		rule(createUpdate, leaseGroup, "*", leaseResource), rule(deletion, leaseGroup, "*", leaseResource),
	}, "params", append(fenceVariables("params"), leaseRule()...),
		fmt.Sprintf("(request.operation != 'DELETE' || oldObject.metadata.name == '%s')", singleton.DefaultName))
	lease.MatchConstraints.ResourceRules[0].ResourceNames = []string{singleton.DefaultName}
	lease.MatchConstraints.NamespaceSelector.MatchLabels = map[string]string{corev1.LabelMetadataName: singleton.DefaultNamespace}

	objects := bound(FencePolicyName, all, ofPolicy)
	objects = append(objects, bound(WriterPolicyName, writer, nil)...)
	return append(objects, bound(LeasePolicyName, lease, ofPolicy)...)
}

// fencePolicy is what the three share. policy is where the SingletonPolicy is. The
// conditions are one expression, so that what ends it for nearly every request of
// the cluster, the user's name, ends it at once.
func fencePolicy(rules []admissionregistrationv1.RuleWithOperations, policy string, vars []variable, conditions ...string) admissionregistrationv1.ValidatingAdmissionPolicySpec {
	conditions = append(conditions, fmt.Sprintf("%s.?spec.?fence.?action.orValue('%s') != '%[2]s'", policy, v1alpha1.FenceOff))
	spec := admissionregistrationv1.ValidatingAdmissionPolicySpec{
		ParamKind:        &admissionregistrationv1.ParamKind{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.SingletonPolicyKind},
		MatchConstraints: match(rules),
		MatchConditions:  []admissionregistrationv1.MatchCondition{{Name: "fenced", Expression: strings.Join(conditions, " && ")}},
		Validations: []admissionregistrationv1.Validation{{
			Expression:        fmt.Sprintf("%s.?spec.?fence.?action.orValue('') != '%s' || variables.%s == ''", policy, v1alpha1.FenceDeny, varRule),
			MessageExpression: "variables.message",
			Message:           "[" + RuleFence + "] only the active Pod may write this; kubectl get singletonpolicies says which",
			Reason:            ptr.To(metav1.StatusReasonForbidden),
		}},
		AuditAnnotations: []admissionregistrationv1.AuditAnnotation{
			{Key: AuditAnnotation, ValueExpression: "variables." + varRule},
			{Key: WriterAnnotation, ValueExpression: "variables." + varRule + " == '' ? '' : variables.tried"},
		},
		FailurePolicy: ptr.To(admissionregistrationv1.Fail),
	}
	for _, v := range vars {
		spec.Variables = append(spec.Variables, admissionregistrationv1.Variable{Name: v.name, Expression: v.expression})
	}
	return spec
}

// byAccount says whether the fenced service account writes.
func byAccount(policy string) string { return requestUser + " == " + account(policy) }

// account is the user name of the fenced service account.
func account(policy string) string {
	of := policy + ".?spec.?fence.?serviceAccount"
	return "'system:serviceaccount:' + " + of + ".?namespace.orValue('') + ':' + " + of + ".?name.orValue('')"
}

// named says whether a request is about the object of a name.
func named(namespace, name string) string {
	return "request.?namespace.orValue('') == " + namespace + " && request.?name.orValue('') == " + name
}

// ofLeases says whether a request is about a Lease.
func ofLeases() string {
	return fmt.Sprintf("request.resource.group == '%s' && request.resource.resource == '%s'", leaseGroup, leaseResource)
}

// isLease says whether a request is about what policy lease judges.
func isLease() string {
	return ofLeases() + " && " + named(quoted(singleton.DefaultNamespace), quoted(singleton.DefaultName))
}

// isPolicyStatus says whether a request is about what policy writer judges.
func isPolicyStatus() string {
	return fmt.Sprintf("request.resource.group == '%s' && request.resource.resource == '%s' && request.?subResource.orValue('') == '%s'",
		v1alpha1.GroupVersion.Group, v1alpha1.SingletonPolicyResource, statusPart)
}

// fenceVariables say which Pod a request comes from, and whether the slot is its.
func fenceVariables(policy string) []variable {
	vars := holderVariables()
	for i := range vars {
		vars[i].expression = strings.ReplaceAll(vars[i].expression, "params.", policy+".")
	}
	extra := func(key string) string {
		return fmt.Sprintf("request.?userInfo.?extra[?'%s'].orValue(['']).join(' ')", key)
	}
	replica := fmt.Sprintf("(variables.mode == '%s' && variables.pod.startsWith(h.name + '-')"+
		" && variables.pod.substring(size(h.name) + 1).matches('^(0|[1-9][0-9]*)$'))", v1alpha1.ModeLeaderElected)
	return append(vars,
		variable{"pod", extra(extraPodName)},
		variable{"uid", extra(extraPodUID)},
		variable{"bound", "variables.pod != '' && variables.uid != ''"},
		variable{"tried", fmt.Sprintf("variables.pod + '%s' + variables.uid", singleton.Identity{})},
		variable{"space", policy + ".?spec.?fence.?serviceAccount.?namespace.orValue('')"},
		variable{"pinned", "variables.bound && variables.slots.exists(s, [s.holder].exists(h, h.namespace == variables.space && (variables.pod == h.name + '-0' || " + replica + ")))"},
		// The Pods of what an exception lets run may write, too.
		variable{"excepted", policy + ".?status.?activeExceptions.orValue([]).exists(x, x.namespace == variables.space" +
			" && variables.bound && (variables.pod == x.name || variables.pod.startsWith(x.name + '-')))"},
		variable{"marked", policy + ".?status.?" + fieldWriter + ".orValue({})"},
		// In mode Sharded there are several writers, and the mark is of none of them.
		variable{"written", fmt.Sprintf("variables.mode != '%s' && has(variables.marked.uid)", v1alpha1.ModeSharded)},
		// The Lease of leader election is taken before the singleton one is, by a Pod
		// that is not the writer yet.
		variable{"electing", fmt.Sprintf("variables.mode == '%s' && %s && %s", v1alpha1.ModeLeaderElected, ofLeases(),
			named(policy+".?spec.?lease.?namespace.orValue(variables.space)", policy+".?spec.?lease.?name.orValue('"+decide.DefaultLease+"')"))},
		variable{"open", "size(variables.slots) == 0 || variables.excepted"},
	)
}

// fenceRule judges a write of the service account.
func fenceRule() []variable {
	return []variable{
		{varRule, pick("''",
			when{"variables.open", "''"},
			when{"!variables.pinned", quoted(RuleFence)},
			when{"variables.written && !variables.electing && variables.marked.uid != variables.uid", quoted(RuleFence)},
		)},
		message(
			when{"!variables.bound", "this token is of no Pod; only the Pod of ' + variables.who + ' may write with this service account"},
			when{"!variables.pinned", "Pod ' + variables.pod + ' is none of ' + variables.who + ', whose Pod alone may write"},
			when{"true", "this Pod is not the writer any more, ' + variables.marked.?name.orValue('') + '_' + variables.marked.uid + ' is"},
		),
	}
}

// writerRule judges what the service account writes into a policy's status: the
// Pod itself as the writer, or nobody in its own place.
func writerRule() []variable {
	var kept []string
	for _, field := range statusFields() {
		if field != fieldWriter {
			kept = append(kept, fmt.Sprintf("object.?status.?%[1]s == oldObject.?status.?%[1]s", field))
		}
	}
	own := func(object string) string {
		return fmt.Sprintf("[%s.?status.?%s].all(w, !w.hasValue() || w.value().namespace == variables.space && w.value().name == variables.pod && w.value().uid == variables.uid)", object, fieldWriter)
	}
	return []variable{
		{"kept", strings.Join(kept, " && ")},
		{"own", own("object") + fmt.Sprintf(" && (object.?status.?%[1]s.hasValue() || %[2]s)", fieldWriter, own("oldObject"))},
		{varRule, pick("''",
			when{"!variables.kept", quoted(RuleFence)},
			when{"!variables.own", quoted(RuleFence)},
			when{"variables.open || variables.pinned", "''"},
			when{"true", quoted(RuleFence)},
		)},
		message(
			when{"!variables.kept", "an instance writes status." + fieldWriter + " alone"},
			when{"!variables.own", "a Pod writes itself into status." + fieldWriter + ", and nobody else"},
			when{"true", "Pod ' + variables.pod + ' is none of ' + variables.who + ', whose Pod alone may be the writer"},
		),
	}
}

// leaseRule judges a write of the singleton Lease. When it may be taken over only
// the clock of who watches it can tell; who may take it, and for whom, stands here.
func leaseRule() []variable {
	holder := func(object string) string { return object + ".?spec.?holderIdentity.orValue('')" }
	return []variable{
		{"mine", requestUser + " == " + account("params")},
		{"before", "request.operation == 'CREATE' ? '' : " + holder("oldObject")},
		{"after", "request.operation == 'DELETE' ? '' : " + holder("object")},
		// For itself, or back from itself.
		{"own", "variables.after == variables.tried || variables.after == '' && variables.before in ['', variables.tried]"},
		{varRule, pick("''",
			when{"size(variables.slots) == 0", "''"},
			when{"!variables.mine", quoted(RuleFence)},
			when{"variables.excepted", "''"},
			when{"variables.pinned && variables.own", "''"},
			when{"true", quoted(RuleFence)},
		)},
		message(
			when{"!variables.mine", "this Lease is of the Pod of ' + variables.who + ' alone; to mend it, set spec.fence.action to Audit"},
			when{"!variables.pinned", "' + (variables.bound ? 'Pod ' + variables.pod + ' is none' : 'this token is not') + ' of ' + variables.who + ', whose Pod alone takes this Lease"},
			when{"true", "Pod ' + variables.tried + ' takes this Lease for itself, and for nobody else"},
		),
	}
}

// statusFields are the names of all fields of a policy's status: one that is left
// out could be written by an instance.
func statusFields() []string {
	var names []string
	status := reflect.TypeFor[v1alpha1.SingletonPolicyStatus]()
	for i := range status.NumField() {
		name, _, _ := strings.Cut(status.Field(i).Tag.Get("json"), ",")
		names = append(names, name)
	}
	return names
}

func quoted(text string) string { return "'" + text + "'" }
