package webhook

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/test/corpus"
)

// reviewOf is the review of the create of a case's object.
func reviewOf(t *testing.T, c corpus.Case) string {
	t.Helper()
	object, err := json.Marshal(c.Object)
	if err != nil {
		t.Fatal(err)
	}
	kind := c.Object.GetObjectKind().GroupVersionKind()
	review, err := json.Marshal(admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: "r1", Operation: admissionv1.Create, Namespace: "ns", Name: c.Object.GetName(),
			Kind: metav1.GroupVersionKind(kind), Resource: metav1.GroupVersionResource(c.Resource),
			Object: runtime.RawExtension{Raw: object},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(review)
}

// TestCorpus sends every manifest as a review, while another holds the slot: an
// instance is refused, a suspect warned about, the rest leaves no trace.
func TestCorpus(t *testing.T) {
	held := stored()
	held.Status.Holder = &guardv1alpha1.Holder{Namespace: "prod", Name: "mc", UID: "u1", Phase: guardv1alpha1.HolderBound, Epoch: 1}
	cases, err := corpus.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range cases {
		r := newRig(&faultySlot{policy: held})
		response := answer(t, post(r, Path, reviewOf(t, c)))
		want := decide.VerdictAllow
		switch {
		case c.Want.Instance():
			want = decide.VerdictDeny
		case c.Want == corpus.Flags:
			want = decide.VerdictWarn
		}
		if response.Allowed != (want != decide.VerdictDeny) || len(response.Warnings) > 0 != (want == decide.VerdictWarn) {
			t.Errorf("%s: %s: got %+v, want %s", c.Name, c.Why, response, want)
		}
		if want == decide.VerdictAllow {
			if len(r.outcomes) != 0 {
				t.Errorf("%s: left a record: %+v", c.Name, r.outcomes)
			}
			continue
		}
		if len(r.outcomes) != 1 || r.outcomes[0].Decision.Verdict != want {
			t.Errorf("%s: got the outcomes %+v, want %s", c.Name, r.outcomes, want)
		}
		if want == decide.VerdictWarn && !strings.HasPrefix(response.Warnings[0], string(decide.RuleSuspectedInstance)+": ") {
			t.Errorf("%s: warns %q", c.Name, response.Warnings)
		}
	}
}

// TestSuspectIsNeverRefused has a suspect under every state of the slot and of
// the policy.
func TestSuspectIsNeverRefused(t *testing.T) {
	suspect := strings.Replace(firstStatefulSet, `"image":"ghcr.io/metacontroller/metacontroller:v4"`, `"image":"private/mc","args":["--client-go-qps=100"]`, 1)
	beside := strings.Replace(firstStatefulSet, `"containers":[`, `"containers":[{"name":"x","image":"private/mc","args":["--client-go-qps=100"]},`, 1)
	audits, excepts := stored(), stored()
	audits.Spec.ValidationActions = []guardv1alpha1.ValidationAction{guardv1alpha1.ActionAudit}
	excepts.Spec.Exceptions = []guardv1alpha1.Exception{{Namespace: "prod", Name: "mc", Reason: "test", Expires: metav1.NewTime(metav1.Now().AddDate(1, 0, 0))}}
	for name, test := range map[string]struct {
		slot *faultySlot
		body string
		want decide.Verdict
	}{
		"the slot is free":           {&faultySlot{policy: stored()}, suspect, decide.VerdictWarn},
		"no policy":                  {&faultySlot{}, suspect, decide.VerdictWarn},
		"policy cannot be read":      {&faultySlot{readErr: errors.New("etcd is gone")}, suspect, decide.VerdictWarn},
		"audited":                    {&faultySlot{policy: audits}, suspect, decide.VerdictAudit},
		"excepted":                   {&faultySlot{policy: excepts}, suspect, decide.VerdictUnknown},
		"beside an instance, claims": {&faultySlot{policy: stored()}, beside, decide.VerdictWarn},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(test.slot)
			response := answer(t, post(r, Path, test.body))
			if !response.Allowed || len(response.Warnings) > 0 != (test.want == decide.VerdictWarn) {
				t.Fatalf("got %+v", response)
			}
			switch {
			case test.want == decide.VerdictUnknown:
				if len(r.outcomes) != 0 {
					t.Fatalf("left a record: %+v", r.outcomes)
				}
			case len(r.outcomes) != 1 || r.outcomes[0].Decision.Verdict != test.want || r.outcomes[0].Decision.Rule != decide.RuleSuspectedInstance:
				t.Fatalf("got %+v, want %s", r.outcomes, test.want)
			case len(response.Warnings) == 1 && len([]rune(response.Warnings[0])) > decide.MaxLine:
				t.Fatalf("too long: %q", response.Warnings[0])
			}
		})
	}
}
