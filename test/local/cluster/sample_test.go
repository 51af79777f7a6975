package cluster

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"
)

const controllers = `
apiVersion: v1
kind: Service
metadata: {name: hook, namespace: home}
---
apiVersion: metacontroller.k8s.io/v1alpha1
kind: CompositeController
metadata: {name: c}
spec:
  hooks:
    sync: {version: v2, webhook: {service: {name: hook, namespace: home}, path: /sync, timeout: 3s}}
    finalize: {webhook: {url: "http://elsewhere/finalize"}}
`

func TestLocalize(t *testing.T) {
	objects, err := decode([]byte(controllers))
	if err != nil {
		t.Fatal(err)
	}
	found, others := split(objects)
	if len(found) != 1 || len(others) != 1 || others[0].GetKind() != "Service" {
		t.Fatalf("controllers are %v, others %v", found, others)
	}
	if err := localize(found[0], func(namespace, name string) (string, error) {
		if namespace != "home" || name != "hook" {
			t.Errorf("it asks for Service %s/%s", namespace, name)
		}
		return "127.96.1.2", nil
	}); err != nil {
		t.Fatal(err)
	}
	var want any
	if err := yaml.Unmarshal([]byte(`
sync: {version: v2, webhook: {url: "http://127.96.1.2/sync", timeout: 3s}}
finalize: {webhook: {url: "http://elsewhere/finalize"}}
`), &want); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, found[0].Object["spec"].(map[string]any)["hooks"]); diff != "" {
		t.Errorf("the hooks\n%s", diff)
	}
}

func TestLocalizeWithoutAService(t *testing.T) {
	objects, err := decode([]byte(controllers))
	if err != nil {
		t.Fatal(err)
	}
	missing := errors.New("no such Service")
	if err := localize(objects[1], func(string, string) (string, error) { return "", missing }); !errors.Is(err, missing) {
		t.Errorf("error is %v", err)
	}
}
