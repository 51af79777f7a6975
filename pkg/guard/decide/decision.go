package decide

import (
	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

// Rule is the stable id of a rule.
type Rule string

// The rules. RuleNone is for a decision that no rule led to.
const (
	RuleNone           Rule = ""
	RuleSecondWorkload Rule = "second-workload"
	RuleWorkloadKind   Rule = "workload-kind"
	RuleScaleAboveOne  Rule = "scale-above-one"
	RulePodNotPinned   Rule = "pod-not-pinned"
	RuleTwoInOnePod    Rule = "two-in-one-pod"
	RuleBecameInstance Rule = "became-instance"
	RuleAutoscaler     Rule = "autoscaler"
	RuleOrdinals       Rule = "ordinals"
	RuleZeroGrace      Rule = "zero-grace"
	RuleForceDelete    Rule = "force-delete"
	// RuleLeaderElection is of mode LeaderElected: whatever lets two Pods of the
	// holder lead at once.
	RuleLeaderElection Rule = "leader-election"
	// RuleShardOverlap is of mode Sharded: whatever lets two instances work on
	// the same object.
	RuleShardOverlap Rule = "shard-overlap"
	// RuleSuspectedInstance warns, and never refuses.
	RuleSuspectedInstance Rule = "suspected-instance"
)

// Rules are all of them.
func Rules() []Rule {
	return []Rule{
		RuleSecondWorkload, RuleWorkloadKind, RuleScaleAboveOne, RuleAutoscaler, RulePodNotPinned, RuleTwoInOnePod,
		RuleBecameInstance, RuleOrdinals, RuleZeroGrace, RuleForceDelete, RuleLeaderElection, RuleShardOverlap,
	}
}

// Verdict is what is to be done with an attempt.
type Verdict int

const (
	// VerdictUnknown is the zero value: nothing has been decided. It is
	// answered like VerdictUnreadable.
	VerdictUnknown Verdict = iota
	// VerdictAllow lets the attempt through.
	VerdictAllow
	// VerdictWarn lets it through with a warning, though a rule is broken.
	VerdictWarn
	// VerdictAudit lets it through, though a rule is broken: only the audit
	// log says so.
	VerdictAudit
	// VerdictDeny refuses it.
	VerdictDeny
	// VerdictUnreadable refuses it because nobody could say who holds the slot.
	VerdictUnreadable
	// VerdictClaim lets it through if, and only if, it gets the slot: claim,
	// then Settle.
	VerdictClaim
	// VerdictExists refuses a create whose object exists already, in the API
	// server's own words.
	VerdictExists
)

var verdictNames = map[Verdict]string{
	VerdictUnknown:    "Unknown",
	VerdictAllow:      "Allow",
	VerdictWarn:       "Warn",
	VerdictAudit:      "Audit",
	VerdictDeny:       "Deny",
	VerdictUnreadable: "Unreadable",
	VerdictClaim:      "Claim",
	VerdictExists:     "Exists",
}

// String is for logs.
func (v Verdict) String() string {
	if name, ok := verdictNames[v]; ok {
		return name
	}
	return verdictNames[VerdictUnknown]
}

// Allowed says whether the API server is told to go on. It is true for the
// verdicts that say so and for no other.
func (v Verdict) Allowed() bool {
	switch v {
	case VerdictAllow, VerdictWarn, VerdictAudit:
		return true
	default:
		return false
	}
}

// Decision is the answer to an attempt.
type Decision struct {
	Verdict Verdict
	// Matching is false for an attempt that has nothing to do with the policy:
	// it leaves no record.
	Matching bool
	// Rule is the one that is broken, RuleNone if none is.
	Rule Rule
	// Message is for the person: a first line of at most MaxLine characters,
	// then what to do next. Empty where there is nothing to say.
	Message string
	// Notice is one line for the person about an attempt that is allowed and
	// that breaks no rule. Mostly empty.
	Notice string
	// Exception is set where an exception of the policy let the attempt through.
	Exception *Exception
	// Holder is the holder at that moment.
	Holder Holder
}

// State is what is known of the slot.
type State int

const (
	// StateUnknown means that the slot could not be read. It is the zero value
	// and is never taken for free.
	StateUnknown State = iota
	// StateFree means that nobody has the slot.
	StateFree
	// StateReserved means that the holder was admitted and not yet seen as an object.
	StateReserved
	// StateBound means that the holder exists.
	StateBound
	// StateReleasing means that the holder is gone and the slot not yet free.
	StateReleasing
)

// Identity names a workload.
type Identity struct {
	Namespace string
	Name      string
}

// String is namespace/name.
func (i Identity) String() string { return i.Namespace + "/" + i.Name }

// Holder is the slot and who has it.
type Holder struct {
	State State
	// Identity and UID are of the StatefulSet; empty if the slot is free or unknown.
	Identity Identity
	UID      string
	Epoch    int64
	// Elected says, in mode LeaderElected, that every Pod of the holder has been
	// seen to take the Lease before it works, so that it may have more than one.
	Elected bool
	// Pending says that the holder's Pod was made and has not started yet.
	Pending bool
	// Selector is the one of the holder's shard in mode Sharded.
	Selector string
	// Shards are, in mode Sharded, all the slots that are held. Decide picks the
	// one that an attempt is about.
	Shards []Holder
	// Why says, for people, why the state is unknown.
	Why string
}

// Held says whether somebody has the slot.
func (h Holder) Held() bool {
	return h.State == StateReserved || h.State == StateBound || h.State == StateReleasing
}

// HolderOf reads the slot from a policy's status.
func HolderOf(status guardv1alpha1.SingletonPolicyStatus) Holder {
	holder := Holder{State: StateFree, Epoch: status.Epoch}
	if status.Holder != nil {
		holder = holderOf(*status.Holder)
		holder.Pending = status.ActivePod != nil && status.ActivePod.Pending
	}
	for _, slot := range status.Slots {
		shard := holderOf(slot.Holder)
		shard.Selector = slot.Selector
		holder.Shards = append(holder.Shards, shard)
		if shard.State == StateUnknown {
			holder.State, holder.Why = StateUnknown, shard.Why
		}
	}
	return holder
}

func holderOf(read guardv1alpha1.Holder) Holder {
	holder := Holder{
		Identity: Identity{Namespace: read.Namespace, Name: read.Name},
		UID:      string(read.UID),
		Epoch:    read.Epoch,
		Elected:  read.Elected,
	}
	switch read.Phase {
	case guardv1alpha1.HolderReserved:
		holder.State = StateReserved
	case guardv1alpha1.HolderBound:
		holder.State = StateBound
	case guardv1alpha1.HolderReleasing:
		holder.State = StateReleasing
	default:
		holder.Why = "status.holder.phase has a value that this guard does not know"
	}
	return holder
}
