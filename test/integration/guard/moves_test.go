package guard_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/audit"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/test/kit"
)

// annotationTouched marks the objects that a test's own admission acts on.
const annotationTouched = "test.metacontroller.io/touched"

var touched = admissionregistrationv1.MatchCondition{
	Name: "touched", Expression: "has(object.metadata.annotations) && '" + annotationTouched + "' in object.metadata.annotations",
}

func touch[T client.Object](object T) T {
	object.SetAnnotations(map[string]string{annotationTouched: "yes"})
	return object
}

// within selects the one namespace.
func (c *stage) within() *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: c.namespace}}
}

func rule(operation admissionregistrationv1.OperationType, group string, resources ...string) admissionregistrationv1.RuleWithOperations {
	return admissionregistrationv1.RuleWithOperations{
		Operations: []admissionregistrationv1.OperationType{operation},
		Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: resources},
	}
}

// holdUp keeps API servers from writing what is touched: they ask a webhook
// beside the guard that never answers, and fail what it does not answer about.
// What it returns lets go again.
func (c *stage) holdUp() (letGo func()) {
	c.t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		c.t.Fatal(err)
	}
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "hold-up"},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name:                    "hold-up.test.metacontroller.io",
			ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: ptr.To("https://" + listener.Addr().String()), CABundle: c.cp.CA().CertPEM()},
			FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			TimeoutSeconds:          ptr.To[int32](30),
			AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector:       c.within(),
			Rules:                   []admissionregistrationv1.RuleWithOperations{rule(admissionregistrationv1.Create, "apps", "statefulsets")},
			MatchConditions:         []admissionregistrationv1.MatchCondition{touched},
		}},
	}
	if err := c.first().Create(c.ctx(), configuration); err != nil {
		c.t.Fatal(err)
	}
	// In force: a stranger's dry run gets no answer.
	probe := touch(statefulSet(c.namespace, "probe"))
	probe.Spec.Template.Spec.Containers[0].Image = strangerImage
	c.eventually(func() error {
		ctx, cancel := context.WithTimeout(c.ctx(), time.Second)
		defer cancel()
		if err := c.last().Create(ctx, probe.DeepCopy(), client.DryRunAll); !errors.Is(err, context.DeadlineExceeded) {
			return fmt.Errorf("not held up yet: %v", err)
		}
		return nil
	})
	return func() {
		_ = listener.Close()
		if err := client.IgnoreNotFound(c.first().Delete(context.Background(), configuration)); err != nil {
			c.t.Error(err)
		}
	}
}

// apiServerCrash kills an API server once the guard has said yes, before it
// writes to etcd.
func apiServerCrash(c *stage) {
	crashing := c.servers - 1
	letGo := c.holdUp()
	up := true
	restart := func() {
		if err := c.cp.RestartAPIServer(context.Background(), crashing); err != nil {
			c.t.Fatal(err)
		}
		up = true
	}
	defer func() {
		if !up {
			restart()
		}
		letGo()
	}()
	result := make(chan error, 1)
	go func() { result <- c.last().Create(c.ctx(), touch(statefulSet(c.namespace, "mc"))) }()
	c.eventually(func() error {
		if held := c.policy().Status.Holder; held == nil || held.Name != "mc" || held.Phase != guardv1alpha1.HolderReserved {
			return fmt.Errorf("holder is %+v", held)
		}
		return nil
	})
	up = false
	c.cp.KillAPIServer(crashing)
	if crashing > 0 {
		// With the guard on the same machine. It knows no other API server here.
		for _, g := range c.running() {
			if g.config.server == crashing {
				g.process.Kill()
			}
		}
	}
	if err := <-result; err == nil || apierrors.ReasonForError(err) != metav1.StatusReasonUnknown {
		c.t.Fatalf("the create got %v, want a broken connection", err)
	}
	if c.servers == 1 {
		restart() // There is no other one.
	}
	kit.Eventually(c.t, 3*patience, func() error {
		err := c.first().Get(c.ctx(), client.ObjectKey{Namespace: c.namespace, Name: "mc"}, &appsv1.StatefulSet{})
		if err == nil {
			c.t.Fatal("it was written before the API server was killed: this shows nothing")
		}
		return client.IgnoreNotFound(err)
	})
	// Elsewhere, the same one may try again as soon as a guard is there to ask.
	kit.Eventually(c.t, 3*patience, func() error { return c.first().Create(c.ctx(), statefulSet(c.namespace, "mc")) })
	if !up {
		restart()
	}
	c.all.revive(caseArgs...)
	c.guards = c.all.guards
	kit.Eventually(c.t, 3*patience, func() error {
		return c.first().Get(c.ctx(), client.ObjectKey{Namespace: c.namespace, Name: "mc-0"}, &corev1.Pod{})
	})
	// An API server that has just started refuses whatever a policy is for until it
	// has found the kind of the policy's parameters; then it gives the reason.
	for _, admin := range c.admins {
		kit.Eventually(c.t, 3*patience, func() error {
			err := admin.Create(c.ctx(), statefulSet(c.namespace, "second"))
			if got, line := outcome(err); got != string(decide.RuleSecondWorkload) || !strings.Contains(line, c.holder()) {
				if err == nil {
					c.t.Fatal("a second one was let in")
				}
				return fmt.Errorf("got %w", err)
			}
			return nil
		})
	}
	c.instances(1)
}

// deploymentBefore is about one that was there before the guard and takes the old
// Pod away before it makes the new one: "away" is only on its way.
func deploymentBefore(c *stage) {
	before := c.policy().Spec.ValidationActions
	act := func(want string, actions ...guardv1alpha1.ValidationAction) {
		c.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) { spec.ValidationActions = actions })
		c.settles(want, pod(c.namespace, "probe", instanceImage))
	}
	act(allowed, guardv1alpha1.ActionAudit)
	defer func() {
		c.setSpec(func(spec *guardv1alpha1.SingletonPolicySpec) { spec.ValidationActions = before })
		c.settles(string(decide.RulePodNotPinned), pod(c.namespace, "probe", instanceImage))
	}()
	old := deployment(c.namespace, "old")
	old.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: ptr.To(intstr.FromInt32(0)), MaxUnavailable: ptr.To(intstr.FromInt32(1))}
	if err := c.first().Create(c.ctx(), old); err != nil {
		c.t.Fatal(err)
	}
	var first string
	c.eventually(func() error {
		alive := c.alive()
		if len(alive) != 1 {
			return fmt.Errorf("alive are %v", alive)
		}
		first = strings.TrimPrefix(alive[0], c.namespace+"/")
		return nil
	})
	c.keep(first)
	act(string(decide.RulePodNotPinned), guardv1alpha1.ActionDeny)

	// The change is refused, with advice.
	for _, admin := range c.admins {
		err := admin.Patch(c.ctx(), deployment(c.namespace, "old"), client.RawPatch(types.StrategicMergePatchType,
			[]byte(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"`+instanceImage+`-next"}]}}}}`)))
		if got, line := outcome(err); got != string(decide.RuleWorkloadKind) || !strings.Contains(err.Error(), "make it a StatefulSet") {
			c.t.Errorf("the change got %s (%s): %v", got, line, err)
		}
	}
	// As at a change: the old Pod is told to end, and another is wanted at once.
	if err := c.last().Delete(c.ctx(), pod(c.namespace, first, "")); err != nil {
		c.t.Fatal(err)
	}
	c.awaitTerminating(first)
	c.refusedEvent("old-", string(decide.RulePodNotPinned))
	c.instances(1)
	c.unfinalize()
	// It gets no other Pod ever: it has no slot.
	c.eventually(func() error {
		if alive := c.alive(); len(alive) > 0 {
			return fmt.Errorf("alive are %v", alive)
		}
		return nil
	})
}

// recreateStrategy is the update strategy that takes all Pods away first. The
// suite's API servers have its feature gate turned on.
func recreateStrategy(c *stage) {
	c.hold("mc")
	before := c.awaitPod(c.namespace, "mc-0", "")
	c.keep("mc-0")
	if err := c.last().Patch(c.ctx(), statefulSet(c.namespace, "mc"), client.RawPatch(types.StrategicMergePatchType,
		[]byte(`{"spec":{"updateStrategy":{"type":"Recreate","rollingUpdate":null},
			"template":{"spec":{"containers":[{"name":"main","image":"ghcr.io/metacontroller/metacontroller:v5"}]}}}}`))); err != nil {
		c.t.Fatal(err)
	}
	live := &appsv1.StatefulSet{}
	if err := c.first().Get(c.ctx(), client.ObjectKey{Namespace: c.namespace, Name: "mc"}, live); err != nil ||
		live.Spec.UpdateStrategy.Type != appsv1.RecreateStatefulSetStrategyType {
		c.t.Fatalf("strategy is %q, %v", live.Spec.UpdateStrategy.Type, err)
	}
	c.awaitTerminating("mc-0")
	c.instances(1)
	c.unfinalize()
	c.awaitPod(c.namespace, "mc-0", before)
	c.instances(1)
}

// sameName deletes the holder in the background and makes it again while its Pod
// still ends.
func sameName(c *stage) {
	held := c.hold("mc")
	before := c.awaitPod(c.namespace, "mc-0", "")
	c.keep("mc-0")
	pods := c.watchPods()
	if err := c.first().Delete(c.ctx(), held, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
		c.t.Fatal(err)
	}
	again := statefulSet(c.namespace, "mc")
	if err := c.last().Create(c.ctx(), again); err != nil {
		c.t.Fatal(err)
	}
	c.eventually(func() error {
		if now := c.policy().Status.Holder; now == nil || now.UID != again.UID || now.Phase != guardv1alpha1.HolderBound {
			return fmt.Errorf("holder is %+v, want uid %s", now, again.UID)
		}
		return nil
	})
	c.awaitTerminating("mc-0")
	// The StatefulSet controller has seen the new one, and waits for the name.
	c.eventually(func() error {
		live := &appsv1.StatefulSet{}
		if err := c.first().Get(c.ctx(), client.ObjectKeyFromObject(again), live); err != nil || live.Status.ObservedGeneration != live.Generation {
			return fmt.Errorf("not seen yet: %v", err)
		}
		return nil
	})
	c.instances(1)
	if uid := c.awaitPod(c.namespace, "mc-0", ""); uid != before {
		c.t.Fatalf("another Pod has the name while the first one ends: %s", uid)
	}
	c.unfinalize()
	after := c.awaitPod(c.namespace, "mc-0", before)
	c.instances(1)
	if most := pods.most(); most > 1 {
		c.t.Errorf("%d instances at once", most)
	}
	live := &corev1.Pod{}
	if err := c.first().Get(c.ctx(), client.ObjectKey{Namespace: c.namespace, Name: "mc-0"}, live); err != nil ||
		live.UID != after || len(live.OwnerReferences) != 1 || live.OwnerReferences[0].UID != again.UID {
		c.t.Errorf("the Pod %s belongs to %+v, %v", live.UID, live.OwnerReferences, err)
	}
}

// moveCommands are those that docs/move.md tells people to run.
var moveCommands = regexp.MustCompile("(?s)```sh\n(.*?)```")

// plannedMove runs the commands of docs/move.md.
func plannedMove(c *stage) {
	document, err := os.ReadFile(filepath.Join(c.root, "docs", "move.md"))
	if err != nil {
		c.t.Fatal(err)
	}
	block := moveCommands.FindSubmatch(document)
	if block == nil {
		c.t.Fatal("docs/move.md has no commands")
	}
	c.hold("mc")
	c.keep("mc-0")
	to := c.suite.namespace("moved")
	manifest, err := yaml.Marshal(typed(statefulSet("", "mc")))
	if err != nil {
		c.t.Fatal(err)
	}
	folder := c.t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "metacontroller.yaml"), manifest, 0o600); err != nil {
		c.t.Fatal(err)
	}
	versions, pods := c.watchPolicy(), c.watchPods()

	// Before its turn it is refused.
	_, err = insist(c.ctx(), c.last(), statefulSet(to, "mc"))
	refused(c.t, err, decide.RuleSecondWorkload, c.holder())
	ctx, cancel := context.WithTimeout(c.ctx(), 6*patience)
	defer cancel()
	command := exec.CommandContext(ctx, "sh", "-e", "-c", string(block[1]))
	command.Dir = folder
	command.Env = append(os.Environ(), "KUBECONFIG="+c.cp.Kubeconfig(c.servers-1), "NAME=mc", "OLD="+c.namespace, "NEW="+to)
	var output buffer
	command.Stdout, command.Stderr = &output, &output
	if err := command.Start(); err != nil {
		c.t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- command.Wait() }()
	c.awaitTerminating("mc-0")
	// The old Pod still runs, and so the new one is refused.
	_, err = insist(c.ctx(), c.last(), statefulSet(to, "mc"))
	refused(c.t, err, decide.RuleSecondWorkload, c.holder())
	select {
	case err := <-ended:
		c.t.Fatalf("the commands did not wait for the old Pod: %v\n%s", err, output.String())
	default:
	}
	c.unfinalize()
	if err := <-ended; err != nil {
		c.t.Fatalf("%v\n%s", err, output.String())
	}
	if alive := c.alive(); len(alive) != 1 || alive[0] != to+"/mc-0" {
		c.t.Errorf("alive are %v\n%s", alive, output.String())
	}
	if most := pods.most(); most > 1 {
		c.t.Errorf("%d instances at once", most)
	}
	// The log tells it: refused for the old holder's sake, then let in.
	c.eventually(func() error {
		var denied, allowed *audit.Record
		records := c.records()
		for i := range records {
			record := &records[i]
			switch {
			case record.Object.Namespace != to || record.Object.Kind != "StatefulSet" || record.Operation != "CREATE":
			case record.Decision == "Deny" && record.Holder != nil && record.Holder.Namespace == c.namespace:
				denied = record
			case record.Decision == "Allow":
				allowed = record
			}
		}
		if denied == nil || allowed == nil || !denied.Time.Before(allowed.Time) {
			return fmt.Errorf("refused by %+v, allowed by %+v", denied, allowed)
		}
		return nil
	})
	c.eventually(func() error {
		if versions.handovers() == 0 {
			return fmt.Errorf("no version of the policy says that the slot was handed over")
		}
		return nil
	})
	versions.check(c.t.(*testing.T))
}

// injector has the API server itself add the container, after the request was
// made: what is judged is what would be stored.
func injector(c *stage) {
	c.hold("mc")
	inject := func(name, group, resource, expression string) (*admissionregistrationv1.MutatingAdmissionPolicy, *admissionregistrationv1.MutatingAdmissionPolicyBinding) {
		policy := &admissionregistrationv1.MutatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: admissionregistrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints: &admissionregistrationv1.MatchResources{
				NamespaceSelector: c.within(),
				ResourceRules: []admissionregistrationv1.NamedRuleWithOperations{
					{RuleWithOperations: rule(admissionregistrationv1.Create, group, resource)},
				},
			},
			MatchConditions:    []admissionregistrationv1.MatchCondition{touched},
			FailurePolicy:      ptr.To(admissionregistrationv1.Fail),
			ReinvocationPolicy: admissionregistrationv1.NeverReinvocationPolicy,
			Mutations: []admissionregistrationv1.Mutation{{
				PatchType:          admissionregistrationv1.PatchTypeApplyConfiguration,
				ApplyConfiguration: &admissionregistrationv1.ApplyConfiguration{Expression: expression},
			}},
		}}
		binding := &admissionregistrationv1.MutatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: admissionregistrationv1.MutatingAdmissionPolicyBindingSpec{PolicyName: name}}
		return policy, binding
	}
	const container = `containers{name: "injected", image: "` + instanceImage + `"}`
	pods, podsBinding := inject("inject-pods", "", "pods", `Object{spec: Object.spec{containers: [Object.spec.`+container+`]}}`)
	sets, setsBinding := inject("inject-statefulsets", "apps", "statefulsets",
		`Object{spec: Object.spec{template: Object.spec.template{spec: Object.spec.template.spec{containers: [Object.spec.template.spec.`+container+`]}}}}`)
	for _, object := range []client.Object{pods, podsBinding, sets, setsBinding} {
		if err := c.first().Create(c.ctx(), object); err != nil {
			c.t.Fatal(err)
		}
		defer func() { _ = c.first().Delete(context.Background(), object) }()
	}
	harmless := statefulSet(c.namespace, "harmless")
	harmless.Spec.Template.Spec.Containers[0].Image = strangerImage
	for _, test := range []struct {
		object client.Object
		rule   decide.Rule
	}{
		{pod(c.namespace, "harmless", strangerImage), decide.RulePodNotPinned},
		{harmless, decide.RuleSecondWorkload},
	} {
		// Not touched, it is nobody's business.
		c.settles(allowed, test.object)
		// In force, and judged as what it becomes.
		c.settles(string(test.rule), touch(test.object))
		for _, admin := range c.admins {
			if got, line := outcome(admin.Create(c.ctx(), test.object.DeepCopyObject().(client.Object))); got != string(test.rule) || !strings.Contains(line, c.holder()) {
				c.t.Errorf("%T: got %s (%s)", test.object, got, line)
			}
		}
	}
	c.instances(1)
}

// exec asks for a process inside a Pod that is on no node, so that the API server
// gives up after admission. It returns nil if that is why.
func (c *stage) exec(name string) error {
	c.turn++
	clients, err := kubernetes.NewForConfig(c.cp.AdminConfig(c.turn % c.servers))
	if err != nil {
		return err
	}
	return c.unasked(".guard.metacontroller.io", func() error {
		err := clients.CoreV1().RESTClient().Post().Namespace(c.namespace).Resource("pods").Name(name).SubResource("exec").
			Param("container", "main").Param("command", "/usr/bin/metacontroller").Param("stdout", "true").Do(c.ctx()).Error()
		if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "does not have a host assigned") {
			return fmt.Errorf("got %w, want that no node is there to run it", err)
		}
		return nil
	})
}
