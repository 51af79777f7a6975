package kit_test

import (
	"testing"

	"github.com/metacontroller-solo/solo/test/kit"
)

func TestMain(m *testing.M) { kit.Main(m, kit.Options{APIServers: 2}) }

func TestStarts(t *testing.T) {
	cp := kit.Shared(t)
	t.Log(cp.Dir())
}
