package attempt

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

const (
	instance = `{"name":"main","image":"ghcr.io/metacontroller/metacontroller:v4"}`
	stranger = `{"name":"main","image":"nginx"}`
)

func signature(t testing.TB) *identify.Signature {
	t.Helper()
	signature, err := identify.Compile(guardv1alpha1.DefaultMatch())
	if err != nil {
		t.Fatal(err)
	}
	return signature
}

func review(t testing.TB, edit func(*admissionv1.AdmissionRequest)) []byte {
	t.Helper()
	request := &admissionv1.AdmissionRequest{UID: "u", Operation: admissionv1.Create, Namespace: "ns"}
	request.Resource.Group, request.Resource.Version, request.Resource.Resource = "apps", "v1", "statefulsets"
	request.Kind.Group, request.Kind.Version, request.Kind.Kind = "apps", "v1", "StatefulSet"
	edit(request)
	review := admissionv1.AdmissionReview{Request: request}
	review.APIVersion, review.Kind = reviewAPIVersion, reviewKind
	body, err := json.Marshal(review)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func resource(request *admissionv1.AdmissionRequest, group, name string) {
	request.Resource.Group, request.Resource.Resource = group, name
}

func workload(spec string) []byte {
	return []byte(`{"metadata":{"name":"x","namespace":"ns","uid":"o"},"spec":` + spec + `}`)
}

func reduce(t *testing.T, edit func(*admissionv1.AdmissionRequest), customs ...guardv1alpha1.WorkloadRule) (Attempt, error) {
	t.Helper()
	request, err := Parse(review(t, edit))
	if err != nil {
		return Attempt{}, err
	}
	return From(request, signature(t), customs)
}

func TestShapes(t *testing.T) {
	in := func(path string) string { return strings.Replace(path, "POD", `{"containers":[`+instance+`]}`, 1) }
	custom := guardv1alpha1.WorkloadRule{Group: "example.com", Resource: "things", PodTemplatePath: "spec.pod", ReplicasPath: "spec.size"}
	tests := map[string]struct {
		group, resource, spec string
		workload              Workload
		containers            int
		replicas              Replicas
	}{
		"StatefulSet, nil replicas are one":   {"apps", "statefulsets", in(`{"template":{"spec":POD}}`), WorkloadStatefulSet, 1, Replicas{Count: 1}},
		"null replicas are one":               {"apps", "statefulsets", in(`{"replicas":null,"template":{"spec":POD}}`), WorkloadStatefulSet, 1, Replicas{Count: 1}},
		"zero replicas are zero":              {"apps", "deployments", in(`{"replicas":0,"template":{"spec":POD}}`), WorkloadDeployment, 1, Replicas{}},
		"ReplicaSet":                          {"apps", "replicasets", in(`{"replicas":3,"template":{"spec":POD}}`), WorkloadReplicaSet, 1, Replicas{Count: 3}},
		"DaemonSet is unbounded":              {"apps", "daemonsets", in(`{"template":{"spec":POD}}`), WorkloadDaemonSet, 1, Replicas{Count: 1, Unbounded: true}},
		"Job, parallelism":                    {"batch", "jobs", in(`{"parallelism":2,"template":{"spec":POD}}`), WorkloadJob, 1, Replicas{Count: 2}},
		"CronJob":                             {"batch", "cronjobs", in(`{"jobTemplate":{"spec":{"parallelism":4,"template":{"spec":POD}}}}`), WorkloadCronJob, 1, Replicas{Count: 4}},
		"ReplicationController":               {"", "replicationcontrollers", in(`{"template":{"spec":POD}}`), WorkloadReplicationController, 1, Replicas{Count: 1}},
		"Pod":                                 {"", "pods", in("POD"), WorkloadPod, 1, Replicas{Count: 1}},
		"no template":                         {"apps", "deployments", `{}`, WorkloadDeployment, 0, Replicas{Count: 1}},
		"harmless template":                   {"apps", "deployments", `{"template":{"spec":{"containers":[` + stranger + `]}}}`, WorkloadDeployment, 0, Replicas{Count: 1}},
		"listed custom kind":                  {"example.com", "things", in(`{"size":5,"pod":{"spec":POD}}`), WorkloadCustom, 1, Replicas{Count: 5}},
		"listed custom kind of another shape": {"example.com", "things", `{"size":"large","pod":7}`, WorkloadCustom, 0, Replicas{}},
		"unknown kind":                        {"other.com", "things", in(`{"template":{"spec":POD}}`), WorkloadNone, 0, Replicas{}},
		"init, sidecar and ephemeral": {"", "pods", `{"containers":[` + stranger + `],"initContainers":[` + instance + `,{"name":"s","image":"metacontroller/metacontroller","restartPolicy":"Always"}],"ephemeralContainers":[` + instance + `]}`,
			WorkloadPod, 3, Replicas{Count: 1}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := reduce(t, func(request *admissionv1.AdmissionRequest) {
				resource(request, test.group, test.resource)
				request.Object.Raw = workload(test.spec)
			}, custom)
			if err != nil {
				t.Fatal(err)
			}
			if got.Workload != test.workload || len(got.New.Containers) != test.containers || got.New.Replicas != test.replicas {
				t.Fatalf("got %s, %d containers, %+v", got.Workload, len(got.New.Containers), got.New.Replicas)
			}
			if got.Name != "x" || got.ObjectUID != "o" || !got.New.Present || got.Old.Present {
				t.Fatalf("got %+v", got)
			}
		})
	}
}

func TestScale(t *testing.T) {
	got, err := reduce(t, func(request *admissionv1.AdmissionRequest) {
		request.Operation, request.SubResource, request.Name = admissionv1.Update, "scale", "x"
		request.Object.Raw = []byte(`{"metadata":{"name":"x","namespace":"ns"},"spec":{"replicas":2}}`)
		// An int32 of zero is left out of a Scale.
		request.OldObject.Raw = []byte(`{"metadata":{"name":"x","namespace":"ns","uid":"o"},"spec":{}}`)
	})
	if err != nil {
		t.Fatal(err)
	}
	if !got.Scale() || !got.Raises() || got.Old.Replicas.Count != 0 || got.New.Replicas.Count != 2 || got.ObjectUID != "o" || got.New.Instance() {
		t.Fatalf("got %+v", got)
	}
	got, err = got.WithTarget(workload(`{"template":{"spec":{"containers":[`+instance+`]}}}`), signature(t), nil)
	if err != nil || !got.New.Instance() || got.New.Replicas.Count != 2 {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestIdentity(t *testing.T) {
	dry := true
	got, err := reduce(t, func(request *admissionv1.AdmissionRequest) {
		resource(request, "", "pods")
		request.Operation, request.DryRun = admissionv1.Update, &dry
		request.UserInfo.Username, request.UserInfo.Groups = "me", []string{"g"}
		request.Object.Raw = []byte(`{"metadata":{"name":"p-1","generateName":"p-","ownerReferences":[
			{"apiVersion":"v1","kind":"Other","name":"o","uid":"1"},
			{"apiVersion":"apps/v1","kind":"StatefulSet","name":"p","uid":"2","controller":true}]},"spec":{"nodeName":"n","containers":[` + instance + `]}}`)
		request.OldObject.Raw = []byte(`{"metadata":{"name":"p-1","uid":"o"},"spec":{"containers":[` + instance + `]}}`)
	})
	if err != nil {
		t.Fatal(err)
	}
	owner := &Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "p", UID: "2"}
	if diff := cmp.Diff(owner, got.Owner); diff != "" {
		t.Fatal(diff)
	}
	if got.Name != "p-1" || got.GenerateName != "p-" || got.ObjectUID != "o" || !got.DryRun || !got.PodSpecChanged || got.User.Name != "me" {
		t.Fatalf("got %+v", got)
	}
}

func TestPodSpecChanged(t *testing.T) {
	tests := map[string]struct {
		before, after string
		want          bool
	}{
		"same":                      {`{"template":{"spec":{"containers":[` + instance + `]}}}`, `{"template":{"spec":{"containers":[` + instance + `]}}}`, false},
		"labels only":               {`{"template":{"spec":{"containers":[` + instance + `]}}}`, `{"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[` + instance + `]}}}`, false},
		"an empty list is none":     {`{"template":{"spec":{"containers":[` + instance + `]}}}`, `{"template":{"spec":{"volumes":[],"containers":[` + instance + `]}}}`, false},
		"replicas only":             {`{"replicas":1,"template":{"spec":{"containers":[` + instance + `]}}}`, `{"replicas":2,"template":{"spec":{"containers":[` + instance + `]}}}`, false},
		"image":                     {`{"template":{"spec":{"containers":[` + stranger + `]}}}`, `{"template":{"spec":{"containers":[` + instance + `]}}}`, true},
		"a template where was none": {`{}`, `{"template":{"spec":{"containers":[` + instance + `]}}}`, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := reduce(t, func(request *admissionv1.AdmissionRequest) {
				request.Operation = admissionv1.Update
				request.Object.Raw, request.OldObject.Raw = workload(test.after), workload(test.before)
			})
			if err != nil {
				t.Fatal(err)
			}
			if got.PodSpecChanged != test.want {
				t.Fatalf("PodSpecChanged is %v", got.PodSpecChanged)
			}
		})
	}
}

func TestMalformed(t *testing.T) {
	object := workload(`{}`)
	edited := func(edit func(*admissionv1.AdmissionRequest)) []byte {
		return review(t, func(request *admissionv1.AdmissionRequest) {
			request.Object.Raw = object
			edit(request)
		})
	}
	tests := map[string]struct {
		body []byte
		want Fault
	}{
		"nothing":          {nil, FaultEmpty},
		"not JSON":         {[]byte(`{"kind":`), FaultNotJSON},
		"more than JSON":   {append(edited(func(*admissionv1.AdmissionRequest) {}), '{'), FaultNotJSON},
		"a list":           {[]byte(`[]`), FaultNotJSON},
		"null":             {[]byte(`null`), FaultWrongVersion},
		"empty object":     {[]byte(`{}`), FaultWrongVersion},
		"v1beta1":          {[]byte(`{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"u"}}`), FaultWrongVersion},
		"another kind":     {[]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"Pod"}`), FaultWrongVersion},
		"no request":       {[]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`), FaultNoRequest},
		"null request":     {[]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":null}`), FaultNoRequest},
		"no uid":           {edited(func(r *admissionv1.AdmissionRequest) { r.UID = "" }), FaultNoUID},
		"no resource":      {edited(func(r *admissionv1.AdmissionRequest) { r.Resource.Resource = "" }), FaultNoResource},
		"no operation":     {edited(func(r *admissionv1.AdmissionRequest) { r.Operation = "" }), FaultOperation},
		"odd operation":    {edited(func(r *admissionv1.AdmissionRequest) { r.Operation = "create" }), FaultOperation},
		"no object":        {edited(func(r *admissionv1.AdmissionRequest) { r.Object.Raw = nil }), FaultNoObject},
		"null object":      {edited(func(r *admissionv1.AdmissionRequest) { r.Object.Raw = []byte("null") }), FaultNoObject},
		"update, no old":   {edited(func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update }), FaultNoObject},
		"delete, no old":   {edited(func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Delete }), FaultNoObject},
		"object is a list": {edited(func(r *admissionv1.AdmissionRequest) { r.Object.Raw = []byte("[]") }), FaultBadObject},
		"odd metadata":     {edited(func(r *admissionv1.AdmissionRequest) { r.Object.Raw = []byte(`{"metadata":[]}`) }), FaultBadObject},
		"odd spec":         {edited(func(r *admissionv1.AdmissionRequest) { r.Object.Raw = []byte(`{"spec":7}`) }), FaultBadObject},
		"odd containers": {edited(func(r *admissionv1.AdmissionRequest) {
			r.Object.Raw = workload(`{"template":{"spec":{"containers":{}}}}`)
		}), FaultBadObject},
		"odd replicas": {edited(func(r *admissionv1.AdmissionRequest) { r.Object.Raw = workload(`{"replicas":"2"}`) }), FaultBadObject},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			request, err := Parse(test.body)
			if err == nil {
				_, err = From(request, signature(t), nil)
			}
			malformed := &MalformedError{}
			if !errors.As(err, &malformed) || malformed.Fault != test.want {
				t.Fatalf("got %v, want %q", err, test.want)
			}
		})
	}
}

// FuzzAttempt looks for panics and for errors that are not typed.
func FuzzAttempt(f *testing.F) {
	for _, resourceName := range []string{"statefulsets", "deployments", "daemonsets"} {
		f.Add(review(f, func(request *admissionv1.AdmissionRequest) {
			request.Resource.Resource = resourceName
			request.Object.Raw = workload(`{"replicas":2,"template":{"spec":{"containers":[` + instance + `]}}}`)
		}))
	}
	f.Add(review(f, func(request *admissionv1.AdmissionRequest) {
		request.Operation, request.SubResource = admissionv1.Update, "scale"
		request.Object.Raw, request.OldObject.Raw = workload(`{"replicas":2}`), workload(`{}`)
	}))
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CONNECT","resource":{"resource":"pods"}}}`))
	compiled := signature(f)
	customs := []guardv1alpha1.WorkloadRule{{Group: "example.com", Resource: "things", PodTemplatePath: "spec.template", ReplicasPath: "spec.replicas"}}
	f.Fuzz(func(t *testing.T, body []byte) {
		request, err := Parse(body)
		if err == nil {
			var a Attempt
			if a, err = From(request, compiled, customs); err == nil {
				_, err = a.WithTarget(request.Object.Raw, compiled, customs)
			}
		}
		if err != nil && !IsMalformed(err) {
			t.Fatalf("error is not typed: %v", err)
		}
	})
}
