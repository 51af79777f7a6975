package scan

import (
	"context"
	"reflect"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/inspect"
)

// reportKind is the ClusterReport of the OpenReports API:
// https://github.com/openreports/reports-api
var reportKind = schema.GroupVersionKind{Group: "openreports.io", Version: "v1alpha1", Kind: "ClusterReport"}

const (
	// FieldManager owns what the guard applies.
	FieldManager = "metacontroller-guard"
	// reportPrefix begins the name of a policy's report.
	reportPrefix = "singletonpolicy-"
	// reportSource is the source of the report and of each of its results.
	reportSource = "metacontroller-guard"
	// reportCategory is the category of each result.
	reportCategory = "singleton"
	// reapply is how often a report is applied that has not changed, so that one
	// that was deleted comes back, and an API that was installed is found.
	reapply = time.Minute
)

// Results of the OpenReports API.
const (
	resultPass = "pass"
	resultFail = "fail"
	resultWarn = "warn"
)

// report writes the ClusterReport of a policy where that API is served.
type report struct {
	writer Writer
	mapper meta.RESTMapper
	// last is what was applied, and at when.
	last *unstructured.Unstructured
	at   time.Time
	// failed is the last error, so that it is logged once.
	failed string
}

// write applies the report. A report that cannot be written must not keep the
// status from being written, so an error is only logged.
func (r *report) write(ctx context.Context, policy *guardv1alpha1.SingletonPolicy, findings []guardv1alpha1.Finding, now time.Time) {
	if policy == nil {
		return
	}
	want := reportOf(policy, findings)
	if now.Sub(r.at) < reapply && (r.last == nil || reflect.DeepEqual(want.Object, r.last.Object)) {
		return
	}
	r.at = now
	if _, err := r.mapper.RESTMapping(reportKind.GroupKind(), reportKind.Version); err != nil {
		r.last = nil
		return
	}
	applied := client.ApplyConfigurationFromUnstructured(want.DeepCopy())
	err := r.writer.Apply(ctx, applied, client.FieldOwner(FieldManager), client.ForceOwnership)
	switch {
	case err == nil:
		r.last, r.failed = want, ""
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		r.last = nil // The API is not served any more.
	case err.Error() != r.failed:
		r.failed = err.Error()
		log.FromContext(ctx).Error(err, "Cannot write the ClusterReport")
	}
}

// reportOf is the report about a policy: one result for each finding, or one
// that passes. It has only what the guard says, and its times are those of the
// findings, so that it does not change while they do not.
func reportOf(policy *guardv1alpha1.SingletonPolicy, findings []guardv1alpha1.Finding) *unstructured.Unstructured {
	counts := map[string]int64{resultPass: 0, resultFail: 0, resultWarn: 0, "error": 0, "skip": 0}
	var results []any
	add := func(fields map[string]any) {
		counts[fields["result"].(string)]++
		fields["source"], fields["category"], fields["policy"], fields["scored"] = reportSource, reportCategory, policy.Name, fields["result"] != resultWarn
		results = append(results, fields)
	}
	for _, f := range findings {
		outcome := resultWarn
		if id := inspect.ID(f.ID); id.Violation() || id.Drift() {
			outcome = resultFail
		}
		subject := map[string]any{"kind": f.Object.Kind, "name": f.Object.Name}
		for key, value := range map[string]string{"apiVersion": f.Object.APIVersion, "namespace": f.Object.Namespace, "uid": string(f.Object.UID), "fieldPath": f.Path} {
			if value != "" {
				subject[key] = value
			}
		}
		add(map[string]any{
			"rule": f.ID, "severity": f.Severity, "result": outcome, "message": f.Message,
			"resources":  []any{subject},
			"timestamp":  map[string]any{"seconds": f.Since.Unix(), "nanos": int64(0)},
			"properties": map[string]any{"fix": f.Fix},
		})
	}
	if len(results) == 0 {
		add(map[string]any{"rule": "at-most-one", "result": resultPass, "message": "at most one instance is there, and the guard's objects are as rendered"})
	}
	summary := map[string]any{}
	for key, count := range counts {
		summary[key] = count
	}
	object := &unstructured.Unstructured{Object: map[string]any{
		"source":  reportSource,
		"scope":   map[string]any{"apiVersion": guardv1alpha1.GroupVersion.String(), "kind": guardv1alpha1.SingletonPolicyKind, "name": policy.Name, "uid": string(policy.UID)},
		"summary": summary,
		"results": results,
	}}
	object.SetGroupVersionKind(reportKind)
	object.SetName(reportPrefix + policy.Name)
	// It goes with the policy.
	object.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: guardv1alpha1.GroupVersion.String(), Kind: guardv1alpha1.SingletonPolicyKind, Name: policy.Name, UID: policy.UID,
	}})
	return object
}
