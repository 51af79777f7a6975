package claim

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
)

// ErrConflict means that somebody changed the policy since it was read: read
// and decide again.
var ErrConflict = errors.New("the policy has changed since it was read")

// pageSize is how many objects a live list asks for at a time.
const pageSize = 500

// kindStatefulSet is the kind of every holder.
const kindStatefulSet = "StatefulSet"

// Slot reads and takes the slot of one policy.
type Slot struct {
	// Client must read from the API server, not from a cache.
	Client client.Client
	Clock  clock.PassiveClock
	// Policy is the name of the SingletonPolicy.
	Policy string
	// Look bounds the look at all Pods before a free slot is given away; zero is
	// DefaultLook. It must leave the request time to be answered.
	Look time.Duration
}

// DefaultLook is less than half of the time that the API server waits for the
// guard by default.
const DefaultLook = 2 * time.Second

// Want is who wants the slot.
type Want struct {
	decide.Identity
	// UID is the StatefulSet's. On a create it is the one that the object will
	// have if it is stored.
	UID types.UID
	// Creates says whether the object does not exist yet.
	Creates bool
	// Selector is of the shard that it wants, in mode Sharded.
	Selector string
}

// Read reads the policy live. It returns nil without an error if the API
// server says that there is none.
func (s *Slot) Read(ctx context.Context) (*guardv1alpha1.SingletonPolicy, error) {
	policy := &guardv1alpha1.SingletonPolicy{}
	switch err := s.Client.Get(ctx, client.ObjectKey{Name: s.Policy}, policy); {
	case apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, metav1.CauseTypeUnexpectedServerResponse):
		return nil, nil
	case err != nil:
		// Also where the API server does not serve the kind: whether there is such a
		// policy, nobody can say then.
		return nil, fmt.Errorf("cannot get SingletonPolicy %q: %w", s.Policy, err)
	}
	return policy, nil
}

// Take tries once to make want the holder of a policy that Read returned and on
// which Decide asked for a claim. ErrConflict means that somebody was faster.
func (s *Slot) Take(ctx context.Context, policy *guardv1alpha1.SingletonPolicy, signature *identify.Signature, want Want) (decide.Claim, error) {
	if want.Creates {
		live, err := getStatefulSet(ctx, s.Client, want.Identity)
		if err != nil {
			return decide.Claim{}, err
		}
		if live != nil && live.UID != want.UID {
			return decide.Claim{Result: decide.ClaimExists}, nil
		}
	}
	if free(policy, want.Identity) {
		others, err := s.others(ctx, policy, signature, want.Identity)
		if err != nil {
			return decide.Claim{}, err
		}
		if len(others) > 0 {
			// It may be there because it got the slot since the policy was read: then
			// that is the reason, and the holder's name the answer.
			if now, err := s.Read(ctx); err != nil {
				return decide.Claim{}, err
			} else if now == nil || now.ResourceVersion != policy.ResourceVersion {
				return decide.Claim{}, ErrConflict
			}
			return decide.Claim{Result: decide.ClaimCrowded, Others: others}, nil
		}
	}
	if policy.Spec.Mode == guardv1alpha1.ModeSharded {
		return s.takeShard(ctx, policy, want)
	}
	taken := policy.DeepCopy()
	setHolder(&taken.Status, want.Identity, want.UID, guardv1alpha1.HolderReserved, metav1.NewTime(s.Clock.Now()))
	if err := update(ctx, s.Client, taken); err != nil {
		return decide.Claim{}, err
	}
	return decide.Claim{Result: decide.ClaimGranted, Holder: decide.HolderOf(taken.Status)}, nil
}

// free says whether the slot that want asks for is nobody's. The holder that
// comes again as a new object was looked at when it got the slot.
func free(policy *guardv1alpha1.SingletonPolicy, want decide.Identity) bool {
	if policy.Spec.Mode == guardv1alpha1.ModeSharded {
		return slotOf(&policy.Status, want) == nil
	}
	return policy.Status.Holder == nil
}

// others are what runs instances, or would, though it holds no slot: it was
// there before the guard, or came while the guard was not enforcing. Nobody gets
// a free slot beside it, for two instances would run.
//
// The policy was read before. While its slot is free the API server lets no
// instance in, so a Pod that is not seen here is not there when the slot is
// written under that policy's resourceVersion either; and one that is seen and
// ends meanwhile costs its StatefulSet another try.
func (s *Slot) others(ctx context.Context, policy *guardv1alpha1.SingletonPolicy, signature *identify.Signature, want decide.Identity) ([]decide.Occupant, error) {
	var others []decide.Occupant
	mine := func(id decide.Identity) bool {
		return id == want || slotOf(&policy.Status, id) != nil || decide.PolicyOf(policy, s.Clock.Now()).Excepts(id)
	}
	// With spec.holder a person has chosen, and a StatefulSet that is not the one
	// gets no Pod; in mode Sharded the selectors decide.
	if policy.Spec.Holder == nil && policy.Spec.Mode != guardv1alpha1.ModeSharded {
		found, err := candidates(ctx, s.Client, signature)
		if err != nil {
			return nil, err
		}
		for i := range found {
			if id := identityOf(&found[i]); !mine(id) {
				others = append(others, decide.Occupant{Kind: kindStatefulSet, Identity: id})
			}
		}
	}
	pods, err := s.look(ctx, policy, signature)
	if err != nil {
		return nil, err
	}
	known := map[decide.Identity]bool{}
	for _, other := range others {
		known[other.Identity] = true
	}
	status := policy.Status.DeepCopy()
	status.ActiveExceptions = decide.ActiveExceptions(policy.Spec.Exceptions, s.Clock.Now())
	for i := range pods {
		pod, _ := inspect.PodOf(&pods[i], signature, nil)
		if pod.Verdict(status) != guardv1alpha1.InstanceViolation ||
			pod.Namespace == want.Namespace && belongs(&pods[i], &guardv1alpha1.Holder{Kind: kindStatefulSet, Name: want.Name}) && !pod.Static {
			continue
		}
		occupant := decide.Occupant{Kind: "Pod", Identity: identityOf(&pods[i])}
		if pod.Owner != nil {
			if pod.Owner.Kind == kindStatefulSet && known[decide.Identity{Namespace: pod.Namespace, Name: pod.Owner.Name}] {
				continue
			}
			occupant.Of = pod.Owner.Kind + "/" + pod.Owner.Name
		}
		others = append(others, occupant)
	}
	return others, nil
}

// look is a live look at all Pods. In a cluster with so many that it takes longer
// than a request can wait, the last scan counts, if it vouches that nothing runs:
// it has seen everything since the generation was written, and meanwhile the API
// server has let no instance in.
func (s *Slot) look(ctx context.Context, policy *guardv1alpha1.SingletonPolicy, signature *identify.Signature) ([]corev1.Pod, error) {
	limit := s.Look
	if limit == 0 {
		limit = DefaultLook
	}
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	pods, err := instancePods(bounded, s.Client, signature, "")
	switch {
	case err == nil || bounded.Err() == nil || ctx.Err() != nil:
		return pods, err
	case vouched(policy):
		return nil, nil
	}
	return nil, fmt.Errorf("cannot look at all Pods within %s, and no scan says that none runs an instance: wait until the policy's condition Compliant is True, or delete what status.instances names", limit)
}

// vouched says whether a scan has seen, of this generation, that nothing runs.
func vouched(policy *guardv1alpha1.SingletonPolicy) bool {
	compliant := meta.FindStatusCondition(policy.Status.Conditions, guardv1alpha1.ConditionCompliant)
	return compliant != nil && compliant.Status == metav1.ConditionTrue && compliant.ObservedGeneration == policy.Generation &&
		len(policy.Status.Instances) == 0 && len(policy.Status.ActiveExceptions) == 0
}

// setHolder makes a new holder, and with it a new epoch.
func setHolder(status *guardv1alpha1.SingletonPolicyStatus, id decide.Identity, uid types.UID, phase guardv1alpha1.HolderPhase, now metav1.Time) {
	status.Epoch = nextEpoch(*status)
	status.Holder = &guardv1alpha1.Holder{
		Kind:      kindStatefulSet,
		Namespace: id.Namespace,
		Name:      id.Name,
		Display:   id.String(),
		UID:       uid,
		ClaimedAt: now,
		Phase:     phase,
		Since:     now,
		Epoch:     status.Epoch,
	}
	status.ActivePod = nil
}

// nextEpoch never falls, also if somebody edited one of the two.
func nextEpoch(status guardv1alpha1.SingletonPolicyStatus) int64 {
	epoch := status.Epoch
	if status.Holder != nil {
		epoch = max(epoch, status.Holder.Epoch)
	}
	return epoch + 1
}

// update writes the status under the resourceVersion that the policy has.
func update(ctx context.Context, c client.Client, policy *guardv1alpha1.SingletonPolicy) error {
	switch err := c.Status().Update(ctx, policy); {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return ErrConflict
	case err != nil:
		return fmt.Errorf("cannot update status of SingletonPolicy %q: %w", policy.Name, err)
	}
	return nil
}

// getStatefulSet reads live; nil means that the API server says it is absent.
func getStatefulSet(ctx context.Context, c client.Reader, id decide.Identity) (*appsv1.StatefulSet, error) {
	live := &appsv1.StatefulSet{}
	switch err := c.Get(ctx, client.ObjectKey{Namespace: id.Namespace, Name: id.Name}, live); {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("cannot get StatefulSet %q: %w", id, err)
	}
	return live, nil
}

// candidates lists live all StatefulSets whose template runs an instance.
func candidates(ctx context.Context, c client.Reader, signature *identify.Signature) ([]appsv1.StatefulSet, error) {
	var found []appsv1.StatefulSet
	page := &appsv1.StatefulSetList{}
	for {
		if err := c.List(ctx, page, client.Limit(pageSize), client.Continue(page.Continue)); err != nil {
			return nil, fmt.Errorf("cannot list StatefulSets: %w", err)
		}
		for _, candidate := range page.Items {
			if len(signature.Containers(&candidate.Spec.Template.Spec)) > 0 {
				found = append(found, candidate)
			}
		}
		if page.Continue == "" {
			return found, nil
		}
	}
}

func identityOf(object metav1.Object) decide.Identity {
	return decide.Identity{Namespace: object.GetNamespace(), Name: object.GetName()}
}
