package decide

import (
	"fmt"
	"strconv"
	"strings"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/shard"
)

// pin is the name of the holder's Pod with that ordinal.
func (h Holder) pin(ordinal int) Identity {
	return Identity{Namespace: h.Identity.Namespace, Name: h.Identity.Name + "-" + strconv.Itoa(ordinal)}
}

// pinned says whether the attempt's Pod has a name that the holder's slot has
// room for: the first Pod and, once all are seen to elect a leader, the others.
func (f facts) pinned() bool {
	if identity(f.Attempt) == f.holder.pin(0) {
		return true
	}
	if f.policy.Mode != guardv1alpha1.ModeLeaderElected || !f.holder.Elected && f.Operation != attempt.Delete {
		return false
	}
	return f.replica()
}

// replica says whether the Pod's name is one that the holder's StatefulSet gives.
func (f facts) replica() bool {
	ordinal, ok := strings.CutPrefix(f.Name, f.holder.Identity.Name+"-")
	if !ok || f.Namespace != f.holder.Identity.Namespace {
		return false
	}
	number, err := strconv.Atoi(ordinal)
	return err == nil && number >= 0 && strconv.Itoa(number) == ordinal
}

func (f facts) notThePinned(next string) *refusal {
	if f.policy.Mode == guardv1alpha1.ModeLeaderElected && f.replica() {
		return &refusal{
			line: "not every Pod is known yet to elect a leader" + f.clause(),
			why:  "a second Pod is let in once the guard has seen all of them, and the template, to take one Lease before they work",
			next: "wait: the StatefulSet controller tries again; `kubectl describe singletonpolicies` says what is missing",
		}
	}
	return &refusal{
		line: "only the pinned Pod may run an instance" + f.clause(),
		why:  "the pinned Pod is " + f.holder.pin(0).String(),
		next: next,
	}
}

// leaderElection lets the holder have replicas, if at most one of them works at
// a time: each takes the policy's Lease first. What a Pod was started with cannot
// be changed, so a template that is right makes Pods that are right.
func leaderElection(f facts) *refusal {
	if f.Workload != attempt.WorkloadStatefulSet && f.Workload != attempt.WorkloadPod {
		return nil
	}
	if f.policy.Mode != guardv1alpha1.ModeLeaderElected {
		return f.stillReplicated()
	}
	grows := f.New.Replicas.MoreThan(1) && f.Raises()
	if f.Operation == attempt.Update && !grows && f.New.Flags == f.Old.Flags {
		return nil
	}
	next := fmt.Sprintf("write --%s and, where they are not the default, --%s=%s and --%s=%s into args, each as one argument",
		attempt.FlagLeaderElection, attempt.FlagLeaderElectionNamespace, f.lease().Namespace, attempt.FlagLeaderElectionID, f.lease().Name)
	if fault := f.electionFault(f.New.Flags); fault != "" {
		return &refusal{line: "every Pod must elect its leader on one Lease" + f.clause(), why: fault, next: next}
	}
	if f.Old.Instance() && grows && f.electionFault(f.Old.Flags) != "" {
		return &refusal{
			line: "leader election and more replicas may not come in one change" + f.clause(),
			why:  "the new Pod would start while the old one, which takes no Lease, still works",
			next: "change the template first, and the number of replicas when the Pod has been replaced",
		}
	}
	return nil
}

// stillReplicated keeps leader election in a template as long as there are
// replicas, whatever the mode is now: they would all work.
func (f facts) stillReplicated() *refusal {
	if f.Operation != attempt.Update || f.Scale() || !f.Old.Replicas.MoreThan(1) ||
		f.electionFault(f.Old.Flags) != "" || f.electionFault(f.New.Flags) == "" {
		return nil
	}
	return &refusal{
		line: "leader election may not end while there are replicas" + f.clause(),
		why:  "the Pods without it would work beside the one that leads",
		next: "scale to 1 first, wait until the others are gone, then change the template",
	}
}

// lease is the one that every Pod must take.
func (f facts) lease() Identity {
	lease := f.policy.Lease
	if lease.Name == "" {
		lease.Name = DefaultLease
	}
	if lease.Namespace == "" {
		lease.Namespace = f.Namespace
	}
	return lease
}

// Elects says whether an instance with these flags, in a Pod of that namespace,
// leads only while it holds the policy's Lease.
func Elects(p Policy, namespace string, flags attempt.Flags) bool {
	return facts{Attempt: attempt.Attempt{Namespace: namespace}, policy: p}.electionFault(flags) == ""
}

// electionFault says what keeps an instance with these flags from leading only
// while it holds the policy's Lease; empty if nothing does.
func (f facts) electionFault(flags attempt.Flags) string {
	lease := f.lease()
	namespace, name := flags.LeaseNamespace, flags.LeaseName
	if namespace == "" {
		namespace = f.Namespace
	}
	if name == "" {
		name = DefaultLease
	}
	switch {
	case !flags.Readable:
		return unreadableFlags
	case !flags.LeaderElection:
		return "--" + attempt.FlagLeaderElection + " is missing"
	case flags.OtherLock:
		return "--" + attempt.FlagLeaderElectionLock + " is another lock than leases"
	case namespace != lease.Namespace, name != lease.Name:
		return fmt.Sprintf("the Lease would be %s/%s, the policy's is %s", namespace, name, lease)
	default:
		return ""
	}
}

const unreadableFlags = "its flags cannot be read for sure: the program must be started directly, and each element of args must be one flag, as --name=value"

// shardOverlap lets several instances in, if no object can be worked on by two
// of them: their selectors are disjoint.
func shardOverlap(f facts) *refusal {
	if f.policy.Mode != guardv1alpha1.ModeSharded || f.Scale() {
		return nil
	}
	if f.Workload != attempt.WorkloadStatefulSet && f.Workload != attempt.WorkloadPod {
		return nil
	}
	if f.Operation == attempt.Update && f.New.Flags == f.Old.Flags {
		return nil
	}
	flags := f.New.Flags
	next := "give each instance its own --" + attempt.FlagTargetLabelSelector + ", as one argument: --" + attempt.FlagTargetLabelSelector + "=team=a, and another team=b"
	if !flags.Readable {
		return &refusal{line: "the shard's selector cannot be read" + f.clause(), why: unreadableFlags, next: next}
	}
	own, err := shard.Parse(flags.Selector)
	if err != nil {
		return &refusal{line: "--" + attempt.FlagTargetLabelSelector + " is missing or selects everything" + f.clause(), why: err.Error(), next: next}
	}
	if f.holder.Held() && f.holder.Selector != flags.Selector {
		return &refusal{
			line: "a shard keeps its selector" + f.clause(),
			why:  fmt.Sprintf("the shard's selector is %q, this one's %q", f.holder.Selector, flags.Selector),
			next: "delete the StatefulSet and wait until its Pod is gone, or make another StatefulSet",
		}
	}
	for _, other := range f.holder.Shards {
		if f.holder.Held() && other.Identity == f.holder.Identity {
			continue
		}
		theirs, err := shard.Parse(other.Selector)
		if err == nil && shard.Disjoint(own, theirs) {
			continue
		}
		return &refusal{
			line: "overlaps with the selector of shard " + shorten(other.Identity.String(), maxOther) + f.clause(),
			why:  fmt.Sprintf("an object could match both %q and %q, the selector of %s", flags.Selector, other.Selector, other.Identity),
			next: "choose selectors that exclude each other, such as team=a and team=b, or team in (a,b) and team notin (a,b)",
		}
	}
	return nil
}

// maxOther caps another shard's name in a first line.
const maxOther = 30
