package pin

import (
	"fmt"
	"strings"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

// Labels of every object.
var labels = map[string]string{
	"app.kubernetes.io/name":      "metacontroller-guard",
	"app.kubernetes.io/component": "admission",
}

// AuditAnnotation is the key, after the policy's name and a slash, under which
// the API server's audit log has the rule that a request broke.
const AuditAnnotation = "rule"

// Objects returns the admission objects, in the order in which they are to be
// applied: the CRD of SingletonPolicy must be served before, for the binding
// of a policy whose param kind is unknown makes the API server refuse every
// Pod. They are complete: what the API server would fill in by default is
// written out, so that an installed object can be compared field by field.
func Objects(o Options) []client.Object {
	o = o.withDefaults()
	objects := protect(o)
	objects = append(objects, policy(o, PolicyName, podRules(), podVariables(),
		// Nearly all Pods end here, after one look.
		admissionregistrationv1.MatchCondition{Name: "could-be-an-instance", Expression: anyCouldBe("object.spec")})...)
	objects = append(objects, policy(o, WorkloadPolicyName, workloadRules(), workloadVariables(), standBack())...)
	objects = append(objects, policy(o, ScalePolicyName, scaleRules(), scaleVariables(), raises())...)
	exclude(objects, ScalePolicyName, askedAboutScale(o))
	objects = append(objects, fence(o)...)
	return append(objects, webhooks(o))
}

func podRules() []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{
		rule(createUpdate, "", "v1", "pods"),
		rule(update, "", "v1", "pods/ephemeralcontainers"),
	}
}

func templateRules() []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{
		rule(createUpdate, "apps", "v1", "deployments", "statefulsets", "replicasets", "daemonsets"),
		rule(createUpdate, "", "v1", "replicationcontrollers"),
		rule(createUpdate, "batch", "v1", "jobs", "cronjobs"),
	}
}

func workloadRules() []admissionregistrationv1.RuleWithOperations {
	return append(templateRules(), rule(update, "apps", "v1", "statefulsets/scale"))
}

// scaleRules are all scale subresources.
func scaleRules() []admissionregistrationv1.RuleWithOperations {
	return []admissionregistrationv1.RuleWithOperations{rule(update, "*", "*", "*/scale")}
}

// askedAboutScale are those scale subresources about which the guard is asked.
// A scale request does not say what it would run, so whatever is listed here is
// asked about whoever it belongs to. That is why Deployments, which most
// clusters scale all day, are not: the scale of one that runs an instance is
// refused by the policy for scale, from what the guard has written down, and
// that of any other is nobody's business.
func askedAboutScale(o Options) []admissionregistrationv1.RuleWithOperations {
	rules := []admissionregistrationv1.RuleWithOperations{
		rule(update, "apps", "v1", "statefulsets/scale", "replicasets/scale"),
		rule(update, "", "v1", "replicationcontrollers/scale"),
	}
	for _, custom := range o.Match.Workloads {
		rules = append(rules, rule(update, custom.Group, "*", custom.Resource+"/scale"))
	}
	return rules
}

// exclude takes what rules match out of a policy.
func exclude(objects []client.Object, name string, rules []admissionregistrationv1.RuleWithOperations) {
	for _, object := range objects {
		p, ok := object.(*admissionregistrationv1.ValidatingAdmissionPolicy)
		if !ok || p.Name != name {
			continue
		}
		for _, r := range rules {
			p.Spec.MatchConstraints.ExcludeResourceRules = append(p.Spec.MatchConstraints.ExcludeResourceRules,
				admissionregistrationv1.NamedRuleWithOperations{RuleWithOperations: r})
		}
	}
}

var (
	createUpdate = []admissionregistrationv1.OperationType{admissionregistrationv1.Create, admissionregistrationv1.Update}
	update       = []admissionregistrationv1.OperationType{admissionregistrationv1.Update}
	deletion     = []admissionregistrationv1.OperationType{admissionregistrationv1.Delete}
)

func rule(operations []admissionregistrationv1.OperationType, group, version string, resources ...string) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: operations,
		Rule: admissionregistrationv1.Rule{
			APIGroups:   []string{group},
			APIVersions: []string{version},
			Resources:   resources,
			Scope:       ptr.To(admissionregistrationv1.AllScopes),
		},
	}
}

func match(rules []admissionregistrationv1.RuleWithOperations) *admissionregistrationv1.MatchResources {
	named := make([]admissionregistrationv1.NamedRuleWithOperations, len(rules))
	for i, r := range rules {
		named[i].RuleWithOperations = r
	}
	return &admissionregistrationv1.MatchResources{
		NamespaceSelector: &metav1.LabelSelector{},
		ObjectSelector:    &metav1.LabelSelector{},
		ResourceRules:     named,
		MatchPolicy:       ptr.To(admissionregistrationv1.Equivalent),
	}
}

// standBack leaves templates and scale to the webhook while the guard vouches
// for it by the condition Enforcing. The API server asks policies before
// webhooks, so a request that the policy refused would never reach the guard,
// and with it neither the claim nor the audit log. Nothing is let in by that:
// the webhook fails closed for workloads, and Pods are always judged here.
func standBack() admissionregistrationv1.MatchCondition {
	return admissionregistrationv1.MatchCondition{
		Name: "webhook-does-not-enforce",
		Expression: fmt.Sprintf("!params.?status.?conditions.orValue([]).exists(c, c.type == '%s' && c.status == '%s')",
			v1alpha1.ConditionEnforcing, metav1.ConditionTrue),
	}
}

// raises leaves out what scales to one, to none, or down.
func raises() admissionregistrationv1.MatchCondition {
	return admissionregistrationv1.MatchCondition{Name: "raises-above-one",
		Expression: "object.?spec.?replicas.orValue(0) > 1 && object.?spec.?replicas.orValue(0) > oldObject.?spec.?replicas.orValue(0)"}
}

func policy(o Options, name string, rules []admissionregistrationv1.RuleWithOperations, vars []variable, conditions ...admissionregistrationv1.MatchCondition) []client.Object {
	spec := admissionregistrationv1.ValidatingAdmissionPolicySpec{
		ParamKind: &admissionregistrationv1.ParamKind{
			APIVersion: v1alpha1.GroupVersion.String(),
			Kind:       v1alpha1.SingletonPolicyKind,
		},
		MatchConstraints: match(rules),
		// Warn and Audit are the webhook's to say.
		MatchConditions: append([]admissionregistrationv1.MatchCondition{{
			Name:       "denies",
			Expression: fmt.Sprintf("params.?spec.?validationActions.orValue(['%[1]s']).exists(a, a == '%[1]s')", v1alpha1.ActionDeny),
		}}, conditions...),
		Validations: []admissionregistrationv1.Validation{{
			Expression:        "variables.rule == ''",
			MessageExpression: "variables.message",
			Message:           "[pod-not-pinned] only one instance may run; kubectl get singletonpolicies says which",
			Reason:            ptr.To(metav1.StatusReasonForbidden),
		}},
		AuditAnnotations: []admissionregistrationv1.AuditAnnotation{{
			Key:             AuditAnnotation,
			ValueExpression: "variables.rule",
		}},
		FailurePolicy: ptr.To(admissionregistrationv1.Fail),
	}
	for _, v := range vars {
		spec.Variables = append(spec.Variables, admissionregistrationv1.Variable{Name: v.name, Expression: v.expression})
	}
	return bound(name, spec, &admissionregistrationv1.ParamRef{
		Name:                    o.SingletonPolicy,
		ParameterNotFoundAction: ptr.To(admissionregistrationv1.AllowAction),
	})
}

func bound(name string, spec admissionregistrationv1.ValidatingAdmissionPolicySpec, param *admissionregistrationv1.ParamRef) []client.Object {
	return []client.Object{
		&admissionregistrationv1.ValidatingAdmissionPolicy{
			TypeMeta:   typeMeta("ValidatingAdmissionPolicy"),
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec:       spec,
		},
		&admissionregistrationv1.ValidatingAdmissionPolicyBinding{
			TypeMeta:   typeMeta("ValidatingAdmissionPolicyBinding"),
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec: admissionregistrationv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName:        name,
				ParamRef:          param,
				ValidationActions: []admissionregistrationv1.ValidationAction{admissionregistrationv1.Deny},
			},
		},
	}
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: admissionregistrationv1.SchemeGroupVersion.String(), Kind: kind}
}

// protect keeps the SingletonPolicy and its CRD for as long as it is
// installed: without the one nothing is pinned, and without the other an API
// server that starts refuses every Pod. The names are compared in the old
// object, not by resourceNames, for a deletion of a whole collection names
// nothing. To uninstall, delete the bindings first, then the rest in any order.
func protect(o Options) []client.Object {
	crd := v1alpha1.SingletonPolicyResource + "." + v1alpha1.GroupVersion.Group
	spec := admissionregistrationv1.ValidatingAdmissionPolicySpec{
		MatchConstraints: match([]admissionregistrationv1.RuleWithOperations{
			rule(deletion, v1alpha1.GroupVersion.Group, "*", v1alpha1.SingletonPolicyResource),
			rule(deletion, "apiextensions.k8s.io", "v1", "customresourcedefinitions"),
		}),
		Validations: []admissionregistrationv1.Validation{{
			Expression: fmt.Sprintf("!(oldObject.?metadata.?name.orValue('') == (request.resource.resource == '%s' ? '%s' : '%s'))",
				v1alpha1.SingletonPolicyResource, o.SingletonPolicy, crd),
			Message: "[protected] delete the ValidatingAdmissionPolicyBindings metacontroller-guard-* first, " + ProtectName + " last",
			Reason:  ptr.To(metav1.StatusReasonForbidden),
		}},
		FailurePolicy: ptr.To(admissionregistrationv1.Fail),
	}
	return bound(ProtectName, spec, nil)
}

// webhooks asks the guard about what looks like an instance by o.Match.
//
//   - workloads fails closed: it is where the slot is claimed. Only objects
//     that run an instance, and whose spec the request sets or changes, are
//     asked about, so a guard that is down stops nobody else.
//   - pods fails open: the pin policy decides, the guard adds the record.
//   - suspects fails open: the guard only warns about them, and the policies,
//     which could only refuse, do not know them.
//   - scale fails open: a scale request does not say what it would run, so
//     with the guard down it would stop the scaling of anything; the pin policy
//     refuses the holder's, and any second Pod.
//   - autoscalers fails open: what an autoscaler asks for is judged when it scales.
//   - forced fails open: taking something away must work while the guard is down.
func webhooks(o Options) client.Object {
	w := literals(o.Match)
	forPods := w
	forPods.loose = false
	changed := admissionregistrationv1.MatchCondition{
		Name:       "sets-or-changes-spec",
		Expression: "request.operation == 'CREATE' || object.?spec.orValue({}) != oldObject.?spec.orValue({})",
	}
	rules := templateRules()
	podSpec := "(request.resource.resource == 'cronjobs' && request.resource.group == 'batch' ? object.?spec.?jobTemplate.?spec.?template.?spec.orValue({}) : "
	for _, custom := range o.Match.Workloads {
		rules = append(rules, rule(createUpdate, custom.Group, "*", custom.Resource))
		path := custom.PodTemplatePath
		if path == "" {
			path = "spec.template"
		}
		podSpec += fmt.Sprintf("request.resource.resource == %q && request.resource.group == %q ? object%s.?spec.orValue({}) : ",
			custom.Resource, custom.Group, optionalPath(path))
	}
	podSpec += "object.?spec.?template.?spec.orValue({}))"
	all := []admissionregistrationv1.ValidatingWebhook{
		webhook(o, WorkloadsWebhook, admissionregistrationv1.Fail, rules, changed,
			// A list of one, so that the spec is found once.
			admissionregistrationv1.MatchCondition{Name: "runs-an-instance", Expression: "[" + podSpec + "].exists(s, " + runsInstance("s", w) + ")"}),
		webhook(o, PodsWebhook, admissionregistrationv1.Ignore, podRules(), changed,
			admissionregistrationv1.MatchCondition{Name: "runs-an-instance", Expression: runsInstance("object.spec", forPods)}),
	}
	if condition := suspected("s", w); condition != "" {
		anySpec := "(request.resource.resource == 'pods' && request.resource.group == '' ? object.spec : " + podSpec + ")"
		all = append(all, webhook(o, SuspectsWebhook, admissionregistrationv1.Ignore, append(podRules(), rules...), changed,
			admissionregistrationv1.MatchCondition{Name: "has-flags-of-an-instance", Expression: "[" + anySpec + "].exists(s, " + condition + ")"}))
	}
	all = append(all,
		webhook(o, ScaleWebhook, admissionregistrationv1.Ignore, askedAboutScale(o),
			raises()),
		webhook(o, AutoscalersWebhook, admissionregistrationv1.Ignore,
			[]admissionregistrationv1.RuleWithOperations{autoscalerRule()}, changed,
			admissionregistrationv1.MatchCondition{Name: "scales-a-statefulset-above-one",
				Expression: "object.?spec.?maxReplicas.orValue(0) > 1 && object.?spec.?scaleTargetRef.?kind.orValue('') == 'StatefulSet'"}),
		webhook(o, ForcedWebhook, admissionregistrationv1.Ignore,
			[]admissionregistrationv1.RuleWithOperations{rule(deletion, "", "v1", "pods")},
			// The cheap ones first: the first that is false ends it.
			admissionregistrationv1.MatchCondition{Name: "has-no-grace",
				Expression: "request.options.?gracePeriodSeconds.orValue(oldObject.spec.?terminationGracePeriodSeconds.orValue(30)) == 0"},
			admissionregistrationv1.MatchCondition{Name: "may-run",
				Expression: "oldObject.spec.?nodeName.orValue('') != '' && !(oldObject.?status.?phase.orValue('') in ['Succeeded', 'Failed'])"},
			admissionregistrationv1.MatchCondition{Name: "runs-an-instance", Expression: runsInstance("oldObject.spec", forPods)}))
	return &admissionregistrationv1.ValidatingWebhookConfiguration{
		TypeMeta: typeMeta("ValidatingWebhookConfiguration"),
		ObjectMeta: metav1.ObjectMeta{
			Name:   WebhookConfigurationName,
			Labels: labels,
		},
		Webhooks: all,
	}
}

func autoscalerRule() admissionregistrationv1.RuleWithOperations {
	r := rule(createUpdate, "autoscaling", "v1", "horizontalpodautoscalers")
	r.APIVersions = []string{"v1", "v2"}
	return r
}

// optionalPath selects a field by a dot-separated path of which every step may
// be missing.
func optionalPath(path string) string {
	var b strings.Builder
	for _, step := range strings.Split(path, ".") {
		fmt.Fprintf(&b, "[?%q]", step)
	}
	return b.String()
}

func webhook(o Options, name string, failure admissionregistrationv1.FailurePolicyType, rules []admissionregistrationv1.RuleWithOperations, conditions ...admissionregistrationv1.MatchCondition) admissionregistrationv1.ValidatingWebhook {
	config := admissionregistrationv1.WebhookClientConfig{CABundle: o.CABundle}
	if o.URL != "" {
		config.URL = ptr.To(o.URL)
	} else {
		config.Service = &admissionregistrationv1.ServiceReference{
			Namespace: o.Namespace,
			Name:      o.Service,
			Port:      ptr.To(o.Port),
			Path:      ptr.To(o.Path),
		}
	}
	return admissionregistrationv1.ValidatingWebhook{
		Name:                    name,
		ClientConfig:            config,
		Rules:                   rules,
		FailurePolicy:           ptr.To(failure),
		MatchPolicy:             ptr.To(admissionregistrationv1.Equivalent),
		NamespaceSelector:       &metav1.LabelSelector{},
		ObjectSelector:          &metav1.LabelSelector{},
		SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNoneOnDryRun),
		TimeoutSeconds:          ptr.To(o.TimeoutSeconds),
		AdmissionReviewVersions: []string{"v1"},
		MatchConditions:         conditions,
	}
}
