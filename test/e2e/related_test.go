package e2e_test

import (
	"encoding/base64"
	"testing"
)

const (
	globalConfigMaps   = "samples.metacontroller.io/v1/globalconfigmaps"
	secretPropagations = "samples.metacontroller.io/v1/secretpropagations"
)

func testGlobalConfigMap(t *testing.T, s *sample) {
	const (
		target = "global-configmap-target"
		second = "global-configmap-second"
	)
	color := func(namespace, value string) {
		t.Helper()
		s.want("v1/configmaps", namespace, "settings", "data.color", value)
	}
	s.step("create: a copy in the namespace with the label")
	s.example()
	color(target, "green")
	s.want(globalConfigMaps, "", "settings", "status.source", "Found", "status.copies", "1")

	s.step("change: the copy follows the original, and is healed")
	s.patch("configmap/settings", s.name, `{"data":{"color":"blue"}}`)
	color(target, "blue")
	s.patch("configmap/settings", target, `{"data":{"color":"pink"}}`)
	color(target, "blue")
	s.kubectl("delete", "configmap", "settings", "-n", target)
	color(target, "blue")

	s.step("scale: a namespace comes, gains the label, and loses it")
	s.kubectl("create", "namespace", second)
	s.kubectl("label", "namespace", second, "settings=wanted")
	color(second, "blue")
	s.want(globalConfigMaps, "", "settings", "status.copies", "2")
	s.kubectl("label", "namespace", second, "settings-")
	s.wantGone("v1/configmaps", second, "settings")
	s.want(globalConfigMaps, "", "settings", "status.copies", "1")

	s.step("roll: another original")
	s.kubectl("create", "configmap", "others", "-n", s.name, "--from-literal=color=red")
	s.patch("globalconfigmap/settings", "", `{"spec":{"source":{"name":"others"}}}`)
	s.want("v1/configmaps", target, "others", "data.color", "red")
	s.wantGone("v1/configmaps", target, "settings")

	s.step("the original goes, and comes back")
	s.kubectl("delete", "configmap", "others", "-n", s.name)
	s.wantGone("v1/configmaps", target, "others")
	s.want(globalConfigMaps, "", "settings", "status.source", "Missing", "status.copies", "0")
	s.kubectl("create", "configmap", "others", "-n", s.name, "--from-literal=color=white")
	s.want("v1/configmaps", target, "others", "data.color", "white")

	s.step("delete: the copies go, the original stays")
	s.kubectl("delete", "globalconfigmap", "settings")
	s.wantGone("v1/configmaps", target, "others")
	s.want("v1/configmaps", s.name, "others", "data.color", "white")
	s.kubectl("delete", "namespace", second)
}

func testSecretPropagation(t *testing.T, s *sample) {
	const (
		source = "secret-propagation-source"
		target = "secret-propagation-target"
		later  = "secret-propagation-later"
	)
	user := func(namespace, name, value string) {
		t.Helper()
		s.want("v1/secrets", namespace, name, "data.user", base64.StdEncoding.EncodeToString([]byte(value)))
	}
	s.step("create")
	s.example()
	user(target, "registry", "ada")
	s.want(secretPropagations, "", "registry", "status.sources", "1", "status.namespaces", "1", "status.copies", "1")

	s.step("change, and heal")
	s.patch("secret/registry", source, `{"stringData":{"user":"grace"}}`)
	user(target, "registry", "grace")
	s.kubectl("delete", "secret", "registry", "-n", target)
	user(target, "registry", "grace")

	s.step("scale: more Secrets and more namespaces, of which one becomes a source later")
	s.kubectl("create", "namespace", later)
	s.kubectl("create", "secret", "generic", "mirror", "-n", later, "--from-literal=user=linus")
	s.kubectl("label", "secret", "mirror", "-n", later, "propagate=true")
	s.kubectl("label", "namespace", later, "secrets=source")
	user(target, "mirror", "linus")
	s.want(secretPropagations, "", "registry", "status.sources", "2")

	s.step("roll: the namespace turns from a source into a target")
	s.kubectl("label", "namespace", later, "secrets=wanted", "--overwrite")
	s.wantGone("v1/secrets", target, "mirror")
	user(later, "registry", "grace")
	// The Secret of its own is nobody's copy.
	user(later, "mirror", "linus")

	s.step("a Secret loses its label")
	s.kubectl("label", "secret", "registry", "-n", source, "propagate-")
	s.wantGone("v1/secrets", target, "registry")
	s.wantGone("v1/secrets", later, "registry")
	s.kubectl("label", "secret", "registry", "-n", source, "propagate=true")
	user(target, "registry", "grace")

	s.step("delete: the copies go, the originals stay")
	s.kubectl("delete", "secretpropagation", "registry")
	s.wantGone("v1/secrets", target, "registry")
	s.wantGone("v1/secrets", later, "registry")
	user(source, "registry", "grace")
	s.kubectl("delete", "namespace", later)
}
