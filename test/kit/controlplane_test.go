package kit_test

import (
	"context"
	"crypto/tls"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/metacontroller-solo/solo/test/kit"
)

// patience bounds the wait for what controllers do.
const patience = 30 * time.Second

func TestMain(m *testing.M) {
	if role(os.Getenv(roleEnv)) {
		return
	}
	kit.Main(m, kit.Options{APIServers: 2, AuditPolicyFile: "testdata/audit-policy.yaml"})
}

func clients(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func configMap(name string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func TestVersionIsStamped(t *testing.T) {
	version, err := clients(t, kit.Shared(t).AdminConfig(0)).Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if version.Major != "1" || version.GitVersion == "v0.0.0" || !strings.HasPrefix(version.GitVersion, "v1.") {
		t.Errorf("server calls itself %+v", version)
	}
}

func TestServersAreVerified(t *testing.T) {
	cp := kit.Shared(t)
	stranger, err := kit.NewCA("stranger")
	if err != nil {
		t.Fatal(err)
	}
	config := cp.AdminConfig(0)
	if config.Insecure {
		t.Error("the administrator does not verify the server")
	}
	config.CAData = stranger.CertPEM()
	_, err = clients(t, config).Discovery().ServerVersion()
	var unknown *tls.CertificateVerificationError
	if !errors.As(err, &unknown) {
		t.Errorf("a client that trusts another authority gets %v", err)
	}
}

func TestWhoMayDoWhat(t *testing.T) {
	cp := kit.Shared(t)
	namespace := kit.Namespace(t, cp.AdminConfig(0))
	user, err := cp.UserConfig("somebody", "some-group")
	if err != nil {
		t.Fatal(err)
	}
	strangers, err := kit.NewCA("strangers")
	if err != nil {
		t.Fatal(err)
	}
	forged, err := strangers.IssueClient("kubernetes-admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	forger := cp.AdminConfig(0)
	forger.CertData, forger.KeyData = forged.Cert, forged.Key

	for _, tc := range []struct {
		name   string
		config *rest.Config
		want   func(error) bool
	}{
		{"nobody is unauthorized", cp.AnonymousConfig(0), apierrors.IsUnauthorized},
		{"a forged certificate is unauthorized", forger, apierrors.IsUnauthorized},
		{"somebody is forbidden", user, apierrors.IsForbidden},
		{"the administrator may", cp.AdminConfig(1), func(err error) bool { return err == nil }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := clients(t, tc.config).CoreV1().ConfigMaps(namespace).List(t.Context(), metav1.ListOptions{})
			if !tc.want(err) {
				t.Errorf("got %v", err)
			}
		})
	}
}

func TestNodesAreRestricted(t *testing.T) {
	cp := kit.Shared(t)
	config, err := cp.NodeConfig("restricted-a")
	if err != nil {
		t.Fatal(err)
	}
	nodes := clients(t, config).CoreV1().Nodes()
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "restricted-a"}}, metav1.CreateOptions{}); err != nil {
		t.Errorf("its own: %v", err)
	}
	t.Cleanup(func() {
		_ = clients(t, cp.AdminConfig(0)).CoreV1().Nodes().Delete(context.Background(), "restricted-a", metav1.DeleteOptions{})
	})
	if _, err := nodes.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "restricted-b"}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("another's: %v", err)
	}
}

func TestTokens(t *testing.T) {
	cp := kit.Shared(t)
	admin := clients(t, cp.AdminConfig(0))
	namespace := kit.Namespace(t, cp.AdminConfig(0))
	if _, err := admin.CoreV1().ServiceAccounts(namespace).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "app"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	config, err := cp.TokenConfig(t.Context(), namespace, "app")
	if err != nil {
		t.Fatal(err)
	}
	for server := range cp.APIServers() {
		review, err := clients(t, cp.At(server, config)).AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("server %d: %v", server, err)
		}
		if got, want := review.Status.UserInfo.Username, "system:serviceaccount:"+namespace+":app"; got != want {
			t.Errorf("server %d: the token is %q's, not %q's", server, got, want)
		}
	}
	claims := claimsOf(t, config.BearerToken)
	if claims.Expires == 0 || claims.Kubernetes.Account.UID == "" || len(claims.Audience) == 0 {
		t.Errorf("the token is not bound: %+v", claims)
	}
}

type tokenClaims struct {
	Audience   []string `json:"aud"`
	Expires    int64    `json:"exp"`
	Kubernetes struct {
		Account struct{ UID string } `json:"serviceaccount"`
	} `json:"kubernetes.io"`
}

func claimsOf(t *testing.T, token string) tokenClaims {
	t.Helper()
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		t.Fatal("the token is no JWT")
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil {
		t.Fatal(err)
	}
	var claims tokenClaims
	if err := json.Unmarshal(payload, &claims); err != nil {
		t.Fatal(err)
	}
	return claims
}

func TestServersShareTheirData(t *testing.T) {
	cp := kit.Shared(t)
	namespace := kit.Namespace(t, cp.AdminConfig(0))
	for writer, reader := range []int{1, 0} {
		name := fmt.Sprintf("from-%d", writer)
		if _, err := clients(t, cp.AdminConfig(writer)).CoreV1().ConfigMaps(namespace).Create(t.Context(), configMap(name), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := clients(t, cp.AdminConfig(reader)).CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			t.Errorf("server %d: %v", reader, err)
		}
	}
}

// Controllers act in their own names, and the scheduler places Pods.
func TestControllers(t *testing.T) {
	cp := kit.Shared(t)
	admin := clients(t, cp.AdminConfig(0))
	namespace := kit.Namespace(t, cp.AdminConfig(0))
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: namespace}, // as unique
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10"), corev1.ResourceCPU: resource.MustParse("4"), corev1.ResourceMemory: resource.MustParse("4Gi")},
		},
	}
	node.Status.Capacity = node.Status.Allocatable
	if _, err := admin.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = admin.CoreV1().Nodes().Delete(context.Background(), node.Name, metav1.DeleteOptions{}) })

	labels := map[string]string{"app": "placed"}
	_, err := admin.AppsV1().StatefulSets(namespace).Create(t.Context(), &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "placed"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: ptr.To[int32](1),
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: labels},
				Spec: corev1.PodSpec{
					Containers:  []corev1.Container{{Name: "main", Image: "main"}},
					Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
				},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kit.Eventually(t, patience, func() error {
		pod, err := admin.CoreV1().Pods(namespace).Get(t.Context(), "placed-0", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if pod.Spec.NodeName != node.Name {
			return fmt.Errorf("the Pod is on node %q; conditions %v", pod.Spec.NodeName, pod.Status.Conditions)
		}
		return nil
	})
	kit.Eventually(t, patience, func() error {
		log, err := os.ReadFile(cp.AuditLog(0))
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(log)) {
			var event struct {
				Verb      string
				User      struct{ Username string }
				ObjectRef struct{ Resource, Namespace string }
			}
			if err := json.Unmarshal([]byte(line), &event); err != nil {
				continue // the last line may still be written
			}
			if event.Verb == "create" && event.ObjectRef.Resource == "pods" && event.ObjectRef.Namespace == namespace {
				if got, want := event.User.Username, "system:serviceaccount:kube-system:statefulset-controller"; got != want {
					t.Fatalf("the Pod was created by %q, not %q", got, want)
				}
				return nil
			}
		}
		return errors.New("the audit log has no creation of the Pod")
	})
}

// Cluster IPs are loopback addresses that a process can listen on, and the API
// server calls a webhook there by its Service.
func TestServicesAreReachable(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Log("only Linux has all of 127.0.0.0/8 on the loopback interface: addresses are checked, calls are not")
	}
	cp := kit.Shared(t)
	admin := clients(t, cp.AdminConfig(0))
	namespace := kit.Namespace(t, cp.AdminConfig(0))
	port, err := kit.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	service := func(name, ip string) string {
		t.Helper()
		created, err := admin.CoreV1().Services(namespace).Create(t.Context(), &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       corev1.ServiceSpec{ClusterIP: ip, Ports: []corev1.ServicePort{{Port: int32(port)}}},
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { // before the namespace: the next test may want the address
			_ = admin.CoreV1().Services(namespace).Delete(context.Background(), name, metav1.DeleteOptions{})
		})
		return created.Spec.ClusterIP
	}
	if got := service("fixed", "127.96.77.7"); got != "127.96.77.7" {
		t.Errorf("fixed cluster IP became %s", got)
	}
	ip := service("hook", "")
	_, cidr, err := net.ParseCIDR(kit.ServiceCIDR)
	if err != nil {
		t.Fatal(err)
	}
	if !cidr.Contains(net.ParseIP(ip)) {
		t.Fatalf("cluster IP %s is not in %s", ip, cidr)
	}
	if runtime.GOOS != "linux" {
		return
	}

	ca := serveDenials(t, net.JoinHostPort(ip, strconv.Itoa(port)), "hook."+namespace+".svc")
	webhook := &admissionregistrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: namespace},
		Webhooks: []admissionregistrationv1.ValidatingWebhook{{
			Name: "hook.example.test",
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				Service:  &admissionregistrationv1.ServiceReference{Namespace: namespace, Name: "hook", Port: ptr.To(int32(port))},
				CABundle: ca.CertPEM(),
			},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}},
			NamespaceSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
			SideEffects:             ptr.To(admissionregistrationv1.SideEffectClassNone),
			AdmissionReviewVersions: []string{"v1"},
		}},
	}
	hooks := admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	if _, err := hooks.Create(t.Context(), webhook, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = hooks.Delete(context.Background(), webhook.Name, metav1.DeleteOptions{}) })
	kit.Eventually(t, patience, func() error {
		_, err := admin.CoreV1().ConfigMaps(namespace).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "denied-"}}, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "denied by the test") {
			return fmt.Errorf("the webhook did not answer: %w", err)
		}
		return nil
	})
}

// serveDenials serves an admission webhook that denies all, with a certificate
// for name, and returns the authority of that.
func serveDenials(t *testing.T, address, name string) *kit.CA {
	t.Helper()
	ca, err := kit.NewCA("hook")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := ca.IssueServer(name)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", address, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12})
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{
		ReadHeaderTimeout: patience,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			var review admissionv1.AdmissionReview
			if err := json.NewDecoder(io.LimitReader(r.Body, 1<<20)).Decode(&review); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Result: &metav1.Status{Message: "denied by the test"}}
			review.Request = nil
			w.Header().Set("Content-Type", "application/json")
			_ = json.NewEncoder(w).Encode(review)
		}),
	}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return ca
}
