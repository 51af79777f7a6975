package check

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/finding"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
	"github.com/metacontroller-solo/solo/pkg/manifest"
)

// World is a cluster that exists only here, judged by one policy.
type World struct {
	rules     decide.Policy
	customs   []guardv1alpha1.WorkloadRule
	signature *identify.Signature
	holder    decide.Holder
	resources Resources
	// namespace is where objects go that name none.
	namespace string

	// seen are the objects that were let in, by a digest of their keys.
	seen map[digest]struct{}
	// instances are those of them that run an instance, as JSON.
	instances map[key][]byte
}

type digest [sha256.Size]byte

type key struct {
	schema.GroupResource
	decide.Identity
}

func (k key) digest() digest {
	return sha256.Sum256(fmt.Appendf(nil, "%q", []string{k.Group, k.Resource, k.Namespace, k.Name}))
}

// Resources are the names under which the API serves kinds, as CRDs give them.
type Resources map[schema.GroupKind]string

// Options say what a World is like in the beginning.
type Options struct {
	// Policy is judged by; its status says who has the slot. It must have its
	// defaults: see SetDefaults.
	Policy *guardv1alpha1.SingletonPolicy
	// Absent says that there is no such policy in the cluster, so that nobody can
	// claim the slot.
	Absent bool
	// Namespace is where objects go that name none.
	Namespace string
	Resources Resources
	// Now decides which exceptions have expired.
	Now time.Time
}

// New makes a World. It fails if the policy's match cannot be used.
func New(options Options) (*World, error) {
	signature, err := identify.Compile(options.Policy.Spec.Match)
	if err != nil {
		return nil, fmt.Errorf("cannot judge by SingletonPolicy %q: %w", options.Policy.Name, err)
	}
	rules := decide.PolicyOf(options.Policy, options.Now)
	rules.Stored = !options.Absent
	return &World{
		rules:     rules,
		customs:   options.Policy.Spec.Match.Workloads,
		signature: signature,
		holder:    decide.HolderOf(options.Policy.Status),
		resources: options.Resources,
		namespace: options.Namespace,
		seen:      map[digest]struct{}{},
		instances: map[key][]byte{},
	}, nil
}

// Verdict is what becomes of an object.
type Verdict struct {
	// Object is in the namespace in which it was judged.
	Object   finding.Object
	Decision decide.Decision
	// Shape is what the object would run.
	Shape attempt.Shape
}

// Apply judges an object and, if it is let in, remembers it. The error says what
// is wrong with the object.
func (w *World) Apply(object manifest.Object) (Verdict, error) {
	kind := schema.FromAPIVersionAndKind(object.APIVersion, object.Kind)
	resource := w.resourceOf(kind)
	verdict := Verdict{Object: finding.Object{APIVersion: object.APIVersion, Kind: object.Kind, Namespace: object.Namespace, Name: object.Name}}
	verdict.Decision.Verdict = decide.VerdictAllow
	if _, known := attempt.LayoutOf(resource.GroupResource(), w.customs); !known {
		return verdict, nil
	}
	verdict.Object.Namespace = orElse(object.Namespace, w.namespace)
	verdict.Object.Name = orElse(object.Name, object.GenerateName)
	// What stands in a message must not break it.
	id := decide.Identity{Namespace: finding.Clean(verdict.Object.Namespace), Name: finding.Clean(verdict.Object.Name)}
	where := key{resource.GroupResource(), id}

	request := &admissionv1.AdmissionRequest{
		Operation: admissionv1.Create,
		Kind:      metav1.GroupVersionKind(kind),
		Resource:  metav1.GroupVersionResource(resource),
		Namespace: id.Namespace,
		Name:      id.Name,
		Object:    runtime.RawExtension{Raw: object.JSON},
	}
	_, exists := w.seen[where.digest()]
	if exists = exists && object.Name != ""; exists {
		request.Operation = admissionv1.Update
		request.OldObject.Raw = w.before(where)
	}
	a, err := attempt.From(request, w.signature, w.customs)
	if err != nil {
		return verdict, explain(err)
	}
	w.place(&a, id)
	verdict.Shape = a.New
	verdict.Decision = w.decide(a)
	if verdict.Decision.Verdict.Allowed() {
		w.remember(where, object.JSON, a.New.Instance())
	}
	return verdict, nil
}

// Holder is who has the slot now.
func (w *World) Holder() decide.Holder { return w.holder }

func (w *World) resourceOf(kind schema.GroupVersionKind) schema.GroupVersionResource {
	if name, ok := w.resources[kind.GroupKind()]; ok {
		return kind.GroupVersion().WithResource(name)
	}
	if kind.Group == groupOfOld {
		kind.Group = appsv1.GroupName
	}
	plural, _ := meta.UnsafeGuessKindToResource(kind)
	return plural
}

// groupOfOld is where Deployments, DaemonSets and ReplicaSets were served before
// apps, up to Kubernetes 1.15: manifests of that time are still around.
const groupOfOld = "extensions"

// before is the object that is updated. One that runs no instance is as good as
// any other that runs none.
func (w *World) before(where key) []byte {
	if raw, ok := w.instances[where]; ok {
		return raw
	}
	return []byte(`{"metadata":{},"spec":{}}`)
}

func (w *World) remember(where key, raw []byte, instance bool) {
	w.seen[where.digest()] = struct{}{}
	delete(w.instances, where)
	if instance {
		w.instances[where] = raw
	}
}

// place gives an attempt the identity that its object has here, and makes its
// names fit for messages.
func (w *World) place(a *attempt.Attempt, id decide.Identity) {
	a.Namespace, a.Name = id.Namespace, id.Name
	a.ObjectUID = uidOf(id)
	for _, held := range append([]decide.Holder{w.holder}, w.holder.Shards...) {
		if held.Identity == id {
			a.ObjectUID = types.UID(held.UID)
		}
	}
	for _, shape := range []*attempt.Shape{&a.New, &a.Old} {
		for _, list := range [][]identify.Container{shape.Containers, shape.Suspects} {
			for i := range list {
				list[i].Name, list[i].Image = finding.Clean(list[i].Name), finding.Clean(list[i].Image)
			}
		}
	}
}

// uidOf stands for the uid that an object would get.
func uidOf(id decide.Identity) types.UID { return types.UID("applied/" + id.String()) }

// decide decides, and gives the slot to who may have it.
func (w *World) decide(a attempt.Attempt) decide.Decision {
	decision := decide.Decide(a, w.rules, w.holder)
	if decision.Verdict != decide.VerdictClaim {
		return decision
	}
	taken := decide.Holder{
		State:    decide.StateBound,
		Identity: decide.Identity{Namespace: a.Namespace, Name: a.Name},
		UID:      string(a.ObjectUID),
		Epoch:    w.holder.Epoch + 1,
	}
	if w.rules.Mode == guardv1alpha1.ModeSharded {
		taken.Selector = a.New.Flags.Selector
		w.holder.Epoch, w.holder.Shards = taken.Epoch, append(w.holder.Shards, taken)
	} else {
		w.holder = taken
	}
	return decide.Settle(a, w.rules, decision.Holder, decide.Claim{Result: decide.ClaimGranted, Holder: taken})
}

// explain says what is wrong with an object, without talk of reviews.
func explain(err error) error {
	if malformed := (*attempt.MalformedError)(nil); errors.As(err, &malformed) && malformed.Err != nil {
		return fmt.Errorf("cannot read this object: %w", malformed.Err)
	}
	return err
}

func orElse(text, fallback string) string {
	if text == "" {
		return fallback
	}
	return text
}
