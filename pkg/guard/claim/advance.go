package claim

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
)

// Limits are how long the slot is kept.
type Limits struct {
	// Reservation is how long a holder may be absent before its reservation
	// ends. It must be longer than the API server keeps a request
	// (--request-timeout, 60s by default): an object may appear until then.
	Reservation time.Duration
	// Release is how long the pin is cleared before the slot is free: the bound
	// within which every API server has seen that it was cleared, and has stored
	// or given up the Pods and StatefulSets that it had let in before. So it is
	// longer than the API server keeps a request, too: a slow webhook of somebody
	// else may lie between the pin and the write.
	Release time.Duration
}

// observation is what the API server says of the holder, by live reads.
type observation struct {
	// found says whether a StatefulSet of the holder's name exists and either
	// runs an instance or is the very object that was bound.
	found bool
	uid   types.UID
	// instances is how many Pods of the holder, that have not ended, run an instance.
	instances int
	// elapsed is for how long this process has seen the holder in its present
	// phase, by a clock that nobody can set.
	elapsed time.Duration
}

// advance moves a holder to its next phase: Reserved and Bound follow the
// object, an absent one is given up in two steps. It changes status and says
// when to look again; zero means that an event will tell.
func advance(status *guardv1alpha1.SingletonPolicyStatus, seen observation, limits Limits, now metav1.Time) time.Duration {
	holder := status.Holder
	if holder == nil {
		return 0
	}
	if seen.found {
		follow(status, seen.uid, now)
		return 0
	}
	switch holder.Phase {
	case guardv1alpha1.HolderReserved:
		if left := limits.Reservation - seen.elapsed; left > 0 {
			return left
		}
		if seen.instances > 0 {
			return poll
		}
		enter(holder, guardv1alpha1.HolderReleasing, now)
		return limits.Release
	case guardv1alpha1.HolderBound:
		if seen.instances > 0 {
			return poll
		}
		enter(holder, guardv1alpha1.HolderReleasing, now)
		return limits.Release
	case guardv1alpha1.HolderReleasing:
		if left := limits.Release - seen.elapsed; left > 0 {
			return left
		}
		if seen.instances > 0 {
			return poll
		}
		// The epoch outlives the holder, so that the next one is a later one.
		status.Epoch = max(status.Epoch, holder.Epoch)
		status.Holder, status.ActivePod = nil, nil
	}
	return 0
}

// poll is how often the last Pods of a holder are looked for, beside events.
const poll = 2 * time.Second

// follow binds the holder to the object that exists. Its uid is another one
// than the reserved one when two creates of one name were in flight: whichever
// was stored is the holder.
func follow(status *guardv1alpha1.SingletonPolicyStatus, uid types.UID, now metav1.Time) {
	holder := status.Holder
	if holder.UID != uid {
		claimed := holder.ClaimedAt
		setHolder(status, decide.Identity{Namespace: holder.Namespace, Name: holder.Name}, uid, guardv1alpha1.HolderBound, now)
		status.Holder.ClaimedAt = claimed
		return
	}
	if holder.Phase != guardv1alpha1.HolderBound {
		enter(holder, guardv1alpha1.HolderBound, now)
	}
}

func enter(holder *guardv1alpha1.Holder, phase guardv1alpha1.HolderPhase, now metav1.Time) {
	holder.Phase, holder.Since = phase, now
}
