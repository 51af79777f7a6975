package decide

import (
	"cmp"
	"strings"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
)

// kindStatefulSet is the kind of every holder.
const kindStatefulSet = "StatefulSet"

// Decide judges an attempt. The result is never VerdictUnknown or VerdictExists.
func Decide(a attempt.Attempt, p Policy, h Holder) Decision {
	return suspect(decide(a, p, h), a, p)
}

func decide(a attempt.Attempt, p Policy, h Holder) Decision {
	h = slotOf(a, p, h)
	if !matching(a, h) {
		return Decision{Verdict: VerdictAllow, Holder: h}
	}
	allow := Decision{Verdict: VerdictAllow, Matching: true, Holder: h}
	if !judged(a) {
		return allow
	}
	if allow.Exception = exceptionFor(a, p); allow.Exception != nil {
		return allow
	}
	if h.State == StateUnknown {
		if a.Operation == attempt.Delete {
			// Nothing that is taken away is a second instance, and what takes it
			// away must work while the guard is blind.
			return allow
		}
		return unreadable(p, h)
	}
	facts := facts{Attempt: a, policy: p, holder: h}
	for _, rule := range tableFor(a) {
		if refusal := rule.broken(facts); refusal != nil {
			return broken(rule.id, *refusal, p, h)
		}
	}
	allow.Notice = notice(facts)
	if !facts.wantsSlot() {
		return allow
	}
	switch {
	case !p.Stored:
		return noPolicy(p, h)
	case a.DryRun:
		// A dry run must leave nothing behind, and nothing is admitted by it.
		return allow
	default:
		return Decision{Verdict: VerdictClaim, Matching: true, Holder: h}
	}
}

// slotOf is the slot that an attempt is about. In mode Sharded there are
// several: it is the one of the StatefulSet, or of the Pod that has its pinned
// name, or else one that is free.
func slotOf(a attempt.Attempt, p Policy, h Holder) Holder {
	if p.Mode != guardv1alpha1.ModeSharded || h.State == StateUnknown {
		return h
	}
	for _, shard := range h.Shards {
		if holds(a, shard) || a.Workload == attempt.WorkloadPod && identity(a) == shard.pin(0) || targets(a.New, a.Namespace, shard) {
			shard.Shards = h.Shards
			return shard
		}
	}
	return Holder{State: StateFree, Epoch: h.Epoch, Shards: h.Shards}
}

// matching says whether the attempt has to do with the policy at all.
func matching(a attempt.Attempt, h Holder) bool {
	return a.New.Instance() || a.Old.Instance() || holds(a, h) || targets(a.New, a.Namespace, h)
}

// judged says whether the rules look at the attempt. They do not look at
// deletes other than forced ones of Pods, at subresources other than those that start or change containers,
// at what runs no instance afterwards, and at an update that neither changes
// what runs nor asks for more of it.
func judged(a attempt.Attempt) bool {
	switch {
	case a.Operation == attempt.Delete:
		return a.Removal.Forced
	case !Judges(a.Operation, a.Subresource, a.Resource.Resource):
		return false
	case a.Workload == attempt.WorkloadAutoscaler:
		return a.New.Target != nil && (a.Raises() || *a.New.Target != *cmp.Or(a.Old.Target, &attempt.Target{}))
	case a.Scale():
		return a.Raises()
	case a.Operation == attempt.Create:
		return a.New.Instance()
	default:
		return a.New.Instance() && (a.PodSpecChanged || a.Raises() || a.New.OrdinalsStart != a.Old.OrdinalsStart)
	}
}

// Judges says whether a request with that operation on that resource and
// subresource can be refused at all. For one that cannot, nothing need be read.
func Judges(operation attempt.Operation, subresource, resource string) bool {
	switch subresource {
	case "":
		return operation == attempt.Create || operation == attempt.Update || operation == attempt.Delete && resource == "pods"
	case attempt.SubresourceScale, attempt.SubresourceEphemeralContainers:
		return operation == attempt.Create || operation == attempt.Update
	default:
		return false
	}
}

// holds says whether the attempt is about the holder's StatefulSet. The name
// decides, not the uid: there is at most one object of a name.
func holds(a attempt.Attempt, h Holder) bool {
	return h.Held() && a.Workload == attempt.WorkloadStatefulSet && identity(a) == h.Identity
}

// targets says whether a shape is an autoscaler of the holder.
func targets(shape attempt.Shape, namespace string, h Holder) bool {
	return h.Held() && shape.Target != nil && shape.Target.Group == "apps" && shape.Target.Kind == kindStatefulSet &&
		h.Identity == Identity{Namespace: namespace, Name: shape.Target.Name}
}

func identity(a attempt.Attempt) Identity { return Identity{Namespace: a.Namespace, Name: a.Name} }

// Users that write on behalf of workloads.
const (
	// UserControllerManager is the controller manager where its controllers
	// share one identity.
	UserControllerManager = "system:kube-controller-manager"
	// UserStatefulSetController is the StatefulSet controller where each has its own.
	UserStatefulSetController = controllerAccounts + "statefulset-controller"

	controllerAccounts = "system:serviceaccount:kube-system:"
)

// byStatefulSetController says whether the StatefulSet controller wrote it.
func byStatefulSetController(a attempt.Attempt) bool {
	return a.User.Name == UserStatefulSetController || a.User.Name == UserControllerManager
}

// byController says whether one of Kubernetes' own controllers wrote it.
func byController(a attempt.Attempt) bool {
	return a.User.Name == UserControllerManager ||
		strings.HasPrefix(a.User.Name, controllerAccounts) && strings.HasSuffix(a.User.Name, "-controller")
}

// exceptionFor finds an exception that lets the attempt through: it names the
// object, or the workload that the object was made for by a controller of
// Kubernetes' own. A ReplicaSet is named after its Deployment and a Job after
// its CronJob, with one more element.
func exceptionFor(a attempt.Attempt, p Policy) *Exception {
	for i := range p.Excepted {
		exception := &p.Excepted[i]
		if exception.Namespace != a.Namespace {
			continue
		}
		if exception.Name == a.Name {
			return exception
		}
		// Who deletes does not write the owner, which was judged as it came.
		if a.Owner == nil || !byController(a) && a.Operation != attempt.Delete {
			continue
		}
		if MadeFor(a.Owner.Kind, a.Owner.Name, exception.Name) {
			return exception
		}
	}
	return nil
}

// MadeFor says whether an object whose controller is owner was made for the
// named workload, directly or through its ReplicaSet or Job.
func MadeFor(ownerKind, ownerName, workload string) bool {
	if ownerName == workload {
		return true
	}
	made := ownerKind == "ReplicaSet" || ownerKind == "Job"
	cut := strings.LastIndexByte(ownerName, '-')
	return made && cut > 0 && ownerName[:cut] == workload
}

func broken(id Rule, r refusal, p Policy, h Holder) Decision {
	return Decision{Verdict: p.Action.verdict(), Matching: true, Rule: id, Message: r.message(id, p, h), Holder: h}
}

// unreadable is the answer when nobody knows who holds the slot.
func unreadable(p Policy, h Holder) Decision {
	decision := broken(RuleNone, refusal{
		line: "cannot tell who holds the slot, so nothing that would run an instance is let in",
		why:  h.Why,
		next: "try again; if it goes on, see the log of the guard and `kubectl get singletonpolicies`",
	}, p, h)
	if decision.Verdict == VerdictDeny {
		decision.Verdict = VerdictUnreadable
	}
	return decision
}

// noPolicy is the answer to a claim that has nowhere to be written.
func noPolicy(p Policy, h Holder) Decision {
	return Decision{
		Verdict: VerdictUnreadable, Matching: true, Holder: h,
		Message: refusal{
			line: "SingletonPolicy " + p.Name + " does not exist, so the slot cannot be claimed",
			next: "create the policy (kubectl apply -k config/guard, or any SingletonPolicy of that name), then try again",
		}.message(RuleNone, p, h),
	}
}

// ClaimResult is what became of a claim.
type ClaimResult int

const (
	// ClaimFailed means that nobody knows whether the claim was written.
	ClaimFailed ClaimResult = iota
	// ClaimGranted means that the attempt's object holds the slot now.
	ClaimGranted
	// ClaimExists means that an object of that name exists already, so that
	// the create cannot succeed.
	ClaimExists
	// ClaimCrowded means that instances run, or StatefulSets that would run some
	// exist, though nobody holds the slot.
	ClaimCrowded
)

// Occupant is what runs an instance, or would, and holds no slot.
type Occupant struct {
	// Kind is StatefulSet or Pod.
	Kind string
	Identity
	// Of is the controller that a Pod says to be of, as Kind/name.
	Of string
}

// String is for messages.
func (o Occupant) String() string {
	text := o.Kind + " " + o.Identity.String()
	if o.Of != "" {
		text += " of " + o.Of
	}
	return text
}

// Claim is the outcome of a claim.
type Claim struct {
	Result ClaimResult
	// Holder is the holder afterwards, if granted.
	Holder Holder
	// Others are what is in the way, if crowded.
	Others []Occupant
	// Why says, for people, why the claim failed.
	Why string
}

// Settle turns VerdictClaim into the final answer.
func Settle(a attempt.Attempt, p Policy, h Holder, c Claim) Decision {
	switch c.Result {
	case ClaimGranted:
		return suspect(Decision{Verdict: VerdictAllow, Matching: true, Holder: c.Holder}, a, p)
	case ClaimExists:
		return Decision{
			Verdict: VerdictExists, Matching: true, Holder: h,
			Message: a.Resource.GroupResource().String() + " \"" + a.Name + "\" already exists",
		}
	case ClaimCrowded:
		return broken(RuleSecondWorkload, crowded(c.Others), p, h)
	default:
		h.Why = c.Why
		return unreadable(p, h)
	}
}
