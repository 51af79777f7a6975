package guard_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/test/kit"
)

// casesInTurn are those that share an installation of two guards.
var casesInTurn = []struct {
	name string
	run  func(*stage)
}{
	{"A01 two-creates", func(c *stage) {
		objects := []client.Object{statefulSet(c.namespace, "one"), statefulSet(c.namespace, "two")}
		c.one(objects, c.startAll(objects, plain))
	}},
	{"A02 cold replicas", func(c *stage) {
		for _, g := range c.running() {
			g.process.Stop()
		}
		c.all.revive(caseArgs...)
		c.guards = c.all.guards
		// They are asked before they are ready.
		objects := []client.Object{statefulSet(c.namespace, "one"), statefulSet(c.namespace, "two")}
		c.one(objects, c.startAll(objects, plain))
	}},
	{"A03 mixed kinds", func(c *stage) {
		objects := []client.Object{deployment(c.namespace, "a"), job(c.namespace, "b"), pod(c.namespace, "c", instanceImage)}
		for i, err := range c.startAll(objects, plain) {
			if !apierrors.IsForbidden(err) {
				c.t.Errorf("%T got %v", objects[i], err)
			}
		}
		c.instances(0)
	}},
	{"A04 cross namespace", func(c *stage) {
		var objects []client.Object
		for range 10 {
			objects = append(objects, statefulSet(c.suite.namespace("a04"), "mc"))
		}
		c.one(objects, c.startAll(objects, plain))
	}},
	{"A06 stale watch", func(c *stage) {
		proxy := kit.NewAPIProxy(c.t, c.cp)
		stale := c.start(guardConfig{proxy: proxy, args: caseArgs})
		// From here on it hears of no change for longer than the case takes.
		proxy.DelayWatches(time.Hour)
		held := c.hold("mc")
		defer c.all.point()
		c.balancer.point(stale.webhook)
		for i, err := range c.startAll([]client.Object{statefulSet(c.namespace, "second"), statefulSet(c.namespace, "third")}, plain) {
			if refused(c.t, err, decide.RuleSecondWorkload, c.holder()); i == 0 {
				c.instances(1)
			}
		}
		// Nor does it know that the slot is free again.
		if err := c.first().Delete(c.ctx(), held); err != nil {
			c.t.Fatal(err)
		}
		objects := []client.Object{statefulSet(c.namespace, "fourth"), statefulSet(c.namespace, "fifth")}
		c.eventually(func() error {
			policy := c.policy()
			if policy.Status.Holder != nil {
				return fmt.Errorf("holder is %+v", policy.Status.Holder)
			}
			return nil
		})
		c.one(objects, c.startAll(objects, plain))
	}},
	{"A08 stale-cache retry", func(c *stage) {
		held := c.hold("mc")
		const writes = 20
		errs := make([]error, 0, writes)
		for i := range writes {
			// In turn through each API server, which then has an old version in its cache.
			patch := fmt.Appendf(nil, `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"ghcr.io/metacontroller/metacontroller:v4.%d"}]}}}}`, i)
			errs = append(errs, c.admins[i%len(c.admins)].Patch(c.ctx(), held.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch)))
		}
		if err := errors.Join(errs...); err != nil {
			c.t.Fatal(err)
		}
		seen := map[types.UID]bool{}
		for _, record := range c.records() {
			if record.Object.Namespace != c.namespace {
				continue
			}
			if seen[record.AdmissionUID] {
				c.t.Errorf("two records of %s", record.AdmissionUID)
			}
			seen[record.AdmissionUID] = true
		}
	}},
	{"A10 late answer", func(c *stage) {
		stopped := c.running()
		for _, g := range stopped {
			_ = g.process.Signal(syscall.SIGSTOP)
		}
		err := c.first().Create(c.ctx(), statefulSet(c.namespace, "late"))
		for _, g := range stopped {
			_ = g.process.Signal(syscall.SIGCONT)
		}
		if !apierrors.IsInternalError(err) {
			c.t.Fatalf("got %v", err)
		}
		kit.Eventually(c.t, 2*patience, func() error { return c.last().Create(c.ctx(), statefulSet(c.namespace, "next")) })
	}},
	{"A12 quota after us", func(c *stage) {
		quota := &corev1.ResourceQuota{ObjectMeta: named(c.namespace, "none"), Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{"count/statefulsets.apps": resource.MustParse("0")},
		}}
		if err := c.first().Create(c.ctx(), quota); err != nil {
			c.t.Fatal(err)
		}
		c.eventually(func() error {
			live := &corev1.ResourceQuota{}
			if err := c.first().Get(c.ctx(), client.ObjectKeyFromObject(quota), live); err != nil || len(live.Status.Hard) == 0 {
				return fmt.Errorf("not in force: %v", err)
			}
			return nil
		})
		err := c.first().Create(c.ctx(), statefulSet(c.namespace, "mc"))
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "exceeded quota") {
			c.t.Fatalf("got %v", err)
		}
		refused(c.t, c.last().Create(c.ctx(), statefulSet("default", "other")), decide.RuleSecondWorkload, c.namespace+"/mc")
		if err := c.first().Delete(c.ctx(), quota); err != nil {
			c.t.Fatal(err)
		}
		// The same identity may try again at once.
		c.eventually(func() error {
			err := c.last().Create(c.ctx(), statefulSet(c.namespace, "mc"))
			if err != nil && !strings.Contains(err.Error(), "exceeded quota") {
				c.t.Fatal(err)
			}
			return err
		})
		c.phase(guardv1alpha1.HolderBound)
	}},
	{"A14 AlreadyExists", func(c *stage) {
		held := c.hold("mc")
		for _, admin := range c.admins {
			if err := admin.Create(c.ctx(), statefulSet(c.namespace, "mc")); !apierrors.IsAlreadyExists(err) {
				c.t.Fatalf("got %v", err)
			}
		}
		if now := c.policy().Status.Holder; now == nil || now.UID != held.UID || now.Phase != guardv1alpha1.HolderBound || now.Epoch != c.policy().Status.Epoch {
			c.t.Fatalf("holder is %+v", now)
		}
	}},
	{"A15 API server crash", apiServerCrash},
	{"A17 dry-run allow", func(c *stage) {
		before := c.policy().Status
		for _, name := range []string{"one", "two"} {
			if err := c.last().Create(c.ctx(), statefulSet(c.namespace, name), client.DryRunAll); err != nil {
				c.t.Fatal(err)
			}
		}
		if now := c.policy().Status; now.Holder != nil || now.Epoch != before.Epoch {
			c.t.Fatalf("a dry run left %+v", now)
		}
		c.eventually(func() error {
			found := 0
			for _, record := range c.records() {
				if record.Object.Namespace == c.namespace && record.DryRun && record.Decision == "Allow" && !record.Enforced {
					found++
				}
			}
			if found != 2 {
				return fmt.Errorf("%d records of dry runs", found)
			}
			return nil
		})
	}},
	{"A18 dry-run deny", func(c *stage) {
		c.hold("mc")
		// What is known of the holder's Pod, and told, may change between the two.
		kit.Eventually(c.t, patience, func() error {
			dry := c.first().Create(c.ctx(), statefulSet(c.namespace, "second"), client.DryRunAll)
			refused(c.t, dry, decide.RuleSecondWorkload, c.namespace+"/mc")
			if wet := c.last().Create(c.ctx(), statefulSet(c.namespace, "second")); wet == nil || wet.Error() != dry.Error() {
				return fmt.Errorf("the dry run says %q, the real one %q", dry, wet)
			}
			return nil
		})
	}},
	{"A19 server-side apply create", func(c *stage) {
		if err := c.applyAs("apply", statefulSet(c.namespace, "mc")); err != nil {
			c.t.Fatal(err)
		}
		c.phase(guardv1alpha1.HolderBound)
		refused(c.t, c.applyAs("apply", statefulSet(c.namespace, "second")), decide.RuleSecondWorkload, c.namespace+"/mc")
		c.recorded("second", "CREATE")
	}},
	{"A21 no-op update", func(c *stage) {
		held := c.hold("mc")
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`))
		for _, admin := range c.admins {
			if err := admin.Patch(c.ctx(), held.DeepCopy(), patch); err != nil {
				c.t.Fatal(err)
			}
		}
	}},
	{"A22 status writes", func(c *stage) {
		held := c.hold("mc")
		before := 0
		for server := range c.admins {
			before += c.webhookCalls(server)
		}
		for i := range 100 {
			patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"status":{"collisionCount":%d}}`, i))
			if err := c.admins[i%len(c.admins)].Status().Patch(c.ctx(), held.DeepCopy(), patch); err != nil {
				c.t.Fatal(err)
			}
		}
		after := 0
		for server := range c.admins {
			after += c.webhookCalls(server)
		}
		if after != before {
			c.t.Errorf("the guard was asked %d times about writes of the status", after-before)
		}
	}},
	{"A23 delete then create", func(c *stage) {
		held := c.hold("mc")
		c.keep("mc-0")
		if err := c.first().Delete(c.ctx(), held, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			c.t.Fatal(err)
		}
		c.awaitTerminating("mc-0")
		// The Pod lives: the slot is kept, however often the guard looks.
		for range 5 {
			_, err := insist(c.ctx(), c.last(), statefulSet(c.namespace, "next"))
			refused(c.t, err, decide.RuleSecondWorkload, c.namespace+"/mc")
			if now := c.policy().Status.Holder; now == nil || now.Phase != guardv1alpha1.HolderBound {
				c.t.Fatalf("holder is %+v though its Pod lives", now)
			}
			time.Sleep(100 * time.Millisecond)
		}
		epoch := c.policy().Status.Epoch
		c.unfinalize()
		kit.Eventually(c.t, 2*patience, func() error { return c.last().Create(c.ctx(), statefulSet(c.namespace, "next")) })
		if now := c.policy().Status.Epoch; now <= epoch {
			c.t.Fatalf("epoch went from %d to %d", epoch, now)
		}
		c.awaitPod(c.namespace, "next-0", "")
		c.instances(1)
	}},
	{"A25 multi-doc apply", func(c *stage) {
		var file bytes.Buffer
		for _, name := range []string{"one", "two"} {
			document, err := yaml.Marshal(typed(statefulSet(c.namespace, name)))
			if err != nil {
				c.t.Fatal(err)
			}
			file.WriteString("---\n")
			file.Write(document)
		}
		path := filepath.Join(c.t.TempDir(), "two.yaml")
		if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
			c.t.Fatal(err)
		}
		command := exec.CommandContext(c.ctx(), "kubectl", "--kubeconfig="+c.cp.Kubeconfig(len(c.admins)-1), "apply", "-f", path)
		output, err := command.CombinedOutput()
		exit := &exec.ExitError{}
		if !errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.Contains(string(output), "statefulset.apps/one created") ||
			!strings.Contains(string(output), string(decide.RuleSecondWorkload)) || !strings.Contains(string(output), c.namespace+"/one") {
			c.t.Fatalf("%v: %s", err, output)
		}
	}},
	{"A27 reset", func(c *stage) {
		// A call that is sent again, perhaps to another guard, has the same answer
		// and changes nothing.
		object := typed(statefulSet(c.namespace, "mc"))
		object.SetUID("11111111-2222-3333-4444-555555555555")
		guards := c.running()
		epoch := c.policy().Status.Epoch
		for i := range 4 {
			if answer := c.review(guards[i%len(guards)], object, "replayed"); !answer.Allowed {
				c.t.Fatalf("call %d is refused: %+v", i, answer.Result)
			}
		}
		if now := c.policy().Status; now.Epoch != epoch+1 || now.Holder == nil || now.Holder.UID != object.GetUID() {
			c.t.Fatalf("the slot is %+v", now)
		}
		// Sent again, it is one decision: no guard writes a second line.
		written := map[string]int{}
		c.eventually(func() error {
			clear(written)
			for _, record := range c.records() {
				if record.AdmissionUID == "replayed" {
					written[record.Replica]++
				}
			}
			if len(written) == 0 {
				return fmt.Errorf("no record of what was sent again")
			}
			return nil
		})
		for replica, lines := range written {
			if lines != 1 {
				c.t.Errorf("%s wrote %d lines of one request", replica, lines)
			}
		}
		c.suite.free()
		// Connections that break while they are used.
		objects := []client.Object{statefulSet(c.namespace, "one"), statefulSet(c.namespace, "two")}
		cut := time.AfterFunc(3*time.Millisecond, c.balancer.cut)
		defer cut.Stop()
		c.one(objects, c.startAll(objects, plain))
	}},
	{"C12 maxSurge 0", deploymentBefore},
	{"C19 Recreate strategy", recreateStrategy},
	{"C22 recreate same name", sameName},
	{"C32 planned move", plannedMove},
	{"C34 mutating injector", injector},
	{"D06 long preStop", func(c *stage) {
		c.hold("mc")
		c.keep("mc-0")
		before := c.awaitPod(c.namespace, "mc-0", "")
		patch := client.RawPatch(types.StrategicMergePatchType, []byte(`{"spec":{"template":{"spec":{"containers":[{"name":"main","image":"ghcr.io/metacontroller/metacontroller:v5"}]}}}}`))
		if err := c.last().Patch(c.ctx(), statefulSet(c.namespace, "mc"), patch); err != nil {
			c.t.Fatal(err)
		}
		// The controller deletes a Pod of the old revision once it is healthy, or at
		// once if it never was: here a person does.
		if err := c.first().Delete(c.ctx(), pod(c.namespace, "mc-0", "")); err != nil {
			c.t.Fatal(err)
		}
		c.awaitTerminating("mc-0")
		c.instances(1)
		c.unfinalize()
		c.awaitPod(c.namespace, "mc-0", before)
		c.instances(1)
	}},
	{"D10 D21 the Pod has failed", func(c *stage) {
		c.hold("mc")
		before := c.awaitPod(c.namespace, "mc-0", "")
		c.fail("mc-0")
		c.awaitPod(c.namespace, "mc-0", before)
		c.instances(1)
	}},
	{"D11 terminal leftovers", func(c *stage) {
		held := c.hold("mc")
		if err := c.first().Delete(c.ctx(), held, client.PropagationPolicy(metav1.DeletePropagationOrphan)); err != nil {
			c.t.Fatal(err)
		}
		// The Pod is left without an owner, and lives: the slot is kept.
		refused(c.t, c.last().Create(c.ctx(), statefulSet(c.namespace, "next")), decide.RuleSecondWorkload, c.namespace+"/mc")
		c.fail("mc-0")
		c.eventually(func() error { return c.last().Create(c.ctx(), statefulSet(c.namespace, "next")) })
		c.awaitPod(c.namespace, "next-0", "")
		c.instances(1)
	}},
	{"D12 Pending holder", func(c *stage) {
		c.hold("mc") // There is no node: its Pod is Pending.
		refused(c.t, c.last().Create(c.ctx(), statefulSet(c.namespace, "second")), decide.RuleSecondWorkload, c.namespace+"/mc")
	}},
	{"D14 nodeName set", func(c *stage) {
		c.hold("mc")
		second := pod(c.namespace, "second", instanceImage)
		second.Spec.NodeName = "somewhere"
		for _, admin := range c.admins {
			if err := admin.Create(c.ctx(), second.DeepCopy()); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), string(decide.RulePodNotPinned)) {
				c.t.Fatalf("got %v", err)
			}
		}
	}},
	{"D19 namespace delete + recreate", func(c *stage) {
		held := c.hold("mc")
		namespace := &corev1.Namespace{}
		namespace.Name = c.namespace
		if err := c.first().Delete(c.ctx(), namespace); err != nil {
			c.t.Fatal(err)
		}
		again := statefulSet(c.namespace, "mc")
		c.eventually(func() error {
			fresh := &corev1.Namespace{}
			fresh.Name = c.namespace
			if err := c.last().Create(c.ctx(), fresh); err != nil && !apierrors.IsAlreadyExists(err) {
				return err
			}
			return c.last().Create(c.ctx(), again)
		})
		c.eventually(func() error {
			if now := c.policy().Status.Holder; now == nil || now.UID != again.UID || now.UID == held.UID || now.Phase != guardv1alpha1.HolderBound {
				return fmt.Errorf("holder is %+v, want uid %s", now, again.UID)
			}
			return nil
		})
		c.awaitPod(c.namespace, "mc-0", "")
		c.instances(1)
	}},
	{"D22 image pull stuck", func(c *stage) {
		c.hold("mc")
		before := c.awaitPod(c.namespace, "mc-0", "")
		for _, image := range []string{"ghcr.io/metacontroller/metacontroller:no-such", instanceImage} {
			patch := client.RawPatch(types.StrategicMergePatchType, fmt.Appendf(nil, `{"spec":{"template":{"spec":{"containers":[{"name":"main","image":%q}]}}}}`, image))
			if err := c.last().Patch(c.ctx(), statefulSet(c.namespace, "mc"), patch); err != nil {
				c.t.Fatalf("%s: %v", image, err)
			}
		}
		if err := c.first().Delete(c.ctx(), pod(c.namespace, "mc-0", ""), client.GracePeriodSeconds(0)); err != nil {
			c.t.Fatal(err)
		}
		c.awaitPod(c.namespace, "mc-0", before)
	}},
	{"G02 G12 a copy beside the live one", func(c *stage) {
		held := c.hold("mc")
		live := &appsv1.StatefulSet{}
		if err := c.first().Get(c.ctx(), client.ObjectKeyFromObject(held), live); err != nil {
			c.t.Fatal(err)
		}
		copied := live.DeepCopy()
		copied.Namespace, copied.ResourceVersion = c.suite.namespace("restored"), ""
		refused(c.t, c.last().Create(c.ctx(), copied), decide.RuleSecondWorkload, c.namespace+"/mc")
		// What else is restored is.
		if err := c.last().Create(c.ctx(), pod(copied.Namespace, "other", strangerImage)); err != nil {
			c.t.Fatal(err)
		}
	}},
	{"G03 the status was lost", func(c *stage) {
		held := c.hold("mc")
		epoch := c.policy().Status.Epoch
		c.suite.free() // As a restored policy has none.
		err := c.last().Create(c.ctx(), statefulSet(c.namespace, "second"))
		if !apierrors.IsForbidden(err) {
			c.t.Fatalf("a second one got %v", err)
		}
		c.eventually(func() error {
			if now := c.policy().Status.Holder; now == nil || now.UID != held.UID || now.Phase != guardv1alpha1.HolderBound || now.Epoch <= epoch {
				return fmt.Errorf("holder is %+v, want uid %s after epoch %d", now, held.UID, epoch)
			}
			return nil
		})
	}},
	{"G07 two policies", func(c *stage) {
		other := &guardv1alpha1.SingletonPolicy{}
		other.Name = "other"
		if err := c.first().Create(c.ctx(), other); err != nil {
			c.t.Fatal(err)
		}
		defer func() { _ = c.first().Delete(context.Background(), other) }()
		// The guard judges by the one that it was started for.
		c.hold("mc")
		refused(c.t, c.last().Create(c.ctx(), statefulSet(c.namespace, "second")), decide.RuleSecondWorkload, c.namespace+"/mc")
	}},
}

// caseArgs let a guard release soon.
var caseArgs = []string{"--release-delay=300ms", "--api-request-timeout=1s", "--policy-max-age=100ms"}

// TestConcurrencyCases tries each case with clients and guards at as many API servers
// as the suite has, up to two; in the long form with all of them at one before.
func TestConcurrencyCases(t *testing.T) {
	first := min(apiServers(), 2)
	if os.Getenv(envLong) != "" {
		first = 1
	}
	for servers := first; servers <= min(apiServers(), 2); servers++ {
		t.Run(fmt.Sprintf("%d API servers", servers), func(t *testing.T) {
			s := prepare(t)
			s.timeout = 2
			s.admins = s.admins[:servers]
			for i := range 2 {
				s.start(guardConfig{server: i % servers, args: caseArgs})
			}
			s.point()
			s.admission(allLayers)
			for _, each := range casesInTurn {
				t.Run(each.name, func(t *testing.T) {
					s.revive(caseArgs...)
					c := &stage{suite: s.at(t), all: s, servers: servers}
					c.namespace = c.suite.namespace("case")
					defer c.vacate()
					each.run(c)
				})
			}
		})
	}
}

// plain creates until there is an answer.
func plain(ctx context.Context, admin client.Client, object client.Object) error {
	_, err := insist(ctx, admin, object)
	return err
}

// typed says the kind, which a client otherwise leaves out.
func typed(object *appsv1.StatefulSet) *appsv1.StatefulSet {
	object.SetGroupVersionKind(appsv1.SchemeGroupVersion.WithKind("StatefulSet"))
	return object
}
