package pin

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/utils/ptr"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

var updateFiles = flag.Bool("update", false, "write config/webhook instead of comparing it")

const manifests = "../../../config/webhook"

func TestManifestsAreRendered(t *testing.T) {
	files, err := Files(Options{})
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, f := range files {
		names[f.Name] = true
		path := filepath.Join(manifests, f.Name)
		if *updateFiles {
			if err := os.MkdirAll(manifests, 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, f.Data, 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(data), string(f.Data)); diff != "" {
			t.Errorf("%s is not what is rendered (-file +rendered); run go test ./pkg/guard/pin -update\n%s", path, diff)
		}
	}
	found, err := filepath.Glob(filepath.Join(manifests, "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		if !names[filepath.Base(path)] {
			t.Errorf("%s is not rendered by this package; remove it", path)
		}
	}
}

func TestRenderRefusesABadMatch(t *testing.T) {
	for name, render := range map[string]func(Options) error{
		"files": func(o Options) error { _, err := Files(o); return err },
		"yaml":  func(o Options) error { _, err := YAML(o); return err },
	} {
		err := render(Options{Match: v1alpha1.Match{Images: []string{"x' || true || '"}}})
		if err == nil || !strings.Contains(err.Error(), "match.images[0]") {
			t.Errorf("%s: got error %v, want one that names the pattern", name, err)
		}
	}
}

const image = "ghcr.io/metacontroller/metacontroller:v4.17.2"

func template(images ...string) corev1.PodTemplateSpec {
	var spec corev1.PodSpec
	for i, image := range images {
		spec.Containers = append(spec.Containers, corev1.Container{Name: string(rune('a' + i)), Image: image})
	}
	return corev1.PodTemplateSpec{Spec: spec}
}

// of makes the request for an object; a nil old makes it a create.
func of(object, old runtime.Object, gvr schema.GroupVersionResource, kind, user string) request {
	r := request{operation: admission.Create, resource: gvr, kind: gvr.GroupVersion().WithKind(kind), object: object, user: user}
	if old != nil {
		r.operation, r.old = admission.Update, old
	}
	meta := object.(metav1.Object)
	r.name, r.namespace = meta.GetName(), meta.GetNamespace()
	return r
}

var (
	apps  = schema.GroupVersion{Group: "apps", Version: "v1"}
	batch = schema.GroupVersion{Group: "batch", Version: "v1"}
)

func meta(namespace, name string, owners ...metav1.OwnerReference) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, OwnerReferences: owners}
}

func owner(kind, name, uid string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "apps/v1", Kind: kind, Name: name, UID: types.UID(uid), Controller: ptr.To(true)}
}

func pod(m metav1.ObjectMeta, images ...string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: m, Spec: template(images...).Spec}
}

func statefulSet(m metav1.ObjectMeta, replicas *int32, images ...string) *appsv1.StatefulSet {
	return &appsv1.StatefulSet{ObjectMeta: m, Spec: appsv1.StatefulSetSpec{Replicas: replicas, Template: template(images...)}}
}

func deployment(m metav1.ObjectMeta, replicas *int32, images ...string) *appsv1.Deployment {
	return &appsv1.Deployment{ObjectMeta: m, Spec: appsv1.DeploymentSpec{Replicas: replicas, Template: template(images...)}}
}

func scale(namespace, name string, before, after int32) request {
	at := func(n int32) *autoscalingv1.Scale {
		return &autoscalingv1.Scale{ObjectMeta: meta(namespace, name), Spec: autoscalingv1.ScaleSpec{Replicas: n}}
	}
	r := of(at(after), at(before), apps.WithResource("statefulsets"), "Scale", "someone")
	r.kind = schema.GroupVersionKind{Group: "autoscaling", Version: "v1", Kind: "Scale"}
	r.subresource = "scale"
	return r
}

// policyOf is a policy with a holder in that phase; none if phase is empty.
func policyOf(phase v1alpha1.HolderPhase) *v1alpha1.SingletonPolicy {
	p := policyWith(v1alpha1.DefaultMatch())
	if phase != "" {
		p.Status.Holder = &v1alpha1.Holder{Kind: "StatefulSet", Namespace: "mc", Name: "metacontroller", UID: "u1", Phase: phase, Epoch: 1}
	}
	return p
}

func TestRules(t *testing.T) {
	held, free, releasing := policyOf(v1alpha1.HolderBound), policyOf(""), policyOf(v1alpha1.HolderReleasing)
	reserved := policyOf(v1alpha1.HolderReserved)
	named := policyOf("")
	named.Spec.Holder = &v1alpha1.HolderReference{Namespace: "mc", Name: "metacontroller"}
	warns, audits := policyOf(v1alpha1.HolderBound), policyOf(v1alpha1.HolderBound)
	warns.Spec.ValidationActions = []v1alpha1.ValidationAction{v1alpha1.ActionWarn, v1alpha1.ActionAudit}
	audits.Spec.ValidationActions = []v1alpha1.ValidationAction{v1alpha1.ActionAudit}
	excepted := policyOf(v1alpha1.HolderBound)
	excepted.Status.ActiveExceptions = []v1alpha1.Exception{{Namespace: "mc", Name: "old", Reason: "moving"}}
	longNames := policyOf(v1alpha1.HolderBound)
	longNames.Status.Holder.Name = strings.Repeat("n", 253)

	podsGVR := podResource
	sts, deploy, rs := apps.WithResource("statefulsets"), apps.WithResource("deployments"), apps.WithResource("replicasets")
	by := owner("StatefulSet", "metacontroller", "u1")
	pinned := func(images ...string) *corev1.Pod { return pod(meta("mc", "metacontroller-0", by), images...) }
	labelled := pod(meta("mc", "other", by), image)
	labelled.Labels = map[string]string{"a": "b"}
	ephemeral := pod(meta("mc", "other"), "nginx")
	ephemeral.Spec.EphemeralContainers = []corev1.EphemeralContainer{{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "d", Image: image}}}
	grown := deployment(meta("mc", "d"), ptr.To[int32](1), image)
	grown.Annotations = map[string]string{"a": "b"}
	child := func(kind, name string) *corev1.Pod {
		return pod(meta("mc", name+"-x1", owner(kind, name, "u9")), image)
	}

	type testCase struct {
		why     string
		policy  *v1alpha1.SingletonPolicy
		request request
		rule    string
	}
	for _, suite := range []struct {
		policyName string
		cases      []testCase
	}{
		{PolicyName, []testCase{
			{"a stranger", held, of(pod(meta("x", "p"), "nginx"), nil, podsGVR, "Pod", "someone"), ""},
			{"a Pod without containers", held, of(pod(meta("x", "p")), nil, podsGVR, "Pod", "someone"), ""},
			{"the pinned Pod", held, of(pinned(image), nil, podsGVR, "Pod", StatefulSetController), ""},
			{"the pinned Pod by the one identity of all controllers", held, of(pinned(image), nil, podsGVR, "Pod", ControllerManager), ""},
			{"the pinned Pod while the claim is fresh", reserved, of(pinned(image), nil, podsGVR, "Pod", StatefulSetController), ""},
			{"the pinned Pod while the holder goes", releasing, of(pinned(image), nil, podsGVR, "Pod", StatefulSetController), "pod-not-pinned"},
			{"the pinned Pod with no holder", free, of(pinned(image), nil, podsGVR, "Pod", StatefulSetController), "pod-not-pinned"},
			{"the pinned Pod by a person", held, of(pinned(image), nil, podsGVR, "Pod", "someone"), "pod-not-pinned"},
			{"the pinned Pod by another controller", held, of(pinned(image), nil, podsGVR, "Pod", "system:serviceaccount:kube-system:replicaset-controller"), "pod-not-pinned"},
			{"the pinned name without owner", held, of(pod(meta("mc", "metacontroller-0"), image), nil, podsGVR, "Pod", StatefulSetController), "pod-not-pinned"},
			{"the pinned name of an older holder", held, of(pod(meta("mc", "metacontroller-0", owner("StatefulSet", "metacontroller", "u0")), image), nil, podsGVR, "Pod", StatefulSetController), "pod-not-pinned"},
			{"the pinned name in another namespace", held, of(pod(meta("x", "metacontroller-0", by), image), nil, podsGVR, "Pod", StatefulSetController), "pod-not-pinned"},
			{"another ordinal", held, of(pod(meta("mc", "metacontroller-1", by), image), nil, podsGVR, "Pod", StatefulSetController), "pod-not-pinned"},
			{"a bare Pod", held, of(pod(meta("x", "p"), image), nil, podsGVR, "Pod", "someone"), "pod-not-pinned"},
			{"two in the pinned Pod", held, of(pinned(image, image), nil, podsGVR, "Pod", StatefulSetController), "two-in-one-pod"},
			{"a hook beside it", held, of(pinned(image, "nginx"), nil, podsGVR, "Pod", StatefulSetController), ""},
			{"labels of a violator", held, of(labelled, pod(meta("mc", "other", by), image), podsGVR, "Pod", "someone"), ""},
			{"another image of a violator", held, of(pod(meta("mc", "other"), image+"0"), pod(meta("mc", "other"), image), podsGVR, "Pod", "someone"), "pod-not-pinned"},
			{"another image of the pinned Pod", held, of(pinned(image+"0"), pinned(image), podsGVR, "Pod", "someone"), ""},
			{"a harmless Pod gets the image", held, of(pod(meta("x", "p"), image), pod(meta("x", "p"), "nginx"), podsGVR, "Pod", "someone"), "became-instance"},
			{"a harmless Pod gets an ephemeral one", held, of(ephemeral, pod(meta("mc", "other"), "nginx"), podsGVR, "Pod", "someone"), "became-instance"},
			{"an instance becomes harmless", held, of(pod(meta("x", "p"), "nginx"), pod(meta("x", "p"), image), podsGVR, "Pod", "someone"), ""},
			{"a policy that warns", warns, of(pod(meta("x", "p"), image), nil, podsGVR, "Pod", "someone"), ""},
			{"a policy that audits", audits, of(pod(meta("x", "p"), image), nil, podsGVR, "Pod", "someone"), ""},
			{"an excepted Pod", excepted, of(pod(meta("mc", "old"), image), nil, podsGVR, "Pod", "someone"), ""},
			{"an excepted name in another namespace", excepted, of(pod(meta("x", "old"), image), nil, podsGVR, "Pod", "someone"), "pod-not-pinned"},
			{"a Pod of an excepted StatefulSet", excepted, of(child("StatefulSet", "old"), nil, podsGVR, "Pod", StatefulSetController), ""},
			{"a Pod of an excepted Deployment's ReplicaSet", excepted, of(child("ReplicaSet", "old-5d8f"), nil, podsGVR, "Pod", controllers+"replicaset-controller"), ""},
			{"a Pod of a ReplicaSet with a longer name", excepted, of(child("ReplicaSet", "old-er-5d8f"), nil, podsGVR, "Pod", controllers+"replicaset-controller"), "pod-not-pinned"},
			{"a Pod that says it is of an excepted one", excepted, of(child("StatefulSet", "old"), nil, podsGVR, "Pod", "someone"), "pod-not-pinned"},
			{"a holder with a long name", longNames, of(pod(meta("x", "p"), image), nil, podsGVR, "Pod", "someone"), "pod-not-pinned"},
		}},
		{WorkloadPolicyName, []testCase{
			{"a stranger", held, of(deployment(meta("x", "d"), nil, "nginx"), nil, deploy, "Deployment", "someone"), ""},
			{"a StatefulSet takes the free slot", free, of(statefulSet(meta("x", "s"), ptr.To[int32](1), image), nil, sts, "StatefulSet", "someone"), ""},
			{"a StatefulSet without replicas takes the free slot", free, of(statefulSet(meta("x", "s"), nil, image), nil, sts, "StatefulSet", "someone"), ""},
			{"a StatefulSet of two", free, of(statefulSet(meta("x", "s"), ptr.To[int32](2), image), nil, sts, "StatefulSet", "someone"), "scale-above-one"},
			{"a StatefulSet with two containers", free, of(statefulSet(meta("x", "s"), nil, image, image), nil, sts, "StatefulSet", "someone"), "two-in-one-pod"},
			{"the StatefulSet that the policy names", named, of(statefulSet(meta("mc", "metacontroller"), nil, image), nil, sts, "StatefulSet", "someone"), ""},
			{"another than the policy names", named, of(statefulSet(meta("x", "s"), nil, image), nil, sts, "StatefulSet", "someone"), "second-workload"},
			{"the holder made again", held, of(statefulSet(meta("mc", "metacontroller"), nil, image), nil, sts, "StatefulSet", "someone"), ""},
			{"another StatefulSet", held, of(statefulSet(meta("x", "metacontroller"), nil, image), nil, sts, "StatefulSet", "someone"), "second-workload"},
			{"another StatefulSet of none", held, of(statefulSet(meta("x", "s"), ptr.To[int32](0), image), nil, sts, "StatefulSet", "someone"), "second-workload"},
			{"another while the holder goes", releasing, of(statefulSet(meta("x", "s"), nil, image), nil, sts, "StatefulSet", "someone"), "second-workload"},
			{"a Deployment first", free, of(deployment(meta("x", "d"), nil, image), nil, deploy, "Deployment", "someone"), "workload-kind"},
			{"a Deployment second", held, of(deployment(meta("x", "d"), nil, image), nil, deploy, "Deployment", "someone"), "second-workload"},
			{"a Deployment with the holder's name", held, of(deployment(meta("mc", "metacontroller"), nil, image), nil, deploy, "Deployment", "someone"), "second-workload"},
			{"a ReplicaSet of a Deployment", held, of(&appsv1.ReplicaSet{ObjectMeta: meta("x", "d-1"), Spec: appsv1.ReplicaSetSpec{Template: template(image)}}, nil, rs, "ReplicaSet", controllers+"deployment-controller"), "second-workload"},
			{"a ReplicaSet of an excepted Deployment", excepted, of(&appsv1.ReplicaSet{ObjectMeta: meta("mc", "old-1", owner("Deployment", "old", "u9")), Spec: appsv1.ReplicaSetSpec{Template: template(image)}}, nil, rs, "ReplicaSet", controllers+"deployment-controller"), ""},
			{"a DaemonSet", free, of(&appsv1.DaemonSet{ObjectMeta: meta("x", "d"), Spec: appsv1.DaemonSetSpec{Template: template(image)}}, nil, apps.WithResource("daemonsets"), "DaemonSet", "someone"), "workload-kind"},
			{"a Job", held, of(&batchv1.Job{ObjectMeta: meta("x", "j"), Spec: batchv1.JobSpec{Template: template(image)}}, nil, batch.WithResource("jobs"), "Job", "someone"), "second-workload"},
			{"a CronJob", free, of(&batchv1.CronJob{ObjectMeta: meta("x", "j"), Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template(image)}}}}, nil, batch.WithResource("cronjobs"), "CronJob", "someone"), "workload-kind"},
			{"a ReplicationController without a template", held, of(&corev1.ReplicationController{ObjectMeta: meta("x", "r")}, nil, schema.GroupVersionResource{Version: "v1", Resource: "replicationcontrollers"}, "ReplicationController", "someone"), ""},
			{"a ReplicationController", held, of(&corev1.ReplicationController{ObjectMeta: meta("x", "r"), Spec: corev1.ReplicationControllerSpec{Template: ptr.To(template(image))}}, nil, schema.GroupVersionResource{Version: "v1", Resource: "replicationcontrollers"}, "ReplicationController", "someone"), "second-workload"},
			{"annotations of a violator", held, of(grown, deployment(meta("mc", "d"), ptr.To[int32](1), image), deploy, "Deployment", "someone"), ""},
			{"a violator goes down", held, of(deployment(meta("mc", "d"), ptr.To[int32](0), image), deployment(meta("mc", "d"), ptr.To[int32](3), image), deploy, "Deployment", "someone"), ""},
			{"a violator goes up", held, of(deployment(meta("mc", "d"), ptr.To[int32](1), image), deployment(meta("mc", "d"), ptr.To[int32](0), image), deploy, "Deployment", "someone"), "second-workload"},
			{"a violator gets another image", held, of(deployment(meta("mc", "d"), nil, image+"0"), deployment(meta("mc", "d"), nil, image), deploy, "Deployment", "someone"), "second-workload"},
			{"a violator becomes harmless", held, of(deployment(meta("mc", "d"), nil, "nginx"), deployment(meta("mc", "d"), nil, image), deploy, "Deployment", "someone"), ""},
			{"a harmless one becomes an instance", held, of(deployment(meta("mc", "d"), nil, image), deployment(meta("mc", "d"), nil, "nginx"), deploy, "Deployment", "someone"), "became-instance"},
			{"the holder gets another image", held, of(statefulSet(meta("mc", "metacontroller"), nil, image+"0"), statefulSet(meta("mc", "metacontroller"), nil, image), sts, "StatefulSet", "someone"), ""},
			{"the holder gets two replicas", held, of(statefulSet(meta("mc", "metacontroller"), ptr.To[int32](2), image), statefulSet(meta("mc", "metacontroller"), ptr.To[int32](1), image), sts, "StatefulSet", "someone"), "scale-above-one"},
			{"the holder goes down from three", held, of(statefulSet(meta("mc", "metacontroller"), ptr.To[int32](2), image), statefulSet(meta("mc", "metacontroller"), ptr.To[int32](3), image), sts, "StatefulSet", "someone"), ""},
			{"the holder is scaled up", held, scale("mc", "metacontroller", 1, 2), "scale-above-one"},
			{"the holder is scaled to one", held, scale("mc", "metacontroller", 0, 1), ""},
			{"the holder is scaled down from three", held, scale("mc", "metacontroller", 3, 2), ""},
			{"another is scaled up", held, scale("x", "metacontroller", 1, 5), ""},
			{"another is scaled up with no holder", free, scale("x", "s", 1, 5), ""},
			{"a policy that warns", warns, of(deployment(meta("x", "d"), nil, image), nil, deploy, "Deployment", "someone"), ""},
			{"an excepted Deployment", excepted, of(deployment(meta("mc", "old"), nil, image), nil, deploy, "Deployment", "someone"), ""},
		}},
	} {
		for _, c := range suite.cases {
			t.Run(suite.policyName+"/"+c.why, func(t *testing.T) {
				decision := validate(t, suite.policyName, c.request, c.policy)
				switch {
				case decision == nil && c.rule == "":
				case decision == nil:
					t.Fatalf("let through, want it refused by %s", c.rule)
				case c.rule == "" || !strings.HasPrefix(decision.Message, "["+c.rule+"] "):
					t.Fatalf("refused with %q (%s), want rule %q", decision.Message, decision.Evaluation, c.rule)
				case len(decision.Message) > MaxMessage || strings.Contains(decision.Message, "\n") || decision.Reason != metav1.StatusReasonForbidden:
					t.Errorf("the message has %d characters, reason %s: %q", len(decision.Message), decision.Reason, decision.Message)
				default:
					t.Log(decision.Message)
				}
			})
		}
	}
}

// inMode is a policy with a holder, or shards, in another mode than Strict.
func inMode(mode v1alpha1.Mode, edit func(*v1alpha1.SingletonPolicy)) *v1alpha1.SingletonPolicy {
	p := policyOf(v1alpha1.HolderBound)
	p.Spec.Mode = mode
	if edit != nil {
		edit(p)
	}
	return p
}

func flagged(args ...string) corev1.PodSpec {
	spec := template(image).Spec
	spec.Containers[0].Args = args
	return spec
}

func TestModes(t *testing.T) {
	elected := inMode(v1alpha1.ModeLeaderElected, nil)
	confirmed := inMode(v1alpha1.ModeLeaderElected, func(p *v1alpha1.SingletonPolicy) { p.Status.Holder.Elected = true })
	leased := inMode(v1alpha1.ModeLeaderElected, func(p *v1alpha1.SingletonPolicy) {
		p.Spec.Lease = &v1alpha1.LeaseReference{Namespace: "leases", Name: "mc"}
	})
	sharded := inMode(v1alpha1.ModeSharded, func(p *v1alpha1.SingletonPolicy) {
		p.Status.Slots = []v1alpha1.Slot{
			{Selector: "team=a", Holder: *p.Status.Holder},
			{Selector: "team=b", Holder: v1alpha1.Holder{Kind: "StatefulSet", Namespace: "mc", Name: "b", UID: "u2", Phase: v1alpha1.HolderBound, Epoch: 2}},
		}
		p.Status.Holder = nil
	})
	strict := policyOf(v1alpha1.HolderBound)
	violated := policyOf(v1alpha1.HolderBound)
	violated.Status.Instances = []v1alpha1.Instance{
		{Namespace: "x", Name: "web-5d8f-abc", Owner: "ReplicaSet/web-5d8f", Verdict: v1alpha1.InstanceViolation},
		{Namespace: "x", Name: "fine-5d8f-abc", Owner: "ReplicaSet/fine-5d8f", Verdict: v1alpha1.InstanceExcepted},
		{Namespace: "x", Name: "clone-1", Owner: "CloneSet/clone", Verdict: v1alpha1.InstanceViolation},
		{Namespace: "x", Name: "bare", Verdict: v1alpha1.InstanceViolation},
	}

	sts := apps.WithResource("statefulsets")
	podOf := func(name, owned, uid string, spec corev1.PodSpec) request {
		return of(&corev1.Pod{ObjectMeta: meta("mc", name, owner("StatefulSet", owned, uid)), Spec: spec}, nil, podResource, "Pod", StatefulSetController)
	}
	set := func(name string, replicas int32, spec corev1.PodSpec) *appsv1.StatefulSet {
		s := statefulSet(meta("mc", name), &replicas)
		s.Spec.Template.Spec = spec
		return s
	}
	starting := func(start int32) *appsv1.StatefulSet {
		s := set("metacontroller", 1, flagged())
		s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: start}
		return s
	}
	graceless := flagged()
	graceless.TerminationGracePeriodSeconds = ptr.To[int64](0)
	made := func(s *appsv1.StatefulSet) request { return of(s, nil, sts, "StatefulSet", "someone") }
	changed := func(before, after *appsv1.StatefulSet) request {
		return of(after, before, sts, "StatefulSet", "someone")
	}
	scaled := func(group, resource, name string, before, after int32) request {
		r := scale("x", name, before, after)
		r.resource = schema.GroupVersionResource{Group: group, Version: "v1", Resource: resource}
		return r
	}
	const name, election = "metacontroller", "--leader-election"

	for _, c := range []struct {
		why, policyName string
		policy          *v1alpha1.SingletonPolicy
		request         request
		rule            string
	}{
		{"the first Pod", PolicyName, elected, podOf(name+"-0", name, "u1", flagged(election)), ""},
		{"the first Pod without the flag", PolicyName, elected, podOf(name+"-0", name, "u1", flagged()), "leader-election"},
		{"the first Pod with another Lease", PolicyName, elected, podOf(name+"-0", name, "u1", flagged(election, "--leader-election-id=x")), "leader-election"},
		{"the first Pod with a flag that is swallowed", PolicyName, elected, podOf(name+"-0", name, "u1", flagged("--zap-log-level", election)), "leader-election"},
		{"the second Pod too early", PolicyName, elected, podOf(name+"-1", name, "u1", flagged(election)), "pod-not-pinned"},
		{"the second Pod", PolicyName, confirmed, podOf(name+"-1", name, "u1", flagged(election)), ""},
		{"the second Pod without the flag", PolicyName, confirmed, podOf(name+"-1", name, "u1", flagged()), "leader-election"},
		{"the second Pod with an odd ordinal", PolicyName, confirmed, podOf(name+"-01", name, "u1", flagged(election)), "pod-not-pinned"},
		{"the second Pod of an older holder", PolicyName, confirmed, podOf(name+"-1", name, "u0", flagged(election)), "pod-not-pinned"},
		{"the policy's Lease", PolicyName, leased, podOf(name+"-0", name, "u1", flagged(election, "--leader-election-id=mc", "--leader-election-namespace=leases")), ""},
		{"the default Lease, where the policy has another", PolicyName, leased, podOf(name+"-0", name, "u1", flagged(election)), "leader-election"},
		{"the Pod of a shard", PolicyName, sharded, podOf("b-0", "b", "u2", flagged("--target-label-selector=team=b")), ""},
		{"the Pod of a shard with another selector", PolicyName, sharded, podOf("b-0", "b", "u2", flagged("--target-label-selector=team=a")), "shard-overlap"},
		{"the Pod of a shard with two selectors", PolicyName, sharded, podOf("b-0", "b", "u2", flagged("--target-label-selector=team=b", "--target-label-selector=team=a")), "shard-overlap"},
		{"the Pod of a shard without a selector", PolicyName, sharded, podOf("b-0", "b", "u2", flagged()), "shard-overlap"},
		{"the second Pod of a shard", PolicyName, sharded, podOf("b-1", "b", "u2", flagged("--target-label-selector=team=b")), "pod-not-pinned"},
		{"the Pod of no shard", PolicyName, sharded, podOf("c-0", "c", "u3", flagged("--target-label-selector=team=c")), "pod-not-pinned"},

		{"replicas with the flag", WorkloadPolicyName, elected, made(set(name, 3, flagged(election))), ""},
		{"replicas without the flag", WorkloadPolicyName, elected, made(set(name, 3, flagged())), "leader-election"},
		{"the flag is removed", WorkloadPolicyName, elected, changed(set(name, 3, flagged(election)), set(name, 3, flagged())), "leader-election"},
		{"a shard is changed", WorkloadPolicyName, sharded, changed(set("b", 1, flagged("--target-label-selector=team=b")), set("b", 1, flagged("--target-label-selector=team=x"))), "shard-overlap"},
		{"a shard gets another image", WorkloadPolicyName, sharded, changed(set("b", 1, flagged("--target-label-selector=team=b")), func() *appsv1.StatefulSet {
			s := set("b", 1, flagged("--target-label-selector=team=b"))
			s.Spec.Template.Spec.Containers[0].Image += "0"
			return s
		}()), ""},
		{"a shard is scaled", WorkloadPolicyName, sharded, changed(set("b", 1, flagged("--target-label-selector=team=b")), set("b", 2, flagged("--target-label-selector=team=b"))), "scale-above-one"},
		{"a new shard, which only the guard can judge", WorkloadPolicyName, sharded, made(set("c", 1, flagged("--target-label-selector=team=c"))), "shard-overlap"},
		{"another start", WorkloadPolicyName, strict, changed(set(name, 1, flagged()), starting(1)), "ordinals"},
		{"the start of a new one", WorkloadPolicyName, policyOf(""), made(starting(2)), "ordinals"},
		{"the same start", WorkloadPolicyName, strict, changed(starting(1), starting(1)), ""},
		{"no grace", WorkloadPolicyName, strict, changed(set(name, 1, flagged()), set(name, 1, graceless)), "zero-grace"},
		{"as little grace as before", WorkloadPolicyName, strict, changed(set(name, 0, graceless), set(name, 1, graceless)), ""},

		{"the scale of a violator's Deployment", ScalePolicyName, violated, scaled("apps", "deployments", "web", 1, 2), "scale-above-one"},
		{"the scale of a Deployment whose name begins alike", ScalePolicyName, violated, scaled("apps", "deployments", "we", 1, 2), ""},
		{"the scale of an excepted one", ScalePolicyName, violated, scaled("apps", "deployments", "fine", 1, 2), ""},
		{"the scale of a stranger", ScalePolicyName, violated, scaled("apps", "deployments", "other", 1, 2), ""},
		{"the scale of a violator's custom kind", ScalePolicyName, violated, scaled("apps.kruise.io", "clonesets", "clone", 1, 2), "scale-above-one"},
		{"the scale of another kind of that name", ScalePolicyName, violated, scaled("x.io", "others", "clone", 1, 2), ""},
		{"a violator goes down", ScalePolicyName, violated, scaled("apps", "deployments", "web", 5, 2), ""},
		{"no violator", ScalePolicyName, strict, scaled("apps", "deployments", "web", 1, 2), ""},
	} {
		t.Run(c.policyName+"/"+c.why, func(t *testing.T) {
			decision := validate(t, c.policyName, c.request, c.policy)
			switch {
			case decision == nil && c.rule == "":
			case decision == nil:
				t.Fatalf("let through, want it refused by %s", c.rule)
			case c.rule == "" || !strings.HasPrefix(decision.Message, "["+c.rule+"] "):
				t.Fatalf("refused with %q (%s), want rule %q", decision.Message, decision.Evaluation, c.rule)
			case len(decision.Message) > MaxMessage:
				t.Errorf("the message has %d characters: %q", len(decision.Message), decision.Message)
			}
		})
	}
}

func scaler(kind string, most int32) request {
	object := &autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: meta("x", "h"), Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
		ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1", Kind: kind, Name: "s"}, MaxReplicas: most,
	}}
	return of(object, nil, schema.GroupVersionResource{Group: "autoscaling", Version: "v2", Resource: "horizontalpodautoscalers"}, "HorizontalPodAutoscaler", "someone")
}

func forced(image, node string, phase corev1.PodPhase, grace *int64) request {
	old := pod(meta("x", "p"), image)
	old.Spec.NodeName, old.Status.Phase = node, phase
	return request{
		operation: admission.Delete, resource: podResource, kind: podKind, old: old, name: "p", namespace: "x", user: "someone",
		options: &metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "DeleteOptions"}, GracePeriodSeconds: grace},
	}
}

func TestWebhookConditions(t *testing.T) {
	custom := v1alpha1.DefaultMatch()
	custom.Workloads = []v1alpha1.WorkloadRule{{Group: "apps.kruise.io", Resource: "clonesets", PodTemplatePath: "spec.workload.template"}}
	asks := newAsks(t, Options{Match: custom})
	clones := schema.GroupVersionResource{Group: "apps.kruise.io", Version: "v1", Resource: "clonesets"}
	cloneSet := func(image string) runtime.Object {
		return fromYAML(t, "{apiVersion: apps.kruise.io/v1, kind: CloneSet, metadata: {name: c, namespace: x}, spec: {workload: {template: {spec: {initContainers: null, containers: [{name: a, image: '"+image+"', command: null}]}}}}}")
	}
	sts := apps.WithResource("statefulsets")
	flagged := func(image string) *corev1.Pod {
		p := pod(meta("x", "p"), image)
		p.Spec.Containers[0].Args = []string{"--client-go-qps=1"}
		return p
	}
	annotated := statefulSet(meta("x", "s"), nil, image)
	annotated.Annotations = map[string]string{"a": "b"}
	for _, c := range []struct {
		why, webhook string
		request      request
		asked        bool
	}{
		{"an instance", WorkloadsWebhook, of(statefulSet(meta("x", "s"), nil, image), nil, sts, "StatefulSet", "someone"), true},
		{"a stranger", WorkloadsWebhook, of(statefulSet(meta("x", "s"), nil, "nginx"), nil, sts, "StatefulSet", "someone"), false},
		{"an annotation", WorkloadsWebhook, of(annotated, statefulSet(meta("x", "s"), nil, image), sts, "StatefulSet", "someone"), false},
		{"more replicas", WorkloadsWebhook, of(statefulSet(meta("x", "s"), ptr.To[int32](2), image), statefulSet(meta("x", "s"), nil, image), sts, "StatefulSet", "someone"), true},
		{"a CronJob", WorkloadsWebhook, of(&batchv1.CronJob{ObjectMeta: meta("x", "j"), Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: template(image)}}}}, nil, batch.WithResource("cronjobs"), "CronJob", "someone"), true},
		{"a custom kind", WorkloadsWebhook, of(cloneSet(image), nil, clones, "CloneSet", "someone"), true},
		{"a custom kind, a stranger", WorkloadsWebhook, of(cloneSet("nginx"), nil, clones, "CloneSet", "someone"), false},
		{"a Pod", PodsWebhook, of(pod(meta("x", "p"), image), nil, podResource, "Pod", "someone"), true},
		{"another Pod", PodsWebhook, of(pod(meta("x", "p"), "nginx"), nil, podResource, "Pod", "someone"), false},
		{"a guard's Pod", PodsWebhook, of(pod(meta("metacontroller-guard", "p"), "ghcr.io/metacontroller-solo/guard:v1"), nil, podResource, "Pod", "someone"), false},
		{"a Pod that is no suspect", SuspectsWebhook, of(pod(meta("x", "p"), "nginx"), nil, podResource, "Pod", "someone"), false},
		{"an instance is no suspect", SuspectsWebhook, of(flagged(image), nil, podResource, "Pod", "someone"), false},
		{"a suspect", SuspectsWebhook, of(flagged("x"), nil, podResource, "Pod", "someone"), true},
		{"a suspect is no instance", PodsWebhook, of(flagged("x"), nil, podResource, "Pod", "someone"), false},
		{"a label of a suspect", SuspectsWebhook, of(flagged("x"), flagged("x"), podResource, "Pod", "someone"), false},
		{"another image of a suspect", SuspectsWebhook, of(flagged("y"), flagged("x"), podResource, "Pod", "someone"), true},
		{"a suspect of a custom kind", SuspectsWebhook, of(fromYAML(t, "{apiVersion: apps.kruise.io/v1, kind: CloneSet, metadata: {name: c, namespace: x}, spec: {workload: {template: {spec: {containers: [{name: a, image: x, command: null, args: [--client-go-qps=1]}]}}}}}"), nil, clones, "CloneSet", "someone"), true},
		{"a scale above one", ScaleWebhook, scale("x", "s", 1, 2), true},
		{"a scale to one", ScaleWebhook, scale("x", "s", 0, 1), false},
		{"a scale down", ScaleWebhook, scale("x", "s", 5, 3), false},
		{"an autoscaler", AutoscalersWebhook, scaler("StatefulSet", 5), true},
		{"an autoscaler of one", AutoscalersWebhook, scaler("StatefulSet", 1), false},
		{"an autoscaler of a Deployment", AutoscalersWebhook, scaler("Deployment", 5), false},
		{"a forced delete", ForcedWebhook, forced(image, "n", "", ptr.To[int64](0)), true},
		{"a delete", ForcedWebhook, forced(image, "n", "", nil), false},
		{"a delete with grace", ForcedWebhook, forced(image, "n", "", ptr.To[int64](5)), false},
		{"a forced delete before the Pod has a node", ForcedWebhook, forced(image, "", "", ptr.To[int64](0)), false},
		{"a forced delete of a Pod that has ended", ForcedWebhook, forced(image, "n", corev1.PodFailed, ptr.To[int64](0)), false},
		{"a forced delete of a stranger", ForcedWebhook, forced("nginx", "n", "", ptr.To[int64](0)), false},
	} {
		t.Run(c.why, func(t *testing.T) {
			asked, err := asks.about(t, c.webhook, c.request)
			if err != nil {
				t.Fatal(err)
			}
			if asked != c.asked {
				t.Errorf("the guard is asked: %v, want %v", asked, c.asked)
			}
		})
	}
}
