package pin

import (
	"context"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/utils/ptr"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/test/corpus"
)

// staticValidators are the static policies as an API server compiles them, by name.
func staticValidators(t *testing.T, o Options) map[string]validating.Validator {
	t.Helper()
	objects, err := Static(o, v1alpha1.HolderReference{Namespace: "mc", Name: "metacontroller"})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]validating.Validator{}
	for _, object := range objects {
		if !strings.HasSuffix(object.GetName(), StaticSuffix) {
			t.Errorf("%q does not end in %s", object.GetName(), StaticSuffix)
		}
		switch object := object.(type) {
		case *admissionregistrationv1.ValidatingAdmissionPolicy:
			for _, v := range object.Spec.Variables {
				if rest := strings.ReplaceAll(v.Expression, "variables."+staticParams+".", ""); strings.Contains(rest, "params.") {
					t.Errorf("variable %s reads params: %s", v.Name, v.Expression)
				}
			}
			all[strings.TrimSuffix(object.Name, StaticSuffix)] = validator(t, object)
		case *admissionregistrationv1.ValidatingAdmissionPolicyBinding:
			if object.Spec.ParamRef != nil || object.Spec.PolicyName != object.Name {
				t.Errorf("got %+v", object.Spec)
			}
		}
	}
	return all
}

// ruled is the rule that a static policy says is broken, or "".
func ruled(t *testing.T, v validating.Validator, r request) string {
	t.Helper()
	result := v.Validate(context.Background(), r.resource, r.attributes(t), nil, nil, celconfig.RuntimeCELCostBudget, nil)
	for _, decision := range result.Decisions {
		if decision.Action == validating.ActionDeny {
			rule, _, _ := strings.Cut(strings.TrimPrefix(decision.Message, "["), "]")
			return rule
		}
	}
	return ""
}

// TestStaticRules judges without any object to read.
func TestStaticRules(t *testing.T) {
	all := staticValidators(t, Options{})
	sts, deploy := apps.WithResource("statefulsets"), apps.WithResource("deployments")
	mine := owner("StatefulSet", "metacontroller", "any")
	pinned := pod(meta("mc", "metacontroller-0", mine), image)
	for _, test := range []struct {
		why, policy string
		request     request
		rule        string
	}{
		{"a stranger", PolicyName, of(pod(meta("x", "p"), "nginx"), nil, podResource, "Pod", "someone"), ""},
		{"the pinned Pod, of whatever uid", PolicyName, of(pinned, nil, podResource, "Pod", StatefulSetController), ""},
		{"the pinned Pod by a person", PolicyName, of(pinned, nil, podResource, "Pod", "someone"), "pod-not-pinned"},
		{"E05: in the guard's own namespace", PolicyName, of(pod(meta("metacontroller-guard", "p"), image), nil, podResource, "Pod", "someone"), "pod-not-pinned"},
		{"of another StatefulSet", PolicyName, of(pod(meta("mc", "metacontroller-0", owner("StatefulSet", "other", "any")), image), nil, podResource, "Pod", StatefulSetController), "pod-not-pinned"},
		{"in another namespace", PolicyName, of(pod(meta("x", "metacontroller-0", mine), image), nil, podResource, "Pod", StatefulSetController), "pod-not-pinned"},
		{"another ordinal", PolicyName, of(pod(meta("mc", "metacontroller-1", mine), image), nil, podResource, "Pod", StatefulSetController), "pod-not-pinned"},
		{"two in it", PolicyName, of(pod(meta("mc", "metacontroller-0", mine), image, image), nil, podResource, "Pod", StatefulSetController), "two-in-one-pod"},
		{"became one", PolicyName, of(pod(meta("x", "p"), image), pod(meta("x", "p"), "nginx"), podResource, "Pod", "someone"), "became-instance"},
		{"the holder", WorkloadPolicyName, of(statefulSet(meta("mc", "metacontroller"), nil, image), nil, sts, "StatefulSet", "someone"), ""},
		{"the holder with two", WorkloadPolicyName, of(statefulSet(meta("mc", "metacontroller"), ptr.To[int32](2), image), nil, sts, "StatefulSet", "someone"), "scale-above-one"},
		{"the holder scaled", WorkloadPolicyName, scale("mc", "metacontroller", 1, 2), "scale-above-one"},
		{"another scaled", WorkloadPolicyName, scale("x", "metacontroller", 1, 2), ""},
		{"a second", WorkloadPolicyName, of(statefulSet(meta("x", "metacontroller"), nil, image), nil, sts, "StatefulSet", "someone"), "second-workload"},
		{"a Deployment", WorkloadPolicyName, of(deployment(meta("x", "d"), nil, image), nil, deploy, "Deployment", "someone"), "second-workload"},
		{"a harmless Deployment", WorkloadPolicyName, of(deployment(meta("x", "d"), nil, "nginx"), nil, deploy, "Deployment", "someone"), ""},
	} {
		if got := ruled(t, all[test.policy], test.request); got != test.rule {
			t.Errorf("%s: got rule %q, want %q", test.why, got, test.rule)
		}
	}
}

// TestStaticCorpus recognises what the others recognise.
func TestStaticCorpus(t *testing.T) {
	all := staticValidators(t, Options{})
	cases, err := corpus.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		r := requestFor(c)
		r.namespace = "ns"
		name := WorkloadPolicyName
		if c.Resource.Resource == "pods" {
			name = PolicyName
		}
		if got := ruled(t, all[name], r) != ""; got != c.Want.Instance() {
			t.Errorf("%s: %s: refused is %v, want %v", c.Name, c.Why, got, c.Want)
		}
	}
}

// TestStaticMatch writes any match in.
func TestStaticMatch(t *testing.T) {
	all := staticValidators(t, Options{Match: v1alpha1.Match{Images: []string{"docker.io/library/nginx"}, ExcludeImages: []string{"**/metacontroller/metacontroller"}}})
	for containerImage, want := range map[string]string{"nginx": "pod-not-pinned", image: "", "other": ""} {
		r := of(pod(meta("x", "p"), containerImage), nil, podResource, "Pod", "someone")
		if got := ruled(t, all[PolicyName], r); got != want {
			t.Errorf("%s: got rule %q, want %q", containerImage, got, want)
		}
	}
	if _, err := Static(Options{}, v1alpha1.HolderReference{Name: "x"}); err == nil {
		t.Error("a holder without namespace is rendered")
	}
	if _, err := StaticYAML(Options{Match: v1alpha1.Match{Images: []string{"["}}}, v1alpha1.HolderReference{Namespace: "a", Name: "b"}); err == nil {
		t.Error("a bad match is rendered")
	}
}
