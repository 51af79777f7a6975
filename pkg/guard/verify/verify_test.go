package verify

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	guardv1alpha1 "github.com/metacontroller-solo/solo/pkg/api/guard/v1alpha1"
	"github.com/metacontroller-solo/solo/pkg/guard/decide"
	"github.com/metacontroller-solo/solo/pkg/guard/finding"
	"github.com/metacontroller-solo/solo/pkg/guard/identify"
)

var now = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)

const (
	day           = 24 * time.Hour
	webhookName   = "workloads.example.com"
	configuration = "guard"
)

// authority signs certificates.
type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func newAuthority(t *testing.T, left time.Duration) authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: now.Add(-365 * day), NotAfter: now.Add(left),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return authority{certificate, key}
}

func (a authority) issue(t *testing.T, from, left time.Duration, names ...string) []byte {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "guard"}, NotBefore: now.Add(from), NotAfter: now.Add(left),
		DNSNames: names, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return encode(der)
}

// rig is a cluster that only remembers.
type rig struct {
	objects  []client.Object
	get      func(client.ObjectKey, client.Object) error
	create   func(client.Object) error
	warnings []string
	options  Options
}

// cluster has the objects of a rig, and takes dry runs alone.
type cluster struct {
	client.Client
	*rig
	t *testing.T
}

func (c cluster) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if c.get != nil {
		if err := c.get(key, into); err != nil {
			return err
		}
	}
	kind := into.GetObjectKind().GroupVersionKind()
	for _, object := range c.objects {
		of := reflect.TypeOf(object).Elem().Name()
		if client.ObjectKeyFromObject(object) != key || of != reflect.TypeOf(into).Elem().Name() && of != kind.Kind {
			continue
		}
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			return err
		}
		if untyped, ok := into.(*unstructured.Unstructured); ok {
			untyped.Object = fields
			untyped.SetGroupVersionKind(kind)
			return nil
		}
		return runtime.DefaultUnstructuredConverter.FromUnstructured(fields, into)
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: reflect.TypeOf(into).Elem().Name()}, key.Name)
}

func (c cluster) Create(_ context.Context, object client.Object, options ...client.CreateOption) error {
	applied := client.CreateOptions{}
	applied.ApplyOptions(options)
	if len(applied.DryRun) != 1 {
		c.t.Fatalf("created for good: %T", object)
	}
	return c.create(object)
}

func (r *rig) run(t *testing.T) ([]string, error) {
	t.Helper()
	options := r.options
	options.Policy, options.Namespace, options.Now, options.MinValidity = "metacontroller", "ns", now, 7*day
	options.Secret = client.ObjectKey{Namespace: "guard", Name: "tls"}
	rendered := &unstructured.Unstructured{}
	rendered.SetGroupVersionKind(admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration"))
	rendered.SetName(configuration)
	report, err := Run(t.Context(), Deps{
		Client: cluster{rig: r, t: t}, Warnings: func() []string { return r.warnings },
		Rendered: func(*guardv1alpha1.SingletonPolicy, func(string, string) map[string]any) ([]*unstructured.Unstructured, error) {
			return []*unstructured.Unstructured{rendered}, nil
		},
		Drift:                func(map[string]any, map[string]any) []Difference { return nil },
		WebhookConfiguration: configuration, Webhook: webhookName, PinPolicy: "guard-pin",
	}, options)
	if err != nil {
		return nil, err
	}
	var got []string
	for _, f := range report.Findings {
		first, _, _ := strings.Cut(f.Message, "\n")
		got = append(got, fmt.Sprintf("%s %s: %s", f.Level, f.Rule, first))
	}
	return got, nil
}

func refusal(kind, text string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: kind}, "x", errors.New(text))
}

// healthy is an installation in order.
func healthy(t *testing.T) *rig {
	t.Helper()
	ca := newAuthority(t, 365*day)
	policy := &guardv1alpha1.SingletonPolicy{ObjectMeta: metav1.ObjectMeta{Name: "metacontroller", Generation: 3}}
	policy.SetDefaults()
	for kind, status := range map[string]metav1.ConditionStatus{
		guardv1alpha1.ConditionReady: metav1.ConditionTrue, guardv1alpha1.ConditionEnforcing: metav1.ConditionTrue,
		guardv1alpha1.ConditionCompliant: metav1.ConditionTrue, guardv1alpha1.ConditionDrifted: metav1.ConditionFalse,
	} {
		policy.Status.Conditions = append(policy.Status.Conditions, metav1.Condition{Type: kind, Status: status, ObservedGeneration: 3, Reason: "R", Message: "m"})
	}
	return &rig{
		objects: []client.Object{
			policy,
			&admissionregistrationv1.ValidatingWebhookConfiguration{
				ObjectMeta: metav1.ObjectMeta{Name: configuration},
				Webhooks: []admissionregistrationv1.ValidatingWebhook{{Name: webhookName, ClientConfig: admissionregistrationv1.WebhookClientConfig{
					CABundle: encode(ca.certificate.Raw), Service: &admissionregistrationv1.ServiceReference{Namespace: "guard", Name: "svc"},
				}}},
			},
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "guard", Name: "tls"}, Data: map[string][]byte{corev1.TLSCertKey: ca.issue(t, -day, 90*day, "svc.guard.svc")}},
		},
		create: func(object client.Object) error {
			if _, pod := object.(*corev1.Pod); pod {
				return refusal("pods", "ValidatingAdmissionPolicy 'guard-pin' with binding 'guard-pin' denied request: [pod-not-pinned] no")
			}
			return refusal("statefulsets", `admission webhook "workloads.example.com" denied the request: two-in-one-pod: no`)
		},
	}
}

func (r *rig) policy() *guardv1alpha1.SingletonPolicy {
	return r.objects[0].(*guardv1alpha1.SingletonPolicy)
}

func (r *rig) webhook() *admissionregistrationv1.ValidatingWebhook {
	return &r.objects[1].(*admissionregistrationv1.ValidatingWebhookConfiguration).Webhooks[0]
}

func (r *rig) serve(certificate []byte) {
	r.objects[2].(*corev1.Secret).Data[corev1.TLSCertKey] = certificate
}

var inOrder = []string{
	"passed policy: the guard judges by generation 3, enforces it, and finds it complied with",
	"passed admission: 1 objects are as rendered",
	"passed certificate: the caBundle has its issuer, its names are right, and it is valid until 2026-05-30T00:00:00Z (Secret guard/tls)",
	"passed webhook: a dry run was refused: two-in-one-pod",
	"passed pin: a dry run was refused: pod-not-pinned",
}

func TestVerify(t *testing.T) {
	forbid := func(resource string, what func(client.Object) bool) func(r *rig) {
		return func(r *rig) {
			r.get = func(_ client.ObjectKey, object client.Object) error {
				if what(object) {
					return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, "x", errors.New("you may not"))
				}
				return nil
			}
		}
	}
	for name, test := range map[string]struct {
		break_ func(*rig)
		// instead replaces the findings of the rule that it is about.
		rule    string
		instead []string
	}{
		"in order": {func(*rig) {}, "none", nil},
		"no policy": {func(r *rig) { r.objects = r.objects[1:]; r.objects = append(r.objects, &corev1.Namespace{}) }, CheckPolicy,
			[]string{"violation policy: it does not exist, so nobody can claim the slot"}},
		"nobody leads": {func(r *rig) { r.policy().Generation = 4 }, CheckPolicy, []string{
			"violation policy: condition Ready is about generation 3, and the policy is at 4: no guard leads, or it has no permission",
			"violation policy: condition Enforcing is about generation 3, and the policy is at 4: no guard leads, or it has no permission",
			"violation policy: condition Compliant is about generation 3, and the policy is at 4: no guard leads, or it has no permission",
			"violation policy: condition Drifted is about generation 3, and the policy is at 4: no guard leads, or it has no permission",
		}},
		"no conditions": {func(r *rig) { r.policy().Status.Conditions = nil }, CheckPolicy, []string{
			"violation policy: condition Ready is missing: no guard has looked at this policy",
			"violation policy: condition Enforcing is missing: no guard has looked at this policy",
			"violation policy: condition Compliant is missing: no guard has looked at this policy",
		}},
		"policy may not be read": {forbid("singletonpolicies", func(o client.Object) bool { _, ok := o.(*guardv1alpha1.SingletonPolicy); return ok }), CheckPolicy,
			[]string{`skipped policy: cannot look: singletonpolicies "x" is forbidden: you may not`}},
		"Secret may not be read": {forbid("secrets", func(o client.Object) bool { _, ok := o.(*corev1.Secret); return ok }), CheckCertificate,
			[]string{`skipped certificate: cannot get the guard's certificate: secrets "x" is forbidden: you may not; give it with --certificate, or name the Secret with --tls-secret`}},
		"caBundle is empty": {func(r *rig) { r.webhook().ClientConfig.CABundle = nil }, CheckCertificate,
			[]string{`violation certificate: caBundle of webhook "workloads.example.com": it is empty, so the API server cannot reach the guard`}},
		"caBundle is none": {func(r *rig) { r.webhook().ClientConfig.CABundle = []byte("x") }, CheckCertificate,
			[]string{`violation certificate: caBundle of webhook "workloads.example.com": it has no certificate in PEM, so the API server cannot reach the guard`}},
		"webhook is missing": {func(r *rig) { r.webhook().Name = "other" }, CheckCertificate,
			[]string{`violation certificate: webhook "workloads.example.com" is missing`}},
		"not reachable by URL": {func(r *rig) { r.webhook().ClientConfig.URL = ptr.To("https://127.0.0.1:1/validate") }, CheckCertificate,
			[]string{"skipped certificate: cannot get the guard's certificate: the guard is not reachable from here: dial tcp 127.0.0.1:1: connect: connection refused"}},
		"the guard is down": {func(r *rig) {
			r.create = func(client.Object) error {
				return apierrors.NewInternalError(errors.New(`failed calling webhook "workloads.example.com": no endpoints`))
			}
		}, "webhook+pin", []string{
			`violation webhook: the API server cannot ask the guard: Internal error occurred: failed calling webhook "workloads.example.com": no endpoints`,
			`violation pin: the API server cannot ask the guard: Internal error occurred: failed calling webhook "workloads.example.com": no endpoints`,
		}},
		"nothing refuses": {func(r *rig) { r.create = func(client.Object) error { return nil } }, "webhook+pin", []string{
			"violation webhook: a dry run that had to be refused was let in", "violation pin: a dry run that had to be refused was let in",
		}},
		"may not create": {func(r *rig) { r.create = func(client.Object) error { return refusal("pods", "you may not") } }, "webhook+pin", []string{
			`skipped webhook: the dry run was not let as far as the guard: pods "x" is forbidden: you may not`,
			`skipped pin: the dry run was not let as far as the guard: pods "x" is forbidden: you may not`,
		}},
		"the policy for workloads speaks": {func(r *rig) {
			r.create = func(client.Object) error {
				return refusal("x", "ValidatingAdmissionPolicy 'guard-pin' with binding 'b' denied request: [two-in-one-pod] no")
			}
		}, CheckWebhook, []string{`violation webhook: a policy refused a dry run, and the guard was not asked: x "x" is forbidden: ValidatingAdmissionPolicy 'guard-pin' with binding 'b' denied request: [two-in-one-pod] no`}},
	} {
		t.Run(name, func(t *testing.T) {
			r := healthy(t)
			test.break_(r)
			got, err := r.run(t)
			if err != nil {
				t.Fatal(err)
			}
			var want []string
			replaced := false
			for _, line := range inOrder {
				check := strings.TrimSuffix(strings.Fields(line)[1], ":")
				if !strings.Contains(test.rule, check) {
					want = append(want, line)
					continue
				}
				if !replaced {
					want, replaced = append(want, test.instead...), true
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCertificate(t *testing.T) {
	foreign := newAuthority(t, 365*day)
	for name, test := range map[string]struct {
		serve func(*testing.T, authority) []byte
		ca    time.Duration
		want  []string
	}{
		"expired":           {func(t *testing.T, a authority) []byte { return a.issue(t, -9*day, -day, "svc.guard.svc") }, 365 * day, []string{"violation certificate: the certificate (Secret guard/tls) expired at 2026-02-28T00:00:00Z"}},
		"not valid yet":     {func(t *testing.T, a authority) []byte { return a.issue(t, day, 9*day, "svc.guard.svc") }, 365 * day, []string{"violation certificate: the certificate (Secret guard/tls) is not valid before 2026-03-02T00:00:00Z: compare the clocks"}},
		"another name":      {func(t *testing.T, a authority) []byte { return a.issue(t, -day, 90*day, "other") }, 365 * day, []string{"violation certificate: the API server cannot trust it (Secret guard/tls): x509: certificate is valid for other, not svc.guard.svc"}},
		"another authority": {func(t *testing.T, _ authority) []byte { return foreign.issue(t, -day, 90*day, "svc.guard.svc") }, 365 * day, []string{"violation certificate: the API server cannot trust it (Secret guard/tls): x509: certificate signed by unknown authority"}},
		"ends soon": {func(t *testing.T, a authority) []byte { return a.issue(t, -day, 3*day, "svc.guard.svc") }, 5 * day, []string{
			"warning certificate: authority ca expires in 5 days, at 2026-03-06T00:00:00Z",
			"warning certificate: the certificate (Secret guard/tls) expires in 3 days, at 2026-03-04T00:00:00Z",
			"passed certificate: the caBundle has its issuer, its names are right, and it is valid until 2026-03-04T00:00:00Z (Secret guard/tls)",
		}},
		"none": {func(*testing.T, authority) []byte { return nil }, 365 * day, []string{"skipped certificate: cannot get the guard's certificate: it is empty"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := healthy(t)
			ca := newAuthority(t, test.ca)
			r.webhook().ClientConfig.CABundle = encode(ca.certificate.Raw)
			r.serve(test.serve(t, ca))
			all, err := r.run(t)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, line := range all {
				if strings.Contains(line, " certificate: ") {
					// The library adds a hint to some errors.
					line, _, _ = strings.Cut(line, ` (possibly because of`)
					got = append(got, line)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// TestUnreachable is an error, and no finding.
func TestUnreachable(t *testing.T) {
	gone := errors.New("connection refused")
	r := healthy(t)
	r.create = func(client.Object) error { return gone }
	if _, err := r.run(t); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
	r = healthy(t)
	r.get = func(client.ObjectKey, client.Object) error { return gone }
	if _, err := r.run(t); !errors.Is(err, gone) {
		t.Errorf("got %v", err)
	}
}

// TestWarningPolicies do not deny, so that a dry run may tell nothing.
func TestWarningPolicies(t *testing.T) {
	for _, test := range []struct {
		action   decide.Action
		warnings string
		by       string
		want     finding.Level
	}{
		{decide.ActionWarn, "two-in-one-pod: no", "admission webhook", finding.Passed},
		{decide.ActionWarn, "", "admission webhook", finding.Violation},
		{decide.ActionWarn, "", deniedByPolicy, finding.Skipped},
		{decide.ActionAudit, "", "admission webhook", finding.Skipped},
		{decide.ActionDeny, "", deniedByPolicy, finding.Violation},
	} {
		if got, message := outcome(nil, test.warnings, test.action, decide.RuleTwoInOnePod, test.by); got != test.want {
			t.Errorf("%+v: got %s: %s", test, got, message)
		}
	}
}

// TestProbesAreInstances by whatever a policy recognises.
func TestProbesAreInstances(t *testing.T) {
	for _, match := range []guardv1alpha1.Match{
		guardv1alpha1.DefaultMatch(),
		{Images: []string{"**/team/app-*"}},
		{Images: []string{"docker.io/library/nginx"}},
		{Commands: []string{"tool"}},
	} {
		signature, err := identify.Compile(match)
		if err != nil {
			t.Fatal(err)
		}
		policy := &guardv1alpha1.SingletonPolicy{}
		policy.Spec.Match = match
		r := &run{policy: policy}
		spec := r.podSpec(2)
		if got := len(signature.Containers(&spec)); got != 2 {
			t.Errorf("%+v: %d containers of %+v are instances", match, got, spec.Containers)
		}
	}
}
