package fence_test

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	"github.com/metacontroller-solo/solo/pkg/singleton"
	"github.com/metacontroller-solo/solo/test/kit"
)

// tokenCache is how long an API server goes by a token that it has found good.
const tokenCache = 10 * time.Second

// TestFence goes through what the fence lets through and what not. The Pods are
// objects only: what is judged is their tokens.
func TestFence(t *testing.T) {
	w := newWorld(t)
	for _, one := range []struct {
		name string
		do   func(*world)
	}{
		{"B22_outside_process", (*world).outside},
		{"B25_service_account_reuse", (*world).reuse},
		{"B05_wrapped_command", (*world).wrapped},
		{"H07_forged_extras", (*world).forged},
		{"H08_stolen_token", (*world).stolen},
		{"H09_H10_writer_changes", (*world).lag},
		{"F19_lease_theft", (*world).theft},
		{"writer_marks_itself_alone", (*world).selfOnly},
		{"H14_service_account_rename", (*world).rename},
		{"H15_new_kinds", (*world).newKinds},
		{"exception", (*world).exception},
		{"no_holder", (*world).noHolder},
		{"G10_time_jump", (*world).timeJump},
		{"D02_H01_H04_forced_deletion", (*world).forcedDeletion},
	} {
		t.Run(one.name, func(t *testing.T) {
			at := w.at(t)
			at.resetPolicy()
			one.do(at)
		})
	}
}

// outside is a process with the service account's token and no Pod: every verb and
// subresource is refused.
func (w *world) outside() {
	active := w.pod("metacontroller-0")
	w.wantAllowed(w.bound(active))
	h, ctx := w.unbound(1), w.Context()
	w.eventually(func() error { return refused(h.write()) })
	dry := []string{metav1.DryRunAll}
	maps, pods := h.CoreV1().ConfigMaps(beats), h.CoreV1().Pods(space)
	for verb, do := range map[string]func() error{
		"create": h.write,
		"update": func() error {
			_, err := maps.Update(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: beat}}, metav1.UpdateOptions{DryRun: dry})
			return err
		},
		"patch": func() error {
			_, err := maps.Patch(ctx, beat, types.MergePatchType, []byte(`{"data":{"a":"b"}}`), metav1.PatchOptions{DryRun: dry})
			return err
		},
		"apply": func() error {
			_, err := maps.Patch(ctx, beat, types.ApplyPatchType, []byte(`{"apiVersion":"v1","kind":"ConfigMap","data":{"a":"b"}}`), metav1.PatchOptions{DryRun: dry, FieldManager: "x"})
			return err
		},
		"delete": func() error { return maps.Delete(ctx, beat, metav1.DeleteOptions{DryRun: dry}) },
		"delete a collection": func() error {
			return maps.DeleteCollection(ctx, metav1.DeleteOptions{DryRun: dry}, metav1.ListOptions{FieldSelector: "metadata.name=" + beat})
		},
		"status": func() error {
			_, err := pods.Patch(ctx, active.Name, types.MergePatchType, []byte(`{"status":{"message":"x"}}`), metav1.PatchOptions{DryRun: dry}, "status")
			return err
		},
		"scale": func() error {
			_, err := h.AppsV1().Deployments("kube-system").UpdateScale(ctx, "none", &autoscalingv1.Scale{ObjectMeta: metav1.ObjectMeta{Name: "none", Namespace: "kube-system"}}, metav1.UpdateOptions{DryRun: dry})
			return err
		},
		"eviction": func() error {
			return h.CoreV1().RESTClient().Post().Namespace(space).Resource("pods").Name(active.Name).SubResource("eviction").
				Body([]byte(`{"apiVersion":"policy/v1","kind":"Eviction","metadata":{"name":"metacontroller-0"}}`)).SetHeader("Content-Type", "application/json").Do(ctx).Error()
		},
		"exec": func() error {
			return h.CoreV1().RESTClient().Post().Namespace(space).Resource("pods").Name(active.Name).SubResource("exec").Param("command", "id").Param("stdout", "true").Do(ctx).Error()
		},
		"token": func() error {
			_, err := h.CoreV1().ServiceAccounts(space).CreateToken(ctx, account, &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
			return err
		},
		"cluster scope": func() error {
			_, err := h.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{DryRun: dry})
			return err
		},
		"the policy": func() error {
			_, err := h.Interface.Resource(v1alpha1.GroupVersion.WithResource(v1alpha1.SingletonPolicyResource)).
				Patch(ctx, v1alpha1.DefaultPolicyName, types.MergePatchType, []byte(`{"spec":{"fence":{"action":"Off"}}}`), metav1.PatchOptions{DryRun: dry})
			return err
		},
	} {
		err := do()
		if verb == "scale" && apierrors.IsNotFound(err) {
			continue // there is none to be scaled; what is not there is not judged
		}
		if err := refused(err); err != nil {
			w.Errorf("%s: %v", verb, err)
		}
	}
	// Reading goes on: H16.
	if _, err := maps.Get(ctx, beat, metav1.GetOptions{}); err != nil {
		w.Errorf("H16: a read is refused: %v", err)
	}
	// A long-lived token, in a Secret, is of no Pod either.
	secret := &corev1.Secret{Type: corev1.SecretTypeServiceAccountToken, ObjectMeta: metav1.ObjectMeta{
		Namespace: space, Name: "long-lived", Annotations: map[string]string{corev1.ServiceAccountNameKey: account},
	}}
	w.must(client.IgnoreAlreadyExists(w.admin().Create(ctx, secret)))
	w.eventually(func() error {
		if err := w.admin().Get(ctx, client.ObjectKeyFromObject(secret), secret); err != nil || len(secret.Data[corev1.ServiceAccountTokenKey]) == 0 {
			return fmt.Errorf("no token yet: %v", err)
		}
		return nil
	})
	config := w.cp.AnonymousConfig(0)
	config.BearerToken = string(secret.Data[corev1.ServiceAccountTokenKey])
	if err := refused(w.hand(0, config).write()); err != nil {
		w.Errorf("a long-lived token: %v", err)
	}
	// Nobody else is judged.
	w.must(w.admin().Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: beats, Name: "mine"}}, client.DryRunAll))
}

// reuse is another Pod with the same service account.
func (w *world) reuse() {
	active, other := w.pod("metacontroller-0"), w.pod("busybox")
	w.wantAllowed(w.bound(active))
	w.wantRefused(w.bound(other))
	w.markAs(w.bound(active)[0], active)
	w.wantAllowed(w.bound(active))
	// Under Audit it is let through, and the audit log says that it should not.
	w.spec(func(spec *v1alpha1.SingletonPolicySpec) { spec.Fence.Action = v1alpha1.FenceAudit })
	since := w.now()
	w.wantAllowed(w.bound(other))
	tried := other.Name + "_" + string(other.UID)
	w.eventually(func() error {
		all, err := events(w.cp, since)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(all, func(e event) bool {
			return e.accepted() && e.Annotations[pin.FencePolicyName+"/"+pin.AuditAnnotation] == pin.RuleFence &&
				e.Annotations[pin.FencePolicyName+"/"+pin.WriterAnnotation] == tried
		}) {
			return fmt.Errorf("no audit annotation names %s", tried)
		}
		return nil
	})
	w.spec(func(spec *v1alpha1.SingletonPolicySpec) { spec.Fence.Action = v1alpha1.FenceOff })
	w.wantAllowed([]hand{w.unbound(0), w.unbound(1)})
}

// wrapped is an instance that no policy recognises: it starts, and cannot write.
func (w *world) wrapped() {
	active, disguised := w.pod("metacontroller-0"), w.pod("disguised")
	w.wantAllowed(w.bound(active))
	w.wantRefused(w.bound(disguised))
}

// forged is who may impersonate the account with the extras of a Pod: it counts as
// that Pod, and the audit log says who it was.
func (w *world) forged() {
	active := w.pod("metacontroller-0")
	w.wantAllowed(w.bound(active))
	as := func(config *rest.Config, extra map[string][]string) hand {
		config = rest.CopyConfig(config)
		config.Impersonate = rest.ImpersonationConfig{UserName: "system:serviceaccount:" + space + ":" + account, Extra: extra}
		return w.hand(0, config)
	}
	extra := map[string][]string{
		"authentication.kubernetes.io/pod-name": {active.Name}, "authentication.kubernetes.io/pod-uid": {string(active.UID)},
	}
	user, err := w.cp.UserConfig("helper")
	w.must(err)
	if err := as(user, extra).write(); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "impersonate") {
		w.Errorf("somebody without the right impersonates: %v", err)
	}
	if err := refused(as(w.cp.AdminConfig(0), nil).write()); err != nil {
		w.Errorf("impersonation without extras: %v", err)
	}
	since := w.now()
	w.must(as(w.cp.AdminConfig(0), extra).write())
	w.eventually(func() error {
		all, err := events(w.cp, since)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(all, func(e event) bool {
			return e.Impersonated != nil && e.Impersonated.Username == "system:serviceaccount:"+space+":"+account && e.User.Username == "kubernetes-admin" && e.accepted()
		}) {
			return fmt.Errorf("the audit log does not say who impersonated")
		}
		return nil
	})
}

// stolen is a token of the active Pod that is used elsewhere. It cannot be told
// from the Pod's own, while that Pod is the writer, and is worth nothing after.
func (w *world) stolen() {
	active := w.pod("metacontroller-0")
	own, copied := w.bound(active), w.bound(active)
	w.markAs(own[0], active)
	w.wantAllowed(copied)
	w.status(func(status *v1alpha1.SingletonPolicyStatus) {
		status.Writer = &v1alpha1.Writer{Namespace: space, Name: active.Name, UID: "another"}
	})
	w.wantRefused(copied)
}

// lag measures for how long each API server accepts the writes of the one before
// after the writer changed.
func (w *world) lag() {
	w.spec(func(spec *v1alpha1.SingletonPolicySpec) { spec.Mode = v1alpha1.ModeLeaderElected })
	pods := []*corev1.Pod{w.pod("metacontroller-0"), w.pod("metacontroller-1")}
	hands := [][]hand{w.bound(pods[0]), w.bound(pods[1])}
	w.wantAllowed(hands[0])
	w.wantAllowed(hands[1])
	w.markAs(hands[0][0], pods[0])
	w.wantRefused(hands[1])
	lags := make([][]time.Duration, w.cp.APIServers())
	for round := range number(w, "FENCE_LAG", 10) {
		old, fresh := round%2, (round+1)%2
		w.wantAllowed(hands[old])
		// What is under way before the mark is acknowledged does not count.
		w.must(markAs(w.Context(), hands[fresh][round/2%2], pods[fresh]))
		marked := time.Now()
		var done sync.WaitGroup
		for server := range lags {
			done.Go(func() {
				var last time.Duration
				for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
					sent := time.Since(marked)
					if err := hands[old][server].write(); err != nil {
						if err := refused(err); err != nil {
							w.Errorf("API server %d: %v", server, err)
						}
						break
					}
					last = sent
				}
				lags[server] = append(lags[server], last)
			})
		}
		done.Wait()
		w.wantRefused(hands[old])
	}
	for server, seen := range lags {
		w.Logf("H09: API server %d accepted a write that was sent after the mark was acknowledged, for at most: %s", server, histogram(seen))
		if most := slices.Max(seen); most > singleton.Settle {
			w.Errorf("the old writer was accepted for %s, longer than the new one waits (%s)", most, singleton.Settle)
		}
	}
}

// histogram counts durations by powers of two.
func histogram(seen []time.Duration) string {
	slices.Sort(seen)
	var b strings.Builder
	for limit, low := 2*time.Millisecond, time.Duration(-1); low < seen[len(seen)-1]; low, limit = limit, 2*limit {
		n := 0
		for _, d := range seen {
			if d > low && d <= limit {
				n++
			}
		}
		if n > 0 {
			fmt.Fprintf(&b, "<=%s: %d  ", limit, n)
		}
	}
	return fmt.Sprintf("%s(n=%d, median %s, most %s)", b.String(), len(seen), seen[len(seen)/2].Round(time.Millisecond/10), seen[len(seen)-1].Round(time.Millisecond/10))
}

// theft is everybody who is not the holder's Pod and wants the singleton Lease.
func (w *world) theft() {
	ctx := w.Context()
	active, other := w.pod("metacontroller-0"), w.pod("busybox")
	mine, theirs := w.bound(active), w.bound(other)
	w.wantAllowed(mine)
	w.freeLease()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: singleton.DefaultNamespace, Name: singleton.DefaultName}}
	w.wantRefused(theirs)

	self := singleton.Identity{Pod: active.Name, UID: string(active.UID)}.String()
	thief := singleton.Identity{Pod: other.Name, UID: string(other.UID)}.String()
	create := func(h hand, holder string) error {
		object := lease.DeepCopy()
		object.Spec.HolderIdentity = ptr.To(holder)
		_, err := h.CoordinationV1().Leases(lease.Namespace).Create(ctx, object, metav1.CreateOptions{})
		return err
	}
	put := func(h hand, holder string) error {
		_, err := h.CoordinationV1().Leases(lease.Namespace).Patch(ctx, lease.Name, types.MergePatchType, fmt.Appendf(nil, `{"spec":{"holderIdentity":%q}}`, holder), metav1.PatchOptions{})
		return err
	}
	admin := w.hand(1, w.cp.AdminConfig(1))
	for what, do := range map[string]func() error{
		"another Pod creates it":       func() error { return create(theirs[0], thief) },
		"an administrator creates it":  func() error { return create(admin, "me") },
		"a token of no Pod creates it": func() error { return create(w.unbound(0), self) },
		"for somebody else":            func() error { return create(mine[0], thief) },
	} {
		if err := refused(do()); err != nil {
			w.Errorf("%s: %v", what, err)
		}
	}
	w.must(create(mine[0], self))
	for what, do := range map[string]func() error{
		"another Pod takes it":             func() error { return put(theirs[1], thief) },
		"another Pod empties it":           func() error { return put(theirs[1], "") },
		"another Pod in the holder's name": func() error { return put(theirs[0], self) },
		"a token of no Pod takes it":       func() error { return put(w.unbound(1), self) },
		"an administrator takes it":        func() error { return put(admin, "me") },
		"the holder gives it to somebody":  func() error { return put(mine[1], thief) },
		"another Pod deletes it": func() error {
			return theirs[0].CoordinationV1().Leases(lease.Namespace).Delete(ctx, lease.Name, metav1.DeleteOptions{})
		},
		"an administrator deletes it": func() error {
			return admin.CoordinationV1().Leases(lease.Namespace).Delete(ctx, lease.Name, metav1.DeleteOptions{})
		},
		"an administrator deletes all leases": func() error {
			return w.admin().DeleteAllOf(ctx, &coordinationv1.Lease{}, client.InNamespace(lease.Namespace), client.MatchingFields{"metadata.name": lease.Name})
		},
	} {
		if err := refused(do()); err != nil {
			w.Errorf("%s: %v", what, err)
		}
	}
	// It renews, and gives back; and the next Pod of the same name takes it over.
	w.must(put(mine[1], self))
	w.markAs(mine[0], active)
	w.remove(active)
	next := w.pod("metacontroller-0")
	fresh := w.bound(next)
	self = singleton.Identity{Pod: next.Name, UID: string(next.UID)}.String()
	w.must(put(fresh[1], self))
	w.wantRefused(fresh)
	w.markAs(fresh[1], next)
	w.wantAllowed(fresh)
	w.must(put(fresh[0], ""))
	// Another Lease of that name, elsewhere, is nobody's business.
	elsewhere := lease.DeepCopy()
	elsewhere.Namespace = beats
	w.must(w.admin().Create(ctx, elsewhere, client.DryRunAll))
	// Break glass.
	w.spec(func(spec *v1alpha1.SingletonPolicySpec) { spec.Fence.Action = v1alpha1.FenceAudit })
	w.eventually(func() error { return client.IgnoreNotFound(w.admin().Delete(ctx, lease)) })
}

// selfOnly is what an instance may write into the policy's status: itself.
func (w *world) selfOnly() {
	ctx := w.Context()
	active, other := w.pod("metacontroller-0"), w.pod("busybox")
	mine, theirs := w.bound(active), w.bound(other)
	w.wantAllowed(mine)
	policies := func(h hand) func(string) error {
		return func(patch string) error {
			_, err := h.Interface.Resource(v1alpha1.GroupVersion.WithResource(v1alpha1.SingletonPolicyResource)).
				Patch(ctx, v1alpha1.DefaultPolicyName, types.MergePatchType, []byte(patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}, "status")
			return err
		}
	}
	writer := func(pod *corev1.Pod) string {
		return fmt.Sprintf(`{"status":{"writer":{"namespace":%q,"name":%q,"uid":%q}}}`, pod.Namespace, pod.Name, pod.UID)
	}
	foreign := active.DeepCopy()
	foreign.Namespace = "elsewhere"
	for what, err := range map[string]error{
		"another Pod":          policies(mine[0])(writer(other)),
		"another namespace":    policies(mine[0])(writer(foreign)),
		"another Pod marks":    policies(theirs[0])(writer(other)),
		"in the active's name": policies(theirs[0])(writer(active)),
		"a token of no Pod":    policies(w.unbound(0))(writer(active)),
		"the holder":           policies(mine[1])(`{"status":{"holder":{"name":"mine"}}}`),
		"the holder beside it": policies(mine[1])(strings.Replace(writer(active), `{"writer"`, `{"epoch":7,"writer"`, 1)),
		"no holder":            policies(mine[1])(`{"status":{"holder":null}}`),
		"an exception":         policies(mine[1])(`{"status":{"activeExceptions":[{"namespace":"a","name":"b","reason":"c","expires":"2030-01-01T00:00:00Z"}]}}`),
	} {
		if err := refused(err); err != nil {
			w.Errorf("%s: %v", what, err)
		}
	}
	w.must(policies(mine[0])(writer(active)))
	w.markAs(mine[0], active)
	w.must(policies(mine[1])(`{"status":{"writer":null}}`))
	// The one before takes nobody's mark off.
	w.remove(active)
	next := w.pod("metacontroller-0")
	w.markAs(w.bound(next)[0], next)
	if err := refused(policies(mine[0])(`{"status":{"writer":null}}`)); err != nil && !apierrors.IsUnauthorized(err) && !strings.Contains(err.Error(), "Unauthorized") {
		w.Errorf("the Pod before takes the mark off: %v", err)
	}
	// The guard, and whoever may write the status, can.
	w.status(func(status *v1alpha1.SingletonPolicyStatus) { status.Writer = nil })
}

// rename gives the instance another service account: under Audit first, and at no
// moment is it locked out.
func (w *world) rename() {
	active := w.pod("metacontroller-0")
	hands := w.bound(active)
	w.wantAllowed(hands)
	for _, step := range []v1alpha1.Fence{
		{ServiceAccount: v1alpha1.ServiceAccountReference{Namespace: space, Name: "renamed"}, Action: v1alpha1.FenceAudit},
		{ServiceAccount: v1alpha1.ServiceAccountReference{Namespace: space, Name: "renamed"}, Action: v1alpha1.FenceDeny},
		{ServiceAccount: v1alpha1.ServiceAccountReference{Namespace: space, Name: account}, Action: v1alpha1.FenceAudit},
		{ServiceAccount: v1alpha1.ServiceAccountReference{Namespace: space, Name: account}, Action: v1alpha1.FenceDeny},
	} {
		w.spec(func(spec *v1alpha1.SingletonPolicySpec) { spec.Fence = &step })
		for range 20 {
			for _, h := range hands {
				if err := h.write(); err != nil {
					w.Fatalf("locked out at %+v: %v", step, err)
				}
			}
		}
	}
	// What is left out has the default, which looks on.
	policy := &v1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: "another"}}
	w.must(w.admin().Create(w.Context(), policy, client.DryRunAll))
	if got := policy.Spec.Fence; got == nil || *got != (v1alpha1.Fence{ServiceAccount: v1alpha1.ServiceAccountReference{Namespace: space, Name: account}, Action: v1alpha1.FenceAudit}) {
		w.Errorf("the default is %+v", got)
	}
	// One that no Pod of the holder could have is refused.
	policy.Spec.Holder = &v1alpha1.HolderReference{Namespace: "elsewhere", Name: "mc"}
	policy.Spec.Fence.Action = v1alpha1.FenceDeny
	policy.ResourceVersion = ""
	if err := w.admin().Create(w.Context(), policy, client.DryRunAll); !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "spec.fence.serviceAccount.namespace") {
		w.Errorf("a holder in another namespace: %v", err)
	}
}

const newKind = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: fresh.fence.example.test}
spec:
  group: fence.example.test
  scope: Namespaced
  names: {plural: fresh, singular: fresh, kind: Fresh, listKind: FreshList}
  versions:
  - {name: v1, served: true, storage: true, subresources: {status: {}}, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
`

// newKinds are fenced as they come.
func (w *world) newKinds() {
	active, other := w.pod("metacontroller-0"), w.pod("busybox")
	_, err := kit.ApplyYAML(w.Context(), w.cp.AdminConfig(0), []byte(newKind))
	w.must(err)
	fresh := schema.GroupVersionResource{Group: "fence.example.test", Version: "v1", Resource: "fresh"}
	create := func(h hand) error {
		object := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "fence.example.test/v1", "kind": "Fresh", "metadata": map[string]any{"name": "a"}}}
		_, err := h.Interface.Resource(fresh).Namespace(beats).Create(w.Context(), object, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	for server := range w.cp.APIServers() {
		w.eventually(func() error { return create(w.bound(active)[server]) })
		if err := refused(create(w.bound(other)[server])); err != nil {
			w.Error(err)
		}
	}
}

// exception lets the Pods of what it names write, too.
func (w *world) exception() {
	other := w.pod("rescue-abc")
	w.wantRefused(w.bound(other))
	w.status(func(status *v1alpha1.SingletonPolicyStatus) {
		status.ActiveExceptions = []v1alpha1.Exception{{Namespace: space, Name: "rescue", Reason: "fire", Expires: metav1.NewTime(time.Now().Add(time.Hour))}}
	})
	w.wantAllowed(w.bound(other))
	w.status(func(status *v1alpha1.SingletonPolicyStatus) { status.ActiveExceptions = nil })
	w.wantRefused(w.bound(other))
}

// noHolder is a cluster where nobody holds the slot: whoever was there before the
// guard goes on.
func (w *world) noHolder() {
	other := w.pod("before")
	w.wantRefused(w.bound(other))
	w.status(func(status *v1alpha1.SingletonPolicyStatus) { status.Holder = nil })
	w.wantAllowed(w.bound(other))
}

// timeJump: nothing here goes by a clock, so that a holder whose clock jumped keeps
// its rights, and nobody gets them early.
func (w *world) timeJump() {
	active, other := w.pod("metacontroller-0"), w.pod("busybox")
	mine, theirs := w.bound(active), w.bound(other)
	w.wantAllowed(mine)
	w.freeLease()
	w.wantRefused(theirs)
	w.markAs(mine[0], active)
	self := singleton.Identity{Pod: active.Name, UID: string(active.UID)}.String()
	for _, jump := range []time.Duration{-24 * time.Hour, 24 * time.Hour} {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: singleton.DefaultNamespace, Name: singleton.DefaultName}}
		lease.Spec.HolderIdentity, lease.Spec.RenewTime = &self, ptr.To(metav1.NewMicroTime(time.Now().Add(jump)))
		_, err := mine[0].CoordinationV1().Leases(lease.Namespace).Create(w.Context(), lease, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		w.must(err)
		if err := refused(theirs[0].write()); err != nil {
			w.Error(err)
		}
		w.wantAllowed(mine)
	}
}

// forcedDeletion: the token of a Pod that was deleted by force is good for as long
// as an API server has it in its cache; the fence ends that as soon as the next
// one has marked itself.
func (w *world) forcedDeletion() {
	old := w.pod("metacontroller-0")
	before := w.bound(old)
	w.markAs(before[0], old)
	w.wantAllowed(before)
	w.remove(old)
	deleted := time.Now()
	var done sync.WaitGroup
	for server, h := range before {
		done.Go(func() {
			var last time.Duration
			for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
				sent := time.Since(deleted)
				err := h.write()
				if apierrors.IsUnauthorized(err) {
					w.Logf("H04: API server %d accepted the token of a Pod for %s after it was deleted by force", server, last.Round(time.Millisecond))
					return
				}
				if err != nil {
					w.Errorf("neither accepted nor unauthorized: %v", err)
					return
				}
				last = sent
			}
			w.Error("the token is good for ever")
		})
	}
	done.Wait()
	// One second of it is the machine's.
	if took := time.Since(deleted); took > tokenCache+5*time.Second || took > singleton.Duration+singleton.Settle {
		w.Errorf("a token lived for %s, and the next instance may write after %s", took, singleton.Duration+singleton.Settle)
	}
	// Again, with the next one at work at once.
	second := w.pod("metacontroller-0")
	hands := w.bound(second)
	w.markAs(hands[0], second)
	w.wantAllowed(hands)
	w.remove(second)
	third := w.pod("metacontroller-0")
	w.markAs(w.bound(third)[1], third)
	w.wantAllowed(w.bound(third))
	for server, h := range hands {
		if err := h.write(); !apierrors.IsForbidden(err) && !apierrors.IsUnauthorized(err) {
			w.Errorf("D02: API server %d answers the Pod before: %v", server, err)
		}
	}
}
