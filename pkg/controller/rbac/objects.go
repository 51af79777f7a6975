package rbac

import (
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// AggregateLabel, with the value "true" on a ClusterRole, adds its rules to those
// of the controller: config/rbac/managed.yaml collects them.
const AggregateLabel = "rbac.metacontroller.io/aggregate-to-metacontroller"

// ServiceAccount is whose rights they are.
type ServiceAccount struct{ Namespace, Name string }

// Objects are what gives the role to the controller: a ClusterRole of this name
// that is aggregated, and for each namespace with a Secret or ConfigMap that a
// hook refers to a Role and its RoleBinding to the service account.
func (r Role) Objects(name string, account ServiceAccount) []any {
	objects := []any{&rbacv1.ClusterRole{
		TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "ClusterRole"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{AggregateLabel: "true"}},
		Rules:      r.Rights.Rules(),
	}}
	for sources := r.Sources; len(sources) > 0; {
		namespace := sources[0].Namespace
		end := slices.IndexFunc(sources, func(s Source) bool { return s.Namespace != namespace })
		if end < 0 {
			end = len(sources)
		}
		meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
		objects = append(objects,
			&rbacv1.Role{
				TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "Role"},
				ObjectMeta: meta, Rules: sourceRules(sources[:end]),
			},
			&rbacv1.RoleBinding{
				TypeMeta:   metav1.TypeMeta{APIVersion: rbacv1.SchemeGroupVersion.String(), Kind: "RoleBinding"},
				ObjectMeta: meta,
				RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
				Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: account.Namespace, Name: account.Name}},
			})
		sources = sources[end:]
	}
	return objects
}

// sourceRules are about single objects: a list or watch that names the one object
// needs no more.
func sourceRules(sources []Source) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for _, source := range sources {
		if last := len(rules) - 1; last >= 0 && rules[last].Resources[0] == source.Resource {
			rules[last].ResourceNames = append(rules[last].ResourceNames, source.Name)
			continue
		}
		rules = append(rules, rbacv1.PolicyRule{
			APIGroups: []string{""}, Resources: []string{source.Resource}, ResourceNames: []string{source.Name}, Verbs: []string{list, watch},
		})
	}
	return rules
}
