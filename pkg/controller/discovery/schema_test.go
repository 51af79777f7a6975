package discovery

import (
	"testing"

	"github.com/metacontroller-solo/solo/pkg/object"
)

func TestStatusField(t *testing.T) {
	version := func(root string) string {
		return `{"versions":[{"name":"v0","schema":{"openAPIV3Schema":{"properties":{"status":{}}}}},{"name":"v1","schema":{"openAPIV3Schema":` + root + `}}]}`
	}
	cases := []struct {
		reason, spec string
		want         bool
	}{
		{"declared", version(`{"properties":{"spec":{},"status":{"type":"object"}}}`), true},
		{"not declared, so pruned", version(`{"properties":{"spec":{}}}`), false},
		{"anything is kept", version(`{"x-kubernetes-preserve-unknown-fields":true}`), true},
		{"anything is kept elsewhere", version(`{"properties":{"spec":{"x-kubernetes-preserve-unknown-fields":true}}}`), false},
		{"of old, everything is kept", `{"preserveUnknownFields":true,"versions":[{"name":"v1"}]}`, true},
		{"no schema", `{"versions":[{"name":"v1"}]}`, false},
		{"no such version", `{"versions":[{"name":"v2","schema":{"openAPIV3Schema":{"properties":{"status":{}}}}}]}`, false},
		{"nothing", `null`, false},
	}
	for _, c := range cases {
		o, err := object.FromJSON([]byte(`{"apiVersion":"apiextensions.k8s.io/v1","kind":"CustomResourceDefinition","metadata":{"name":"a"},"spec":` + c.spec + `}`))
		if err != nil {
			t.Fatal(err)
		}
		if got := StatusField(o, "v1"); got != c.want {
			t.Errorf("%s: %v", c.reason, got)
		}
	}
}
