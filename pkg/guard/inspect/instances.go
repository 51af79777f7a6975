package inspect

import (
	"slices"
	"strings"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
)

// MaxInstances is how many instances a status has room for, as in the CRD.
const MaxInstances = 100

// Instances are the instances for a policy's status: violations first, so that
// the cap never hides one behind what is in order.
func Instances(pods []Pod, workloads []Workload, status *guardv1alpha1.SingletonPolicyStatus) []guardv1alpha1.Instance {
	var all []guardv1alpha1.Instance
	for _, p := range pods {
		if !p.Instance() {
			continue
		}
		instance := guardv1alpha1.Instance{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Node: p.Node, Verdict: p.Verdict(status)}
		if p.Owner != nil {
			instance.Owner = p.Owner.Kind + "/" + p.Owner.Name
			if top := Top(p.Owner, p.Namespace, workloads); top != instance.Owner {
				instance.Workload = top
			}
		}
		all = append(all, instance)
	}
	slices.SortStableFunc(all, func(a, b guardv1alpha1.Instance) int {
		if c := strings.Compare(string(b.Verdict), string(a.Verdict)); c != 0 {
			return c
		}
		return strings.Compare(a.Namespace+"/"+a.Name, b.Namespace+"/"+b.Name)
	})
	return all[:min(len(all), MaxInstances)]
}

// Changes are the fields in which a template differs from what it was before,
// for a log that anyone may read: only images are shown, for other values may be
// secrets.
func Changes(before, after map[string]any) []Difference {
	changes := Drift(after, before)
	for i, c := range changes {
		if strings.HasSuffix(c.Path, ".image") {
			continue
		}
		hide := func(value string) string {
			if value == absent || value == present {
				return value
			}
			return "hidden"
		}
		changes[i].Want, changes[i].Got = hide(c.Want), hide(c.Got)
		if changes[i].Want == changes[i].Got {
			changes[i].Want, changes[i].Got = "", "changed"
		}
	}
	return changes
}
