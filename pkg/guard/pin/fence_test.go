package pin

import (
	"context"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/utils/ptr"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/singleton"
)

const fencedUser = "system:serviceaccount:mc:sa"

// who is the user of a request.
type who struct{ name, pod, uid string }

func (w who) info() user.Info {
	info := &user.DefaultInfo{Name: w.name}
	if w.pod != "" {
		info.Extra = map[string][]string{extraPodName: {w.pod}, extraPodUID: {w.uid}}
	}
	return info
}

func fencedPolicy(change func(*v1alpha1.SingletonPolicy)) *v1alpha1.SingletonPolicy {
	p := policyOf(v1alpha1.HolderBound)
	p.Spec.Fence = &v1alpha1.Fence{ServiceAccount: v1alpha1.ServiceAccountReference{Namespace: "mc", Name: "sa"}, Action: v1alpha1.FenceDeny}
	if change != nil {
		change(p)
	}
	return p
}

// judge puts a request to one of the fence's policies, and returns the message of
// its refusal, "" if it lets it through, and what its annotations say.
func judge(t *testing.T, name string, r request, by who, policy *v1alpha1.SingletonPolicy) (message string, annotations map[string]string) {
	t.Helper()
	var rendered *admissionregistrationv1.ValidatingAdmissionPolicy
	for _, object := range fence(Options{}.withDefaults()) {
		if p, ok := object.(*admissionregistrationv1.ValidatingAdmissionPolicy); ok && p.Name == name {
			rendered = p
		}
	}
	for _, object := range []runtime.Object{r.object, r.old} {
		if object != nil {
			object.GetObjectKind().SetGroupVersionKind(r.kind)
		}
	}
	record := admission.NewAttributesRecord(r.object, r.old, r.kind, r.namespace, r.name, r.resource, r.subresource, r.operation, r.options, false, by.info())
	versioned, err := admission.NewVersionedAttributes(record, r.kind, nil)
	if err != nil {
		t.Fatal(err)
	}
	var params runtime.Object
	if rendered.Spec.ParamKind != nil {
		params = unstructuredOf(t, policy)
	}
	result := validator(t, rendered).Validate(context.Background(), r.resource, versioned, params, nil, celconfig.RuntimeCELCostBudget, nil)
	annotations = map[string]string{}
	for _, a := range result.AuditAnnotations {
		if a.Action == validating.AuditAnnotationActionError {
			t.Fatalf("annotation %s: %s", a.Key, a.Error)
		}
		if a.Action == validating.AuditAnnotationActionPublish {
			annotations[a.Key] = a.Value
		}
	}
	for _, d := range result.Decisions {
		if d.Evaluation == validating.EvalError {
			t.Fatalf("cannot evaluate: %s", d.Message)
		}
		if d.Action == validating.ActionDeny {
			return d.Message, annotations
		}
	}
	return "", annotations
}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}

func writeOf(operation admission.Operation) request {
	object := &corev1.ConfigMap{ObjectMeta: meta("x", "a")}
	r := request{operation: operation, resource: configMaps, kind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, name: "a", namespace: "x", object: object, old: object}
	switch operation {
	case admission.Create:
		r.old = nil
	case admission.Delete:
		r.object = nil
	case admission.Connect:
		r.object, r.old = &corev1.PodExecOptions{}, nil
		r.kind = schema.GroupVersionKind{Version: "v1", Kind: "PodExecOptions"}
	}
	return r
}

func TestFenceRule(t *testing.T) {
	active, other := who{fencedUser, "metacontroller-0", "u-active"}, who{fencedUser, "busybox", "u-other"}
	before := who{fencedUser, "metacontroller-0", "u-before"}
	replica := who{fencedUser, "metacontroller-12", "u-replica"}
	marked := func(p *v1alpha1.SingletonPolicy) {
		p.Status.Writer = &v1alpha1.Writer{Namespace: "mc", Name: "metacontroller-0", UID: "u-active"}
	}
	mode := func(mode v1alpha1.Mode) func(*v1alpha1.SingletonPolicy) {
		return func(p *v1alpha1.SingletonPolicy) {
			marked(p)
			p.Spec.Mode = mode
			if mode == v1alpha1.ModeSharded {
				p.Status.Slots = []v1alpha1.Slot{{Selector: "a=b", Holder: *p.Status.Holder}, {Selector: "a=c", Holder: v1alpha1.Holder{Namespace: "mc", Name: "busy", UID: "u2"}}}
				p.Status.Holder = nil
			}
		}
	}
	lease := func(namespace, name string) request {
		r := writeOf(admission.Update)
		object := &coordinationv1.Lease{ObjectMeta: meta(namespace, name)}
		r.object, r.old, r.namespace, r.name = object, object, namespace, name
		r.kind = schema.GroupVersionKind{Group: leaseGroup, Version: "v1", Kind: "Lease"}
		r.resource = schema.GroupVersionResource{Group: leaseGroup, Version: "v1", Resource: leaseResource}
		return r
	}
	update := writeOf(admission.Update)
	for _, c := range []struct {
		why     string
		policy  func(*v1alpha1.SingletonPolicy)
		by      who
		request request
		want    string
	}{
		{"somebody else", nil, who{name: "someone"}, update, ""},
		{"another account of the namespace", nil, who{"system:serviceaccount:mc:other", "busybox", "u"}, update, ""},
		{"the holder's Pod, unmarked", nil, active, update, ""},
		{"the holder's Pod, marked", marked, active, update, ""},
		{"the Pod before", marked, before, update, "is not the writer any more, metacontroller-0_u-active is"},
		{"another Pod", nil, other, update, "Pod busybox is none of mc/metacontroller"},
		{"a token of no Pod", nil, who{name: fencedUser}, update, "this token is of no Pod"},
		{"a replica in mode Strict", nil, replica, update, "is none of"},
		{"a replica that is not marked", mode(v1alpha1.ModeLeaderElected), replica, update, "is not the writer any more"},
		{"a replica, nobody marked", func(p *v1alpha1.SingletonPolicy) { p.Spec.Mode = v1alpha1.ModeLeaderElected }, replica, update, ""},
		{"no replica", func(p *v1alpha1.SingletonPolicy) { p.Spec.Mode = v1alpha1.ModeLeaderElected }, who{fencedUser, "metacontroller-x", "u"}, update, "is none of"},
		{"the election's Lease", mode(v1alpha1.ModeLeaderElected), replica, lease("mc", "metacontroller"), ""},
		{"the election's Lease, by another Pod", mode(v1alpha1.ModeLeaderElected), other, lease("mc", "metacontroller"), "is none of"},
		{"another Lease", mode(v1alpha1.ModeLeaderElected), replica, lease("mc", "other"), "is not the writer any more"},
		{"the singleton Lease is another policy's", marked, other, lease(singleton.DefaultNamespace, singleton.DefaultName), ""},
		{"a shard", mode(v1alpha1.ModeSharded), before, update, ""},
		{"another shard", mode(v1alpha1.ModeSharded), who{fencedUser, "busy-0", "u"}, update, ""},
		{"no shard", mode(v1alpha1.ModeSharded), other, update, "is none of"},
		{"nobody holds the slot", func(p *v1alpha1.SingletonPolicy) { p.Status.Holder = nil }, other, update, ""},
		{"the holder goes", func(p *v1alpha1.SingletonPolicy) { p.Status.Holder.Phase = v1alpha1.HolderReleasing }, other, update, "is none of"},
		{"excepted", func(p *v1alpha1.SingletonPolicy) {
			p.Status.ActiveExceptions = []v1alpha1.Exception{{Namespace: "mc", Name: "busybox"}}
		}, other, update, ""},
		{"excepted in another namespace", func(p *v1alpha1.SingletonPolicy) {
			p.Status.ActiveExceptions = []v1alpha1.Exception{{Namespace: "x", Name: "busybox"}}
		}, other, update, "is none of"},
		{"off", func(p *v1alpha1.SingletonPolicy) { p.Spec.Fence.Action = v1alpha1.FenceOff }, other, update, ""},
		{"no fence", func(p *v1alpha1.SingletonPolicy) { p.Spec.Fence = nil }, other, update, ""},
		{"a holder elsewhere", func(p *v1alpha1.SingletonPolicy) { p.Status.Holder.Namespace = "x" }, active, update, "is none of"},
		{"create", nil, other, writeOf(admission.Create), "is none of"},
		{"delete", nil, other, writeOf(admission.Delete), "is none of"},
		{"connect", nil, other, writeOf(admission.Connect), "is none of"},
	} {
		policy := fencedPolicy(c.policy)
		message, annotations := judge(t, FencePolicyName, c.request, c.by, policy)
		if (message == "") != (c.want == "") || !strings.Contains(message, c.want) {
			t.Errorf("%s: got %q, want %q", c.why, message, c.want)
		}
		if len([]rune(message)) > MaxMessage || message != "" && !strings.HasPrefix(message, "["+RuleFence+"] ") {
			t.Errorf("%s: message %q", c.why, message)
		}
		if (annotations[AuditAnnotation] == RuleFence) != (c.want != "") {
			t.Errorf("%s: annotations %v", c.why, annotations)
		}
		// Under Audit all is let through, and annotated alike.
		if policy.Spec.Fence != nil && policy.Spec.Fence.Action == v1alpha1.FenceDeny {
			policy.Spec.Fence.Action = v1alpha1.FenceAudit
			if message, audited := judge(t, FencePolicyName, c.request, c.by, policy); message != "" || audited[AuditAnnotation] != annotations[AuditAnnotation] {
				t.Errorf("%s: under Audit %q, %v", c.why, message, audited)
			}
		}
	}
}

func TestWriterRule(t *testing.T) {
	active, other := who{fencedUser, "metacontroller-0", "u-active"}, who{fencedUser, "busybox", "u-other"}
	writer := func(namespace, name, uid string) func(*v1alpha1.SingletonPolicyStatus) {
		return func(s *v1alpha1.SingletonPolicyStatus) {
			s.Writer = &v1alpha1.Writer{Namespace: namespace, Name: name, UID: types.UID(uid)}
		}
	}
	self, nobody := writer("mc", "metacontroller-0", "u-active"), func(s *v1alpha1.SingletonPolicyStatus) { s.Writer = nil }
	stranger := writer("mc", "metacontroller-0", "u-next")
	for _, c := range []struct {
		why           string
		by            who
		before, after func(*v1alpha1.SingletonPolicyStatus)
		allowed       bool
	}{
		{"marks itself", active, nobody, self, true},
		{"over another", active, stranger, self, true},
		{"takes itself off", active, self, nobody, true},
		{"takes another off", active, stranger, nobody, false},
		{"marks another", active, self, stranger, false},
		{"in another namespace", active, nobody, writer("x", "metacontroller-0", "u-active"), false},
		{"another Pod marks itself", other, nobody, writer("mc", "busybox", "u-other"), false},
		{"a token of no Pod", who{name: fencedUser}, self, nobody, false},
		{"somebody else", who{name: "guard"}, self, stranger, true},
	} {
		old, fresh := fencedPolicy(nil), fencedPolicy(nil)
		c.before(&old.Status)
		c.after(&fresh.Status)
		if message, _ := judge(t, WriterPolicyName, statusUpdate(t, old, fresh), c.by, nil); (message == "") != c.allowed {
			t.Errorf("%s: %q", c.why, message)
		}
	}
	// Whatever else it has is not an instance's.
	old := fencedPolicy(nil)
	for name, change := range map[string]func(*v1alpha1.SingletonPolicyStatus){
		"holder":           func(s *v1alpha1.SingletonPolicyStatus) { s.Holder = nil },
		"slots":            func(s *v1alpha1.SingletonPolicyStatus) { s.Slots = []v1alpha1.Slot{{Selector: "a"}} },
		"epoch":            func(s *v1alpha1.SingletonPolicyStatus) { s.Epoch = 9 },
		"activePod":        func(s *v1alpha1.SingletonPolicyStatus) { s.ActivePod = &v1alpha1.ActivePod{Name: "a"} },
		"activeExceptions": func(s *v1alpha1.SingletonPolicyStatus) { s.ActiveExceptions = []v1alpha1.Exception{{Name: "a"}} },
		"instances":        func(s *v1alpha1.SingletonPolicyStatus) { s.Instances = []v1alpha1.Instance{{Name: "a"}} },
		"findings":         func(s *v1alpha1.SingletonPolicyStatus) { s.Findings = []v1alpha1.Finding{{ID: "a"}} },
		"conditions":       func(s *v1alpha1.SingletonPolicyStatus) { s.Conditions = []metav1.Condition{{Type: "a"}} },
	} {
		fresh := fencedPolicy(nil)
		self(&fresh.Status)
		change(&fresh.Status)
		if message, _ := judge(t, WriterPolicyName, statusUpdate(t, old, fresh), active, nil); !strings.Contains(message, "status.writer alone") {
			t.Errorf("%s may be written: %q", name, message)
		}
	}
	if got := len(statusFields()); got != 9 {
		t.Errorf("the status has %d fields; add the new one to the table above", got)
	}
}

func statusUpdate(t *testing.T, old, fresh *v1alpha1.SingletonPolicy) request {
	t.Helper()
	return request{
		operation: admission.Update, subresource: statusPart, name: old.Name,
		resource: v1alpha1.GroupVersion.WithResource(v1alpha1.SingletonPolicyResource), kind: v1alpha1.GroupVersion.WithKind(v1alpha1.SingletonPolicyKind),
		object: unstructuredOf(t, fresh), old: unstructuredOf(t, old),
	}
}

func TestLeaseRule(t *testing.T) {
	active, other := who{fencedUser, "metacontroller-0", "u"}, who{fencedUser, "busybox", "u-other"}
	const own, next, thief = "metacontroller-0_u", "metacontroller-0_next", "busybox_u-other"
	for _, c := range []struct {
		why           string
		by            who
		operation     admission.Operation
		before, after string
		allowed       bool
	}{
		{"takes one that is free", active, admission.Update, "", own, true},
		{"makes it", active, admission.Create, "", own, true},
		{"renews", active, admission.Update, own, own, true},
		{"takes over", active, admission.Update, "metacontroller-0_before", own, true},
		{"gives back", active, admission.Update, own, "", true},
		{"empties another's", active, admission.Update, next, "", false},
		{"gives it to another", active, admission.Update, own, next, false},
		{"another Pod makes it", other, admission.Create, "", thief, false},
		{"another Pod takes it", other, admission.Update, own, thief, false},
		{"another Pod renews for the holder", other, admission.Update, own, own, false},
		{"a token of no Pod", who{name: fencedUser}, admission.Update, own, own, false},
		{"somebody else", who{name: "admin"}, admission.Update, own, "me", false},
		{"somebody else deletes it", who{name: "admin"}, admission.Delete, own, "", false},
		{"another Pod deletes it", other, admission.Delete, own, "", false},
	} {
		lease := func(holder string) *coordinationv1.Lease {
			return &coordinationv1.Lease{ObjectMeta: meta(singleton.DefaultNamespace, singleton.DefaultName), Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(holder)}}
		}
		r := request{
			operation: c.operation, object: lease(c.after), old: lease(c.before), namespace: singleton.DefaultNamespace, name: singleton.DefaultName,
			resource: schema.GroupVersionResource{Group: leaseGroup, Version: "v1", Resource: leaseResource},
			kind:     schema.GroupVersionKind{Group: leaseGroup, Version: "v1", Kind: "Lease"},
		}
		switch c.operation {
		case admission.Create:
			r.old = nil
		case admission.Delete:
			r.object = nil
		}
		if message, _ := judge(t, LeasePolicyName, r, c.by, fencedPolicy(nil)); (message == "") != c.allowed {
			t.Errorf("%s: %q", c.why, message)
		}
		for _, open := range []func(*v1alpha1.SingletonPolicy){
			func(p *v1alpha1.SingletonPolicy) { p.Spec.Fence.Action = v1alpha1.FenceAudit },
			func(p *v1alpha1.SingletonPolicy) { p.Spec.Fence.Action = v1alpha1.FenceOff },
			func(p *v1alpha1.SingletonPolicy) { p.Status.Holder = nil },
		} {
			if message, _ := judge(t, LeasePolicyName, r, c.by, fencedPolicy(open)); message != "" {
				t.Errorf("%s: refused though the fence does not deny: %q", c.why, message)
			}
		}
	}
}
