package explain

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/check"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/finding"
)

// Free is the state of a slot that nobody has; the others are the phases of a holder.
const Free = "Free"

// View is all that is explained.
type View struct {
	SchemaVersion string `json:"schemaVersion"`
	Policy        string `json:"policy"`
	// Stored is false where there is no such policy in the cluster, and the
	// default one stands in.
	Stored  bool     `json:"stored"`
	Mode    string   `json:"mode"`
	Actions []string `json:"actions"`
	// Designated is the only StatefulSet that may hold the slot, if one is named.
	Designated string `json:"designated,omitempty"`
	// Slots are one, or in mode Sharded one for each shard.
	Slots      []Slot                    `json:"slots"`
	Exceptions []guardv1alpha1.Exception `json:"exceptions"`
	Conditions []metav1.Condition        `json:"conditions"`
	// Violations are instances that should not be there.
	Violations []guardv1alpha1.Instance `json:"violations"`
	// Rules are those that the policy's mode applies.
	Rules []Rule `json:"rules"`
	// Judged is what was asked about.
	Judged []Judged `json:"judged"`
	// Missing says what could not be read, and why.
	Missing []string `json:"missing"`
}

// Slot is the right to run the one instance.
type Slot struct {
	// State is Free, Reserved, Bound or Releasing.
	State string `json:"state"`
	// Selector is the shard's, in mode Sharded.
	Selector string                   `json:"selector,omitempty"`
	Holder   *guardv1alpha1.Holder    `json:"holder,omitempty"`
	Active   *guardv1alpha1.ActivePod `json:"activePod,omitempty"`
	// Started is when the active Pod was started, where that could be read.
	Started *metav1.Time `json:"started,omitempty"`
}

// Rule is one rule of the guard.
type Rule struct {
	ID      string `json:"id"`
	Refuses string `json:"refuses"`
}

// Judged is what would become of one thing.
type Judged struct {
	// What says what would be done: "created", "scaled to 2".
	What   string         `json:"what"`
	Object finding.Object `json:"object"`
	File   string         `json:"file,omitempty"`
	Line   int            `json:"line,omitempty"`
	// Instances are the containers that run an instance, and how they were recognised.
	Instances []Container `json:"instances"`
	// Verdict is the guard's.
	Verdict string `json:"verdict"`
	Allowed bool   `json:"allowed"`
	Rule    string `json:"rule,omitempty"`
	Message string `json:"message,omitempty"`
}

// Container is a container that runs an instance, or may.
type Container struct {
	Name  string `json:"name"`
	Image string `json:"image"`
	// By is Image, Command or Flags.
	By string `json:"by"`
}

// Of is the view of a policy as it is in the cluster; nil where there is none.
func Of(name string, policy *guardv1alpha1.SingletonPolicy, now time.Time) *View {
	v := &View{
		SchemaVersion: finding.SchemaVersion, Policy: name, Stored: policy != nil,
		Actions: []string{}, Exceptions: []guardv1alpha1.Exception{}, Conditions: []metav1.Condition{},
		Violations: []guardv1alpha1.Instance{}, Judged: []Judged{}, Missing: []string{},
	}
	if policy == nil {
		policy = &guardv1alpha1.SingletonPolicy{}
	} else {
		policy = policy.DeepCopy()
	}
	policy.SetDefaults()
	spec, status := policy.Spec, policy.Status
	v.Mode = string(spec.Mode)
	for _, action := range spec.ValidationActions {
		v.Actions = append(v.Actions, string(action))
	}
	if spec.Holder != nil {
		v.Designated = spec.Holder.Namespace + "/" + spec.Holder.Name
	}
	v.Slots = slotsOf(spec.Mode, status)
	v.Exceptions = append(v.Exceptions, decide.ActiveExceptions(spec.Exceptions, now)...)
	v.Conditions = append(v.Conditions, status.Conditions...)
	for _, instance := range status.Instances {
		if instance.Verdict == guardv1alpha1.InstanceViolation {
			v.Violations = append(v.Violations, instance)
		}
	}
	for _, rule := range append(decide.Rules(), decide.RuleSuspectedInstance) {
		if applies(rule, spec.Mode) {
			v.Rules = append(v.Rules, Rule{ID: string(rule), Refuses: rule.Summary()})
		}
	}
	return v
}

// applies says whether a rule can refuse anything in a mode.
func applies(rule decide.Rule, mode guardv1alpha1.Mode) bool {
	switch rule {
	case decide.RuleLeaderElection:
		return mode == guardv1alpha1.ModeLeaderElected
	case decide.RuleShardOverlap:
		return mode == guardv1alpha1.ModeSharded
	case decide.RuleAutoscaler:
		return mode != guardv1alpha1.ModeLeaderElected
	default:
		return true
	}
}

func slotsOf(mode guardv1alpha1.Mode, status guardv1alpha1.SingletonPolicyStatus) []Slot {
	if mode == guardv1alpha1.ModeSharded {
		slots := []Slot{}
		for i := range status.Slots {
			s := &status.Slots[i]
			slots = append(slots, Slot{State: string(s.Holder.Phase), Selector: s.Selector, Holder: &s.Holder, Active: s.ActivePod})
		}
		return slots
	}
	if status.Holder == nil {
		return []Slot{{State: Free}}
	}
	return []Slot{{State: string(status.Holder.Phase), Holder: status.Holder, Active: status.ActivePod}}
}

// SetPod completes a slot with its active Pod as it is now.
func (s *Slot) SetPod(pod *corev1.Pod) {
	if s.Active != nil && pod.UID == s.Active.UID && pod.Status.StartTime != nil {
		s.Started = pod.Status.StartTime
	}
}

// Judge adds a verdict.
func (v *View) Judge(what string, verdict check.Verdict) *Judged {
	d := verdict.Decision
	j := Judged{
		What: what, Object: verdict.Object, Instances: []Container{},
		Verdict: d.Verdict.String(), Allowed: d.Verdict.Allowed(), Rule: string(d.Rule), Message: d.Message,
	}
	for _, c := range append(verdict.Shape.Containers, verdict.Shape.Suspects...) {
		j.Instances = append(j.Instances, Container{Name: c.Name, Image: c.Image, By: string(c.By)})
	}
	v.Judged = append(v.Judged, j)
	return &v.Judged[len(v.Judged)-1]
}

// Refused says whether anything that was asked about would be refused.
func (v *View) Refused() bool {
	for _, j := range v.Judged {
		if !j.Allowed {
			return true
		}
	}
	return false
}
