package rbac_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// call is one request, or the right to it. As a right, an empty namespace or name
// stands for all.
type call struct{ verb, group, resource, namespace, name string }

func (c call) String() string {
	text := c.verb + " " + c.resource
	if c.group != "" {
		text += "." + c.group
	}
	if c.namespace != "" || c.name != "" {
		text += fmt.Sprintf(" (%s/%s)", c.namespace, c.name)
	}
	return text
}

// allows says whether a right is enough for a request.
func (c call) allows(asked call) bool {
	return c.verb == asked.verb && c.group == asked.group && c.resource == asked.resource &&
		(c.namespace == "" || c.namespace == asked.namespace) && (c.name == "" || c.name == asked.name)
}

// rightsIn are the single rights that rules give.
func rightsIn(namespace string, rules []rbacv1.PolicyRule) []call {
	var rights []call
	for _, rule := range rules {
		names := rule.ResourceNames
		if len(names) == 0 {
			names = []string{""}
		}
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					for _, name := range names {
						rights = append(rights, call{verb, group, resource, namespace, name})
					}
				}
			}
		}
	}
	return rights
}

// rightsOf are the rights that are bound to a service account, by its name.
func rightsOf(ctx context.Context, c client.Client, account rbacv1.Subject) ([]call, error) {
	var rights []call
	bound := func(subjects []rbacv1.Subject) bool { return slices.Contains(subjects, account) }
	var everywhere rbacv1.ClusterRoleBindingList
	if err := c.List(ctx, &everywhere); err != nil {
		return nil, err
	}
	for _, binding := range everywhere.Items {
		if !bound(binding.Subjects) {
			continue
		}
		var role rbacv1.ClusterRole
		if err := c.Get(ctx, client.ObjectKey{Name: binding.RoleRef.Name}, &role); err != nil {
			return nil, err
		}
		rights = append(rights, rightsIn("", role.Rules)...)
	}
	var somewhere rbacv1.RoleBindingList
	if err := c.List(ctx, &somewhere); err != nil {
		return nil, err
	}
	for _, binding := range somewhere.Items {
		if !bound(binding.Subjects) {
			continue
		}
		var role rbacv1.Role
		if err := c.Get(ctx, client.ObjectKey{Namespace: binding.Namespace, Name: binding.RoleRef.Name}, &role); err != nil {
			return nil, err
		}
		rights = append(rights, rightsIn(binding.Namespace, role.Rules)...)
	}
	return rights, nil
}

// log is an audit log from a certain place on.
type log struct {
	path string
	from int64
}

// newLog begins at the log's present end.
func newLog(t *testing.T, path string) log {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return log{path: path, from: info.Size()}
}

// calls are what a user asked for, each once, and what of it no role allowed.
func (l log) calls(user string) (asked, refused []call, err error) {
	file, err := os.Open(l.path)
	if err != nil {
		return nil, nil, err
	}
	defer file.Close()
	if _, err := file.Seek(l.from, io.SeekStart); err != nil {
		return nil, nil, err
	}
	add := func(into *[]call, one call) {
		if !slices.Contains(*into, one) {
			*into = append(*into, one)
		}
	}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var event auditv1.Event
		if json.Unmarshal(lines.Bytes(), &event) != nil || event.User.Username != user || event.ObjectRef == nil || event.ObjectRef.Resource == "" {
			// Half a line at the end, somebody else, or discovery, to which all have a right.
			continue
		}
		one := call{event.Verb, event.ObjectRef.APIGroup, event.ObjectRef.Resource, event.ObjectRef.Namespace, event.ObjectRef.Name}
		if event.ObjectRef.Subresource != "" {
			one.resource += "/" + event.ObjectRef.Subresource
		}
		if event.Annotations["authorization.k8s.io/decision"] == "forbid" {
			add(&refused, one)
			continue
		}
		add(&asked, one)
		if event.Verb == "patch" && event.ResponseStatus != nil && event.ResponseStatus.Code == 201 {
			// An apply that makes an object is authorized as a create as well.
			one.verb = "create"
			add(&asked, one)
		}
	}
	return asked, refused, lines.Err()
}

// compare holds rights to what was asked. Exempt rights are those that no line of
// the log can show, with the reason.
func compare(t *testing.T, rights, asked, refused []call, exempt map[string]string) {
	t.Helper()
	for _, one := range refused {
		t.Errorf("no role has the right to %s", one)
	}
	for _, right := range rights {
		used := slices.ContainsFunc(asked, right.allows)
		reason, exempted := exempt[exemption(right)]
		switch {
		case !used && !exempted:
			t.Errorf("the right to %s is not used", right)
		case used && exempted:
			t.Errorf("the right to %s is used, so it needs no exemption (%s)", right, reason)
		}
	}
	for _, one := range asked {
		if !slices.ContainsFunc(rights, func(right call) bool { return right.allows(one) }) {
			t.Errorf("%s was asked, and allowed by no role of the account", one)
		}
	}
	t.Logf("%d rights, %d different requests", len(rights), len(asked))
}

// exemption is how a right is named in the list of exemptions: of subresources that
// is alike for all resources.
func exemption(right call) string {
	if _, subresource, found := strings.Cut(right.resource, "/"); found {
		return right.verb + " */" + subresource
	}
	if right.group != "" {
		return right.verb + " " + right.resource + "." + right.group
	}
	return right.verb + " " + right.resource
}

// The comparison finds what is there to be found.
func TestRights(t *testing.T) {
	rules := []rbacv1.PolicyRule{
		{APIGroups: []string{"", "apps"}, Resources: []string{"pods"}, Verbs: []string{"get", "list"}},
		{APIGroups: []string{"g"}, Resources: []string{"a/status"}, ResourceNames: []string{"x", "y"}, Verbs: []string{"update"}},
	}
	want := []string{
		"get pods", "list pods", "get pods.apps", "list pods.apps", "update a/status.g (/x)", "update a/status.g (/y)",
	}
	var got []string
	rights := rightsIn("", rules)
	for _, right := range rights {
		got = append(got, right.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("rights are %q", got)
	}
	for _, tt := range []struct {
		right, asked call
		want         bool
	}{
		{call{verb: "get", resource: "pods"}, call{"get", "", "pods", "n", "a"}, true},
		{call{verb: "get", resource: "pods"}, call{"get", "apps", "pods", "n", "a"}, false},
		{call{verb: "get", resource: "pods"}, call{"get", "", "pods/status", "n", "a"}, false},
		{call{verb: "get", resource: "pods", namespace: "n"}, call{"get", "", "pods", "m", "a"}, false},
		{call{verb: "get", resource: "pods", name: "a"}, call{"get", "", "pods", "m", "a"}, true},
		{call{verb: "list", resource: "pods", name: "a"}, call{"list", "", "pods", "m", ""}, false},
	} {
		if got := tt.right.allows(tt.asked); got != tt.want {
			t.Errorf("%s allows %s: %t", tt.right, tt.asked, got)
		}
	}
}
