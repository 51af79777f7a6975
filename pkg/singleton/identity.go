package singleton

import (
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
)

// Where the Lease is, and how long it lasts. The place is the same for every
// instance of a cluster, whatever namespace it runs in: that is what makes it
// one.
const (
	DefaultNamespace = "kube-system"
	DefaultName      = "metacontroller"

	// Duration is how long a Lease outlives its last renewal.
	Duration = 15 * time.Second
	// RenewDeadline is how long after the last renewal the holder may still
	// write. What lies between it and Duration is the margin for writes that are
	// under way and for clocks that run at different speeds.
	RenewDeadline = 10 * time.Second
	// RetryPeriod is the time between two renewals, or two looks at a Lease that
	// another holds.
	RetryPeriod = 2 * time.Second
)

// Environment variables that tell a process which Pod it runs in; the Pod's
// manifest fills them from metadata.name, metadata.uid and metadata.namespace.
const (
	EnvPodName      = "POD_NAME"
	EnvPodUID       = "POD_UID"
	EnvPodNamespace = "POD_NAMESPACE"
)

// ProcessAnnotation on the Lease is a random id of the process that wrote it
// last. It tells apart two processes with one identity: two containers of one
// Pod, or a container and the one that was started after it crashed.
const ProcessAnnotation = "metacontroller.io/singleton-process"

// separator stands between name and uid. Neither a Pod's name nor a uid has an
// underscore.
const separator = "_"

// Identity says who holds the Lease.
type Identity struct {
	// Pod is the name of the Pod, or of the host for a process outside a Pod.
	Pod string
	// UID is the Pod's uid, or a random one for a process outside a Pod.
	UID string
	// Namespace is the Pod's; empty for a process outside a Pod. It is no part of
	// the holderIdentity.
	Namespace string
}

// String is the holderIdentity of the Lease: <pod name>_<pod uid>.
func (i Identity) String() string { return i.Pod + separator + i.UID }

// ParseIdentity reads a holderIdentity. It reports false for one that has no
// Pod or no uid; such a Lease was not written by this package.
func ParseIdentity(holder string) (Identity, bool) {
	pod, uid, found := strings.Cut(holder, separator)
	if !found || pod == "" || uid == "" || strings.Contains(uid, separator) {
		return Identity{}, false
	}
	return Identity{Pod: pod, UID: uid}, true
}

// IdentityFrom takes the identity from the environment of a Pod. Outside a Pod,
// or in one whose manifest does not hand both values on, it is the host's name
// and the given fallback uid.
func IdentityFrom(getenv func(string) string, host, fallbackUID string) Identity {
	identity := Identity{Pod: getenv(EnvPodName), UID: getenv(EnvPodUID), Namespace: getenv(EnvPodNamespace)}
	if identity.Pod == "" || identity.UID == "" ||
		strings.Contains(identity.Pod, separator) || strings.Contains(identity.UID, separator) {
		identity = Identity{Pod: strings.ReplaceAll(host, separator, "-"), UID: fallbackUID}
	}
	return identity
}

// Holder is what a Lease says about who holds it.
type Holder struct {
	// Identity as written; empty when nobody holds the Lease.
	Identity string
	// Process is the id of the process that wrote the Lease last, empty if it
	// was another program than this one.
	Process string
	// Since is when the holder took it; the holder's clock.
	Since time.Time
	// Renewed is when the holder last renewed it; the holder's clock.
	Renewed time.Time
	// Duration is how long the Lease lasts after a renewal.
	Duration time.Duration
}

// Free reports whether nobody holds the Lease. A Lease past its duration is not
// free: whether it is, only someone who has watched it for that long can say.
func (h Holder) Free() bool { return h.Identity == "" }

// HolderOf reads a Lease.
func HolderOf(lease *coordinationv1.Lease) Holder {
	holder := Holder{Process: lease.Annotations[ProcessAnnotation]}
	spec := lease.Spec
	if spec.HolderIdentity != nil {
		holder.Identity = *spec.HolderIdentity
	}
	if spec.AcquireTime != nil {
		holder.Since = spec.AcquireTime.Time
	}
	if spec.RenewTime != nil {
		holder.Renewed = spec.RenewTime.Time
	}
	if spec.LeaseDurationSeconds != nil {
		holder.Duration = time.Duration(*spec.LeaseDurationSeconds) * time.Second
	}
	return holder
}
