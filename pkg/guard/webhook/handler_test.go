package webhook

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/claim"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

// faultySlot is a slot whose reads and claims fail as the test wants. The real
// one is tested against API servers.
type faultySlot struct {
	policy    *guardv1alpha1.SingletonPolicy
	readErr   error
	takeErr   error
	conflicts int
	hang      bool
	// mutex guards reads.
	mutex sync.Mutex
	reads int
}

func (s *faultySlot) Read(ctx context.Context) (*guardv1alpha1.SingletonPolicy, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.reads++
	if s.hang {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return s.policy, s.readErr
}

func (s *faultySlot) Take(_ context.Context, _ *guardv1alpha1.SingletonPolicy, _ *identify.Signature, want claim.Want) (decide.Claim, error) {
	if s.conflicts > 0 {
		s.conflicts--
		return decide.Claim{}, claim.ErrConflict
	}
	if s.takeErr != nil {
		return decide.Claim{}, s.takeErr
	}
	return decide.Claim{Result: decide.ClaimGranted, Holder: decide.Holder{State: decide.StateReserved, Identity: want.Identity, UID: string(want.UID)}}, nil
}

type noTargets struct{}

func (noTargets) Target(context.Context, attempt.Attempt) ([]byte, error) {
	return nil, errors.New("connection refused")
}

func (noTargets) NodeState(context.Context, string) (attempt.NodeState, error) {
	return attempt.NodeUnknown, errors.New("connection refused")
}

func stored() *guardv1alpha1.SingletonPolicy {
	return &guardv1alpha1.SingletonPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "metacontroller", UID: "p", Generation: 1},
		Spec:       guardv1alpha1.SingletonPolicySpec{Match: guardv1alpha1.DefaultMatch()},
	}
}

type rig struct {
	*Handler
	// mutex guards outcomes.
	mutex    sync.Mutex
	outcomes []Outcome
}

func newRig(slot Slot) *rig {
	r := &rig{}
	r.Handler = New(Deps{
		Policy: "metacontroller", Slot: slot, Targets: noTargets{}, Nodes: noTargets{}, Clock: clock.RealClock{},
		Record: func(o Outcome) string {
			r.mutex.Lock()
			defer r.mutex.Unlock()
			r.outcomes = append(r.outcomes, o)
			return o.ID
		},
	})
	return r
}

const firstStatefulSet = `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"r1","operation":"CREATE","namespace":"prod","name":"mc",
	"kind":{"group":"apps","version":"v1","kind":"StatefulSet"},"resource":{"group":"apps","version":"v1","resource":"statefulsets"},
	"object":{"metadata":{"name":"mc","namespace":"prod","uid":"u1"},"spec":{"template":{"spec":{"containers":[{"name":"m","image":"ghcr.io/metacontroller/metacontroller:v4"}]}}}}}}`

func post(h http.Handler, target, body string) *httptest.ResponseRecorder {
	request := httptest.NewRequest(http.MethodPost, target, strings.NewReader(body))
	request.Header.Set("Content-Type", "application/json; charset=utf-8")
	recorder := httptest.NewRecorder()
	h.ServeHTTP(recorder, request)
	return recorder
}

func answer(t *testing.T, recorder *httptest.ResponseRecorder) *admissionv1.AdmissionResponse {
	t.Helper()
	review := admissionv1.AdmissionReview{}
	if err := json.Unmarshal(recorder.Body.Bytes(), &review); err != nil || recorder.Code != http.StatusOK {
		t.Fatalf("%d %s: %v", recorder.Code, recorder.Body, err)
	}
	if review.APIVersion != "admission.k8s.io/v1" || review.Kind != "AdmissionReview" || review.Response == nil {
		t.Fatalf("got %s", recorder.Body)
	}
	return review.Response
}

func TestMalformedReviews(t *testing.T) {
	with := func(old, replacement string) string {
		body := strings.Replace(firstStatefulSet, old, replacement, 1)
		if body == firstStatefulSet {
			t.Fatalf("no %q in the review", old)
		}
		return body
	}
	tests := map[string]struct {
		body string
		want int
	}{
		"empty":            {"", http.StatusBadRequest},
		"not JSON":         {"{", http.StatusBadRequest},
		"null":             {"null", http.StatusBadRequest},
		"a list":           {"[]", http.StatusBadRequest},
		"trailing garbage": {firstStatefulSet + "x", http.StatusBadRequest},
		"v1beta1":          {with("admission.k8s.io/v1", "admission.k8s.io/v1beta1"), http.StatusBadRequest},
		"another kind":     {with(`"AdmissionReview"`, `"Pod"`), http.StatusBadRequest},
		"no request":       {`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, http.StatusBadRequest},
		"no uid":           {with(`"uid":"r1",`, ``), http.StatusBadRequest},
		"no operation":     {with(`"operation":"CREATE",`, ``), http.StatusBadRequest},
		"null object":      {with(`"object":{`, `"object":null,"x":{`), http.StatusBadRequest},
		"wrong type":       {with(`"containers":[`, `"containers":"","x":[`), http.StatusBadRequest},
		"update, no old":   {with(`CREATE`, `UPDATE`), http.StatusBadRequest},
		"oversized":        {`{"x":"` + strings.Repeat("x", MaxBody) + `"}`, http.StatusRequestEntityTooLarge},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			slot := &faultySlot{policy: stored()}
			r := newRig(slot)
			recorder := post(r, Path, test.body)
			if recorder.Code != test.want {
				t.Fatalf("got %d %s, want %d", recorder.Code, recorder.Body, test.want)
			}
			if len(r.outcomes) != 0 {
				t.Fatalf("left a record: %+v", r.outcomes)
			}
		})
	}
	r := newRig(&faultySlot{policy: stored()})
	for name, request := range map[string]*http.Request{
		"GET":          httptest.NewRequest(http.MethodGet, Path, nil),
		"content type": httptest.NewRequest(http.MethodPost, Path, strings.NewReader(firstStatefulSet)),
	} {
		recorder := httptest.NewRecorder()
		r.ServeHTTP(recorder, request)
		if recorder.Code < 400 || recorder.Code > 499 {
			t.Errorf("%s: got %d", name, recorder.Code)
		}
	}
}

func TestAnswers(t *testing.T) {
	heldBy := func(namespace string, actions ...guardv1alpha1.ValidationAction) *guardv1alpha1.SingletonPolicy {
		policy := stored()
		policy.Spec.ValidationActions = actions
		policy.Status.Holder = &guardv1alpha1.Holder{Namespace: namespace, Name: "mc", UID: "u1", Phase: guardv1alpha1.HolderBound, Epoch: 1}
		return policy
	}
	broken := stored()
	broken.Spec.Match = guardv1alpha1.Match{}
	tests := map[string]struct {
		slot    *faultySlot
		allowed bool
		says    string
		warns   bool
	}{
		"claims":                       {&faultySlot{policy: stored()}, true, "", false},
		"claims after conflicts":       {&faultySlot{policy: stored(), conflicts: 3}, true, "", false},
		"holder itself":                {&faultySlot{policy: heldBy("prod")}, true, "", false},
		"second":                       {&faultySlot{policy: heldBy("other")}, false, "second-workload: other/mc holds the slot", false},
		"second, warned":               {&faultySlot{policy: heldBy("other", guardv1alpha1.ActionWarn)}, true, "second-workload", true},
		"second, audited":              {&faultySlot{policy: heldBy("other", guardv1alpha1.ActionAudit)}, true, "", false},
		"no policy":                    {&faultySlot{}, false, "SingletonPolicy metacontroller does not exist", false},
		"policy cannot be read":        {&faultySlot{readErr: errors.New("etcd is gone")}, false, "cannot tell who holds the slot", false},
		"policy that cannot be used":   {&faultySlot{policy: broken}, false, "cannot tell who holds the slot", false},
		"claim cannot be written":      {&faultySlot{policy: stored(), takeErr: errors.New("forbidden")}, false, "cannot tell who holds the slot", false},
		"the read takes until the end": {&faultySlot{hang: true}, false, "cannot tell who holds the slot", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRig(test.slot)
			start := time.Now()
			response := answer(t, post(r, Path+"?timeout=1s", firstStatefulSet))
			if took := time.Since(start); took > time.Second {
				t.Fatalf("answered after %s, the API server waits 1s", took)
			}
			if response.UID != "r1" || response.Allowed != test.allowed {
				t.Fatalf("got %+v", response)
			}
			message := ""
			if response.Result != nil {
				message = response.Result.Message
			}
			if test.warns {
				message = strings.Join(response.Warnings, "")
			} else if len(response.Warnings) > 0 {
				t.Fatalf("warns %q", response.Warnings)
			}
			if !strings.Contains(message, test.says) || test.says == "" && message != "" {
				t.Fatalf("says %q", message)
			}
			if len(r.outcomes) != 1 || r.outcomes[0].ID == "" || response.AuditAnnotations[AnnotationDecisionID] != r.outcomes[0].ID {
				t.Fatalf("outcomes %+v, annotations %v", r.outcomes, response.AuditAnnotations)
			}
		})
	}
}

// TestUpdateStrategies changes the holder's update strategy to one that is off by
// default in this version of Kubernetes, and to one that no version has yet. Both
// go through; what they make is judged as any other Pod.
func TestUpdateStrategies(t *testing.T) {
	policy := stored()
	policy.Status.Holder = &guardv1alpha1.Holder{Namespace: "prod", Name: "mc", UID: "u1", Phase: guardv1alpha1.HolderBound, Epoch: 1}
	review := func(operation, resource, kind, group, user, objects string) string {
		return `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"r1","operation":"` + operation + `","namespace":"prod",
			"kind":{"group":"` + group + `","version":"v1","kind":"` + kind + `"},"resource":{"group":"` + group + `","version":"v1","resource":"` + resource + `"},
			"userInfo":{"username":"` + user + `"},` + objects + `}}`
	}
	const containers = `"containers":[{"name":"m","image":"ghcr.io/metacontroller/metacontroller:%s"}]`
	set := func(namespace, name, uid, strategy, tag string) string {
		return `{"apiVersion":"apps/v1","kind":"StatefulSet","metadata":{"name":"` + name + `","namespace":"` + namespace + `","uid":"` + uid + `"},
			"spec":{"replicas":1,"updateStrategy":` + strategy + `,"template":{"spec":{` + strings.Replace(containers, "%s", tag, 1) + `}}}}`
	}
	pod := func(name string) string {
		return `"name":"` + name + `","object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"` + name + `","namespace":"prod","ownerReferences":[
			{"apiVersion":"apps/v1","kind":"StatefulSet","name":"mc","uid":"u1","controller":true}]},"spec":{` + strings.Replace(containers, "%s", "v5", 1) + `}}`
	}
	strategies := map[string]string{
		"C19 Recreate strategy": `{"type":"Recreate"}`,
		"C20 unknown enum":      `{"type":"FromTheFuture","fromTheFuture":{"surge":"200%","pods":[{"x":null}]}}`,
		"C20 another shape":     `"FromTheFuture"`,
	}
	for name, strategy := range strategies {
		t.Run(name, func(t *testing.T) {
			for _, test := range []struct {
				what, body string
				rule       string // empty: allowed
			}{
				{"the change", review("UPDATE", "statefulsets", "StatefulSet", "apps", "jane",
					`"name":"mc","object":`+set("prod", "mc", "u1", strategy, "v5")+`,"oldObject":`+set("prod", "mc", "u1", `{"type":"RollingUpdate"}`, "v4")), ""},
				{"a later change", review("UPDATE", "statefulsets", "StatefulSet", "apps", "jane",
					`"name":"mc","object":`+set("prod", "mc", "u1", strategy, "v6")+`,"oldObject":`+set("prod", "mc", "u1", strategy, "v5")), ""},
				{"a second one that has it", review("CREATE", "statefulsets", "StatefulSet", "apps", "jane",
					`"name":"second","object":`+set("prod", "second", "u2", strategy, "v5")), "second-workload"},
				{"the pinned Pod", review("CREATE", "pods", "Pod", "", decide.UserStatefulSetController, pod("mc-0")), ""},
				{"another Pod of it", review("CREATE", "pods", "Pod", "", decide.UserStatefulSetController, pod("mc-1")), "pod-not-pinned"},
			} {
				response := answer(t, post(newRig(&faultySlot{policy: policy}), Path, test.body))
				switch {
				case test.rule == "" && !response.Allowed:
					t.Errorf("%s is refused: %s", test.what, response.Result.Message)
				case test.rule != "" && (response.Allowed || !strings.HasPrefix(response.Result.Message, test.rule+": ")):
					t.Errorf("%s: got %+v, want it refused by %s", test.what, response, test.rule)
				}
			}
		})
	}
}

// TestUnrelated holds requests that have nothing to do with the policy to going
// through whatever happens to the guard's reads.
func TestUnrelated(t *testing.T) {
	tests := map[string]struct {
		body  string
		reads int
	}{
		"stranger":     {strings.ReplaceAll(firstStatefulSet, "ghcr.io/metacontroller/metacontroller:v4", "nginx"), 1},
		"delete":       {strings.Replace(strings.Replace(firstStatefulSet, "CREATE", "DELETE", 1), `"object"`, `"oldObject"`, 1), 0},
		"status":       {strings.Replace(strings.Replace(firstStatefulSet, "CREATE", "UPDATE", 1), `"object"`, `"subResource":"status","oldObject":{},"object"`, 1), 0},
		"unknown kind": {strings.Replace(firstStatefulSet, `"resource":"statefulsets"`, `"resource":"things"`, 1), 1},
		"scale, target cannot be read": {strings.Replace(strings.Replace(firstStatefulSet, "CREATE", "UPDATE", 1), `"object":{`,
			`"subResource":"scale","oldObject":{},"object":{"spec":{"replicas":2}},"x":{`, 1), 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			slot := &faultySlot{readErr: errors.New("etcd is gone")}
			r := newRig(slot)
			if response := answer(t, post(r, Path, test.body)); !response.Allowed || len(response.Warnings) > 0 {
				t.Fatalf("got %+v", response)
			}
			if len(r.outcomes) != 0 || slot.reads != test.reads {
				t.Fatalf("%d records, %d reads", len(r.outcomes), slot.reads)
			}
		})
	}
}

func TestTimeout(t *testing.T) {
	for query, want := range map[string]time.Duration{
		"": DefaultTimeout - margin, "?timeout=5s": 5*time.Second - margin, "?timeout=600ms": 300 * time.Millisecond,
		"?timeout=-1s": DefaultTimeout - margin, "?timeout=soon": DefaultTimeout - margin,
	} {
		if got := timeoutOf(httptest.NewRequest(http.MethodPost, Path+query, nil)); got != want {
			t.Errorf("%q: got %s, want %s", query, got, want)
		}
	}
}

// FuzzHandler looks for panics and for answers that are neither a review nor a 4xx.
func FuzzHandler(f *testing.F) {
	f.Add([]byte(firstStatefulSet))
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","operation":"CONNECT","resource":{"resource":"pods"}}}`))
	r := newRig(&faultySlot{policy: stored()})
	f.Fuzz(func(t *testing.T, body []byte) {
		recorder := post(r, Path, string(body))
		content, _ := io.ReadAll(recorder.Body)
		switch {
		case recorder.Code == http.StatusOK:
			if !json.Valid(content) {
				t.Fatalf("answers %q", content)
			}
		case recorder.Code < 400 || recorder.Code > 499:
			t.Fatalf("answers %d", recorder.Code)
		}
	})
}
