package serving_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/certificate"
	"github.com/metacontroller-solo/solo/pkg/guard/serving"
	"github.com/metacontroller-solo/solo/test/kit"
)

// policies is the API server, with one policy, whose resource version counts the
// writes of its status. A call that nothing here makes finds the nil client and
// panics.
type policies struct {
	client.Client
	one    *guardv1alpha1.SingletonPolicy
	writes int
}

func (p *policies) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	policy, ok := into.(*guardv1alpha1.SingletonPolicy)
	if !ok || key != client.ObjectKeyFromObject(p.one) {
		return apierrors.NewNotFound(guardv1alpha1.GroupVersion.WithResource("singletonpolicies").GroupResource(), key.Name)
	}
	p.one.DeepCopyInto(policy)
	return nil
}

func (p *policies) Status() client.SubResourceWriter { return &statuses{policies: p} }

// statuses writes the policy's status.
type statuses struct {
	client.SubResourceWriter
	policies *policies
}

func (s *statuses) Update(_ context.Context, object client.Object, _ ...client.SubResourceUpdateOption) error {
	policy, ok := object.(*guardv1alpha1.SingletonPolicy)
	if !ok || policy.ResourceVersion != s.policies.one.ResourceVersion {
		return fmt.Errorf("cannot update %T of version %q", object, object.GetResourceVersion())
	}
	s.policies.writes++
	policy.ResourceVersion = strconv.Itoa(s.policies.writes)
	s.policies.one.ResourceVersion = policy.ResourceVersion
	policy.Status.DeepCopyInto(&s.policies.one.Status)
	return nil
}

// TestPublish holds that a judgement is written and told of once, whoever leads.
func TestPublish(t *testing.T) {
	policy := &guardv1alpha1.SingletonPolicy{}
	policy.Name = "p"
	c := &policies{one: policy.DeepCopy()}
	recorder := events.NewFakeRecorder(10)
	publish := func(verdict certificate.Verdict, message string) (version, event string) {
		t.Helper()
		// Each time another guard that begins to lead.
		p := &serving.Publisher{Client: c, Policy: policy.Name, Recorder: recorder}
		if err := p.Publish(t.Context(), certificate.Judgement{Verdict: verdict, Message: message}); err != nil {
			t.Fatal(err)
		}
		got := &guardv1alpha1.SingletonPolicy{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(policy), got); err != nil {
			t.Fatal(err)
		}
		condition := meta.FindStatusCondition(got.Status.Conditions, guardv1alpha1.ConditionCertificateCurrent)
		if condition == nil || condition.Reason != verdict.String() || condition.Message != message || (condition.Status == "True") != (verdict == certificate.Current) {
			t.Errorf("condition is %+v", condition)
		}
		select {
		case event = <-recorder.Events:
		default:
		}
		return got.ResourceVersion, event
	}
	for _, step := range []struct {
		reason  string
		verdict certificate.Verdict
		message string
		written bool
		event   string
	}{
		{"good from the start", certificate.Current, "until May", true, ""},
		{"nothing new", certificate.Current, "until May", false, ""},
		{"renewed as it should be", certificate.Current, "until July", true, ""},
		{"a problem", certificate.RenewalOverdue, "3 days", true, "Warning CertificateRenewalOverdue 3 days"},
		{"the same", certificate.RenewalOverdue, "3 days", false, ""},
		{"the next day", certificate.RenewalOverdue, "2 days", true, "Warning CertificateRenewalOverdue 2 days"},
		{"solved", certificate.Current, "until August", true, "Normal CertificateCurrent until August"},
	} {
		before := &guardv1alpha1.SingletonPolicy{}
		if err := c.Get(t.Context(), client.ObjectKeyFromObject(policy), before); err != nil {
			t.Fatal(err)
		}
		version, event := publish(step.verdict, step.message)
		if (version != before.ResourceVersion) != step.written || event != step.event {
			t.Errorf("%s: written %v, event %q", step.reason, version != before.ResourceVersion, event)
		}
	}
	// Without a policy there is nothing to write on.
	p := &serving.Publisher{Client: c, Policy: "absent", Recorder: recorder}
	if err := p.Publish(t.Context(), certificate.Judgement{Verdict: certificate.Expired}); err != nil {
		t.Error(err)
	}
}

// source is a certificate that a test sets.
type source struct {
	served *tls.Certificate
	fault  error
}

func (s *source) Start(context.Context) error { return nil }
func (s *source) NeedLeaderElection() bool    { return false }
func (s *source) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	return s.served, nil
}
func (s *source) Ready() error   { return nil }
func (s *source) Fault() error   { return s.fault }
func (s *source) Remedy() string { return "look there" }

// TestReporter follows the metrics and what is published, of one that does not lead
// at first.
func TestReporter(t *testing.T) {
	ca := newAuthority(t)
	served, err := newPair(t, ca).TLS()
	if err != nil {
		t.Fatal(err)
	}
	from := &source{served: &served}
	clock := clocktesting.NewFakeClock(time.Now())
	published := make(chan certificate.Judgement, 100)
	leading, changed := make(chan struct{}), make(chan struct{})
	bundle := ca.CertPEM()
	r := &serving.Reporter{
		Source: from, Clock: clock, Leading: leading, Changed: changed,
		Webhooks: func(context.Context) ([]certificate.Webhook, error) {
			return []certificate.Webhook{{Name: "w", Host: "guard.ns.svc", Bundle: bundle}}, nil
		},
		Publish: func(_ context.Context, j certificate.Judgement) error { published <- j; return nil },
	}
	registry := prometheus.NewRegistry()
	if err := r.Register(registry); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	state := func(verdict string) {
		t.Helper()
		var want strings.Builder
		want.WriteString("# HELP metacontroller_guard_certificate_state 1 for the state that the serving certificate is in, 0 for the others. All but Current need a person.\n# TYPE metacontroller_guard_certificate_state gauge\n")
		for _, v := range certificate.Verdicts {
			value := " 0\n"
			if v.String() == verdict {
				value = " 1\n"
			}
			want.WriteString(`metacontroller_guard_certificate_state{state="` + v.String() + `"}` + value)
		}
		kit.Eventually(t, soon, func() error {
			return testutil.GatherAndCompare(registry, strings.NewReader(want.String()), "metacontroller_guard_certificate_state")
		})
	}
	state("Current")
	if len(published) != 0 {
		t.Error("published without leading")
	}
	close(leading)
	if j := <-published; j.Verdict != certificate.Current {
		t.Errorf("published %+v", j)
	}
	// A fault that is gone at the next look is a pair that was being written.
	from.fault = errors.New("halves do not fit")
	changed <- struct{}{}
	if j := <-published; j.Verdict != certificate.Current {
		t.Errorf("published %+v", j)
	}
	changed <- struct{}{}
	if j := <-published; j.Verdict != certificate.Unusable {
		t.Errorf("published %+v", j)
	}
	state("Unusable")
	from.fault, bundle = nil, nil
	changed <- struct{}{}
	if j := <-published; j.Verdict != certificate.NoBundle {
		t.Errorf("published %+v", j)
	}
	// Time alone makes it look, too.
	kit.Eventually(t, soon, func() error {
		clock.Step(serving.ReportInterval)
		if len(published) == 0 {
			return errors.New("nothing published")
		}
		return nil
	})
}
