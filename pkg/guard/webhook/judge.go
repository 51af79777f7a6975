package webhook

import (
	"context"
	"errors"
	"sync"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/log"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/claim"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
	"github.com/metacontroller-solo/solo/pkg/logging"
)

// judge decides, and claims where the decision asks for it. The error is a
// *attempt.MalformedError.
func (h *Handler) judge(ctx context.Context, request *admissionv1.AdmissionRequest) (Outcome, error) {
	if !decide.Judges(attempt.Operation(request.Operation), request.SubResource, request.Resource.Resource) {
		return Outcome{Decision: decide.Decision{Verdict: decide.VerdictAllow}}, nil
	}
	if policy := h.recent.get(); policy != nil {
		if outcome, settled, err := h.settled(ctx, request, policy); settled || err != nil {
			return outcome, err
		}
	}
	for {
		outcome, again, err := h.once(ctx, request)
		if err != nil || !again {
			return outcome, err
		}
		// Somebody changed the policy: whoever it was made progress, so that
		// this ends. The deadline of ctx bounds it in any case.
	}
}

// settled decides by a policy that was read a moment ago. It does so only if
// the holder is bound and the request does not ask for the slot; else settled is
// false and the policy is to be read.
func (h *Handler) settled(ctx context.Context, request *admissionv1.AdmissionRequest, policy *guardv1alpha1.SingletonPolicy) (outcome Outcome, settled bool, err error) {
	if holder := policy.Status.Holder; holder == nil || holder.Phase != guardv1alpha1.HolderBound {
		return Outcome{}, false, nil
	}
	signature, err := h.signatures.of(policy, nil)
	if err != nil {
		return Outcome{}, false, nil //nolint:nilerr // The live read says what is wrong with it.
	}
	outcome, err = h.decided(ctx, request, policy, signature, nil)
	return outcome, err == nil && outcome.Decision.Verdict != decide.VerdictClaim, err
}

// decided is the decision by a policy, or without one where unreadable says why.
func (h *Handler) decided(ctx context.Context, request *admissionv1.AdmissionRequest, policy *guardv1alpha1.SingletonPolicy, signature *identify.Signature, unreadable error) (Outcome, error) {
	rules, holder, customs := h.view(policy, unreadable)
	a, err := attempt.From(request, signature, customs)
	if err != nil {
		return Outcome{}, err
	}
	if a.Scale() && a.Raises() {
		if a, err = h.scaled(ctx, a, signature, customs); err != nil {
			return Outcome{}, err
		}
	}
	if a.Removal.Forced && a.Removal.Node != "" && !a.Removal.Ended && a.Old.Instance() {
		a = a.WithNode(h.node(ctx, a))
	}
	return Outcome{Attempt: a, Policy: rules, Decision: decide.Decide(a, rules, holder)}, nil
}

// once reads the policy and decides by it. again asks for another round.
func (h *Handler) once(ctx context.Context, request *admissionv1.AdmissionRequest) (outcome Outcome, again bool, err error) {
	began := h.recent.begin()
	policy, readErr := h.deps.Slot.Read(ctx)
	h.recent.remember(began, policy)
	signature, compileErr := h.signatures.of(policy, readErr)
	if last := h.signatures.good(); compileErr != nil && readErr == nil && last != nil && last.UID == policy.UID {
		// Somebody let a spec in that cannot be judged by, past the CRD's own rules:
		// the last good one stands in. The holder is as it was read.
		policy = policy.DeepCopy()
		policy.Spec, compileErr = last.Spec, nil
	}
	outcome, err = h.decided(ctx, request, policy, signature, errors.Join(readErr, compileErr))
	if err != nil || outcome.Decision.Verdict != decide.VerdictClaim {
		return outcome, false, err
	}
	a := outcome.Attempt
	taken, err := h.deps.Slot.Take(ctx, policy, signature, claim.Want{
		Identity: decide.Identity{Namespace: a.Namespace, Name: a.Name},
		UID:      a.ObjectUID,
		Creates:  a.Operation == attempt.Create,
		Selector: a.New.Flags.Selector,
	})
	switch {
	case errors.Is(err, claim.ErrConflict):
		return Outcome{}, true, nil
	case err != nil:
		log.FromContext(ctx).Error(err, "Cannot claim the slot", logging.KeyNamespace, a.Namespace, logging.KeyName, a.Name)
		taken = decide.Claim{Result: decide.ClaimFailed, Why: err.Error()}
	}
	outcome.Decision = decide.Settle(a, outcome.Policy, outcome.Decision.Holder, taken)
	return outcome, false, nil
}

// view is what is decided by. Without a readable policy the holder is unknown,
// which is never taken for a free slot.
func (h *Handler) view(policy *guardv1alpha1.SingletonPolicy, err error) (decide.Policy, decide.Holder, []guardv1alpha1.WorkloadRule) {
	switch {
	case policy == nil && err != nil:
		if last := h.signatures.good(); last != nil {
			return decide.PolicyOf(last, h.deps.Clock.Now()), decide.Holder{Why: err.Error()}, last.Spec.Match.Workloads
		}
		return decide.DefaultPolicy(h.deps.Policy), decide.Holder{Why: err.Error()}, nil
	case policy == nil:
		return decide.DefaultPolicy(h.deps.Policy), decide.Holder{State: decide.StateFree}, nil
	}
	rules := decide.PolicyOf(policy, h.deps.Clock.Now())
	if err != nil {
		return rules, decide.Holder{Why: err.Error()}, policy.Spec.Match.Workloads
	}
	return rules, decide.HolderOf(policy.Status), policy.Spec.Match.Workloads
}

// scaled completes a scale with the object that it scales. If that cannot be
// read, it is judged by its name alone: the holder's is known, and what another
// workload would run is judged at its Pods.
func (h *Handler) scaled(ctx context.Context, a attempt.Attempt, signature *identify.Signature, customs []guardv1alpha1.WorkloadRule) (attempt.Attempt, error) {
	if a.Workload == attempt.WorkloadNone {
		return a, nil
	}
	target, err := h.deps.Targets.Target(ctx, a)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot read what is scaled", logging.KeyNamespace, a.Namespace, logging.KeyName, a.Name)
		return a, nil
	}
	return a.WithTarget(target, signature, customs)
}

// node says what is known of the node of a Pod that is to be forced out. A node
// that cannot be read may still run it.
func (h *Handler) node(ctx context.Context, a attempt.Attempt) attempt.NodeState {
	state, err := h.deps.Nodes.NodeState(ctx, a.Removal.Node)
	if err != nil {
		log.FromContext(ctx).Error(err, "Cannot read the node of a Pod that is forced out", logging.KeyNamespace, a.Namespace, logging.KeyName, a.Name)
		return attempt.NodeUnknown
	}
	return state
}

// signatures keeps the last compiled match: policies change rarely, and a
// policy that cannot be read is stood in for by the last one that could.
type signatures struct {
	// mutex guards the fields below. Compiling is done outside of it.
	mutex      sync.Mutex
	uid        types.UID
	generation int64
	last       *identify.Signature
	// policy is what last was compiled from; it is not changed.
	policy *guardv1alpha1.SingletonPolicy
}

// good is the last policy that could be judged by, nil before there was any.
func (s *signatures) good() *guardv1alpha1.SingletonPolicy {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.policy
}

// of returns the signature of a policy. Where there is no policy it is the
// built-in default; where the policy could not be read, or does not compile, it
// is the last good one, and before there was any the default.
func (s *signatures) of(policy *guardv1alpha1.SingletonPolicy, readErr error) (*identify.Signature, error) {
	s.mutex.Lock()
	last, uid, generation := s.last, s.uid, s.generation
	s.mutex.Unlock()

	if policy == nil {
		if last != nil && readErr != nil {
			return last, nil
		}
		return identify.Compile(guardv1alpha1.DefaultMatch())
	}
	if last != nil && uid == policy.UID && generation == policy.Generation {
		return last, nil
	}
	compiled, err := identify.Compile(policy.Spec.Match)
	if err != nil {
		if last == nil {
			last, _ = identify.Compile(guardv1alpha1.DefaultMatch())
		}
		return last, err
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.last, s.uid, s.generation = compiled, policy.UID, policy.Generation
	s.policy = policy.DeepCopy()
	return compiled, nil
}
