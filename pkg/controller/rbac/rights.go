package rbac

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
)

// Resources of Source.
const (
	resourceSecrets    = "secrets"
	resourceConfigMaps = "configmaps"
)

// Rights are verbs by resource, in the order in which they were asked for. The
// zero value has none.
type Rights []right

type right struct {
	group, resource string
	verbs           []string
}

// add adds verbs on a resource, or with a subresource on that.
func (r *Rights) add(gr schema.GroupResource, subresource string, verbs ...string) {
	resource := withSubresource(gr.Resource, subresource)
	at := slices.IndexFunc(*r, func(one right) bool { return one.group == gr.Group && one.resource == resource })
	if at < 0 {
		*r = append(*r, right{group: gr.Group, resource: resource})
		at = len(*r) - 1
	}
	one := &(*r)[at]
	for _, verb := range verbs {
		if !slices.Contains(one.verbs, verb) {
			one.verbs = append(one.verbs, verb)
		}
	}
	slices.SortFunc(one.verbs, func(a, b string) int { return cmp.Compare(slices.Index(verbOrder, a), slices.Index(verbOrder, b)) })
}

func (r Rights) has(gr schema.GroupResource, subresource, verb string) bool {
	resource := withSubresource(gr.Resource, subresource)
	return slices.ContainsFunc(r, func(one right) bool {
		return one.group == gr.Group && one.resource == resource && slices.Contains(one.verbs, verb)
	})
}

// Rules are the rights as RBAC has them: one rule for resources of one group with
// the same verbs.
func (r Rights) Rules() []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for _, one := range r {
		at := slices.IndexFunc(rules, func(rule rbacv1.PolicyRule) bool {
			return rule.APIGroups[0] == one.group && slices.Equal(rule.Verbs, one.verbs)
		})
		if at < 0 {
			rules = append(rules, rbacv1.PolicyRule{APIGroups: []string{one.group}, Verbs: one.verbs})
			at = len(rules) - 1
		}
		rules[at].Resources = append(rules[at].Resources, one.resource)
	}
	return rules
}

func withSubresource(resource, subresource string) string {
	if subresource == "" {
		return resource
	}
	return resource + "/" + subresource
}

// resourceOf is the resource that a rule at path names.
func resourceOf(path string, rule v1alpha1.ResourceRule) (schema.GroupVersionResource, error) {
	gv, err := schema.ParseGroupVersion(rule.APIVersion)
	switch {
	case err != nil:
		return schema.GroupVersionResource{}, fmt.Errorf("%s.apiVersion %q is not group/version: %w", path, rule.APIVersion, err)
	case gv.Version == "":
		return schema.GroupVersionResource{}, fmt.Errorf("%s.apiVersion is empty", path)
	case rule.Resource == "" || strings.ContainsAny(rule.Resource, "/*"):
		return schema.GroupVersionResource{}, fmt.Errorf("%s.resource %q is no plural name of a resource", path, rule.Resource)
	}
	return gv.WithResource(rule.Resource), nil
}

// ParseRelated reads a resource as kubectl names it: plural, with the group behind
// a dot, such as configmaps or deployments.apps.
func ParseRelated(text string) (schema.GroupResource, error) {
	gr := schema.ParseGroupResource(text)
	switch {
	case gr.Resource == "" || strings.ContainsAny(text, "/* "):
		return gr, errors.New("it is not a plural resource with its group, such as configmaps or deployments.apps")
	case gr.Resource != strings.ToLower(gr.Resource):
		return gr, errors.New("it is not the plural, lower-case name of a resource, such as configmaps or deployments.apps")
	}
	return gr, nil
}

func compareSources(a, b Source) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Resource, b.Resource), cmp.Compare(a.Name, b.Name))
}

func names(of []string) string {
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(of))), ", ")
}
