package kit

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func TestEstablished(t *testing.T) {
	condition := func(kind, status string) map[string]any { return map[string]any{"type": kind, "status": status} }
	for _, tc := range []struct {
		name   string
		status any
		want   bool
	}{
		{"no status", nil, false},
		{"null, as the server first stores it", map[string]any{"conditions": nil}, false},
		{"names only", map[string]any{"conditions": []any{condition("NamesAccepted", "True")}}, false},
		{"not yet", map[string]any{"conditions": []any{condition("Established", "False")}}, false},
		{"yes", map[string]any{"conditions": []any{condition("NamesAccepted", "True"), condition("Established", "True")}}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			crd := &unstructured.Unstructured{Object: map[string]any{"status": tc.status}}
			if got := slices.ContainsFunc(conditionsOf(crd), established); got != tc.want {
				t.Errorf("established: %t", got)
			}
		})
	}
}
