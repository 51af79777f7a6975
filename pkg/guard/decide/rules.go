package decide

import (
	"fmt"
	"strings"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
)

// facts is what a rule looks at.
type facts struct {
	attempt.Attempt
	policy Policy
	holder Holder
}

// rule is one line of the table. broken returns nil for an attempt that keeps it.
type rule struct {
	id     Rule
	broken func(facts) *refusal
}

// tableFor is the rules that look at such an attempt.
func tableFor(a attempt.Attempt) []rule {
	switch {
	case a.Operation == attempt.Delete:
		return []rule{{RuleForceDelete, forceDelete}}
	case a.Workload == attempt.WorkloadAutoscaler:
		return []rule{{RuleAutoscaler, autoscaler}}
	default:
		return table
	}
}

// table holds the rules in the order in which they speak: the first that is
// broken gives the answer. What is wrong with the object itself comes before
// who else is there, so that the advice leads to an object that can be let in.
var table = []rule{
	{RuleBecameInstance, becameInstance},
	{RuleTwoInOnePod, twoInOnePod},
	{RulePodNotPinned, podNotPinned},
	{RuleScaleAboveOne, scaledAboveOne},
	{RuleSecondWorkload, secondWorkload},
	{RuleWorkloadKind, workloadKind},
	{RuleScaleAboveOne, wantsAboveOne},
	{RuleLeaderElection, leaderElection},
	{RuleShardOverlap, shardOverlap},
	{RuleOrdinals, ordinals},
	{RuleZeroGrace, zeroGrace},
}

// clause ends a first line with the holder, for whose name %s stands.
func (f facts) clause() string { return clauseOf(f.holder) }

func clauseOf(h Holder) string {
	switch {
	case h.Held():
		return "; holder: %s"
	case h.State == StateUnknown:
		return ""
	case len(h.Shards) > 0:
		return fmt.Sprintf("; %d other shard(s) are held", len(h.Shards))
	default:
		return "; the slot is free"
	}
}

// wantsSlot says whether an attempt that breaks no rule must get the slot
// first: nobody has it, or the holder itself comes as a new object.
func (f facts) wantsSlot() bool {
	if f.Workload != attempt.WorkloadStatefulSet {
		return false
	}
	switch f.holder.State {
	case StateFree, StateReleasing:
		return true
	default:
		return f.Operation == attempt.Create && string(f.ObjectUID) != f.holder.UID
	}
}

func becameInstance(f facts) *refusal {
	if f.Operation != attempt.Update || f.Scale() || f.Old.Instance() || holds(f.Attempt, f.holder) {
		return nil
	}
	return &refusal{
		line: fmt.Sprintf("a %s may not become an instance", f.Workload) + f.clause(),
		next: "leave it as it is; to run another version, change the image of the holder",
	}
}

func twoInOnePod(f facts) *refusal {
	if len(f.New.Containers) < 2 || len(f.New.Containers) <= len(f.Old.Containers) || f.Scale() {
		return nil
	}
	names := make([]string, 0, len(f.New.Containers))
	for _, container := range f.New.Containers {
		names = append(names, container.Name)
	}
	return &refusal{
		line: fmt.Sprintf("%d containers of one Pod run an instance, one may", len(names)) + f.clause(),
		why:  "the containers are " + strings.Join(names, ", "),
		next: "leave one of them; init, sidecar and ephemeral containers count too",
	}
}

// podNotPinned lets in the one Pod that the StatefulSet controller makes for
// the holder. An owner reference proves nothing by itself, for anyone can
// write one.
func podNotPinned(f facts) *refusal {
	if f.Workload != attempt.WorkloadPod {
		return nil
	}
	if !f.holder.Held() && len(f.holder.Shards) > 0 {
		return &refusal{
			line: "no shard has this Pod's name pinned" + f.clause(),
			why:  "only the Pods that the StatefulSet controller makes for the holders of the shards are let in",
			next: "run it as a StatefulSet with replicas: 1 and a --" + attempt.FlagTargetLabelSelector + " of its own, which claims a shard",
		}
	}
	if !f.holder.Held() {
		return &refusal{
			line: "no Pod is pinned, for nobody holds the slot",
			why:  "only the Pod that the StatefulSet controller makes for the holder is let in",
			next: "run it as a StatefulSet with replicas: 1, which claims the slot",
		}
	}
	next := "use the holder; `kubectl get singletonpolicies` shows it"
	switch {
	case f.holder.State == StateReleasing:
		return &refusal{line: "no Pod is pinned, for %s is giving the slot back", next: "try again in some seconds"}
	case !f.pinned():
		return f.notThePinned(next)
	case f.Operation == attempt.Update:
		return nil
	case f.Owner == nil || f.Owner.Kind != "StatefulSet" || f.Owner.Name != f.holder.Identity.Name || string(f.Owner.UID) != f.holder.UID:
		return &refusal{
			line: "the pinned Pod must belong to the holder's StatefulSet" + f.clause(),
			why:  "the StatefulSet's uid is " + f.holder.UID,
			next: next,
		}
	case !byStatefulSetController(f.Attempt):
		return &refusal{
			line: "only the StatefulSet controller may create the pinned Pod" + f.clause(),
			why:  "this request came from another user, and an owner reference proves nothing",
			next: "delete the Pod instead: the StatefulSet controller makes it again",
		}
	}
	return nil
}

// scaledAboveOne is about an existing workload, whoever holds the slot.
func scaledAboveOne(f facts) *refusal {
	if f.Operation != attempt.Update || !f.New.Replicas.MoreThan(1) || !f.Raises() || f.mayHaveReplicas() {
		return nil
	}
	return aboveOne(f)
}

// wantsAboveOne is about a workload that would claim the slot, or the holder's again.
func wantsAboveOne(f facts) *refusal {
	if !f.New.Replicas.MoreThan(1) || !f.Raises() || f.mayHaveReplicas() {
		return nil
	}
	return aboveOne(f)
}

// mayHaveReplicas says whether rule leader-election judges the number of replicas.
func (f facts) mayHaveReplicas() bool {
	return f.policy.Mode == guardv1alpha1.ModeLeaderElected && f.Workload == attempt.WorkloadStatefulSet
}

func aboveOne(f facts) *refusal {
	return &refusal{
		line: fmt.Sprintf("at most 1 replica may run, %s asked for", f.New.Replicas) + f.clause(),
		why:  "two instances would act on the same objects and undo each other's work",
		next: "leave it at 1; for more throughput raise --workers, CPU and memory of the one",
	}
}

func secondWorkload(f facts) *refusal {
	other := f.policy.Designated != nil && *f.policy.Designated != identity(f.Attempt)
	switch {
	case f.Workload == attempt.WorkloadPod:
		return nil
	case holds(f.Attempt, f.holder):
		// The holder keeps what it has; made again, it must be the one that the
		// policy names now.
		if !other || !f.wantsSlot() {
			return nil
		}
	case f.holder.State == StateReleasing:
		return &refusal{
			line: "%s is giving the slot back; it is not free yet",
			next: "try again in some seconds",
		}
	case f.holder.Held():
		why := fmt.Sprintf("a second workload is a second workload, whatever its kind (%s), name or replicas", f.Workload)
		if f.holder.Pending {
			why += fmt.Sprintf("; the holder's Pod %s is Pending, and counts", f.holder.pin(0).Name)
		}
		return &refusal{
			line: "%s holds the slot, only one may",
			why:  why,
			next: "change the holder instead, or delete it first and wait until its Pod is gone; then this one can have the slot",
		}
	}
	if other {
		return &refusal{
			line: "the policy names another holder" + f.clause(),
			why:  "spec.holder of SingletonPolicy " + f.policy.Name + " is " + f.policy.Designated.String(),
			next: "use that one, or change spec.holder",
		}
	}
	return nil
}

// reasons say why a kind cannot hold the slot.
var reasons = map[attempt.Workload]string{
	attempt.WorkloadDeployment:            "a Deployment starts the new Pod before the old one is gone, so that two run at each rollout",
	attempt.WorkloadReplicaSet:            "a ReplicaSet starts another Pod before the old one is gone, so that two run for a while",
	attempt.WorkloadReplicationController: "a ReplicationController starts another Pod before the old one is gone, so that two run for a while",
	attempt.WorkloadDaemonSet:             "a DaemonSet runs one Pod on each node",
	attempt.WorkloadJob:                   "a Job starts another Pod before the old one is gone, so that two run for a while",
	attempt.WorkloadCronJob:               "a CronJob starts a Job beside one that still runs",
	attempt.WorkloadCustom:                "only a StatefulSet's Pod has a name that the API server keeps unique",
}

func workloadKind(f facts) *refusal {
	if f.Workload == attempt.WorkloadStatefulSet || f.Workload == attempt.WorkloadPod {
		return nil
	}
	return &refusal{
		line: fmt.Sprintf("a %s cannot hold the slot, a StatefulSet can", f.Workload) + f.clause(),
		why:  reasons[f.Workload],
		next: "make it a StatefulSet: kind: StatefulSet, spec.replicas: 1, spec.serviceName, the same template; then delete this one",
	}
}

// autoscaler is about who would ask for more replicas than may run. It is
// refused where it is written, for there somebody reads the reason.
func autoscaler(f facts) *refusal {
	if !targets(f.New, f.Namespace, f.holder) || !f.New.Replicas.MoreThan(1) || f.policy.Mode == guardv1alpha1.ModeLeaderElected {
		return nil
	}
	return &refusal{
		line: fmt.Sprintf("an autoscaler may not ask for %s replicas, 1 may run", f.New.Replicas) + f.clause(),
		why:  "each time that it scaled the holder it would be refused",
		next: "set spec.maxReplicas to 1 or leave the autoscaler out; a VerticalPodAutoscaler gives the one Pod more CPU and memory",
	}
}

// ordinals keeps the holder's first Pod the pinned one. With another start the
// StatefulSet controller makes the new Pod before it removes the old one.
func ordinals(f facts) *refusal {
	if f.Scale() || f.Workload != attempt.WorkloadStatefulSet || f.New.OrdinalsStart == f.Old.OrdinalsStart {
		return nil
	}
	if f.New.OrdinalsStart == 0 && !f.New.Replicas.MoreThan(0) {
		return nil
	}
	return &refusal{
		line: fmt.Sprintf("spec.ordinals.start may not become %d", f.New.OrdinalsStart) + f.clause(),
		why:  "the StatefulSet controller makes the Pod with the new ordinal before it removes the old one, and only the Pod with ordinal 0 is pinned",
		next: "leave spec.ordinals.start out; where it is set already, scale to 0 replicas first and then remove it",
	}
}

// zeroGrace is about a template whose Pod leaves the API before its containers
// have ended, so that its name is free for the next one while it still runs.
func zeroGrace(f facts) *refusal {
	if f.Scale() || f.Workload == attempt.WorkloadPod || !f.New.NoGrace || f.Old.NoGrace {
		return nil
	}
	return &refusal{
		line: "terminationGracePeriodSeconds may not be 0" + f.clause(),
		why:  "a Pod that is deleted without a grace period leaves the API while its containers still run, and the next one starts beside them",
		next: "leave terminationGracePeriodSeconds out (30 is the default) or set it to 1 or more",
	}
}

// forceDelete is about the Pod that holds the slot: once it is out of the API,
// its name is free for the next one, though its node may still run it.
func forceDelete(f facts) *refusal {
	removal := f.Removal
	switch {
	case !f.holder.Held() || !f.pinned() || removal.Ended || removal.Node == "":
		return nil
	case f.User.Name == nodeUsers+removal.Node:
		// The node itself says that its containers have ended.
		return nil
	}
	switch removal.NodeState {
	case attempt.NodeGone, attempt.NodeOutOfService, attempt.NodeOutOfServiceReady:
		return nil
	}
	return &refusal{
		line: "node may still run this Pod, so it may not be forced out" + f.clause(),
		why:  fmt.Sprintf("node %q is there and nobody vouches that it is shut down; a second instance would start beside this one", removal.Node),
		next: "delete it without --force; if the node is lost, delete the Node object, or shut the machine down and taint the node node.kubernetes.io/out-of-service=:NoExecute",
	}
}

// nodeUsers is what the user names of nodes begin with.
const nodeUsers = "system:node:"

// notice says what a person should know though nothing is refused.
func notice(f facts) string {
	if f.Operation == attempt.Delete && f.Removal.NodeState == attempt.NodeOutOfServiceReady && f.holder.Held() && f.pinned() && !f.Removal.Ended {
		return clip(fmt.Sprintf("node %q is tainted out-of-service but reports ready: make sure that it is shut down", f.Removal.Node), MaxLine)
	}
	return ""
}

// maxOccupants is how many a message names.
const maxOccupants = 5

func crowded(others []Occupant) refusal {
	names := make([]string, 0, len(others))
	pods := 0
	for _, other := range others {
		names = append(names, other.String())
		if other.Kind == attempt.WorkloadPod.String() {
			pods++
		}
	}
	if more := len(names) - maxOccupants; more > 0 {
		names = append(names[:maxOccupants], fmt.Sprintf("%d more", more))
	}
	next := "wait until the guard has adopted the one; if they are several, name it in spec.holder of the policy and delete the others"
	if pods > 0 {
		next = "delete what runs them and wait until its Pods are gone, then try again; `kubectl get singletonpolicies -o yaml` shows them"
	}
	return refusal{
		line: fmt.Sprintf("%d other(s) run an instance already, though none holds the slot", len(others)),
		why:  "they are " + strings.Join(names, ", "),
		next: next,
	}
}
