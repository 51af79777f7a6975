package chart

import (
	"encoding/base64"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/metacontroller-solo/solo/test/kit"
)

// TestInstallation takes the chart through its life on a real API server, in a
// namespace that admits restricted Pods only, with the guard and the controller
// running. A bystander sees to it that nobody else is touched.
func TestInstallation(t *testing.T) {
	needHelm(t)
	l := newLab(t)
	b := l.bystander()
	for _, part := range []struct {
		name string
		run  func(*lab)
	}{
		{"first install (E15)", testFirstInstall},
		{"second release (C31)", testSecondRelease},
		{"upgrade", testUpgrade},
		{"rollback", testRollback},
		{"drain (E25, E26)", testDrain},
		{"uninstall (E16)", testUninstall},
		{"uninstall with the CRDs (E16)", testUninstallWithDefinitions},
		{"namespace deleted by force (E16)", testNamespaceDeleted},
		{"without a caBundle (E12)", testNoCABundle},
		{"guard alone", testGuardAlone},
		{"controller alone", testControllerAlone},
		{"kustomizations", testKustomizations},
	} {
		if !t.Run(part.name, func(t *testing.T) { part.run(l.in(t)) }) {
			break
		}
	}
	b.wantUnharmed(t)
}

// olderChart is the chart as if of an earlier version: with another version, and
// a CRD with another short name. It is one of the controller's, for the guard would
// report that its own is not as it should be.
func olderChart(l *lab) string {
	l.t.Helper()
	folder := filepath.Join(l.t.TempDir(), "chart")
	if err := os.CopyFS(folder, os.DirFS(filepath.Join(l.cluster.Root, chartFolder))); err != nil {
		l.t.Fatal(err)
	}
	edit(l.t, filepath.Join(folder, "Chart.yaml"), "\nversion: ", "\nversion: 0.0.1 # ")
	edit(l.t, filepath.Join(folder, filesFolder[len(chartFolder):], "crd.yaml"), "- "+shortName+"\n", "- "+oldShortName+"\n")
	return folder
}

// The short name of CompositeControllers, and that of the earlier version's CRD.
const (
	shortName    = "cc"
	oldShortName = "old-cc"
)

// wantShortName checks which version the CRD is of.
func (l *lab) wantShortName(want string) {
	l.t.Helper()
	if got := l.kubectl("get", "crd", "compositecontrollers.metacontroller.k8s.io", "-o", "jsonpath={.spec.names.shortNames[0]}"); got != want {
		l.t.Errorf("the CRD has the short name %q, want %q", got, want)
	}
}

func edit(t testing.TB, path, from, to string) {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(data), from, to, 1)
	if changed == string(data) {
		t.Fatalf("%s has no %q", path, from)
	}
	if err := os.WriteFile(path, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
}

func testFirstInstall(l *lab) {
	l.namespace(namespace)
	l.step("helm install of the earlier version")
	output := l.mustHelm(l.release("install", olderChart(l), "--wait")...)
	if !strings.Contains(output, "kubectl get singletonpolicies") {
		l.t.Errorf("the notes say nothing of the policy:\n%s", output)
	}
	l.wantHolder(namespace + "/" + release)
	l.wantCABundle(l.ca.CertPEM())
	l.wantEnforced()
	l.wantRestricted()
}

// wantEnforced waits until a second workload is refused by the guard, and a Pod by
// the API server itself.
func (l *lab) wantEnforced() {
	l.t.Helper()
	l.eventually(func() error {
		err := l.stranger("Deployment")
		if err == nil {
			return fmt.Errorf("a second workload was let in")
		}
		if !strings.Contains(err.Error(), "workloads.guard.metacontroller.io") {
			return err
		}
		return nil
	})
}

// wantRestricted checks that the namespace would have refused other Pods.
func (l *lab) wantRestricted() {
	l.t.Helper()
	_, err := l.clients.CoreV1().Pods(namespace).Create(l.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "loose"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "nginx", Image: "docker.io/library/nginx"}}},
	}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err == nil || !strings.Contains(err.Error(), "violates PodSecurity") {
		l.t.Errorf("a Pod without a securityContext in the namespace: %v", err)
	}
}

func testSecondRelease(l *lab) {
	l.step("helm install of the whole chart again")
	_, err := l.helm("install", "second", chartFolder, "--namespace", "second", "--create-namespace", "--values", l.addresses, "--values", l.certificate)
	if err == nil || !strings.Contains(err.Error(), "cannot be imported into the current release") {
		l.t.Errorf("a second release of everything: %v", err)
	}
	l.step("helm install of another controller")
	_, err = l.helm("install", "another", chartFolder, "--namespace", "second", "--create-namespace", "--values", l.addresses, "--values", l.certificate,
		"--set", "guard.enabled=false,crds.enabled=false")
	for _, part := range []string{"second-workload", namespace + "/" + release} {
		if err == nil || !strings.Contains(err.Error(), part) {
			l.t.Errorf("a second release of the controller: %v, want %q", err, part)
		}
	}
	l.t.Logf("the guard says: %v", err)
	for _, name := range []string{"another", "second"} {
		// Helm keeps a record of what failed.
		if output, err := l.helm("uninstall", name, "--namespace", "second", "--ignore-not-found"); err != nil {
			l.t.Errorf("%v: %s", err, output)
		}
	}
	l.wantHolder(namespace + "/" + release)
}

func testUpgrade(l *lab) {
	l.wantShortName(oldShortName)
	before := l.kubectl("get", "singletonpolicy", release, "-o", "jsonpath={.metadata.uid} {.status.holder.uid}")
	l.step("helm upgrade to the present version")
	l.mustHelm(l.release("upgrade", chartFolder, "--wait", "--set", "guard.podAnnotations.upgraded=yes")...)
	l.wantShortName(shortName)
	if after := l.kubectl("get", "singletonpolicy", release, "-o", "jsonpath={.metadata.uid} {.status.holder.uid}"); after != before {
		l.t.Errorf("the policy and its holder were %q and are %q", before, after)
	}
	l.wantCABundle(l.ca.CertPEM())
	l.wantEnforced()
	l.step("helm upgrade once more, with nothing new")
	l.mustHelm(l.release("upgrade", chartFolder, "--wait", "--set", "guard.podAnnotations.upgraded=yes")...)
	l.wantEnforced()
}

// testRollback goes back to the first revision, in which hooks made the bindings, and
// on again.
func testRollback(l *lab) {
	l.step("helm rollback to the first install")
	l.mustHelm("rollback", release, "1", "--namespace", namespace, "--wait", "--timeout", helmLimit)
	l.wantShortName(oldShortName)
	l.wantBindings()
	l.wantEnforced()
	l.wantHolder(namespace + "/" + release)
	l.step("helm upgrade to the present version")
	l.mustHelm(l.release("upgrade", chartFolder, "--wait")...)
	l.wantBindings()
	l.wantEnforced()
}

// wantBindings checks that all bindings of the guard's policies are there, with what
// "guard render" has in them.
func (l *lab) wantBindings() {
	l.t.Helper()
	for id, object := range rendered(l.t, "--namespace", namespace) {
		// It is in no namespace.
		kind, name, _ := strings.Cut(id, " /")
		if kind != "ValidatingAdmissionPolicyBinding" {
			continue
		}
		want, _, _ := unstructured.NestedStringSlice(object.(map[string]any), "spec", "validationActions")
		got := strings.Fields(l.kubectl("get", kind, name, "-o", "jsonpath={.spec.validationActions[*]}"))
		if !slices.Equal(got, want) {
			l.t.Errorf("the binding %s has the actions %v, want %v", name, got, want)
		}
	}
}

// guards are the ready Pods of the guard, by node.
func (l *lab) guards() map[string][]string {
	l.t.Helper()
	pods, err := l.clients.CoreV1().Pods(namespace).List(l.t.Context(), metav1.ListOptions{LabelSelector: "app.kubernetes.io/name=metacontroller-guard"})
	if err != nil {
		l.t.Fatal(err)
	}
	all := map[string][]string{}
	for _, pod := range pods.Items {
		for _, condition := range pod.Status.Conditions {
			if condition.Type == corev1.PodReady && condition.Status == corev1.ConditionTrue && pod.DeletionTimestamp == nil {
				all[pod.Spec.NodeName] = append(all[pod.Spec.NodeName], pod.Name)
			}
		}
		if pod.Spec.Priority == nil || *pod.Spec.Priority < 2_000_000_000 {
			l.t.Errorf("Pod %s has priority %v", pod.Name, pod.Spec.Priority)
		}
	}
	return all
}

func (l *lab) wantGuards(want int) {
	l.t.Helper()
	l.eventually(func() error {
		count := 0
		for _, pods := range l.guards() {
			count += len(pods)
		}
		if count != want {
			return fmt.Errorf("%d guards are ready, want %d", count, want)
		}
		return nil
	})
}

func testDrain(l *lab) {
	l.wantGuards(2)
	l.step("evict two guards at once")
	var outcomes []string
	for _, pods := range l.guards() {
		for _, pod := range pods {
			err := l.clients.PolicyV1().Evictions(namespace).Evict(l.t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod}})
			switch {
			case err == nil:
				outcomes = append(outcomes, "evicted")
			case apierrors.IsTooManyRequests(err):
				outcomes = append(outcomes, "kept")
			default:
				l.t.Fatal(err)
			}
		}
	}
	if strings.Join(outcomes, " ") != "evicted kept" {
		l.t.Errorf("two evictions at once: %v", outcomes)
	}
	l.wantGuards(2)
	for _, node := range []string{"local-a", "local-b"} {
		l.step("drain " + node + ": the other one alone is a cluster of one node")
		l.kubectl("drain", node, "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout="+waitLimit.String())
		l.wantGuards(2)
		l.wantEnforced()
		l.kubectl("uncordon", node)
	}
	l.eventually(func() error {
		_, err := l.cluster.Kubectl.Run(l.t.Context(), "rollout", "status", "-n", namespace, "statefulset/"+release, "--timeout=1s")
		return err
	})
	l.wantHolder(namespace + "/" + release)
}

func testUninstall(l *lab) {
	l.step("helm uninstall")
	output := l.mustHelm("uninstall", release, "--namespace", namespace, "--wait", "--timeout", helmLimit)
	if !strings.Contains(output, "kept due to the resource policy") {
		l.t.Errorf("Helm does not say what it kept:\n%s", output)
	}
	l.wantNothingLeft("customresourcedefinitions")
	l.wantFree()
}

func testUninstallWithDefinitions(l *lab) {
	l.step("helm install, with the CRDs of the release before")
	l.mustHelm(l.release("install", chartFolder, "--wait", "--set", "crds.keep=false")...)
	l.wantHolder(namespace + "/" + release)
	l.wantEnforced()
	l.step("the CRD cannot be deleted while the guard is installed")
	if output, err := l.cluster.Kubectl.Run(l.t.Context(), "delete", "crd", "singletonpolicies.guard.metacontroller.io"); err == nil || !strings.Contains(err.Error(), "[protected]") {
		l.t.Errorf("%v: %s", err, output)
	}
	l.step("helm uninstall with the CRDs")
	l.mustHelm("uninstall", release, "--namespace", namespace, "--wait", "--timeout", helmLimit)
	l.wantNothingLeft()
}

// oneLiner is what the notes say to run when the namespace was deleted.
func oneLiner(l *lab, notes string) []string {
	l.t.Helper()
	for line := range strings.Lines(notes) {
		if command := strings.TrimSpace(line); strings.HasPrefix(command, "kubectl delete ") {
			return strings.Fields(command)[1:]
		}
	}
	l.t.Fatalf("the notes say no command:\n%s", notes)
	return nil
}

func testNamespaceDeleted(l *lab) {
	l.step("helm install")
	notes := l.mustHelm(l.release("install", chartFolder, "--wait")...)
	l.wantHolder(namespace + "/" + release)
	l.wantEnforced()
	l.step("delete the namespace, by force")
	l.kubectl("delete", "namespace", namespace, "--force", "--grace-period=0", "--wait=false")
	// The guard's alone: while one answers, it does not let the holder's Pod be forced out.
	l.kubectl("delete", "pods", "-l", "app.kubernetes.io/name=metacontroller-guard", "-n", namespace, "--force", "--grace-period=0", "--wait=false")
	l.eventually(func() error {
		if _, err := l.clients.CoreV1().Namespaces().Get(l.t.Context(), namespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the namespace is there: %v", err)
		}
		return nil
	})
	l.step("run what the notes say")
	l.kubectl(oneLiner(l, notes)...)
	l.wantFree()
	l.step("install again, over what Helm has lost sight of")
	l.namespace(namespace)
	l.mustHelm(l.release("install", chartFolder, "--wait", "--take-ownership")...)
	l.wantHolder(namespace + "/" + release)
	l.mustHelm("uninstall", release, "--namespace", namespace, "--wait", "--timeout", helmLimit)
}

// testNoCABundle is an install while the CA injector is down: the guard runs, and no
// API server can call it.
func testNoCABundle(l *lab) {
	l.step("helm install, where nobody fills in the caBundle")
	l.mustCertManagerDefinitions()
	_, err := l.helm(l.release("install", chartFolder, "--wait", "--set", "tls.source=cert-manager,check.backoffLimit=0,check.activeDeadlineSeconds=120")...)
	if err == nil {
		l.t.Fatal("the install succeeded, though no API server can call the guard")
	}
	l.t.Logf("helm says: %v", err)
	for _, part := range []string{"metacontroller-guard-check", "caBundle"} {
		if !strings.Contains(err.Error(), part) {
			l.t.Errorf("the error does not say %q", part)
		}
	}
	l.step("nobody else is blocked, and a second instance is refused all the same")
	if err := l.stranger("Deployment"); err == nil {
		l.t.Error("a second workload was let in")
	}
	l.mustHelm("uninstall", release, "--namespace", namespace, "--wait", "--timeout", helmLimit)
}

// testGuardAlone is the guard beside a Metacontroller of somebody else.
func testGuardAlone(l *lab) {
	l.step("a public Metacontroller")
	l.startPublicController()
	l.step("helm install of the guard alone")
	l.mustHelm(l.release("install", chartFolder, "--wait", "--set", "controller.enabled=false")...)
	l.wantHolder("public/metacontroller")
	l.wantEnforced()
	l.mustHelm("uninstall", release, "--namespace", namespace, "--wait", "--timeout", helmLimit)
	l.kubectl("delete", "namespace", "public")
}

// testControllerAlone is the controller where there is no guard: its lease still lets
// one sync.
func testControllerAlone(l *lab) {
	l.step("helm install of the controller alone")
	l.mustHelm(l.release("install", chartFolder, "--wait", "--set", "guard.enabled=false")...)
	l.eventually(func() error {
		holder := l.kubectl("get", "lease", "metacontroller", "-n", metav1.NamespaceSystem, "-o", "jsonpath={.spec.holderIdentity}")
		if !strings.HasPrefix(holder, release+"-0_") {
			return fmt.Errorf("the lease's holder is %q", holder)
		}
		return nil
	})
	l.mustHelm("uninstall", release, "--namespace", namespace, "--wait", "--timeout", helmLimit)
	l.wantNothingLeft("customresourcedefinitions")
	l.wantFree()
}

// publicController is a Metacontroller of somebody else.
const publicController = `
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: metacontroller, namespace: public}
spec:
  replicas: 1
  serviceName: ""
  selector: {matchLabels: {app: metacontroller}}
  template:
    metadata: {labels: {app: metacontroller}}
    spec:
      containers: [{name: metacontroller, image: "ghcr.io/metacontroller/metacontroller:v4.17.2"}]
`

// startPublicController starts it, as the only one.
func (l *lab) startPublicController() {
	l.t.Helper()
	l.eventually(func() error {
		_, err := l.cluster.Kubectl.Run(l.t.Context(), "create", "namespace", "public")
		return err
	})
	l.kubectl("apply", "-f", l.file(publicController))
	l.eventually(func() error {
		_, err := l.clients.CoreV1().Pods("public").Get(l.t.Context(), "metacontroller-0", metav1.GetOptions{})
		return err
	})
}

// testKustomizations applies each of the folders as it is, waits until all of it
// works, and removes it.
func testKustomizations(l *lab) {
	l.step("cert-manager")
	if err := l.cluster.StartCertManager(l.t.Context()); err != nil {
		l.t.Fatal(err)
	}
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		l.t.Run(folder, func(t *testing.T) {
			l := l.in(t)
			holder := "metacontroller/metacontroller"
			if folder == "config/guard-only" {
				holder = "public/metacontroller"
				l.startPublicController()
			}
			objects := parse(t, kustomize(t, folder))
			// The certificate of these comes from elsewhere.
			bundle := folder == "config/default" || folder == "config/guard-only"
			if bundle {
				l.namespace(guardNamespace)
			}
			l.step("apply")
			l.kubectl("apply", "--server-side", "-k", "config/crd")
			l.eventually(func() error {
				_, err := l.cluster.Kubectl.Run(t.Context(), "get", "singletonpolicies,compositecontrollers,decoratorcontrollers")
				return err
			})
			l.kubectl("apply", "--server-side", "-f", l.file(l.localForm(objects, bundle)))
			if folders[folder] {
				l.kubectl("rollout", "status", "-n", guardNamespace, "deployment/metacontroller-guard", "--timeout="+waitLimit.String())
				l.wantEnforced()
				l.wantHolder(holder)
			}
			if len(of(objects, "StatefulSet")) > 0 {
				l.kubectl("rollout", "status", "-n", namespace, "statefulset/metacontroller", "--timeout="+waitLimit.String())
			}
			l.step("delete")
			l.shell(commands(t, onKustomizeRemoval)[0])
			l.kubectl("delete", "-k", folder, "--ignore-not-found")
			l.kubectl("delete", "-k", "config/crd", "--ignore-not-found")
			l.kubectl("delete", "namespace", "public", "--ignore-not-found")
			l.wantNothingLeft()
			l.wantFree()
		})
	}
}

// localForm is objects as the local cluster needs them: with addresses for the
// controller, and the caBundle if that comes from elsewhere.
func (l *lab) localForm(objects []*unstructured.Unstructured, bundle bool) string {
	l.t.Helper()
	var all strings.Builder
	for _, o := range objects {
		switch o.GetKind() {
		case "StatefulSet":
			containers, _, _ := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
			container := containers[0].(map[string]any)
			container["args"] = append(container["args"].([]any), "--metrics-address=$(POD_IP):9999", "--health-probe-bind-address=$(POD_IP):8081")
			if err := unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers"); err != nil {
				l.t.Fatal(err)
			}
		case "ValidatingWebhookConfiguration":
			webhooks, _, _ := unstructured.NestedSlice(o.Object, "webhooks")
			for _, webhook := range webhooks {
				if bundle {
					webhook.(map[string]any)["clientConfig"].(map[string]any)["caBundle"] = base64.StdEncoding.EncodeToString(l.ca.CertPEM())
				}
			}
			if err := unstructured.SetNestedSlice(o.Object, webhooks, "webhooks"); err != nil {
				l.t.Fatal(err)
			}
		}
		data, err := yaml.Marshal(o.Object)
		if err != nil {
			l.t.Fatal(err)
		}
		all.WriteString("---\n" + string(data))
	}
	return all.String()
}

// mustCertManagerDefinitions applies cert-manager's CRDs, without the program: there
// are Certificates then, and nobody who issues them or fills in a caBundle.
func (l *lab) mustCertManagerDefinitions() {
	l.t.Helper()
	definitions, err := kit.CertManagerCRDs(l.t.Context())
	if err != nil {
		l.t.Fatal(err)
	}
	if err := l.cluster.Apply(l.t.Context(), definitions); err != nil {
		l.t.Fatal(err)
	}
	// What Helm asks for kinds may be a moment old.
	l.eventually(func() error {
		_, err := l.cluster.Kubectl.Run(l.t.Context(), "get", "certificates.cert-manager.io,issuers.cert-manager.io", "-n", namespace)
		return err
	})
}
