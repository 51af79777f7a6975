package guard_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
)

// stage is a cluster with an installed guard, and what the attempts act on.
type stage struct {
	*suite
	namespace string
	// servers is through how many API servers the attempts go, in turn.
	servers, turn int
	// all is the suite of all cases that share an installation, if there are more:
	// what it starts outlives this one.
	all *suite
}

// next is a client of the API server whose turn it is.
func (c *stage) next() client.Client {
	c.turn++
	return c.admins[c.turn%c.servers]
}

// first and last are clients of the first and of the last API server that the
// attempts go through.
func (c *stage) first() client.Client { return c.admins[0] }

func (c *stage) last() client.Client { return c.admins[c.servers-1] }

func (c *stage) holder() string { return c.namespace + "/mc" }

func (c *stage) held() bool { return c.policy().Status.Holder != nil }

// dry creates an object without keeping it: what is allowed leaves nothing behind.
func (c *stage) dry(object client.Object) error {
	return c.next().Create(c.ctx(), object, client.DryRunAll)
}

// create creates an object for good.
func (c *stage) create(object client.Object) error { return c.next().Create(c.ctx(), object) }

func (c *stage) merge(object client.Object, patch string, options ...client.PatchOption) error {
	return c.next().Patch(c.ctx(), object, client.RawPatch(types.StrategicMergePatchType, []byte(patch)), options...)
}

// apply applies an object server-side, as a manager of its own.
func (c *stage) applyAs(manager string, object client.Object, options ...client.ApplyOption) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	applied := &unstructured.Unstructured{Object: content}
	gvk, err := apiutil.GVKForObject(object, scheme)
	if err != nil {
		return err
	}
	applied.SetGroupVersionKind(gvk)
	return c.next().Apply(c.ctx(), client.ApplyConfigurationFromUnstructured(applied),
		append([]client.ApplyOption{client.FieldOwner(manager), client.ForceOwnership}, options...)...)
}

func (c *stage) scale(object client.Object, replicas int32) error {
	return c.next().SubResource("scale").Update(c.ctx(), object, client.WithSubResourceBody(&autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: replicas}}))
}

// debug adds an ephemeral container. The scheduler and the controllers write to
// Pods too, so a conflict is tried again.
func (c *stage) debug(name, image string) error {
	for {
		live := &corev1.Pod{}
		admin := c.next()
		if err := admin.Get(c.ctx(), client.ObjectKey{Namespace: c.namespace, Name: name}, live); err != nil {
			return err
		}
		live.Spec.EphemeralContainers = append(live.Spec.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug", Image: image}})
		if err := admin.SubResource("ephemeralcontainers").Update(c.ctx(), live); !apierrors.IsConflict(err) {
			return err
		}
	}
}

// hold gives the slot to a StatefulSet and waits for its Pod.
func (c *stage) hold(name string) *appsv1.StatefulSet {
	c.t.Helper()
	object := statefulSet(c.namespace, name)
	if err := c.first().Create(c.ctx(), object); err != nil {
		c.t.Fatal(err)
	}
	c.phase(guardv1alpha1.HolderBound)
	c.awaitPod(c.namespace, name+"-0", "")
	return object
}

// one checks that one of the creates went through, that all others were refused
// with the winner's name, and that one Pod comes of it.
func (c *stage) one(objects []client.Object, errs []error) client.Object {
	c.t.Helper()
	var winner client.Object
	for i, object := range objects {
		if errs[i] == nil {
			if winner != nil {
				c.t.Fatalf("%s and %s were both admitted", client.ObjectKeyFromObject(winner), client.ObjectKeyFromObject(object))
			}
			winner = object
		}
	}
	if winner == nil {
		c.t.Fatalf("nobody was admitted: %v", errs)
	}
	for i, object := range objects {
		if object != winner {
			refused(c.t, errs[i], decide.RuleSecondWorkload, winner.GetNamespace()+"/"+winner.GetName())
		}
	}
	c.awaitPod(winner.GetNamespace(), winner.GetName()+"-0", "")
	c.instances(1)
	return winner
}

// alive are the instances, by their own names, that are there and have not ended.
func (c *stage) alive() []string {
	c.t.Helper()
	signature := defaultSignature(c.t)
	pods := &corev1.PodList{}
	if err := c.admin().List(c.ctx(), pods); err != nil {
		c.t.Fatal(err)
	}
	var alive []string
	for i := range pods.Items {
		pod := &pods.Items[i]
		ended := pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
		if !ended && len(signature.Containers(&pod.Spec)) > 0 {
			alive = append(alive, pod.Namespace+"/"+pod.Name)
		}
	}
	return alive
}

// second are the instances beside the holder's Pod: no attempt may add one.
func (c *stage) second() []string {
	c.t.Helper()
	return slices.DeleteFunc(c.alive(), func(name string) bool { return name == c.holder()+"-0" })
}

// instances checks how many Pods run an instance.
func (c *stage) instances(want int) {
	c.t.Helper()
	if alive := c.alive(); len(alive) != want {
		c.t.Fatalf("%d instances are there, want %d: %v", len(alive), want, alive)
	}
}

// vacate takes everything away and waits until the guard has freed the slot.
func (c *stage) vacate() {
	c.t.Helper()
	c.unfinalize()
	c.clean()
	c.eventually(func() error {
		policy := c.policy()
		switch held := policy.Status.Holder; {
		case held == nil:
			return nil
		case held.Phase == guardv1alpha1.HolderReserved:
			// What was never stored is given up after a time that is long here.
			policy.Status.Holder = nil
			return c.admin().Status().Update(c.ctx(), policy)
		default:
			return fmt.Errorf("holder is %+v", held)
		}
	})
}

// unfinalize lets Pods go that a case has held.
func (c *stage) unfinalize() {
	c.t.Helper()
	pods := &corev1.PodList{}
	if err := c.admin().List(c.ctx(), pods); err != nil {
		c.t.Fatal(err)
	}
	for i := range pods.Items {
		if held := &pods.Items[i]; len(held.Finalizers) > 0 {
			held.Finalizers = nil
			if err := client.IgnoreNotFound(c.admin().Update(c.ctx(), held)); err != nil {
				c.t.Fatal(err)
			}
			if held.DeletionTimestamp == nil {
				continue
			}
			// As the kubelet does once the containers have ended.
			if err := client.IgnoreNotFound(c.admin().Delete(c.ctx(), held, client.GracePeriodSeconds(0))); err != nil {
				c.t.Fatal(err)
			}
		}
	}
}

// keep holds a Pod like a long grace period does. It is bound to a node, for
// Kubernetes ends a Pod at once that is on none.
func (c *stage) keep(name string) {
	c.t.Helper()
	binding := &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "somewhere"}}
	if err := c.first().SubResource("binding").Create(c.ctx(), pod(c.namespace, name, ""), binding); err != nil {
		c.t.Fatal(err)
	}
	c.eventually(func() error {
		held := &corev1.Pod{}
		if err := c.first().Get(c.ctx(), client.ObjectKey{Namespace: c.namespace, Name: name}, held); err != nil {
			return err
		}
		held.Finalizers = []string{"test.metacontroller.io/alive"}
		return c.first().Update(c.ctx(), held)
	})
}

func (c *stage) awaitTerminating(name string) {
	c.t.Helper()
	c.eventually(func() error {
		found := &corev1.Pod{}
		if err := c.first().Get(c.ctx(), client.ObjectKey{Namespace: c.namespace, Name: name}, found); err != nil {
			return err
		}
		if found.DeletionTimestamp == nil {
			return fmt.Errorf("it is not deleted yet")
		}
		return nil
	})
}

// fail ends a Pod as a node does that drains itself.
func (c *stage) fail(name string) {
	c.t.Helper()
	patch := client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Failed","reason":"Terminated"}}`))
	if err := c.first().Status().Patch(c.ctx(), pod(c.namespace, name, ""), patch); err != nil {
		c.t.Fatal(err)
	}
}

// pinnedOwner is what the StatefulSet controller writes into the holder's Pod.
func (c *stage) pinnedOwner() []metav1.OwnerReference {
	return []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mc", UID: c.policy().Status.Holder.UID, Controller: ptr.To(true)}}
}

func (s *suite) uidOf(object client.Object) types.UID {
	s.t.Helper()
	if err := s.admin().Get(s.ctx(), client.ObjectKeyFromObject(object), object); err != nil {
		s.t.Fatal(err)
	}
	return object.GetUID()
}

// refusalEvent waits until a controller says, in an event on the object that it
// works on, or on one that is named after it, that the guard refused it.
func (c *stage) refusalEvent(name string) {
	c.t.Helper()
	c.refusedEvent(name, c.holder())
}

// refusedEvent is the same with another part of the message than the holder.
func (c *stage) refusedEvent(name, part string) {
	c.t.Helper()
	c.eventually(func() error {
		events := &corev1.EventList{}
		if err := c.admin().List(c.ctx(), events, client.InNamespace(c.namespace)); err != nil {
			return err
		}
		for _, event := range events.Items {
			if strings.HasPrefix(event.InvolvedObject.Name, name) && strings.Contains(event.Message, "denied") && strings.Contains(event.Message, part) {
				return nil
			}
		}
		return fmt.Errorf("no event says that %s was refused", name)
	})
}

// refusalRecord waits until a guard has written down that it refused a
// controller's update by that rule.
func (c *stage) refusalRecord(kind, prefix string, rule decide.Rule) {
	c.t.Helper()
	c.eventually(func() error {
		for _, record := range c.records() {
			if record.Object.Kind == kind && strings.HasPrefix(record.Object.Name, prefix) && record.Rule == string(rule) && record.Enforced {
				return nil
			}
		}
		return fmt.Errorf("no record says that a %s of %s was refused by %s", kind, prefix, rule)
	})
}

// recorded waits for the line about an object, with its operation.
func (c *stage) recorded(name, operation string) {
	c.t.Helper()
	c.eventually(func() error {
		for _, record := range c.records() {
			if record.Object.Namespace == c.namespace && record.Object.Name == name {
				if record.Operation != operation {
					c.t.Fatalf("operation is %s", record.Operation)
				}
				return nil
			}
		}
		return fmt.Errorf("no record of %s", name)
	})
}

// callsOf is how often all API servers have called a webhook.
func (c *stage) callsOf(webhook string) int {
	c.t.Helper()
	calls := 0
	for server := range c.admins {
		calls += c.webhookCallsOf(server, webhook)
	}
	return calls
}

// unasked does something until a webhook was not called meanwhile: what earlier
// attempts have left goes on asking for a while, but if the webhook were called
// about this, it would be each time.
func (c *stage) unasked(webhook string, do func() error) (failure error) {
	c.t.Helper()
	c.eventually(func() error {
		before := c.callsOf(webhook)
		if failure = do(); failure != nil {
			return nil
		}
		if calls := c.callsOf(webhook) - before; calls != 0 {
			return fmt.Errorf("the guard was asked %d times", calls)
		}
		return nil
	})
	return failure
}

// review sends a create to a guard as an API server does.
func (c *stage) review(g *guard, object *appsv1.StatefulSet, uid types.UID) *admissionv1.AdmissionResponse {
	c.t.Helper()
	raw, err := json.Marshal(object)
	if err != nil {
		c.t.Fatal(err)
	}
	body, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: uid, Operation: admissionv1.Create, Namespace: object.Namespace, Name: object.Name,
			Kind:     metav1.GroupVersionKind{Group: "apps", Version: "v1", Kind: "StatefulSet"},
			Resource: metav1.GroupVersionResource{Group: "apps", Version: "v1", Resource: "statefulsets"},
			Object:   runtime.RawExtension{Raw: raw},
		},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	response, err := c.httpClient().Post("https://"+g.webhook+"/validate", "application/json", bytes.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	defer response.Body.Close()
	answer := admissionv1.AdmissionReview{}
	content, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK || json.Unmarshal(content, &answer) != nil {
		c.t.Fatalf("%s %s, %v", response.Status, content, err)
	}
	return answer.Response
}
