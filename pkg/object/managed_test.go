package object_test

import (
	"fmt"
	"testing"

	"github.com/metacontroller-solo/solo/pkg/object"
)

func TestReaderKeepsWhatItsManagerApplied(t *testing.T) {
	const mine = `{"f:data":{"f:a":{}}}`
	entry := func(manager, operation, subresource, fields string) string {
		return fmt.Sprintf(`{"apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":%s,"manager":%q,"operation":%q,"subresource":%q}`, fields, manager, operation, subresource)
	}
	tests := []struct{ name, managed, want string }{
		{"among others", `[` + entry("me", "Update", "", `{"f:x":{}}`) + `,` + entry("me", "Apply", "", mine) + `,` + entry("you", "Apply", "", `{"f:y":{}}`) + `]`, mine},
		{"of a subresource", `[` + entry("me", "Apply", "status", mine) + `]`, ``},
		{"an update", `[` + entry("me", "Update", "", mine) + `]`, ``},
		{"nothing", `[]`, ``},
		{"null", `null`, ``},
		{"not a list", `{"manager":"me"}`, ``},
		{"strange entries", `[null,7,"x",[],{},{"manager":7,"operation":null,"fieldsV1":1}]`, ``},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			text := fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","managedFields":%s,"uid":"u"},"data":{"a":"1"}}`, tt.managed)
			o, err := object.Reader{FieldManager: "me"}.FromJSON([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			if o.Applied() != tt.want {
				t.Errorf("applied %q, want %q", o.Applied(), tt.want)
			}
			if want := `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","uid":"u"},"data":{"a":"1"}}`; o.Body() != want {
				t.Errorf("body %s", o.Body())
			}
			if other, err := object.FromJSON([]byte(text)); err != nil || other.Applied() != "" || other.Body() != o.Body() {
				t.Errorf("without a manager: %v, applied %q", err, other.Applied())
			}
		})
	}
}

func TestDigest(t *testing.T) {
	base := `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"u","resourceVersion":"1","labels":{"a":"b"}},"spec":{"x":1},"status":{"p":1}}`
	digest := func(text string) [32]byte {
		o, err := object.Reader{FieldManager: "me"}.FromJSON([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return o.Digest()
	}
	tests := []struct {
		name, text string
		same       bool
	}{
		{"itself", base, true},
		{"noise", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","uid":"v","resourceVersion":"2","generation":7,"labels":{"a":"b"},"managedFields":[]},"spec":{"x":1},"status":null}`, true},
		{"no status", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"a":"b"}},"spec":{"x":1}}`, true},
		{"another label", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"a":"c"}},"spec":{"x":1}}`, false},
		{"another spec", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"a":"b"}},"spec":{"x":2}}`, false},
		{"applied", `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","labels":{"a":"b"},"managedFields":[{"manager":"me","operation":"Apply","fieldsV1":{"f:spec":{}}}]},"spec":{"x":1}}`, false},
	}
	for _, tt := range tests {
		if got := digest(tt.text) == digest(base); got != tt.same {
			t.Errorf("%s: same %t", tt.name, got)
		}
	}
}
