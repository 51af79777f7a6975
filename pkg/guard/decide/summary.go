package decide

// summaries say in one line what each rule refuses, for lists of rules.
var summaries = map[Rule]string{
	RuleSecondWorkload:    "a workload that would run an instance while another holds the slot",
	RuleWorkloadKind:      "a first workload that is no StatefulSet",
	RuleScaleAboveOne:     "more than one replica",
	RuleAutoscaler:        "an autoscaler of the holder that may ask for more than one replica",
	RulePodNotPinned:      "a Pod that runs an instance and is not the pinned one",
	RuleTwoInOnePod:       "more than one instance in a Pod",
	RuleBecameInstance:    "an update that turns something else into an instance",
	RuleOrdinals:          "another spec.ordinals.start than 0 of the holder",
	RuleZeroGrace:         "a Pod template with terminationGracePeriodSeconds 0",
	RuleForceDelete:       "a forced deletion of the active Pod while its node may still run it",
	RuleLeaderElection:    "replicas of the holder that do not elect a leader on one Lease",
	RuleShardOverlap:      "a shard whose selector is missing or overlaps with another's",
	RuleSuspectedInstance: "warns of a container that looks like an instance by its flags alone",
}

// Summary says in one line what the rule refuses; empty for RuleNone.
func (r Rule) Summary() string { return summaries[r] }
