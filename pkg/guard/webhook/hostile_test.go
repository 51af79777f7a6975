package webhook

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
)

// createOf is a review of a create of that object.
func createOf(resource, object string) string {
	group := "apps"
	if resource == "pods" {
		group = ""
	}
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"r1","operation":"CREATE","namespace":"prod","name":"mc",
		"kind":{"group":%q,"version":"v1","kind":"X"},"resource":{"group":%q,"version":"v1","resource":%q},"object":%s}}`, group, group, resource, object)
}

const (
	instanceContainer = `{"name":"m","image":"ghcr.io/metacontroller/metacontroller:v4"}`
	strangerContainer = `{"name":"m","image":"nginx","command":["sh","-c","echo"],"args":["a","b"],"env":[{"name":"A","value":"b"}]}`
)

// TestLargeObjects judges the largest objects that etcd keeps, and more
// containers than any Pod has, as it judges small ones.
func TestLargeObjects(t *testing.T) {
	held := stored()
	held.Status.Holder = &guardv1alpha1.Holder{Namespace: "other", Name: "mc", UID: "u1", Phase: guardv1alpha1.HolderBound, Epoch: 1}
	large := strings.Repeat("x", 3<<19) // 1.5 MiB
	containers := strings.TrimSuffix(strings.Repeat(strangerContainer+",", 10_000), ",")
	tests := map[string]struct {
		body    string
		allowed bool
	}{
		"1.5 MiB, a stranger":                {createOf("deployments", `{"metadata":{"name":"x","annotations":{"a":"`+large+`"}},"spec":{"template":{"spec":{"containers":[`+strangerContainer+`]}}}}`), true},
		"1.5 MiB, an instance":               {createOf("deployments", `{"metadata":{"name":"x","annotations":{"a":"`+large+`"}},"spec":{"template":{"spec":{"containers":[`+instanceContainer+`]}}}}`), false},
		"a script of 1.5 MiB":                {createOf("pods", `{"metadata":{"name":"x"},"spec":{"containers":[{"name":"m","image":"nginx","args":["`+large+`"]}]}}`), true},
		"10000 containers":                   {createOf("pods", `{"metadata":{"name":"x"},"spec":{"containers":[`+containers+`]}}`), true},
		"10000 containers, the last is one":  {createOf("pods", `{"metadata":{"name":"x"},"spec":{"containers":[`+containers+`,`+instanceContainer+`]}}`), false},
		"10000 instances":                    {createOf("pods", `{"metadata":{"name":"x"},"spec":{"containers":[`+strings.TrimSuffix(strings.Repeat(instanceContainer+",", 10_000), ",")+`]}}`), false},
		"10000 init and ephemeral instances": {createOf("pods", `{"metadata":{"name":"x"},"spec":{"initContainers":[`+containers+`],"ephemeralContainers":[`+containers+`,`+instanceContainer+`]}}`), false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(&faultySlot{policy: held})
			start := time.Now()
			response := answer(t, post(r, Path, test.body))
			t.Logf("%d bytes were judged in %s", len(test.body), time.Since(start).Round(time.Millisecond))
			if response.Allowed != test.allowed {
				t.Fatalf("got %+v", response)
			}
			if !response.Allowed && len(response.Result.Message) > 2000 {
				t.Errorf("the message has %d bytes", len(response.Result.Message))
			}
		})
	}
}

// TestHostileReviews holds every review that no API server sends to a 4xx or a
// refusal, without a record where it is no review at all.
func TestHostileReviews(t *testing.T) {
	spec := func(spec string) string {
		return createOf("statefulsets", `{"metadata":{"name":"mc"},"spec":`+spec+`}`)
	}
	in := func(fields string) string {
		return spec(`{` + fields + `"template":{"spec":{"containers":[` + instanceContainer + `]}}}`)
	}
	deletion := func(options string) string {
		body := strings.Replace(createOf("pods", `{"metadata":{"name":"mc-0"},"spec":{"nodeName":"n","containers":[`+instanceContainer+`]}}`), "CREATE", "DELETE", 1)
		return strings.Replace(body, `"object":{`, `"options":`+options+`,"oldObject":{`, 1)
	}
	malformed := map[string]string{
		"nested without end":             createOf("pods", strings.Repeat(`{"a":`, 100_000)+"1"+strings.Repeat("}", 100_000)),
		"lists without end":              createOf("pods", strings.Repeat("[", 100_000)),
		"a string as the object":         createOf("pods", `"{}"`),
		"a number as the object":         createOf("pods", `7`),
		"a container that is a number":   spec(`{"template":{"spec":{"containers":[7]}}}`),
		"an image that is a list":        spec(`{"template":{"spec":{"containers":[{"name":"m","image":[]}]}}}`),
		"replicas beyond every number":   in(`"replicas":99999999999999999999,`),
		"replicas that are a fraction":   in(`"replicas":1.5,`),
		"replicas that are a word":       in(`"replicas":"1",`),
		"ordinals that are a list":       in(`"ordinals":[],`),
		"a start that is a word":         in(`"ordinals":{"start":"1"},`),
		"a grace period that is a word":  deletion(`{"gracePeriodSeconds":"0"}`),
		"options that are a list":        deletion(`[0]`),
		"an owner that is a word":        createOf("pods", `{"metadata":{"ownerReferences":"me"},"spec":{"containers":[`+instanceContainer+`]}}`),
		"a response, not a request":      `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","response":{"uid":"r1","allowed":true}}`,
		"keys in capitals":               strings.Replace(firstStatefulSet, `"request"`, `"Request"`, 1),
		"two documents":                  firstStatefulSet + firstStatefulSet,
		"YAML":                           "apiVersion: admission.k8s.io/v1\nkind: AdmissionReview\n",
		"compressed":                     "\x1f\x8b\x08\x00\x00\x00\x00\x00",
		"v2":                             strings.Replace(firstStatefulSet, "admission.k8s.io/v1", "admission.k8s.io/v2", 1),
		"a request that is a list":       `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":[]}`,
		"a uid that is a number":         strings.Replace(firstStatefulSet, `"uid":"r1"`, `"uid":1`, 1),
		"a user that is a list":          strings.Replace(firstStatefulSet, `"uid":"r1"`, `"uid":"r1","userInfo":[]`, 1),
		"an operation that is an object": strings.Replace(firstStatefulSet, `"CREATE"`, `{}`, 1),
	}
	for name, body := range malformed {
		t.Run(name, func(t *testing.T) {
			r := newRig(&faultySlot{policy: stored()})
			recorder := post(r, Path, body)
			content, _ := io.ReadAll(recorder.Body)
			if recorder.Code != http.StatusBadRequest {
				t.Fatalf("got %d %.200s", recorder.Code, content)
			}
			if len(content) > 1024 {
				t.Errorf("the answer has %d bytes", len(content))
			}
			if len(r.outcomes) != 0 {
				t.Fatalf("left a record: %+v", r.outcomes)
			}
		})
	}
	held := stored()
	held.Status.Holder = &guardv1alpha1.Holder{Namespace: "other", Name: "mc", UID: "u1", Phase: guardv1alpha1.HolderBound, Epoch: 1}
	refused := map[string]string{
		"negative replicas":       in(`"replicas":-1,`),
		"the same key twice":      spec(`{"template":{"spec":{"containers":[` + strangerContainer + `],"containers":[` + instanceContainer + `]}}}`),
		"unknown fields":          in(`"x":{"y":[1,2,{"z":null}]},`),
		"names with odd letters":  strings.ReplaceAll(in(""), `"name":"mc"`, `"name":"\u0000\n\u202e"`),
		"a namespace of 1 MiB":    strings.Replace(in(""), `"namespace":"prod"`, `"namespace":"`+strings.Repeat("n", 1<<20)+`"`, 1),
		"10000 groups of a user":  strings.Replace(in(""), `"uid":"r1"`, `"uid":"r1","userInfo":{"groups":[`+strings.Repeat(`"g",`, 9_999)+`"g"]}`, 1),
		"an unknown subresource?": strings.Replace(in(""), `"operation"`, `"subResource":"","operation"`, 1),
	}
	for name, body := range refused {
		t.Run(name, func(t *testing.T) {
			response := answer(t, post(newRig(&faultySlot{policy: held}), Path, body))
			if response.Allowed {
				t.Fatalf("let in: %+v", response)
			}
			if len(response.Result.Message) > 4096 {
				t.Errorf("the message has %d bytes", len(response.Result.Message))
			}
		})
	}
}

// TestForcedDelete reads the node only for a Pod that it could save.
func TestForcedDelete(t *testing.T) {
	held := stored()
	held.Status.Holder = &guardv1alpha1.Holder{Namespace: "prod", Name: "mc", UID: "u1", Phase: guardv1alpha1.HolderBound, Epoch: 1}
	body := func(spec string) string {
		review := strings.Replace(createOf("pods", `{"metadata":{"name":"mc-0","namespace":"prod"},"spec":{"nodeName":"n","containers":[`+spec+`]}}`), "CREATE", "DELETE", 1)
		return strings.Replace(review, `"name":"mc",`, `"name":"mc-0","options":{"gracePeriodSeconds":0},`, 1)
	}
	deletes := func(spec string) string { return strings.Replace(body(spec), `"object":{`, `"oldObject":{`, 1) }
	r := newRig(&faultySlot{policy: held})
	if response := answer(t, post(r, Path, deletes(instanceContainer))); response.Allowed || !strings.Contains(response.Result.Message, "force-delete: ") {
		t.Errorf("a Pod on a node that nobody can read: %+v", response)
	}
	if response := answer(t, post(r, Path, deletes(strangerContainer))); !response.Allowed {
		t.Errorf("a stranger: %+v", response)
	}
	if len(r.outcomes) != 1 || r.outcomes[0].Attempt.Removal.NodeState != attempt.NodeUnknown {
		t.Errorf("outcomes are %+v", r.outcomes)
	}
}
