package wire_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/metacontroller-solo/solo/pkg/controller/hook"
	"github.com/metacontroller-solo/solo/pkg/object"
)

// BenchmarkEncodeRequest puts together a request with three children of half a
// KiB, and one with a hundred.
func BenchmarkEncodeRequest(b *testing.B) {
	for _, n := range []int{3, 100} {
		b.Run(fmt.Sprintf("children=%d", n), func(b *testing.B) {
			r := request(hook.Composite, hook.Sync, "ns")
			var children []*object.Object
			for i := range n {
				o, err := object.FromJSON(fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Pod","metadata":{"name":"child-%d","namespace":"ns"},"data":{"x":%q}}`, i, strings.Repeat("0123456789abcdef", 32)))
				if err != nil {
					b.Fatal(err)
				}
				children = append(children, o)
			}
			r.Children = object.NewSet([]object.Kind{pods}, children...)
			data, err := v1.EncodeRequest(r)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(data)))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := v1.EncodeRequest(r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkDecodeResponse(b *testing.B) {
	r := request(hook.Composite, hook.Sync, "ns")
	var children []string
	for i := range 3 {
		children = append(children, fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"child-%d","namespace":"ns"},"data":{"x":%q}}`, i, strings.Repeat("0123456789abcdef", 32)))
	}
	data := []byte(`{"status":{"replicas":3},"children":[` + strings.Join(children, ",") + `]}`)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := v1.DecodeResponse(r, data); err != nil {
			b.Fatal(err)
		}
	}
}
