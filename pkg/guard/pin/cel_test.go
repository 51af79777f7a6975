package pin

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"

	celgo "github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types/ref"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"pgregory.net/rapid"
	"sigs.k8s.io/yaml"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

// The expressions are compiled and run by the API server's own packages, as
// its plugins do it, with its cost limits.

// request is an admission request.
type request struct {
	operation   admission.Operation
	resource    schema.GroupVersionResource
	kind        schema.GroupVersionKind
	subresource string
	object, old runtime.Object
	options     runtime.Object
	user        string
	name        string
	namespace   string
}

func (r request) attributes(t tester) *admission.VersionedAttributes {
	t.Helper()
	for _, object := range []runtime.Object{r.object, r.old} {
		if object != nil {
			object.GetObjectKind().SetGroupVersionKind(r.kind)
		}
	}
	attributes := admission.NewAttributesRecord(r.object, r.old, r.kind, r.namespace, r.name, r.resource, r.subresource,
		r.operation, r.options, false, &user.DefaultInfo{Name: r.user})
	v, err := admission.NewVersionedAttributes(attributes, r.kind, nil)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// expression is one CEL expression.
type expression struct {
	text  string
	types []*celgo.Type
}

func (e expression) GetExpression() string      { return e.text }
func (e expression) ReturnTypes() []*celgo.Type { return e.types }

func environmentSet() *environment.EnvSet {
	return environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
}

// evaluator evaluates a variable of a policy, or a match condition.
type evaluator struct {
	condition cel.ConditionEvaluator
	params    bool
}

func newVariableEvaluator(t testing.TB, vars []variable, text string) evaluator {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environmentSet())
	if err != nil {
		t.Fatal(err)
	}
	options := cel.OptionalVariableDeclarations{HasParams: true, HasAuthorizer: true}
	for _, v := range vars {
		result := compiler.CompileAndStoreVariable(&validating.Variable{Name: v.name, Expression: v.expression}, options, environment.NewExpressions)
		if result.Error != nil {
			t.Fatalf("variable %s: %v\n%s", v.name, result.Error, v.expression)
		}
	}
	condition := compiler.CompileCondition([]cel.ExpressionAccessor{expression{text, []*celgo.Type{celgo.AnyType}}}, options, environment.NewExpressions)
	return evaluator{condition: condition, params: true}
}

func newConditionEvaluator(t testing.TB, text string) evaluator {
	t.Helper()
	return evaluator{condition: cel.NewConditionCompiler(environmentSet()).CompileCondition(
		[]cel.ExpressionAccessor{expression{text, []*celgo.Type{celgo.BoolType}}}, cel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.NewExpressions)}
}

// evaluate returns the value and its cost.
func (e evaluator) evaluate(t tester, r request, policy *v1alpha1.SingletonPolicy) (ref.Val, int64, error) {
	t.Helper()
	attributes := r.attributes(t)
	var bindings cel.OptionalVariableBindings
	if e.params {
		bindings.VersionedParams = unstructuredOf(t, policy)
	}
	results, rest, err := e.condition.ForInput(context.Background(), attributes,
		cel.CreateAdmissionRequest(attributes.Attributes, metav1.GroupVersionResource(r.resource), metav1.GroupVersionKind(r.kind)),
		bindings, nil, celconfig.RuntimeCELCostBudget)
	if err != nil {
		return nil, 0, err
	}
	if results[0].Error != nil {
		return nil, 0, results[0].Error
	}
	return results[0].EvalResult, celconfig.RuntimeCELCostBudget - rest, nil
}

// validator is a policy as the API server compiles it.
func validator(t testing.TB, policy *admissionregistrationv1.ValidatingAdmissionPolicy) validating.Validator {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environmentSet())
	if err != nil {
		t.Fatal(err)
	}
	spec := policy.Spec
	options := cel.OptionalVariableDeclarations{HasParams: spec.ParamKind != nil, HasAuthorizer: true}
	for _, v := range spec.Variables {
		result := compiler.CompileAndStoreVariable(&validating.Variable{Name: v.Name, Expression: v.Expression}, options, environment.NewExpressions)
		if result.Error != nil {
			t.Fatalf("variable %s: %v\n%s", v.Name, result.Error, v.Expression)
		}
	}
	compile := func(options cel.OptionalVariableDeclarations, accessors ...cel.ExpressionAccessor) cel.ConditionEvaluator {
		condition := compiler.CompileCondition(accessors, options, environment.NewExpressions)
		for _, err := range condition.CompilationErrors() {
			t.Fatal(err)
		}
		return condition
	}
	var matcher matchconditions.Matcher
	if len(spec.MatchConditions) > 0 {
		var accessors []cel.ExpressionAccessor
		for i := range spec.MatchConditions {
			accessors = append(accessors, (*matchconditions.MatchCondition)(&spec.MatchConditions[i]))
		}
		matcher = matchconditions.NewMatcher(compile(options, accessors...), spec.FailurePolicy, "policy", "validate", policy.Name)
	}
	var validations, messages, annotations []cel.ExpressionAccessor
	for _, v := range spec.Validations {
		validations = append(validations, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message, Reason: v.Reason})
		if v.MessageExpression == "" {
			messages = append(messages, nil)
			continue
		}
		messages = append(messages, &validating.MessageExpressionCondition{MessageExpression: v.MessageExpression})
	}
	for _, a := range spec.AuditAnnotations {
		annotations = append(annotations, &validating.AuditAnnotationCondition{Key: a.Key, ValueExpression: a.ValueExpression})
	}
	withoutAuthorizer := options
	withoutAuthorizer.HasAuthorizer = false
	return validating.NewValidator(compile(options, validations...), matcher, compile(options, annotations...),
		compile(withoutAuthorizer, messages...), spec.FailurePolicy, nil)
}

func unstructuredOf(t tester, policy *v1alpha1.SingletonPolicy) runtime.Object {
	t.Helper()
	data, err := yaml.Marshal(policy)
	if err != nil {
		t.Fatal(err)
	}
	return fromYAML(t, string(data))
}

func fromYAML(t tester, text string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
		t.Fatal(err)
	}
	return object
}

var (
	podResource = schema.GroupVersionResource{Version: "v1", Resource: "pods"}
	podKind     = schema.GroupVersionKind{Version: "v1", Kind: "Pod"}
)

func createPod(pod *corev1.Pod) request {
	pod.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	return request{operation: admission.Create, resource: podResource, kind: podKind, object: pod, name: pod.Name, namespace: pod.Namespace, user: "someone"}
}

func policyWith(match v1alpha1.Match) *v1alpha1.SingletonPolicy {
	return &v1alpha1.SingletonPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: v1alpha1.SingletonPolicyKind},
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DefaultPolicyName},
		Spec:       v1alpha1.SingletonPolicySpec{Match: match, ValidationActions: []v1alpha1.ValidationAction{v1alpha1.ActionDeny}},
	}
}

// judges are the three ways to recognise: Go, CEL with params, CEL with the
// match written in.
type judges struct {
	signature       *identify.Signature
	policy          *v1alpha1.SingletonPolicy
	params, written evaluator
}

func newJudges(t testing.TB, match v1alpha1.Match) judges {
	t.Helper()
	signature, err := identify.Compile(match)
	if err != nil {
		t.Fatal(err)
	}
	return judges{
		signature: signature,
		policy:    policyWith(match),
		params:    newVariableEvaluator(t, podVariables(), "variables.instances"),
		written:   newConditionEvaluator(t, runsInstance("object.spec", literals(match))),
	}
}

// tester is what testing.TB and rapid.T share.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// compare fails unless all agree on which containers are instances.
func (j judges) compare(t tester, spec corev1.PodSpec) (instances int) {
	t.Helper()
	want := []string{}
	for _, c := range j.signature.Containers(&spec) {
		want = append(want, c.Name+" "+c.Image)
	}
	r := createPod(&corev1.Pod{Spec: spec})
	value, _, err := j.params.evaluate(t, r, j.policy)
	if err != nil {
		t.Fatalf("cannot evaluate: %v", err)
	}
	got := value.Value().([]ref.Val)
	same := len(got) == len(want)
	for i := range got {
		same = same && got[i].Value().(string) == want[i]
	}
	if !same {
		t.Fatalf("CEL finds the instances %v, Go %q in %+v", got, want, spec)
	}
	written, _, err := j.written.evaluate(t, r, nil)
	if err != nil {
		t.Fatalf("cannot evaluate the match condition: %v", err)
	}
	if written.Value().(bool) != (len(want) > 0) {
		t.Fatalf("the match condition says %v, Go %q", written.Value(), want)
	}
	return len(want)
}

type corpusCase struct {
	Why  string `json:"why"`
	Want string `json:"want"`
	corev1.Container
}

func corpus(t testing.TB) []corpusCase {
	t.Helper()
	data, err := os.ReadFile("../identify/testdata/corpus.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var cases []corpusCase
	if err := yaml.UnmarshalStrict(data, &cases); err != nil {
		t.Fatal(err)
	}
	return cases
}

func TestCorpusInCEL(t *testing.T) {
	j := newJudges(t, v1alpha1.DefaultMatch())
	for _, c := range corpus(t) {
		t.Run(c.Why, func(t *testing.T) {
			// In all lists at once.
			instances := j.compare(t, corev1.PodSpec{
				Containers:          []corev1.Container{c.Container},
				InitContainers:      []corev1.Container{c.Container, c.Container},
				EphemeralContainers: []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon(c.Container)}},
			})
			want := 4
			if c.Want == "None" {
				want = 0
			}
			if instances != want {
				t.Errorf("found %d instances, want %d", instances, want)
			}
		})
	}
}

func TestGeneratedPodsInCEL(t *testing.T) {
	matches := []v1alpha1.Match{
		v1alpha1.DefaultMatch(),
		{Commands: []string{"metacontroller", "hook", "a.b"}},
		{Images: []string{"ghcr.io/*/b", "**/a/meta*", "docker.io/library/nginx"}},
		{Images: []string{"**/metacontroller/*"}, Commands: []string{"metacontroller"}, ExcludeImages: []string{"**/metacontroller/hook", "localhost/*/*"}},
	}
	var all []judges
	for _, m := range matches {
		all = append(all, newJudges(t, m))
	}
	cases := corpus(t)
	rapid.Check(t, func(rt *rapid.T) {
		// Pieces of the corpus, put together anew, with odd text between.
		var tokens []string
		images := []string{"metacontroller/hook:v1", "localhost:1/metacontroller/a", "ghcr.io/x/b", "nginx", "a/metax"}
		for range 8 {
			c := rapid.SampledFrom(cases).Draw(rt, "case")
			tokens = append(append(tokens, c.Command...), c.Args...)
			images = append(images, c.Image)
		}
		tokens = append(tokens, "a.b", "axb", "/x/hook", "$(A)", "$(A", "$$(A)", "$$", "$(B)x$(A)", ")", "", "exec $(B)", "sh", "-c", "é;metacontroller")
		token := rapid.OneOf(rapid.SampledFrom(tokens), rapid.StringMatching(`[-a-z$()"' ;&|=/]{0,8}`))
		var spec corev1.PodSpec
		for i := range rapid.IntRange(0, 3).Draw(rt, "containers") {
			c := corev1.Container{
				Name:    fmt.Sprint("c", i),
				Image:   rapid.OneOf(rapid.SampledFrom(images), rapid.StringMatching(`[A-Za-z.:/@]{0,12}`)).Draw(rt, "image"),
				Command: rapid.SliceOfN(token, 0, 4).Draw(rt, "command"),
				Args:    rapid.SliceOfN(token, 0, 4).Draw(rt, "args"),
			}
			for range rapid.IntRange(0, 3).Draw(rt, "variables") {
				e := corev1.EnvVar{Name: rapid.SampledFrom([]string{"A", "B", ""}).Draw(rt, "variable"), Value: token.Draw(rt, "value")}
				if rapid.IntRange(0, 5).Draw(rt, "from") == 0 {
					e.ValueFrom = &corev1.EnvVarSource{}
				}
				c.Env = append(c.Env, e)
			}
			spec.Containers = append(spec.Containers, c)
		}
		rapid.SampledFrom(all).Draw(rt, "match").compare(rt, spec)
	})
}

// TestNoContainers has lists that are null, as a nil list is in a Pod's JSON.
func TestNoContainers(t *testing.T) {
	j := newJudges(t, v1alpha1.DefaultMatch())
	j.compare(t, corev1.PodSpec{})
	if got := j.compare(t, corev1.PodSpec{InitContainers: []corev1.Container{{Name: "a", Image: "metacontroller/metacontroller"}}}); got != 1 {
		t.Errorf("found %d instances, want 1", got)
	}
}

func TestLimitOfExpansionInCEL(t *testing.T) {
	j := newJudges(t, v1alpha1.DefaultMatch())
	for _, c := range []struct {
		why       string
		a, b      string
		variables int
		references,
		want int
	}{
		{"few", "meta", "controller", 10, 10, 1},
		{"at the limit", "meta", "controller", 20, 18, 1},
		{"over the limit, the name is split", "meta", "controller", 100, 50, 0},
		{"over the limit, a variable has the name", "", "metacontroller", 100, 50, 1},
	} {
		t.Run(c.why, func(t *testing.T) {
			container := corev1.Container{Name: "c", Image: "x", Command: []string{"$(A)$(B)"}, Env: []corev1.EnvVar{{Name: "A", Value: c.a}, {Name: "B", Value: c.b}}}
			for i := range c.variables - 2 {
				container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprint("V", i), Value: "v"})
			}
			for i := range c.references {
				container.Args = append(container.Args, fmt.Sprintf("$(V%d)", i))
			}
			if got := j.compare(t, corev1.PodSpec{Containers: []corev1.Container{container}}); got != c.want {
				t.Errorf("got %d instances, want %d", got, c.want)
			}
		})
	}
}

// TestCost keeps what judging costs below the API server's limits for objects
// that people make, and shows that a hostile one is refused.
func TestCost(t *testing.T) {
	pod := func(containers, args int, arg string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}}
		for i := range containers {
			c := corev1.Container{Name: fmt.Sprint("c", i), Image: "registry.example.com:5000/team/app:v1.2.3", Command: []string{"/bin/sh", "-c"}}
			for range args {
				c.Args = append(c.Args, arg)
			}
			for v := range 20 {
				c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprint("VARIABLE_", v), Value: "value"})
			}
			p.Spec.Containers = append(p.Spec.Containers, c)
		}
		return p
	}
	j := newJudges(t, v1alpha1.DefaultMatch())
	for _, c := range []struct {
		why  string
		pod  *corev1.Pod
		most int64
	}{
		{"an ordinary Pod", pod(1, 5, "--some-flag=some-value"), 3_000},
		{"references to variables", pod(3, 5, "--flag=$(VARIABLE_3)"), 10_000},
		{"50 containers with 50 args", pod(50, 50, "--some-flag=some-value"), 100_000},
		{"50 containers with 50 references to variables", pod(50, 50, "--flag=$(VARIABLE_3)"), 500_000},
		{"one script of 20 kB that mentions it", pod(1, 1, strings.Repeat("kubectl get sts metacontroller; ", 640)), 1_000_000},
	} {
		t.Run(c.why, func(t *testing.T) {
			_, cost, err := j.params.evaluate(t, createPod(c.pod), j.policy)
			if err != nil {
				t.Fatal(err)
			}
			_, written, err := j.written.evaluate(t, createPod(c.pod), nil)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("cost %d with params, %d written in", cost, written)
			if cost > c.most || written > c.most {
				t.Errorf("costs %d and %d, at most %d was agreed", cost, written, c.most)
			}
		})
	}
	// 50 containers with 50 args that each mention the program.
	hostile := pod(50, 50, "kubectl get sts metacontroller")
	_, _, err := j.params.evaluate(t, createPod(hostile), j.policy)
	if err == nil {
		t.Error("the hostile Pod is within the cost limit; test with a larger one")
	} else {
		t.Logf("hostile Pod: %v", err)
	}
	result := validate(t, PolicyName, createPod(hostile), j.policy)
	if result == nil || result.Evaluation != validating.EvalError {
		t.Errorf("the hostile Pod is not refused for its cost: %+v", result)
	}
}

// validators are the policies, compiled once. Tests here do not run in parallel.
var validators = map[string]validating.Validator{}

// validate runs the policy of that name; nil means that it lets the request through.
func validate(t testing.TB, name string, r request, policy *v1alpha1.SingletonPolicy) *validating.PolicyDecision {
	t.Helper()
	for _, object := range Objects(Options{}) {
		p, ok := object.(*admissionregistrationv1.ValidatingAdmissionPolicy)
		if !ok || p.Name != name {
			continue
		}
		if validators[name] == nil {
			validators[name] = validator(t, p)
		}
		result := validators[name].Validate(context.Background(), r.resource, r.attributes(t), unstructuredOf(t, policy), nil, celconfig.RuntimeCELCostBudget, nil)
		for i := range result.Decisions {
			if result.Decisions[i].Action == validating.ActionDeny {
				return &result.Decisions[i]
			}
		}
		return nil
	}
	t.Fatalf("no policy %s", name)
	return nil
}
