package object_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/metacontroller-solo/solo/pkg/object"
)

// configMap is a child of the usual sort as the API server sends it: half a KiB
// of data, owner reference, last-applied annotation, managedFields.
func configMap() string {
	data := strings.Repeat("0123456789abcdef", 32)
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"child-1","namespace":"default","uid":"9b2e0b1e-8c4c-4d55-a1f0-1f2f3f4f5f6f",`+
		`"resourceVersion":"12345","creationTimestamp":"2026-01-01T00:00:00Z","labels":{"app":"x","controller-uid":"9b2e0b1e-8c4c-4d55-a1f0-aaaaaaaaaaaa"},`+
		`"annotations":{"metacontroller.k8s.io/last-applied-configuration":"{\"apiVersion\":\"v1\",\"data\":{\"payload\":\"%[1]s\"},\"kind\":\"ConfigMap\",\"metadata\":{\"labels\":{\"app\":\"x\",\"controller-uid\":\"9b2e0b1e-8c4c-4d55-a1f0-aaaaaaaaaaaa\"},\"name\":\"child-1\",\"namespace\":\"default\"}}"},`+
		`"ownerReferences":[{"apiVersion":"x.io/v1","kind":"Thing","name":"parent-1","uid":"9b2e0b1e-8c4c-4d55-a1f0-aaaaaaaaaaaa","controller":true,"blockOwnerDeletion":true}],`+
		`"managedFields":[{"manager":"metacontroller","operation":"Update","apiVersion":"v1","time":"2026-01-01T00:00:00Z","fieldsType":"FieldsV1","fieldsV1":{"f:data":{".":{},"f:payload":{}},"f:metadata":{"f:annotations":{".":{},"f:metacontroller.k8s.io/last-applied-configuration":{}},"f:labels":{".":{},"f:app":{},"f:controller-uid":{}},"f:ownerReferences":{".":{},"k:{\"uid\":\"9b2e0b1e-8c4c-4d55-a1f0-aaaaaaaaaaaa\"}":{}}}}}]},`+
		`"data":{"payload":"%[1]s"}}`, data)
}

func BenchmarkFromJSON(b *testing.B) {
	data := []byte(configMap())
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := object.FromJSON(data); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkUnstructured is what FromJSON is in place of.
func BenchmarkUnstructured(b *testing.B) {
	data := []byte(configMap())
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		var u unstructured.Unstructured
		if err := u.UnmarshalJSON(data); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkContent(b *testing.B) {
	o, err := object.FromJSON([]byte(configMap()))
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if o.Content() == nil {
			b.Fatal("no content")
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	o, err := object.FromJSON([]byte(configMap()))
	if err != nil {
		b.Fatal(err)
	}
	content := o.Content()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := object.Encode(content); err != nil {
			b.Fatal(err)
		}
	}
}
