package app

import (
	"context"
	"encoding/json"
	"os"
	"slices"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/google/go-cmp/cmp"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	"github.com/metacontroller-solo/solo/pkg/singleton"
)

func lease(namespace, name, holder string, renewed time.Time, process string) *coordinationv1.Lease {
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{singleton.ProcessAnnotation: process}},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, RenewTime: ptr.To(metav1.NewMicroTime(renewed)), LeaseDurationSeconds: ptr.To[int32](15),
		},
	}
}

// leases reads them as an API server does.
type leases []*coordinationv1.Lease

func (l leases) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	for _, lease := range l {
		if client.ObjectKeyFromObject(lease) == key {
			lease.DeepCopyInto(into.(*coordinationv1.Lease))
			return nil
		}
	}
	return apierrors.NewNotFound(coordinationv1.Resource("leases"), key.Name)
}

func (l leases) List(_ context.Context, into client.ObjectList, options ...client.ListOption) error {
	o := (&client.ListOptions{}).ApplyOptions(options)
	for _, lease := range l {
		if o.FieldSelector.Matches(fields.Set{"metadata.name": lease.Name}) {
			into.(*coordinationv1.LeaseList).Items = append(into.(*coordinationv1.LeaseList).Items, *lease)
		}
	}
	return nil
}

// Only our controller's identity says which Pod object it is of.
func TestSingletonLeases(t *testing.T) {
	now := time.Now()
	cluster := leases{
		lease("kube-system", "metacontroller", "mc-0_p0", now, "x"),
		lease("prod", "metacontroller", "mc-0_8b1d", now.Add(-time.Hour), ""),
		lease("kube-system", "other", "o", now, ""),
	}
	got, err := singletonLeases(t.Context(), cluster, now)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(got, func(a, b inspect.Lease) int { return len(b.Namespace) - len(a.Namespace) })
	want := []inspect.Lease{
		{Namespace: "kube-system", Name: "metacontroller", Holder: "mc-0_p0", Pod: "mc-0", PodUID: "p0", Fixed: true, Live: true},
		{Namespace: "prod", Name: "metacontroller", Holder: "mc-0_8b1d", Pod: "mc-0"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestE29GuardSilence(t *testing.T) {
	for name, test := range map[string]struct {
		leases leases
		silent bool
	}{
		"leads":       {leases{lease("g", "l", "guard-1", time.Now(), "")}, false},
		"never ran":   {nil, true},
		"gave it up":  {leases{lease("g", "l", "", time.Now(), "")}, true},
		"scaled to 0": {leases{lease("g", "l", "guard-1", time.Now().Add(-time.Hour), "")}, true},
	} {
		silence, err := guardSilence(test.leases, "g", "l")(t.Context())
		if err != nil || silence > 0 != test.silent {
			t.Errorf("%s: %s, %v", name, silence, err)
		}
	}
}

// What is rendered does not differ from itself as the API server gives it back,
// whatever address and timeout a person has chosen.
func TestRenderedIsInStep(t *testing.T) {
	sources, err := scanSources(leases{}, pin.Options{TimeoutSeconds: 9})
	if err != nil {
		t.Fatal(err)
	}
	policy := &guardv1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: "ours"}, Spec: guardv1alpha1.SingletonPolicySpec{Match: guardv1alpha1.DefaultMatch()}}
	installed := map[string]map[string]any{}
	for _, object := range pin.Objects(pin.Options{SingletonPolicy: "ours", Match: policy.Spec.Match, TimeoutSeconds: 9, URL: "https://127.0.0.1:1/validate", CABundle: []byte("x")}) {
		raw, err := json.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]any
		if err := json.Unmarshal(raw, &fields); err != nil {
			t.Fatal(err)
		}
		installed[object.GetObjectKind().GroupVersionKind().Kind+object.GetName()] = fields
	}
	rendered, err := sources.Admission(policy, func(kind, name string) map[string]any { return installed[kind+name] })
	if err != nil {
		t.Fatal(err)
	}
	compared := 0
	for _, want := range rendered {
		got, ok := installed[want.GetKind()+want.GetName()]
		if !ok {
			continue // The CRD: an API server's is compared in the integration suite.
		}
		compared++
		if differences := inspect.Drift(got, want.Object); len(differences) > 0 {
			t.Errorf("%s %s: %+v", want.GetKind(), want.GetName(), differences)
		}
	}
	if compared != len(installed) {
		t.Errorf("%d of %d were compared", compared, len(installed))
	}
}

// F18: the guard reads no Secrets, and writes no admission configuration and
// nothing that runs.
func TestF18RoleIsNarrow(t *testing.T) {
	file, err := os.Open("../../../config/guard/role.yaml")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
	writable := []string{"singletonpolicies/status", "leases", "events", "clusterreports"}
	rules := 0
	for {
		role := rbacv1.ClusterRole{}
		if decoder.Decode(&role) != nil {
			break
		}
		for _, rule := range role.Rules {
			rules++
			for _, resource := range rule.Resources {
				if resource == "secrets" || resource == "*" || slices.Contains(rule.Verbs, "*") || slices.Contains(rule.APIGroups, "*") {
					t.Errorf("too wide: %+v", rule)
				}
				reads := !slices.ContainsFunc(rule.Verbs, func(verb string) bool { return verb != "get" && verb != "list" && verb != "watch" })
				if !reads && !slices.Contains(writable, resource) {
					t.Errorf("writes: %+v", rule)
				}
				if !reads && rule.APIGroups[0] == admissionregistrationv1.GroupName {
					t.Errorf("writes admission configuration: %+v", rule)
				}
			}
		}
	}
	if rules < 10 {
		t.Fatalf("only %d rules were read", rules)
	}
}
