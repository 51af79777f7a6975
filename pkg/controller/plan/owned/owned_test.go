package owned_test

import (
	"testing"

	stdjson "encoding/json"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/metacontroller-solo/solo/pkg/controller/plan/owned"
	"github.com/metacontroller-solo/solo/pkg/object"
)

func decode(t testing.TB, text string) map[string]any {
	t.Helper()
	value, err := object.Decode([]byte(text))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	out, _ := value.(map[string]any)
	return out
}

func TestCompare(t *testing.T) {
	const ports = `{"f:s":{"f:ports":{"k:{\"port\":53,\"protocol\":\"TCP\"}":{".":{},"f:port":{}},"k:{\"port\":53,\"protocol\":\"UDP\"}":{".":{},"f:port":{},"f:protocol":{}}}}}`
	tests := []struct {
		name                      string
		observed, desired, fields string
		want                      owned.Verdict
	}{
		{"the same", `{"data":{"a":"1"}}`, `{"data":{"a":"1"}}`, `{"f:data":{".":{},"f:a":{}}}`, owned.Same},
		{"the same in another order, with fields of others", `{"data":{"b":"2","a":"1"}}`, `{"data":{"a":"1"}}`, `{"f:data":{"f:a":{}}}`, owned.Same},
		{"another value", `{"data":{"a":"2"}}`, `{"data":{"a":"1"}}`, `{"f:data":{"f:a":{}}}`, owned.Differs},
		{"a field that is gone", `{"data":{}}`, `{"data":{"a":"1"}}`, `{"f:data":{"f:a":{}}}`, owned.Differs},
		{"a field to be removed", `{"data":{"a":"1","b":"2"}}`, `{"data":{"a":"1"}}`, `{"f:data":{"f:a":{},"f:b":{}}}`, owned.Differs},
		{"the last field to be removed", `{"data":{"a":"1"}}`, `{}`, `{"f:data":{"f:a":{}}}`, owned.Differs},
		{"all fields to be removed, an empty object left", `{"data":{"a":"1"}}`, `{"data":{}}`, `{"f:data":{"f:a":{}}}`, owned.Differs},
		{"a field that somebody else set so", `{"data":{"a":"1"}}`, `{"data":{"a":"1"}}`, `{}`, owned.Unowned},
		{"nothing was ever applied", `{"data":{"a":"1"}}`, `{"data":{"a":"1"}}`, ``, owned.Unowned},
		{"fields that cannot be read", `{"data":{"a":"1"}}`, `{"data":{"a":"1"}}`, `[`, owned.Unowned},
		{"nothing was ever applied, and it differs", `{"data":{"a":"2"}}`, `{"data":{"a":"1"}}`, ``, owned.Differs},
		{"who it is is nobody's", `{"apiVersion":"v1","kind":"K","metadata":{"name":"n","namespace":"s","uid":"u","resourceVersion":"1"}}`,
			`{"apiVersion":"v2","kind":"K","metadata":{"name":"n","namespace":"s"}}`, ``, owned.Same},
		{"a label", `{"metadata":{"name":"n","labels":{"a":"b"}}}`, `{"metadata":{"name":"n","labels":{"a":"c"}}}`, `{"f:metadata":{"f:labels":{"f:a":{}}}}`, owned.Differs},
		{"a label that is to go", `{"metadata":{"name":"n","labels":{"a":"b"}}}`, `{"metadata":{"name":"n"}}`, `{"f:metadata":{"f:labels":{"f:a":{}}}}`, owned.Differs},
		{"a key with dots", `{"data":{"a.b/c":"1"}}`, `{"data":{"a.b/c":"1"}}`, `{"f:data":{"f:a.b/c":{}}}`, owned.Same},
		{"an empty value that the server left out", `{"s":{}}`, `{"s":{"a":"","b":0,"c":false,"d":[],"e":{}}}`, `{"f:s":{"f:a":{},"f:b":{},"f:c":{},"f:d":{},"f:e":{}}}`, owned.Same},
		{"also with what was around it", `{}`, `{"s":{"a":""}}`, `{"f:s":{"f:a":{}}}`, owned.Same},
		{"an empty value that was not applied", `{"s":{}}`, `{"s":{"a":""}}`, `{}`, owned.Unowned},
		{"an empty value that the server filled in", `{"s":{"a":"x"}}`, `{"s":{"a":""}}`, `{"f:s":{"f:a":{}}}`, owned.Differs},
		{"no replicas where there are three", `{"s":{"replicas":3}}`, `{"s":{"replicas":0}}`, `{"f:s":{"f:replicas":{}}}`, owned.Differs},
		{"a quantity", `{"limits":{"cpu":"500m"}}`, `{"limits":{"cpu":0.5}}`, `{"f:limits":{"f:cpu":{}}}`, owned.Same},
		{"another quantity", `{"limits":{"cpu":"500m"}}`, `{"limits":{"cpu":"0.6"}}`, `{"f:limits":{"f:cpu":{}}}`, owned.Differs},
		{"a text is no quantity", `{"data":{"cpu":"500m"}}`, `{"data":{"cpu":"0.5"}}`, `{"f:data":{"f:cpu":{}}}`, owned.Differs},
		{"numbers", `{"a":1}`, `{"a":1.0}`, `{"f:a":{}}`, owned.Same},
		{"a huge number", `{"a":123456789012345678901}`, `{"a":123456789012345678902}`, `{"f:a":{}}`, owned.Differs},
		{"a list where an object was", `{"a":{"b":1}}`, `{"a":[1]}`, `{"f:a":{"f:b":{}}}`, owned.Differs},
		{"an object where a list was", `{"a":[1]}`, `{"a":{"b":1}}`, `{"f:a":{}}`, owned.Differs},
		{"a text where an object was", `{"a":{"b":1}}`, `{"a":"x"}`, `{"f:a":{"f:b":{}}}`, owned.Differs},

		{"one port, two protocols", `{"s":{"ports":[{"port":53,"protocol":"TCP","nodePort":1},{"port":53,"protocol":"UDP"}]}}`,
			`{"s":{"ports":[{"port":53,"protocol":"UDP"},{"port":53}]}}`, ports, owned.Same},
		{"UDP is to go", `{"s":{"ports":[{"port":53,"protocol":"TCP"},{"port":53,"protocol":"UDP"}]}}`, `{"s":{"ports":[{"port":53}]}}`, ports, owned.Differs},
		{"TCP is to go", `{"s":{"ports":[{"port":53,"protocol":"TCP"},{"port":53,"protocol":"UDP"}]}}`, `{"s":{"ports":[{"port":53,"protocol":"UDP"}]}}`, ports, owned.Differs},
		{"a new port", `{"s":{"ports":[{"port":53,"protocol":"TCP"},{"port":53,"protocol":"UDP"}]}}`,
			`{"s":{"ports":[{"port":53,"protocol":"UDP"},{"port":53},{"port":80}]}}`, ports, owned.Differs},
		{"a sidecar of somebody else", `{"c":[{"name":"side"},{"name":"a","image":"1"}]}`, `{"c":[{"name":"a","image":"1"}]}`, `{"f:c":{"k:{\"name\":\"a\"}":{".":{},"f:name":{},"f:image":{}}}}`, owned.Same},
		{"a field of an element is to go", `{"c":[{"name":"a","image":"1"}]}`, `{"c":[{"name":"a"}]}`, `{"f:c":{"k:{\"name\":\"a\"}":{".":{},"f:name":{},"f:image":{}}}}`, owned.Differs},
		{"an env with an empty value", `{"env":[{"name":"A"}]}`, `{"env":[{"name":"A","value":""}]}`, `{"f:env":{"k:{\"name\":\"A\"}":{".":{},"f:name":{},"f:value":{}}}}`, owned.Same},
		{"two mounts of one volume", `{"m":[{"name":"v","mountPath":"/a"},{"name":"v","mountPath":"/b"}]}`, `{"m":[{"name":"v","mountPath":"/a"},{"name":"v","mountPath":"/b"}]}`,
			`{"f:m":{"k:{\"mountPath\":\"/a\"}":{".":{},"f:name":{},"f:mountPath":{}},"k:{\"mountPath\":\"/b\"}":{".":{},"f:name":{},"f:mountPath":{}}}}`, owned.Same},
		{"a set", `{"f":["theirs","ours"]}`, `{"f":["ours"]}`, `{"f:f":{"v:\"ours\"":{}}}`, owned.Same},
		{"an element of a set is to go", `{"f":["a","b"]}`, `{"f":["a"]}`, `{"f:f":{"v:\"a\"":{},"v:\"b\"":{}}}`, owned.Differs},
		{"an element of a set that is not ours", `{"f":["a","b"]}`, `{"f":["a","b"]}`, `{"f:f":{"v:\"a\"":{}}}`, owned.Unowned},

		{"a list as a whole", `{"args":["a","b"]}`, `{"args":["a","b"]}`, `{"f:args":{}}`, owned.Same},
		{"a list in another order", `{"args":["a","b"]}`, `{"args":["b","a"]}`, `{"f:args":{}}`, owned.Differs},
		{"a shorter list", `{"args":["a","b"]}`, `{"args":["a"]}`, `{"f:args":{}}`, owned.Differs},
		{"a list that somebody else has changed", `{"args":["a"]}`, `{"args":["b"]}`, `{}`, owned.Differs},
		{"null in a list", `{"args":["a",null]}`, `{"args":["a",null]}`, `{"f:args":{}}`, owned.Same},
		{"claim templates with defaults", `{"v":[{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"d"},"spec":{"volumeMode":"Filesystem","resources":{"requests":{"storage":"1Gi"}}},"status":{"phase":"Pending"}}]}`,
			`{"v":[{"metadata":{"name":"d"},"spec":{"resources":{"requests":{"storage":"1024Mi"}}}}]}`, `{"f:v":{}}`, owned.Same},
		{"a field in a list as a whole is to go", `{"v":[{"a":1,"b":2}]}`, `{"v":[{"a":1}]}`, `{"f:v":{}}`, owned.Differs},
		{"tolerations that the server appended", `{"tolerations":[{"key":"gpu"},{"key":"node.kubernetes.io/not-ready","operator":"Exists"}]}`, `{"tolerations":[{"key":"gpu"}]}`, `{"f:tolerations":{}}`, owned.Same},
		{"other tolerations are to go", `{"tolerations":[{"key":"gpu"},{"key":"x"}]}`, `{"tolerations":[{"key":"gpu"}]}`, `{"f:tolerations":{}}`, owned.Differs},
		{"an object as a whole", `{"ref":{"name":"a","apiVersion":"v1"}}`, `{"ref":{"name":"a"}}`, `{"f:ref":{}}`, owned.Same},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			desired := decode(t, tt.desired)
			if got := owned.Compare(decode(t, tt.observed), owned.WithoutNulls(desired), tt.fields); got != tt.want {
				t.Errorf("verdict %d, want %d", got, tt.want)
			}
		})
	}
}

func TestWithoutNulls(t *testing.T) {
	got := owned.WithoutNulls(decode(t, `{"a":null,"b":{"c":null,"d":1},"e":[null,{"f":null}],"p":[{"port":1,"protocol":""},{"protocol":""}]}`))
	if diff := cmp.Diff(decode(t, `{"b":{"d":1},"e":[null,{}],"p":[{"port":1},{"protocol":""}]}`), got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestHandOver(t *testing.T) {
	const annotation = `"f:annotations":{"f:metacontroller.k8s.io/last-applied-configuration":{}}`
	tests := []struct{ name, managed, last, want string }{
		{"an update becomes an apply, without the defaults",
			`[{"manager":"metacontroller","operation":"Update","apiVersion":"v1","fieldsV1":{"f:metadata":{` + annotation + `},"f:data":{"f:a":{},"f:default":{}}}}]`,
			`{"data":{"a":"1"}}`,
			`[{"manager":"me","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a":{}}}}]`},
		{"of a program of another name",
			`[{"manager":"metacontroller-linux","operation":"Update","apiVersion":"v1","fieldsV1":{"f:metadata":{` + annotation + `},"f:data":{"f:a":{}}}}]`,
			`{"data":{"a":"1"}}`,
			`[{"manager":"me","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a":{}}}}]`},
		{"others stay, and so does status",
			`[{"manager":"kubectl","operation":"Update","apiVersion":"v1","fieldsV1":{"f:data":{"f:b":{}}}},{"manager":"metacontroller","operation":"Update","apiVersion":"v1","subresource":"status","fieldsV1":{"f:status":{}}},{"manager":"metacontroller","operation":"Update","apiVersion":"v1","fieldsV1":{"f:data":{"f:a":{}}}}]`,
			`{"data":{"a":"1"}}`,
			`[{"manager":"kubectl","operation":"Update","apiVersion":"v1","fieldsV1":{"f:data":{"f:b":{}}}},{"manager":"metacontroller","operation":"Update","apiVersion":"v1","subresource":"status","fieldsV1":{"f:status":{}}},{"manager":"me","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a":{}}}}]`},
		{"added to what was applied in the same version",
			`[{"manager":"me","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:x":{}}}},{"manager":"metacontroller","operation":"Update","apiVersion":"v1","fieldsV1":{"f:data":{"f:a":{}}}},{"manager":"metacontroller","operation":"Update","apiVersion":"v1beta1","fieldsV1":{"f:data":{"f:b":{}}}}]`,
			`{"data":{"a":"1","b":"2"}}`,
			`[{"manager":"me","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a":{},"f:x":{}}}}]`},
		{"elements of lists",
			`[{"manager":"metacontroller","operation":"Update","apiVersion":"v1","fieldsV1":{"f:c":{".":{},"k:{\"name\":\"a\"}":{".":{},"f:name":{},"f:image":{},"f:policy":{}},"k:{\"name\":\"side\"}":{".":{},"f:name":{}}},"f:p":{"k:{\"port\":53,\"protocol\":\"TCP\"}":{".":{},"f:port":{},"f:protocol":{}}},"f:s":{"v:\"x\"":{},"v:\"y\"":{}}}}]`,
			`{"c":[{"name":"a","image":"1"}],"p":[{"port":53}],"s":["x"]}`,
			`[{"manager":"me","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:c":{".":{},"k:{\"name\":\"a\"}":{".":{},"f:image":{},"f:name":{}}},"f:p":{"k:{\"port\":53,\"protocol\":\"TCP\"}":{".":{},"f:port":{}}},"f:s":{"v:\"x\"":{}}}}]`},
		{"nothing of ours", `[{"manager":"kubectl","operation":"Update","apiVersion":"v1","fieldsV1":{"f:data":{"f:a":{}}}}]`, `{"data":{"a":"1"}}`,
			`[{"manager":"kubectl","operation":"Update","apiVersion":"v1","fieldsV1":{"f:data":{"f:a":{}}}}]`},
		{"nothing was remembered", `[{"manager":"metacontroller","operation":"Update","apiVersion":"v1","fieldsV1":{"f:data":{"f:a":{}}}}]`, `null`, `[]`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var managed, want []metav1.ManagedFieldsEntry
			if err := stdjson.Unmarshal([]byte(tt.managed), &managed); err != nil {
				t.Fatal(err)
			}
			if err := stdjson.Unmarshal([]byte(tt.want), &want); err != nil {
				t.Fatal(err)
			}
			got, err := owned.HandOver(managed, decode(t, tt.last), "me", "me", "metacontroller")
			if err != nil {
				t.Fatal(err)
			}
			text, _ := stdjson.Marshal(got)
			wanted, _ := stdjson.Marshal(want)
			if len(want)+len(got) > 0 && string(text) != string(wanted) {
				t.Errorf("got  %s\nwant %s", text, wanted)
			}
		})
	}
}

func TestMigration(t *testing.T) {
	patch, err := owned.Migration([]byte(`{"metadata":{"name":"a","resourceVersion":"7","annotations":{"metacontroller.k8s.io/last-applied-configuration":"{\"data\":{\"a\":\"1\"}}"},
		"managedFields":[{"manager":"metacontroller","operation":"Update","apiVersion":"v1","fieldsV1":{"f:data":{"f:a":{},"f:b":{}}}}]}}`), "me", "metacontroller")
	want := `[{"op":"replace","path":"/metadata/resourceVersion","value":"7"},{"op":"remove","path":"/metadata/annotations/metacontroller.k8s.io~1last-applied-configuration"},` +
		`{"op":"replace","path":"/metadata/managedFields","value":[{"manager":"me","operation":"Apply","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{"f:data":{"f:a":{}}}}]}]`
	if err != nil || string(patch) != want {
		t.Errorf("%v\ngot  %s\nwant %s", err, patch, want)
	}
	for _, bad := range []string{`{`, `[]`, `{"metadata":{"name":"a"}}`} {
		if _, err := owned.Migration([]byte(bad), "me"); err == nil {
			t.Errorf("%s: no error", bad)
		}
	}
}
