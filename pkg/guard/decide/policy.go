package decide

import (
	"slices"
	"time"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

// Policy is what a decision needs of a SingletonPolicy's spec.
type Policy struct {
	Name       string
	Generation int64
	// Stored is false when no such policy exists and the built-in default
	// stands in: everything is judged, but nobody can claim.
	Stored bool
	// Mode says how many Pods a slot has room for, and how many slots there are.
	// The zero value is judged as Strict.
	Mode guardv1alpha1.Mode
	// Lease is the one that the holder's Pods elect their leader on, in mode
	// LeaderElected. An empty namespace stands for the holder's.
	Lease Identity
	// Designated is the only one that may hold the slot, if there is one.
	Designated *Identity
	// Action is what becomes of a broken rule.
	Action Action
	// Excepted are the workloads let through now.
	Excepted []Exception
}

// Exception lets one workload through (break-glass).
type Exception struct {
	Identity
	// Reason and Expires are for the reader of the audit log.
	Reason  string
	Expires time.Time
}

// DefaultLease is the name of the Lease that Metacontroller elects its leader
// on, in its own namespace, unless its flags say otherwise:
// https://metacontroller.github.io/metacontroller/guide/configuration.html
const DefaultLease = "metacontroller"

// Action is what becomes of an attempt that breaks a rule. The zero value refuses.
type Action int

const (
	// ActionDeny refuses.
	ActionDeny Action = iota
	// ActionWarn allows with a warning.
	ActionWarn
	// ActionAudit allows silently.
	ActionAudit
)

func (a Action) verdict() Verdict {
	switch a {
	case ActionWarn:
		return VerdictWarn
	case ActionAudit:
		return VerdictAudit
	default:
		return VerdictDeny
	}
}

// PolicyOf reads a policy; exceptions that have expired at now are left out.
func PolicyOf(policy *guardv1alpha1.SingletonPolicy, now time.Time) Policy {
	read := Policy{
		Name:       policy.Name,
		Generation: policy.Generation,
		Stored:     true,
		Action:     actionOf(policy.Spec.ValidationActions),
		Mode:       policy.Spec.Mode,
		Lease:      Identity{Name: DefaultLease},
	}
	if lease := policy.Spec.Lease; lease != nil {
		read.Lease.Namespace = lease.Namespace
		if lease.Name != "" {
			read.Lease.Name = lease.Name
		}
	}
	if designated := policy.Spec.Holder; designated != nil {
		read.Designated = &Identity{Namespace: designated.Namespace, Name: designated.Name}
	}
	for _, exception := range ActiveExceptions(policy.Spec.Exceptions, now) {
		read.Excepted = append(read.Excepted, Exception{
			Identity: Identity{Namespace: exception.Namespace, Name: exception.Name},
			Reason:   exception.Reason, Expires: exception.Expires.Time,
		})
	}
	return read
}

// DefaultPolicy stands in for a policy that does not exist.
func DefaultPolicy(name string) Policy { return Policy{Name: name} }

// Excepts says whether an exception names the workload.
func (p Policy) Excepts(id Identity) bool {
	return slices.ContainsFunc(p.Excepted, func(e Exception) bool { return e.Identity == id })
}

// ActiveExceptions are those that have not expired at now.
func ActiveExceptions(exceptions []guardv1alpha1.Exception, now time.Time) []guardv1alpha1.Exception {
	var active []guardv1alpha1.Exception
	for _, exception := range exceptions {
		if exception.Expires.After(now) {
			active = append(active, exception)
		}
	}
	return active
}

// actionOf picks the strictest: what is not there at all is Deny.
func actionOf(actions []guardv1alpha1.ValidationAction) Action {
	switch {
	case slices.Contains(actions, guardv1alpha1.ActionDeny):
		return ActionDeny
	case slices.Contains(actions, guardv1alpha1.ActionWarn):
		return ActionWarn
	case slices.Contains(actions, guardv1alpha1.ActionAudit):
		return ActionAudit
	default:
		return ActionDeny
	}
}
