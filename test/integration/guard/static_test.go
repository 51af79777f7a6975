package guard_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/metacontroller-solo/solo/pkg/guard/pin"
	"github.com/metacontroller-solo/solo/test/kit"
)

const staticAdmission = `apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ValidatingAdmissionPolicy
  configuration:
    apiVersion: apiserver.config.k8s.io/v1
    kind: ValidatingAdmissionPolicyConfiguration
    staticManifestsDir: `

// TestStaticPolicies starts an API server with nothing of the guard in it but
// what "guard render --static" prints: no CRD, no policy, no webhook, no guard.
//
//	case F04: all admission objects are deleted, and a second instance is refused.
//	case E03: the guard is down, and a second instance is refused.
//	case E05: so it is in the guard's own namespace.
func TestStaticPolicies(t *testing.T) {
	dir := t.TempDir()
	folder := filepath.Join(dir, "policies")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	rendered, err := exec.Command(kit.Build(t, guardProgram), "render", "--static", "--holder=prod/mc").Output()
	if err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "admission.yaml")
	for path, content := range map[string]string{filepath.Join(folder, "guard.yaml"): string(rendered), config: staticAdmission + folder + "\n"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cp, err := kit.Start(t.Context(), kit.Options{
		WithoutControllers: true,
		// Nobody makes the service accounts that it asks for.
		APIServerArgs: []string{"--admission-control-config-file=" + config, "--disable-admission-plugins=ServiceAccount"},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cp.Stop)
	as := func(user string) client.Client {
		config := cp.AdminConfig(0)
		if user != "" {
			config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
		}
		c, err := client.New(config, client.Options{Scheme: scheme})
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	admin, controller := as(""), as(pin.StatefulSetController)
	ctx := t.Context()
	for _, namespace := range []string{"prod", "dev", guardNamespace} {
		if err := admin.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}); err != nil {
			t.Fatal(err)
		}
	}
	holder := statefulSet("prod", "mc")
	if err := admin.Create(ctx, holder); err != nil {
		t.Fatal(err)
	}
	pinned := pod("prod", "mc-0", instanceImage)
	yes := true
	pinned.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "mc", UID: holder.UID, Controller: &yes}}
	copied := pinned.DeepCopy()
	if err := controller.Create(ctx, pinned); err != nil {
		t.Fatalf("the pinned Pod: %v", err)
	}
	for why, test := range map[string]struct {
		by     client.Client
		object client.Object
		rule   string
	}{
		"a second StatefulSet": {admin, statefulSet("dev", "mc"), "second-workload"},
		"a second Deployment":  {admin, deployment("dev", "mc"), "second-workload"},
		"a Job":                {admin, job("dev", "mc"), "second-workload"},
		"a CronJob":            {admin, cronJob("dev", "mc"), "second-workload"},
		"a bare Pod":           {admin, pod("dev", "mc-0", instanceImage), "pod-not-pinned"},
		"F09: the pinned name, by system:masters": {admin, named0(copied, "mc-0"), "pod-not-pinned"},
		"another ordinal, by the controller":      {controller, named0(copied, "mc-1"), "pod-not-pinned"},
		"E05: in the guard's own namespace":       {admin, statefulSet(guardNamespace, "mc"), "second-workload"},
		"E05: a Pod in the guard's own namespace": {admin, pod(guardNamespace, "x", instanceImage), "pod-not-pinned"},
	} {
		err := test.by.Create(ctx, test.object, client.DryRunAll)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "["+test.rule+"]") || !strings.Contains(err.Error(), pin.StaticSuffix) {
			t.Errorf("%s: got %v, want it refused by %s", why, err, test.rule)
		}
	}
	if err := admin.Create(ctx, pod("dev", "x", strangerImage), client.DryRunAll); err != nil {
		t.Errorf("a stranger: %v", err)
	}
	two := client.WithSubResourceBody(&autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 2}})
	if err := admin.SubResource("scale").Update(ctx, holder, two); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "[scale-above-one]") {
		t.Errorf("scaling the holder: got %v", err)
	}
	// Nobody can take them away through the API, for they are not in it.
	list := &admissionregistrationv1.ValidatingAdmissionPolicyList{}
	if err := admin.List(ctx, list); err != nil || len(list.Items) != 0 {
		t.Errorf("the API has %d policies, %v", len(list.Items), err)
	}
	// They hold from the first request on.
	if err := cp.RestartAPIServer(context.WithoutCancel(ctx), 0); err != nil {
		t.Fatal(err)
	}
	if err := admin.Create(ctx, statefulSet("dev", "mc"), client.DryRunAll); !apierrors.IsForbidden(err) {
		t.Errorf("after a restart: got %v", err)
	}
}

func named0(object *corev1.Pod, name string) *corev1.Pod {
	object = object.DeepCopy()
	object.Name = name
	return object
}
