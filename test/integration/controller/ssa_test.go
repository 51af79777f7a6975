package controller_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/test/kit"
)

// manager is a field manager with a name that must be quoted in a URL.
const manager = "my manager/1&2"

// managers are the field managers of an object with their operations.
func managers(o *unstructured.Unstructured) map[string]bool {
	out := map[string]bool{}
	for _, entry := range o.GetManagedFields() {
		out[entry.Manager+" "+string(entry.Operation)] = true
	}
	return out
}

func configMapOf(name string, data object, labels object) object {
	return object{"apiVersion": "v1", "kind": "ConfigMap", "metadata": object{"name": name, "labels": labels}, "data": data}
}

func widgetOf(name string, labels object, value string) object {
	return object{"apiVersion": "apply.example.com/v1", "kind": "Widget", "metadata": object{"name": name, "labels": labels, "annotations": object{"note": value}},
		"spec": object{"value": value}}
}

func TestServerSideApply(t *testing.T) {
	f := newApplyFixture(t)
	f.hooks.Handle("/sync", specHook())
	f.composite(childKinds(v1alpha1.ChildUpdateInPlace, [2]string{"v1", "configmaps"}, [2]string{"apply.example.com/v1", "widgets"}))
	f.start(serverSide, "--apply-strategy-ssa-field-manager="+manager)
	ours := object{"ours": "1"}
	parent := f.thing("a", specOf("1", configMapOf("c", object{"a": "1", "b": "2"}, ours), widgetOf("w", ours, "x")))
	f.waitValue(parent, "1")
	for _, o := range []*unstructured.Unstructured{f.get("v1", "ConfigMap", "c"), f.get("apply.example.com/v1", "Widget", "w")} {
		if o == nil {
			t.Fatalf("a child is not there; events: %v", messages(f.eventsOf(parent)))
		}
		if _, annotated := o.GetAnnotations()[lastApplied]; annotated || len(managers(o)) != 1 || !managers(o)[manager+" Apply"] {
			t.Errorf("%s has annotations %v and managers %v", o.GetKind(), o.GetAnnotations(), managers(o))
		}
		owner := metav1.GetControllerOf(o)
		if owner == nil || owner.UID != parent.GetUID() || owner.BlockOwnerDeletion == nil || !*owner.BlockOwnerDeletion || o.GetLabels()["controller-uid"] != string(parent.GetUID()) {
			t.Errorf("%s has owner %v and labels %v", o.GetKind(), owner, o.GetLabels())
		}
	}

	// Drift of a value, a label and an annotation, of a kind without a generation
	// and of one with it; what others add stays.
	f.patch(f.get("v1", "ConfigMap", "c"), `{"metadata":{"labels":{"ours":"drifted","theirs":"1"}},"data":{"a":"drifted","theirs":"1"}}`)
	f.waitField("v1", "ConfigMap", "c", "1", "data", "a")
	f.waitField("v1", "ConfigMap", "c", "1", "metadata", "labels", "ours")
	f.patch(f.get("apply.example.com/v1", "Widget", "w"), `{"metadata":{"labels":{"ours":"drifted","theirs":"1"}}}`)
	f.waitField("apply.example.com/v1", "Widget", "w", "1", "metadata", "labels", "ours")
	f.patch(f.get("apply.example.com/v1", "Widget", "w"), `{"metadata":{"annotations":{"note":null}}}`)
	f.waitField("apply.example.com/v1", "Widget", "w", "x", "metadata", "annotations", "note")
	f.patch(f.get("apply.example.com/v1", "Widget", "w"), `{"spec":{"value":null}}`)
	f.waitField("apply.example.com/v1", "Widget", "w", "x", "spec", "value")

	// What is no longer desired goes, an explicit null as well, and nothing else.
	f.spec(parent, "2", configMapOf("c", object{"a": nil, "b": "2"}, nil), widgetOf("w", nil, "y"))
	f.waitField("apply.example.com/v1", "Widget", "w", "y", "spec", "value")
	for _, o := range []*unstructured.Unstructured{f.get("v1", "ConfigMap", "c"), f.get("apply.example.com/v1", "Widget", "w")} {
		if _, has := o.GetLabels()["ours"]; has || o.GetLabels()["theirs"] != "1" {
			t.Errorf("%s has labels %v", o.GetKind(), o.GetLabels())
		}
	}
	if data := f.configMap("c").Data; len(data) != 2 || data["b"] != "2" || data["theirs"] != "1" {
		t.Errorf("data is %v", data)
	}
	f.spec(parent, "3")
	kit.Eventually(t, soon, func() error {
		if f.get("v1", "ConfigMap", "c") != nil || f.get("apply.example.com/v1", "Widget", "w") != nil {
			return fmt.Errorf("children are left")
		}
		return nil
	})
}

// TestServerSideApplyLeavesForeignObjectsAlone: neither one that nobody controls
// nor another parent's is taken over, or deleted with the parent.
func TestServerSideApplyLeavesForeignObjectsAlone(t *testing.T) {
	f := newApplyFixture(t)
	f.hooks.Handle("/sync", specHook())
	f.composite(childKinds(v1alpha1.ChildUpdateInPlace, [2]string{"v1", "configmaps"}))
	f.start(serverSide)
	foreign := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "c"}, Data: map[string]string{"a": "theirs"}}
	if err := f.client.Create(t.Context(), foreign); err != nil {
		t.Fatal(err)
	}
	parent := f.thing("a", specOf("1", configMapOf("c", object{"a": "ours"}, nil), configMapOf("d", object{"a": "ours"}, nil)))
	f.event(parent, "SyncError", `ConfigMap "`+f.ns+`/c"`, "left alone")
	f.waitField("v1", "ConfigMap", "d", "ours", "data", "a")
	other := f.thing("b", specOf("1", configMapOf("d", object{"a": "other"}, nil)))
	f.event(other, "SyncError", `ConfigMap "`+f.ns+`/d"`, `controlled by Thing "a"`)
	if now := f.configMap("c"); now.ResourceVersion != foreign.ResourceVersion {
		t.Errorf("it was changed: %v", now)
	}
	f.delete(parent)
	f.delete(other)
	f.event(parent, "SyncError")
	if now := f.configMap("c"); now == nil || now.UID != foreign.UID {
		t.Errorf("it is gone, or another: %v", now)
	}

	// A name that leads elsewhere is refused.
	bad := f.thing("bad", specOf("1", configMapOf("../secrets/x", object{"a": "ours"}, nil), configMapOf("Not A Name", nil, nil), configMapOf("good", object{"a": "1"}, nil)))
	f.event(bad, "SyncError", "../secrets/x", "Not A Name")
	f.waitField("v1", "ConfigMap", "good", "1", "data", "a")
}

func TestServerSideApplyOnDelete(t *testing.T) {
	f := newApplyFixture(t)
	f.hooks.Handle("/sync", specHook())
	f.composite(childKinds(v1alpha1.ChildUpdateOnDelete, [2]string{"v1", "configmaps"}))
	f.start(serverSide)
	parent := f.thing("a", specOf("1", configMapOf("c", object{"a": "1"}, nil)))
	f.waitValue(parent, "1")
	f.spec(parent, "2", configMapOf("c", object{"a": "2"}, nil))
	if data := f.configMap("c").Data; data["a"] != "1" {
		t.Errorf("data is %v", data)
	}
	f.delete(f.configMap("c"))
	f.waitField("v1", "ConfigMap", "c", "2", "data", "a")
}

// TestChangeOfTheStrategy goes from updates to applies and back. One child has the
// managed fields of a public Metacontroller whose program had another name.
func TestChangeOfTheStrategy(t *testing.T) {
	f := newApplyFixture(t)
	f.hooks.Handle("/sync", specHook())
	f.composite(childKinds(v1alpha1.ChildUpdateInPlace, [2]string{"v1", "configmaps"}, [2]string{"apps/v1", "deployments"}))
	deployment := func(labels object, env ...any) object {
		return object{
			"apiVersion": "apps/v1", "kind": "Deployment", "metadata": object{"name": "d", "labels": labels},
			"spec": object{
				"replicas": 0, "selector": object{"matchLabels": object{"app": "d"}},
				"template": object{"metadata": object{"labels": object{"app": "d"}},
					"spec": object{"containers": []any{object{"name": "c", "image": "x", "env": env}}}},
			},
		}
	}
	variable := func(name string) any { return object{"name": name, "value": "1"} }
	ours := object{"ours": "1"}
	p := f.start()
	parent := f.thing("a", specOf("1", configMapOf("c", object{"a": "1", "b": "2"}, ours), configMapOf("old", object{"a": "1", "b": "2"}, ours), deployment(ours, variable("A"), variable("B"))))
	f.waitValue(parent, "1")
	if _, annotated := f.get("v1", "ConfigMap", "c").GetAnnotations()[lastApplied]; !annotated {
		t.Fatal("there is no annotation")
	}
	p.Stop()
	f.patch(f.get("v1", "ConfigMap", "c"), `{"data":{"theirs":"1"}}`)
	f.renameManager("old", "metacontroller-linux-amd64")

	p = f.start(serverSide)
	f.value(parent, "2")
	kit.Eventually(t, soon, func() error {
		for _, o := range []*unstructured.Unstructured{f.get("v1", "ConfigMap", "c"), f.get("v1", "ConfigMap", "old"), f.get("apps/v1", "Deployment", "d")} {
			if _, annotated := o.GetAnnotations()[lastApplied]; annotated || !managers(o)["metacontroller Apply"] || managers(o)["metacontroller Update"] || managers(o)["metacontroller-linux-amd64 Update"] {
				return fmt.Errorf("%s %q has annotations %v and managers %v", o.GetKind(), o.GetName(), o.GetAnnotations(), managers(o))
			}
		}
		return nil
	})
	f.value(parent, "3")
	since := len(f.changes())
	f.value(parent, "4")
	f.noMore("after the hand-over", since)

	f.spec(parent, "5", configMapOf("c", object{"a": "1"}, nil), configMapOf("old", object{"a": "1"}, nil), deployment(nil, variable("B")))
	check := func(what string, variables string) {
		t.Helper()
		kit.Eventually(t, soon, func() error {
			for _, name := range []string{"c", "old"} {
				now := f.configMap(name)
				if _, has := now.Data["b"]; has || now.Data["a"] != "1" || now.Labels["ours"] != "" {
					return fmt.Errorf("%s: ConfigMap %q has data %v and labels %v", what, name, now.Data, now.Labels)
				}
			}
			d := f.get("apps/v1", "Deployment", "d")
			containers, _, _ := unstructured.NestedSlice(d.Object, "spec", "template", "spec", "containers")
			text, _ := json.Marshal(containers[0].(object)["env"])
			if d.GetLabels()["ours"] != "" || string(text) != variables {
				return fmt.Errorf("%s: Deployment has labels %v and env %s", what, d.GetLabels(), text)
			}
			return nil
		})
		if theirs := f.configMap("c").Data["theirs"]; theirs != "1" {
			t.Errorf("%s: what somebody else wrote is %q", what, theirs)
		}
	}
	check("server-side apply removes", `[{"name":"B","value":"1"}]`)

	f.spec(parent, "6", configMapOf("c", object{"a": "1", "b": "2"}, ours), configMapOf("old", object{"a": "1", "b": "2"}, ours), deployment(ours, variable("A"), variable("B")))
	p.Stop()
	p = f.start()
	f.value(parent, "7")
	f.value(parent, "8")
	since = len(f.changes())
	f.value(parent, "9")
	f.noMore("after the way back", since)
	f.spec(parent, "10", configMapOf("c", object{"a": "1"}, nil), configMapOf("old", object{"a": "1"}, nil), deployment(nil, variable("B")))
	check("an update removes", `[{"name":"B","value":"1"}]`)
	p.Stop()
}

// renameManager gives the updates of a ConfigMap to another manager, as if a
// program of that name had made them.
func (f *fixture) renameManager(name, manager string) {
	f.t.Helper()
	o := f.get("v1", "ConfigMap", name)
	entries := o.GetManagedFields()
	for i := range entries {
		if entries[i].Manager == "metacontroller" {
			entries[i].Manager = manager
		}
	}
	patch, err := json.Marshal([]object{{"op": "replace", "path": "/metadata/managedFields", "value": entries}})
	if err != nil {
		f.t.Fatal(err)
	}
	if err := f.client.Patch(f.t.Context(), o, client.RawPatch("application/json-patch+json", patch)); err != nil {
		f.t.Fatal(err)
	}
	if !managers(f.get("v1", "ConfigMap", name))[manager+" Update"] {
		f.t.Fatalf("managers are %v", managers(f.get("v1", "ConfigMap", name)))
	}
}

// TestServerSideApplyAdopts takes an orphan, owns what it has, and lets it go.
func TestServerSideApplyAdopts(t *testing.T) {
	f := newApplyFixture(t)
	f.hooks.Handle("/sync", specHook())
	f.composite(func(cc *v1alpha1.CompositeController) {
		childKinds(v1alpha1.ChildUpdateInPlace, [2]string{"v1", "configmaps"})(cc)
		cc.Spec.GenerateSelector = nil
	})
	f.start(serverSide)
	orphan := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: f.ns, Name: "c", Labels: map[string]string{"app": "a"}}, Data: map[string]string{"a": "1", "theirs": "1"}}
	if err := f.client.Create(t.Context(), orphan); err != nil {
		t.Fatal(err)
	}
	child := func(data object) object { return configMapOf("c", data, object{"app": "a"}) }
	spec := specOf("1", child(object{"a": "1", "b": "2"}))
	spec["selector"] = object{"matchLabels": object{"app": "a"}}
	parent := f.thing("a", spec)
	f.waitField("v1", "ConfigMap", "c", "2", "data", "b")
	now := f.configMap("c")
	if owner := metav1.GetControllerOf(now); owner == nil || owner.UID != parent.GetUID() || now.UID != orphan.UID {
		t.Errorf("it is %v", now.ObjectMeta)
	}
	f.value(parent, "2")
	since := len(f.changes())
	f.value(parent, "3")
	f.noMore("after the adoption", since)
	f.patch(parent, `{"spec":{"value":"4","children":[]}}`)
	kit.Eventually(t, soon, func() error {
		if err := f.client.Get(t.Context(), client.ObjectKeyFromObject(orphan), &corev1.ConfigMap{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("it is still there: %v", err)
		}
		return nil
	})
}

func TestStrategiesThatThereAreNot(t *testing.T) {
	f := newFixture(t)
	for _, arguments := range [][]string{
		{"--apply-strategy=client-side"},
		{"--apply-strategy="},
		{serverSide, "--apply-strategy-ssa-field-manager="},
		{serverSide, "--apply-strategy-ssa-field-manager=" + strings.Repeat("x", 129)},
		{serverSide, "--apply-strategy-ssa-field-manager=a\tb"},
	} {
		p := f.launch("one", arguments...)
		if code := p.ExitCode(soon); code == 0 || !strings.Contains(p.Output(), "--apply-strategy") {
			t.Errorf("%q: exit code %d, output %s", arguments, code, p.Output())
		}
	}
}
