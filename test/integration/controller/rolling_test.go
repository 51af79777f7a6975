package controller_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
)

// newRollingFixture has gadgets, which have a status, and cluster-scoped parents.
func newRollingFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	if _, err := kit.ApplyFile(t.Context(), f.cp.AdminConfig(0), filepath.Join("testdata", "rolling.yaml")); err != nil {
		t.Fatal(err)
	}
	// The rights are there once they are aggregated.
	kit.Eventually(t, soon, func() error {
		review := &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
			User: controllerUser, Groups: []string{"system:serviceaccounts"},
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "delete", Group: "demo.example.com", Resource: "gadgets", Namespace: f.ns},
		}}
		if err := f.client.Create(t.Context(), review); err != nil {
			return err
		}
		if !review.Status.Allowed {
			return errors.New("the controller may not delete gadgets yet")
		}
		return nil
	})
	return f
}

// rollingRequest is what the rolling hook reads.
type rollingRequest struct {
	Parent struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Spec     struct {
			Namespace string            `json:"namespace"`
			Count     int               `json:"count"`
			Labels    map[string]string `json:"labels"`
			Extra     string            `json:"extra"`
			Template  struct {
				Value string `json:"value"`
			} `json:"template"`
		} `json:"spec"`
	} `json:"parent"`
	Finalizing bool `json:"finalizing"`
}

// gadgets are count gadgets with the value of the template.
func (r rollingRequest) gadgets() []object {
	out := []object{}
	for i := range r.Parent.Spec.Count {
		out = append(out, object{
			"apiVersion": thingAPI, "kind": "Gadget", "metadata": r.metadata("g", i),
			"spec": object{"value": r.Parent.Spec.Template.Value, "extra": r.Parent.Spec.Extra},
		})
	}
	return out
}

// configMaps are as many ConfigMaps.
func (r rollingRequest) configMaps() []object {
	out := []object{}
	for i := range r.Parent.Spec.Count {
		out = append(out, object{
			"apiVersion": "v1", "kind": "ConfigMap", "metadata": r.metadata("c", i), "data": object{"v": r.Parent.Spec.Template.Value},
		})
	}
	return out
}

func (r rollingRequest) metadata(letter string, i int) object {
	metadata := object{"name": fmt.Sprintf("%s-%s-%d", r.Parent.Metadata.Name, letter, i)}
	if r.Parent.Spec.Labels != nil {
		metadata["labels"] = r.Parent.Spec.Labels
	}
	if r.Parent.Spec.Namespace != "" {
		metadata["namespace"] = r.Parent.Spec.Namespace
	}
	return metadata
}

// rolling makes the children of a controller roll.
func (f *fixture) rolling(cc *v1alpha1.CompositeController, resources map[string]v1alpha1.ChildUpdateMethod, checks ...v1alpha1.StatusConditionCheck) {
	cc.Spec.ParentResource.RevisionHistory = &v1alpha1.CompositeControllerRevisionHistory{FieldPaths: []string{"spec.template"}}
	cc.Spec.ChildResources = nil
	for _, resource := range slices.Sorted(maps.Keys(resources)) {
		child := v1alpha1.CompositeControllerChildResourceRule{
			UpdateStrategy: &v1alpha1.CompositeControllerChildUpdateStrategy{
				Method: resources[resource], StatusChecks: v1alpha1.ChildUpdateStatusChecks{Conditions: checks},
			},
		}
		child.Resource, child.APIVersion = resource, "v1"
		if resource == "gadgets" {
			child.APIVersion = thingAPI
		}
		cc.Spec.ChildResources = append(cc.Spec.ChildResources, child)
	}
}

// gadgets are those of a parent, by name.
func (f *fixture) gadgets(prefix string) map[string]*unstructured.Unstructured {
	f.t.Helper()
	return f.listed(thingAPI, "Gadget", prefix)
}

func (f *fixture) listed(apiVersion, kind, prefix string) map[string]*unstructured.Unstructured {
	f.t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetAPIVersion(apiVersion)
	list.SetKind(kind + "List")
	if err := f.client.List(f.t.Context(), list, client.InNamespace(f.ns)); err != nil {
		f.t.Fatal(err)
	}
	found := map[string]*unstructured.Unstructured{}
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].GetName(), prefix) {
			found[list.Items[i].GetName()] = &list.Items[i]
		}
	}
	return found
}

// values are the values of gadgets.
func values(gadgets map[string]*unstructured.Unstructured) map[string]string {
	out := map[string]string{}
	for name, gadget := range gadgets {
		out[name], _, _ = unstructured.NestedString(gadget.Object, "spec", "value")
	}
	return out
}

func (f *fixture) waitGadgets(prefix string, want map[string]string) {
	f.t.Helper()
	kit.Eventually(f.t, soon, func() error {
		if got := values(f.gadgets(prefix)); !maps.Equal(got, want) {
			return fmt.Errorf("gadgets are %v, not %v", got, want)
		}
		return nil
	})
}

// ready makes a gadget ready at its generation, or not.
func (f *fixture) ready(name, status string) {
	f.t.Helper()
	kit.Eventually(f.t, soon, func() error {
		gadget := f.gadgets(name)[name]
		if gadget == nil {
			return errors.New(name + " is not there")
		}
		patch := fmt.Sprintf(`{"metadata":{"uid":%q,"resourceVersion":%q},"status":{"observedGeneration":%d,"conditions":[{"type":"Ready","status":%q}]}}`,
			gadget.GetUID(), gadget.GetResourceVersion(), gadget.GetGeneration(), status)
		return f.client.Status().Patch(f.t.Context(), gadget, client.RawPatch(types.MergePatchType, []byte(patch)))
	})
}

// updated is the condition of a parent's rollout.
func (f *fixture) updated(parent *unstructured.Unstructured) (map[string]any, error) {
	now := parent.DeepCopy()
	if err := f.client.Get(f.t.Context(), client.ObjectKeyFromObject(parent), now); err != nil {
		return nil, err
	}
	list, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
	for _, one := range list {
		if condition, ok := one.(map[string]any); ok && condition["type"] == "Updated" {
			seen, _, _ := unstructured.NestedInt64(now.Object, "status", "observedGeneration")
			if seen != now.GetGeneration() {
				return nil, fmt.Errorf("the status is of generation %d, not %d", seen, now.GetGeneration())
			}
			return condition, nil
		}
	}
	return nil, fmt.Errorf("there is no condition Updated in %v", now.Object["status"])
}

func (f *fixture) waitUpdated(parent *unstructured.Unstructured, status, reason string, texts ...string) {
	f.t.Helper()
	kit.Eventually(f.t, soon, func() error {
		condition, err := f.updated(parent)
		if err != nil {
			return err
		}
		message, _ := condition["message"].(string)
		if condition["status"] != status || condition["reason"] != reason ||
			slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(message, text) }) {
			return fmt.Errorf("condition is %v", condition)
		}
		return nil
	})
}

// revisions are those of a parent.
func (f *fixture) revisions(parent *unstructured.Unstructured) []v1alpha1.ControllerRevision {
	f.t.Helper()
	var list v1alpha1.ControllerRevisionList
	if err := f.client.List(f.t.Context(), &list); err != nil {
		f.t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(r v1alpha1.ControllerRevision) bool {
		owner := metav1.GetControllerOf(&r)
		return owner == nil || owner.UID != parent.GetUID()
	})
}

// TestRolloutsFinish rolls every combination of versions of hooks, scopes of
// parents and ways to select children, with children that are changed and ones
// that are made again.
func TestRolloutsFinish(t *testing.T) {
	f := newRollingFixture(t)
	f.hooks.Handle("/sync", kit.JSON(func(r rollingRequest) (object, error) {
		return object{"status": object{}, "children": append(r.configMaps(), r.gadgets()...)}, nil
	}))
	type combination struct {
		name               string
		version            v1alpha1.HookVersion
		cluster, generated bool
		parent             *unstructured.Unstructured
		uids               map[string]types.UID
	}
	var all []*combination
	for _, version := range []v1alpha1.HookVersion{v1alpha1.HookVersionV1, v1alpha1.HookVersionV2} {
		for _, cluster := range []bool{false, true} {
			for _, generated := range []bool{false, true} {
				c := &combination{version: version, cluster: cluster, generated: generated}
				c.name = fmt.Sprintf("%s-r%d", f.ns, len(all))
				all = append(all, c)
				f.composite(func(cc *v1alpha1.CompositeController) {
					cc.Name = c.name
					f.rolling(cc, map[string]v1alpha1.ChildUpdateMethod{
						"configmaps": v1alpha1.ChildUpdateRollingInPlace, "gadgets": v1alpha1.ChildUpdateRollingRecreate,
					})
					cc.Spec.GenerateSelector, cc.Spec.Hooks.Sync.Version = &c.generated, &c.version
					cc.Spec.ParentResource.LabelSelector.MatchLabels["combination"] = c.name
					if cluster {
						cc.Spec.ParentResource.Resource = "globalthings"
					}
				})
			}
		}
	}
	f.start()
	for _, c := range all {
		spec := object{"count": 2, "template": object{"value": "v1", "metadata": object{"labels": object{"in": "template", "bad": 7}}}}
		if !c.generated {
			spec["labels"] = object{"app": c.name}
			spec["selector"] = object{"matchLabels": object{"app": c.name}}
		}
		c.parent = &unstructured.Unstructured{Object: object{"apiVersion": thingAPI, "kind": "Thing"}}
		c.parent.SetName(c.name)
		c.parent.SetLabels(map[string]string{testLabel: f.ns, "combination": c.name})
		if c.cluster {
			c.parent.SetKind("GlobalThing")
			spec["namespace"] = f.ns
		} else {
			c.parent.SetNamespace(f.ns)
		}
		c.parent.Object["spec"] = spec
		if err := f.client.Create(t.Context(), c.parent); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.client.Delete(context.Background(), c.parent) })
	}
	check := func(c *combination, value string) {
		t.Helper()
		f.waitChildren(c.name+"-c", map[string]string{c.name + "-c-0": value, c.name + "-c-1": value})
		f.waitGadgets(c.name+"-g", map[string]string{c.name + "-g-0": value, c.name + "-g-1": value})
		f.waitUpdated(c.parent, "True", "OnLatestRevision")
	}
	for _, c := range all {
		check(c, "v1")
		c.uids = map[string]types.UID{}
		for name, gadget := range f.gadgets(c.name) {
			c.uids[name] = gadget.GetUID()
		}
		c.uids["c"] = f.configMap(c.name + "-c-0").UID
		f.patch(c.parent, `{"spec":{"template":{"value":"v2"}}}`)
	}
	for _, c := range all {
		what := fmt.Sprintf("hook %s, cluster-scoped %v, generated %v", c.version, c.cluster, c.generated)
		check(c, "v2")
		if f.configMap(c.name+"-c-0").UID != c.uids["c"] {
			t.Errorf("%s: a child was not changed in place", what)
		}
		for name, gadget := range f.gadgets(c.name) {
			if gadget.GetUID() == c.uids[name] {
				t.Errorf("%s: %s was not made again", what, name)
			}
		}
		f.checkRevision(what, c.parent, c.generated)
		for _, event := range f.eventsOf(c.parent) {
			t.Errorf("%s: event %s: %s", what, event.Reason, event.Message)
		}
	}
}

// checkRevision looks at the one revision of a parent whose children are two
// ConfigMaps and two gadgets.
func (f *fixture) checkRevision(what string, parent *unstructured.Unstructured, generated bool) {
	f.t.Helper()
	revisions := f.revisions(parent)
	if len(revisions) != 1 {
		f.t.Errorf("%s: there are %d revisions", what, len(revisions))
		return
	}
	revision := revisions[0]
	namespace, prefix, resource := f.ns, parent.GetName(), "things"
	if parent.GetNamespace() == "" {
		namespace, prefix, resource = kit.ControllerNamespace, f.ns+"/"+parent.GetName(), "globalthings"
	}
	if revision.Namespace != namespace || !strings.HasPrefix(revision.Name, resource+".demo.example.com-") ||
		len(revision.Name) != len(resource+".demo.example.com-")+40 {
		f.t.Errorf("%s: the revision is %s/%s", what, revision.Namespace, revision.Name)
	}
	want := map[string]string{"metacontroller.k8s.io/apiGroup": "demo.example.com", "metacontroller.k8s.io/resource": resource}
	if generated {
		want["controller-uid"] = string(parent.GetUID())
	} else {
		want["in"] = "template"
	}
	if !maps.Equal(revision.Labels, want) {
		f.t.Errorf("%s: labels are %v", what, revision.Labels)
	}
	if patch := string(revision.ParentPatch.Raw); !strings.HasPrefix(patch, `{"spec":{"template":{`) || !strings.Contains(patch, `"value":"v2"`) {
		f.t.Errorf("%s: the patch is %s", what, patch)
	}
	owner := metav1.GetControllerOf(&revision)
	if owner.Name != parent.GetName() || owner.Kind != parent.GetKind() {
		f.t.Errorf("%s: the owner is %v", what, owner)
	}
	claims := []v1alpha1.ControllerRevisionChildren{
		{APIGroup: "", Kind: "ConfigMap", Names: []string{prefix + "-c-0", prefix + "-c-1"}},
		{APIGroup: "demo.example.com", Kind: "Gadget", Names: []string{prefix + "-g-0", prefix + "-g-1"}},
	}
	if fmt.Sprint(revision.Children) != fmt.Sprint(claims) {
		f.t.Errorf("%s: claims are %v, not %v", what, revision.Children, claims)
	}
}

func readyCheck() v1alpha1.StatusConditionCheck {
	yes := "True"
	return v1alpha1.StatusConditionCheck{Type: "Ready", Status: &yes}
}

// TestRollingWaitsForStatusChecks stops in the middle of a rollout, where the
// controller is restarted, children are deleted, scaled and changed, and the
// revision is replaced by another one.
func TestRollingWaitsForStatusChecks(t *testing.T) {
	for _, method := range []v1alpha1.ChildUpdateMethod{v1alpha1.ChildUpdateRollingRecreate, v1alpha1.ChildUpdateRollingInPlace} {
		t.Run(string(method), func(t *testing.T) {
			f := newRollingFixture(t)
			f.hooks.Handle("/sync", kit.JSON(func(r rollingRequest) (object, error) {
				// There is no status in the answer.
				return object{"children": r.gadgets()}, nil
			}))
			f.composite(func(cc *v1alpha1.CompositeController) {
				f.rolling(cc, map[string]v1alpha1.ChildUpdateMethod{"gadgets": method}, readyCheck())
			})
			p := f.start()
			parent := f.thing("a", object{"count": 3, "template": object{"value": "v1"}})
			f.waitGadgets("a-", map[string]string{"a-g-0": "v1", "a-g-1": "v1", "a-g-2": "v1"})
			for _, name := range []string{"a-g-0", "a-g-1", "a-g-2"} {
				f.ready(name, "True")
			}
			f.waitUpdated(parent, "True", "OnLatestRevision")

			f.patch(parent, `{"spec":{"template":{"value":"v2"}}}`)
			f.waitGadgets("a-", map[string]string{"a-g-0": "v2", "a-g-1": "v1", "a-g-2": "v1"})
			f.ready("a-g-0", "False")
			f.waitUpdated(parent, "False", "RolloutWaiting", "1 of 3", "a-g-0", "Ready")
			if got := len(f.revisions(parent)); got != 2 {
				t.Errorf("there are %d revisions", got)
			}

			// Somebody else writes the revisions too; that is kept, and in nobody's way.
			for _, revision := range f.revisions(parent) {
				revision.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(v1alpha1.ControllerRevisionKind))
				f.patch(&revision, `{"metadata":{"annotations":{"mine":"1"}}}`)
			}
			p.Stop()
			p.ExitCode(soon)
			p = f.start()

			// A child of the old revision comes back as it was; a new name is on the
			// latest; what makes no revision reaches all.
			f.delete(f.gadgets("a-g-2")["a-g-2"])
			kit.Eventually(t, soon, func() error {
				if gadget := f.gadgets("a-g-2")["a-g-2"]; gadget == nil || gadget.GetDeletionTimestamp() != nil {
					return errors.New("a-g-2 is not back")
				}
				return nil
			})
			f.ready("a-g-2", "True")
			f.patch(parent, `{"spec":{"count":4,"extra":"e"}}`)
			f.waitGadgets("a-", map[string]string{"a-g-0": "v2", "a-g-1": "v1", "a-g-2": "v1", "a-g-3": "v2"})
			kit.Eventually(t, soon, func() error {
				for name, gadget := range f.gadgets("a-") {
					if extra, _, _ := unstructured.NestedString(gadget.Object, "spec", "extra"); extra != "e" {
						return fmt.Errorf("%s has extra %q", name, extra)
					}
				}
				return nil
			})
			for _, name := range []string{"a-g-1", "a-g-2", "a-g-3"} {
				f.ready(name, "True")
			}
			f.waitUpdated(parent, "False", "RolloutWaiting", "2 of 4", "a-g-0")

			// Ready again, the next one moves, and only that.
			f.ready("a-g-0", "True")
			f.waitGadgets("a-", map[string]string{"a-g-0": "v2", "a-g-1": "v2", "a-g-2": "v1", "a-g-3": "v2"})
			f.ready("a-g-1", "False")
			f.waitUpdated(parent, "False", "RolloutWaiting", "3 of 4", "a-g-1")

			// A third revision: what is not ready is mended first.
			f.patch(parent, `{"spec":{"template":{"value":"v3"}}}`)
			f.waitGadgets("a-", map[string]string{"a-g-0": "v2", "a-g-1": "v3", "a-g-2": "v1", "a-g-3": "v2"})
			for i, name := range []string{"a-g-1", "a-g-0", "a-g-2", "a-g-3"} {
				want := map[string]string{"a-g-0": "v2", "a-g-1": "v3", "a-g-2": "v1", "a-g-3": "v2"}
				for _, moved := range []string{"a-g-1", "a-g-0", "a-g-2", "a-g-3"}[:i+1] {
					want[moved] = "v3"
				}
				f.waitGadgets("a-", want)
				f.ready(name, "True")
			}
			f.waitUpdated(parent, "True", "OnLatestRevision")
			kit.Eventually(t, soon, func() error {
				if got := len(f.revisions(parent)); got != 1 {
					return fmt.Errorf("there are %d revisions", got)
				}
				return nil
			})
			for _, event := range f.eventsOf(parent) {
				t.Errorf("event %s: %s", event.Reason, event.Message)
			}
			for _, one := range f.writes() {
				if one.ObjectRef.Resource == "controllerrevisions" && !slices.Contains([]string{"create", "update", "delete"}, one.Verb) {
					t.Errorf("a revision is written by %s", one.Verb)
				}
			}
			p.Stop()
		})
	}
}

// TestRollingIsQuiet once there is nothing to do: a restart writes nothing and
// asks once.
func TestRollingIsQuiet(t *testing.T) {
	f := newRollingFixture(t)
	f.hooks.Handle("/sync", kit.JSON(func(r rollingRequest) (object, error) {
		return object{"status": object{"conditions": []any{object{"type": "Mine", "status": "True"}}}, "children": append(r.configMaps(), r.gadgets()...)}, nil
	}))
	f.composite(func(cc *v1alpha1.CompositeController) {
		f.rolling(cc, map[string]v1alpha1.ChildUpdateMethod{
			"configmaps": v1alpha1.ChildUpdateRollingInPlace, "gadgets": v1alpha1.ChildUpdateRollingRecreate,
		})
		cc.Spec.ParentResource.RevisionHistory = nil // the whole spec
	})
	p := f.start()
	parent := f.thing("a", object{"count": 2, "template": object{"value": "v1"}})
	f.waitUpdated(parent, "True", "OnLatestRevision")
	f.patch(parent, `{"spec":{"template":{"value":"v2"}}}`)
	f.waitChildren("a-c", map[string]string{"a-c-0": "v2", "a-c-1": "v2"})
	f.waitGadgets("a-g", map[string]string{"a-g-0": "v2", "a-g-1": "v2"})
	f.waitUpdated(parent, "True", "OnLatestRevision")
	now := parent.DeepCopy()
	if err := f.client.Get(t.Context(), client.ObjectKeyFromObject(parent), now); err != nil {
		t.Fatal(err)
	}
	conditions, _, _ := unstructured.NestedSlice(now.Object, "status", "conditions")
	if len(conditions) != 2 || conditions[0].(map[string]any)["type"] != "Mine" {
		t.Errorf("conditions are %v", conditions)
	}
	p.Stop()
	p.ExitCode(soon)

	before := len(f.writes())
	f.hooks.Forget()
	f.start()
	f.hooks.WaitRequests(soon, "/sync", 1)
	// A second parent shows that the first is done with.
	other := f.thing("b", object{"count": 1, "template": object{"value": "v1"}})
	f.waitUpdated(other, "True", "OnLatestRevision")
	for _, one := range f.writes()[before:] {
		name := one.ObjectRef.Name
		if one.Verb != "list" && one.Verb != "watch" && (strings.HasPrefix(name, "a-") || name == "a") {
			t.Errorf("%s %s", one.Verb, one.RequestURI)
		}
	}
	asked := 0
	for _, request := range f.hooks.Requests("/sync") {
		var r rollingRequest
		if err := request.Decode(&r); err != nil {
			t.Fatal(err)
		}
		if r.Parent.Metadata.Name == "a" {
			asked++
		}
	}
	if asked != 1 {
		t.Errorf("the hook was asked %d times", asked)
	}

	// The latest revision comes back if somebody deletes it.
	revision := f.revisions(parent)[0]
	f.delete(&revision)
	kit.Eventually(t, soon, func() error {
		all := f.revisions(parent)
		if len(all) != 1 || all[0].UID == revision.UID || len(all[0].Children) != 2 {
			return fmt.Errorf("revisions are %v", all)
		}
		return nil
	})
}

// TestRollingWithAHookThatForgetsTheOldRevision goes on, and says so.
func TestRollingWithAHookThatForgetsTheOldRevision(t *testing.T) {
	f := newRollingFixture(t)
	f.hooks.Handle("/sync", kit.JSON(func(r rollingRequest) (object, error) {
		return object{"children": r.gadgets()}, nil
	}))
	f.composite(func(cc *v1alpha1.CompositeController) {
		f.rolling(cc, map[string]v1alpha1.ChildUpdateMethod{"gadgets": v1alpha1.ChildUpdateRollingInPlace})
	})
	f.start()
	parent := f.thing("a", object{"count": 3, "template": object{"value": "v1"}})
	f.waitUpdated(parent, "True", "OnLatestRevision")
	f.hooks.Handle("/sync", kit.JSON(func(r rollingRequest) (object, error) {
		if r.Parent.Spec.Template.Value == "v1" {
			return nil, errors.New("v1 is no more")
		}
		return object{"children": r.gadgets()}, nil
	}))
	f.patch(parent, `{"spec":{"template":{"value":"v2"}}}`)
	f.event(parent, "SyncError", f.ns, "old revision", "stay as they are", "500")
	f.waitGadgets("a-", map[string]string{"a-g-0": "v2", "a-g-1": "v2", "a-g-2": "v2"})
	f.waitUpdated(parent, "True", "OnLatestRevision")
}

// TestFinalizeOnlyWithARollingKind is idle while its parents live, and finalizes
// them.
func TestFinalizeOnlyWithARollingKind(t *testing.T) {
	f := newRollingFixture(t)
	f.hooks.Handle("/finalize", kit.JSON(func(rollingRequest) (object, error) {
		return object{"finalized": true}, nil
	}))
	f.composite(func(cc *v1alpha1.CompositeController) {
		f.rolling(cc, map[string]v1alpha1.ChildUpdateMethod{"gadgets": v1alpha1.ChildUpdateRollingRecreate})
		url := f.hooks.URL("/finalize")
		cc.Spec.Hooks = &v1alpha1.CompositeControllerHooks{Finalize: &v1alpha1.Hook{Webhook: &v1alpha1.Webhook{URL: &url}}}
	})
	p := f.start()
	parent := f.thing("a", object{"count": 1, "template": object{"value": "v1"}})
	kit.Eventually(t, soon, func() error {
		now := parent.DeepCopy()
		if err := f.client.Get(t.Context(), client.ObjectKeyFromObject(parent), now); err != nil {
			return err
		}
		if len(now.GetFinalizers()) != 1 {
			return errors.New("there is no finalizer yet")
		}
		return nil
	})
	f.delete(parent)
	kit.Eventually(t, soon, func() error {
		if err := f.client.Get(t.Context(), client.ObjectKeyFromObject(parent), parent.DeepCopy()); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the parent is still there: %v", err)
		}
		return nil
	})
	if got := f.revisions(parent); len(got) > 0 {
		t.Errorf("there are revisions %v", got)
	}
	for _, event := range f.eventsOf(parent) {
		t.Errorf("event %s: %s", event.Reason, event.Message)
	}
	if strings.Contains(p.Output(), "panic") {
		t.Error("there was a panic")
	}
}
