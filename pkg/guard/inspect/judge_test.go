package inspect_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"pgregory.net/rapid"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
)

var now = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// held is a policy whose slot prod/mc has.
func held() *guardv1alpha1.SingletonPolicy {
	return &guardv1alpha1.SingletonPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "metacontroller", UID: "policy", Generation: 3},
		Spec:       guardv1alpha1.SingletonPolicySpec{Match: guardv1alpha1.DefaultMatch(), ValidationActions: []guardv1alpha1.ValidationAction{guardv1alpha1.ActionDeny}},
		Status: guardv1alpha1.SingletonPolicyStatus{Holder: &guardv1alpha1.Holder{
			Kind: "StatefulSet", Namespace: "prod", Name: "mc", Display: "prod/mc", UID: "sts", Phase: guardv1alpha1.HolderBound, Epoch: 1,
		}},
	}
}

func owner(kind, name string, uid types.UID) *inspect.Owner {
	return &inspect.Owner{APIVersion: "apps/v1", Kind: kind, Name: name, UID: uid}
}

func workload(kind, namespace, name string, uid types.UID) inspect.Workload {
	return inspect.Workload{
		Object:   inspect.Object{APIVersion: "apps/v1", Kind: kind, Namespace: namespace, Name: name, UID: uid},
		Replicas: attempt.Replicas{Count: 1},
	}
}

func pinned() inspect.Pod {
	return inspect.Pod{Namespace: "prod", Name: "mc-0", UID: "p0", Node: "n1", Owner: owner("StatefulSet", "mc", "sts"), Instances: []string{"main"}}
}

func stray() inspect.Pod {
	return inspect.Pod{Namespace: "other", Name: "d-1-x", UID: "p1", Node: "n2", Owner: owner("ReplicaSet", "d-1", "rs"), Instances: []string{"main"}}
}

// inOrder is a cluster in which nothing is wrong.
func inOrder() inspect.Facts {
	return inspect.Facts{
		Policy: held(), Name: "metacontroller", Now: now, Pods: []inspect.Pod{pinned()}, Workloads: []inspect.Workload{workload("StatefulSet", "prod", "mc", "sts")},
		Nodes: map[string]inspect.Node{"n1": {Ready: true}}, HolderUID: "sts", HolderRead: true,
		Leases:    []inspect.Lease{{Namespace: "kube-system", Name: "metacontroller", Holder: "mc-0_p0", Pod: "mc-0", PodUID: "p0", Fixed: true, Live: true}},
		Admission: []inspect.Compared{{Object: inspect.Object{APIVersion: "v1", Kind: "W", Name: "w"}, Fix: "apply"}},
	}
}

var asked = inspect.Asked{Kind: "W", Name: "w", Webhook: "a"}

func TestJudge(t *testing.T) {
	minutes := func(n int) *time.Time { at := now.Add(time.Duration(n) * time.Minute); return &at }
	with := func(change func(*inspect.Facts)) inspect.Facts {
		f := inOrder()
		change(&f)
		return f
	}
	pods := func(pods ...inspect.Pod) inspect.Facts {
		return with(func(f *inspect.Facts) { f.Pods = append(f.Pods, pods...) })
	}
	works := func(w ...inspect.Workload) inspect.Facts {
		return with(func(f *inspect.Facts) { f.Workloads = append(f.Workloads, w...) })
	}
	child := func(w inspect.Workload, o *inspect.Owner) inspect.Workload { w.Owner = o; return w }
	tests := map[string]struct {
		reason string
		facts  inspect.Facts
		want   []string
	}{
		"in order": {"nothing is found", inOrder(), nil},
		"bare Pod": {"it is no pinned one", pods(inspect.Pod{Namespace: "a", Name: "b", Instances: []string{"m"}}), []string{"instance-not-pinned Pod a/b"}},
		"G01 Deployment": {"its Pod, and it, but not its ReplicaSet", with(func(f *inspect.Facts) {
			f.Pods = append(f.Pods, stray())
			f.Workloads = append(f.Workloads, child(workload("ReplicaSet", "other", "d-1", "rs"), owner("Deployment", "d", "dep")), workload("Deployment", "other", "d", "dep"))
		}), []string{"instance-not-pinned Pod other/d-1-x", "workload-not-holder Deployment other/d"}},
		"pinned name, other owner": {"a name alone is nothing", with(func(f *inspect.Facts) { f.Pods[0].Owner = owner("Job", "j", "j") }), []string{"instance-not-pinned Pod prod/mc-0"}},
		"orphan":                   {"the StatefulSet takes it back", with(func(f *inspect.Facts) { f.Pods[0].Owner = nil }), nil},
		"replica in Strict":        {"only ordinal 0 is pinned", pods(inspect.Pod{Namespace: "prod", Name: "mc-1", Owner: owner("StatefulSet", "mc", "sts"), Instances: []string{"m"}}), []string{"instance-not-pinned Pod prod/mc-1"}},
		"D12 Pending":              {"a Pod that waits is the active one too", with(func(f *inspect.Facts) { f.Pods[0].Pending = true }), nil},
		"D15 static Pod":           {"nobody can refuse it", pods(inspect.Pod{Namespace: "a", Name: "b-n2", Node: "n2", Static: true, Instances: []string{"m"}}), []string{"static-pod Pod a/b-n2"}},
		"B05 same account":         {"what cannot be recognised may use an instance's rights", pods(inspect.Pod{Namespace: "prod", Name: "b", Account: "prod/mc"}), []string{"shared-service-account Pod prod/b"}},
		"flags":                    {"may be one", pods(inspect.Pod{Namespace: "a", Name: "b", Suspects: []string{"m"}}), []string{"suspected-instance Pod a/b"}},
		"two in the pinned Pod":    {"the second is a second", with(func(f *inspect.Facts) { f.Pods[0].Instances = []string{"a", "b"} }), []string{"two-in-one-pod Pod prod/mc-0"}},
		"excepted": {"break-glass", with(func(f *inspect.Facts) {
			f.Policy.Spec.Exceptions = []guardv1alpha1.Exception{{Namespace: "other", Name: "d", Reason: "r", Expires: metav1.NewTime(now.Add(time.Hour))}}
			f.Policy.Status.ActiveExceptions = f.Policy.Spec.Exceptions
			f.Pods = append(f.Pods, stray())
			f.Workloads = append(f.Workloads, workload("Deployment", "other", "d", "dep"))
		}), nil},
		"expired": {"it stays written and lets nothing in", with(func(f *inspect.Facts) {
			f.Policy.Spec.Exceptions = []guardv1alpha1.Exception{{Namespace: "other", Name: "d", Reason: "r", Expires: metav1.NewTime(now)}}
		}), []string{"exception-expired SingletonPolicy metacontroller"}},
		"CronJob":            {"it would run one", works(workload("CronJob", "a", "c", "c")), []string{"workload-not-holder CronJob a/c"}},
		"second StatefulSet": {"at 0 replicas too", works(workload("StatefulSet", "a", "s", "s")), []string{"workload-not-holder StatefulSet a/s"}},
		"free, one":          {"the guard adopts it", with(func(f *inspect.Facts) { f.Policy.Status.Holder = nil; f.Pods, f.Leases = nil, nil }), nil},
		"free, two": {"a person decides", with(func(f *inspect.Facts) {
			f.Policy.Status.Holder = nil
			f.Pods, f.Leases = nil, nil
			f.Workloads = append(f.Workloads, workload("StatefulSet", "a", "s", "s"))
		}), []string{"no-clear-holder SingletonPolicy metacontroller"}},
		"scaled":         {"no second Pod is let in", with(func(f *inspect.Facts) { f.Workloads[0].Replicas.Count = 2 }), []string{"scaled-above-one StatefulSet prod/mc"}},
		"D01 node lost":  {"nobody can tell", with(func(f *inspect.Facts) { f.Pods[0].Ends, f.Nodes["n1"] = minutes(-10), inspect.Node{} }), []string{"pod-blocked Pod prod/mc-0"}},
		"D06 long grace": {"it may take its time", with(func(f *inspect.Facts) { f.Pods[0].Ends = minutes(5) }), nil},
		"D01 stuck":      {"the node is there and does not end it", with(func(f *inspect.Facts) { f.Pods[0].Ends = minutes(-5) }), []string{"pod-blocked Pod prod/mc-0"}},
		"D03 taint":      {"somebody vouches, and the node disagrees", with(func(f *inspect.Facts) { f.Nodes["n9"] = inspect.Node{Ready: true, OutOfService: true} }), []string{"node-not-proven-dead Node n9"}},
		"D03 dead":       {"the node agrees", with(func(f *inspect.Facts) { f.Nodes["n9"] = inspect.Node{OutOfService: true} }), nil},
		"B22 laptop": {"a Lease that no Pod has", with(func(f *inspect.Facts) {
			f.Leases[0].Holder, f.Leases[0].Pod, f.Leases[0].PodUID = "laptop_x", "laptop", ""
		}), []string{"unknown-writer Lease kube-system/metacontroller"}},
		"zombie": {"the Pod before", with(func(f *inspect.Facts) { f.Leases[0].PodUID = "older" }), []string{"unknown-writer Lease kube-system/metacontroller"}},
		"public in its own ns": {"elects there", with(func(f *inspect.Facts) {
			f.Leases[0] = inspect.Lease{Namespace: "prod", Name: "metacontroller", Holder: "mc-0_r", Pod: "mc-0", Live: true}
		}), nil},
		"same name elsewhere": {"another namespace is another Pod", with(func(f *inspect.Facts) {
			f.Leases = append(f.Leases, inspect.Lease{Namespace: "x", Name: "metacontroller", Holder: "mc-0_r", Pod: "mc-0", Live: true})
		}), []string{"unknown-writer Lease x/metacontroller"}},
		"stale Lease":     {"nobody writes", with(func(f *inspect.Facts) { f.Leases[0].Live = false; f.Leases[0].Pod = "x" }), nil},
		"holder gone":     {"its Pods keep the slot", with(func(f *inspect.Facts) { f.HolderUID = "" }), []string{"holder-gone StatefulSet prod/mc"}},
		"holder not read": {"nothing is known", with(func(f *inspect.Facts) { f.HolderUID, f.HolderRead = "", false }), nil},
		"G07 no policy":   {"said", with(func(f *inspect.Facts) { f.Policy = nil }), []string{"policy-missing SingletonPolicy metacontroller"}},
		"G07 two policies": {"the same pattern twice", with(func(f *inspect.Facts) {
			f.Others = []guardv1alpha1.SingletonPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: guardv1alpha1.SingletonPolicySpec{Match: guardv1alpha1.DefaultMatch()}}}
		}), []string{"policy-conflict SingletonPolicy b"}},
		"another singleton": {"two things, two policies", with(func(f *inspect.Facts) {
			f.Others = []guardv1alpha1.SingletonPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: guardv1alpha1.SingletonPolicySpec{Match: guardv1alpha1.Match{Images: []string{"**/x/y"}}}}}
		}), nil},
		"F01 deleted": {"critical", with(func(f *inspect.Facts) { f.Admission[0].Missing = true }), []string{"admission-missing W w"}},
		"F02 field by field": {"each its own", with(func(f *inspect.Facts) {
			f.Admission[0].Differences = []inspect.Difference{{Path: "webhooks[a].failurePolicy", Want: "Fail", Got: "Ignore"}, {Path: "webhooks[a].timeoutSeconds", Want: "5", Got: "1"}}
		}), []string{"admission-drift W w webhooks[a].failurePolicy", "admission-drift W w webhooks[a].timeoutSeconds"}},
		"F23 CRD": {"its schema", with(func(f *inspect.Facts) {
			f.Admission = append(f.Admission, inspect.Compared{Object: inspect.Object{Kind: "CustomResourceDefinition", Name: "c"}, CRD: true, Fix: "apply", Differences: []inspect.Difference{{Path: "spec.versions"}}})
		}), []string{"crd-drift CustomResourceDefinition c spec.versions"}},
		"E29 silent": {"nobody leads", with(func(f *inspect.Facts) { f.GuardSilence = time.Minute }), []string{"guard-silent SingletonPolicy metacontroller"}},
		"not allowed": {"what is not seen is said", with(func(f *inspect.Facts) {
			f.Unread = []inspect.Unread{{What: "clonesets.apps.kruise.io", Why: "forbidden"}}
		}), []string{"unreadable Resource clonesets.apps.kruise.io"}},
		"invalid": {"said", with(func(f *inspect.Facts) { f.Invalid = "no words" }), []string{"policy-invalid SingletonPolicy metacontroller"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, f := range inspect.Judge(test.facts) {
				got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s", f.ID, f.Object, pathOf(f))))
				if f.Message == "" || f.Fix == "" || f.Severity == "" || strings.Contains(f.Message+f.Fix, "\n") {
					t.Errorf("incomplete: %+v", f)
				}
				if !slices.Contains(inspect.IDs(), f.ID) {
					t.Errorf("%q is in no list", f.ID)
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", test.reason, diff)
			}
		})
	}
}

func pathOf(f inspect.Finding) string {
	if f.ID.Drift() {
		return f.Path
	}
	return ""
}

func TestConditions(t *testing.T) {
	state := func(f inspect.Facts) string {
		conditions := inspect.Conditions(f, inspect.Judge(f), asked)
		var all []string
		for _, kind := range []string{guardv1alpha1.ConditionEnforcing, guardv1alpha1.ConditionCompliant, guardv1alpha1.ConditionDrifted} {
			c := meta.FindStatusCondition(conditions, kind)
			if c == nil || c.ObservedGeneration != 3 {
				t.Fatalf("%s is %+v", kind, c)
			}
			all = append(all, fmt.Sprintf("%s=%s/%s", kind, c.Status, c.Reason))
		}
		return strings.Join(all, " ")
	}
	drift := func(d ...inspect.Difference) inspect.Facts { f := inOrder(); f.Admission[0].Differences = d; return f }
	tests := map[string]struct {
		facts inspect.Facts
		want  string
	}{
		"in order":  {inOrder(), "Enforcing=True/Deny Compliant=True/AtMostOne Drifted=False/InStep"},
		"violation": {func() inspect.Facts { f := inOrder(); f.Pods = append(f.Pods, stray()); return f }(), "Enforcing=True/Deny Compliant=False/Violations Drifted=False/InStep"},
		"warn only": {func() inspect.Facts {
			f := inOrder()
			f.Policy.Spec.ValidationActions = []guardv1alpha1.ValidationAction{guardv1alpha1.ActionWarn}
			return f
		}(), "Enforcing=False/NotDenying Compliant=True/AtMostOne Drifted=False/InStep"},
		"invalid":       {func() inspect.Facts { f := inOrder(); f.Invalid = "x"; return f }(), "Enforcing=False/InvalidMatch Compliant=True/AtMostOne Drifted=False/InStep"},
		"missing":       {func() inspect.Facts { f := inOrder(); f.Admission[0].Missing = true; return f }(), "Enforcing=False/NotAsked Compliant=True/AtMostOne Drifted=True/Missing"},
		"not compared":  {func() inspect.Facts { f := inOrder(); f.Admission = nil; return f }(), "Enforcing=False/NotAsked Compliant=True/AtMostOne Drifted=False/InStep"},
		"fails open":    {drift(inspect.Difference{Path: "webhooks[a].failurePolicy", Want: "Fail", Got: "Ignore"}), "Enforcing=False/NotAsked Compliant=True/AtMostOne Drifted=True/Differs"},
		"no caBundle":   {drift(inspect.Difference{Path: "webhooks[a].clientConfig.caBundle"}), "Enforcing=False/NotAsked Compliant=True/AtMostOne Drifted=True/Differs"},
		"timeout":       {drift(inspect.Difference{Path: "webhooks[a].timeoutSeconds"}), "Enforcing=True/Deny Compliant=True/AtMostOne Drifted=True/Differs"},
		"other webhook": {drift(inspect.Difference{Path: "webhooks[b].failurePolicy"}), "Enforcing=True/Deny Compliant=True/AtMostOne Drifted=True/Differs"},
		"blind": {func() inspect.Facts {
			f := inOrder()
			f.Unread = []inspect.Unread{{What: "pods", Why: "forbidden"}}
			return f
		}(), "Enforcing=True/Deny Compliant=Unknown/Unreadable Drifted=False/InStep"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := state(test.facts); got != test.want {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

// The order in which facts come changes nothing; what is found keeps its time in
// the status, and a status never grows above its limits.
func TestJudgeIsSteady(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := inOrder()
		for i := range rapid.IntRange(0, 150).Draw(t, "pods") {
			f.Pods = append(f.Pods, inspect.Pod{Namespace: rapid.SampledFrom([]string{"a", "prod"}).Draw(t, "namespace"), Name: fmt.Sprintf("p%d", i), UID: types.UID(fmt.Sprint(i)), Instances: []string{"m"}})
		}
		first := inspect.Judge(f)
		f.Pods = rapid.Permutation(f.Pods).Draw(t, "order")
		if diff := cmp.Diff(first, inspect.Judge(f)); diff != "" {
			t.Fatal(diff)
		}
		status := inspect.Status(first, nil, now)
		later := inspect.Status(first, status, now.Add(time.Hour))
		if len(status) > inspect.MaxStatus || len(inspect.Instances(f.Pods, nil, &f.Policy.Status)) > inspect.MaxInstances {
			t.Fatal("the status is too long")
		}
		if diff := cmp.Diff(status, later); diff != "" {
			t.Fatalf("the same findings are written anew: %s", diff)
		}
		for i, written := range later {
			if inspect.FromStatus(written) != first[i] {
				t.Fatalf("%+v is read back as %+v", first[i], inspect.FromStatus(written))
			}
		}
	})
}

func TestTop(t *testing.T) {
	rs := workload("ReplicaSet", "a", "d-1", "rs")
	rs.Owner = owner("Deployment", "d", "dep")
	dep := workload("Deployment", "a", "d", "dep")
	dep.Owner = &inspect.Owner{APIVersion: "x/v1", Kind: "App", Name: "app", UID: "app"}
	circle := workload("ReplicaSet", "a", "c", "c")
	circle.Owner = owner("ReplicaSet", "c", "c")
	all := []inspect.Workload{rs, dep, circle}
	for _, test := range []struct {
		owner *inspect.Owner
		want  string
	}{
		{nil, ""},
		{owner("ReplicaSet", "d-1", "rs"), "App/app"},
		{owner("ReplicaSet", "e-1", "unknown"), "ReplicaSet/e-1"},
		{owner("ReplicaSet", "c", "c"), "ReplicaSet/c"},
	} {
		if got := inspect.Top(test.owner, "a", all); got != test.want {
			t.Errorf("Top(%v) = %q, want %q", test.owner, got, test.want)
		}
	}
}

// F14: what changed is named, and no value but an image is shown.
func TestChangesHideValues(t *testing.T) {
	before := object(t, `{"containers": [{"name": "m", "image": "a", "env": [{"name": "T", "value": "old-secret"}]}]}`)
	after := object(t, `{"containers": [{"name": "m", "image": "b", "env": [{"name": "T", "value": "new-secret"}, {"name": "U", "value": "another-secret"}]}], "hostNetwork": true}`)
	got := fmt.Sprint(inspect.Changes(before, after))
	for _, part := range []string{"containers[m].image a b", "containers[m].env[T].value", "env[U]", "hostNetwork"} {
		if !strings.Contains(got, part) {
			t.Errorf("%q is not in %s", part, got)
		}
	}
	if strings.Contains(got, "secret") {
		t.Errorf("a value is shown: %s", got)
	}
}

func TestPodOf(t *testing.T) {
	signature, err := identify.Compile(guardv1alpha1.DefaultMatch())
	if err != nil {
		t.Fatal(err)
	}
	pod := func(image string, change func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"}, Spec: corev1.PodSpec{ServiceAccountName: "s", Containers: []corev1.Container{{Name: "m", Image: image}}}}
		if change != nil {
			change(p)
		}
		return p
	}
	const instance = "ghcr.io/metacontroller/metacontroller:v4"
	accounts := inspect.Accounts{"a/s": true}
	tests := map[string]struct {
		pod      *corev1.Pod
		accounts inspect.Accounts
		kept     bool
		check    func(inspect.Pod) bool
	}{
		"stranger":   {pod("nginx", nil), nil, false, nil},
		"instance":   {pod(instance, nil), nil, true, inspect.Pod.Instance},
		"ended":      {pod(instance, func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), accounts, false, nil},
		"account":    {pod("nginx", nil), accounts, true, func(p inspect.Pod) bool { return !p.Instance() && p.Account == "a/s" }},
		"D15 mirror": {pod(instance, func(p *corev1.Pod) { p.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"} }), nil, true, func(p inspect.Pod) bool { return p.Static }},
		"D15 owned by node": {pod(instance, func(p *corev1.Pod) {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: "Node", Name: "n", Controller: new(true)}}
		}), nil, true, func(p inspect.Pod) bool { return p.Static }},
	}
	for name, test := range tests {
		fact, kept := inspect.PodOf(test.pod, signature, test.accounts)
		if kept != test.kept || kept && !test.check(fact) {
			t.Errorf("%s: %+v, %v", name, fact, kept)
		}
	}
}
