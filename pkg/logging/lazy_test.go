package logging_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	uzap "go.uber.org/zap"
	"sigs.k8s.io/controller-runtime/pkg/log/zap"

	"github.com/metacontroller-solo/solo/pkg/logging"
)

// A Lazy logger writes what the logger that it is made of writes, callers included.
func TestLazy(t *testing.T) {
	lines := func(of func(logr.Logger) logr.Logger) []string {
		var out bytes.Buffer
		log := of(zap.New(zap.WriteTo(&out), zap.RawZapOpts(uzap.AddCaller()), zap.UseDevMode(true)).WithName("a").WithValues("before", 1))
		log.Info("plain")
		log.V(1).Info("more", "x", 1)
		log.V(9).Info("too much")
		child := log.WithValues("parent", "p", "n", 2).WithName("b")
		child.WithValues("id", "q").Info("of a child", "y", true)
		child.Error(errors.New("bad"), "an error")
		if !log.V(1).Enabled() || log.V(9).Enabled() {
			t.Error("the levels are others")
		}
		var kept []string
		for _, line := range strings.Split(out.String(), "\n") {
			// Without the time, and without the stack of the error.
			if _, rest, ok := strings.Cut(line, "\t"); ok && !strings.HasPrefix(line, "\t") {
				kept = append(kept, rest)
			}
		}
		return kept
	}
	want := lines(func(log logr.Logger) logr.Logger { return log })
	if diff := cmp.Diff(want, lines(logging.Lazy)); diff != "" || len(want) != 4 {
		t.Errorf("%q (-want +got):\n%s", want, diff)
	}
}
