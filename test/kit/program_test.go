package kit_test

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/metacontroller-solo/solo/test/kit"
)

func TestBuild(t *testing.T) {
	path := kit.Build(t, "./test/kit/assets")
	if again := kit.Build(t, "./test/kit/assets"); again != path {
		t.Errorf("built twice: %s and %s", path, again)
	}
	dir := t.TempDir()
	p := kit.Run(t, path, nil, kit.AssetsEnv+"="+dir)
	p.WaitLine(patience, "cannot use KUBEBUILDER_ASSETS="+dir+": etcd is not there")
	if code := p.ExitCode(patience); code != 1 {
		t.Errorf("exit code %d", code)
	}
	if lines := strings.Count(p.Output(), "\n"); lines != 1 {
		t.Errorf("%d lines of output:\n%s", lines, p.Output())
	}
}

func TestRun(t *testing.T) {
	t.Setenv("KIT_TEST_LEAK", "leaked")
	script := func(s string, env ...string) *kit.Program { return kit.Run(t, "/bin/sh", []string{"-c", s}, env...) }

	p := script(`trap 'echo asked; exit 5' TERM; echo "$GIVEN-$KIT_TEST_LEAK-"; while :; do sleep 0.01; done`, "GIVEN=given")
	if line := p.WaitLine(patience, "given"); line != "given--" {
		t.Errorf("environment: %q", line)
	}
	if code := p.Stop(); code != 5 {
		t.Errorf("stopped with %d", code)
	}
	p.WaitLine(time.Second, "asked")

	p = script("exec sleep 1000")
	p.Kill()
	if code := p.ExitCode(time.Second); code != 137 {
		t.Errorf("killed with %d", code)
	}
	p = script("exec sleep 1000")
	p.Signal(syscall.SIGINT)
	<-p.Done()
	if code := p.ExitCode(time.Second); code != 130 {
		t.Errorf("interrupted with %d", code)
	}
	if _, err := os.FindProcess(p.Pid()); err != nil {
		t.Error(err)
	}
}
