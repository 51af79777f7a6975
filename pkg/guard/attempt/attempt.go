package attempt

import (
	"fmt"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

// Operation is what the request does.
type Operation string

// The operations of admission.
const (
	Create  = Operation(admissionv1.Create)
	Update  = Operation(admissionv1.Update)
	Delete  = Operation(admissionv1.Delete)
	Connect = Operation(admissionv1.Connect)
)

// Subresources that the guard knows.
const (
	SubresourceScale               = "scale"
	SubresourceEphemeralContainers = "ephemeralcontainers"
)

// Attempt is one admission request reduced to facts.
type Attempt struct {
	// AdmissionUID is the request's own id: a request that is sent again has
	// the same one.
	AdmissionUID types.UID
	Operation    Operation
	Resource     schema.GroupVersionResource
	// Subresource is empty for the object itself.
	Subresource string
	// Kind is of the object in the request: autoscaling/v1 Scale for a scale.
	Kind schema.GroupVersionKind
	// Workload says what sort of thing the resource is.
	Workload  Workload
	Namespace string
	// Name is the final one, also where the client asked for a generated name.
	Name         string
	GenerateName string
	// ObjectUID is the object's uid. On a CREATE the API server has set it
	// already, so it is the uid that the object will have if it is stored.
	ObjectUID types.UID
	// Owner is the controller owner reference. Anyone can write one: it counts
	// only together with User.
	Owner *Owner
	// New and Old are what the object would run, and ran before.
	New, Old Shape
	// PodSpecChanged says, for an update, whether the Pod template differs.
	PodSpecChanged bool
	// Removal is what a delete of a Pod says; the zero value for anything else.
	Removal Removal
	User    User
	DryRun  bool
}

// Shape is what one version of an object runs.
type Shape struct {
	// Present is false for the new shape of a delete and the old one of a create.
	Present bool
	// Containers are those that are instances, of all four lists.
	Containers []identify.Container
	// Suspects are those that may be instances, by their flags alone.
	Suspects []identify.Container
	// Replicas is how many Pods are wanted at a time.
	Replicas Replicas
	// OrdinalsStart is a StatefulSet's spec.ordinals.start.
	OrdinalsStart int64
	// NoGrace is set where the Pod's terminationGracePeriodSeconds is 0.
	NoGrace bool
	// Flags are what the instance is started with.
	Flags Flags
	// Target is what an autoscaler scales, nil for anything else. Replicas are
	// then the most that it may ask for.
	Target *Target
}

// Target is what an autoscaler scales, in its own namespace.
type Target struct {
	Group, Kind, Name string
}

// Instance says whether the shape runs an instance.
func (s Shape) Instance() bool { return len(s.Containers) > 0 }

// Replicas is a wanted number of Pods.
type Replicas struct {
	// Count is meaningless if Unbounded.
	Count int64
	// Unbounded is one Pod for each node, of however many.
	Unbounded bool
}

// MoreThan says whether more than n Pods are wanted.
func (r Replicas) MoreThan(n int64) bool { return r.Unbounded || r.Count > n }

// Exceeds says whether r wants more Pods than other.
func (r Replicas) Exceeds(other Replicas) bool {
	if other.Unbounded {
		return false
	}
	return r.MoreThan(other.Count)
}

// String is for messages.
func (r Replicas) String() string {
	if r.Unbounded {
		return "one for each node"
	}
	return fmt.Sprint(r.Count)
}

// Owner is a controller owner reference.
type Owner struct {
	APIVersion string    `json:"apiVersion"`
	Kind       string    `json:"kind"`
	Name       string    `json:"name"`
	UID        types.UID `json:"uid"`
}

// User is who sent the request.
type User struct {
	Name   string
	UID    string
	Groups []string
	// Extra is what the authenticator knows beside, such as the Pod of a bound token.
	Extra map[string][]string
}

// Scale says whether the attempt changes the number of replicas only, through
// the scale subresource. Such a request does not carry the Pod template: see
// WithTarget.
func (a Attempt) Scale() bool { return a.Subresource == SubresourceScale }

// Raises says whether more Pods are wanted than before.
func (a Attempt) Raises() bool {
	return !a.Old.Present || a.New.Replicas.Exceeds(a.Old.Replicas)
}

// From reduces a request that Parse returned. Every error is a *MalformedError.
func From(request *admissionv1.AdmissionRequest, signature *identify.Signature, customs []guardv1alpha1.WorkloadRule) (Attempt, error) {
	a := Attempt{
		AdmissionUID: request.UID,
		Operation:    Operation(request.Operation),
		Resource:     schema.GroupVersionResource(request.Resource),
		Subresource:  request.SubResource,
		Kind:         schema.GroupVersionKind(request.Kind),
		Namespace:    request.Namespace,
		Name:         request.Name,
		User:         userOf(request.UserInfo),
		DryRun:       request.DryRun != nil && *request.DryRun,
	}
	layout, known := LayoutOf(a.Resource.GroupResource(), customs)
	a.Workload = layout.Workload

	if a.Operation == Connect {
		return a, nil
	}
	reader := reader{signature: signature, layout: layout, known: known, scale: a.Scale()}
	newObject, err := reader.read(request.Object.Raw)
	if err != nil {
		return Attempt{}, err
	}
	oldObject, err := reader.read(request.OldObject.Raw)
	if err != nil {
		return Attempt{}, err
	}
	a.New, a.Old = newObject.shape, oldObject.shape
	a.PodSpecChanged = podSpecChanged(newObject, oldObject)
	if a.Operation == Delete && a.Workload == WorkloadPod && a.Subresource == "" {
		if a.Removal, err = removalOf(request.Options.Raw, oldObject); err != nil {
			return Attempt{}, err
		}
	}
	a.identity(newObject.meta, oldObject.meta)
	return a, nil
}

// identity fills what the object's metadata says. The new version wins; the
// old one answers where the new is absent (a delete) or says nothing (the uid
// in a scale that the client wrote by hand).
func (a *Attempt) identity(now, before metav1.ObjectMeta) {
	a.Name = firstOf(a.Name, now.Name, before.Name)
	a.Namespace = firstOf(a.Namespace, now.Namespace, before.Namespace)
	a.GenerateName = firstOf(now.GenerateName, before.GenerateName)
	a.ObjectUID = types.UID(firstOf(string(now.UID), string(before.UID)))
	owner := metav1.GetControllerOfNoCopy(&now)
	if owner == nil && a.Operation == Delete {
		owner = metav1.GetControllerOfNoCopy(&before)
	}
	if owner != nil {
		a.Owner = &Owner{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID}
	}
}

// WithTarget completes a scale with the object that it scales, read from the
// API server as JSON: its instances are those of both shapes, for a scale does
// not change the template.
func (a Attempt) WithTarget(object []byte, signature *identify.Signature, customs []guardv1alpha1.WorkloadRule) (Attempt, error) {
	layout, known := LayoutOf(a.Resource.GroupResource(), customs)
	target, err := reader{signature: signature, layout: layout, known: known}.read(object)
	if err != nil {
		return a, err
	}
	a.New.Containers, a.Old.Containers = target.shape.Containers, target.shape.Containers
	a.New.Flags, a.Old.Flags = target.shape.Flags, target.shape.Flags
	a.ObjectUID = types.UID(firstOf(string(target.meta.UID), string(a.ObjectUID)))
	if owner := metav1.GetControllerOfNoCopy(&target.meta); owner != nil {
		a.Owner = &Owner{APIVersion: owner.APIVersion, Kind: owner.Kind, Name: owner.Name, UID: owner.UID}
	}
	return a, nil
}

func userOf(info authenticationv1.UserInfo) User {
	user := User{Name: info.Username, UID: info.UID, Groups: info.Groups}
	if len(info.Extra) > 0 {
		user.Extra = make(map[string][]string, len(info.Extra))
		for key, values := range info.Extra {
			user.Extra[key] = values
		}
	}
	return user
}

func firstOf(values ...string) string {
	for _, value := range values {
		if value != "" {
			return value
		}
	}
	return ""
}
