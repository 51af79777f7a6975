package check

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/finding"
	"github.com/metacontroller-solo/solo/pkg/manifest"
)

var update = flag.Bool("update", false, "write the golden files again")

const image = "ghcr.io/metacontroller/metacontroller:v4.12.0"

func statefulSet(name, extra string) string {
	return "apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {name: " + name + "}\nspec:\n  template: {spec: {containers: [{name: main, image: \"" + image + "\"}]}}\n" + extra + "---\n"
}

func workload(kind, name, image string) string {
	return "apiVersion: apps/v1\nkind: " + kind + "\nmetadata: {name: " + name + ", namespace: dev}\nspec: {template: {spec: {containers: [{name: main, image: \"" + image + "\"}]}}}\n---\n"
}

func policy(spec string) string {
	return "apiVersion: guard.metacontroller.io/v1alpha1\nkind: SingletonPolicy\nmetadata: {name: metacontroller}\nspec: " + spec + "\n---\n"
}

// run judges one stream and returns the findings, one line each.
func run(t *testing.T, content string, edit func(*Request)) ([]string, *finding.Report) {
	t.Helper()
	set, err := manifest.Open([]string{manifest.StandardInput}, strings.NewReader(content), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = set.Close() }()
	request := Request{Set: set, Namespace: "default", Now: now}
	if edit != nil {
		edit(&request)
	}
	report, err := Run(request)
	if err != nil {
		return []string{"error: " + err.Error()}, nil
	}
	var got []string
	for _, f := range report.Findings {
		got = append(got, fmt.Sprintf("%d %s %s %s", f.Line, f.Level, f.Object, f.Rule))
	}
	for _, fault := range report.Faults {
		got = append(got, fmt.Sprintf("%d fault: %s", fault.Line, fault.Message))
	}
	return got, report
}

func TestRun(t *testing.T) {
	held := func(r *Request) { r.Holder = &decide.Identity{Namespace: "prod", Name: "mc"} }
	hpa := "apiVersion: autoscaling/v2\nkind: HorizontalPodAutoscaler\nmetadata: {name: x}\nspec: {maxReplicas: 3, scaleTargetRef: {apiVersion: apps/v1, kind: StatefulSet, name: mc}}\n---\n"
	crd := "apiVersion: apiextensions.k8s.io/v1\nkind: CustomResourceDefinition\nmetadata: {name: setz.example.com}\nspec: {group: example.com, names: {kind: CloneSet, plural: setz}}\n---\n"
	clone := "apiVersion: example.com/v1\nkind: CloneSet\nmetadata: {name: c}\nspec: {template: {spec: {containers: [{name: main, image: \"" + image + "\"}]}}}\n---\n"
	for name, test := range map[string]struct {
		content string
		edit    func(*Request)
		want    []string
	}{
		"nothing that matters":           {workload("Deployment", "web", "nginx"), nil, nil},
		"the first":                      {statefulSet("mc", ""), nil, []string{"1 passed StatefulSet default/mc "}},
		"A25: two in one file":           {statefulSet("mc", "") + statefulSet("other", ""), nil, []string{"1 passed StatefulSet default/mc ", "7 violation StatefulSet default/other second-workload"}},
		"the same twice":                 {statefulSet("mc", "") + statefulSet("mc", ""), nil, []string{"1 passed StatefulSet default/mc ", "7 passed StatefulSet default/mc "}},
		"the same, scaled up later":      {statefulSet("mc", "") + statefulSet("mc", "  replicas: 2\n"), nil, []string{"1 passed StatefulSet default/mc ", "7 violation StatefulSet default/mc scale-above-one"}},
		"a refused one is not there":     {statefulSet("mc", "  replicas: 2\n") + statefulSet("other", ""), nil, []string{"1 violation StatefulSet default/mc scale-above-one", "8 passed StatefulSet default/other "}},
		"harmless, then an instance":     {workload("Deployment", "web", "nginx") + workload("Deployment", "web", image), nil, []string{"6 violation Deployment dev/web became-instance"}},
		"Deployments of old":             {strings.Replace(workload("Deployment", "mc", image), "apps/v1", "extensions/v1beta1", 1), held, []string{"1 violation Deployment dev/mc second-workload"}},
		"the slot is taken":              {statefulSet("mc", ""), held, []string{"1 violation StatefulSet default/mc second-workload"}},
		"the holder itself":              {statefulSet("mc, namespace: prod", ""), held, []string{"1 passed StatefulSet prod/mc "}},
		"the holder itself, wrong":       {statefulSet("mc, namespace: prod", "  replicas: 3\n"), held, []string{"1 violation StatefulSet prod/mc scale-above-one"}},
		"no StatefulSet":                 {workload("Deployment", "mc", image), nil, []string{"1 violation Deployment dev/mc workload-kind"}},
		"old version of a kind":          {strings.Replace(workload("Deployment", "mc", image), "apps/v1", "apps/v1beta2", 1), nil, []string{"1 violation Deployment dev/mc workload-kind"}},
		"autoscaler":                     {statefulSet("mc", "") + hpa, nil, []string{"1 passed StatefulSet default/mc ", "7 violation HorizontalPodAutoscaler default/x autoscaler"}},
		"generated names":                {strings.Repeat(strings.Replace(workload("Deployment", "x", image), "name: x", "generateName: x-", 1), 2), nil, []string{"1 violation Deployment dev/x- workload-kind", "6 violation Deployment dev/x- workload-kind"}},
		"policy that comes later":        {statefulSet("mc", "") + policy("{holder: {namespace: prod, name: mc}}"), nil, []string{"1 violation StatefulSet default/mc second-workload"}},
		"policy with a match of its own": {statefulSet("mc", "") + policy("{match: {images: [docker.io/library/nginx], commands: []}}") + workload("Deployment", "web", "nginx"), nil, []string{"12 violation Deployment dev/web workload-kind"}},
		"policy that warns":              {policy("{validationActions: [Warn]}") + workload("Deployment", "mc", image), nil, []string{"6 warning Deployment dev/mc workload-kind"}},
		"policy with an exception":       {policy("{exceptions: [{namespace: dev, name: mc, reason: move, expires: \"2026-03-02T00:00:00Z\"}]}") + workload("Deployment", "mc", image), nil, []string{"6 passed Deployment dev/mc "}},
		"expired exception":              {policy("{exceptions: [{namespace: dev, name: mc, reason: move, expires: \"2026-02-02T00:00:00Z\"}]}") + workload("Deployment", "mc", image), nil, []string{"6 violation Deployment dev/mc workload-kind"}},
		"status of a policy among them":  {policy("{}") + strings.Replace(policy("{}"), "spec: {}", "status: {holder: {namespace: a, name: b, uid: c, phase: Bound}}", 1), nil, nil},
		"misspelt policy":                {policy("{holders: {}}") + statefulSet("mc", ""), nil, []string{"6 passed StatefulSet default/mc ", `1 fault: cannot read this SingletonPolicy: unknown field "spec.holders"`}},
		"two policies":                   {policy("{}") + strings.Replace(policy("{match: {images: [docker.io/library/nginx], commands: []}}"), "name: metacontroller", "name: web", 1) + statefulSet("mc", "") + workload("StatefulSet", "web", "nginx") + workload("StatefulSet", "web2", "nginx"), nil, []string{"11 passed StatefulSet default/mc ", "17 passed StatefulSet dev/web ", "22 violation StatefulSet dev/web2 second-workload"}},
		"custom kind, by its CRD":        {clone + policy("{match: {workloads: [{group: example.com, resource: setz}]}}") + crd, nil, []string{"1 violation CloneSet default/c workload-kind"}},
		"custom kind, guessed":           {clone + policy("{match: {workloads: [{group: example.com, resource: clonesets}]}}"), nil, []string{"1 violation CloneSet default/c workload-kind"}},
		"custom kind that is not listed": {clone, nil, nil},
		"shards":                         {policy("{mode: Sharded}") + strings.ReplaceAll(statefulSet("a", "")+statefulSet("b", ""), image+`"`, image+`", args: ["--target-label-selector=team=a"]`), nil, []string{"6 passed StatefulSet default/a ", "12 violation StatefulSet default/b shard-overlap"}},
		"shards have no one holder":      {policy("{mode: Sharded}"), held, []string{`error: cannot take prod/mc for the holder: SingletonPolicy "metacontroller" is Sharded, which has a holder for each shard`}},
		"pattern that cannot be used":    {policy("{match: {images: [\"[\"]}}"), nil, []string{`error: cannot judge by SingletonPolicy "metacontroller": cannot compile match.images[0] "[": not a pattern of a repository, write it like "ghcr.io/metacontroller/metacontroller" or "**/metacontroller/metacontroller", without port, tag and digest`}},
		"wrong type":                     {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: x}\nspec: {replicas: two, template: {}}\n", nil, []string{"1 fault: cannot read this object: spec.replicas: json: cannot unmarshal string into Go value of type int64"}},
		"hostile name":                   {workload("Deployment", "\"a\\n\\e[31m\\u202eb\"", image), nil, []string{"1 violation Deployment dev/a\n\x1b[31m\u202eb workload-kind"}},
	} {
		t.Run(name, func(t *testing.T) {
			got, _ := run(t, test.content, test.edit)
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPolicyWithStatus(t *testing.T) {
	exported := &guardv1alpha1.SingletonPolicy{}
	exported.Name = "metacontroller"
	exported.Status.Holder = &guardv1alpha1.Holder{Namespace: "prod", Name: "mc", UID: "u1", Phase: guardv1alpha1.HolderBound}
	given := func(r *Request) { r.Policy = exported }
	got, _ := run(t, statefulSet("mc, namespace: prod", "")+policy("{validationActions: [Warn]}")+statefulSet("mc", ""), given)
	if diff := cmp.Diff([]string{"1 passed StatefulSet prod/mc ", "12 violation StatefulSet default/mc second-workload"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestFormats prints one report in every format, over text from manifests that
// no terminal and no reader should see as it is.
func TestFormats(t *testing.T) {
	suspect := "apiVersion: v1\nkind: Pod\nmetadata: {name: s, namespace: dev}\nspec: {containers: [{name: main, image: private/tool, args: [--client-go-qps=100]}]}\n---\n"
	content := statefulSet("mc", "") + workload("Deployment", "\"a\\n\\e[31m<b>\\u202e\"", image) + suspect + "kind: [\n---\n" + workload("Deployment", "web", "nginx")
	_, report := run(t, content, nil)
	report.Version = "v0"
	for format, extension := range map[finding.Format]string{finding.Text: "txt", finding.JSON: "json", finding.SARIF: "sarif", finding.JUnit: "xml"} {
		var b bytes.Buffer
		if err := finding.Write(&b, format, report, finding.Style{Verbose: true}); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", "report."+extension)
		if *update {
			if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), b.String()); diff != "" {
			t.Errorf("%s: %s (go test -update writes it again)", format, diff)
		}
		if format != finding.JSON && format != finding.SARIF && strings.ContainsAny(b.String(), "\x1b\u202e\r") {
			t.Errorf("%s: has raw control characters", format)
		}
	}
}
