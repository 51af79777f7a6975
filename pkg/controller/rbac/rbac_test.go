package rbac

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/yaml"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
)

func composite(t *testing.T, spec string) v1alpha1.CompositeController {
	t.Helper()
	var c v1alpha1.CompositeController
	if err := yaml.UnmarshalStrict([]byte("metadata: {name: c}\nspec:\n"+spec), &c); err != nil {
		t.Fatal(err)
	}
	return c
}

func decorator(t *testing.T, spec string) v1alpha1.DecoratorController {
	t.Helper()
	var d v1alpha1.DecoratorController
	if err := yaml.UnmarshalStrict([]byte("metadata: {name: d}\nspec:\n"+spec), &d); err != nil {
		t.Fatal(err)
	}
	return d
}

// lines are rights, one line for each rule.
func lines(rights Rights) []string {
	var out []string
	for _, rule := range rights.Rules() {
		out = append(out, fmt.Sprintf("%s %s: %s", strings.Join(rule.APIGroups, ","), strings.Join(rule.Resources, " "), strings.Join(rule.Verbs, " ")))
	}
	return out
}

const (
	hooks    = "  hooks: {sync: {webhook: {url: 'http://h/'}}}\n"
	finalize = "  hooks: {sync: {webhook: {url: 'http://h/'}}, finalize: {webhook: {url: 'http://h/'}}}\n"
	things   = "  parentResource: {apiVersion: demo/v1, resource: things}\n"
	pods     = "  resources: [{apiVersion: v1, resource: pods}]\n"
)

func child(method string) string {
	return "  childResources: [{apiVersion: v1, resource: configmaps, updateStrategy: {method: " + method + "}}]\n"
}

func attachment(method string) string {
	return "  attachments: [{apiVersion: v1, resource: configmaps, updateStrategy: {method: " + method + "}}]\n"
}

func TestMinimal(t *testing.T) {
	owner := "demo things/status things/finalizers: update"
	tests := []struct {
		name                 string
		composite, decorator string
		change               func(*Want)
		want                 []string
	}{
		{name: "composite without children", composite: things + hooks, want: []string{"demo things: list watch", "demo things/status: update"}},
		{name: "composite without children that finalizes", composite: things + finalize, want: []string{"demo things: get list watch patch", "demo things/status: update"}},
		{
			name: "a composite adopts whatever the strategy", composite: things + hooks + child("OnDelete"),
			want: []string{"demo things: get list watch", owner, " configmaps: list watch create update delete"},
		},
		{
			name: "composite with rolling children and a finalize hook", composite: things + finalize + child("RollingInPlace"),
			want: []string{"demo things: get list watch patch", owner, " configmaps: list watch create update delete"},
		},
		{
			name: "server-side apply in place: what was written before is handed over", composite: things + hooks + child("InPlace"),
			change: func(w *Want) { w.ServerSideApply = true },
			want:   []string{"demo things: get list watch", owner, " configmaps: get list watch create update patch delete"},
		},
		{
			name: "server-side apply, OnDelete", composite: things + hooks + child("OnDelete"), change: func(w *Want) { w.ServerSideApply = true },
			want: []string{"demo things: get list watch", owner, " configmaps: list watch create update patch delete"},
		},
		{
			name: "a parent without a status subresource", composite: things + hooks + child("InPlace"),
			change: func(w *Want) {
				w.HasStatus = func(r schema.GroupVersionResource) bool { return r.Resource != "things" || r.Version != "v1" }
			},
			want: []string{"demo things: get list watch", "demo things/finalizers: update", " configmaps: list watch create update delete"},
		},
		{name: "decorator without attachments", decorator: pods + hooks, want: []string{" pods: list watch patch", " pods/status: update"}},
		{
			name: "decorator whose hook returns no status", decorator: pods + hooks, change: func(w *Want) { w.NoDecoratorStatus = true },
			want: []string{" pods: list watch patch"},
		},
		{
			name: "a decorator adopts nothing", decorator: pods + hooks + attachment("OnDelete"),
			want: []string{" pods: list watch patch", " pods/status pods/finalizers: update", " configmaps: list watch create delete"},
		},
		{
			name: "Recreate looks by a dry run", decorator: pods + finalize + attachment("Recreate"),
			want: []string{" pods: get list watch patch", " pods/status pods/finalizers: update", " configmaps: list watch create update delete"},
		},
		{
			name: "OnDelete by server-side apply", decorator: pods + hooks + attachment("OnDelete"), change: func(w *Want) { w.ServerSideApply = true },
			want: []string{" pods: list watch patch", " pods/status pods/finalizers: update", " configmaps: list watch create patch delete"},
		},
		{
			name: "one that is parent and child", composite: things + hooks + child("InPlace"),
			decorator: "  resources: [{apiVersion: v1, resource: configmaps}]\n" + hooks,
			want: []string{
				"demo things: get list watch", owner, " configmaps: list watch create update patch delete", " configmaps/status: update",
			},
		},
		{
			name: "related kinds", composite: things + hooks,
			change: func(w *Want) {
				w.Related = []schema.GroupResource{{Resource: "namespaces"}, {Group: "apps", Resource: "deployments"}}
			},
			want: []string{"demo things: list watch", "demo things/status: update", " namespaces: list watch", "apps deployments: list watch"},
		},
		{
			name:      "roles that give rights",
			composite: things + hooks + "  childResources:\n  - {apiVersion: rbac.authorization.k8s.io/v1, resource: roles}\n  - {apiVersion: rbac.authorization.k8s.io/v1, resource: rolebindings}\n",
			change:    func(w *Want) { w.Escalate = true },
			want: []string{
				"demo things: get list watch", owner,
				"rbac.authorization.k8s.io roles: list watch create update delete escalate bind",
				"rbac.authorization.k8s.io rolebindings: list watch create update delete",
				"rbac.authorization.k8s.io clusterroles: bind",
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var want Want
			if tt.composite != "" {
				want.Composites = []v1alpha1.CompositeController{composite(t, tt.composite)}
			}
			if tt.decorator != "" {
				want.Decorators = []v1alpha1.DecoratorController{decorator(t, tt.decorator)}
			}
			if tt.change != nil {
				tt.change(&want)
			}
			role, err := Minimal(want)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, lines(role.Rights)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestNotes(t *testing.T) {
	customize := "  hooks: {customize: {webhook: {url: 'http://h/'}}, finalize: {webhook: {url: 'http://h/'}}}\n"
	roles := "  childResources: [{apiVersion: rbac.authorization.k8s.io/v1, resource: clusterroles}]\n"
	secrets := []schema.GroupResource{{Resource: "secrets"}}
	tests := []struct {
		name string
		want Want
		says []string
	}{
		{"nothing", Want{Composites: []v1alpha1.CompositeController{composite(t, things+finalize)}}, nil},
		{"related kinds that nobody named", Want{Composites: []v1alpha1.CompositeController{composite(t, things+customize)}}, []string{"--related: none"}},
		{"related kinds", Want{Composites: []v1alpha1.CompositeController{composite(t, things+customize)}, Related: secrets}, []string{"has those of --related."}},
		{"no finalize hook", Want{Composites: []v1alpha1.CompositeController{composite(t, things+hooks)}}, []string{"lost its finalize hook"}},
		{"roles", Want{Composites: []v1alpha1.CompositeController{composite(t, things+finalize+roles)}}, []string{"--escalate"}},
	}
	for _, tt := range tests {
		role, err := Minimal(tt.want)
		if err != nil || len(role.Notes) != len(tt.says) {
			t.Errorf("%s: %q, %v", tt.name, role.Notes, err)
			continue
		}
		for i, say := range tt.says {
			if !strings.Contains(role.Notes[i], say) {
				t.Errorf("%s: %q does not say %q", tt.name, role.Notes[i], say)
			}
		}
	}
}

// Each Secret and ConfigMap that a hook refers to is to be read alone.
func TestSources(t *testing.T) {
	c := composite(t, things+`
  endpointConfigs:
  - host: h
    basicAuth: {secretRef: {namespace: b, name: basic}}
    clientTLS: {secretRef: {namespace: a, name: cert}}
  hooks:
    sync:
      webhook:
        url: https://h/
        authorization: {secretRef: {namespace: a, name: token, key: t}}
        caBundle: {configMapRef: {namespace: a, name: roots}}
    finalize:
      webhook:
        url: https://h/
        authorization: {secretRef: {namespace: a, name: token, key: t}}
        caBundle: {secretRef: {namespace: b, name: roots}}
`)
	role, err := Minimal(Want{Composites: []v1alpha1.CompositeController{c}})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, one := range role.Objects("r", ServiceAccount{Namespace: "n", Name: "sa"}) {
		switch one := one.(type) {
		case *rbacv1.ClusterRole:
			got = append(got, fmt.Sprintf("ClusterRole %s %v", one.Name, one.Labels))
		case *rbacv1.Role:
			for _, rule := range one.Rules {
				got = append(got, fmt.Sprintf("Role %s/%s %v %v %v", one.Namespace, one.Name, rule.Resources, rule.ResourceNames, rule.Verbs))
			}
		case *rbacv1.RoleBinding:
			got = append(got, fmt.Sprintf("RoleBinding %s/%s of %s to %s/%s", one.Namespace, one.Name, one.RoleRef.Name, one.Subjects[0].Namespace, one.Subjects[0].Name))
		}
	}
	want := []string{
		"ClusterRole r map[" + AggregateLabel + ":true]",
		"Role a/r [configmaps] [roots] [list watch]",
		"Role a/r [secrets] [cert token] [list watch]",
		"RoleBinding a/r of r to n/sa",
		"Role b/r [secrets] [basic roots] [list watch]",
		"RoleBinding b/r of r to n/sa",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestWhatIsNoGood(t *testing.T) {
	for spec, says := range map[string]string{
		"  parentResource: {apiVersion: a/b/c, resource: things}\n":                                   `CompositeController "c": spec.parentResource.apiVersion "a/b/c"`,
		"  parentResource: {resource: things}\n":                                                      "spec.parentResource.apiVersion is empty",
		"  parentResource: {apiVersion: v1}\n":                                                        `spec.parentResource.resource ""`,
		"  parentResource: {apiVersion: v1, resource: '*'}\n":                                         `spec.parentResource.resource "*"`,
		things + "  childResources: [{apiVersion: v1, resource: pods/status}]\n":                      `spec.childResources[0].resource "pods/status"`,
		things + "  childResources: [{apiVersion: v1, resource: a, updateStrategy: {method: Now}}]\n": `spec.childResources[0].updateStrategy.method "Now"`,
	} {
		_, err := Minimal(Want{Composites: []v1alpha1.CompositeController{composite(t, spec)}})
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v does not say %s", spec, err, says)
		}
	}
}

func TestParseRelated(t *testing.T) {
	for text, want := range map[string]schema.GroupResource{
		"secrets": {Resource: "secrets"}, "deployments.apps": {Group: "apps", Resource: "deployments"},
		"things.demo.example.com": {Group: "demo.example.com", Resource: "things"},
	} {
		if got, err := ParseRelated(text); err != nil || got != want {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "Secret", "apps/v1", "*", "a b"} {
		if got, err := ParseRelated(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// The messages are those of a real API server; the integration test has them too.
func TestLacking(t *testing.T) {
	for message, want := range map[string][]string{
		"connection refused":                       nil,
		`pods "a" is forbidden: exceeded quota: q`: nil,
		`cannot update status of "x": things.demo "a" is forbidden: User "system:serviceaccount:m:m" cannot update resource "things/status" in API group "demo" in the namespace "n"`:                                        {`update "things/status" in API group "demo"`},
		`configmaps is forbidden: User "u" cannot list resource "configmaps" in API group "" at the cluster scope; configmaps is forbidden: User "u" cannot list resource "configmaps" in API group "" at the cluster scope`: {`list "configmaps" in API group ""`},
		`configmaps "a-0" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource you can't set finalizers on: , <nil>`:                                                                        {`update the subresource "finalizers" of the parents`},
	} {
		if diff := cmp.Diff(want, Lacking(message)); diff != "" {
			t.Errorf("%s:\n%s", message, diff)
		}
		if got := Advised(message); (got != message) != (want != nil) {
			t.Errorf("%q is advised as %q", message, got)
		}
	}
}
