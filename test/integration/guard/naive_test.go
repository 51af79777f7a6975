package guard_test

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/test/kit"
)

// naive installs a webhook that lists what there is and refuses a workload if it
// finds one. It tells how often it was asked.
func (s *suite) naive() *atomic.Int64 {
	s.t.Helper()
	pair, err := s.cp.CA().IssueServer("127.0.0.1")
	if err != nil {
		s.t.Fatal(err)
	}
	certificate, err := pair.TLS()
	if err != nil {
		s.t.Fatal(err)
	}
	asked := &atomic.Int64{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		body, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
		review := admissionv1.AdmissionReview{}
		if err != nil || json.Unmarshal(body, &review) != nil || review.Request == nil {
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		answer := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if there, err := s.workloads(); err != nil || there > 0 {
			answer.Allowed = false
			answer.Result = &metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden, Message: fmt.Sprintf("%d are there, %v", there, err)}
		}
		review.Request, review.Response = nil, answer
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS13}
	server.EnableHTTP2 = true
	server.StartTLS()
	s.t.Cleanup(server.Close)

	create := func(group string, resources ...string) admissionregistrationv1.RuleWithOperations {
		return admissionregistrationv1.RuleWithOperations{
			Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
			Rule:       admissionregistrationv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"}, Resources: resources},
		}
	}
	configuration := &admissionregistrationv1.ValidatingWebhookConfiguration{Webhooks: []admissionregistrationv1.ValidatingWebhook{{
		Name:                    "naive.test.metacontroller.io",
		ClientConfig:            admissionregistrationv1.WebhookClientConfig{URL: ptr.To(server.URL), CABundle: s.cp.CA().CertPEM()},
		FailurePolicy:           ptr.To(admissionregistrationv1.Fail),
		SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"},
		Rules: []admissionregistrationv1.RuleWithOperations{
			create("apps", "statefulsets", "deployments", "replicasets", "daemonsets"), create("batch", "jobs", "cronjobs"),
			create("", "replicationcontrollers", "pods"),
		},
		// What a workload makes was judged with it.
		MatchConditions: []admissionregistrationv1.MatchCondition{{Name: "of-its-own", Expression: "!has(object.metadata.ownerReferences)"}},
	}}}
	configuration.Name = "naive"
	if err := s.admin().Create(s.ctx(), configuration); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		ctx := context.Background()
		if err := client.IgnoreNotFound(s.admin().Delete(ctx, configuration)); err != nil {
			s.t.Error(err)
		}
		// Gone on every API server.
		for _, admin := range s.admins {
			before := asked.Load()
			kit.Eventually(s.t, patience, func() error {
				err := admin.Create(ctx, pod("default", "probe", strangerImage), client.DryRunAll)
				if now := asked.Load(); err != nil || now != before {
					before = now
					return fmt.Errorf("still asked, or %v", err)
				}
				return nil
			})
		}
	})
	for _, admin := range s.admins {
		s.eventually(func() error {
			before := asked.Load()
			if err := admin.Create(s.ctx(), pod("default", "probe", strangerImage), client.DryRunAll); err != nil {
				return err
			}
			if asked.Load() == before {
				return fmt.Errorf("not asked yet")
			}
			return nil
		})
	}
	return asked
}

// workloads counts the workloads and bare Pods.
func (s *suite) workloads() (int, error) {
	count := 0
	for _, list := range []client.ObjectList{
		&appsv1.StatefulSetList{}, &appsv1.DeploymentList{}, &appsv1.ReplicaSetList{}, &appsv1.DaemonSetList{},
		&batchv1.CronJobList{}, &batchv1.JobList{}, &corev1.ReplicationControllerList{}, &corev1.PodList{},
	} {
		if err := s.admin().List(s.ctx(), list); err != nil {
			return 0, err
		}
		objects, err := meta.ExtractList(list)
		if err != nil {
			return 0, err
		}
		count += len(objects)
	}
	return count, nil
}
