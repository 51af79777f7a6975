package pin

import (
	"context"
	"fmt"
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
	"github.com/metacontroller-solo/solo/test/corpus"
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
	// suspects is the match condition for suspects; its zero value where there
	// can be none.
	suspects evaluator
}

func newJudges(t testing.TB, match v1alpha1.Match) judges {
	t.Helper()
	signature, err := identify.Compile(match)
	if err != nil {
		t.Fatal(err)
	}
	j := judges{
		signature: signature,
		policy:    policyWith(match),
		params:    newVariableEvaluator(t, podVariables(), "variables.instances"),
		written:   newConditionEvaluator(t, runsInstance("object.spec", literals(match))),
	}
	if condition := suspected("object.spec", literals(match)); condition != "" {
		j.suspects = newConditionEvaluator(t, condition)
	}
	return j
}

// tester is what testing.TB and rapid.T share.
type tester interface {
	Helper()
	Fatal(args ...any)
	Fatalf(format string, args ...any)
}

// compare fails unless all agree on which containers are instances, and whether
// the guard is asked about suspects. The policies know no suspects: they could
// only refuse them.
func (j judges) compare(t tester, spec corev1.PodSpec) (instances int) {
	t.Helper()
	want := []string{}
	found := j.signature.Find(&spec)
	for _, c := range found.Instances {
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
	asked := false
	if j.suspects.condition != nil {
		value, _, err := j.suspects.evaluate(t, r, nil)
		if err != nil {
			t.Fatalf("cannot evaluate the match condition for suspects: %v", err)
		}
		asked = value.Value().(bool)
	}
	if asked != (len(want) == 0 && len(found.Suspects) > 0) {
		t.Fatalf("the match condition for suspects says %v, Go %+v in %+v", asked, found, spec)
	}
	return len(want)
}

// asks says whether the API server would ask a webhook of the rendered
// configuration about a request.
type asks map[string][]evaluator

func newAsks(t testing.TB, o Options) asks {
	t.Helper()
	all := asks{}
	for _, object := range Objects(o) {
		configuration, ok := object.(*admissionregistrationv1.ValidatingWebhookConfiguration)
		if !ok {
			continue
		}
		for _, w := range configuration.Webhooks {
			for _, c := range w.MatchConditions {
				all[w.Name] = append(all[w.Name], newConditionEvaluator(t, c.Expression))
			}
		}
	}
	return all
}

// about is true too where a condition cannot be evaluated and none is false: a
// webhook that fails closed refuses then.
func (a asks) about(t tester, webhook string, r request) (asked bool, err error) {
	t.Helper()
	for _, condition := range a[webhook] {
		value, _, evaluation := condition.evaluate(t, r, nil)
		switch {
		case evaluation != nil:
			err = evaluation
		case !value.Value().(bool):
			return false, nil
		}
	}
	return true, err
}

// requestFor is the request that creates the object of a case.
func requestFor(c corpus.Case) request {
	object := c.Object.DeepCopyObject()
	return request{operation: admission.Create, resource: c.Resource, kind: object.GetObjectKind().GroupVersionKind(), object: object,
		name: c.Name, namespace: "ns", user: "someone"}
}

func cases(t testing.TB) []corpus.Case {
	t.Helper()
	all, err := corpus.All()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestCorpusInCEL puts every manifest, as the kind that it is, to the policy
// that judges it and to the conditions of the webhooks.
func TestCorpusInCEL(t *testing.T) {
	j := newJudges(t, v1alpha1.DefaultMatch())
	workloads := newVariableEvaluator(t, workloadVariables(), "size(variables.instances)")
	asks := newAsks(t, Options{})
	for _, c := range cases(t) {
		if got := j.compare(t, *c.Spec.DeepCopy()); got > 1 || (got == 1) != c.Want.Instance() {
			t.Errorf("%s: %s: found %d instances, want %s", c.Name, c.Why, got, c.Want)
		}
		r, webhook := requestFor(c), PodsWebhook
		if c.Resource != podResource {
			webhook = WorkloadsWebhook
			value, _, err := workloads.evaluate(t, r, j.policy)
			if err != nil {
				t.Fatalf("%s: %v", c.Name, err)
			}
			if got := value.Value().(int64) == 1; got != c.Want.Instance() {
				t.Errorf("%s: %s: the policy for workloads finds an instance: %v, want %s", c.Name, c.Why, got, c.Want)
			}
		}
		for name, want := range map[string]bool{webhook: c.Want.Instance(), SuspectsWebhook: c.Want == corpus.Flags} {
			if asked, err := asks.about(t, name, r); asked != want || err != nil {
				t.Errorf("%s: %s: %s is asked: %v (%v), want %s", c.Name, c.Why, name, asked, err, c.Want)
			}
		}
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
	cases := cases(t)
	rapid.Check(t, func(rt *rapid.T) {
		// Pieces of the corpus, put together anew, with odd text between.
		var tokens []string
		images := []string{"metacontroller/hook:v1", "localhost:1/metacontroller/a", "ghcr.io/x/b", "nginx", "a/metax"}
		for range 8 {
			c := container(rapid.SampledFrom(cases).Draw(rt, "case"))
			tokens = append(append(tokens, c.Command...), c.Args...)
			images = append(images, c.Image)
		}
		tokens = append(tokens, "a.b", "axb", "/x/hook", "$(A)", "$(A", "$$(A)", "$$", "$(B)x$(A)", ")", "", "exec $(B)", "sh", "-c", "é;metacontroller", "--client-go-qps=1", "-discovery-interval", "x --zap-devel")
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

// container is the one of a case that it is about.
func container(c corpus.Case) corev1.Container {
	switch {
	case len(c.Spec.EphemeralContainers) > 0:
		return corev1.Container(c.Spec.EphemeralContainers[0].EphemeralContainerCommon)
	case len(c.Spec.InitContainers) > 0:
		return c.Spec.InitContainers[0]
	default:
		return c.Spec.Containers[0]
	}
}

// FuzzIdentify looks for a container on which Go and the API server do not agree.
func FuzzIdentify(f *testing.F) {
	all, err := corpus.Handwritten()
	if err != nil {
		f.Fatal(err)
	}
	for _, c := range all {
		one := container(c)
		name, value := "A", "x"
		for _, e := range one.Env {
			name, value = e.Name, e.Value
		}
		f.Add(one.Image, strings.Join(one.Command, "\n"), strings.Join(one.Args, "\n"), name, value, "$(A)")
	}
	j := newJudges(f, v1alpha1.DefaultMatch())
	f.Fuzz(func(t *testing.T, image, command, args, variable, value, later string) {
		// The API server has nothing but valid text, and no such name of a variable.
		for _, text := range []*string{&image, &command, &args, &variable, &value, &later} {
			*text = strings.ToValidUTF8(*text, "?")
		}
		variable = strings.ReplaceAll(variable, "\f", "_")
		c := corev1.Container{Name: "c", Image: image, Command: strings.Split(command, "\n"), Args: strings.Split(args, "\n"),
			Env: []corev1.EnvVar{{Name: variable, Value: value}, {Name: "B", Value: later}, {Name: variable, Value: later}}}
		j.compare(t, corev1.PodSpec{Containers: []corev1.Container{c}})
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

// big is a Pod of containers that are nobody's, each with args and variables.
func big(containers, args, variables int, arg, value string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns"}}
	for i := range containers {
		c := corev1.Container{Name: fmt.Sprint("c", i), Image: "registry.example.com:5000/team/app:v1.2.3"}
		if args > 0 {
			c.Command = []string{"/bin/sh", "-c"}
		}
		for range args {
			c.Args = append(c.Args, arg)
		}
		for v := range variables {
			c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprint("VARIABLE_", v), Value: value})
		}
		p.Spec.Containers = append(p.Spec.Containers, c)
	}
	return p
}

const mebibyte = 1 << 20

// TestCost keeps what judging costs below the API server's limits, for objects
// that people make and for the largest that it takes. There is no limit on what
// an expression of a policy is estimated to cost, only on what it costs.
func TestCost(t *testing.T) {
	j := newJudges(t, v1alpha1.DefaultMatch())
	for _, c := range []struct {
		why  string
		pod  *corev1.Pod
		most int64
	}{
		{"an ordinary Pod", big(1, 5, 20, "--some-flag=some-value", "value"), 3_000},
		{"references to variables", big(3, 5, 20, "--flag=$(VARIABLE_3)", "value"), 10_000},
		{"50 containers with 50 args", big(50, 50, 20, "--some-flag=some-value", "value"), 100_000},
		{"50 containers with 50 references to variables", big(50, 50, 20, "--flag=$(VARIABLE_3)", "value"), 700_000},
		{"one script of 20 kB that mentions it", big(1, 1, 20, strings.Repeat("kubectl get sts metacontroller; ", 640), "value"), celconfig.PerCallLimit},
		{"10,000 args", big(1, 10_000, 20, "--some-flag=some-value", "value"), 500_000},
		{"10,000 references to variables", big(1, 10_000, 20, "--flag=$(VARIABLE_3)", "value"), 700_000},
		{"10,000 containers", big(10_000, 0, 0, "", ""), celconfig.PerCallLimit},
		{"1.5 MiB in one argument", big(1, 1, 0, strings.Repeat("x", 3*mebibyte/2), ""), celconfig.PerCallLimit},
		{"1.5 MiB in 10,000 args", big(1, 10_000, 0, strings.Repeat("x", 150), ""), celconfig.PerCallLimit},
		{"1.5 MiB in variables", big(1, 1, 10_000, "--flag", strings.Repeat("x", 150)), 3_000},
		{"1.5 MiB in variables that are referred to", big(1, 5, 10_000, "$(VARIABLE_3)", strings.Repeat("x", 150)), celconfig.PerCallLimit},
	} {
		t.Run(c.why, func(t *testing.T) {
			_, cost, err := j.params.evaluate(t, createPod(c.pod), j.policy)
			if err != nil {
				t.Fatalf("%.200s", err)
			}
			_, written, err := j.written.evaluate(t, createPod(c.pod), nil)
			if err != nil {
				t.Fatalf("%.200s", err)
			}
			_, suspects, err := j.suspects.evaluate(t, createPod(c.pod), nil)
			if err != nil {
				suspects = -1
			}
			t.Logf("cost %d with params, %d written in, %d for suspects", cost, written, suspects)
			if cost > c.most || written > c.most {
				t.Errorf("costs %d and %d, at most %d was agreed", cost, written, c.most)
			}
			if decision := validate(t, PolicyName, createPod(c.pod), policyOf(v1alpha1.HolderBound)); decision != nil {
				t.Errorf("refused: %.200s", decision.Message)
			}
		})
	}
}

// TestTooLargeIsRefused has objects that hide an instance, or cost too much to
// be judged: none is let through.
func TestTooLargeIsRefused(t *testing.T) {
	asks := newAsks(t, Options{})
	last := func(p *corev1.Pod, c corev1.Container) *corev1.Pod {
		c.Name = "last"
		p.Spec.Containers = append(p.Spec.Containers, c)
		return p
	}
	for _, c := range []struct {
		why string
		pod *corev1.Pod
	}{
		{"an image behind 10,000 containers", last(big(10_000, 0, 0, "", ""), corev1.Container{Image: image})},
		{"a command behind 10,000 containers", last(big(10_000, 0, 0, "", ""), corev1.Container{Image: "x", Command: []string{"metacontroller"}})},
		{"a command before 10,000 args", last(&corev1.Pod{}, corev1.Container{Image: "x", Command: []string{"metacontroller"}, Args: big(1, 10_000, 0, "--x=y", "").Spec.Containers[0].Args})},
		{"a command before 1.5 MiB", last(&corev1.Pod{}, corev1.Container{Image: "x", Command: []string{"metacontroller", strings.Repeat("x", 3*mebibyte/2)}})},
		{"a script of 1.5 MiB that ends with it", last(&corev1.Pod{}, corev1.Container{Image: "x", Command: []string{"sh", "-c", strings.Repeat("sleep 1;", 3*mebibyte/16) + "metacontroller"}})},
		{"50 containers with 50 args that mention it", last(big(50, 50, 0, "kubectl get sts metacontroller", ""), corev1.Container{Image: "x", Command: []string{"metacontroller"}})},
		{"10,000 containers that mention it", last(big(10_000, 1, 0, "kubectl get sts metacontroller", ""), corev1.Container{Image: "x", Command: []string{"metacontroller"}})},
		{"10,000 variables, the last of which is it", last(big(1, 0, 0, "", ""), corev1.Container{Image: "x", Command: []string{"$(BIN)"}, Env: append(big(1, 0, 10_000, "", "v").Spec.Containers[0].Env, corev1.EnvVar{Name: "BIN", Value: "metacontroller"})})},
	} {
		t.Run(c.why, func(t *testing.T) {
			c.pod.Name, c.pod.Namespace = "p", "ns"
			decision := validate(t, PolicyName, createPod(c.pod), policyOf(v1alpha1.HolderBound))
			if decision == nil {
				t.Fatal("the policy for Pods lets it through")
			}
			t.Logf("%s: %.80s", decision.Evaluation, decision.Message)
			d := deployment(meta("ns", "d"), nil)
			d.Spec.Template.Spec = c.pod.Spec
			r := of(d, nil, apps.WithResource("deployments"), "Deployment", "someone")
			if decision := validate(t, WorkloadPolicyName, r, policyOf(v1alpha1.HolderBound)); decision == nil {
				t.Error("the policy for workloads lets it through")
			}
			asked, err := asks.about(t, WorkloadsWebhook, r)
			if !asked {
				t.Error("the webhook for workloads is not asked")
			}
			t.Logf("asked: %v, %.80v", asked, err)
		})
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
