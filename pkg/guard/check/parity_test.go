package check

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/claim"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
	"github.com/metacontroller-solo/solo/pkg/guard/manifest"
	"github.com/metacontroller-solo/solo/pkg/guard/webhook"
	"github.com/metacontroller-solo/solo/test/corpus"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// granting is a slot that everybody gets who asks for it.
type granting struct {
	policy *guardv1alpha1.SingletonPolicy
}

func (g granting) Read(context.Context) (*guardv1alpha1.SingletonPolicy, error) {
	return g.policy.DeepCopy(), nil
}

func (g granting) Take(_ context.Context, _ *guardv1alpha1.SingletonPolicy, _ *identify.Signature, want claim.Want) (decide.Claim, error) {
	return decide.Claim{Result: decide.ClaimGranted, Holder: decide.Holder{State: decide.StateReserved, Identity: want.Identity}}, nil
}

// answer is what has to be the same, whoever judges.
type answer struct {
	Verdict       decide.Verdict
	Rule          decide.Rule
	Message       string
	Allowed       bool
	ClaimsForSelf bool
}

func answerOf(d decide.Decision, id decide.Identity) answer {
	return answer{d.Verdict, d.Rule, d.Message, d.Verdict.Allowed(), d.Holder.Identity == id}
}

// asked is the webhook's handler, and what it recorded last.
type asked struct {
	*webhook.Handler
	recorded decide.Decision
}

func ask(policy *guardv1alpha1.SingletonPolicy) *asked {
	a := &asked{}
	a.Handler = webhook.New(webhook.Deps{
		Policy: policy.Name, Slot: granting{policy}, Clock: clocktesting.NewFakePassiveClock(now),
		Record: func(o webhook.Outcome) string { a.recorded = o.Decision; return "decision" },
	})
	return a
}

// create sends the create of an object to the handler.
func (handler *asked) create(t *testing.T, c corpus.Case, raw []byte) answer {
	t.Helper()
	handler.recorded = decide.Decision{Verdict: decide.VerdictAllow}
	review, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "r1", Operation: admissionv1.Create, Namespace: "ns", Name: c.Object.GetName(),
			Kind: metav1.GroupVersionKind(c.Object.GetObjectKind().GroupVersionKind()), Resource: metav1.GroupVersionResource(c.Resource),
			Object: runtime.RawExtension{Raw: raw},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	request := httptest.NewRequest(http.MethodPost, webhook.Path, strings.NewReader(string(review)))
	request.Header.Set("Content-Type", "application/json")
	response := httptest.NewRecorder()
	handler.ServeHTTP(response, request)
	answered := admissionv1.AdmissionReview{}
	if err := json.Unmarshal(response.Body.Bytes(), &answered); err != nil || answered.Response == nil {
		t.Fatalf("%s: %s: %v", c.Name, response.Body, err)
	}
	a := answerOf(handler.recorded, decide.Identity{Namespace: "ns", Name: c.Object.GetName()})
	if a.Allowed != answered.Response.Allowed {
		t.Fatalf("%s: recorded %+v, answered %+v", c.Name, handler.recorded, answered.Response)
	}
	return a
}

// TestParityWithTheWebhook judges every manifest of the corpus twice: as a file,
// read and judged as "guard check" does, and as a review, by the webhook's
// handler. Verdict, rule and message are the same.
//
//	case I09
func TestParityWithTheWebhook(t *testing.T) {
	cases, err := corpus.All()
	if err != nil {
		t.Fatal(err)
	}
	if len(cases) < 1000 {
		t.Fatalf("the corpus has only %d manifests", len(cases))
	}
	held := func(p *guardv1alpha1.SingletonPolicy) {
		p.Status.Holder = &guardv1alpha1.Holder{Namespace: "prod", Name: "mc", UID: "u1", Phase: guardv1alpha1.HolderBound, Epoch: 1}
	}
	for name, edit := range map[string]func(*guardv1alpha1.SingletonPolicy){
		"held": held,
		"free": func(*guardv1alpha1.SingletonPolicy) {},
		"designated": func(p *guardv1alpha1.SingletonPolicy) {
			p.Spec.Holder = &guardv1alpha1.HolderReference{Namespace: "prod", Name: "mc"}
		},
		"warning": func(p *guardv1alpha1.SingletonPolicy) {
			held(p)
			p.Spec.ValidationActions = []guardv1alpha1.ValidationAction{guardv1alpha1.ActionWarn}
		},
		"sharded":        func(p *guardv1alpha1.SingletonPolicy) { p.Spec.Mode = guardv1alpha1.ModeSharded },
		"leader elected": func(p *guardv1alpha1.SingletonPolicy) { p.Spec.Mode = guardv1alpha1.ModeLeaderElected },
	} {
		t.Run(name, func(t *testing.T) {
			policy := &guardv1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: "metacontroller", UID: "p1"}}
			policy.SetDefaults()
			edit(policy)
			verdicts := map[decide.Verdict]int{}
			handler := ask(policy)
			base, err := New(Options{Policy: policy, Namespace: "ns", Now: now})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range cases {
				raw, err := json.Marshal(c.Object)
				if err != nil {
					t.Fatal(err)
				}
				// A cluster of its own for each, without compiling the match again.
				world := *base
				world.seen, world.instances = map[digest]struct{}{}, map[key][]byte{}
				objects := 0
				manifest.Read("f", strings.NewReader(string(raw)), manifest.DefaultLimit, nil, func(object manifest.Object, err error) bool {
					objects++
					if err != nil {
						t.Fatalf("%s: %v", c.Name, err)
					}
					verdict, err := world.Apply(object)
					if err != nil {
						t.Fatalf("%s: %v", c.Name, err)
					}
					verdicts[verdict.Decision.Verdict]++
					want := handler.create(t, c, raw)
					if diff := cmp.Diff(want, answerOf(verdict.Decision, decide.Identity{Namespace: "ns", Name: object.Name})); diff != "" {
						t.Errorf("%s: %s: the webhook says otherwise: %s", c.Name, c.Why, diff)
					}
					return true
				})
				if objects != 1 {
					t.Errorf("%s: read %d objects", c.Name, objects)
				}
			}
			t.Logf("%d manifests: %v", len(cases), verdicts)
		})
	}
}
