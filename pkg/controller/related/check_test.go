package related

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"

	v1alpha1 "github.com/metacontroller-solo/solo/pkg/api/metacontroller/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/controller/hook/wire"
	"github.com/metacontroller-solo/solo/pkg/object"
)

var (
	configMap = object.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}, Resource: "configmaps", Namespaced: true}
	node      = object.Kind{GroupVersionKind: schema.GroupVersionKind{Version: "v1", Kind: "Node"}, Resource: "nodes"}
)

// decoded reads rules as a hook writes them.
func decoded(t testing.TB, rules string) []v1alpha1.RelatedResourceRule {
	t.Helper()
	answer, _, err := wire.Codec{}.DecodeCustomize([]byte(`{"relatedResources":` + rules + `}`))
	if err != nil {
		t.Fatal(err)
	}
	return answer.Rules
}

func kindsOf(rules []v1alpha1.RelatedResourceRule) []object.Kind {
	var kinds []object.Kind
	for _, rule := range rules {
		kind := configMap
		if rule.Resource == node.Resource {
			kind = node
		}
		kinds = append(kinds, kind)
	}
	return kinds
}

func TestCheckRefuses(t *testing.T) {
	const (
		maps  = `"apiVersion":"v1","resource":"configmaps"`
		nodes = `"apiVersion":"v1","resource":"nodes"`
	)
	v1, v2 := v1alpha1.HookVersionV1, v1alpha1.HookVersionV2
	namespaced := func(version v1alpha1.HookVersion) Viewer { return Viewer{Namespace: "here", Version: version} }
	global := func(version v1alpha1.HookVersion) Viewer { return Viewer{Version: version} }
	cases := []struct {
		reason, rules string
		viewer        Viewer
		// paths of the mistakes; none means that the rules are fine.
		paths []string
	}{
		{"whole kind", `[{` + maps + `}]`, namespaced(v1), nil},
		{"empty selectors", `[{` + maps + `,"labelSelector":{},"names":null}]`, namespaced(v1), nil},
		{"empty names beside labels", `[{` + maps + `,"labelSelector":{"matchLabels":{"a":"b"}},"names":[]}]`, namespaced(v1), nil},
		{"names twice", `[{` + maps + `,"names":["a","a"]}]`, namespaced(v1), nil},
		{"strange but legal name", `[{` + nodes + `,"names":["system:a.B"]}]`, global(v1), nil},
		{"names and labels", `[{` + maps + `,"names":["a"],"labelSelector":{}}]`, namespaced(v1), []string{"relatedResources[0].labelSelector"}},
		{"names and namespaces", `[{` + maps + `,"names":["a"],"namespaceSelector":{}}]`, global(v1), []string{"relatedResources[0].namespaceSelector"}},
		{"namespace and namespaces", `[{` + maps + `,"namespace":"n","namespaceSelector":{}}]`, global(v2), []string{"relatedResources[0].namespaceSelector"}},
		{"namespace and labels", `[{` + maps + `,"namespace":"n","labelSelector":{}}]`, global(v2), nil},
		{"namespace and names", `[{` + maps + `,"namespace":"n","names":["a"]}]`, global(v1), nil},
		{"namespaces of a cluster-scoped kind", `[{` + nodes + `,"namespaceSelector":{}}]`, global(v2), []string{"relatedResources[0].namespaceSelector"}},
		{"namespace of a cluster-scoped kind", `[{` + nodes + `,"namespace":"n"}]`, global(v2), []string{"relatedResources[0].namespace"}},
		{"namespaces, v1, namespaced parent", `[{` + maps + `,"namespaceSelector":{}}]`, namespaced(v1), []string{"relatedResources[0].namespaceSelector"}},
		{"namespaces, no version, namespaced parent", `[{` + maps + `,"namespaceSelector":{}}]`, namespaced(""), []string{"relatedResources[0].namespaceSelector"}},
		{"namespaces, v1, cluster-scoped parent", `[{` + maps + `,"namespaceSelector":{}}]`, global(v1), nil},
		{"namespaces, v2", `[{` + maps + `,"namespaceSelector":{}}]`, namespaced(v2), nil},
		{"other namespace, v1", `[{` + maps + `,"namespace":"there"}]`, namespaced(v1), []string{"relatedResources[0].namespace"}},
		{"own namespace, v1", `[{` + maps + `,"namespace":"here"}]`, namespaced(v1), nil},
		{"other namespace, v2", `[{` + maps + `,"namespace":"there"}]`, namespaced(v2), nil},
		{"other namespace, v1, cluster-scoped parent", `[{` + maps + `,"namespace":"there"}]`, global(v1), nil},
		{"no namespace", `[{` + maps + `,"namespace":"a/b"}]`, namespaced(v2), []string{"relatedResources[0].namespace"}},
		{"empty name", `[{` + maps + `,"names":["a",""]}]`, namespaced(v1), []string{"relatedResources[0].names[1]"}},
		{"null name", `[{` + maps + `,"names":[null]}]`, namespaced(v1), []string{"relatedResources[0].names[0]"}},
		{"namespace in the name", `[{` + maps + `,"names":["n/a"]}]`, namespaced(v1), []string{"relatedResources[0].names[0]"}},
		{"name that is a path", `[{` + maps + `,"names":[".."]}]`, namespaced(v1), []string{"relatedResources[0].names[0]"}},
		{"wrong operator", `[{` + maps + `},{` + maps + `,"labelSelector":{"matchExpressions":[{"key":"a","operator":"Like"}]}}]`, namespaced(v1),
			[]string{"relatedResources[1].labelSelector.matchExpressions[0].operator"}},
		{"no values", `[{` + maps + `,"namespaceSelector":{"matchExpressions":[{"key":"a","operator":"In"}]}}]`, namespaced(v2),
			[]string{"relatedResources[0].namespaceSelector.matchExpressions[0].values"}},
		{"no label", `[{` + maps + `,"labelSelector":{"matchLabels":{"a b":"c"}}}]`, namespaced(v1), []string{"relatedResources[0].labelSelector.matchLabels"}},
		{"all mistakes are said", `[{` + nodes + `,"namespace":"n","names":["a/b"]},{` + maps + `,"names":[""]}]`, global(v2),
			[]string{"relatedResources[0].namespace", "relatedResources[0].names[0]", "relatedResources[1].names[0]"}},
	}
	for _, c := range cases {
		answer := decoded(t, c.rules)
		rules, err := Check(answer, kindsOf(answer), c.viewer)
		var paths []string
		if joined, ok := err.(interface{ Unwrap() []error }); ok {
			for _, one := range joined.Unwrap() {
				var field *object.FieldError
				if errors.As(one, &field) {
					paths = append(paths, field.Path)
				}
			}
		}
		if !slices.Equal(paths, c.paths) || (rules == nil) != (len(c.paths) > 0) {
			t.Errorf("%s: %v; paths are %q", c.reason, err, paths)
		}
	}
}

func TestWhatNobodySeesIsNotWatched(t *testing.T) {
	answer := decoded(t, `[{"apiVersion":"v1","resource":"nodes"},{"apiVersion":"v1","resource":"configmaps","namespaceSelector":{"matchLabels":{"a":"b"}}},{"apiVersion":"v1","resource":"configmaps","namespace":"there"}]`)
	v2 := v1alpha1.HookVersionV2
	rules, err := Check(answer, kindsOf(answer), Viewer{Namespace: "here", Version: v2, Confined: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := rules.Uses(); !slices.Equal(got, []object.Kind{configMap, NamespaceKind}) {
		t.Errorf("confined rules use %v", got)
	}
	if got := rules.Users(NamespaceKind); !slices.Equal(got, []string{"relatedResources[1].namespaceSelector"}) {
		t.Errorf("users are %q", got)
	}
	if groups := rules.Select(func(object.Kind) Reader { return readers{} }).Groups(); len(groups) != 2 {
		t.Errorf("groups are %v", groups)
	}
	// Nobody is confined where the parent has no namespace.
	if rules, err = Check(answer, kindsOf(answer), Viewer{Version: v2, Confined: true}); err != nil || !slices.Contains(rules.Uses(), node) {
		t.Errorf("rules use %v, %v", rules.Uses(), err)
	}
}

// FuzzCheck: whatever a hook answers, rules come out that can be used, or an
// error that says where.
func FuzzCheck(f *testing.F) {
	for _, seed := range []string{
		`[]`, `null`, `[{"apiVersion":"v1","resource":"configmaps"}]`,
		`[{"apiVersion":"v1","resource":"nodes","namespace":"x"}]`,
		`[{"apiVersion":"v1","resource":"configmaps","names":["a","b/c",null,""]}]`,
		`[{"apiVersion":"v1","resource":"configmaps","labelSelector":{"matchExpressions":[{"key":"a","operator":"In","values":["x","x"]}]}}]`,
		`[{"apiVersion":"v1","resource":"configmaps","namespaceSelector":{"matchLabels":{"a":"b"},"matchExpressions":[{"key":"","operator":"Exists"}]}}]`,
		`[{"apiVersion":"v1","resource":"configmaps","labelSelector":{"matchExpressions":[null]}}]`,
	} {
		f.Add(seed, "here", true, true)
		f.Add(seed, "", false, false)
	}
	f.Fuzz(func(t *testing.T, text, namespace string, v2, confined bool) {
		answer, _, err := wire.Codec{}.DecodeCustomize([]byte(`{"relatedResources":` + text + `}`))
		if err != nil {
			return
		}
		viewer := Viewer{Namespace: namespace, Version: v1alpha1.HookVersionV1, Confined: confined}
		if v2 {
			viewer.Version = v1alpha1.HookVersionV2
		}
		rules, err := Check(answer.Rules, kindsOf(answer.Rules), viewer)
		if err != nil {
			for line := range strings.SplitSeq(err.Error(), "\n") {
				// A problem may quote what was written, line breaks and all.
				if rules != nil || !strings.HasPrefix(err.Error(), "relatedResources[") {
					t.Fatalf("error is %q", line)
				}
			}
			return
		}
		parent := object.Key{Kind: "Thing", Name: "p"}
		index := NewIndex()
		index.Set(parent, rules)
		state := State{Namespace: namespace, Name: "a", Labels: labels.Set{"a": "x"}}
		index.Affected(configMap.GroupKind(), []State{state}, func(string) (labels.Set, bool) { return labels.Set{"a": "b"}, true })
		rules.Select(func(object.Kind) Reader { return readers{} })
		index.Set(parent, nil)
		mustBeEmpty(t, index)
	})
}

// FuzzSelector: a selector is refused with the place of the mistake, or it means
// something; what an index takes from it never hides a match.
func FuzzSelector(f *testing.F) {
	for _, seed := range []string{
		`null`, `{}`, `{"matchLabels":{"a":"x"}}`, `{"matchLabels":{"a":""}}`, `{"matchLabels":{"a":"x y"}}`,
		`{"matchExpressions":[{"key":"a","operator":"In","values":["x","y","x"]}]}`,
		`{"matchExpressions":[{"key":"a","operator":"In","values":[]}]}`,
		`{"matchExpressions":[{"key":"a","operator":"NotIn","values":["x"]},{"key":"b","operator":"Exists"}]}`,
		`{"matchExpressions":[{"key":"a/b/c","operator":"DoesNotExist","values":["x"]}]}`,
		`{"matchExpressions":[{"key":"a","operator":"like"}],"matchLabels":{"a":"x"}}`,
	} {
		f.Add(seed, "a", "x")
		f.Add(seed, "b", "")
	}
	f.Fuzz(func(t *testing.T, text, label, value string) {
		var declared metav1.LabelSelector
		if json.Unmarshal([]byte(text), &declared) != nil {
			return
		}
		selector, problems := selectorOf("at", &declared)
		if (selector == nil) != (len(problems) > 0) {
			t.Fatalf("selector is %v with problems %v", selector, problems)
		}
		for _, problem := range problems {
			if !strings.HasPrefix(problem.Path, "at") || problem.Problem == "" {
				t.Fatalf("problem is %v", problem)
			}
		}
		if selector == nil {
			return
		}
		set := labels.Set{label: value}
		key, values := object.RequiredLabel(selector)
		if has := set[key]; selector.Matches(set) && len(values) > 0 && (!set.Has(key) || !slices.Contains(values, has)) {
			t.Fatalf("%s matches %v and is said to need %s of %q", selector, set, key, values)
		}
	})
}
