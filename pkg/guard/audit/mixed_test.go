package audit

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/attempt"
	"github.com/metacontroller-solo/solo/pkg/guard/claim"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
	"github.com/metacontroller-solo/solo/pkg/guard/webhook"
)

// fixed is a policy that never changes.
type fixed struct {
	policy *guardv1alpha1.SingletonPolicy
}

func (f fixed) Read(context.Context) (*guardv1alpha1.SingletonPolicy, error) { return f.policy, nil }

func (fixed) Take(context.Context, *guardv1alpha1.SingletonPolicy, *identify.Signature, claim.Want) (decide.Claim, error) {
	return decide.Claim{Result: decide.ClaimExists}, nil
}

func (fixed) Target(context.Context, attempt.Attempt) ([]byte, error) { return nil, nil }

func (fixed) NodeState(context.Context, string) (attempt.NodeState, error) {
	return attempt.NodePresent, nil
}

// mix makes reviews of all sorts.
type mix struct{ random *rand.Rand }

func (m mix) pick(words ...string) string { return words[m.random.IntN(len(words))] }

func (m mix) review(uid string) string {
	container := fmt.Sprintf(`{"name":"m","image":%q,"args":[%q]}`,
		m.pick("ghcr.io/metacontroller/metacontroller:v4", "ghcr.io/metacontroller/metacontroller@sha256:"+strings.Repeat("0", 64), "nginx", "runner:1"),
		m.pick("", "--target-label-selector=a=b"))
	kind := m.pick("StatefulSet", "Deployment", "ReplicaSet", "Job", "Pod")
	group, resource, spec := "apps", strings.ToLower(kind)+"s", `{"template":{"spec":{"containers":[`+container+`]}}}`
	switch kind {
	case "Job":
		group = "batch"
	case "Pod":
		group, spec = "", `{"containers":[`+container+`]}`
	}
	namespace, name := m.pick("prod", "dev"), m.pick("mc", "mc-0", "second", "rescue", "evil\\n\\u202e")
	object := fmt.Sprintf(`{"metadata":{"namespace":%q,"name":"%s","uid":%q,"generateName":%q},"spec":%s}`, namespace, name, m.pick("u1", "u2"), m.pick("", "gen-"), spec)
	operation := m.pick("CREATE", "CREATE", "UPDATE", "DELETE")
	objects := `"object":` + object
	switch operation {
	case "UPDATE":
		objects += `,"oldObject":` + strings.Replace(object, "nginx", "runner:1", 1)
	case "DELETE":
		objects = `"oldObject":` + object + `,"options":{"gracePeriodSeconds":` + m.pick("0", "30") + `}`
	}
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":%q,"operation":%q,"namespace":%q,"name":"%s","dryRun":%s,
		"kind":{"group":%q,"version":"v1","kind":%q},"resource":{"group":%q,"version":"v1","resource":%q},"userInfo":{"username":%q},%s}}`,
		uid, operation, namespace, name, m.pick("true", "false", "false"), group, kind, group, resource,
		m.pick("jane", "system:serviceaccount:kube-system:statefulset-controller", "evil\"user"), objects)
}

// TestCountersEqualTheLog sends 10,000 reviews, some of them again, through the
// real handler from several goroutines: for each combination of labels the metric
// is what the lines count, and each answer's id leads to lines that count it.
func TestCountersEqualTheLog(t *testing.T) {
	const total, workers = 10_000, 4
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	var sink bytes.Buffer
	registry := prometheus.NewRegistry()
	log, err := New(sinkOf(&sink), Options{Replica: "guard-0", Registry: registry, RepeatInterval: 50 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	var handlers []*webhook.Handler
	for _, action := range []guardv1alpha1.ValidationAction{guardv1alpha1.ActionDeny, guardv1alpha1.ActionWarn, guardv1alpha1.ActionAudit} {
		policy := &guardv1alpha1.SingletonPolicy{
			ObjectMeta: metav1.ObjectMeta{Name: "metacontroller", UID: "p", Generation: 1},
			Spec: guardv1alpha1.SingletonPolicySpec{Match: guardv1alpha1.DefaultMatch(), ValidationActions: []guardv1alpha1.ValidationAction{action},
				Exceptions: []guardv1alpha1.Exception{{Namespace: "dev", Name: "rescue", Reason: "fire", Expires: metav1.NewTime(time.Now().Add(time.Hour))}}},
			Status: guardv1alpha1.SingletonPolicyStatus{Holder: &guardv1alpha1.Holder{Namespace: "prod", Name: "mc", UID: "u1", Phase: guardv1alpha1.HolderBound, Epoch: 1}},
		}
		f := fixed{policy}
		handlers = append(handlers, webhook.New(webhook.Deps{Policy: policy.Name, Slot: f, Targets: f, Nodes: f, Clock: clock.RealClock{},
			Record: func(o webhook.Outcome) string { return log.Record(Entry(o)) }}))
	}
	// Answers with an id, by that id; a review that is sent again counts once.
	var mutex sync.Mutex // guards answers
	answers := map[string]int64{}
	var group sync.WaitGroup
	for worker := range workers {
		group.Go(func() {
			m := mix{rand.New(rand.NewPCG(seed, uint64(worker)))} //nolint:gosec // No secret.
			for i := range total / workers {
				handler := handlers[m.random.IntN(len(handlers))]
				body, first := m.review(fmt.Sprintf("%d-%d", worker, i)), ""
				for try := range 1 + m.random.IntN(5)/4 {
					request := httptest.NewRequest(http.MethodPost, webhook.Path, strings.NewReader(body))
					request.Header.Set("Content-Type", "application/json")
					recorder := httptest.NewRecorder()
					handler.ServeHTTP(recorder, request)
					review := struct {
						Response struct {
							AuditAnnotations map[string]string `json:"auditAnnotations"`
						} `json:"response"`
					}{}
					if err := json.Unmarshal(recorder.Body.Bytes(), &review); err != nil {
						t.Errorf("%s: %s", err, recorder.Body)
						return
					}
					id := review.Response.AuditAnnotations[webhook.AnnotationDecisionID]
					if try > 0 && id != first {
						t.Errorf("sent again, %q was %q", id, first)
					}
					if first = id; try == 0 && id != "" {
						mutex.Lock()
						answers[id]++
						mutex.Unlock()
					}
				}
			}
		})
	}
	group.Wait()
	closeLog(t, log)

	kinds := map[string]string{"statefulsets": "StatefulSet", "deployments": "Deployment", "replicasets": "ReplicaSet", "jobs": "Job", "pods": "Pod"}
	type labels struct{ rule, decision, operation, kind, dryRun string }
	lines, ids, decisions := map[labels]int64{}, map[string]int64{}, int64(0)
	records := linesOf(t, sink.String())
	for _, r := range records {
		rule := r.Rule
		if rule == "" {
			rule = "none"
		}
		lines[labels{rule, r.Decision, r.Operation, kinds[r.Object.Resource], fmt.Sprint(r.DryRun)}] += r.Count
		ids[r.DecisionID] += r.Count
		decisions += r.Count
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	counted := map[labels]int64{}
	for _, metric := range metricsOf(families, "metacontroller_guard_decisions_total") {
		of := map[string]string{}
		for _, label := range metric.GetLabel() {
			of[label.GetName()] = label.GetValue()
		}
		counted[labels{of["rule"], of["decision"], of["operation"], of["kind"], of["dry_run"]}] = int64(metric.GetCounter().GetValue())
	}
	if dropped := metricsOf(families, "metacontroller_guard_audit_dropped_lines_total")[0].GetCounter().GetValue(); dropped != 0 {
		t.Fatalf("%v lines are lost", dropped)
	}
	if histogram := metricsOf(families, "metacontroller_guard_decision_duration_seconds")[0].GetHistogram(); int64(histogram.GetSampleCount()) != decisions {
		t.Errorf("%d durations, %d decisions", histogram.GetSampleCount(), decisions)
	}
	compare(t, "the metric", counted, "the log", lines)
	compare(t, "the answers", answers, "the log", ids)
	if len(lines) < 30 || decisions < total/2 || int64(len(records)) >= decisions {
		t.Errorf("only %d sorts of %d decisions in %d lines", len(lines), decisions, len(records))
	}
	t.Logf("%d reviews, %d decisions of %d sorts, %d lines", total, decisions, len(lines), len(records))
}

func metricsOf(families []*dto.MetricFamily, name string) []*dto.Metric {
	for _, family := range families {
		if family.GetName() == name {
			return family.GetMetric()
		}
	}
	return nil
}

func compare[K comparable](t *testing.T, nameA string, a map[K]int64, nameB string, b map[K]int64) {
	t.Helper()
	for key, count := range a {
		if b[key] != count {
			t.Errorf("%v: %d in %s, %d in %s", key, count, nameA, b[key], nameB)
		}
	}
	for key, count := range b {
		if _, ok := a[key]; !ok {
			t.Errorf("%v: %d in %s, none in %s", key, count, nameB, nameA)
		}
	}
}
