package environ

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

func TestExpand(t *testing.T) {
	lookup := func(name string) (string, bool) {
		value, ok := map[string]string{"A": "a", "B": "$(A)", "EMPTY": ""}[name]
		return value, ok
	}
	for in, want := range map[string]string{
		"":               "",
		"plain":          "plain",
		"$(A)":           "a",
		"x$(A)y$(A)":     "xaya",
		"$(B)":           "$(A)", // values are not expanded again
		"$(EMPTY)":       "",
		"$(NONE)":        "$(NONE)",
		"$$(A)":          "$(A)",
		"$$$(A)":         "$a",
		"$A ${A} $":      "$A ${A} $",
		"$(A":            "$(A",
		"$(A $(A)":       "$(A $(A)", // the name is "A $(A"
		"100$ and $(A)$": "100$ and a$",
	} {
		if got := Expand(in, lookup); got != want {
			t.Errorf("Expand(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzExpand(f *testing.F) {
	f.Add("$(A) $$ $(")
	f.Fuzz(func(t *testing.T, s string) {
		// Without a known name only doubled dollar signs change.
		got := Expand(s, func(string) (string, bool) { return "", false })
		if !strings.Contains(s, "$$") && got != s {
			t.Errorf("Expand(%q) = %q", s, got)
		}
	})
}

func TestRewrite(t *testing.T) {
	mounts := Mounts{{"/etc/tls", "/host/a"}, {"/etc/tls/deep/", "/host/b"}, {"/cfg", "/host/c"}, {"/", "/host/root"}}
	for in, want := range map[string]string{
		"/etc/tls":                    "/host/a",
		"/etc/tls/":                   "/host/a/",
		"/etc/tls/tls.crt":            "/host/a/tls.crt",
		"--dir=/etc/tls/x":            "--dir=/host/a/x",
		"--dir=/etc/tls,/cfg/y":       "--dir=/host/a,/host/c/y",
		"/cfg:/etc/tls:/usr/bin":      "/host/c:/host/a:/usr/bin",
		"cat /cfg/a > /cfg/b; ls":     "cat /host/c/a > /host/c/b; ls",
		`"/cfg"`:                      `"/host/c"`,
		"/etc/tls-old /etc/tlsx":      "/etc/tls-old /etc/tlsx",
		"/opt/etc/tls ./cfg /x//cfg":  "/opt/etc/tls ./cfg /x//cfg",
		"/etc/tls/deep/x":             "/host/b/x",
		"/etc/tls/deeper":             "/host/a/deeper",
		"https://host/cfg":            "https://host/cfg",
		"none":                        "none",
		"file:///cfg/x":               "file:///cfg/x",
		"/usr/bin/x stays, as does /": "/usr/bin/x stays, as does /",
	} {
		if got := mounts.Rewrite(in); got != want {
			t.Errorf("Rewrite(%q) = %q, want %q", in, got, want)
		}
	}
}

// What holds no mount path is left as it is.
func TestRewriteLeaves(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.StringOf(rapid.SampledFrom([]rune("/abc.=: "))).Draw(t, "s")
		mounts := Mounts{{"/never", "/host"}}
		if got := mounts.Rewrite(s); got != s {
			t.Fatalf("%q became %q", s, got)
		}
	})
}

func pod() *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "p", Namespace: "ns", UID: "u", Labels: map[string]string{"b": "2", "a": "1"},
			Annotations: map[string]string{"example.com/x": "y"},
		},
		Spec: corev1.PodSpec{NodeName: "n", ServiceAccountName: "sa"},
	}
}

func TestField(t *testing.T) {
	for path, want := range map[string]string{
		"metadata.name": "p", "metadata.namespace": "ns", "metadata.uid": "u", "metadata.labels": "a=\"1\"\nb=\"2\"",
		"metadata.labels['a']": "1", "metadata.labels['none']": "", "metadata.annotations['example.com/x']": "y",
		"spec.nodeName": "n", "spec.serviceAccountName": "sa", "status.podIP": "127.1.1.1", "status.hostIP": "127.0.0.1",
	} {
		got, err := Field(path, pod(), "127.1.1.1", "127.0.0.1")
		if err != nil || got != want {
			t.Errorf("%s: %q, %v, want %q", path, got, err, want)
		}
	}
	for _, path := range []string{"", "metadata.finalizers", "spec.containers['a']", "metadata.labels['a"} {
		if got, err := Field(path, pod(), "", ""); err == nil {
			t.Errorf("%q resolves to %q", path, got)
		}
	}
}

func TestResource(t *testing.T) {
	container := &corev1.Container{Resources: corev1.ResourceRequirements{
		Limits:   corev1.ResourceList{"cpu": resource.MustParse("1500m"), "memory": resource.MustParse("64Mi")},
		Requests: corev1.ResourceList{"cpu": resource.MustParse("100m")},
	}}
	node := corev1.ResourceList{"ephemeral-storage": resource.MustParse("10Gi")}
	for _, c := range []struct{ resource, divisor, want string }{
		{"limits.cpu", "", "2"}, {"limits.cpu", "1m", "1500"}, {"requests.cpu", "1m", "100"}, {"limits.memory", "1Mi", "64"},
		{"limits.memory", "", "67108864"}, {"requests.memory", "", "0"}, {"limits.ephemeral-storage", "1Gi", "10"},
	} {
		selector := &corev1.ResourceFieldSelector{Resource: c.resource}
		if c.divisor != "" {
			selector.Divisor = resource.MustParse(c.divisor)
		}
		got, err := Resource(selector, container, pod(), node)
		if err != nil || got != c.want {
			t.Errorf("%s/%s: %q, %v, want %q", c.resource, c.divisor, got, err, c.want)
		}
	}
	if _, err := Resource(&corev1.ResourceFieldSelector{Resource: "limits.cpu", ContainerName: "none"}, nil, pod(), node); err == nil {
		t.Error("a container that does not exist has resources")
	}
}

func TestBuild(t *testing.T) {
	yes := true
	container := &corev1.Container{
		Command: []string{"/bin/x", "--url=$(URL)"}, Args: []string{"$(FROM_CM)", "/cfg/$(NAME)"}, WorkingDir: "/cfg",
		EnvFrom: []corev1.EnvFromSource{
			{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "cm"}}},
			{Prefix: "P_", SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}}},
			{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: corev1.LocalObjectReference{Name: "none"}, Optional: &yes}},
		},
		Env: []corev1.EnvVar{
			{Name: "NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
			{Name: "URL", Value: "http://$(NAME):$(KUBERNETES_SERVICE_PORT)/$(LATER)"},
			{Name: "LATER", Value: "late"},
			{Name: "OPTIONAL", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: corev1.LocalObjectReference{Name: "s"}, Key: "none", Optional: &yes}}},
			{Name: "FILE", Value: "/cfg/f"},
			{Name: "KUBECONFIG", Value: "/cfg/mine"},
		},
	}
	facts := Facts{
		Pod: pod(), PodIP: "127.1.1.1", HostIP: "127.0.0.1",
		ConfigMaps: map[string]map[string]string{"cm": {"FROM_CM": "cm"}},
		Secrets:    map[string]map[string][]byte{"s": {"KEY": []byte("secret")}},
		Defaults:   map[string]string{"KUBERNETES_SERVICE_PORT": "6443", "KUBECONFIG": "/data/kubeconfig", "TMPDIR": "/cfg/host"},
		Mounts:     Mounts{{"/cfg", "/host/cfg"}},
	}
	got, err := Build(container, facts)
	if err != nil {
		t.Fatal(err)
	}
	want := &Process{
		Command:    []string{"/bin/x", "--url=http://p:6443/$(LATER)"},
		Args:       []string{"cm", "/host/cfg/p"},
		WorkingDir: "/host/cfg",
		Env: []string{
			"FILE=/host/cfg/f", "FROM_CM=cm", "KUBECONFIG=/host/cfg/mine", "KUBERNETES_SERVICE_PORT=6443", "LATER=late", "NAME=p", "P_KEY=secret",
			"TMPDIR=/cfg/host", "URL=http://p:6443/$(LATER)",
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	secrets, configMaps := References(container)
	if diff := cmp.Diff([][]string{{"none", "s"}, {"cm"}}, [][]string{secrets, configMaps}); diff != "" {
		t.Error(diff)
	}
}

func TestBuildMissing(t *testing.T) {
	ref := corev1.LocalObjectReference{Name: "x"}
	have := Facts{Pod: pod(), Secrets: map[string]map[string][]byte{"x": {}}, ConfigMaps: map[string]map[string]string{"x": {}}}
	none := Facts{Pod: pod()}
	secretKey := []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: ref, Key: "k"}}}}
	configKey := []corev1.EnvVar{{Name: "A", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: ref, Key: "k"}}}}
	for _, c := range []struct {
		container corev1.Container
		facts     Facts
		want      MissingError
	}{
		{corev1.Container{Env: secretKey}, none, MissingError{KindSecret, "x", ""}},
		{corev1.Container{Env: secretKey}, have, MissingError{KindSecret, "x", "k"}},
		{corev1.Container{Env: configKey}, none, MissingError{KindConfigMap, "x", ""}},
		{corev1.Container{Env: configKey}, have, MissingError{KindConfigMap, "x", "k"}},
		{corev1.Container{EnvFrom: []corev1.EnvFromSource{{SecretRef: &corev1.SecretEnvSource{LocalObjectReference: ref}}}}, none, MissingError{KindSecret, "x", ""}},
		{corev1.Container{EnvFrom: []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: ref}}}}, none, MissingError{KindConfigMap, "x", ""}},
	} {
		_, err := Build(&c.container, c.facts)
		var missing *MissingError
		if !errors.As(err, &missing) || *missing != c.want {
			t.Errorf("error %v, want %+v", err, c.want)
		}
	}
}
