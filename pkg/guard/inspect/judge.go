package inspect

import (
	"fmt"
	"slices"
	"strings"
	"time"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
)

// Judge returns what is not as it should be, the worst first.
func Judge(f Facts) []Finding {
	j := judge{Facts: f}
	j.unread()
	j.admission()
	j.silence()
	if f.Policy == nil {
		j.add(Finding{
			ID: PolicyMissing, Severity: Critical, Object: policyObject(f.Name),
			Message: fmt.Sprintf("SingletonPolicy %s does not exist: the guard judges by the default, nobody can claim the slot, and the policies in the API server pin nothing", f.Name),
			Fix:     "kubectl apply -k config/guard, or create a SingletonPolicy of that name",
		})
		return sorted(j.found)
	}
	j.status = &f.Policy.Status
	j.policy()
	j.pods()
	j.workloads()
	j.holder()
	j.nodes()
	j.writers()
	return sorted(j.found)
}

type judge struct {
	Facts
	status *guardv1alpha1.SingletonPolicyStatus
	found  []Finding
}

func (j *judge) add(f Finding) { j.found = append(j.found, f) }

func policyObject(name string) Object {
	return Object{APIVersion: guardv1alpha1.GroupVersion.String(), Kind: guardv1alpha1.SingletonPolicyKind, Name: name}
}

func (j *judge) own() Object {
	object := policyObject(j.Policy.Name)
	object.UID = j.Policy.UID
	return object
}

func (j *judge) unread() {
	for _, u := range j.Unread {
		j.add(Finding{
			ID: Unreadable, Severity: High, Object: Object{Kind: "Resource", Name: u.What},
			Message: fmt.Sprintf("cannot read %s, so instances there are not seen: %s", u.What, u.Why),
			Fix:     "give the guard get, list and watch on it, as config/guard/role.yaml does for the built-in kinds",
		})
	}
}

func (j *judge) admission() {
	for _, c := range j.Admission {
		id := AdmissionDrift
		if c.CRD {
			id = CRDDrift
		}
		if c.Missing {
			j.add(Finding{ID: AdmissionMissing, Severity: Critical, Object: c.Object, Message: c.Object.String() + " is not installed", Fix: c.Fix})
			continue
		}
		for _, d := range c.Differences {
			severity := High
			if strings.HasSuffix(d.Path, "timeoutSeconds") || c.CRD {
				severity = Medium
			}
			j.add(Finding{
				ID: id, Severity: severity, Object: c.Object, Path: d.Path,
				Message: fmt.Sprintf("%s of %s: want %s, got %s", d.Path, c.Object, d.Want, d.Got), Fix: c.Fix,
			})
		}
	}
}

func (j *judge) silence() {
	if j.GuardSilence <= 0 {
		return
	}
	j.add(Finding{
		ID: GuardSilent, Severity: Critical, Object: policyObject(j.Name),
		Message: fmt.Sprintf("no guard has led for %s: what admission cannot see is not seen, and only the policies in the API server refuse", j.GuardSilence.Round(time.Second)),
		Fix:     "see the Deployment of the guard: kubectl -n metacontroller-guard get deployment,pods",
	})
}

// policy looks at the policy itself and at others beside it.
func (j *judge) policy() {
	if j.Invalid != "" {
		j.add(Finding{
			ID: PolicyInvalid, Severity: Critical, Object: j.own(), Message: "the policy cannot be judged by: " + j.Invalid,
			Fix: "correct spec.match, and apply the CRD of this version (config/crd) if it let that in",
		})
	}
	active := decide.ActiveExceptions(j.Policy.Spec.Exceptions, j.Now)
	for _, e := range j.Policy.Spec.Exceptions {
		if slices.ContainsFunc(active, func(a guardv1alpha1.Exception) bool { return a.Namespace == e.Namespace && a.Name == e.Name }) {
			continue
		}
		j.add(Finding{
			ID: ExceptionExpired, Severity: Medium, Object: j.own(), Path: fmt.Sprintf("spec.exceptions[%s/%s]", e.Namespace, e.Name),
			Message: fmt.Sprintf("the exception for %s/%s ended at %s (%s)", e.Namespace, e.Name, e.Expires.UTC().Format(time.RFC3339), e.Reason),
			Fix:     "remove it from spec.exceptions; what it let in is refused from now on, and reported if it still runs",
		})
	}
	for i := range j.Others {
		other := &j.Others[i]
		if word := sharedWord(j.Policy.Spec.Match, other.Spec.Match); word != "" {
			j.add(Finding{
				ID: PolicyConflict, Severity: High, Object: withUID(policyObject(other.Name), other),
				Message: fmt.Sprintf("SingletonPolicy %s matches %q too, as %s does: each would have an instance of its own", other.Name, word, j.Policy.Name),
				Fix:     "delete it, or give it another spec.match",
			})
		}
	}
}

func withUID(object Object, policy *guardv1alpha1.SingletonPolicy) Object {
	object.UID = policy.UID
	return object
}

// sharedWord is a pattern that both matches list. Two that overlap by other
// patterns are not found.
func sharedWord(a, b guardv1alpha1.Match) string {
	for _, word := range slices.Concat(a.Images, a.Commands) {
		if slices.Contains(b.Images, word) || slices.Contains(b.Commands, word) {
			return word
		}
	}
	return ""
}

func (j *judge) pods() {
	for _, p := range j.Pods {
		where := ""
		if p.Node != "" {
			where = " on node " + p.Node
		}
		top := Top(p.Owner, p.Namespace, j.Workloads)
		of := "made by hand"
		if top != "" {
			of = "of " + top
		}
		if p.Static {
			of = "run by its node"
		}
		verdict := p.Verdict(j.status)
		switch {
		case !p.Instance() && len(p.Suspects) > 0:
			j.add(Finding{
				ID: SuspectedInstance, Severity: Medium, Object: p.object(),
				Message: fmt.Sprintf("%s, %s%s, has the flags of an instance in container %s", p.object(), of, where, names(p.Suspects)),
				Fix:     "if it is one, list its image in spec.match.images, else in spec.match.excludeImages",
			})
		case !p.Instance():
			j.add(Finding{
				ID: SharedAccount, Severity: Medium, Object: p.object(),
				Message: fmt.Sprintf("%s, %s%s, runs with service account %s, as an instance does, and is not recognised as one", p.object(), of, where, p.Account),
				Fix:     "give it a service account of its own; if it is an instance, list its image in spec.match.images",
			})
		case p.Static:
			j.add(Finding{
				ID: StaticPod, Severity: Critical, Object: p.object(),
				Message: fmt.Sprintf("%s is a static Pod%s that runs an instance: admission cannot refuse it, and deleting it here does nothing", p.object(), where),
				Fix:     "remove its manifest from the node's static Pod folder",
			})
		case verdict == guardv1alpha1.InstanceViolation:
			state := "runs an instance"
			if p.Pending {
				state = "is Pending and would run an instance"
			}
			j.add(Finding{
				ID: InstanceNotPinned, Severity: High, Object: p.object(),
				Message: fmt.Sprintf("%s, %s%s, %s and is not the one that may", p.object(), of, where, state),
				Fix:     "delete " + orPod(top, p) + "; nothing is killed by the guard",
			})
		case verdict == guardv1alpha1.InstanceAllowed && len(p.Instances) > 1:
			j.add(Finding{
				ID: TwoInOnePod, Severity: High, Object: p.object(),
				Message: fmt.Sprintf("%d containers of %s run an instance: %s", len(p.Instances), p.object(), names(p.Instances)), Fix: "leave one of them in the holder's template",
			})
		}
	}
}

func orPod(top string, p Pod) string {
	if top == "" {
		return p.object().String()
	}
	return strings.Replace(top, "/", " "+p.Namespace+"/", 1)
}

// workloads looks at what would run an instance, whether it does now or not.
func (j *judge) workloads() {
	rules := decide.PolicyOf(j.Policy, j.Now)
	var free []string
	for _, w := range j.Workloads {
		if j.madeByAnother(w) || j.exempt(w, rules) {
			continue
		}
		if w.Kind == kindStatefulSet && w.APIVersion == apiVersionApps && j.status.Holder == nil && rules.Designated == nil && j.Policy.Spec.Mode != guardv1alpha1.ModeSharded {
			free = append(free, w.Namespace+"/"+w.Name)
			continue
		}
		j.add(Finding{
			ID: WorkloadNotHolder, Severity: High, Object: w.Object,
			Message: fmt.Sprintf("%s would run %s instance(s) and does not hold the slot%s", w.Object, w.Replicas, j.heldBy()),
			Fix:     "delete it, or delete the holder first and wait until its Pod is gone; only a StatefulSet can hold the slot",
		})
	}
	if len(free) > 1 {
		j.add(Finding{
			ID: NoClearHolder, Severity: High, Object: j.own(),
			Message: fmt.Sprintf("%d StatefulSets run an instance and none holds the slot: %s", len(free), names(free)),
			Fix:     "name one in spec.holder and delete the others",
		})
	}
}

func (j *judge) heldBy() string {
	var all []string
	for _, h := range holders(j.status) {
		all = append(all, h.Namespace+"/"+h.Name)
	}
	if len(all) == 0 {
		return ", which is free"
	}
	return ", which " + names(all) + " has"
}

// madeByAnother says whether another workload in the list made it: that one is reported.
func (j *judge) madeByAnother(w Workload) bool {
	return w.Owner != nil && slices.ContainsFunc(j.Workloads, func(o Workload) bool { return o.UID == w.Owner.UID })
}

// exempt says whether it may be there. It reports a holder that asks for too much.
func (j *judge) exempt(w Workload, rules decide.Policy) bool {
	for _, h := range holders(j.status) {
		if w.Kind != h.Kind || w.Namespace != h.Namespace || w.Name != h.Name {
			continue
		}
		if w.Replicas.MoreThan(1) && j.Policy.Spec.Mode != guardv1alpha1.ModeLeaderElected {
			j.add(Finding{
				ID: ScaledAboveOne, Severity: High, Object: w.Object,
				Message: fmt.Sprintf("%s holds the slot and asks for %s replicas; no second Pod is let in", w.Object, w.Replicas),
				Fix:     fmt.Sprintf("kubectl -n %s scale statefulset %s --replicas=1", w.Namespace, w.Name),
			})
		}
		return true
	}
	if rules.Excepts(decide.Identity{Namespace: w.Namespace, Name: w.Name}) {
		return true
	}
	return w.Owner != nil && slices.ContainsFunc(rules.Excepted, func(e decide.Exception) bool {
		return e.Namespace == w.Namespace && decide.MadeFor(w.Owner.Kind, w.Owner.Name, e.Name)
	})
}

// stuckAfter is how much longer than its grace period a Pod may take to end.
const stuckAfter = 30 * time.Second

// holder looks at the claim, and at Pods of the holder that cannot end.
func (j *judge) holder() {
	if h := j.status.Holder; h != nil && j.HolderRead && h.Phase == guardv1alpha1.HolderBound && j.HolderUID != h.UID {
		object := Object{APIVersion: apiVersionApps, Kind: h.Kind, Namespace: h.Namespace, Name: h.Name, UID: h.UID}
		what := "is gone"
		if j.HolderUID != "" {
			what = "is another object now, with uid " + string(j.HolderUID)
		}
		j.add(Finding{
			ID: HolderGone, Severity: Medium, Object: object,
			Message: fmt.Sprintf("the holder %s with uid %s %s; it keeps the slot until its last Pod has ended", object, h.UID, what),
			Fix:     fmt.Sprintf("delete the Pods that it left behind in namespace %s, or make the StatefulSet again under the same name", h.Namespace),
		})
	}
	for _, p := range j.Pods {
		if p.Ends == nil || p.Verdict(j.status) != guardv1alpha1.InstanceAllowed {
			continue
		}
		node, read := j.Nodes[p.Node]
		lost := read && (node.Gone || !node.Ready)
		if over := j.Now.Sub(*p.Ends); over <= 0 || over < stuckAfter && !lost {
			continue
		}
		why := fmt.Sprintf("node %s has not ended it since %s", p.Node, p.Ends.UTC().Format(time.RFC3339))
		if lost {
			why = fmt.Sprintf("node %s is lost, so nobody can tell whether it still runs", p.Node)
		}
		j.add(Finding{
			ID: PodBlocked, Severity: High, Object: p.object(),
			Message: fmt.Sprintf("blocked: %s is Terminating and %s; no other is started until it is gone", p.object(), why),
			Fix:     "bring the node back; or shut the machine down, and then delete the Node object or taint it node.kubernetes.io/out-of-service=:NoExecute",
		})
	}
}

func (j *judge) nodes() {
	for name, node := range j.Nodes {
		if node.OutOfService && node.Ready {
			j.add(Finding{
				ID: NodeNotProvenDead, Severity: High, Object: Object{APIVersion: apiVersionCore, Kind: kindNode, Name: name},
				Message: fmt.Sprintf("node %s is tainted out-of-service and reports that it is ready: an instance that was there may still run", name),
				Fix:     "shut the machine down; if it is well, remove the taint node.kubernetes.io/out-of-service",
			})
		}
	}
}

// writers looks at who holds the Leases that an instance takes before it writes.
// An instance that takes none, outside of the cluster, is not seen.
func (j *judge) writers() {
	for _, l := range j.Leases {
		if !l.Live || l.Holder == "" || j.mayWrite(l) {
			continue
		}
		j.add(Finding{
			ID: UnknownWriter, Severity: High, Object: Object{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Namespace: l.Namespace, Name: l.Name},
			Message: fmt.Sprintf("Lease %s/%s is held by %q, which is not the active Pod: a Metacontroller runs where the guard does not see it", l.Namespace, l.Name, l.Holder),
			Fix:     "find and end that process: the identity begins with its Pod's or host's name",
		})
	}
}

func (j *judge) mayWrite(l Lease) bool {
	for _, p := range j.Pods {
		if !p.Instance() || p.Name != l.Pod || !l.Fixed && p.Namespace != l.Namespace || l.PodUID != "" && l.PodUID != p.UID {
			continue
		}
		// A Pod that should not be there is reported as such.
		return true
	}
	return false
}
