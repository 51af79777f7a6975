package attempt

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
)

func TestRemoval(t *testing.T) {
	pod := func(spec, rest string) []byte {
		return []byte(`{"metadata":{"name":"mc-0"` + rest + `,"spec":{"nodeName":"n1","containers":[` + instance + `]` + spec + `}}`)
	}
	running := `},"status":{"phase":"Running","containerStatuses":[{"name":"main","state":{"running":{}}}]}`
	terminated := `},"status":{"phase":"Running","containerStatuses":[{"name":"main","state":{"terminated":{"exitCode":0}}}]}`
	tests := map[string]struct {
		object  []byte
		options string
		want    Removal
	}{
		"with grace":               {pod("", running), `{}`, Removal{Node: "n1"}},
		"forced":                   {pod("", running), `{"gracePeriodSeconds":0}`, Removal{Node: "n1", Forced: true}},
		"no options":               {pod("", running), ``, Removal{Node: "n1"}},
		"null options":             {pod("", running), `null`, Removal{Node: "n1"}},
		"a Pod without grace":      {pod(`,"terminationGracePeriodSeconds":0`, running), `{}`, Removal{Node: "n1", Forced: true}},
		"a grace of its own":       {pod(`,"terminationGracePeriodSeconds":0`, running), `{"gracePeriodSeconds":5}`, Removal{Node: "n1"}},
		"failed":                   {pod("", `},"status":{"phase":"Failed"}`), `{"gracePeriodSeconds":0}`, Removal{Node: "n1", Forced: true, Ended: true}},
		"succeeded":                {pod("", `},"status":{"phase":"Succeeded"}`), `{"gracePeriodSeconds":0}`, Removal{Node: "n1", Forced: true, Ended: true}},
		"no status":                {pod("", `}`), `{"gracePeriodSeconds":0}`, Removal{Node: "n1", Forced: true}},
		"terminated, to restart":   {pod("", terminated), `{"gracePeriodSeconds":0}`, Removal{Node: "n1", Forced: true}},
		"terminated while deleted": {pod("", `,"deletionTimestamp":"2026-01-01T00:00:00Z"`+terminated), `{"gracePeriodSeconds":0}`, Removal{Node: "n1", Forced: true, Ended: true}},
		"running while deleted":    {pod("", `,"deletionTimestamp":"2026-01-01T00:00:00Z"`+running), `{"gracePeriodSeconds":0}`, Removal{Node: "n1", Forced: true}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := reduce(t, func(request *admissionv1.AdmissionRequest) {
				resource(request, "", "pods")
				request.Operation, request.OldObject.Raw = admissionv1.Delete, test.object
				if test.options != "" {
					request.Options.Raw = []byte(test.options)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if got.Removal != test.want || !got.Old.Instance() || got.Name != "mc-0" {
				t.Errorf("got %+v, want %+v", got.Removal, test.want)
			}
		})
	}
	for name, options := range map[string]string{"a word": `{"gracePeriodSeconds":"0"}`, "a list": `[]`, "a fraction": `{"gracePeriodSeconds":0.5}`} {
		_, err := reduce(t, func(request *admissionv1.AdmissionRequest) {
			resource(request, "", "pods")
			request.Operation, request.OldObject.Raw, request.Options.Raw = admissionv1.Delete, pod("", running), []byte(options)
		})
		if !IsMalformed(err) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestAutoscaler(t *testing.T) {
	reduced := func(spec string) (Attempt, error) {
		return reduce(t, func(request *admissionv1.AdmissionRequest) {
			resource(request, "autoscaling", "horizontalpodautoscalers")
			request.Object.Raw = workload(spec)
		})
	}
	for name, test := range map[string]struct {
		spec string
		want *Target
		most int64
	}{
		"v1 and v2":    {`{"scaleTargetRef":{"apiVersion":"apps/v1","kind":"StatefulSet","name":"mc"},"maxReplicas":5}`, &Target{"apps", "StatefulSet", "mc"}, 5},
		"core":         {`{"scaleTargetRef":{"apiVersion":"v1","kind":"ReplicationController","name":"mc"},"maxReplicas":5}`, &Target{"", "ReplicationController", "mc"}, 5},
		"no target":    {`{}`, nil, 0},
		"null target":  {`{"scaleTargetRef":null,"maxReplicas":3}`, nil, 0},
		"empty target": {`{"scaleTargetRef":{}}`, &Target{}, 0},
	} {
		got, err := reduced(test.spec)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got.Workload != WorkloadAutoscaler || got.New.Instance() || got.New.Replicas.Count != test.most || (got.New.Target == nil) != (test.want == nil) ||
			test.want != nil && *got.New.Target != *test.want {
			t.Errorf("%s: got %+v", name, got.New)
		}
	}
	for _, spec := range []string{`{"scaleTargetRef":[]}`, `{"scaleTargetRef":{"kind":7}}`, `{"scaleTargetRef":{},"maxReplicas":"many"}`, `7`} {
		if _, err := reduced(spec); !IsMalformed(err) {
			t.Errorf("%s: got %v", spec, err)
		}
	}
	if !strings.Contains(WorkloadAutoscaler.String(), "Autoscaler") {
		t.Error(WorkloadAutoscaler)
	}
}
